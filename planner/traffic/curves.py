"""What a chart of a traffic shows, as plain arrays: counts over time, burstiness, distributions.

Burstiness is looked at on two scales. The CV of the gaps speaks of neighbouring requests; the index of
dispersion (variance / mean of the counts in windows of a given length) speaks of that time scale: Poisson
traffic has 1 on all of them, and a trace that breathes over minutes rises with the window.
All functions are pure and bounded: no array grows with the time span beyond MAX_BINS.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.traffic.growing import parts
from planner.traffic.model import Floats, Integers, PrefixHashes

MAX_BINS = 20_000


@dataclass(frozen=True, slots=True)
class CountsOverTime:
    """Arrivals per bin: float64[K] starts in seconds, int64[K] counts, the width in seconds."""

    start_s: Floats
    count: Integers
    width_s: float


def arrivals_per_bin(arrival_s: Floats, width_s: float = 60.0) -> CountsOverTime:
    """Arrivals in bins of `width_s` from 0 on; the last bin, usually a part of one, is included.

    A span of more than MAX_BINS bins widens them by a whole factor: read the width from the result."""
    bins = int(arrival_s[-1] // width_s) + 1
    factor = -(-bins // MAX_BINS)
    width_s *= factor
    count = np.bincount((arrival_s // width_s).astype(np.int64))
    return CountsOverTime(np.arange(len(count), dtype=np.float64) * width_s, count, width_s)


def burst_width_s(arrival_s: Floats) -> float:
    """A bin for the burst scale: the nearest of 0.01, 0.1, 1, 10 s ... to ten mean gaps, at least 0.01."""
    n = len(arrival_s)
    if n < 2 or arrival_s[-1] <= 0:
        return 1.0
    return float(max(0.01, 10.0 ** np.round(np.log10(10 * arrival_s[-1] / (n - 1)))))


def burst_counts(arrival_s: Floats, bins: int = 600, width_s: float | None = None) -> CountsOverTime:
    """Arrivals at burst scale around the busiest moment: at most `bins` bins of `width_s` (burst_width_s)."""
    width_s = burst_width_s(arrival_s) if width_s is None else width_s
    index = (arrival_s // width_s).astype(np.int64)
    cells, per_cell = _runs(index)
    first = max(0, int(cells[per_cell.argmax()]) - bins // 2)
    last = min(int(index[-1]), first + bins - 1)
    inside = (index >= first) & (index <= last)
    count = np.bincount(index[inside] - first, minlength=last - first + 1)
    return CountsOverTime(np.arange(first, first + len(count), dtype=np.float64) * width_s, count, width_s)


def _runs(index: Integers) -> tuple[Integers, Integers]:
    """Distinct values of a sorted int64[N], N >= 1, and how often each occurs, without sorting again."""
    first = np.concatenate(([0], np.flatnonzero(np.diff(index)) + 1))
    return index[first], np.diff(np.append(first, len(index)))


def interarrival_cv(arrival_s: Floats) -> float | None:
    """Deviation (population) of the gaps / their mean; None without gaps or where all are 0."""
    gaps = len(arrival_s) - 1
    mean_s = float(arrival_s[-1] - arrival_s[0]) / gaps if gaps else 0.0
    if mean_s <= 0:
        return None
    off = (np.diff(arrival_s[part.start : part.stop + 1]) - mean_s for part in parts(gaps))
    return float(np.sqrt(sum(float(np.dot(each, each)) for each in off) / gaps)) / mean_s


def index_of_dispersion(arrival_s: Floats, width_s: float) -> float | None:
    """Variance / mean of the counts in whole windows of `width_s`; None with fewer than two windows.

    Only occupied windows are held in memory, so any width is safe."""
    windows = int(arrival_s[-1] // width_s)
    if windows < 2:
        return None
    total, squares = 0, 0
    open_window, so_far = -1, 0  # a window may go on in the next part
    for part in parts(len(arrival_s)):
        index = (arrival_s[part] // width_s).astype(np.int64)
        index = index[: int(np.searchsorted(index, windows))]
        if not len(index):
            break
        cells, count = _runs(index)
        if cells[0] == open_window:
            count[0] += so_far
            squares -= so_far**2
        total += len(index)
        squares += int(np.dot(count, count))
        open_window, so_far = int(cells[-1]), int(count[-1])
    mean = total / windows
    return (squares / windows - mean**2) / mean


WINDOWS_S = (1.0, 10.0, 60.0, 600.0)
ENOUGH_WINDOWS = 10


def dispersion_by_window(arrival_s: Floats) -> list[dict[str, float]]:
    """Index of dispersion for those of WINDOWS_S that the span holds at least ENOUGH_WINDOWS times."""
    found = []
    for window_s in WINDOWS_S:
        if arrival_s[-1] // window_s >= ENOUGH_WINDOWS:
            index = index_of_dispersion(arrival_s, window_s)
            if index is not None:
                found.append({"window_s": window_s, "index": index})
    return found


def dispersion_curve(arrival_s: Floats, points: int = 25) -> tuple[Floats, Floats]:
    """Index of dispersion for window lengths (seconds) from one mean gap to a tenth of the span.

    Returns float64[K] widths and float64[K] indices; empty for traffic too short to say."""
    n = len(arrival_s)
    if n < 20 or arrival_s[-1] <= 0:
        return np.zeros(0), np.zeros(0)
    widths_s = np.geomspace(arrival_s[-1] / (n - 1), arrival_s[-1] / 10, points)
    values = [index_of_dispersion(arrival_s, float(width_s)) for width_s in widths_s]
    return widths_s, np.array([np.nan if value is None else value for value in values])


def cdf_points(tokens: Integers, points: int = 400) -> tuple[Floats, Floats]:
    """The empirical distribution as at most `points` (length, share of requests not longer).

    Exact where there are few distinct lengths; otherwise evenly spaced shares, with both ends."""
    values, counts = np.unique(tokens, return_counts=True)
    share = np.cumsum(counts) / len(tokens)
    if len(values) > points:
        keep = np.unique(np.searchsorted(share, np.linspace(share[0], 1.0, points)))
        keep = keep[keep < len(values)]
        values, share = values[keep], share[keep]
    return values.astype(np.float64), share


def prefix_hits(hashes: PrefixHashes) -> tuple[Integers, Integers]:
    """Per request: leading blocks already seen in an earlier request, and all blocks. int64[N] each."""
    lengths = np.diff(hashes.offsets)
    owner = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    # Equal hashes side by side, in order of requests: the first of each group, and its own request's
    # repetitions of it, are new.
    order = np.argsort(hashes.flat, kind="stable")
    grouped = hashes.flat[order]
    starts = np.flatnonzero(np.concatenate(([True], grouped[1:] != grouped[:-1]))[: len(grouped)])
    del grouped
    sizes = np.diff(np.append(starts, len(order)))
    is_new = owner[order] == np.repeat(owner[order[starts]], sizes)
    new = np.sort(order[is_new])
    del order, is_new
    # A contiguous prefix ends at the first block that is new.
    hits = lengths.astype(np.int64)
    new_owner, first_new = np.unique(owner[new], return_index=True)
    hits[new_owner] = new[first_new] - hashes.offsets[new_owner]
    return hits, lengths


def prefix_hit_rate(hashes: PrefixHashes) -> float | None:
    """Leading blocks already seen / all blocks, with a cache that never forgets; None without blocks."""
    hits, blocks = prefix_hits(hashes)
    return float(hits.sum()) / float(blocks.sum()) if blocks.sum() else None
