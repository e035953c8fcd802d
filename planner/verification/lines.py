"""One percentile, predicted and measured, each with its interval: what every report is made of.

Both intervals hold nine of ten: the prediction's over refits of the step-time model, the measurement's over resampled
requests (and over repeats of the whole run, where there are several: then the median of them is what was measured, and
how far they lie apart is the repeatability). No bar is tighter than what the same trace, run twice on one CPU, differed
by: 4 to 5 % of TTFT, 9 % of the median gap. Seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PERCENTILES: Final = (50.0, 95.0, 99.0)
LEVEL: Final = 0.9
RESAMPLES: Final = 200
BARS: Final[Mapping[str, Mapping[tuple[str, float], float]]] = {
    "cpu": {("ttft", 50.0): 0.15, ("ttft", 95.0): 0.15, ("itl", 50.0): 0.15, ("itl", 95.0): 0.15, ("itl", 99.0): 0.2},
    "gpu": {("ttft", 50.0): 0.1, ("ttft", 95.0): 0.1, ("itl", 50.0): 0.1, ("itl", 95.0): 0.1, ("itl", 99.0): 0.15},
}  # fmt: skip


def bars_text(kind: str) -> str:
    """`10 % up to p95, 15 % at p99`, of a device of this kind ("cpu" or "gpu")."""
    bars = BARS[kind]
    return f"{bars['itl', 95.0]:.0%} up to p95, {bars['itl', 99.0]:.0%} at p99".replace("%", "\u00a0%")


@dataclass(frozen=True, slots=True)
class Line:
    """One metric's percentile [s]. `error` = predicted / measured - 1; `bar`: what it is held to, None: shown only.
    `within`: the two intervals meet. `spread`: of repeated replays, largest minus smallest over the median.
    `at_speed_s`: predicted at the speed that the device had meanwhile (`speed`); None: that is not known."""

    metric: str
    percentile: float
    predicted_s: float
    predicted_low_s: float
    predicted_high_s: float
    measured_s: float
    measured_low_s: float
    measured_high_s: float
    error: float
    within: bool
    bar: float | None
    spread: float | None
    at_speed_s: float | None = None

    @property
    def label(self) -> str:
        return f"{self.metric.upper()} p{self.percentile:g}"

    @property
    def holds(self) -> bool:
        return self.bar is None or abs(self.error) <= self.bar

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"label": self.label, "holds": self.holds}


def line_of(
    metric: str,
    percentile: float,
    predicted_s: float,
    refits_s: Sequence[float],
    measured_s: Sequence[float],
    measured_interval_s: tuple[float, float],
    bar: float | None,
) -> Line:
    """`refits_s`: the same predicted under refits. `measured_s`: of each repeat, at least one; the interval is that of
    the first, and is widened to hold them all."""
    low, high = central(list(refits_s) or [predicted_s])
    low, high = min(low, predicted_s), max(high, predicted_s)
    middle = float(np.median(measured_s))
    measured_low, measured_high = measured_interval_s
    measured_low, measured_high = min(measured_low, *measured_s), max(measured_high, *measured_s)
    return Line(
        metric=metric, percentile=percentile, predicted_s=predicted_s, predicted_low_s=low, predicted_high_s=high,
        measured_s=middle, measured_low_s=measured_low, measured_high_s=measured_high,
        error=predicted_s / middle - 1.0, within=low <= measured_high and measured_low <= high, bar=bar,
        spread=(max(measured_s) - min(measured_s)) / middle if len(measured_s) > 1 else None,
    )  # fmt: skip


def central(values: Sequence[float]) -> tuple[float, float]:
    """The middle LEVEL of the values."""
    tail = 50.0 * (1.0 - LEVEL)
    low, high = np.percentile(values, [tail, 100.0 - tail]).tolist()
    return low, high


def bootstrap_interval(values: Floats, percentile: float, seed: int) -> tuple[float, float]:
    """Of a percentile of independent values."""
    drawn = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    return central(np.percentile(values[drawn], percentile, axis=1).tolist())
