"""From a model and a device to a published step-time model, or to an honest refusal.

    measure the points -> fit -> score on steps the fit never saw -> gate
                             gate refuses: 8 more points where it errs most, 12 fresh held-out steps, once more
                             it refuses again: nothing is published, and the reason says which bar and by how much
The Celery task and the command line both call `calibrate`; imports call `fit_samples`. No Django, no torch
here: the engine is another process. Source: spec/step-time, "The experiment".
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibration.architecture import Architecture
from calibration.engine.client import EngineClient
from calibration.engine.cpu import clock_mhz
from calibration.engine.device_lock import DeviceBusy, device_lock
from calibration.engine.interface import Runner
from calibration.engine.memory import cpu_memory_bytes
from calibration.experiment import (
    RULES,
    Envelope,
    Point,
    Region,
    Stopped,
    check_envelope,
    check_fits,
    environment_record,
    held_out,
    neighbour,
    points,
    run_experiment,
    sentinels,
    warm_up,
)
from calibration.experiment.running import OnProgress, OnSample
from calibration.sources.choosing import choose_points, in_domain
from calibration.steptime import (
    FITTED_ROLES,
    FitError,
    Gate,
    HeldoutReport,
    StepSample,
    StepShape,
    StepTimeModel,
    features_of,
    fit,
    gate,
    heldout_report,
)
from calibration.steptime.report import DeviceKind

RETRY_POINTS = 8
#: Of an imported table. 160 well-spread steps left nothing to gain on a published table of 8,643 (p90 4.6 %).
IMPORT_FIT_POINTS = 400
DRIFT_TOLD: dict[DeviceKind, float] = {"cpu": 0.07, "gpu": 0.03}
LOCK_WAIT_S = 24 * 3600.0

__all__ = ["CalibrationResult", "Stopped", "calibrate", "device_kind", "fit_samples"]


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """What came out. `model` is None when the gate refused: then only samples and reason remain."""

    samples: list[StepSample]
    environment: dict[str, Any]
    model: StepTimeModel | None
    report: HeldoutReport | None
    gate: Gate
    kv_tokens: int | None
    first_gate: Gate | None = None  # of the first attempt, where a second one was needed

    @property
    def published(self) -> bool:
        return self.gate.passed

    @property
    def reason(self) -> str:
        return self.gate.reason

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe; the samples are stored on their own."""
        return {
            "gate": {
                "passed": self.gate.passed,
                "reason": self.gate.reason,
                "first_reason": self.first_gate.reason if self.first_gate else None,
            },
            "points": dict(Counter(sample.role for sample in self.samples)),
            "model": self.model.to_dict() if self.model else None,
            "heldout": self.report.to_dict() if self.report else None,
        }


def calibrate(
    architecture: Architecture,
    envelope: Envelope,
    *,
    device: str = "cpu",
    dtype: str = "auto",
    kv_tokens: int,
    seed: int = 0,
    on_sample: OnSample = lambda ordinal, sample: None,
    on_progress: OnProgress = lambda done, total, message, eta_s: None,
    on_log: Callable[[str], None] = lambda line: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> CalibrationResult:
    """Measures the architecture on the device and fits it. Holds the device's lock meanwhile.

    `on_sample(ordinal, sample)` comes after every repeat; the same ordinal is the same step with more repeats.
    `kv_tokens`: size of the KV pool (experiment.check_fits gives it). Raises Stopped, BadEnvelope, DoesNotFit,
    EngineError.
    """
    check_envelope(architecture, envelope)
    on_progress(0, 1, f"Waiting for {device}", None)
    with _held(device, should_stop) as descriptor:
        if device_kind(device) == "cpu":  # memory may have gone while the job waited
            free_bytes = cpu_memory_bytes()[1]
            check_fits(
                architecture, envelope, device=device, free_bytes=free_bytes, kv_tokens=kv_tokens, dtype=dtype
            )
        on_progress(0, 1, "Starting the engine", None)
        client = EngineClient(
            architecture,
            device=device,
            dtype=dtype,
            kv_tokens=kv_tokens,
            max_positions=envelope.max_context_tokens + 1,
            seed=seed,
            lock_descriptor=descriptor,
        )
        with client as runner:
            return calibrate_with(
                runner,
                architecture,
                envelope,
                device=device,
                kv_tokens=kv_tokens,
                seed=seed,
                on_sample=on_sample,
                on_progress=on_progress,
                on_log=on_log,
                should_stop=should_stop,
            )


def calibrate_with(
    runner: Runner,
    architecture: Architecture,
    envelope: Envelope,
    *,
    device: str,
    kv_tokens: int,
    seed: int,
    on_sample: OnSample,
    on_progress: OnProgress,
    on_log: Callable[[str], None],
    should_stop: Callable[[], bool],
) -> CalibrationResult:
    """`calibrate` on a runner that is already there."""
    kind = device_kind(device)
    region = Region(envelope, kv_tokens)
    watched, warming = sentinels(region), warm_up(region)
    listed = points(region, kind, seed)
    own_cpu_s = time.process_time()
    environment = environment_record(architecture, envelope, listed, seed) | runner.environment()
    on_log(f"Measuring {architecture.name} on {environment['processor']} in {environment['dtype']}")

    def measure(wanted: Sequence[Point], stream: int, first_ordinal: int) -> list[StepSample]:
        result = run_experiment(
            runner,
            wanted,
            watched,
            warming,
            rules=RULES[kind],
            seed=seed + stream,
            on_sample=on_sample,
            on_progress=on_progress,
            on_log=on_log,
            should_stop=should_stop,
            first_ordinal=first_ordinal,
        )
        environment[("observed", "observed_retry")[stream]] = result.observed
        _tell_drift(result.observed, kind, on_log)
        return result.samples

    def judged(
        samples: list[StepSample], role: str
    ) -> tuple[StepTimeModel | None, HeldoutReport | None, Gate]:
        on_progress(len(samples), len(samples) + 1, "Fitting", None)
        model, report, verdict = _judged(samples, role, kind, seed)
        on_log(verdict.reason)
        return model, report, verdict

    samples = measure(listed, 0, 0)
    model, report, verdict = judged(samples, "heldout")
    first = None
    if not verdict.passed and model is not None:
        first = verdict
        on_log("Measuring more where the fit errs most")
        samples = samples + measure(_retry_points(samples, model, region, seed), 1, len(samples))
        model, report, verdict = judged(samples, "retry_heldout")
    environment |= {"load_at_end": os.getloadavg()[0], "clock_mhz_at_end": clock_mhz()}
    environment["cpu_s"] = runner.usage()["cpu_s"] + time.process_time() - own_cpu_s
    published = model if verdict.passed else None
    return CalibrationResult(samples, environment, published, report, verdict, kv_tokens, first)


def fit_samples(
    samples: Sequence[StepSample],
    *,
    device: str,
    kv_tokens: int | None = None,
    seed: int = 0,
    environment: dict[str, Any] | None = None,
    on_log: Callable[[str], None] = lambda line: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> CalibrationResult:
    """Fits samples measured elsewhere: a subset chosen by shape alone, scored on all the others.

    Samples that already say what they are for (a run of ours, imported) keep their roles. A step that needs more
    KV than `kv_tokens` can never be scheduled there: it is kept with role "outside", neither fitted nor scored.
    """
    kind = device_kind(device)
    if should_stop():
        raise Stopped
    roles = {sample.role for sample in samples}
    if not roles & {"heldout", "retry_heldout"}:
        possible = [kv_tokens is None or in_domain(sample.shape, kv_tokens) for sample in samples]
        chosen = iter(choose_points(list(itertools.compress(samples, possible)), IMPORT_FIT_POINTS, seed))
        samples = [
            next(chosen) if inside else dataclasses.replace(sample, role="outside")
            for sample, inside in zip(samples, possible, strict=True)
        ]
        if not all(possible):
            on_log(
                f"{len(samples) - sum(possible)} of {len(samples)} steps need more KV than {kv_tokens} tokens: "
                "kept, but neither fitted nor scored, because no schedule can contain them"
            )
    role = "retry_heldout" if "retry_heldout" in roles else "heldout"
    model, report, verdict = _judged(samples, role, kind, seed)
    on_log(verdict.reason)
    return CalibrationResult(
        list(samples), dict(environment or {}), model if verdict.passed else None, report, verdict, kv_tokens
    )


def device_kind(device: str) -> DeviceKind:
    """Which bars and rules a device is held to."""
    return "cpu" if device.lower().startswith("cpu") else "gpu"


def _judged(
    samples: Sequence[StepSample], role: str, kind: DeviceKind, seed: int
) -> tuple[StepTimeModel | None, HeldoutReport | None, Gate]:
    """Fits the fitted samples and scores on those of `role`, which it never saw."""
    scored = [sample for sample in samples if sample.role == role]
    try:
        model = fit([sample for sample in samples if sample.role in FITTED_ROLES], seed=seed)
    except FitError as error:
        return None, None, Gate(False, f"refused: nothing could be fitted: {error}")
    if not scored:
        return model, None, Gate(False, "refused: no held-out steps to judge the fit by")
    report = heldout_report(model, scored)
    return model, report, gate(report, kind)


def _retry_points(
    samples: Sequence[StepSample], model: StepTimeModel, region: Region, seed: int
) -> list[Point]:
    """Fit points near the worst residuals, and fresh held-out ones: the old ones have been looked at."""
    rng = np.random.default_rng([seed, 4])
    known = [sample for sample in samples if sample.role != "sentinel"]
    predicted = model.predict_s(features_of(sample.shape for sample in known))
    errors = np.abs(np.log(predicted / np.array([sample.median_s for sample in known])))
    taken = {sample.shape for sample in samples}
    found: list[StepShape] = []
    for index in np.argsort(-errors, kind="stable"):
        near = neighbour(known[index].shape, region, rng)
        if near is not None and near not in taken:
            found.append(near)
            taken.add(near)
        if len(found) == RETRY_POINTS:
            break
    fresh = held_out(region, rng, taken=taken)
    return [Point(shape, "retry") for shape in found] + [Point(shape, "retry_heldout") for shape in fresh]


def _tell_drift(observed: dict[str, Any], kind: DeviceKind, on_log: Callable[[str], None]) -> None:
    worst = max((abs(drift) for drift in observed["sentinel_drift"]), default=0.0)
    if worst > DRIFT_TOLD[kind]:
        on_log(f"Sentinels moved by {worst:.1%} during the run: something else used the device")


@contextlib.contextmanager
def _held(device: str, should_stop: Callable[[], bool]) -> Iterator[int]:
    """The device's lock; being told to stop while waiting is Stopped, not a busy device."""
    with contextlib.ExitStack() as stack:
        try:
            descriptor = stack.enter_context(device_lock(device, wait_s=LOCK_WAIT_S, should_stop=should_stop))
        except DeviceBusy as busy:
            raise (Stopped() if should_stop() else busy) from None
        yield descriptor
