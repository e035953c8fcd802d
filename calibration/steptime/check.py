"""The check model: a second opinion on the law, of another family and with a unique optimum.

Non-negative least squares (Lawson and Hanson 1974) of relative errors on a monotone piecewise-linear function of
the tokens and the attention features taken linearly. It is never negative and never decreases in a feature,
has no start points and no knee to get wrong; what it lacks is the law's shape between points. Where the two
differ by more than the tolerance, neither is to be believed and the step counts as not measured. Within it, the
prediction may be an average of the two: of models of different families each misses what the other has.

    t = c + sum_j r_j * ramp_j(n) + h*stairs(n) + b + S + [C + cmax] or [1 + b + C + P + kvm + s(b, C)]

each with a price. Decode attention beside a chunk is no line: few long rows leave most of a device idle, many short
ones pad every row to a tile. Where samples are enough to show it, s is a surface over rows and contexts (products of
ramps with prices >= 0: it never falls either), and n has a knot at almost every measured size. Cross-validation says
whether they are (`Detail`); relative least squares then leaves no bias in the times that a simulation adds up. Of fewer
samples each bends the lines near it, and one that was measured in a slow minute would bend them away from the law:
they are weighted anew by their own errors, to the law's soft-L1 loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import cast

import numpy as np
from numpy.typing import NDArray

from calibration.steptime.law import Tokens
from calibration.steptime.scalar import CHECK_SIZE, SURFACE_CONTEXTS, SURFACE_ROWS, SURFACE_SIZE
from calibration.steptime.shapes import StepFeatures

Floats = NDArray[np.float64]

TOLERANCE = 0.10
GROWTH = 1.8
MAX_KNOTS = 12
MANY_KNOTS = 96  # of the detailed form
POINTS_EACH = 10  # points that a knot of the detailed form takes at least, on average
FLOOR_SHARE = 1e-3  # of the fastest step: no step takes no time
LOSS_SCALE = 0.03  # log ratio at which the loss turns from square to absolute, of the law as well
ROBUST_ROUNDS = 4
_RIDGE = 1e-6  # of a column's scale: makes the optimum unique where columns coincide


class Detail(Enum):
    """What a check model has beside its lines: nothing, the surface, or also many knots."""

    LINES = "lines"
    SURFACE = "surface"
    KNOTS = "surface, many knots"


@dataclass(frozen=True, slots=True, eq=False)
class CheckModel:
    """Knots in tokens and what the fit found: [seconds at each knot, seconds per token of stairs, prices, surface].

    The seconds at the knots never decrease; prices are in the order of scalar.CHECK_*; the surface, if there is
    one, is seconds of each product of ramps over scalar.SURFACE_ROWS and SURFACE_CONTEXTS, all >= 0.
    """

    knots: Floats
    values: Floats

    @property
    def prices(self) -> Floats:
        start = len(self.knots) + 1
        return self.values[start : start + CHECK_SIZE]

    @property
    def surface(self) -> Floats:
        """[SURFACE_SIZE], or [0] without one."""
        return self.values[len(self.knots) + 1 + CHECK_SIZE :]

    def surface_s(self, rows: Floats) -> Floats:
        """Seconds at each of `rows` and of SURFACE_CONTEXTS: [rows, contexts]; [0, contexts] without a surface."""
        if not len(self.surface):
            return np.zeros((0, len(SURFACE_CONTEXTS)))
        steps = self.surface.reshape(len(SURFACE_ROWS) - 1, len(SURFACE_CONTEXTS) - 1)
        return np.asarray(_ramps(rows, SURFACE_ROWS) @ steps @ _ramps(SURFACE_CONTEXTS, SURFACE_CONTEXTS).T)

    def tokens_s(self, n: Floats, tokens: Tokens) -> Floats:
        """The part that depends on n alone, flat outside the knots."""
        count = len(self.knots)
        return np.asarray(
            np.interp(n, self.knots, self.values[:count]) + self.values[count] * tokens.stairs(n)
        )

    def predict_s(self, features: StepFeatures, tokens: Tokens) -> Floats:
        found = self.tokens_s(tokens.padded(features), tokens) + _columns(features) @ self.prices
        return np.asarray(found + _surface(features) @ self.surface if len(self.surface) else found)


def fit_check(
    features: StepFeatures,
    seconds: Floats,
    tokens: Tokens,
    knots: Floats | None = None,
    weights: Floats | None = None,
    detail: Detail = Detail.LINES,
) -> CheckModel:
    """Least squares of (model/measured - 1) over `seconds` [s]; `knots` as given or from n; `weights` of points."""
    n = tokens.padded(features)
    knots = token_knots(n, detail) if knots is None else knots
    matrix = np.column_stack([np.ones(len(n)), _ramps(n, knots), tokens.stairs(n), _columns(features)])
    if detail is not Detail.LINES:
        matrix = np.column_stack([matrix, _surface(features)])
    typical = float(np.median(seconds))
    largest = np.abs(matrix).max(axis=0)
    used = largest > 0
    scale = largest[used] / typical
    base = matrix[:, used] / scale / seconds[:, None]
    floor_s = FLOOR_SHARE * float(seconds.min())
    target = 1.0 - floor_s / seconds
    trust = np.ones(len(n)) if weights is None else weights
    root = np.sqrt(trust)
    for _ in range(1 if detail is Detail.KNOTS else 1 + ROBUST_ROUNDS):
        rows = np.vstack([base * root[:, None], _RIDGE * np.eye(len(scale))])
        found = _not_negative(rows, np.r_[root * target, np.zeros(len(scale))])
        root = np.sqrt(trust / np.hypot(1.0, (base @ found - target) / LOSS_SCALE))
    values = np.zeros(matrix.shape[1])
    values[used] = found / scale
    values[: len(knots)] = np.cumsum(values[: len(knots)]) + floor_s
    return CheckModel(knots, values)


def _not_negative(rows: Floats, wanted: Floats) -> Floats:
    """Least squares with no negative coefficient; of many rows, by their triangular factor (the same problem)."""
    from scipy.optimize import nnls  # here: whoever only reads what was fitted loads no scipy

    if len(rows) > 2 * rows.shape[1]:
        triangle = cast("Floats", np.linalg.qr(np.column_stack([rows, wanted]), mode="r"))
        rows, wanted = triangle[:, :-1], triangle[:, -1]
    solution, _ = nnls(rows, wanted, maxiter=30 * rows.shape[1])
    return np.asarray(solution)


def _ramps(x: Floats, knots: Floats) -> Floats:
    """[x, knots - 1]: 0 up to a knot, 1 from the next one on."""
    return np.asarray(np.clip((x[:, None] - knots[:-1]) / np.diff(knots), 0.0, 1.0))


def averaged(law_s: Floats, check_s: Floats, shares: tuple[float, float], chunk: NDArray[np.bool_]) -> Floats:
    """Seconds by both models averaged; `shares` of the check model in steps without and with a chunk."""
    return np.asarray(law_s + np.where(chunk, shares[1], shares[0]) * (check_s - law_s))


def token_knots(n: Floats, detail: Detail = Detail.LINES) -> Floats:
    """Knots at measured n, from the smallest to the largest, each at least GROWTH times the one before; of the form
    with many knots as many as POINTS_EACH allows.

    A knot where nothing was measured would be free to lie anywhere.
    """
    values = np.unique(n)
    many = min(MANY_KNOTS, len(n) // POINTS_EACH) if detail is Detail.KNOTS else 0
    growth, most = (1.0, many) if many > MAX_KNOTS else (GROWTH, MAX_KNOTS)
    knots = [values[0]]
    for value in values[1:]:
        if value >= growth * knots[-1]:
            knots.append(value)
    if values[-1] > knots[-1]:
        knots = [*(knots[:-1] if len(knots) > 1 else knots), values[-1]]
    if len(knots) > most:
        keep = np.unique(np.linspace(0, len(knots) - 1, most).round().astype(int))
        knots = [knots[i] for i in keep]
    return np.array(knots)


def details_for(points: int) -> tuple[Detail, ...]:
    """The forms that so many points may tell apart."""
    return tuple(Detail) if points // POINTS_EACH > MAX_KNOTS else (Detail.LINES, Detail.SURFACE)


def _columns(features: StepFeatures) -> Floats:
    """Feature columns [steps, scalar.CHECK_SIZE]."""
    f = features
    chunk = f.has_chunk.astype(np.float64)
    decode = 1.0 - chunk
    return np.stack(
        [f.b, f.S, decode * f.C, decode * f.cmax, chunk, chunk * f.b, chunk * f.C, f.P, f.kvm], axis=-1
    )


def _surface(features: StepFeatures) -> Floats:
    """[steps, SURFACE_SIZE]: products of ramps over rows and contexts, in steps with a chunk."""
    rows, contexts = _ramps(features.b, SURFACE_ROWS), _ramps(features.C, SURFACE_CONTEXTS)
    product = rows[:, :, None] * contexts[:, None, :] * features.has_chunk[:, None, None]
    return np.asarray(product.reshape(len(rows), SURFACE_SIZE))
