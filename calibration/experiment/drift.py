"""Is a device still as fast as when it was calibrated?

4 to 6 steps of the calibration, two of each kind where it has them, are timed again, ten times each, interleaved in
fresh orders. Of each the log ratio of the medians, now over then; their mean is the drift, with a bootstrap interval
over (sentinel, repeat) in which the calibration's own repeats are resampled as well. Recalibrate

  - when the mean is at least 3 % on a GPU or 7 % on a CPU and its interval leaves out 0,
  - when any one kind of step moved by more than 8 % and its own interval leaves out 0,
  - when anything that explains another speed has changed: device, driver, clock and power limits, torch, dtype,
    threads, our engine and measuring code, the model.

What the times say is confirmed before it is told, because on a machine that others share a minute of their load looks
like drift: the steps are timed once more in the same check, the second time alone must say so as well, and the report
is of both. benchmarks/drift_alarms.py counts the alarms that are left.

A drift is never repaired by a factor: kinds of steps drift apart. Times in seconds; ratios as natural logarithms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibration.engine.interface import Runner
from calibration.experiment.points import Point, Region, warm_up
from calibration.experiment.running import Rules, describe, run_experiment
from calibration.steptime import StepSample

Floats = NDArray[np.float64]

PER_KIND = 2
LEAST_SENTINELS, REPEATS = 4, 10
MEAN_BARS: dict[Literal["cpu", "gpu"], float] = {"cpu": 0.07, "gpu": 0.03}
KIND_BAR = 0.08
RESAMPLES = 2000
LEVEL = 0.95
WINSOR = 3.0  # median absolute deviations beyond which a repeat counts as disturbed
#: Of an environment record: what explains another speed. Load, a moment's clock and free memory are not compared.
COMPARED = (
    "processor", "device_name", "driver", "cuda", "torch", "dtype", "weights", "intra_op_threads", "cpu_capability",
    "clock", "max_clock_mhz", "application_clock_mhz", "power_limit_w", "governor", "mixed_mode", "block_tokens",
    "kv_tokens", "config_sha256", "measuring_code_sha256",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Moved:
    """The mean log ratio of some sentinels with its interval."""

    log_ratio: float
    low: float
    high: float

    @property
    def is_sure(self) -> bool:
        """Whether the interval leaves out 0."""
        return not self.low <= 0.0 <= self.high


@dataclass(frozen=True, slots=True)
class Change:
    """A fact of the environment that is another one now."""

    field: str
    then: str
    now: str


@dataclass(frozen=True, slots=True)
class Sentinel:
    """One step timed again: medians in seconds."""

    step: str
    kind: str
    then_s: float
    now_s: float


@dataclass(frozen=True, slots=True)
class DriftReport:
    """`drifted`: recalibrate; `reasons` say why, in sentences (empty where nothing moved). `environment`: now's.
    `confirmed`: whether a second timing said the same; None where there was nothing to confirm."""

    drifted: bool
    reasons: tuple[str, ...]
    mean: Moved
    by_kind: dict[str, Moved]
    sentinels: tuple[Sentinel, ...]
    changes: tuple[Change, ...]
    contended_share: float
    environment: Mapping[str, Any] = field(default_factory=dict)
    confirmed: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        return asdict(self)


def choose_sentinels(samples: Sequence[StepSample]) -> list[StepSample]:
    """Of each kind the two samples with the tightest medians that are not alike, by their tokens and contexts.

    Raises ValueError when fewer than LEAST_SENTINELS samples were repeated.
    """
    repeated = [s for s in samples if len(s.seconds) >= 3 and s.role != "outside"]
    found: list[StepSample] = []
    for kind in ("decode", "prefill", "mixed"):
        own = sorted((s for s in repeated if s.kind == kind), key=lambda s: (s.ci_half_width, repr(s.shape)))
        found += own[:1]
        apart = [s for s in own[1:] if own and abs(np.log(s.median_s / own[0].median_s)) > np.log(1.5)]
        found += (apart or own[1:])[: PER_KIND - 1]
    others = sorted((s for s in repeated if s not in found), key=lambda s: s.ci_half_width)
    found += others[: max(0, LEAST_SENTINELS - len(found))]
    if len(found) < LEAST_SENTINELS:
        raise ValueError(
            f"a drift check needs {LEAST_SENTINELS} steps that were repeated three times or more, not {len(found)}"
        )
    return found


def measure_drift(
    runner: Runner,
    region: Region,
    then: Sequence[StepSample],
    environment: Mapping[str, Any],
    now_environment: Mapping[str, Any],
    device_kind: Literal["cpu", "gpu"],
    *,
    seed: int = 0,
    on_log: Callable[[str], None] = lambda line: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> DriftReport:
    """Times the chosen sentinels again and judges. Raises Stopped, ValueError, and what the runner raises."""
    chosen = choose_sentinels(then)
    changes = changed(environment, now_environment)

    def timed(stream: int) -> list[StepSample]:
        wanted = [Point(sample.shape, "sentinel") for sample in chosen]
        rules = Rules(half_width=0.0, steady_within=0.02 if device_kind == "gpu" else 0.05, least_repeats=REPEATS,
                      most_repeats=REPEATS, sentinel_every=10**9)  # fmt: skip
        result = run_experiment(
            runner, wanted, wanted[:1], warm_up(region), rules=rules, seed=seed + stream,
            on_sample=lambda ordinal, sample: None, on_progress=lambda done, total, message, eta_s: None,
            on_log=on_log, should_stop=should_stop,
        )  # fmt: skip
        return result.samples[: len(chosen)]

    first = timed(0)
    report = judge_drift(chosen, first, device_kind, changes, seed)
    if len(report.reasons) > len(changes):
        on_log("The steps take another time than they did: timing them once more before that is told")
        report = confirmed(chosen, first, timed(1), device_kind, changes, seed)
    return replace(report, environment=dict(now_environment))


def confirmed(
    then: Sequence[StepSample],
    first: Sequence[StepSample],
    second: Sequence[StepSample],
    device_kind: Literal["cpu", "gpu"],
    changes: Sequence[Change] = (),
    seed: int = 0,
) -> DriftReport:
    """The verdict on both timings together; what the times say counts only if the second alone says so too."""
    both = [
        replace(
            a, seconds=(*a.seconds, *b.seconds), contended_share=(a.contended_share + b.contended_share) / 2
        )
        for a, b in zip(first, second, strict=True)
    ]
    report = judge_drift(then, both, device_kind, changes, seed)
    again = judge_drift(then, second, device_kind, (), seed + 1)
    if again.drifted:
        return replace(report, confirmed=True)
    told = tuple(reason for reason in report.reasons if reason in _change_reasons(changes))
    return replace(report, confirmed=False, reasons=told, drifted=bool(told))


def changed(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Change, ...]:
    """What of COMPARED both records know and tell differently."""
    known = [field for field in COMPARED if then.get(field) not in (None, "") and field in now]
    return tuple(Change(f, str(then[f])[:200], str(now[f])[:200]) for f in known if then[f] != now[f])


def judge_drift(
    then: Sequence[StepSample],
    now: Sequence[StepSample],
    device_kind: Literal["cpu", "gpu"],
    changes: Sequence[Change] = (),
    seed: int = 0,
) -> DriftReport:
    """Compares samples of the same shapes, one by one. Raises ValueError for none or other shapes."""
    if not then or [s.shape for s in then] != [s.shape for s in now]:
        raise ValueError("drift compares the same steps, then and now")
    rng = np.random.default_rng(seed)
    kinds = np.array([sample.kind for sample in then])
    mean = _moved(then, now, np.arange(len(then)), rng)
    by_kind = {str(kind): _moved(then, now, np.flatnonzero(kinds == kind), rng) for kind in np.unique(kinds)}
    bar = MEAN_BARS[device_kind]
    reasons = []
    if abs(mean.log_ratio) >= bar and mean.is_sure:
        reasons.append(f"steps take {_percent(mean)} than when it was calibrated (bar ±{bar:.0%})")
    for kind, moved in by_kind.items():
        if abs(moved.log_ratio) > KIND_BAR and moved.is_sure:
            reasons.append(f"{kind} steps take {_percent(moved)} (bar ±{KIND_BAR:.0%})")
    reasons += _change_reasons(changes)
    return DriftReport(
        drifted=bool(reasons),
        reasons=tuple(reasons),
        mean=mean,
        by_kind=by_kind,
        sentinels=tuple(
            Sentinel(describe(a.shape), a.kind, a.median_s, b.median_s)
            for a, b in zip(then, now, strict=True)
        ),
        changes=tuple(changes),
        contended_share=float(np.mean([sample.contended_share for sample in now])),
    )


def _change_reasons(changes: Sequence[Change]) -> list[str]:
    return [change_reason(change) for change in changes]


def change_reason(change: Change) -> str:
    """In a sentence, by the names of the record."""
    return f"{change.field} was {change.then!r} and is {change.now!r}"


def _moved(
    then: Sequence[StepSample], now: Sequence[StepSample], rows: NDArray[np.int64], rng: np.random.Generator
) -> Moved:
    ratios = np.array([np.log(now[i].median_s / then[i].median_s) for i in rows])
    drawn = np.stack([_log_medians(now[i], rng) - _log_medians(then[i], rng) for i in rows], axis=1)
    picked = rng.integers(0, len(rows), (RESAMPLES, len(rows)))
    means = np.take_along_axis(drawn, picked, axis=1).mean(axis=1)
    low, high = np.percentile(means, [50 * (1 - LEVEL), 50 * (1 + LEVEL)]).tolist()
    mean = float(ratios.mean())
    return Moved(mean, min(low, mean), max(high, mean))


def _log_medians(sample: StepSample, rng: np.random.Generator) -> Floats:
    """Log medians of resampled repeats. A repeat that was disturbed counts as far off, not as how far: drawn often
    enough it would be the median, and one such repeat in ten would hide a drift."""
    logs = np.log(np.asarray(sample.seconds))
    middle = np.median(logs)
    reach = WINSOR * 1.4826 * np.median(np.abs(logs - middle))
    logs = np.clip(logs, middle - reach, middle + reach)
    return np.asarray(np.median(rng.choice(logs, (RESAMPLES, len(logs))), axis=1))


def _percent(moved: Moved) -> str:
    size = abs(np.expm1(moved.log_ratio))
    return f"{size:.1%} {'longer' if moved.log_ratio > 0 else 'less time'}"
