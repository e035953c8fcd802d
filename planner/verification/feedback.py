"""What a replay's residuals lead to: wider intervals, or new points where steps were mispriced. Never a factor.

A mispriced kind of step is measured again, not multiplied: kinds drift apart, and a factor would hide which.
Until then a plan may count with it: `step_spread` is how far off steps were, weighted by the time they
took, and joins what the calibration itself knows of its error in every draw of a plan's confidence. Shares of 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from calibration.steptime import StepShape
from planner.verification.loop import Replayed
from planner.verification.pool_steps import PoolSteps
from planner.verification.report import NOTABLE, Residual, classes_of

Floats = NDArray[np.float64]
MOST_POINTS: Final = 12
PER_CLASS: Final = 3


def step_spread(residuals: Sequence[Residual]) -> float:
    """Root mean square of log(measured / predicted) by kind and size of step, weighted by busy time."""
    weight = sum(row.busy_share for row in residuals)
    if weight <= 0.0:
        return 0.0
    return math.sqrt(sum(row.busy_share * math.log1p(row.error) ** 2 for row in residuals) / weight)


def mispriced(
    replays: Sequence[Replayed], steps: PoolSteps, residuals: Sequence[Residual]
) -> list[StepShape]:
    """Steps that ran, to be measured anew: of each kind and size whose misprice cost a notable share of the time, the
    worst first, up to PER_CLASS that are typical of it (not its outliers) and differ from each other."""
    shapes = [shape for replayed in replays for shape in replayed.shapes]
    if not shapes:
        return []
    features = np.concatenate([replayed.features for replayed in replays])
    seconds = np.concatenate([replayed.seconds for replayed in replays])
    priced = np.concatenate([steps.priced_s(replayed) for replayed in replays])
    log_error = np.log(seconds / priced)
    kinds, octave = classes_of(features)
    found: list[StepShape] = []
    for row in sorted(residuals, key=lambda r: -abs(r.error) * r.busy_share):
        if abs(row.error) * row.busy_share < NOTABLE:
            break
        members = np.flatnonzero((kinds == row.kind) & (1 << octave == row.tokens_from))
        own = members[np.argsort(np.abs(log_error[members] - np.median(log_error[members])), kind="stable")]
        found += _spread_out([shapes[i] for i in own.tolist()], PER_CLASS)
    return found[:MOST_POINTS]


def _spread_out(shapes: Sequence[StepShape], count: int) -> list[StepShape]:
    """The first `count` that are unlike those before them in tokens or rows."""
    seen: set[tuple[int, int]] = set()
    found: list[StepShape] = []
    for shape in shapes:
        tokens = len(shape.decode_contexts) + sum(chunk.query_tokens for chunk in shape.chunks)
        key = (tokens, len(shape.decode_contexts))
        if key not in seen:
            seen.add(key)
            found.append(shape)
        if len(found) == count:
            break
    return found
