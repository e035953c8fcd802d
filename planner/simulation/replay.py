"""Does the simulation predict a run that really happened, from step times measured apart from it?

The step-time model is fitted to a few of the recorded step times, chosen by their shape alone and never by looking
at the run (`calibration.sources.choosing`); several choices are tried, and the worst counts. Shapes are taken up to
BRACKET times what the KV pool holds: tables go by factors of two, and a full pool lies between two measured shapes
only if the next larger ones are among them. (Of random steps that nearly fill the pool of the run in
tests/reference, 80 shapes up to 1, 2 and 4 times its size left 31, 1 and 2.5 % uncovered.) Then the recorded requests
are simulated with the recorded knobs.

Two things are seldom recorded, so both are shown: whether the engine scheduled asynchronously, and the host time
between two steps (composed or kernel-only step times lack it: HOST_GAPS_S). Nothing is tuned on the run.
Predicted and measured are compared at the mean and at percentiles of pooled requests: TTFT from queued to first token,
TPOT the mean gap of a request with two outputs or more, E2E from queued to last token. Seconds; errors are
predicted / measured - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from calibration.sources.choosing import choose_points, in_domain
from calibration.steptime import StepSample, StepTimeArrays, fit
from planner.simulation import kernel
from planner.simulation.arrays import Floats
from planner.simulation.outcome import Outcome
from planner.simulation.recorded_run import RecordedRun

METRICS = ("ttft", "tpot", "e2e")
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
HOST_GAPS_S = (0.0, 0.0005, 0.001, 0.0015)
BRACKET = 2
BARS = {"ttft": 0.05, "tpot": 0.04, "e2e": 0.04}
BARS_ALL = {"ttft": 0.02, "tpot": 0.02, "e2e": 0.02}
SYNC, ASYNC, BOTH = "sync", "async", "both"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric: five figures each, by STATISTICS. `predicted_s` is that of the choice of points with the largest
    error there, whose signed `errors` these are."""

    metric: str
    measured_s: tuple[float, ...]
    predicted_s: tuple[float, ...]
    errors: tuple[float, ...]

    @property
    def worst(self) -> float:
        return max(self.errors, key=abs)

    @property
    def measured(self) -> bool:
        """TPOT is not, where no request has two outputs."""
        return not np.isnan(self.measured_s[0])

    def failures(self, bar: float) -> Iterator[str]:
        """Where it is further off than the bar, in words. Nothing can be said of what nobody measured."""
        if not self.measured:
            return
        for statistic, seconds, error in zip(STATISTICS, self.measured_s, self.errors, strict=True):
            if seconds == 0.0:
                yield f"{self.metric} {statistic} cannot be compared: it was measured as 0 s"
            elif np.isnan(error):
                yield f"{self.metric} {statistic} cannot be compared: no request was predicted to be served"
            elif not abs(error) <= bar:
                yield f"{self.metric} {statistic} {error:+.2%}, more than {bar:.2%}"


@dataclass(frozen=True, slots=True)
class Variant:
    """The run as one way of scheduling and one host gap would have it; the worst of all choices of points.

    `uncovered_share`: of busy time spent in steps that the samples do not cover. `decides`: is held to the bars.
    """

    scheduling: str
    host_gap_s: float
    decides: bool
    comparisons: tuple[Comparison, ...]
    preemptions: int
    hit_rate: float
    uncovered_share: float
    rejected: int

    @property
    def label(self) -> str:
        return f"{self.scheduling}, host gap {self.host_gap_s * 1000:g} ms"


@dataclass(frozen=True, slots=True)
class ReplayCheck:
    """`fitted` of `candidates` step times (of `table` in all), `seeds` choices of them."""

    fitted: int
    candidates: int
    table: int
    seeds: int
    within: Mapping[str, float]
    variants: tuple[Variant, ...]

    @property
    def failures(self) -> list[str]:
        """What lies outside the bars, in words; empty when nothing does."""
        found = []
        for variant in self.variants:
            if not variant.decides:
                continue
            if variant.rejected:
                found.append(f"{variant.label}: {variant.rejected} requests never fit the recorded pool")
            for comparison in variant.comparisons:
                bar = self.within[comparison.metric]
                found += [f"{variant.label}: {failure}" for failure in comparison.failures(bar)]
        return found

    def to_dict(self) -> dict[str, Any]:
        """For `strict_json`: NaN where there is nothing to compare."""
        return asdict(self) | {
            "within": dict(self.within),
            "statistics": list(STATISTICS),
            "failures": self.failures,
        }


def replay_check(
    run: RecordedRun,
    *,
    points: int | None = 80,
    seeds: int = 5,
    within: Mapping[str, float] | None = None,
    host_gap_s: float = 0.0,
    scheduling: str | None = None,
    on_seed: Callable[[int, int], None] = lambda seed, seeds: None,
) -> ReplayCheck:
    """Predict the run from `points` step times (None: all that are candidates, so there is one choice only).

    `scheduling` and `host_gap_s` say which of the variants are held to the bars `within`: "sync", "async" or "both"
    (None: what was recorded, both where nothing was). FitError when the samples cannot be fitted.
    """
    candidates = [sample for sample in run.samples if in_domain(sample.shape, BRACKET * run.kv_tokens)]
    seeds = 1 if points is None else max(1, seeds)
    models = []
    for seed in range(seeds):
        on_seed(seed, seeds)
        models.append(_model(candidates, points, seed))
    gaps = sorted({*HOST_GAPS_S, host_gap_s})
    deciding = scheduling or {None: BOTH, True: ASYNC, False: SYNC}[run.asynchronous]
    variants = [
        _variant(run, models, way, gap, gap == host_gap_s and deciding in (way, BOTH))
        for way in (SYNC, ASYNC)
        for gap in gaps
    ]
    bars = dict(within) if within else (BARS_ALL if points is None else BARS)
    fitted = len(candidates) if points is None else min(points, len(candidates))
    return ReplayCheck(fitted, len(candidates), len(run.samples), seeds, bars, tuple(variants))


def _model(candidates: Sequence[StepSample], points: int | None, seed: int) -> StepTimeArrays:
    chosen = list(candidates)
    if points is not None:
        chosen = [sample for sample in choose_points(candidates, points, seed) if sample.role == "fit"]
    return fit(chosen, seed=seed, bootstrap=0).arrays()


def _variant(
    run: RecordedRun, models: Sequence[StepTimeArrays], way: str, host_gap_s: float, decides: bool
) -> Variant:
    knobs = replace(run.knobs, async_scheduling=way == ASYNC)
    outcomes = [
        kernel.simulate(
            run.arrival_s,
            run.prompt_tokens,
            run.output_tokens,
            None,
            knobs,
            model,
            host_gap_s=host_gap_s,
            prefix=run.prefix,
        )
        for model in models
    ]
    return Variant(
        scheduling=way,
        host_gap_s=host_gap_s,
        decides=decides,
        comparisons=tuple(_compare(metric, run, outcomes) for metric in METRICS),
        preemptions=max(int(outcome.preemptions.sum()) for outcome in outcomes),
        hit_rate=max(outcome.hit_rate for outcome in outcomes),
        uncovered_share=max(outcome.uncovered_share for outcome in outcomes),
        rejected=len(outcomes[0].rejected),
    )


def _compare(metric: str, run: RecordedRun, outcomes: Sequence[Outcome]) -> Comparison:
    measured = statistics(run.measured_s(metric))
    predicted = np.array([statistics(outcome.values_s(metric)) for outcome in outcomes])
    errors = np.full(predicted.shape, np.nan)
    np.divide(predicted, measured, out=errors, where=measured > 0.0)
    errors -= 1.0
    worst = np.argmax(np.abs(errors), axis=0)
    each = np.arange(len(STATISTICS))
    return Comparison(
        metric,
        tuple(measured.tolist()),
        tuple(predicted[worst, each].tolist()),
        tuple(errors[worst, each].tolist()),
    )


def statistics(values_s: Floats) -> Floats:
    """Mean and percentiles, by STATISTICS; NaN of nothing."""
    if not len(values_s):
        return np.full(len(STATISTICS), np.nan)
    return np.array([values_s.mean(), *np.percentile(values_s, [50, 90, 95, 99])])
