"""The step-time model as one cheap scalar function, the form in which the simulation kernel calls it.

A fitted model (`law` has its reasons) becomes flat float64 arrays. All that depends on the token count alone
(weights read, matmul work, tile staircase, graph padding, log1p) is tabulated at every integer n, so that a
decode-only step costs two look-ups, a few multiply-adds and two square roots, with neither pow nor log:

    t = tokens_s[n] + token_s*n + row_s*b + logit_s*S + A                                        seconds
    A = (floor^4 + (decode_s*C)^4 + (longest_s*cmax)^4)^(1/4)                      step without a chunk
    A = mixed_s + mixed_row_s*b + ((kv_s*kvm)^4 + (mixed_decode_s*C + pair_s*P)^4)^(1/4)     with a chunk

(Models fitted before the power was 4 have CUBED above 0 and 3 for it.)
The check model is priced beside it, in steps with a chunk with a surface over rows and contexts; their answers are
averaged, with weight DECODE_CHECK_SHARE or CHUNK_CHECK_SHARE (0: the law alone).
Covered = inside the box of measured features, inside the measured convex hull, and the two within the tolerance
(not asked where the table of small decode batches has an entry: there neither smooth model is to be trusted, and
the table is what was measured).
Decode-only steps lie on the hull's face P = 0, where it is an interval of C for each n; steps with a chunk are
tested against the facets in (log1p n, log1p C, log1p P). Outside the box the features are clipped to it first:
the value returned is that of the nearest measured step, never an extrapolation.
Source: the roofline of Williams et al. 2009 with attention terms; the planner compiles this file's function
with numba as it stands (this module imports neither numba nor numpy at call time).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Meaning of `StepTimeArrays.theta` and `.check`, by index (plain ints: numba freezes them as constants).
TOKEN_S, ROW_S, LOGIT_S = 0, 1, 2
FLOOR_4, DECODE_S, LONGEST_S = 3, 4, 5
MIXED_S, MIXED_ROW_S, KV_S, MIXED_DECODE_S, PAIR_S = 6, 7, 8, 9, 10
CHECK_TOLERANCE, DECODE_CHECK_SHARE, CHUNK_CHECK_SHARE = 11, 12, 13
CUBED = 14
THETA_SIZE = 15
CHECK_ROW, CHECK_LOGIT, CHECK_C, CHECK_CMAX = 0, 1, 2, 3
CHECK_MIXED, CHECK_MIXED_ROW, CHECK_MIXED_C, CHECK_PAIR, CHECK_KV = 4, 5, 6, 7, 8
CHECK_SIZE = 9
#: The check model's surface over decode rows and the sum of their contexts [tokens], in steps with a chunk: knots in
#: both, contexts growing by SURFACE_GROWTH from SURFACE_FIRST on.
SURFACE_FIRST, SURFACE_GROWTH, SURFACE_WIDTH = 64.0, 4.0, 10
SURFACE_ROWS = np.array([0.0, 1, 4, 16, 64, 256, 1024, 4096])
SURFACE_CONTEXTS = np.r_[0.0, SURFACE_FIRST * SURFACE_GROWTH ** np.arange(SURFACE_WIDTH - 1)]
SURFACE_SIZE = (len(SURFACE_ROWS) - 1) * (SURFACE_WIDTH - 1)


class StepTimeArrays(NamedTuple):
    """All a kernel needs to price a step. Tables have one entry per n = 0..N; larger n uses the last one."""

    low: Floats  # [7] smallest measured feature, order of FEATURE_NAMES
    high: Floats  # [7] largest measured feature
    theta: (
        Floats  # [THETA_SIZE] seconds per unit; FLOOR_4 is seconds^4; CHECK_TOLERANCE and the shares ratios
    )
    decode_tokens_s: Floats  # [N+1] k0 + roofline(n), padded n, without a chunk
    chunk_tokens_s: Floats  # [N+1] k0 + roofline(n), with a chunk
    residual_s: Floats  # [<= 17] measured oddities of small decode batches, by n; may be empty
    check_decode_s: Floats  # [N+1] check model, token part, without a chunk
    check_chunk_s: Floats  # [N+1] the same with a chunk
    check: (
        Floats  # [CHECK_SIZE + (B+1) * SURFACE_WIDTH] its seconds per unit; the surface at b = 0..B, or none
    )
    decode_context_low: Floats  # [N+1] smallest C covered at n in a decode-only step (inf: none)
    decode_context_high: Floats  # [N+1] largest C covered there
    log_tokens: Floats  # [N+1] log1p(n)
    facets: Floats  # [F, 4] hull of steps with a chunk: x.f[:3] + f[3] <= 0


def step_seconds(
    m: StepTimeArrays, n: float, b: float, S: float, C: float, cmax: float, P: float, kvm: float
) -> tuple[float, bool]:
    """Seconds of one step with the given features, and whether the calibration covers it.

    Features as in `shapes`; n is a whole number. Compiles unchanged under numba.njit.
    """
    low, high = m.low, m.high
    tokens, rows, logits = n, b, S
    contexts, longest, pairs, walked = C, cmax, P, kvm
    n = min(max(n, low[0]), high[0])
    b = min(max(b, low[1]), high[1])
    S = min(max(S, low[2]), high[2])
    C = min(max(C, low[3]), high[3])
    cmax = min(max(cmax, low[4]), high[4])
    P = min(max(P, low[5]), high[5])
    kvm = min(max(kvm, low[6]), high[6])
    covered = n == tokens and b == rows and logits == S and contexts == C
    covered = covered and cmax == longest and pairs == P and kvm == walked

    theta = m.theta
    check = m.check
    last = m.log_tokens.shape[0] - 1
    i = last if n > last else int(n)
    rows_s = theta[TOKEN_S] * n + theta[ROW_S] * b + theta[LOGIT_S] * S
    check_s = check[CHECK_ROW] * b + check[CHECK_LOGIT] * S
    if P <= 0.0:
        d = theta[DECODE_S] * C
        c = theta[LONGEST_S] * cmax
        d *= d
        c *= c
        seconds = m.decode_tokens_s[i] + rows_s + math.sqrt(math.sqrt(theta[FLOOR_4] + d * d + c * c))
        check_s += m.check_decode_s[i] + check[CHECK_C] * C + check[CHECK_CMAX] * cmax
        apart = check_s - seconds
        tabulated = i < m.residual_s.shape[0]
        if not tabulated and abs(apart) > theta[CHECK_TOLERANCE] * seconds:
            covered = False
        seconds += theta[DECODE_CHECK_SHARE] * apart
        if not m.decode_context_low[i] <= C <= m.decode_context_high[i]:
            covered = False
        if tabulated:
            seconds += m.residual_s[i]
        return seconds, covered

    x = theta[KV_S] * kvm
    y = theta[MIXED_DECODE_S] * C + theta[PAIR_S] * P
    seconds = m.chunk_tokens_s[i] + rows_s + theta[MIXED_S] + theta[MIXED_ROW_S] * b
    if theta[CUBED] > 0.0:
        norm = x * x * x + y * y * y
        if norm > 0.0:
            seconds += norm ** (1.0 / 3.0)
    else:
        x *= x
        y *= y
        seconds += math.sqrt(math.sqrt(x * x + y * y))
    check_s += m.check_chunk_s[i] + check[CHECK_MIXED] + check[CHECK_MIXED_ROW] * b
    check_s += check[CHECK_MIXED_C] * C + check[CHECK_PAIR] * P + check[CHECK_KV] * kvm
    surfaced = (check.shape[0] - CHECK_SIZE) // SURFACE_WIDTH
    if surfaced > 0:
        at = CHECK_SIZE + min(int(b), surfaced - 1) * SURFACE_WIDTH
        left, right = 0.0, SURFACE_FIRST
        for _ in range(SURFACE_WIDTH - 2):
            if right >= C:
                break
            left, right = right, right * SURFACE_GROWTH
            at += 1
        part = min((C - left) / (right - left), 1.0)
        check_s += check[at] + part * (check[at + 1] - check[at])
    apart = check_s - seconds
    if abs(apart) > theta[CHECK_TOLERANCE] * seconds:
        covered = False
    seconds += theta[CHUNK_CHECK_SHARE] * apart
    if covered:
        facets = m.facets
        ln = m.log_tokens[i]
        lc = math.log1p(C)
        lp = math.log1p(P)
        for k in range(facets.shape[0]):
            if facets[k, 0] * ln + facets[k, 1] * lc + facets[k, 2] * lp + facets[k, 3] > 0.0:
                covered = False
                break
    return seconds, covered


def constant_model(seconds: float) -> StepTimeArrays:
    """Every step takes `seconds` and is covered: for tests of what stands on the model."""
    return linear_model(base_s=seconds)


def linear_model(
    base_s: float = 0.0,
    *,
    token_s: float = 0.0,
    row_s: float = 0.0,
    logit_s: float = 0.0,
    decode_context_s: float = 0.0,
    mixed_s: float = 0.0,
    pair_s: float = 0.0,
) -> StepTimeArrays:
    """t = base + token*n + row*b + logit*S + decode_context*C, with a chunk + mixed + pair*P; covers all.

    Decode contexts cost the same with and without a chunk. Seconds per unit, for tests of what stands on it.
    """
    theta = np.zeros(THETA_SIZE)
    theta[[TOKEN_S, ROW_S, LOGIT_S]] = token_s, row_s, logit_s
    theta[[DECODE_S, MIXED_DECODE_S]] = decode_context_s
    theta[[MIXED_S, PAIR_S]] = mixed_s, pair_s
    theta[CHECK_TOLERANCE] = np.inf
    one, inf = np.zeros(1), np.full(1, np.inf)
    base = np.full(1, float(base_s))
    return StepTimeArrays(
        low=np.full(7, -np.inf),
        high=np.full(7, np.inf),
        theta=theta,
        decode_tokens_s=base,
        chunk_tokens_s=base,
        residual_s=np.zeros(0),
        check_decode_s=one,
        check_chunk_s=one,
        check=np.zeros(CHECK_SIZE),
        decode_context_low=-inf,
        decode_context_high=inf,
        log_tokens=one,
        facets=np.zeros((0, 4)),
    )
