"""The samples of an offline run as they come, in a file beside its result, so that an interruption costs seconds.

One JSON object: `request` (all that decides what is measured and how: model, device, envelope, pool, seed, torch, code,
processor) and `samples` by ordinal. Each write replaces the whole file at once, so it is never half a one. A run with
the same request goes on from it; with another one the file is refused, not believed.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibration.document import DocumentError, sample_of
from calibration.steptime import StepSample

FORMAT = "ridgeline-partial-run"
EVERY_S = 2.0


class PartialError(ValueError):
    """A partial file that cannot be gone on from; says why and what to do."""


def partial_path(out: Path) -> Path:
    return out.with_name(out.name + ".partial")


def kept_kv_tokens(path: Path) -> int | None:
    """The KV pool of the run that left this file; None where there is none that says."""
    try:
        tokens = json.loads(path.read_bytes())["request"]["kv_tokens"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) else None


def write_whole(path: Path, data: bytes) -> None:
    """The file is the old one or the new one at any time, also when the machine stops. Raises OSError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


@dataclass(slots=True)
class PartialRun:
    """Keeps samples in `path` while a run goes on."""

    path: Path
    request: dict[str, Any]
    samples: dict[int, StepSample] = field(default_factory=dict)
    written_at: float = 0.0

    @classmethod
    def open(cls, path: Path, request: dict[str, Any]) -> PartialRun:
        """What was measured before, if anything; writes the file once, so that a folder that cannot be written to is
        known at once. Raises PartialError, OSError."""
        run = cls(path, request)
        if path.exists():
            run.samples = _read(path, request)
        run.write()
        return run

    def keep(self, ordinal: int, sample: StepSample) -> None:
        self.samples[ordinal] = sample
        if time.monotonic() - self.written_at >= EVERY_S:
            self.write()

    def write(self) -> None:
        samples = {str(ordinal): sample.to_dict() for ordinal, sample in self.samples.items()}
        data = {"format": FORMAT, "request": self.request, "samples": samples}
        write_whole(self.path, json.dumps(data, allow_nan=False).encode())
        self.written_at = time.monotonic()

    def done(self) -> None:
        self.path.unlink(missing_ok=True)


def _read(path: Path, request: dict[str, Any]) -> dict[int, StepSample]:
    again = f"Remove {path} (or say --fresh) to measure from the beginning"
    try:
        data = json.loads(path.read_bytes())
        if (
            not isinstance(data, dict)
            or data.get("format") != FORMAT
            or not isinstance(data.get("samples"), dict)
        ):
            raise PartialError(f"{path} is no partial run. {again}.")
        before = data.get("request")
        samples = {int(k): sample_of(v, f"samples.{k}") for k, v in data["samples"].items()}
    except (json.JSONDecodeError, UnicodeDecodeError, DocumentError, ValueError) as error:
        if isinstance(error, PartialError):
            raise
        raise PartialError(f"{path} cannot be read: {str(error)[:200]}. {again}.") from error
    if before != request:
        known = before if isinstance(before, dict) else {}
        other = sorted(key for key in {*request, *known} if request.get(key) != known.get(key))
        raise PartialError(f"{path} is of another run ({', '.join(other)} differ). {again}.")
    return samples
