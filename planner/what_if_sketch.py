"""Small distributions as SVG paths: drawn by the server into the page that answers a move, so that they come with
the numbers and need no script. Each is one metric that has an objective, with its limit, over the plan's own curve.

A sketch is WIDTH x HEIGHT units; x is the latency on a logarithmic axis, y the share of values that are no longer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.search.objectives import Objective
from planner.search.result import Prediction
from planner.search.why import CURVE

WIDTH, HEIGHT = 320.0, 132.0
LEAST_S = 1e-6
Curves = Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Mark:
    """A limit: a line at `x` and, where the curve is of what it limits, a cross at the percentile it is for. `holds`
    None where nothing is known."""

    x: float
    y: float | None
    label: str
    limit_s: float
    holds: bool | None


@dataclass(frozen=True, slots=True)
class Tick:
    x: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Sketch:
    """`path`, `own_path`: the curve and the plan's own, "" where there is none."""

    metric: str
    path: str
    own_path: str
    marks: tuple[Mark, ...]
    ticks: tuple[Tick, ...]
    median_s: float | None

    @property
    def shares(self) -> list[tuple[str, float]]:
        """The vertical axis: per cent, and where it is written."""
        return [(f"{percentile:g}", _y(percentile)) for percentile in (0.0, 50.0, 90.0, 100.0)]


def sketches(predictions: Sequence[Prediction], curves_s: Curves, own_s: Curves) -> list[Sketch]:
    """One for each metric that has a limit. `own_s`: the plan's own curves. The curves are of all requests: limits of
    classes, or on several metrics at once, are lines and no points on them."""
    metrics = list(dict.fromkeys(metric for p in predictions for metric, _ in _limits(p.objective)))
    return [
        _sketch(metric, predictions, curves_s.get(metric, ()), own_s.get(metric, ())) for metric in metrics
    ]


def _limits(o: Objective) -> list[tuple[str, float]]:
    return list(o.limits) if o.is_joint else [(o.metric, o.limit_s)]


def _sketch(
    metric: str, predictions: Sequence[Prediction], curve: Sequence[float], own: Sequence[float]
) -> Sketch:
    limits = [(p, limit) for p in predictions for name, limit in _limits(p.objective) if name == metric]
    classed = any(p.objective.request_class for p in predictions)
    low, high = _span([*curve, *own, *(limit for _, limit in limits)])
    marks = tuple(
        Mark(
            x=_x(limit, low, high), y=None if classed or p.objective.is_joint else _y(p.objective.percentile),
            label=p.objective.label, limit_s=limit, holds=None if p.margin is None else p.margin >= 0.0,
        )
        for p, limit in limits
    )  # fmt: skip
    ticks = tuple(Tick(_x(value, low, high), value) for value in _ticks(low, high))
    median = curve[CURVE.index(50.0)] if curve else None
    return Sketch(metric.upper(), _path(curve, low, high), _path(own, low, high), marks, ticks, median)


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Log10 of the axis' ends, a little room beyond the values."""
    known = [math.log10(max(value, LEAST_S)) for value in values]
    low, high = min(known), max(known)
    room = max(0.04 * (high - low), 0.05)
    return low - room, high + room


def _x(seconds: float, low: float, high: float) -> float:
    return round(WIDTH * (math.log10(max(seconds, LEAST_S)) - low) / (high - low), 1)


def _y(percentile: float) -> float:
    return round(HEIGHT * (1.0 - percentile / 100.0), 1)


def _path(curve: Sequence[float], low: float, high: float) -> str:
    points = [f"{_x(value, low, high)} {_y(p)}" for value, p in zip(curve, CURVE, strict=False)]
    return f"M{' L'.join(points)}" if points else ""


def _ticks(low: float, high: float, most: int = 4) -> list[float]:
    """Round values inside the axis."""
    for steps in ((1, 2, 5), (1, 3), (1,)):
        found = [m * 10.0**k for k in range(-7, 6) for m in steps if low <= math.log10(m) + k <= high]
        if 2 <= len(found) <= most:
            return found
    inside = [10 ** (low + share * (high - low)) for share in (0.15, 0.5, 0.85)]
    return (
        found[:: max(1, -(-len(found) // most))] if len(found) > most else [float(f"{v:.2g}") for v in inside]
    )
