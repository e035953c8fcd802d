"""The check model: a second opinion on the law, of another family and with a unique optimum.

Non-negative least squares (Lawson and Hanson 1974) of relative errors on a monotone piecewise-linear function of
the tokens and the attention features taken linearly. It is never negative and never decreases in a feature,
has no start points and no knee to get wrong; what it lacks is the law's shape between points. Where the two
differ by more than the tolerance, neither is to be believed and the step counts as not measured. Within it, the
prediction may be an average of the two: of models of different families each misses what the other has.

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
GROWTH = 1.8
MAX_KNOTS = 12
_RIDGE = 1e-6  # of a column's scale: makes the optimum unique where columns coincide


@dataclass(frozen=True, slots=True, eq=False)
class CheckModel:
    """Knots in tokens and what the fit found: [seconds at each knot, seconds per token of stairs, prices].

    The seconds at the knots never decrease; prices are in the order of scalar.CHECK_*.
    """

    knots: Floats
    values: Floats

    @property
    def prices(self) -> Floats:
        return self.values[len(self.knots) + 1 :]

    def tokens_s(self, n: Floats, tokens: Tokens) -> Floats:
        """The part that depends on n alone, flat outside the knots."""
        count = len(self.knots)
        return np.asarray(
            np.interp(n, self.knots, self.values[:count]) + self.values[count] * tokens.stairs(n)
        )

    def predict_s(self, features: StepFeatures, tokens: Tokens) -> Floats:
        return np.asarray(self.tokens_s(tokens.padded(features), tokens) + _columns(features) @ self.prices)


def fit_check(
    features: StepFeatures,
    seconds: Floats,
    tokens: Tokens,
    knots: Floats | None = None,
    weights: Floats | None = None,
) -> CheckModel:
    """Least squares of (model/measured - 1) over `seconds` [s]; `knots` as given or from n; `weights` of points."""
    n = tokens.padded(features)
    knots = token_knots(n) if knots is None else knots
    low, high = knots[:-1], knots[1:]
    ramps = np.clip((n[:, None] - low) / (high - low), 0.0, 1.0)
    matrix = np.column_stack([np.ones(len(n)), ramps, tokens.stairs(n), _columns(features)])
    typical = float(np.median(seconds))
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300) / typical
    root = np.ones(len(n)) if weights is None else np.sqrt(weights)
    rows = np.vstack([matrix / scale * (root / seconds)[:, None], _RIDGE * np.eye(matrix.shape[1])])
    solution, _ = nnls(rows, np.r_[root, np.zeros(matrix.shape[1])])
    values = solution / scale
    values[: len(knots)] = np.cumsum(values[: len(knots)])
    return CheckModel(knots, values)


def averaged(law_s: Floats, check_s: Floats, shares: tuple[float, float], chunk: NDArray[np.bool_]) -> Floats:
    """Seconds by both models averaged; `shares` of the check model in steps without and with a chunk."""
    return np.asarray(law_s + np.where(chunk, shares[1], shares[0]) * (check_s - law_s))


def token_knots(n: Floats) -> Floats:
    """Knots at measured n, from the smallest to the largest, each at least GROWTH times the one before.

    A knot where nothing was measured would be free to lie anywhere.
    """
    values = np.unique(n)
    knots = [values[0]]
    for value in values[1:]:
        if value >= GROWTH * knots[-1]:
            knots.append(value)
    if values[-1] > knots[-1]:
        knots = [*(knots[:-1] if len(knots) > 1 else knots), values[-1]]
    if len(knots) > MAX_KNOTS:
        keep = np.unique(np.linspace(0, len(knots) - 1, MAX_KNOTS).round().astype(int))
        knots = [knots[i] for i in keep]
    return np.array(knots)


def _columns(features: StepFeatures) -> Floats:
    """Feature columns [steps, scalar.CHECK_SIZE]."""
    f = features
    chunk = f.has_chunk.astype(np.float64)
    decode = 1.0 - chunk
    return np.stack(
        [f.b, f.S, decode * f.C, decode * f.cmax, chunk, chunk * f.b, chunk * f.C, f.P, f.kvm], axis=-1
    )
