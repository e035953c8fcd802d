"""The same step-time law, slower or faster as a whole."""

from __future__ import annotations

from calibration.steptime import StepTimeArrays
from calibration.steptime.scalar import (
    CHECK_TOLERANCE,
    CHUNK_CHECK_SHARE,
    DECODE_CHECK_SHARE,
    FLOOR_4,
)


def scaled(model: StepTimeArrays, factor: float) -> StepTimeArrays:
    """Every step takes `factor` times as long; what is covered stays as it is."""
    if factor == 1.0:
        return model
    theta = model.theta * factor
    theta[FLOOR_4] = model.theta[FLOOR_4] * factor**4
    for share in (CHECK_TOLERANCE, DECODE_CHECK_SHARE, CHUNK_CHECK_SHARE):
        theta[share] = model.theta[share]
    return model._replace(
        theta=theta,
        decode_tokens_s=model.decode_tokens_s * factor,
        chunk_tokens_s=model.chunk_tokens_s * factor,
        residual_s=model.residual_s * factor,
        check_decode_s=model.check_decode_s * factor,
        check_chunk_s=model.check_chunk_s * factor,
        check=model.check * factor,
    )
