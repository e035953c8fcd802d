"""From a model and a device to a published step-time model, or to an honest refusal.

    measure the points -> fit -> score on steps the fit never saw -> gate
                             gate refuses: 8 more points where it errs most, 12 fresh held-out steps, once more
                             it refuses again: nothing is published, and the reason says which bar and by how much
The Celery task and the command line both call `calibrate`; imports call `fit_samples`. No Django, no torch
here: the engine is another process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibration.architecture import Architecture
from calibration.device_report import device_report
from calibration.disturbance import disturbances
from calibration.engine.client import EngineClient, rank_device
from calibration.engine.cpu import clock_mhz
from calibration.engine.device_lock import DeviceBusy, device_lock
from calibration.engine.interface import Runner
from calibration.engine.memory import cpu_memory_bytes
from calibration.engines import OURS, MeasuredEngine
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
    with_points,
)
from calibration.experiment.clocks import clock_of, device_settings
from calibration.experiment.running import OnProgress, OnSample
from calibration.experiment.surroundings import SurroundingsError, measure_surroundings
from calibration.facts import Facts
from calibration.sources.choosing import choose_points, in_domain, tokens_held
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
from calibration.steptime.report import DeviceKind, device_kind

RETRY_POINTS = 8
#: Of an imported table. 160 well-spread steps left nothing to gain on a published table of 8,643 (p90 4.6 %).
IMPORT_FIT_POINTS = 400
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
    facts: Facts | None = None  # of a run of ours

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
    surroundings: bool = True,
    tensor_parallel: int = 1,
    also: Sequence[StepShape] = (),
    mixed_mode: str = "unified",
    earlier: Mapping[int, StepSample] | None = None,
    on_sample: OnSample = lambda ordinal, sample: None,
    on_progress: OnProgress = lambda done, total, message, eta_s: None,
    on_log: Callable[[str], None] = lambda line: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> CalibrationResult:
    """Measures the architecture on the device and fits it. Holds the device's lock meanwhile.

    `on_sample(ordinal, sample)` comes after every repeat; the same ordinal is the same step with more repeats.
    `kv_tokens`: size of the KV pool (experiment.check_fits gives it). `surroundings`: whether a published calibration
    also gets its KV pools by budget and its transfers. `earlier`: samples, by ordinal, of a run with the same arguments
    that was interrupted. `also`: steps to fit beside the usual points, as far as the region holds them.
    `tensor_parallel`: ranks, on as many GPUs from `device` on, whose locks are all held.
    Raises Stopped, BadEnvelope, DoesNotFit, EngineError.
    """
    check_envelope(architecture, envelope)
    on_progress(0, 1, f"Waiting for {device}, which measures one thing at a time", None)
    with contextlib.ExitStack() as stack:
        names = dict.fromkeys(rank_device(device, rank) for rank in range(tensor_parallel))
        descriptors = [stack.enter_context(held(name, should_stop)) for name in names]
        if device_kind(device) == "cpu":  # memory may have gone while the job waited
            check_fits(
                architecture, envelope, device=device, free_bytes=cpu_memory_bytes()[1] // tensor_parallel,
                kv_tokens=kv_tokens, dtype=dtype, tensor_parallel=tensor_parallel,
            )  # fmt: skip
        on_progress(0, 1, "Starting the engine", None)
        client = EngineClient(
            architecture,
            device=device,
            dtype=dtype,
            kv_tokens=kv_tokens,
            max_positions=envelope.max_context_tokens + 1,
            seed=seed,
            lock_descriptors=descriptors,
            tensor_parallel=tensor_parallel,
            mixed_mode=mixed_mode,
        )
        with client as runner:
            result = calibrate_with(
                runner,
                architecture,
                envelope,
                device=device,
                kv_tokens=kv_tokens,
                seed=seed,
                also=also,
                earlier=earlier,
                on_sample=on_sample,
                on_progress=on_progress,
                on_log=on_log,
                should_stop=should_stop,
            )
            done = len(result.samples)  # all steps are measured: what follows is not counted in steps
            on_progress(done, done, "Measuring the device's ceilings, and where each phase's time goes", None)
            report = device_report(
                runner, architecture, envelope, result.samples, kv_tokens=kv_tokens, seed=seed,
                gpu=device_kind(device) == "gpu",
            )  # fmt: skip
            result = dataclasses.replace(result, environment=result.environment | report)
            for reason in report.get("roofline", {}).get("reasons", ()):
                on_log(f"Not representative: {reason}")
        if not (surroundings and result.published):
            return result
        on_progress(done, done, "Measuring memory by token budget, and KV transfers", None)
        asked = {
            "device": device, "dtype": dtype, "kv_tokens": kv_tokens, "seed": seed, "tensor_parallel": tensor_parallel,
        }  # fmt: skip
        return _with_surroundings(result, architecture, envelope, asked, on_log, should_stop)


def _with_surroundings(
    result: CalibrationResult,
    architecture: Architecture,
    envelope: Envelope,
    asked: dict[str, Any],
    on_log: Callable[[str], None],
    should_stop: Callable[[], bool],
) -> CalibrationResult:
    """The result with pools and transfers. Where these fail the step times stand, and the log says what is missing."""
    try:
        found = measure_surroundings(architecture, envelope, **asked, should_stop=should_stop)
    except SurroundingsError as error:
        on_log(f"KV pools by budget and transfers were not measured: {error}")
        return result
    if found is None:
        raise Stopped
    assert result.facts is not None  # noqa: S101 - a run of ours
    for remark in found.remarks:
        on_log(remark)
    facts = dataclasses.replace(result.facts, kv_capacity=found.kv_capacity, transfers=found.transfers)
    environment = result.environment | {"cpu_s": result.environment["cpu_s"] + found.cpu_s}
    environment["not_measured"] = list(found.remarks)
    return dataclasses.replace(result, facts=facts, environment=environment)


def calibrate_with(
    runner: Runner,
    architecture: Architecture,
    envelope: Envelope,
    *,
    device: str,
    kv_tokens: int,
    seed: int,
    also: Sequence[StepShape] = (),
    earlier: Mapping[int, StepSample] | None = None,
    on_sample: OnSample,
    on_progress: OnProgress,
    on_log: Callable[[str], None],
    should_stop: Callable[[], bool],
) -> CalibrationResult:
    """`calibrate` on a runner that is already there."""
    kind = device_kind(device)
    region = Region(envelope, kv_tokens)
    watched, warming = sentinels(region), warm_up(region)
    listed = with_points(points(region, kind, seed), also, region)
    own_cpu_s = time.process_time()
    environment = environment_record(architecture, envelope, listed, seed) | runner.environment()
    environment |= device_settings(device)
    on_log(f"Measuring {architecture.name} on {environment['processor']} in {environment['dtype']}")

    def again(done: int, total: int, message: str, eta_s: float | None) -> None:
        """Of a second attempt: a share that was told is not taken back."""
        on_progress(1, 1, message, eta_s)

    def measure(wanted: Sequence[Point], stream: int, first_ordinal: int) -> list[StepSample]:
        result = run_experiment(
            runner,
            wanted,
            watched,
            warming,
            rules=RULES[kind],
            seed=seed + stream,
            on_sample=on_sample,
            on_progress=on_progress if stream == 0 else again,
            on_log=on_log,
            should_stop=should_stop,
            first_ordinal=first_ordinal,
            earlier=earlier,
            clock=clock_of(device),
        )
        environment[("observed", "observed_retry")[stream]] = result.observed
        for remark in disturbances({"observed": result.observed}, device):
            on_log(remark)
        return result.samples

    def judged(
        samples: list[StepSample], role: str
    ) -> tuple[StepTimeModel | None, HeldoutReport | None, Gate]:
        on_progress(len(samples), len(samples), "Fitting", None)
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
    facts = Facts(our_engine(environment))
    return CalibrationResult(samples, environment, published, report, verdict, kv_tokens, first, facts)


def our_engine(environment: Mapping[str, Any]) -> MeasuredEngine:
    """Our engine's version: torch's, and the beginning of the hash of the code that measured."""
    code = str(environment.get("measuring_code_sha256", ""))[:12]
    return MeasuredEngine(OURS, f"torch {environment.get('torch', 'unknown')}, code {code}")


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
    if model is None:
        verdict = Gate(False, f"{verdict.reason}; {_why_few(samples, kv_tokens)}")
    on_log(verdict.reason)
    return CalibrationResult(
        list(samples), dict(environment or {}), model if verdict.passed else None, report, verdict, kv_tokens
    )


def _why_few(samples: Sequence[StepSample], kv_tokens: int | None) -> str:
    """What became of the samples of an import that left too few to fit."""
    roles = Counter(sample.role for sample in samples)
    if outside := roles["outside"]:
        least = min(sum(tokens_held(sample.shape)) for sample in samples)
        return (
            f"{outside:,} of {len(samples):,} steps need more KV than the pool of {kv_tokens:,} tokens that was named "
            f"(the smallest needs {least:,})"
        )
    fitted = sum(roles[role] for role in FITTED_ROLES)
    kept = ", ".join(f"{count:,} {role}" for role, count in sorted(roles.items()))
    return f"of {len(samples):,} samples {fitted:,} have a role that is fitted (roles: {kept})"


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


@contextlib.contextmanager
def held(device: str, should_stop: Callable[[], bool]) -> Iterator[int]:
    """The device's lock; being told to stop while waiting is Stopped, not a busy device."""
    with contextlib.ExitStack() as stack:
        try:
            descriptor = stack.enter_context(device_lock(device, wait_s=LOCK_WAIT_S, should_stop=should_stop))
        except DeviceBusy as busy:
            raise (Stopped() if should_stop() else busy) from None
        yield descriptor
