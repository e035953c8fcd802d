"""Predicted against measured: every phase and percentile with both intervals, where steps were mispriced, a verdict.

Predicted: the same requests and knobs in the simulator, with the calibration's step times; its interval is the central
90 % over refits of the step-time model. Measured: the replay; its interval is a bootstrap over requests (for ITL over
requests too: gaps of one request belong together, so requests are drawn, not gaps). Of several replays of the same
window the median counts, and how far they lie apart is the repeatability: no prediction can be held to less.

Step residuals are measured / predicted - 1 on the batches that really ran, by kind of step and size, over all replays.
The busy-time bias is what they add up to (of several replays the median). Nothing is rescaled by any of this. How fast
the device was meanwhile (`speed`), and what would have been predicted at that speed, stands beside it.
A step bias of 4 % was 10 to 18 % of TTFT at saturation, hence a bar for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.search.seconds import percent_text, seconds_text
from planner.simulation.outcome import Outcome
from planner.verification.lines import BARS, PERCENTILES, Line, bootstrap_interval, line_of
from planner.verification.loop import Replayed
from planner.verification.pool_steps import PoolSteps
from planner.verification.speed import Speed

Floats = NDArray[np.float64]

BUSY_BIAS: Final = {"cpu": 0.05, "gpu": 0.03}
NOTABLE: Final = 0.01  # of all busy time: a smaller misprice is not worth a word
MOSTLY: Final = 0.5  # of the steps, on a core that other work had a part of
QUIETER: Final = "Most steps shared their core with other work: repeat it on a quieter machine."


@dataclass(frozen=True, slots=True)
class Residual:
    """Steps of one kind and size: how many, their share of measured busy time, measured / predicted - 1 over all."""

    kind: str
    tokens_from: int
    tokens_to: int
    steps: int
    busy_share: float
    error: float

    @property
    def sizes(self) -> str:
        return "1 token" if self.tokens_to == 1 else f"{self.tokens_from} to {self.tokens_to} tokens"


@dataclass(frozen=True, slots=True)
class Report:
    """`contended_share`: of steps that shared their core. `speed`: of the device meanwhile; None: not known."""

    lines: tuple[Line, ...]
    residuals: tuple[Residual, ...]
    busy_bias: float
    busy_bar: float
    requests: int
    steps: int
    replays: int
    contended_share: float
    sentence: str
    advice: tuple[str, ...]
    speed: Speed | None = None

    @property
    def holds(self) -> bool:
        return all(line.holds for line in self.lines) and abs(self.busy_bias) <= self.busy_bar

    def to_dict(self) -> dict[str, Any]:
        lines = [line.to_dict() for line in self.lines]
        speed = self.speed.to_dict() if self.speed else None
        return asdict(self) | {"lines": lines, "speed": speed, "holds": self.holds}


def compare(
    predicted: Outcome,
    refits: Sequence[Outcome],
    replays: Sequence[Replayed],
    steps: PoolSteps,
    kind: str,
    seed: int = 0,
    speed: Speed | None = None,
    at_speed: Outcome | None = None,
) -> Report:
    """`kind`: "cpu" or "gpu", whose bars apply. `refits`: the prediction under refits of the model. `at_speed`: the
    prediction with all steps as much longer as `speed` says.

    Raises ValueError for no replay.
    """
    if not replays:
        raise ValueError("nothing was replayed")
    lines = tuple(
        replace(
            _line(metric, percentile, predicted, refits, replays, BARS[kind], seed),
            at_speed_s=at_speed.percentile(metric, percentile) if at_speed else None,
        )
        for metric in ("ttft", "itl", "tpot", "e2e")
        for percentile in PERCENTILES
        if _has(predicted, metric)
    )
    priced = [steps.priced_s(each) for each in replays]
    biases = [float(p.sum() / each.seconds.sum() - 1.0) for p, each in zip(priced, replays, strict=True)]
    report = Report(
        lines=lines, residuals=_residuals(replays, np.concatenate(priced)), busy_bias=float(np.median(biases)),
        busy_bar=BUSY_BIAS[kind], requests=len(predicted.arrival_s), steps=len(replays[0].seconds),
        replays=len(replays), contended_share=float(np.mean(np.concatenate([r.contended for r in replays]))),
        sentence="", advice=(), speed=speed,
    )  # fmt: skip
    return _worded(report)


def _has(outcome: Outcome, metric: str) -> bool:
    return bool(outcome.gap_counts.sum()) if metric == "itl" else len(outcome.values_s(metric)) > 0


def _line(
    metric: str,
    percentile: float,
    predicted: Outcome,
    refits: Sequence[Outcome],
    replays: Sequence[Replayed],
    bars: Mapping[tuple[str, float], float],
    seed: int,
) -> Line:
    measured = [replayed.outcome.percentile(metric, percentile) for replayed in replays]
    low, high = _bootstrap(replays[0].outcome, metric, percentile, seed)
    return line_of(
        metric, percentile, predicted.percentile(metric, percentile),
        [outcome.percentile(metric, percentile) for outcome in refits], measured, (low, high),
        bars.get((metric, percentile)),
    )  # fmt: skip


def _bootstrap(outcome: Outcome, metric: str, percentile: float, seed: int) -> tuple[float, float]:
    """Over requests. The gaps of the replay are in a histogram: its interval is taken from requests' mean gaps."""
    values = outcome.values_s("tpot" if metric == "itl" else metric)
    if len(values) < 2:
        value = outcome.percentile(metric, percentile)
        return value, value
    low, high = bootstrap_interval(values, percentile, seed)
    if metric == "itl":  # as wide, relative to its middle, around the gaps' own percentile
        middle, own = float(np.percentile(values, percentile)), outcome.percentile("itl", percentile)
        return own * low / middle, own * high / middle
    return low, high


def _residuals(replays: Sequence[Replayed], priced: Floats) -> tuple[Residual, ...]:
    """Over the steps of all replays; `steps` counts those of one (on average)."""
    features = np.concatenate([replayed.features for replayed in replays])
    seconds = np.concatenate([replayed.seconds for replayed in replays])
    kinds, octave = classes_of(features)
    busy = float(seconds.sum())
    found = []
    for kind in ("decode", "mixed", "prefill"):
        for size in sorted(set(octave[kinds == kind].tolist())):
            mask = (kinds == kind) & (octave == size)
            measured = float(seconds[mask].sum())
            found.append(
                Residual(
                    kind, 1 << size, (2 << size) - 1, round(mask.sum() / len(replays)), measured / busy,
                    measured / float(priced[mask].sum()) - 1.0,
                )
            )  # fmt: skip
    return tuple(found)


def classes_of(features: Floats) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    """Kind of each step, and the octave of its tokens."""
    tokens, decodes = features[:, 0], features[:, 1]
    kinds = np.where(tokens == decodes, "decode", np.where(decodes == 0, "prefill", "mixed"))
    return kinds, np.floor(np.log2(np.maximum(tokens, 1))).astype(np.int64)


def _worded(report: Report) -> Report:
    missed = [line for line in report.lines if not line.holds]
    outside = [line for line in report.lines if line.bar is not None and not line.within]
    judged = [line for line in report.lines if line.bar is not None]
    worst = max(judged, key=lambda line: abs(line.error), default=None)
    if worst is None:
        sentence = "Nothing could be judged: no request has a second token and none a first."
    elif missed:
        way = "optimistic" if worst.error < 0 else "pessimistic"
        sentence = (
            f"The plan is {way} by {percent_text(abs(worst.error))} at {worst.label}: predicted "
            f"{seconds_text(worst.predicted_s)}, measured {seconds_text(worst.measured_s)}{_where(report)}."
        )
    elif abs(report.busy_bias) > report.busy_bar:
        sentence = (
            f"The percentiles are within the bars (largest error {percent_text(abs(worst.error))}, at {worst.label}: "
            f"predicted {seconds_text(worst.predicted_s)}, measured {seconds_text(worst.measured_s)}), but steps are "
            f"predicted {percent_text(abs(report.busy_bias))} {_way(report)} over the whole replay; the bar is "
            f"{percent_text(report.busy_bar)}."
        )
    else:
        inside = "within the stated intervals" if not outside else "within the bars"
        sentence = (
            f"The device did what was predicted, {inside}: the largest error is {percent_text(abs(worst.error))}, at "
            f"{worst.label} (predicted {seconds_text(worst.predicted_s)}, measured {seconds_text(worst.measured_s)})."
        )
    if report.speed and _explains(report):
        sentence += f" {told_speed(report.speed)}"
    return replace(report, sentence=sentence, advice=tuple(_advice(report)))


def _explains(report: Report) -> bool:
    """Was the device surely another one than it had been, the way that steps are off?"""
    speed = report.speed
    return bool(
        speed and not report.holds and speed.is_sure and (speed.change > 0.0) == (report.busy_bias < 0.0)
    )


def told_speed(speed: Speed) -> str:
    """In a sentence."""
    low, high = (percent_text(value, signed=True) for value in (speed.low, speed.high))
    way = "longer" if speed.change > 0.0 else "less time"
    return (
        f"Meanwhile steps of the calibration took {percent_text(abs(speed.change))} {way} than when it was made "
        f"({low} to {high})."
    )


def _advice_on_speed(report: Report) -> list[str]:
    """What is the device's, and what is the plan's own."""
    speed, missed = report.speed, [line for line in report.lines if not line.holds]
    if speed is None or report.holds:
        return []
    if not _explains(report):
        return [f"{told_speed(speed)} So it is not the device's speed that is off."]
    worst = max(missed, key=lambda line: abs(line.error), default=None)
    if worst is None or worst.at_speed_s is None:
        return []
    return [
        f"At the speed that the device had, {worst.label} would have been predicted as "
        f"{seconds_text(worst.at_speed_s)} (measured {seconds_text(worst.measured_s)}): repeat it when the device is "
        "as fast as it was, or recalibrate."
    ]


def _way(report: Report) -> str:
    return "too short" if report.busy_bias < 0 else "too long"


def _where(report: Report) -> str:
    """The kind of step that cost most time beyond its price."""
    culprit = max(report.residuals, key=lambda r: abs(r.error) * r.busy_share)
    if abs(culprit.error) * culprit.busy_share < NOTABLE:
        return ""
    name = {"decode": "decode steps", "mixed": "prefill beside decodes", "prefill": "prefill alone"}[
        culprit.kind
    ]
    return f"; mostly {name} of {culprit.sizes} ({percent_text(culprit.error, signed=True)})"


def _advice(report: Report) -> list[str]:
    found = _advice_on_speed(report)
    if abs(report.busy_bias) > report.busy_bar:
        found.append(
            f"Steps are predicted {percent_text(abs(report.busy_bias))} {_way(report)} over the whole replay: "
            "recalibrate this device."
        )
    for residual in sorted(report.residuals, key=lambda r: -abs(r.error) * r.busy_share)[:2]:
        if abs(residual.error) > report.busy_bar and abs(residual.error) * residual.busy_share >= NOTABLE:
            found.append(
                f"Measure more {residual.kind} steps of {residual.sizes}: they took "
                f"{percent_text(residual.error, signed=True)} against their price and "
                f"{percent_text(residual.busy_share)} of the time."
            )
    apart = [line for line in report.lines if line.bar and line.spread is not None and line.spread > line.bar]
    if apart:
        worst = max(apart, key=lambda line: line.spread or 0.0)
        found.append(
            f"The same requests, replayed, lie {percent_text(worst.spread or 0.0)} apart at {worst.label}: on this "
            f"device, busy as it was, no prediction can be held to {percent_text(worst.bar or 0.0)}."
        )
    if report.contended_share > MOSTLY:
        found.append(QUIETER)
    return found
