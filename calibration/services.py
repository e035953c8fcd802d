"""What the pages, the API and the commands do with calibrations. Writes rows; measures nothing itself."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import IO, Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from accounts.models import Project
from calibration import jobs
from calibration.architecture import Architecture
from calibration.document import CalibrationDocument
from calibration.experiment import Envelope, check_fits
from calibration.models import Calibration, Device, Sample
from calibration.patience import patiently
from calibration.steptime import StepSample, StepTimeModel

DEVICE_FRESH_FOR = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class CalibrationRequest:
    """Measure ``architecture`` on ``device`` in the region ``envelope`` with a KV pool of ``kv_tokens``."""

    name: str
    architecture: Architecture
    device: str
    envelope: Envelope
    kv_tokens: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """Samples measured elsewhere, with where they came from."""

    name: str
    architecture: Architecture
    device: str
    kv_tokens: int
    samples: list[StepSample]
    provenance: dict[str, Any]
    seed: int = 0
    envelope: Envelope | None = None
    environment: dict[str, Any] = field(default_factory=dict)


def file_provenance(name: str, file: IO[bytes], rows: int) -> dict[str, Any]:
    """Name, SHA-256 and size [bytes] of an uploaded file, and the rows read from it."""
    file.seek(0)
    digest, size = hashlib.sha256(), 0
    while block := file.read(1 << 20):
        digest.update(block)
        size += len(block)
    file.seek(0)
    return {"file": name[:200], "sha256": digest.hexdigest(), "bytes": size, "rows": rows}


# Devices -----------------------------------------------------------------------------------------------------


def known_devices() -> list[Device]:
    """What device workers announced, newest word each. On one machine without a worker yet: its CPU."""
    devices = list(Device.objects.filter(seen_at__gte=timezone.now() - DEVICE_FRESH_FOR))
    if not devices:
        from calibration.engine.memory import cpu_memory_bytes

        total, free = cpu_memory_bytes()
        devices = [Device(name="cpu", label="this machine's CPU", hostname=socket.gethostname(),
                          total_bytes=total, free_bytes=free)]  # fmt: skip
    return devices


def device_named(name: str) -> Device:
    return next(device for device in known_devices() if device.name == name)


def announce_devices() -> list[Device]:
    """Asks the engine, in a process of its own (torch stays out of this one), what it can measure on."""
    answer = subprocess.run(
        [sys.executable, "-m", "calibration.engine.devices"],
        capture_output=True, text=True, timeout=120, check=True, cwd=settings.BASE_DIR,
    )  # fmt: skip
    rows = json.loads(answer.stdout.strip().splitlines()[-1])
    now = timezone.now()
    return [
        Device.objects.update_or_create(
            name=row["name"],
            defaults={"label": row["label"], "hostname": socket.gethostname(), "seen_at": now,
                      "total_bytes": row["total_bytes"], "free_bytes": row["free_bytes"]},
        )[0]
        for row in rows
    ]  # fmt: skip


def kv_tokens_for(architecture: Architecture, envelope: Envelope, device: Device, asked: int | None) -> int:
    """KV pool [tokens]: as asked, or the default for the device. Raises DoesNotFit with bytes needed and free.

    The pool holds at least what the envelope's largest batch needs, or the points could not be measured.
    """
    return check_fits(
        architecture, envelope, device=device.name, free_bytes=device.free_bytes, kv_tokens=asked,
        kv_fraction=settings.CPU_KV_FRACTION,
    )  # fmt: skip


# Starting ----------------------------------------------------------------------------------------------------


def start_calibration(
    project: Project, owner: Any, request: CalibrationRequest, rerun_of: Calibration | None = None
) -> Calibration:
    """Writes the row and sends the job to queue ``device``."""
    from calibration import tasks

    with transaction.atomic():
        calibration = create_calibration(project, owner, request, rerun_of)
        jobs.send_after_commit(calibration, tasks.run_calibration)
    return calibration


def create_calibration(
    project: Project, owner: Any, request: CalibrationRequest, rerun_of: Calibration | None = None
) -> Calibration:
    return Calibration.objects.create(
        project=project, owner=owner, name=request.name[:120], source=Calibration.MEASURED,
        architecture=request.architecture.to_dict(), device=request.device,
        envelope=request.envelope.to_dict(), kv_tokens=request.kv_tokens, seed=request.seed,
        provenance={"engine": "ridgeline"}, rerun_of=rerun_of,
    )  # fmt: skip


def start_import(project: Project, owner: Any, request: ImportRequest) -> Calibration:
    """Stores the samples and sends the fit to queue ``default``."""
    from calibration import tasks

    with transaction.atomic():
        calibration = create_import(project, owner, request)
        jobs.send_after_commit(calibration, tasks.fit_calibration)
    return calibration


def create_import(project: Project, owner: Any, request: ImportRequest) -> Calibration:
    with transaction.atomic():
        calibration = Calibration.objects.create(
            project=project, owner=owner, name=request.name[:120], source=Calibration.IMPORTED,
            architecture=request.architecture.to_dict(), device=request.device,
            envelope=request.envelope.to_dict() if request.envelope else None,
            kv_tokens=request.kv_tokens, seed=request.seed, environment=request.environment or None,
            provenance={"engine": "imported", **request.provenance},
        )  # fmt: skip
        store_samples(calibration, request.samples)
    return calibration


def rerun(calibration: Calibration, owner: Any) -> Calibration:
    """The same job again as a new row: what the earlier one measured, and how it ended, stays on record."""
    from calibration import tasks

    if calibration.source == Calibration.MEASURED:
        return start_calibration(calibration.project, owner, request_of(calibration), rerun_of=calibration)
    with transaction.atomic():
        copy = Calibration.objects.create(
            project=calibration.project, owner=owner, name=calibration.name, source=calibration.source,
            architecture=calibration.architecture, device=calibration.device, envelope=calibration.envelope,
            kv_tokens=calibration.kv_tokens, seed=calibration.seed, environment=calibration.environment,
            provenance=calibration.provenance, rerun_of=calibration,
        )  # fmt: skip
        store_samples(copy, samples_of(calibration))
        jobs.send_after_commit(copy, tasks.fit_calibration)
    return copy


def request_of(calibration: Calibration) -> CalibrationRequest:
    return CalibrationRequest(
        name=calibration.name, architecture=Architecture.from_dict(calibration.architecture),
        device=calibration.device, envelope=Envelope.from_dict(calibration.envelope or {}),
        kv_tokens=calibration.kv_tokens or 0, seed=calibration.seed,
    )  # fmt: skip


# Reading -----------------------------------------------------------------------------------------------------


def store_samples(calibration: Calibration, samples: list[StepSample], first: int = 0) -> None:
    Sample.objects.bulk_create(
        [
            Sample(
                calibration=calibration, ordinal=ordinal, role=sample.role, kind=sample.kind,
                shape=sample.shape.to_dict(), seconds=list(sample.seconds),
                contended_share=sample.contended_share, host_gap_s=sample.host_gap_s,
            )
            for ordinal, sample in enumerate(samples, first)
        ],
        batch_size=500,
    )  # fmt: skip


def store_sample(calibration: Calibration, ordinal: int, sample: StepSample) -> None:
    """Stores a sample as it comes; the same ordinal again is the same step with more repeats."""
    values = {
        "role": sample.role,
        "kind": sample.kind,
        "shape": sample.shape.to_dict(),
        "seconds": list(sample.seconds),
        "contended_share": sample.contended_share,
        "host_gap_s": sample.host_gap_s,
    }
    rows = Sample.objects
    patiently(lambda: rows.update_or_create(calibration=calibration, ordinal=ordinal, defaults=values))


def samples_of(calibration: Calibration, kinds: Collection[str] | None = None) -> list[StepSample]:
    """The stored samples, all or those of ``kinds``, in the order they were measured."""
    stored = calibration.samples.all() if kinds is None else calibration.samples.filter(kind__in=kinds)
    rows = stored.values("shape", "seconds", "role", "contended_share", "host_gap_s")
    return [StepSample.from_dict(row) for row in rows.order_by("ordinal")]


def step_time_model(calibration: Calibration) -> StepTimeModel:
    """The fitted model of a finished calibration. Raises ValueError when it has none."""
    if not calibration.result or not calibration.result.get("model"):
        raise ValueError(f"{calibration.name} has no fitted model")
    return StepTimeModel.from_dict(calibration.result["model"])


def document_of(calibration: Calibration) -> CalibrationDocument:
    """The calibration as a file that another Ridgeline can import."""
    return CalibrationDocument(
        architecture=Architecture.from_dict(calibration.architecture), device=calibration.device,
        envelope=Envelope.from_dict(calibration.envelope) if calibration.envelope else None,
        kv_tokens=calibration.kv_tokens or 0, seed=calibration.seed,
        environment=calibration.environment or {}, samples=samples_of(calibration),
        model=(calibration.result or {}).get("model"), provenance=calibration.provenance,
    )  # fmt: skip
