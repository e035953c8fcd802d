"""Which rows of a large table to fit: chosen by shape alone, never by time, so that the rest can judge the fit.

Kinds get fixed shares (pure decode is most of a real run and few of the rows of a table). Within a kind, points
are spread in the logarithms of its counts, in two halves. The first is taken farthest first (Gonzalez 1985): the
corners, which make the hull. Forty points in four dimensions would then all be corners, with no chunk of a middle
size among them; so the second half fills every single count's range as well (MaxPro, Joseph et al. 2015: the
product of the distances along each). The seed breaks ties and picks the beginning. No kind is ever chosen whole:
a third of its rows stays to be scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from calibration.steptime.samples import StepSample
from calibration.steptime.shapes import StepFeatures, StepShape, features_of

Floats = NDArray[np.float64]

#: Share of the fitted points that each kind gets, where it has that many.
SHARES = {"decode": 0.28, "prefill": 0.22, "mixed": 0.50}
LARGEST_PART = 2 / 3  # of a kind's rows
CORNER_PART = 0.5  # of the points of a kind
_NEAR = 0.1  # distance, of a coordinate's range, below which two points share its value
_CORNER_JITTER = 1e-3  # of a coordinate's range: breaks ties among the corners of a grid
_FILL_JITTER = 0.03  # a part of a step of a grid: seeds fill the inside differently


def choose_points(samples: Sequence[StepSample], count: int, seed: int = 0) -> list[StepSample]:
    """The same samples in the same order, `count` of them (fewer if few) with role "fit", the rest "heldout"."""
    chosen = set(chosen_rows([s.shape for s in samples], count, seed).tolist())
    return [replace(s, role="fit" if i in chosen else "heldout") for i, s in enumerate(samples)]


def chosen_rows(shapes: Sequence[StepShape], count: int, seed: int = 0) -> NDArray[np.int64]:
    """Indices of the shapes to fit, growing."""
    rng = np.random.default_rng(seed)
    features = features_of(shapes)
    kinds = np.array([shape.kind for shape in shapes])
    rows = {kind: np.flatnonzero(kinds == kind) for kind in SHARES}
    picked = [
        rows[kind][_spread(_coordinates(features[rows[kind]]), size, rng)]
        for kind, size in _sizes({kind: len(r) for kind, r in rows.items()}, count).items()
        if size
    ]
    return np.sort(np.concatenate(picked)) if picked else np.zeros(0, dtype=np.int64)


def in_domain(shape: StepShape, tokens: int) -> bool:
    """Whether the step's contexts, prefixes and chunks are at most `tokens` together."""
    return sum(tokens_held(shape)) <= tokens


def tokens_held(shape: StepShape) -> tuple[int, int]:
    """Tokens of KV that the step's decodes have, and that its chunks have once they are computed."""
    chunks = sum(c.cached_tokens + c.query_tokens for c in shape.chunks)
    return sum(shape.decode_contexts), chunks


def _sizes(available: dict[str, int], count: int) -> dict[str, int]:
    """How many of each kind: by share, what a kind cannot give going to the others."""
    most = {kind: int(np.ceil(LARGEST_PART * n)) for kind, n in available.items()}
    count = min(count, sum(most.values()))
    sizes = dict.fromkeys(available, 0)
    left = count
    while left > 0:
        open_kinds = [kind for kind in sizes if sizes[kind] < most[kind]]
        total = sum(SHARES[kind] for kind in open_kinds)
        grown = {kind: min(most[kind], sizes[kind] + int(left * SHARES[kind] / total)) for kind in open_kinds}
        if grown == {
            kind: sizes[kind] for kind in open_kinds
        }:  # fewer left than kinds: one each, largest share first
            for kind in sorted(open_kinds, key=lambda k: -SHARES[k])[:left]:
                grown[kind] = sizes[kind] + 1
        sizes |= grown
        left = count - sum(sizes.values())
    return sizes


def _coordinates(features: StepFeatures) -> Floats:
    """[rows, 4] logarithms of chunk tokens, mean prefix, decode rows and longest context, each over its range."""
    f = features
    tokens = f.n - f.b
    prefix = np.where(tokens > 0, f.P / np.maximum(tokens, 1) - (tokens + 1) / 2, 0.0)
    logs = np.log1p(np.maximum(np.stack([tokens, prefix, f.b, f.cmax], axis=-1), 0.0))
    extent = np.ptp(logs, axis=0)
    return np.asarray(logs / np.where(extent > 0, extent, 1.0))


def _spread(points: Floats, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Rows of `points` [N, coordinates]: corners first, then what fills each coordinate."""
    varying = points[:, np.ptp(points, axis=0) > 0]
    corners = max(1, round(CORNER_PART * count))
    picked = _farthest_first(varying + rng.normal(0.0, _CORNER_JITTER, varying.shape), corners, rng)
    points = varying + rng.normal(0.0, _FILL_JITTER, varying.shape)
    crowding = np.zeros(len(points))
    for row in picked:
        crowding += _nearness(points, row)
    while len(picked) < count:
        picked.append(int(np.argmin(crowding)))
        crowding += _nearness(points, picked[-1])
    return np.array(picked, dtype=np.int64)


def _nearness(points: Floats, row: int) -> Floats:
    """1 / product of squared distances along each coordinate; infinite for the row itself."""
    near = 1.0 / np.prod((points - points[row]) ** 2 + _NEAR**2, axis=1)
    near[row] = np.inf
    return np.asarray(near)


def _farthest_first(points: Floats, count: int, rng: np.random.Generator) -> list[int]:
    distance = np.linalg.norm(points - points[rng.integers(len(points))], axis=1)
    picked = [int(np.argmax(distance))]
    distance = np.linalg.norm(points - points[picked[0]], axis=1)
    while len(picked) < count:
        picked.append(int(np.argmax(distance)))
        distance = np.minimum(distance, np.linalg.norm(points - points[picked[-1]], axis=1))
    return picked
