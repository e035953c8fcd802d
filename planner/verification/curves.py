"""Distributions as CURVE_POINTS quantiles, for a figure that lays one over the other. Seconds."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.simulation.gaps import bin_middles_s
from planner.simulation.outcome import Outcome

CURVE_POINTS: Final = 200


def quantiles(values: NDArray[np.float64]) -> list[float]:
    found: list[float] = np.quantile(values, np.linspace(0, 1, CURVE_POINTS)).tolist() if len(values) else []
    return found


def gap_quantiles(outcome: Outcome) -> list[float]:
    """From the histogram: the middle of the bin in which each share of gaps is reached."""
    counts = np.cumsum(outcome.gap_counts)
    if not counts[-1]:
        return []
    bins = np.searchsorted(counts, np.maximum(np.linspace(0, 1, CURVE_POINTS) * counts[-1], 1))
    middles = bin_middles_s()
    found: list[float] = middles[np.minimum(bins, len(middles) - 1)].tolist()
    return found
