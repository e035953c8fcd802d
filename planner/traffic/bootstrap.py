"""Intervals for figures of one traffic, by resampling it.

What neighbours in time have to do with each other (rate, CV, index of dispersion, means) is resampled in contiguous
blocks of the trace, at most MAX_BLOCKS of them, which keeps what happens inside a block together (Künsch 1989).
Percentiles are resampled request by request: the k-th of n values drawn with replacement has a known law, so a
resample costs one draw from a Beta distribution and not n (David and Nagaraja 2003, chapter 2). Intervals are
percentile intervals. Too little to resample gives none: an empty array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.traffic.model import Floats

MAX_BLOCKS = 200
FEWEST_BLOCKS = 10
BLOCK_VALUES = 10  # a block has at least so many gaps or windows


def _block_sums(weights: list[NDArray[Any]], block: NDArray[Any], blocks: int) -> Floats:
    """float64[blocks, K]: per block, the sums of the K arrays."""
    return np.column_stack([np.bincount(block, weights=one, minlength=blocks) for one in weights])


def _resampled(sums: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """float64[resamples, K]: the sums of as many blocks, drawn with replacement."""
    blocks = len(sums)
    return rng.multinomial(blocks, np.full(blocks, 1 / blocks), size=resamples) @ sums


def _blocks(count: int) -> int:
    return min(MAX_BLOCKS, count // BLOCK_VALUES)


def gap_figures(arrival_s: Floats, resamples: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Resampled rates (1/s) and CVs of the gaps."""
    gaps_s = np.diff(arrival_s)
    blocks = _blocks(len(gaps_s))
    if blocks < FEWEST_BLOCKS or arrival_s[-1] <= 0:
        return np.zeros(0), np.zeros(0)
    block = np.arange(len(gaps_s)) * blocks // len(gaps_s)
    count, total, squares = _resampled(
        _block_sums([np.ones(len(gaps_s)), gaps_s, gaps_s**2], block, blocks), resamples, rng
    ).T
    sound = total > 0
    mean = total[sound] / count[sound]
    variance = np.maximum(0, squares[sound] / count[sound] - mean**2)
    return count[sound] / total[sound], np.sqrt(variance) / mean


def dispersions(arrival_s: Floats, width_s: float, resamples: int, rng: np.random.Generator) -> Floats:
    """Resampled indices of dispersion of the counts in whole windows of `width_s`."""
    windows = int(arrival_s[-1] // width_s)
    blocks = _blocks(windows)
    if blocks < FEWEST_BLOCKS:
        return np.zeros(0)
    index = (arrival_s // width_s).astype(np.int64)
    index = index[index < windows]
    first = np.concatenate(([0], np.flatnonzero(np.diff(index)) + 1))
    count = np.diff(np.append(first, len(index))).astype(np.float64)
    sums = _block_sums([count, count**2], index[first] * blocks // windows, blocks)
    edges = -(-np.arange(blocks + 1) * windows // blocks)  # first window of each block
    own = np.diff(edges).astype(np.float64)
    held, total, squares = _resampled(np.column_stack((own, sums)), resamples, rng).T
    sound = total > 0
    mean = total[sound] / held[sound]
    found: Floats = (squares[sound] / held[sound] - mean**2) / mean
    return found


def means(values: NDArray[Any], resamples: int, rng: np.random.Generator) -> Floats:
    """Resampled means of values in order of arrival."""
    blocks = _blocks(len(values))
    if blocks < FEWEST_BLOCKS:
        return np.zeros(0)
    block = np.arange(len(values)) * blocks // len(values)
    count, total = _resampled(_block_sums([np.ones(len(values)), values], block, blocks), resamples, rng).T
    found: Floats = total / count
    return found


def quantiles(ordered: NDArray[Any], share: float, resamples: int, rng: np.random.Generator) -> Floats:
    """Resampled quantiles (0 <= share <= 1, linear) of sorted values."""
    n = len(ordered)
    if n < BLOCK_VALUES * FEWEST_BLOCKS:
        return np.zeros(0)
    place = share * (n - 1)
    below = int(place)
    low = rng.beta(below + 1, n - below, resamples)  # the uniform order statistic of rank below + 1
    values = ordered[np.minimum((low * n).astype(np.int64), n - 1)].astype(np.float64)
    if below + 1 < n:
        high = low + (1 - low) * rng.beta(1, n - below - 1, resamples)
        above = ordered[np.minimum((high * n).astype(np.int64), n - 1)]
        values += (place - below) * (above - values)
    return values


def interval(values: Floats, level: float = 0.95) -> tuple[float, float] | None:
    """The middle `level` of resampled values; None where nothing was resampled."""
    if not len(values):
        return None
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2]).tolist()
    return float(low), float(high)
