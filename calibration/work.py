"""The work behind the calibration jobs: what runs between a row's claim and its end."""

from __future__ import annotations

import logging
from typing import Any

from django.conf import settings
from django.db import transaction

from calibration import services
from calibration.engine.client import EngineError
from calibration.experiment import BadEnvelope, DoesNotFit
from calibration.jobs import JobBroken, JobCancelled, JobRefused, JobRun
from calibration.models import Calibration
from calibration.patience import patiently
from calibration.pipeline import CalibrationResult, Stopped, calibrate, fit_samples

log = logging.getLogger(__name__)


def measure(calibration: Calibration, run: JobRun) -> None:
    """Measures the calibration's model on its device. Every sample is stored as it comes."""
    request = services.request_of(calibration)
    try:
        result = calibrate(
            request.architecture,
            request.envelope,
            device=request.device,
            seed=request.seed,
            kv_tokens=request.kv_tokens,
            tensor_parallel=request.tensor_parallel,
            also=request.also,
            dtype=request.dtype,
            mixed_mode=request.mixed_mode,
            surroundings=settings.MEASURE_SURROUNDINGS,
            on_sample=lambda ordinal, sample: services.store_sample(calibration, ordinal, sample),
            on_progress=run.progress,
            on_log=run.write_log,
            should_stop=run.should_stop,
        )
    except Stopped as stop:
        raise JobCancelled from stop
    except (BadEnvelope, DoesNotFit) as refusal:
        raise JobRefused(str(refusal)) from refusal
    except EngineError as ended:
        raise JobBroken(str(ended)) from ended
    publish(calibration, result, run)


def fit_imported(calibration: Calibration, run: JobRun) -> None:
    """Fits a subset of the imported samples chosen by shape and scores it on the rest."""
    run.progress(0, 1, "Fitting")
    try:
        result = fit_samples(
            services.samples_of(calibration),
            device=calibration.device,
            kv_tokens=calibration.kv_tokens,
            seed=calibration.seed,
            environment=calibration.environment or {},
            on_log=run.write_log,
            should_stop=run.should_stop,
        )
    except Stopped as stop:
        raise JobCancelled from stop
    with transaction.atomic():  # the same samples, now with the roles they were given
        calibration.samples.all().delete()
        services.store_samples(calibration, result.samples)
    publish(calibration, result, run)


def publish(calibration: Calibration, result: CalibrationResult, run: JobRun) -> None:
    """Writes what was found. A failed gate publishes nothing: the samples and the reason stay."""
    values: dict[str, Any] = {
        "result": result.to_dict(), "published": result.published, "reason": result.reason,
        "environment": result.environment or None,
    }  # fmt: skip
    if result.facts is not None:  # of an import they are known before it is fitted
        values["facts"] = result.facts.to_dict()
    rows = Calibration.objects.filter(pk=calibration.pk, status=Calibration.RUNNING)
    patiently(lambda: rows.update(**values))
    run.write_log(result.reason)
    run.progress(1, 1, "Published" if result.published else "Not published: the gate refused")


def announce() -> None:
    devices = services.announce_devices()
    log.info("devices here: %s", ", ".join(str(device) for device in devices))
