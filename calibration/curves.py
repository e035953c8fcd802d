"""What the pictures of a calibration show: which curves, which points, under which conditions. No plotting here.

A step's duration depends on seven features; a picture has one axis for them. So each curve holds the other
conditions fixed (its reference), and a point counts as lying on a curve only if it was measured within 15 % of
that curve's conditions. Every other point takes the colour of the nearest reference and is shown with its own
prediction, as is every held-out one: no point is read against a curve that does not speak about it.
    prefill   seconds over prompt tokens, for chunks after nothing and after cached prefixes
    decode    seconds over active sequences (the gap between tokens, ITL), for several contexts
    mixed     seconds over chunk tokens, beside several decode batches at one context and one prefix
Units: seconds, tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibration.steptime import HELDOUT_ROLES, StepFeatures, StepSample, StepTimeModel, features_of

Floats = NDArray[np.float64]
LEVEL = 0.90  # of the prediction intervals
SAME = np.log(1.15)  # conditions within 15 % count as the same
APART = np.log(1.5)  # references stand at least this far apart
MAX_CURVES = 4
MAX_LOOSE = 40  # more points than these away from every curve are counted, not drawn
GRID = 72


@dataclass(frozen=True, slots=True)
class Curve:
    """The fitted seconds over x under one reference, with its interval and whether it was measured there."""

    label: str
    x: Floats
    seconds: Floats
    low_s: Floats
    high_s: Floats
    covered: NDArray[np.bool_]
    features: StepFeatures


@dataclass(frozen=True, slots=True)
class Point:
    """One sample. ``group`` is the index of the nearest reference; ``on_curve``: it shares its conditions."""

    sample: StepSample
    x: float
    group: int
    on_curve: bool
    predicted_s: float | None

    @property
    def held_out(self) -> bool:
        return self.sample.role in HELDOUT_ROLES

    @property
    def error(self) -> float | None:
        """Prediction over measurement, less one."""
        return None if self.predicted_s is None else self.predicted_s / self.sample.median_s - 1


@dataclass(frozen=True, slots=True)
class View:
    """One picture. ``labels`` name the references, also while there is no fit and so no curve."""

    kind: str
    labels: tuple[str, ...]
    meaning: str  # of the labels, with their unit
    conditions: str  # that all curves share, in words
    curves: tuple[Curve, ...]
    points: tuple[Point, ...]
    left_out: int = 0


# Choosing references -------------------------------------------------------------------------------------------


def references(values: Floats, count: int) -> list[float]:
    """Up to ``count`` values that several points share, spread evenly (in the logarithm) over those there are."""
    logs = np.sort(np.log1p(values))
    found: list[tuple[float, int]] = []
    left = logs
    while left.size and len(found) < 40:
        reach = np.searchsorted(left, left + SAME, "right") - np.searchsorted(left, left - SAME, "left")
        centre = left[int(np.argmax(reach))]
        near = logs[np.abs(logs - centre) <= SAME]
        found.append((float(np.median(near)), int(near.size)))
        left = left[np.abs(left - centre) > APART]
    most = max((size for _, size in found), default=0)
    shared = sorted(value for value, size in found if size >= min(3, most))
    if len(shared) > count:
        shared = [shared[round(i)] for i in np.linspace(0, len(shared) - 1, count)]
    return [float(np.expm1(value)) for value in shared]


def middle(values: Floats) -> float:
    """The median, as one of the values; 0 of none."""
    return float(np.quantile(values, 0.5, method="lower")) if values.size else 0.0


def nearest(values: Floats, refs: Sequence[float]) -> list[int]:
    """The index of the reference nearest to each value, in the logarithm."""
    distance = np.abs(np.log1p(values)[:, None] - np.log1p(np.asarray(refs, dtype=np.float64))[None, :])
    return [int(i) for i in distance.argmin(axis=1)] if len(refs) else []


def same(value: float | Floats, reference: float) -> NDArray[np.bool_]:
    return np.asarray(np.abs(np.log1p(value) - np.log1p(reference)) <= SAME)


# Features of one row of samples ----------------------------------------------------------------------------------


def mean_context(sample: StepSample) -> float:
    contexts = sample.shape.decode_contexts
    return sum(contexts) / len(contexts) if contexts else 0.0


def chunk_tokens(sample: StepSample) -> float:
    return float(sum(chunk.query_tokens for chunk in sample.shape.chunks))


def cached_tokens(sample: StepSample) -> float:
    return float(max((chunk.cached_tokens for chunk in sample.shape.chunks), default=0))


def one_chunk(sample: StepSample) -> bool:
    return len(sample.shape.chunks) == 1


def skew_over(samples: Sequence[StepSample], x: Floats) -> Floats:
    """Longest over mean context as the measured batches had it, over the number of active sequences."""
    known = sorted((len(s.shape.decode_contexts), max(s.shape.decode_contexts) / max(1.0, mean_context(s)))
                   for s in samples if s.shape.decode_contexts)  # fmt: skip
    if not known:
        return np.ones_like(x)
    batches, ratios = np.array(known, dtype=np.float64).T
    return np.asarray(np.interp(np.log(x), np.log(batches), ratios))


def decode_features(b: Floats, context: float, skew: Floats) -> StepFeatures:
    zero = np.zeros_like(b)
    return StepFeatures(n=b, b=b, S=b, C=b * context, cmax=np.rint(context * skew), P=zero, kvm=zero)


def chunk_features(q: Floats, cached: float, b: float, context: float, skew: float) -> StepFeatures:
    """One chunk of q tokens that completes its prompt, beside b decodes."""
    one = np.ones_like(q)
    longest = round(context * skew) if b else 0
    return StepFeatures(
        n=q + b, b=b * one, S=(b + 1) * one, C=b * context * one, cmax=longest * one,
        P=q * (cached + (q + 1) / 2), kvm=np.maximum(longest, cached + q),
    )  # fmt: skip


# The three pictures ----------------------------------------------------------------------------------------------


def view(kind: str, samples: Sequence[StepSample], model: StepTimeModel | None) -> View:
    """``kind``: "prefill", "decode" or "mixed". Sentinels are left away: they repeat one shape to watch drift."""
    own = [s for s in samples if s.kind == kind and s.role != "sentinel"]
    return {"prefill": prefill_view, "decode": decode_view, "mixed": mixed_view}[kind](own, model)


def prefill_view(samples: Sequence[StepSample], model: StepTimeModel | None) -> View:
    cached = np.array([cached_tokens(s) for s in samples])
    after = references(cached[cached > 0], MAX_CURVES - 1)
    refs = [0.0, *after] if (cached == 0).any() else after
    group = nearest(cached, refs)
    alike = [one_chunk(s) and bool(same(c, refs[g])) for s, c, g in zip(samples, cached, group, strict=True)]

    def curve_of(index: int, x: Floats) -> StepFeatures:
        return chunk_features(x, refs[index], 0, 0, 1)

    names = _Names("prefill", refs, "Cached before the chunk [tokens]")
    return _assemble(names, samples, [chunk_tokens(s) for s in samples], group, alike, curve_of, model)


def decode_view(samples: Sequence[StepSample], model: StepTimeModel | None) -> View:
    contexts = np.array([mean_context(s) for s in samples])
    refs = references(contexts, MAX_CURVES)
    group = nearest(contexts, refs)
    alike = [bool(same(c, refs[g])) for c, g in zip(contexts, group, strict=True)]

    def curve_of(index: int, x: Floats) -> StepFeatures:
        own = [s for s, g, ok in zip(samples, group, alike, strict=True) if ok and g == index]
        return decode_features(x, refs[index], skew_over(own, x))

    names = _Names("decode", refs, "Mean context [tokens]")
    x = [float(len(s.shape.decode_contexts)) for s in samples]
    return _assemble(names, samples, x, group, alike, curve_of, model)


def mixed_view(samples: Sequence[StepSample], model: StepTimeModel | None) -> View:
    batches = np.array([float(len(s.shape.decode_contexts)) for s in samples])
    contexts = np.array([mean_context(s) for s in samples])
    cached = np.array([cached_tokens(s) for s in samples])
    refs = [float(round(ref)) for ref in references(batches, MAX_CURVES)]
    if len(refs) < 3 and batches.size:  # spread points share no batch: from the smallest to the largest
        refs = sorted({float(round(b)) for b in np.geomspace(batches.min(), batches.max(), 3)})
    context, prefix = middle(contexts), middle(cached)
    group = nearest(batches, refs)
    fixed = same(contexts, context) & same(cached, prefix)
    alike = [bool(ok and one_chunk(s) and same(b, refs[g]))
             for s, b, ok, g in zip(samples, batches, fixed, group, strict=True)]  # fmt: skip

    def curve_of(index: int, x: Floats) -> StepFeatures:
        skew = float(skew_over(samples, np.array([refs[index]]))[0])
        return chunk_features(x, prefix, refs[index], context, skew)

    after = f", the chunk after {prefix:,.0f} cached tokens" if prefix else ""
    conditions = f"Curves: decodes with {context:,.0f} tokens of context each{after}."
    names = _Names("mixed", refs, "Decodes beside it [sequences]", conditions)
    return _assemble(names, samples, [chunk_tokens(s) for s in samples], group, alike, curve_of, model)


def all_points(samples: Sequence[StepSample], kind: str, model: StepTimeModel) -> list[Point]:
    """Every sample of a kind with its prediction, on no curve."""
    own = [s for s in samples if s.kind == kind and s.role != "sentinel"]
    if not own:
        return []
    predicted = model.predict_s(features_of(s.shape for s in own))
    return [Point(s, s.median_s, 0, False, float(seconds)) for s, seconds in zip(own, predicted, strict=True)]


@dataclass(frozen=True, slots=True)
class _Names:
    kind: str
    refs: Sequence[float]
    meaning: str
    conditions: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(f"{ref:,.0f}" for ref in self.refs)


def _assemble(
    names: _Names, samples: Sequence[StepSample], x: list[float], group: list[int], alike: list[bool],
    features_at: Callable[[int, Floats], StepFeatures], model: StepTimeModel | None,
) -> View:  # fmt: skip
    """Keeps the points on curves and, unless they are many, the others; predicts them and the curves."""
    rows = list(zip(samples, x, group, alike, strict=True))
    if sum(alike) and len(rows) - sum(alike) > MAX_LOOSE:
        rows = [row for row in rows if row[3]]
    predicted: list[float | None] = [None] * len(rows)
    curves: tuple[Curve, ...] = ()
    if model is not None and rows:
        predicted = [float(s) for s in model.predict_s(features_of(row[0].shape for row in rows))]
        grid = _grid(min(x), max(x))
        curves = tuple(
            _curve(label, grid, features_at(i, grid), model) for i, label in enumerate(names.labels)
        )
    points = tuple(Point(*row, seconds) for row, seconds in zip(rows, predicted, strict=True))
    left_out = len(samples) - len(rows)
    return View(names.kind, names.labels, names.meaning, names.conditions, curves, points, left_out)


def _grid(low: float, high: float) -> Floats:
    """Whole numbers, even in the logarithm, to a quarter beyond what was measured at either end."""
    values = np.geomspace(max(1.0, low / 1.25), max(2.0, high * 1.25), GRID)
    return np.unique(np.concatenate([np.rint(values), [low, high]]))


def _curve(label: str, x: Floats, features: StepFeatures, model: StepTimeModel) -> Curve:
    low_s, high_s = model.interval_s(features, LEVEL)
    return Curve(label, x, model.predict_s(features), low_s, high_s, model.covered(features), features)
