"""Where a calibration has measured: the box and the convex hull of its points, in a form cheap to ask.

A step is inside when every feature lies between its measured minimum and maximum and its point
(log1p n, log1p C, log1p P) lies in the convex hull of the measured ones. Decode-only steps all lie on the face
P = 0, where the hull is, for each whole n, an interval of C: two comparisons and no logarithm.

Three inferences widen it, each from a measured step to one that costs nearly the same. The first two start
from steps of which attention is a small share (SMALL_SHARE), so that no more than this share is at stake:
 * less attention at the same n: fewer query-key pairs (several short prompts instead of a long one) or shorter
   decode contexts cost less, and at most that share less;
 * a chunk of one token after c cached ones does a decode's work: a decode step stands for b such chunks (the
   last tokens of a prompt) with C = 0 and P = C + b;
 * no row need sample (S from 0): the price of a logit row is known and never negative.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import ConvexHull

from calibration.steptime.shapes import StepFeatures

Floats = NDArray[np.float64]

#: Largest share of a step's time that attention may have for the step to stand for one with less of it.
SMALL_SHARE = 0.10
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
        low = np.where(inside, np.expm1(_chain(x, at, lower=True)), np.inf)
        high = np.where(inside, np.expm1(_chain(x, at, lower=False)), -np.inf)
        # Contexts are whole tokens: a hair of slack must neither add nor lose one.
        return np.where(inside, low - _SLACK * (1 + low), low), np.where(inside, high + _SLACK * (1 + high), high)


def build_hull(features: StepFeatures, attention_share: Floats) -> Hull:
    """Hull of the fitted points. `attention_share`: share of each step's seconds spent in its attention."""
    matrix = features.matrix()
    low, high = matrix.min(axis=0), matrix.max(axis=0)
    low[2] = 0.0
    chunk = features.has_chunk
    small = attention_share <= SMALL_SHARE
    fewer = features[chunk & small]
    alike = features[~chunk & small]
    none = np.zeros(len(alike))
    points = [np.column_stack([features.n, features.C, features.P])]
    points.append(np.column_stack([fewer.n, fewer.C, fewer.n - fewer.b]))
    points.append(np.column_stack([alike.n, none, none]))
    points.append(np.column_stack([alike.n, none, alike.C + alike.b]))
    decode = np.column_stack([np.r_[features.n[~chunk], alike.n], np.r_[features.C[~chunk], none]])
    if len(alike):
        low[[3, 4]] = 0.0
        if chunk.any():
            low[[1, 6]] = 0.0
    facets = _facets(np.log1p(np.vstack(points))) if chunk.any() else np.zeros((0, 4))
    return Hull(low, high, facets, decode)


def _facets(points: Floats) -> Floats:
    """Half-spaces [F, 4] of the convex hull of `points` [N, 3], also where they span less than three directions.

    A direction they do not span is bounded by two planes at their extent.
    """
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
