"""The same step times with another price for decode attention inside steps that have a chunk.

Engines differ there more than anywhere else (calibration.engines); everything else of a step stays what was
measured. Both the law and the check model are scaled, so that they do not come to differ where they agreed.
"""

from __future__ import annotations

from calibration.steptime.scalar import CHECK_MIXED_C, CHECK_SIZE, MIXED_DECODE_S, StepTimeArrays


def with_mixed_attention(arrays: StepTimeArrays, factor: float) -> StepTimeArrays:
    """`arrays` with decode attention in steps with a chunk costing `factor` (> 0) times as much."""
    if factor == 1.0:
        return arrays
    theta, check = arrays.theta.copy(), arrays.check.copy()
    theta[MIXED_DECODE_S] *= factor
    check[CHECK_MIXED_C] *= factor
    check[CHECK_SIZE:] *= factor  # the surface over decode rows and contexts
    return arrays._replace(theta=theta, check=check)
