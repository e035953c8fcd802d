"""What was measured with what: everything that could explain another result on another day."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import scipy

from calibration.architecture import Architecture
from calibration.engine.cpu import clock_mhz, cpu_model
from calibration.engine.memory import cpu_memory_bytes
from calibration.experiment.envelope import Envelope
from calibration.experiment.points import Point

_MEASURING_FOLDERS = ("engine", "experiment")


def environment_record(
    architecture: Architecture, envelope: Envelope, points: Sequence[Point], seed: int
) -> dict[str, object]:
    """JSON-safe facts known before the first step; the engine adds its own, the experiment what it saw."""
    total, free = cpu_memory_bytes()
    listed = [[point.role, point.shape.to_dict()] for point in points]
    return {
        "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "scipy": scipy.__version__,
        "platform": platform.platform(),
        "processor": cpu_model(),
        "processors": os.cpu_count() or 1,
        "clock_mhz": clock_mhz(),
        "load_at_start": os.getloadavg()[0],
        "memory_bytes": total,
        "free_memory_bytes": free,
        "config_sha256": _digest(architecture.to_dict()),
        "envelope": envelope.to_dict(),
        "seed": seed,
        "points": len(points),
        "points_sha256": _digest(listed),
        "measuring_code_sha256": measuring_code_sha256(),
    }


def measuring_code_sha256() -> str:
    """One hash over the files that decide what a measured second means: the engine and the experiment."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for folder in _MEASURING_FOLDERS:
        for path in sorted((package / folder).rglob("*.py")):
            name = path.relative_to(package / folder).as_posix()
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
