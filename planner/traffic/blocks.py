"""How long the blocks of a block bootstrap must be, so that what neighbours have to do with each other stays whole.

Politis and White's rule (2004, with the correction of Patton, Politis and White 2009) for the circular bootstrap:
the length that makes the variance of a resampled mean most exact grows with N^(1/3), times what the autocovariances
ask for. Independent values get blocks of one, bursts get blocks as long as bursts last. Lags count up to twice the
last one whose correlation stands out (2 sqrt(log10 N / N)), weighed by a flat top.
Correlations are taken of ranks: lengths and gaps are skewed, and a handful of extremes would decide them alone.
"""

from __future__ import annotations

import math

import numpy as np

from planner.traffic.dependence import mean_ranks
from planner.traffic.model import Floats, Integers

FEWEST_BLOCKS = 3
FEWEST_VALUES = 20


def block_length(series: Floats) -> int:
    """Consecutive values to a block, 1 to the least of 3 sqrt(N) and N / 3. series: float64[N] in order of time."""
    count = len(series)
    if count < FEWEST_VALUES or series.min() == series.max():
        return 1
    most = math.ceil(min(3.0 * math.sqrt(count), count / FEWEST_BLOCKS))
    covariance = _autocovariances(_ranks(series), math.ceil(math.sqrt(count)) + _run_length(count))
    width = 2 * _last_standing_out(covariance / covariance[0], count)
    lags = np.arange(1, min(width, len(covariance) - 1) + 1)
    if not len(lags):
        return 1
    weighed = np.clip(2.0 * (1.0 - lags / width), 0.0, 1.0) * covariance[lags]
    spectrum = covariance[0] + 2.0 * weighed.sum()
    slope = 2.0 * (lags * weighed).sum()
    if spectrum <= 0.0:
        return most
    return int(np.clip(math.ceil((1.5 * (slope / spectrum) ** 2 * count) ** (1.0 / 3.0)), 1, most))


def _ranks(series: Floats) -> Floats:
    _, code = np.unique(series, return_inverse=True)
    ranks: Floats = mean_ranks(code.astype(np.int64))
    ranks -= ranks.mean()
    return ranks


def _run_length(count: int) -> int:
    """So many correlations in a row must vanish before the ones further out are taken for noise."""
    return max(5, math.ceil(math.sqrt(math.log10(count))))


def _last_standing_out(correlation: Floats, count: int) -> int:
    """The last lag before a run of correlations that noise alone explains; the last of all where there is no run."""
    run = _run_length(count)
    quiet = np.abs(correlation[1:]) < 2.0 * math.sqrt(math.log10(count) / count)
    for lag in range(len(quiet) - run + 1):
        if quiet[lag : lag + run].all():
            return lag
    loud: Integers = np.flatnonzero(~quiet)
    return int(loud[-1]) + 1 if len(loud) else 0


def _autocovariances(centred: Floats, lags: int) -> Floats:
    """float64[lags + 1], by the Fourier transform: a direct sum takes N x sqrt(N) steps."""
    count = len(centred)
    size = 1 << (2 * count - 1).bit_length()
    transformed = np.fft.rfft(centred, size)
    found: Floats = np.fft.irfft(np.abs(transformed) ** 2, size)[: min(lags, count - 1) + 1] / count
    return found
