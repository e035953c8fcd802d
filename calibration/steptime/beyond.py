"""In what respect steps lie outside the measured region: the axis that most of their time is beyond.

A step outside the box is counted to the feature that exceeds its measured range by the largest factor. One inside the
box is outside the hull, whose face of decode-only steps names the contexts that were measured with as many tokens; or
else it is one of which the two models say too different things.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibration.steptime.scalar import StepTimeArrays
from calibration.steptime.shapes import FEATURE_NAMES, StepFeatures
from calibration.steptime.vectorised import steps_seconds

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_BOX = {
    "n": "steps of {} tokens",
    "b": "batches of {} decodes",
    "S": "steps that sample {} tokens",
    "C": "decode contexts of {} tokens in all",
    "cmax": "contexts of {} tokens",
    "P": "{} query-key pairs of prompts in a step",
    "kvm": "contexts of {} tokens beside or within a prompt's chunk",
}
#: Beyond the box: codes 0..6 above their feature's range, 7..13 below.
FACE, FACETS, APART = 14, 15, 16


@dataclass(frozen=True, slots=True)
class Beyond:
    """`text`: the axis, what was asked and what was measured; `seconds` of all steps outside, `own_s` of those that are
    outside on this axis."""

    text: str
    seconds: float
    own_s: float


def beyond(m: StepTimeArrays, features: StepFeatures) -> Beyond | None:
    """Of the steps that the calibration does not cover; None where it covers all."""
    if not len(features):
        return None
    seconds, covered = steps_seconds(m, features)
    if covered.all():
        return None
    outside, own = features[~covered], seconds[~covered]
    codes = axes_of(m, outside)
    by_axis = np.bincount(codes, weights=own, minlength=APART + 1)
    axis = int(np.argmax(by_axis))
    return Beyond(_text(m, outside[codes == axis], axis), float(own.sum()), float(by_axis[axis]))


def axes_of(m: StepTimeArrays, outside: StepFeatures) -> Ints:
    """The axis of each step, int64[steps], for steps that are not covered."""
    asked = outside.matrix()
    above = np.where(asked > m.high, (asked + 1.0) / (m.high + 1.0), 0.0)
    below = np.where(asked < m.low, (m.low + 1.0) / (asked + 1.0), 0.0)
    factors = np.hstack([above, below])
    in_box = factors.max(axis=1) <= 0.0
    at = np.minimum(outside.n, len(m.log_tokens) - 1).astype(np.int64)
    off_face = (m.decode_context_low[at] > outside.C) | (m.decode_context_high[at] < outside.C)
    points = np.stack([m.log_tokens[at], np.log1p(outside.C), np.log1p(outside.P)], axis=-1)
    off_facets = np.any(points @ m.facets[:, :3].T + m.facets[:, 3] > 0.0, axis=-1)
    hull = np.where(outside.has_chunk, np.where(off_facets, FACETS, APART), np.where(off_face, FACE, APART))
    return np.where(in_box, hull, np.argmax(factors, axis=1))


def _text(m: StepTimeArrays, steps: StepFeatures, axis: int) -> str:
    if axis == APART:
        prompts = "with prompt chunks" if steps.has_chunk.any() else "of decodes alone"
        return (
            f"steps of {_range(steps.n)} tokens, {_range(steps.b)} of them decodes, {prompts}: measured, but the law "
            "and its check model say too different things of them"
        )
    if axis == FACETS:
        n, C = steps.n.max(), steps.C.max()
        return (
            f"prompt chunks in steps of up to {_count(n)} tokens beside decode contexts of up to {_count(C)} tokens in "
            "all; each was measured, but not together"
        )
    if axis == FACE:
        worst = int(np.argmax(steps.C))
        n, C = steps.n[worst], steps.C[worst]
        at = min(int(n), len(m.log_tokens) - 1)
        low, high = m.decode_context_low[at], m.decode_context_high[at]
        start = f"batches of {_count(n)} decodes with contexts of {_count(C)} tokens in all; measured there "
        if low > high:
            return f"{start}was none"
        return start + (f"up to {_count(np.floor(high))}" if high < C else f"from {_count(np.ceil(low))}")
    feature = axis % len(FEATURE_NAMES)
    values = steps.matrix()[:, feature]
    what = _BOX[FEATURE_NAMES[feature]]
    if axis < len(FEATURE_NAMES):
        return f"{what.format(f'up to {_count(values.max())}')}; measured up to {_count(m.high[feature])}"
    return f"{what.format(f'as few as {_count(values.min())}')}; measured from {_count(m.low[feature])}"


def _range(values: Floats) -> str:
    least, most = _count(values.min()), _count(values.max())
    return least if least == most else f"{least} to {most}"


def _count(value: float) -> str:
    return f"{value:,.0f}"
