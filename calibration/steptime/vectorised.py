"""`scalar.step_seconds` over arrays of steps, with numpy: the same arithmetic, for fits, charts and reports."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibration.steptime import scalar
from calibration.steptime.scalar import StepTimeArrays
from calibration.steptime.shapes import StepFeatures

Floats = NDArray[np.float64]


def steps_seconds(m: StepTimeArrays, features: StepFeatures) -> tuple[Floats, NDArray[np.bool_]]:
    """Seconds of each step and whether the calibration covers it: float64[steps], bool[steps]."""
    asked = features.matrix()
    clipped = np.clip(asked, m.low, m.high)
    covered = np.all(clipped == asked, axis=-1)
    n, b, S, C, cmax, P, kvm = np.moveaxis(clipped, -1, 0)
    i = np.minimum(n, len(m.log_tokens) - 1).astype(np.int64)
    theta, check = m.theta, m.check

    rows = theta[scalar.TOKEN_S] * n + theta[scalar.ROW_S] * b + theta[scalar.LOGIT_S] * S
    d, c = theta[scalar.DECODE_S] * C, theta[scalar.LONGEST_S] * cmax
    decode = m.decode_tokens_s[i] + rows + np.sqrt(np.sqrt(theta[scalar.FLOOR_4] + d**4 + c**4))
    x = theta[scalar.KV_S] * kvm
    y = theta[scalar.MIXED_DECODE_S] * C + theta[scalar.PAIR_S] * P
    fixed = theta[scalar.MIXED_S] + theta[scalar.MIXED_ROW_S] * b
    walked = (x**3 + y**3) ** (1.0 / 3.0) if theta[scalar.CUBED] > 0 else np.sqrt(np.sqrt(x**4 + y**4))
    mixed = m.chunk_tokens_s[i] + rows + fixed + walked
    chunk = P > 0
    seconds = np.where(chunk, mixed, decode)

    check_rows = check[scalar.CHECK_ROW] * b + check[scalar.CHECK_LOGIT] * S
    check_decode = m.check_decode_s[i] + check[scalar.CHECK_C] * C + check[scalar.CHECK_CMAX] * cmax
    check_mixed = m.check_chunk_s[i] + check[scalar.CHECK_MIXED] + check[scalar.CHECK_MIXED_ROW] * b
    check_mixed += (
        check[scalar.CHECK_MIXED_C] * C + check[scalar.CHECK_PAIR] * P + check[scalar.CHECK_KV] * kvm
    )
    check_mixed += _surface_s(check, b, C)
    apart = check_rows + np.where(chunk, check_mixed, check_decode) - seconds
    small = ~chunk & (i < len(m.residual_s))
    if np.isfinite(theta[scalar.CHECK_TOLERANCE]):
        covered &= small | (np.abs(apart) <= theta[scalar.CHECK_TOLERANCE] * seconds)
    share = np.where(chunk, theta[scalar.CHUNK_CHECK_SHARE], theta[scalar.DECODE_CHECK_SHARE])
    seconds = seconds + share * apart

    in_face = (m.decode_context_low[i] <= C) & (m.decode_context_high[i] >= C)
    in_hull = np.ones(len(n), dtype=bool)
    if len(m.facets) and chunk.any():
        points = np.stack([m.log_tokens[i], np.log1p(C), np.log1p(P)], axis=-1)
        in_hull = np.all(points @ m.facets[:, :3].T + m.facets[:, 3] <= 0.0, axis=-1)
    covered &= np.where(chunk, in_hull, in_face)

    if len(m.residual_s):
        seconds = seconds + np.where(small, m.residual_s[np.minimum(i, len(m.residual_s) - 1)], 0.0)
    return seconds, covered


def _surface_s(check: Floats, b: Floats, C: Floats) -> Floats:
    """The check model's surface at b rows with contexts C; 0 where it has none."""
    surface = check[scalar.CHECK_SIZE :].reshape(-1, scalar.SURFACE_WIDTH)
    if not len(surface):
        return np.zeros(len(b))
    knots = scalar.SURFACE_CONTEXTS
    at = np.clip(np.searchsorted(knots, C) - 1, 0, len(knots) - 2)
    part = np.minimum((C - knots[at]) / (knots[at + 1] - knots[at]), 1.0)
    row = np.minimum(b, len(surface) - 1).astype(np.int64)
    return np.asarray(surface[row, at] + part * (surface[row, at + 1] - surface[row, at]))
