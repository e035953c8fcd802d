"""Does more work ever get cheaper? Random steps inside the measured box, each with one thing added.

The law and its staircase never fall, and clipping to the box keeps order, so a fitted model has no violation;
only the small-batch table may lower a measured decode batch, and says so by being there.
"""

from __future__ import annotations

import numpy as np

from calibration.steptime.model import StepTimeModel
from calibration.steptime.shapes import Chunk, StepShape, features_of


def monotonicity_violations(model: StepTimeModel, *, points: int = 500, seed: int = 0) -> int:
    """How many of `points` random steps take longer than the same step with more work in it."""
    rng = np.random.default_rng(seed)
    most_rows, most_tokens = int(model.hull.high[1]), int(model.hull.high[0])
    longest = int(max(model.hull.high[4], model.hull.high[6]))
    smaller, larger = [], []
    for _ in range(points):
        b = int(np.exp(rng.uniform(0, np.log(most_rows + 1)))) if most_rows else 0
        contexts = [int(c) for c in np.exp(rng.uniform(0, np.log(longest + 1), b))]
        q = int(np.exp(rng.uniform(0, np.log(most_tokens + 1))))
        p = int(np.exp(rng.uniform(0, np.log(longest + 1)))) - 1
        chunked = b == 0 or (model.hull.high[5] > 0 and rng.random() < 0.7)
        chunks = (Chunk(q, p),) if chunked else ()
        smaller.append(StepShape(tuple(contexts), chunks))
        added = int(rng.integers(4))
        more = 1 + int(np.exp(rng.uniform(0, 6)))
        if added == 0 and contexts:
            contexts[0] += more
        elif added == 1 or not chunked:
            contexts.append(int(rng.integers(1, longest + 1)))
        else:
            chunks = (Chunk(q + more, p),) if added == 2 else (Chunk(q, p + more),)
        larger.append(StepShape(tuple(contexts), chunks))
    before, after = model.predict_s(features_of(smaller)), model.predict_s(features_of(larger))
    return int(np.sum(after < before * (1 - 1e-12)))
