"""How far two samples are apart: the Kolmogorov-Smirnov distance, the largest difference of their distributions."""

from __future__ import annotations

from math import log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray


def ks_distance(first: NDArray[Any], second: NDArray[Any]) -> float:
    """0 (the same shares at every value) to 1 (nothing in common), of two samples of any lengths >= 1."""
    a, b = np.sort(first), np.sort(second)
    at = np.concatenate((_distinct(a), _distinct(b)))
    below = [np.searchsorted(one, at, side="right") / len(one) for one in (a, b)]
    return float(np.abs(below[0] - below[1]).max())


def _distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Of sorted values."""
    return values[np.concatenate(([True], values[1:] != values[:-1]))]


def ks_chance(first: int, second: int, level: float = 0.05) -> float:
    """The distance that two samples of these sizes from one distribution exceed with probability `level`, if their
    values are independent (Smirnov's limit, good from a few dozen values on; below it is conservative)."""
    return min(1.0, sqrt(-0.5 * log(level / 2) * (first + second) / (first * second)))
