"""Small decode batches are not smooth on a CPU: 1 to 4 rows took 14, 26, 31, 23 ms, reproducibly.

No smooth law shows this and no planner may miss it, so the fit carries a table of seconds to add for
n = 1..16 in steps without a chunk. It holds only the residual beyond what is usual (a point's own noise, and
the size of the other points' left-out residuals), never more than BOUND of the step, and is empty where nothing
was repeated: a residual of unknown noise is no evidence.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibration.steptime.solving import Data

Floats = NDArray[np.float64]

LARGEST = 16
BOUND = 0.5  # share of the fastest step of that batch size: no step comes out near nothing
NOISE_FLOOR = 0.02  # relative: a median of few repeats is never better known than this


def small_batch_table(data: Data, predicted_s: Floats, left_out: Floats) -> Floats:
    """Seconds to add at n = 0..: [<= LARGEST + 1], empty where no small batch departs from the law.

    `predicted_s`: without the table. `left_out`: log(measured/model) of every point by refits that did not see it.
    """
    small = (data.group == 0) & (data.features.n <= LARGEST) & np.isfinite(data.noise)
    rows = data.take(np.flatnonzero(small))
    if not len(rows):
        return np.zeros(0)
    model = predicted_s[small]
    excess = rows.seconds - model
    usual = float(np.median(np.abs(left_out[~small]))) if not small.all() else 0.0
    noise = np.maximum(rows.noise, max(usual, NOISE_FLOOR)) * rows.seconds
    beyond = np.sign(excess) * np.maximum(0.0, np.abs(excess) - noise)
    sizes = np.unique(rows.features.n)
    least = np.array([model[rows.features.n == n].min() for n in sizes])
    bound = BOUND * least[np.searchsorted(sizes, rows.features.n)]
    bounded = np.clip(beyond, -bound, bound)
    medians = np.array([np.median(bounded[rows.features.n == n]) for n in sizes])
    if not np.any(medians):
        return np.zeros(0)
    at = np.arange(sizes[-1] + 1)  # unmeasured sizes lie on the line between their neighbours
    return np.asarray(np.interp(at, sizes, medians, left=0.0))
