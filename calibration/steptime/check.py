"""The check model: a second opinion on the law, of another family and with a unique optimum.

Non-negative least squares (Lawson and Hanson 1974) of relative errors on a monotone piecewise-linear function of
the tokens and the attention features taken linearly. It is never negative and never decreases in a feature,
has no start points and no knee to get wrong; what it lacks is the law's shape between points. Where the two
differ by more than the tolerance, neither is to be believed and the step counts as not measured.

    t = c + sum_j r_j * ramp_j(n) + h*stairs(n) + b + S + [C + cmax] or [1 + b + C + P + kvm], each with a price
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from calibration.steptime.law import Tokens
from calibration.steptime.shapes import StepFeatures

Floats = NDArray[np.float64]

TOLERANCE = 0.10
MAX_KNOTS = 9
_RIDGE = 1e-6  # of a column's scale: makes the optimum unique where columns coincide


@dataclass(frozen=True, slots=True)
class CheckModel:
    """Knots in tokens, the seconds at them, seconds per token of stairs, and per unit of each feature."""

    knots: tuple[float, ...]
    knot_s: tuple[float, ...]  # cumulated, hence never decreasing
    stairs_s: float
    prices: tuple[float, ...]  # order of scalar.CHECK_*

    def tokens_s(self, n: Floats, tokens: Tokens) -> Floats:
        """The part that depends on n alone, flat outside the knots."""
        return np.asarray(np.interp(n, self.knots, self.knot_s) + self.stairs_s * tokens.stairs(n))

    def predict_s(self, features: StepFeatures, tokens: Tokens) -> Floats:
        return np.asarray(self.tokens_s(tokens.padded(features), tokens) + _columns(features) @ np.array(self.prices))


def fit_check(features: StepFeatures, seconds: Floats, tokens: Tokens) -> CheckModel:
    """Least squares of (model/measured - 1) over `seconds` [s]; weights none, starts none."""
    n = tokens.padded(features)
    knots = token_knots(n)
    low, high = knots[:-1], knots[1:]
    ramps = np.clip((n[:, None] - low) / (high - low), 0.0, 1.0) if len(knots) > 1 else np.zeros((len(n), 0))
    matrix = np.column_stack([np.ones(len(n)), ramps, tokens.stairs(n), _columns(features)])
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    relative = matrix / scale / seconds[:, None] * np.median(seconds)
    size = matrix.shape[1]
    rows = np.vstack([relative, _RIDGE * np.eye(size)])
    solution, _ = nnls(rows, np.r_[np.full(len(n), 1.0), np.zeros(size)])
    solution = solution / scale * np.median(seconds)
    split = 1 + len(low)
    return CheckModel(
        tuple(knots.tolist()),
        tuple(np.cumsum(solution[:split]).tolist()),
        float(solution[split]),
        tuple(solution[split + 1 :].tolist()),
    )


def token_knots(n: Floats) -> Floats:
    """Knots from smallest to largest n: powers of two thinned so that each interval holds at least two n."""
    values = np.unique(n)
    inner = 2.0 ** np.arange(1, 24)
    knots = [values[0]]
    for knot in inner[(inner > values[0]) & (inner < values[-1])]:
        between = np.sum((values > knots[-1]) & (values <= knot))
        if between >= 2 and np.any(values > knot):
            knots.append(knot)
    if values[-1] > knots[-1]:
        knots.append(values[-1])
    thinned = np.array(knots)
    if len(thinned) > MAX_KNOTS:
        thinned = thinned[np.unique(np.linspace(0, len(thinned) - 1, MAX_KNOTS).round().astype(int))]
    return thinned


def _columns(features: StepFeatures) -> Floats:
    """Feature columns [steps, scalar.CHECK_SIZE]."""
    f = features
    chunk = f.has_chunk.astype(np.float64)
    decode = 1.0 - chunk
    return np.stack(
        [f.b, f.S, decode * f.C, decode * f.cmax, chunk, chunk * f.b, chunk * f.C, f.P, f.kvm], axis=-1
    )
