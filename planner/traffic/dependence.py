"""Whether long prompts have long outputs: Spearman's rank correlation, and the joint density of the two lengths.

Ranks, because lengths are skewed: a handful of prompts of 100,000 tokens would decide Pearson's coefficient
alone. Requests of equal length share the mean of their ranks. Lengths are whole tokens, so ranks come from
counting and not from sorting: 5 million requests take a third of a second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.traffic.growing import parts
from planner.traffic.model import Floats, Integers

_COUNTABLE = 4_000_000  # tokens: up to here counting every length costs less than sorting


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Of int64[N] >= 0: how far the mean rank of each value is from the middle, float64 by code, and where the
    codes of a slice of the values are; `square` is the sum of the squares over all values."""

    off: Floats
    code: Integers
    square: float


def mean_ranks(values: Integers) -> Floats:
    """Ranks from 1 of int64[N] >= 0, equal values at the mean of theirs. float64[N]."""
    ranks = _ranks(values)
    return ranks.off[ranks.code] + (len(values) + 1) / 2


def _ranks(values: Integers) -> _Ranks:
    if int(values.max()) < _COUNTABLE:
        code, counts = values, np.bincount(values)
    else:
        _, code, counts = np.unique(values, return_inverse=True, return_counts=True)
    # Ranks with ties at their mean have the mean (N + 1) / 2.
    off = (np.cumsum(counts) - counts) + (counts + 1) / 2 - (len(values) + 1) / 2
    return _Ranks(off, code, float(np.dot(counts, off * off)))


def rank_correlation(first: Integers, second: Integers) -> float | None:
    """Spearman's coefficient, -1 to 1; None where one of the two never changes."""
    a, b = _ranks(first), _ranks(second)
    scale = float(np.sqrt(a.square)) * float(np.sqrt(b.square))
    if scale <= 0:
        return None
    product = sum(float(np.dot(a.off[a.code[part]], b.off[b.code[part]])) for part in parts(len(first)))
    return float(np.clip(product / scale, -1, 1))


@dataclass(frozen=True, slots=True)
class JointDensity:
    """Requests per cell of a logarithmic grid: edges in tokens, float64[P + 1] and float64[O + 1]; counts
    int64[P, O]. `median_output` is, per column of prompts, the median output (NaN for an empty column)."""

    prompt_edges: Floats
    output_edges: Floats
    count: Integers
    median_output: Floats


def joint_density(prompt_tokens: Integers, output_tokens: Integers, cells: int = 36) -> JointDensity:
    """The joint histogram with at most `cells` cells a side; no cell is narrower than one token."""
    edges = [_edges(tokens, cells) for tokens in (prompt_tokens, output_tokens)]
    column = np.searchsorted(edges[0], prompt_tokens, side="right") - 1
    row = np.searchsorted(edges[1], output_tokens, side="right") - 1
    shape = (len(edges[0]) - 1, len(edges[1]) - 1)
    count = np.bincount(column * shape[1] + row, minlength=shape[0] * shape[1]).reshape(shape)
    order = np.argsort(column, kind="stable")
    groups = np.split(output_tokens[order], np.cumsum(count.sum(axis=1))[:-1])
    median = np.array([np.median(group) if len(group) else np.nan for group in groups])
    return JointDensity(edges[0], edges[1], count, median)


def _edges(tokens: Integers, cells: int) -> Floats:
    low, high = float(tokens.min()), float(tokens.max()) + 1
    return np.unique(np.rint(np.geomspace(low, high, cells + 1)))
