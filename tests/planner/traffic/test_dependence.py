from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from planner.traffic.dependence import joint_density, mean_ranks, rank_correlation

RNG = np.random.default_rng(3)


@pytest.mark.parametrize("scale", [20, 3_000, 90_000_000])
def test_rank_correlation_is_spearmans_with_ties(scale: int) -> None:
    a = RNG.integers(1, scale, 4_000)
    b = (a // 2 + RNG.integers(1, scale, 4_000)).clip(1)
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)
    assert mean_ranks(a).mean() == (len(a) + 1) / 2


def test_rank_correlation_at_its_ends() -> None:
    a = np.arange(1, 50)
    assert rank_correlation(a, a**2) == pytest.approx(1)
    assert rank_correlation(a, 100 - a) == pytest.approx(-1)
    assert rank_correlation(a, np.full(49, 7)) is None
    assert rank_correlation(np.array([5]), np.array([1])) is None


def test_the_joint_density_has_every_request_once() -> None:
    prompts = np.maximum(1, RNG.lognormal(6, 1, 5_000)).astype(np.int64)
    outputs = np.maximum(1, RNG.lognormal(3, 1, 5_000)).astype(np.int64)
    found = joint_density(prompts, outputs)
    assert found.count.sum() == 5_000
    assert found.count.shape == (len(found.prompt_edges) - 1, len(found.output_edges) - 1)
    column = found.count.sum(axis=1).argmax()
    inside = (prompts >= found.prompt_edges[column]) & (prompts < found.prompt_edges[column + 1])
    assert found.median_output[column] == np.median(outputs[inside])


def test_the_joint_density_of_one_length() -> None:
    found = joint_density(np.array([7, 7]), np.array([1, 1]))
    assert (found.count.tolist(), found.median_output.tolist()) == ([[2]], [1.0])
