"""A calibration as a file: what was measured, on what, and the model fitted to it.

JSON, one object: `format`, `version`, `checksum` (SHA-256 over the canonical JSON of `content`) and `content`
with architecture, device, envelope, kv_tokens, seed, environment, samples, model, provenance and (since they are
known) engine, kv_capacity and transfers. Numbers are
finite and written in full, so a file read back is equal to what was written. A file comes from anywhere: size,
checksum, schema and every number are checked before anything is believed; `DocumentError` says what is wrong.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

import numpy as np

from calibration import strict_json
from calibration.architecture import Architecture, UnsupportedArchitecture
from calibration.capacity import MAX_POOL_TOKENS
from calibration.engine.sharding import CannotShard, check_shards
from calibration.experiment.envelope import BadEnvelope, Envelope
from calibration.facts import NOTHING_KNOWN, Facts, FactsError
from calibration.steptime import FEATURE_NAMES, FITTED_ROLES, StepSample, StepTimeModel, features_of
from calibration.steptime.samples import ROLES

FORMAT, VERSION = "ridgeline-calibration", 1
MAX_BYTES = 64 * 2**20
MAX_SAMPLES = 200_000
MAX_ROWS = 1 << 14  # decode rows and chunks of one step
MAX_REPEATS = 1000
MAX_TOKENS = 1 << 24
MAX_TEXT = 200
MAX_DEVICE = 120  # characters, as the forms and the column have it
MAX_RANKS = 64
MAX_SEED = (1 << 31) - 1  # what the column holds on Postgres; SQLite would take more
MOST_OFF = 2.0  # by which a model may miss the median of the samples it was fitted to
MAX_DEPTH = 32  # of nested objects and lists
MAX_NOTES_BYTES = 1 << 18  # of environment and of provenance, as JSON
SHORTEST_S, LONGEST_S = 1e-7, 3600.0
#: Of what was recorded, what is read again: a text where it is there at all, such as `started_at`, from which the age
#: of the steps is told.
TEXTS = {
    "environment": (
        "started_at",
        "processor",
        "device_name",
        "driver",
        "torch",
        "cuda",
        "dtype",
        "weights",
        "mixed_mode",
    ),
    "provenance": ("engine", "dtype", "mixed_mode", "reason", "file"),
}
CLOCKS_APART = timedelta(days=1)  # that two machines' clocks and time zones may differ
#: Characters that no text of ours has: control characters but tab and line ends, surrogates, directional marks.
NO_TEXT = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


class DocumentError(ValueError):
    """The file is not a calibration that can be believed: `field` (dotted path) and `message`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.message = field, message


class DocumentTooLarge(DocumentError):
    """More bytes than are read."""


@dataclass(frozen=True, slots=True)
class CalibrationDocument:
    """What a calibration file holds. `model` is the model's JSON form, None when the gate refused it."""

    architecture: Architecture
    device: str
    envelope: Envelope | None
    kv_tokens: int
    seed: int
    environment: dict[str, Any]
    samples: list[StepSample]
    model: dict[str, Any] | None
    provenance: dict[str, Any]
    facts: Facts = NOTHING_KNOWN

    @property
    def ranks(self) -> int:
        """Ranks that share the model, as its engine said."""
        return _ranks(self.environment)


def write_document(document: CalibrationDocument) -> bytes:
    """The file's bytes. Raises ValueError for a number that is not finite."""
    content = {
        "architecture": document.architecture.to_dict(),
        "device": document.device,
        "envelope": document.envelope.to_dict() if document.envelope else None,
        "kv_tokens": document.kv_tokens,
        "seed": document.seed,
        "environment": document.environment,
        "samples": [sample.to_dict() for sample in document.samples],
        "model": document.model,
        "provenance": document.provenance,
        **document.facts.to_dict(),
    }
    envelope = {"format": FORMAT, "version": VERSION, "checksum": _checksum(content), "content": content}
    return json.dumps(envelope, allow_nan=False, indent=1).encode()


def read_document(source: str | Path | IO[bytes]) -> CalibrationDocument:
    """The calibration in a file. Raises DocumentError, and nothing else but OSError."""
    content = _content(_read(source))
    samples = _field(content, "samples", list)
    ranks = _ranks(_notes(content, "environment"))
    if not 1 <= len(samples) <= MAX_SAMPLES:
        raise DocumentError("samples", f"must be 1 to {MAX_SAMPLES:,}, not {len(samples):,}")
    try:
        envelope = content.get("envelope")
        document = CalibrationDocument(
            architecture=_architecture(content),
            device=_text(content, "device", MAX_DEVICE),
            envelope=None if envelope is None else Envelope.from_dict(envelope),
            kv_tokens=_whole(content, "kv_tokens", 1, MAX_POOL_TOKENS),
            seed=_whole(content, "seed", 0, MAX_SEED),
            environment=_notes(content, "environment"),
            samples=(read := [sample_of(entry, f"samples.{index}") for index, entry in enumerate(samples)]),
            model=_model(content.get("model"), read),
            provenance=_notes(content, "provenance"),
            facts=Facts.from_dict(content, str(_notes(content, "provenance").get("engine", ""))),
        )
    except UnsupportedArchitecture as error:
        raise DocumentError(f"architecture.{error.field}", error.message) from error
    except BadEnvelope as error:
        raise DocumentError(f"envelope.{error.field}", error.message) from error
    except FactsError as error:
        raise DocumentError(error.field, error.message) from error
    try:
        check_shards(document.architecture, ranks)
    except CannotShard as error:
        raise DocumentError("environment.tensor_parallel", str(error)) from None
    _same_ranks(document.facts, ranks)
    return document


def _ranks(environment: Mapping[str, Any]) -> int:
    try:
        return _whole({"tensor_parallel": 1} | dict(environment), "tensor_parallel", 1, MAX_RANKS)
    except DocumentError as error:
        raise DocumentError("environment.tensor_parallel", error.message) from None


def _same_ranks(facts: Facts, ranks: int) -> None:
    """Pools and transfers that were measured were measured with the ranks that took the steps."""
    pool = facts.kv_capacity
    measured = [] if pool is None else [("kv_capacity", pool.ranks)]
    measured += [(f"transfers.{i}", t.ranks) for i, t in enumerate(facts.transfers) if not t.entered]
    for field, found in measured:
        if found != ranks:
            raise DocumentError(f"{field}.ranks", f"must be {ranks}, as the steps were measured with")


def _read(source: str | Path | IO[bytes]) -> bytes:
    if isinstance(source, (str, Path)):
        with Path(source).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    else:
        source.seek(0)
        data = source.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise DocumentTooLarge("file", f"is larger than {MAX_BYTES >> 20} MiB")
    return data


def _content(data: bytes) -> dict[str, Any]:
    try:
        outer = strict_json.read(data)
    except strict_json.JsonError as error:
        raise DocumentError("file", str(error)) from None
    if not isinstance(outer, dict) or outer.get("format") != FORMAT:
        raise DocumentError("format", f"is not {FORMAT!r}: this is no calibration file")
    if type(outer.get("version")) is not int or outer["version"] != VERSION:
        raise DocumentError("version", f"must be {VERSION}, the one this release reads")
    content = _field(outer, "content", dict)
    _refuse_unstorable(content, "content", 1)
    if outer.get("checksum") != _checksum(content):
        raise DocumentError("checksum", "does not match the content: the file was changed or cut short")
    return dict(content)


def _refuse_unstorable(value: Any, path: str, depth: int) -> None:
    """What a database or a page would choke on, or show as something else: NUL and other control characters, half a
    surrogate pair, marks that turn the text around them (Unicode TR 9), nesting without end."""
    if depth > MAX_DEPTH:
        raise DocumentError("file", f"is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, str):
        if NO_TEXT.search(value):
            raise DocumentError(path, "holds a character that is no text")
    elif isinstance(value, dict):
        for key, inner in value.items():
            _refuse_unstorable(key, path, depth)
            _refuse_unstorable(inner, f"{path}.{key}"[:MAX_TEXT], depth + 1)
    elif isinstance(value, list) and not all(map(_number, value)):
        for inner in value:
            _refuse_unstorable(inner, path, depth + 1)


def _architecture(content: Mapping[str, Any]) -> Architecture:
    """As `Architecture.from_dict`, but a text that would be shown otherwise than it was written is refused: there it
    is only cleaned, as a config.json of anybody's must be."""
    values: dict[str, Any] = _field(content, "architecture", dict)
    for key in ("name", "model_type"):
        _text(values, key, MAX_TEXT, "architecture.")
    for index, note in enumerate(values["notes"] if isinstance(values.get("notes"), list) else ()):
        if isinstance(note, str) and not note.isprintable():
            raise DocumentError(f"architecture.notes.{index}", "must be printable characters")
    if values.get("quantization"):
        _text(values, "quantization", MAX_TEXT, "architecture.")
    return Architecture.from_dict(values)


def _notes(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A free object of what was recorded: any keys, but of a size that a page can show, and TEXTS as such."""
    value: dict[str, Any] = _field(mapping, key, dict)
    if len(json.dumps(value)) > MAX_NOTES_BYTES:
        raise DocumentError(key, f"is larger than {MAX_NOTES_BYTES >> 10} KiB")
    for name in TEXTS[key]:
        if not isinstance(value.get(name), str | None):
            raise DocumentError(f"{key}.{name}", "must be text")
    if key == "environment" and value.get("started_at"):
        _check_moment(value["started_at"])
    return value


def _check_moment(text: str) -> None:
    """That steps were timed at some moment, and not in days to come: they would be fresh for ever."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise DocumentError(
            "environment.started_at", "must be a date and time, as 2026-03-01T12:00:00+00:00"
        ) from None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    if found > datetime.now(UTC) + CLOCKS_APART:
        raise DocumentError("environment.started_at", "lies in the future")


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _field(mapping: Mapping[str, Any], key: str, kind: type) -> Any:
    value = mapping.get(key)
    if not isinstance(value, kind):
        raise DocumentError(
            key, f"must be {'text' if kind is str else 'an object' if kind is dict else 'a list'}"
        )
    return value


def _text(mapping: Mapping[str, Any], key: str, most: int, path: str = "") -> str:
    """A line that a page shows: not blank, nothing in it that hides or turns what stands around it."""
    value = mapping.get(key)
    if not isinstance(value, str):
        raise DocumentError(path + key, "must be text")
    if not value.strip() or len(value) > most or not value.isprintable():
        raise DocumentError(path + key, f"must be 1 to {most} printable characters, not all blank")
    return value


def _whole(mapping: Mapping[str, Any], key: str, least: int, most: int) -> int:
    value = mapping.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise DocumentError(key, f"must be a whole number from {least:,} to {most:,}")
    return value


def sample_of(entry: Any, path: str) -> StepSample:
    """A sample's JSON form, checked; `path` is where it lies. Raises DocumentError."""
    if not isinstance(entry, dict) or not isinstance(entry.get("shape"), dict):
        raise DocumentError(path, "must be an object with a shape")
    decode, chunks = entry["shape"].get("decode"), entry["shape"].get("chunks")
    if not _tokens(decode) or not isinstance(chunks, list) or len(chunks) > MAX_ROWS:
        raise DocumentError(f"{path}.shape", "must list decode contexts and chunks, in tokens")
    if not all(_tokens(chunk) and len(chunk) == 3 for chunk in chunks):
        raise DocumentError(f"{path}.shape.chunks", "must be [query tokens, cached tokens, samples 0 or 1]")
    seconds = entry.get("seconds")
    if not isinstance(seconds, list) or len(seconds) > MAX_REPEATS or not all(map(_number, seconds)):
        raise DocumentError(f"{path}.seconds", f"must list at most {MAX_REPEATS} numbers")
    if not all(SHORTEST_S <= value <= LONGEST_S for value in seconds):
        raise DocumentError(
            f"{path}.seconds", f"must be above 0 (0.1 µs at least) and at most {LONGEST_S:,.0f} s"
        )
    if entry.get("role") not in ROLES:
        raise DocumentError(f"{path}.role", f"must be one of {', '.join(ROLES)}")
    share: Any = entry.get("contended_share")
    gap_s: Any = entry.get("host_gap_s")
    if not (_number(share) and 0 <= share <= 1):
        raise DocumentError(f"{path}.contended_share", "must be from 0 to 1")
    if not (_number(gap_s) and 0 <= gap_s <= LONGEST_S):
        raise DocumentError(f"{path}.host_gap_s", f"must be from 0 to {LONGEST_S:,.0f} s")
    try:
        return StepSample.from_dict(entry)
    except ValueError as error:
        raise DocumentError(path, str(error)) from error


def _tokens(values: Any) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= MAX_ROWS
        and all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v <= MAX_TOKENS for v in values)
    )


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _model(data: Any, samples: Sequence[StepSample]) -> dict[str, Any] | None:
    """The model's JSON form, checked by reading it and against the samples it claims to be of. Raises DocumentError."""
    if data is None:
        return None
    try:
        model = StepTimeModel.from_dict(data)
    except ValueError as error:
        raise DocumentError("model", str(error)) from error
    fitted = [sample for sample in samples if sample.role in FITTED_ROLES]
    if not fitted:
        raise DocumentError("model", "is there, but no sample that was fitted is")
    features = features_of(sample.shape for sample in fitted)
    largest = features.matrix().max(axis=0)
    if np.any(model.hull.high > largest * (1 + 1e-9) + 1e-9):
        wide = FEATURE_NAMES[int(np.argmax(model.hull.high - largest))]
        raise DocumentError("model.hull", f"covers more {wide} than any fitted sample has")
    off = np.median(model.predict_s(features) / np.array([sample.median_s for sample in fitted]))
    if not 1 / MOST_OFF <= off <= MOST_OFF:
        raise DocumentError(
            "model",
            f"predicts {off:.3g} times what its own samples took: are samples and model in the same unit?",
        )
    return model.to_dict()
