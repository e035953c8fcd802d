"""A histogram of gaps between tokens, with a stated error.

A simulation emits one gap per token: tens of millions, too many to keep. They are counted in bins that split
every power of two into 128 equal parts, as HdrHistogram does, so a bin is at most 1/128 of its lower edge wide.
A gap is reported as the middle of its bin, which is off by at most 1/256 = 0.39 % of the gap. The bin is read off
the float's own bits (exponent and the first 7 bits of the mantissa), so no logarithm is taken and the plain
Python and the compiled simulator agree bit for bit. Gaps below 2**-20 s (about 1 us) fall in the first bin, gaps
of 2**20 s (12 days) or more in the last. Unit: seconds.
"""

from __future__ import annotations

import struct

import numpy as np

from planner.simulation.arrays import Floats, Ints

RELATIVE_ERROR = 1.0 / 256.0
MANTISSA_SHIFT = 45  # 52 bits of mantissa, 7 kept
LOWEST_EXPONENT = -20
HIGHEST_EXPONENT = 20
FIRST_BIN = (1023 + LOWEST_EXPONENT) << 7
GAP_BINS = ((HIGHEST_EXPONENT - LOWEST_EXPONENT) << 7) + 1


def gap_bin(gap_s: float) -> int:
    """The bin of one gap. The kernel has the same three lines over an array's bits."""
    (bits,) = struct.unpack("<q", struct.pack("<d", gap_s))
    position: int = (bits >> MANTISSA_SHIFT) - FIRST_BIN
    return min(max(position, 0), GAP_BINS - 1)


def bin_middles_s() -> Floats:
    """Middle of every bin, float64[GAP_BINS], seconds."""
    keys = np.arange(GAP_BINS, dtype=np.int64) + FIRST_BIN
    lower = (keys << MANTISSA_SHIFT).view(np.float64)
    upper = ((keys + 1) << MANTISSA_SHIFT).view(np.float64)
    middles: Floats = 0.5 * (lower + upper)
    return middles


def gap_percentile(counts: Ints, percentile: float) -> float:
    """The `percentile` (0..100) of the counted gaps, seconds, within RELATIVE_ERROR; ValueError when there are none.

    Nearest rank: the smallest gap that at least `percentile` per cent of the gaps do not exceed.
    """
    total = int(counts.sum())
    if total == 0:
        raise ValueError("no gaps between tokens: every request has a single output token")
    rank = max(1, int(np.ceil(total * percentile / 100.0)))
    position = int(np.searchsorted(np.cumsum(counts), rank))
    return float(bin_middles_s()[position])
