"""Calibration files that come with Ridgeline: measured by `scripts/gpu_check.sh full`, committed as it wrote them.

Each is listed with its provenance and SHA-256 and can be imported as a copy; nothing here is ever changed. A file is
read as any other that somebody brings (calibration.document): one that does not check is listed with its reason. What
lies beside them (provenance.json of the run, quick.json, logs) is no calibration and is not listed.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from calibration.describe import device_label
from calibration.document import FORMAT, MAX_BYTES, CalibrationDocument, DocumentError, read_document

FOLDER = Path(__file__).resolve().parent / "bundled"
PROVENANCE = "provenance.json"
MAX_FILES = 64
MAX_PROVENANCE_BYTES = 1 << 16
MAX_TEXT = 200


@dataclass(frozen=True, slots=True)
class Bundled:
    """One calibration file. `name`: "run/file", without its ending. `problem`: why it cannot be imported; "" if it can.

    `provenance`: what the run wrote of itself (commit, gpu, clocks, started_at...), texts and numbers only.
    """

    name: str
    path: Path
    sha256: str
    size_bytes: int
    problem: str = ""
    model: str = ""
    device: str = ""
    engine: str = ""
    steps: int = 0
    kv_tokens: int = 0
    published: bool = False  # it holds a model that passed the gate where it was measured
    provenance: dict[str, str] = field(default_factory=dict)


def bundled(folder: Path | None = None) -> list[Bundled]:
    """The calibration files below `folder` (FOLDER), by name; none where there is no such folder."""
    paths = sorted((folder or FOLDER).glob("*/*.json"))
    found = [
        _described(path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths if path.is_file()
    ]
    listed = [entry for entry in found if entry is not None][:MAX_FILES]
    return [replace(entry, provenance=_provenance(entry.path.parent)) for entry in listed]


def bundled_named(name: str, folder: Path | None = None) -> Bundled | None:
    """The one of this name, which only ever is compared, never made into a path."""
    return next((entry for entry in bundled(folder) if entry.name == name), None)


def bundled_document(entry: Bundled) -> CalibrationDocument:
    """Its content. Raises DocumentError, also where the file is no longer the one that was listed."""
    data = entry.path.read_bytes()
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise DocumentError("file", "has changed since it was listed")
    return read_document(io.BytesIO(data))


@lru_cache(maxsize=2 * MAX_FILES)
def _described(path: Path, changed_ns: int, size: int) -> Bundled | None:
    """What a file says; None for one that does not claim to be a calibration. Read once per state of the file."""
    name = f"{path.parent.name}/{path.stem}"
    if size > MAX_BYTES:
        return Bundled(name, path, "", size, f"is larger than {MAX_BYTES >> 20} MiB")
    data = path.read_bytes()
    if f'"{FORMAT}"'.encode() not in data[:1000]:
        return None
    entry = Bundled(name, path, hashlib.sha256(data).hexdigest(), size)
    try:
        document = read_document(io.BytesIO(data))
    except DocumentError as error:
        return replace(entry, problem=str(error)[:MAX_TEXT])
    return replace(
        entry,
        model=document.architecture.name,
        device=device_label(document.device, document.environment, document.ranks),
        engine=document.facts.engine.label,
        steps=len(document.samples),
        kv_tokens=document.kv_tokens,
        published=document.model is not None,
    )


def _provenance(folder: Path) -> dict[str, str]:
    """Texts and numbers of the run's provenance.json, as text; empty without one, or for what is no object."""
    path = folder / PROVENANCE
    try:
        if path.stat().st_size > MAX_PROVENANCE_BYTES:
            return {}
        told: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(told, dict):
        return {}
    texts = {str(key)[:MAX_TEXT]: str(value)[:MAX_TEXT] for key, value in told.items()
             if isinstance(value, str | int | float) and value != ""}  # fmt: skip
    return {key: value for key, value in texts.items() if key.isprintable() and value.isprintable()}
