"""Where a calibration has measured: the box and the convex hull of its points, in a form cheap to ask.

A step is inside when every feature lies between its measured minimum and maximum and its point
(log1p n, log1p C, log1p P) lies in the convex hull of the measured ones. Decode-only steps all lie on the face
P = 0, where the hull is, for each whole n, an interval of C: two comparisons and no logarithm.

Four inferences widen it, each from a measured step to one that costs nearly the same:
 * less attention at the same n costs less, and no more than its part less: fewer query-key pairs (several short
   prompts instead of a long one) or shorter decode contexts are inside until AT_STAKE of the measured step's
   time has gone;
 * a prompt between two measured lengths has P = n(n+1)/2, which straight edges in log1p miss by CURVE at most;
 * a chunk of one token after c cached ones does a decode's work: a decode step of which attention is no more
   than that stands for b such chunks (the last tokens of a prompt) with C = 0 and P = C + b;
 * no row need sample (S from 0): the price of a logit row is known and never negative.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibration.steptime.shapes import StepFeatures

Floats = NDArray[np.float64]

#: Share of a measured step's time by which a step that it stands for may be cheaper.
AT_STAKE = 0.10
#: Longest step a calibration may cover: the model's tables have one entry per token.
MAX_TOKENS = 2**20
CURVE = 0.03  # of P
_SLACK = 1e-9  # in log units: keeps the measured points themselves inside
_FLAT = 1e-4  # extent below which the points do not span a direction


@dataclass(frozen=True, slots=True)
class Hull:
    """low, high: [7] box; facets: [F, 4], inside where x.f[:3] + f[3] <= 0; decode: [V, 2] corners (n, C)."""

    low: Floats
    high: Floats
    facets: Floats
    decode: Floats

    def decode_interval(self, n: Floats) -> tuple[Floats, Floats]:
        """Smallest and largest C covered at each n in decode-only steps; (inf, -inf) where there is none."""
        if not len(self.decode):
            return np.full(n.shape, np.inf), np.full(n.shape, -np.inf)
        at, x = np.log1p(n), np.log1p(self.decode)
        inside = (at >= x[:, 0].min() - _SLACK) & (at <= x[:, 0].max() + _SLACK)
        # Contexts are whole tokens: a hair of slack must neither add nor lose one.
        low, high = np.expm1(_chain(x, at, lower=True)), np.expm1(_chain(x, at, lower=False))
        low, high = low - _SLACK * (1 + low), high + _SLACK * (1 + high)
        return np.where(inside, low, np.inf), np.where(inside, high, -np.inf)


def build_hull(features: StepFeatures, attention_share: Floats) -> Hull:
    """Hull of the fitted points. `attention_share`: share of each step's seconds spent in its attention."""
    matrix = features.matrix()
    low, high = matrix.min(axis=0), matrix.max(axis=0)
    chunk = features.has_chunk
    kept = np.maximum(0.0, 1.0 - AT_STAKE / np.maximum(attention_share, 1e-9))  # of the pairs or contexts
    fewer = np.maximum(features.P * kept, features.n - features.b)[chunk]
    shorter = (features.C * kept)[~chunk]
    alike = features[~chunk & (attention_share <= AT_STAKE)]
    n, C, P = (matrix[:, i] for i in (0, 3, 5))
    points = [
        np.column_stack([n, C, P])[~chunk],
        np.column_stack([n[chunk], C[chunk], fewer]),
        np.column_stack([n[chunk], C[chunk], P[chunk] * (1 + CURVE)]),
        np.column_stack([n[~chunk], shorter, np.zeros(len(shorter))]),
        np.column_stack([alike.n, np.zeros(len(alike)), alike.C + alike.b]),
    ]
    low[2] = 0.0
    low[[3, 4]] = np.minimum(low[[3, 4]], (matrix[:, [3, 4]] * kept[:, None]).min(axis=0))
    if len(alike) and chunk.any():
        low[[1, 3, 4, 6]] = 0.0
    facets = _facets(np.log1p(np.vstack(points))) if chunk.any() else np.zeros((0, 4))
    decode = np.column_stack([np.r_[n[~chunk], n[~chunk]], np.r_[C[~chunk], shorter]])
    return Hull(low, high, facets, decode)


def _facets(points: Floats) -> Floats:
    """Half-spaces [F, 4] of the convex hull of `points` [N, 3], also where they span less than three directions.

    A direction they do not span is bounded by two planes at their extent.
    """
    from scipy.spatial import ConvexHull  # here: whoever only reads what was fitted loads no scipy

    centre = points.mean(axis=0)
    # Largest extent first; of the 3 x 3 covariance, so that thousands of points cost nothing.
    variances, columns = np.linalg.eigh((points - centre).T @ (points - centre) / len(points))
    extents, axes = np.sqrt(np.maximum(variances[::-1], 0.0)), columns.T[::-1]
    rank = int(np.sum(extents > _FLAT))
    along = (points - centre) @ axes.T
    planes = []
    if rank >= 2:
        equations = ConvexHull(along[:, :rank]).equations  # unit normals and offsets, triangulated
        planes.append(np.column_stack([equations[:, :-1] @ axes[:rank], equations[:, -1]]))
    for axis in range(rank if rank >= 2 else 0, 3):
        low, high = along[:, axis].min(), along[:, axis].max()
        planes.append(np.array([[*axes[axis], -high], [*-axes[axis], low]]))
    facets = np.vstack(planes)
    facets[:, 3] -= facets[:, :3] @ centre
    facets[:, 3] -= np.maximum(0.0, (points @ facets[:, :3].T + facets[:, 3]).max(axis=0)) + _SLACK
    _, first = np.unique(facets.round(9), axis=0, return_index=True)  # coplanar triangles are one facet
    return np.ascontiguousarray(facets[np.sort(first)])


def _chain(x: Floats, at: Floats, *, lower: bool) -> Floats:
    """The lower or upper edge of the convex hull of points `x` [N, 2], at the abscissae `at` (clipped)."""
    sign = 1.0 if lower else -1.0
    corners: list[tuple[float, float]] = []
    for px, py in sorted((float(a), sign * float(b)) for a, b in x):
        if corners and px - corners[-1][0] <= _SLACK:
            continue  # same abscissa: the first, smallest, is the edge's
        while len(corners) > 1:
            (ax, ay), (bx, by) = corners[-2:]
            if (by - ay) * (px - ax) < (py - ay) * (bx - ax):
                break
            corners.pop()
        corners.append((px, py))
    return sign * np.interp(at, [c[0] for c in corners], [c[1] for c in corners])
