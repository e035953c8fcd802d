"""What a replica held and did, bin by bin of time: sums that lose nothing, in bounded memory.

A step lasts milliseconds and a run may last days, so a series of steps cannot be kept. Instead every quantity is
integrated over time (block-seconds, seat-seconds, busy seconds) or counted where it happens (tokens at the end of
their step), into bins of equal width: a bin's mean is its sum over its width, exactly, however many steps it saw. A
run that outgrows its bins halves them: neighbours are added, the width doubles, and no sum is lost.

Plain loops over float64[bins, SUMS], so that the plain-Python and the compiled simulator call the same lines and
agree bit for bit. Seconds, blocks, tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.simulation.arrays import Floats

HELD_BLOCKS, HELD_SEATS, BUSY_S, COMPUTED_TOKENS, GENERATED_TOKENS, STEPS = range(6)
SUMS = 6
MOST_BINS = 1024
FINEST_BIN_S = 2.0**-10


def no_bins() -> Floats:
    return np.zeros((1, SUMS))


def new_bins(most: int = MOST_BINS) -> Floats:
    return np.zeros((most, SUMS))


def widened(bins: Floats, bin_s: float, time_s: float) -> float:
    """Double the width until `time_s` has a bin; returns the width."""
    count = len(bins)
    while time_s >= bin_s * count:
        for at in range(count // 2):
            for column in range(SUMS):
                bins[at, column] = bins[2 * at, column] + bins[2 * at + 1, column]
        for at in range(count // 2, count):
            for column in range(SUMS):
                bins[at, column] = 0.0
        bin_s *= 2.0
    return bin_s


def add_held(bins: Floats, bin_s: float, from_s: float, to_s: float, blocks: float, seats: float) -> float:
    """So many blocks and seats were held from one time to another; returns the width of the bins."""
    bin_s = widened(bins, bin_s, to_s)
    last = min(int(to_s / bin_s), len(bins) - 1)
    for at in range(int(from_s / bin_s), last + 1):
        lasted_s = min(to_s, (at + 1) * bin_s) - max(from_s, at * bin_s)
        if lasted_s > 0.0:
            bins[at, HELD_BLOCKS] += blocks * lasted_s
            bins[at, HELD_SEATS] += seats * lasted_s
    return bin_s


def add_step(
    bins: Floats, bin_s: float, start_s: float, end_s: float, computed: float, generated: float
) -> float:
    """A step ran, its tokens came at its end; returns the width of the bins."""
    bin_s = widened(bins, bin_s, end_s)
    last = min(int(end_s / bin_s), len(bins) - 1)
    for at in range(int(start_s / bin_s), last + 1):
        lasted_s = min(end_s, (at + 1) * bin_s) - max(start_s, at * bin_s)
        if lasted_s > 0.0:
            bins[at, BUSY_S] += lasted_s
    bins[last, COMPUTED_TOKENS] += computed
    bins[last, GENERATED_TOKENS] += generated
    bins[last, STEPS] += 1.0
    return bin_s


def pooled_bins(parts: Sequence[tuple[float, Floats | None]]) -> tuple[float, Floats | None]:
    """Several replicas' bins, (width, sums) each, as one: those of the widest. (0, None) where one has none."""
    width_s = max((width for width, _ in parts), default=0.0)
    total: Floats | None = None
    for part_s, bins in parts:
        if bins is None:
            return 0.0, None
        own = bins.copy()
        while part_s < width_s:
            part_s = widened(own, part_s, part_s * len(own))
        total = own if total is None else total + own
    return width_s, total
