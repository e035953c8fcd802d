"""What the pages, the API and the commands do with calibrations. Writes rows; measures nothing itself."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import IO, TYPE_CHECKING, Any, cast

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from accounts.models import Project
from calibration.architecture import Architecture
from calibration.bundles import Bundled, bundled_document
from calibration.capacity import KVCapacity
from calibration.chunking import ChunkCost, chunk_costs, chunk_sizes
from calibration.document import CalibrationDocument
from calibration.engine.client import rank_device
from calibration.engines import OURS, MeasuredEngine
from calibration.experiment import Envelope, Region, check_fits, points, with_points
from calibration.facts import MAX_TRANSFERS, NOTHING_KNOWN, Facts
from calibration.models import Calibration, Device, Sample
from calibration.patience import patiently
from calibration.pipeline import device_kind
from calibration.sources.vllm_contexts import LogSamples
from calibration.starting import save_named, start_once
from calibration.steptime import StepSample, StepShape, StepTimeModel
from calibration.transfer import TransferTable

if TYPE_CHECKING:
    from calibration.experiment.drift import DriftReport

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
    tensor_parallel: int = 1
    also: tuple[StepShape, ...] = ()  # steps to measure beside the usual points
    dtype: str = "auto"
    mixed_mode: str = "unified"
    default_named: bool = False  # nobody chose the name

    def steps(self) -> dict[str, int]:
        """How many step shapes are timed, by role: "fit", "heldout"."""
        region = Region(self.envelope, self.kv_tokens)
        listed = with_points(points(region, device_kind(self.device), self.seed), self.also, region)
        return {role: sum(point.role == role for point in listed) for role in ("fit", "heldout")}


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
    facts: Facts = NOTHING_KNOWN
    tensor_parallel: int = 1
    default_named: bool = False


def file_provenance(name: str, file: IO[bytes], rows: int) -> dict[str, Any]:
    """Name, SHA-256 and size [bytes] of an uploaded file, and the rows read from it."""
    file.seek(0)
    digest, size = hashlib.sha256(), 0
    while block := file.read(1 << 20):
        digest.update(block)
        size += len(block)
    file.seek(0)
    shown = "".join(sign if sign.isprintable() else "_" for sign in name[:200])
    return {"file": shown, "sha256": digest.hexdigest(), "bytes": size, "rows": rows}


def log_provenance(found: LogSamples) -> dict[str, Any]:
    """What a log of iterations lacked and how it was bounded; see sources.vllm_contexts."""
    return {
        "logged": found.logged,
        "used": found.used,
        "left_out": found.left_out,
        "context_doubt": {"median": found.doubt[0], "largest": found.doubt[1]},
        "timed_share": found.timed_share,
        "host_gap_s": found.host_gap_s,
        "remarks": list(found.remarks),
    }


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


def kv_tokens_for(
    architecture: Architecture,
    envelope: Envelope,
    device: Device,
    asked: int | None,
    tensor_parallel: int = 1,
    dtype: str = "auto",
) -> int:
    """KV pool [tokens]: as asked, or the default for the device. Raises DoesNotFit with bytes needed and free.

    The pool holds at least what the envelope's largest batch needs, or the points could not be measured.
    """
    return check_fits(
        architecture, envelope, device=device.name,
        free_bytes=device.free_bytes // (tensor_parallel if device.name.startswith("cpu") else 1),
        kv_tokens=asked, kv_fraction=settings.CPU_KV_FRACTION, tensor_parallel=tensor_parallel, dtype=dtype,
    )  # fmt: skip


# Starting ----------------------------------------------------------------------------------------------------


def start_calibration(
    project: Project, owner: Any, request: CalibrationRequest, rerun_of: Calibration | None = None
) -> Calibration:
    """Writes the row and sends the job to queue ``device``; while the same is being measured for the same owner, that
    one instead."""
    from calibration import tasks

    row = _measured(project, owner, request, rerun_of)
    return start_once(
        row, (*SUBJECT, "provenance", "facts"), tasks.run_calibration, default_named=request.default_named
    )


#: What makes two calibrations the same measurement, beside what they are measured or imported with.
SUBJECT = ("source", "name", "architecture", "device", "envelope", "kv_tokens", "seed", "tensor_parallel")


def create_calibration(
    project: Project, owner: Any, request: CalibrationRequest, rerun_of: Calibration | None = None
) -> Calibration:
    """The row alone, for whoever measures without a queue."""
    row = _measured(project, owner, request, rerun_of)
    save_named(row, default_named=request.default_named)
    return row


def _measured(
    project: Project, owner: Any, request: CalibrationRequest, rerun_of: Calibration | None
) -> Calibration:
    return Calibration(
        project=project, owner=owner, name=request.name[:120], source=Calibration.MEASURED,
        architecture=request.architecture.to_dict(), device=request.device,
        envelope=request.envelope.to_dict(), kv_tokens=request.kv_tokens, seed=request.seed,
        tensor_parallel=request.tensor_parallel,
        provenance={"engine": OURS, "dtype": request.dtype, "mixed_mode": request.mixed_mode}
        | ({"also": [shape.to_dict() for shape in request.also]} if request.also else {}),
        rerun_of=rerun_of, facts=Facts(MeasuredEngine(OURS)).to_dict(),
    )  # fmt: skip


def start_import(project: Project, owner: Any, request: ImportRequest) -> Calibration:
    """Stores the samples and sends the fit to queue ``default``; while the same is being fitted for the same owner,
    that one instead."""
    return _start_fit(
        _imported(project, owner, request), request.samples, default_named=request.default_named
    )


def _start_fit(row: Calibration, samples: list[StepSample], *, default_named: bool = False) -> Calibration:
    """Of samples that were measured elsewhere, or earlier; once."""
    from calibration import tasks

    return start_once(
        row,
        (*SUBJECT, "provenance", "facts", "environment"),
        tasks.fit_calibration,
        default_named=default_named,
        alike=lambda other: samples_of(other) == samples,
        saved=lambda saved: store_samples(saved, samples),
    )


def document_request(document: CalibrationDocument, name: str, provenance: dict[str, Any]) -> ImportRequest:
    """A calibration file as an import; `provenance` of the file, beside what the file declares of itself."""
    return ImportRequest(
        name=name or f"{document.architecture.name} on {document.device} (imported)",
        architecture=document.architecture, device=document.device, kv_tokens=document.kv_tokens,
        seed=document.seed, samples=document.samples, envelope=document.envelope,
        environment=document.environment, facts=document.facts, tensor_parallel=document.ranks,
        provenance=provenance | {"declared": document.provenance}, default_named=not name,
    )  # fmt: skip


def bundled_request(entry: Bundled) -> ImportRequest:
    """A copy of a bundled calibration. Raises DocumentError for one that does not check."""
    document = bundled_document(entry)
    provenance = {
        "file": f"{entry.name}.json", "sha256": entry.sha256, "bytes": entry.size_bytes,
        "rows": entry.steps, "bundled": entry.provenance,
    }  # fmt: skip
    request = document_request(document, f"{entry.model} on {entry.device} (bundled)", provenance)
    return replace(request, default_named=True)


def create_import(project: Project, owner: Any, request: ImportRequest) -> Calibration:
    """The row and its samples, for whoever fits without a queue."""
    calibration = _imported(project, owner, request)
    with transaction.atomic():
        save_named(calibration, default_named=request.default_named)
        store_samples(calibration, request.samples)
    return calibration


def _imported(project: Project, owner: Any, request: ImportRequest) -> Calibration:
    return Calibration(
        project=project, owner=owner, name=request.name[:120], source=Calibration.IMPORTED,
        architecture=request.architecture.to_dict(), device=request.device,
        envelope=request.envelope.to_dict() if request.envelope else None,
        kv_tokens=request.kv_tokens, seed=request.seed, environment=request.environment or None,
        tensor_parallel=request.tensor_parallel, facts=request.facts.to_dict(),
        provenance={"engine": "imported", **request.provenance},
    )  # fmt: skip


def rerun(calibration: Calibration, owner: Any) -> Calibration:
    """The same job again as a new row, once: what the earlier one measured, and how it ended, stays on record."""
    if calibration.source == Calibration.MEASURED:
        return start_calibration(calibration.project, owner, request_of(calibration), rerun_of=calibration)
    copy = Calibration(
        project=calibration.project, owner=owner, name=calibration.name, source=calibration.source,
        architecture=calibration.architecture, device=calibration.device, envelope=calibration.envelope,
        kv_tokens=calibration.kv_tokens, seed=calibration.seed, environment=calibration.environment,
        tensor_parallel=calibration.tensor_parallel, provenance=calibration.provenance, facts=calibration.facts,
        rerun_of=calibration,
    )  # fmt: skip
    return _start_fit(copy, samples_of(calibration))


def request_of(calibration: Calibration) -> CalibrationRequest:
    return CalibrationRequest(
        name=calibration.name, architecture=Architecture.from_dict(calibration.architecture),
        device=calibration.device, envelope=Envelope.from_dict(calibration.envelope or {}),
        kv_tokens=calibration.kv_tokens or 0, seed=calibration.seed,
        tensor_parallel=calibration.tensor_parallel,
        also=tuple(StepShape.from_dict(shape) for shape in calibration.provenance.get("also", ())),
        dtype=str((calibration.provenance or {}).get("dtype", "auto")),
        mixed_mode=str((calibration.provenance or {}).get("mixed_mode", "unified")),
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


def chunk_arithmetic(calibration: Calibration) -> list[ChunkCost]:
    """What chunks of each size cost the longest prompt that was measured, and the longest that one pass can hold;
    empty without a published model."""
    if not (calibration.result or {}).get("model"):
        return []
    model, architecture = step_time_model(calibration), Architecture.from_dict(calibration.architecture)
    samples = samples_of(calibration, ["prefill"])
    longest = int(model.hull.high[6])
    prompt = (
        longest if not calibration.envelope else min(longest, calibration.envelope["max_context_tokens"] - 1)
    )
    if prompt < 1:
        return []
    step = int(model.hull.high[0])
    return [
        cost
        for tokens in sorted({prompt, min(prompt, step)})
        for cost in chunk_costs(
            model, samples, prompt_tokens=tokens, sizes=chunk_sizes(step),
            weight_bytes=architecture.weight_bytes(), kv_bytes_per_token=architecture.kv_bytes_per_token(),
        )
    ]  # fmt: skip


def facts_of(calibration: Calibration) -> Facts:
    """Whose engine, which pools, which transfers; of rows written before they were kept, what is known of them."""
    return Facts.from_dict(calibration.facts or {}, str((calibration.provenance or {}).get("engine", "")))


def kv_capacity(calibration: Calibration) -> KVCapacity:
    """The KV pool beside each token budget: as measured, or the one number that an import names. Its ranks are the
    calibration's, whoever counted the pool."""
    known = facts_of(calibration).kv_capacity or KVCapacity.constant(int(calibration.kv_tokens or 0))
    return replace(known, ranks=calibration.tensor_parallel)


def add_link(calibration: Calibration, link: TransferTable) -> None:
    """Keeps a link that a person entered beside what was measured. Raises ValueError when there are too many."""
    with transaction.atomic():
        row = Calibration.objects.select_for_update().get(pk=calibration.pk)
        facts = facts_of(row)
        if len(facts.transfers) >= MAX_TRANSFERS:
            raise ValueError(f"A calibration keeps at most {MAX_TRANSFERS} transfers.")
        row.facts = replace(facts, transfers=(*facts.transfers, link)).to_dict()
        row.save(update_fields=["facts"])


def why_not_again(calibration: Calibration) -> str:
    """Why its steps cannot be timed again here; empty where they can."""
    measured = calibration.source == Calibration.MEASURED or facts_of(calibration).engine.name == OURS
    if not measured or not calibration.envelope or not calibration.environment:
        return "its steps were not measured by this engine, so they cannot be measured again"
    if calibration.device not in [device.name for device in known_devices()]:
        return f"its device {calibration.device!r} is not one of this machine's"
    return ""


def why_no_drift_check(calibration: Calibration) -> str:
    """Why it cannot be checked for drift here; empty where it can."""
    if reason := why_not_again(calibration):
        return reason
    known = [device.name for device in known_devices()]
    ranks = (rank_device(calibration.device, rank) for rank in range(calibration.tensor_parallel))
    missing = next((name for name in ranks if name not in known), "")
    ranks_had = f"it had {calibration.tensor_parallel} devices"
    return f"{ranks_had}, and {missing!r} is not one of this machine's" if missing else ""


def drift_of(
    calibration: Calibration,
    seed: int = 0,
    on_log: Callable[[str], None] = lambda line: None,
    should_stop: Callable[[], bool] = lambda: False,
    on_stage: Callable[[str], None] = lambda words: None,
) -> DriftReport:
    """Times a few of its steps again on its device; `on_stage` is told what it is at. Raises ValueError for one that
    cannot be measured here, EngineError, Stopped."""
    from calibration.drift import drift_check

    if reason := why_no_drift_check(calibration):
        raise ValueError(reason)
    request = request_of(calibration)
    return drift_check(
        request.architecture, request.envelope, samples_of(calibration), calibration.environment or {},
        device=request.device, kv_tokens=request.kv_tokens, seed=seed, tensor_parallel=request.tensor_parallel,
        on_log=on_log, on_stage=on_stage, should_stop=should_stop,
    )  # fmt: skip


def by_id(rows: Any, text: str) -> Calibration | None:
    """The row with this id, if the text is one."""
    try:
        return cast("Calibration | None", rows.filter(pk=uuid.UUID(text)).first())
    except ValueError:
        return None


def _told_ranks(calibration: Calibration) -> dict[str, int]:
    """What the row says of its ranks where its engine did not."""
    ranks = calibration.tensor_parallel
    return {"tensor_parallel": ranks} if ranks > 1 else {}


def document_of(calibration: Calibration) -> CalibrationDocument:
    """The calibration as a file that another Ridgeline can import."""
    return CalibrationDocument(
        architecture=Architecture.from_dict(calibration.architecture), device=calibration.device,
        envelope=Envelope.from_dict(calibration.envelope) if calibration.envelope else None,
        kv_tokens=calibration.kv_tokens or 0, seed=calibration.seed,
        environment=(calibration.environment or {}) | _told_ranks(calibration), samples=samples_of(calibration),
        model=(calibration.result or {}).get("model"), provenance=calibration.provenance,
        facts=facts_of(calibration),
    )  # fmt: skip
