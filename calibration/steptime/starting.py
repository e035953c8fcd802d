"""Where the search for the law's parameters begins, and what it is pulled back to where the data are silent.

A non-negative least-squares solution of the law without its bends (relative errors) gives every slope its
scale. Slopes it puts at zero start at a floor: a parameter that starts at nothing has no gradient in log space
and stays there. The first start is also the centre of the weak prior.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibration.steptime.law import PARAMETERS
from calibration.steptime.shapes import StepFeatures

Floats = NDArray[np.float64]

#: Floor of a slope's start: this share of the fastest step at the feature's largest value.
FLOOR_SHARE = 0.01
#: Shares of the constant part that is not the weights' reading, with exponents (less one) of the knee.
_SPLITS = ((0.3, 1.0), (0.1, 3.0), (0.6, 1.5), (0.3, 0.6))


def starting_points(features: StepFeatures, seconds: Floats) -> list[Floats]:
    """Four parameter vectors (order of law.PARAMETERS) to start from; the first centres the prior."""
    from scipy.optimize import nnls  # here: whoever only reads what was fitted loads no scipy

    f = features
    chunk = f.has_chunk.astype(np.float64)
    decode = 1.0 - chunk
    columns = {
        "constant": np.ones_like(seconds),
        "g": f.n,
        "kb": decode * f.b,
        "kS": f.S,
        "ad": decode * f.C,
        "ac": decode * f.cmax,
        "a1": chunk,
        "km": chunk * f.b,
        "lam": f.kvm,
        "am": chunk * f.C,
        "bp": f.P,
    }
    matrix = np.stack(list(columns.values()), axis=-1)
    scale = np.maximum(matrix.max(axis=0), 1.0)
    solution, _ = nnls(matrix / scale / seconds[:, None], np.ones_like(seconds))
    fastest = float(seconds.min())
    slopes = dict(zip(columns, np.maximum(solution, FLOOR_SHARE * fastest) / scale, strict=True))
    constant = max(slopes.pop("constant"), 0.1 * fastest)
    points = []
    for share, knee in _SPLITS:
        value = slopes | {
            "k0": share * constant,
            "w0": (1 - share) * constant,
            "h": 0.3 * slopes["g"],
            "s": knee,
            "a0": FLOOR_SHARE * fastest,
        }
        points.append(np.array([value[name] for name in PARAMETERS]))
    return points
