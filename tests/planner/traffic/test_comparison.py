"""Distances, resampling and comparison: against scipy, against theory, and on traffics that are known to differ."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ks_2samp

from planner.traffic import Traffic, bootstrap, synthesise
from planner.traffic.comparison import Row, compare
from planner.traffic.distances import ks_chance, ks_distance

RNG = np.random.default_rng(8)


@pytest.mark.parametrize("sizes", [(1, 1), (5, 300), (400, 400)])
def test_the_distance_is_scipys_with_ties(sizes) -> None:
    a, b = (RNG.integers(0, 40, n) for n in sizes)
    assert ks_distance(a, b) == pytest.approx(ks_2samp(a, b).statistic, abs=1e-12)
    assert ks_distance(a, a) == 0


def test_chance_is_exceeded_in_one_case_of_twenty() -> None:
    beyond = [ks_distance(RNG.random(300), RNG.random(500)) > ks_chance(300, 500) for _ in range(600)]
    assert np.mean(beyond) == pytest.approx(0.05, abs=0.025)


def test_resampled_percentiles_are_those_of_resampling_every_request() -> None:
    values = np.sort(RNG.lognormal(5, 1, 500))
    for share in (0.5, 0.9):
        quick = bootstrap.quantiles(values, share, 4_000, RNG)
        slow = np.quantile(RNG.choice(values, (4_000, 500)), share, axis=1)
        assert quick.mean() == pytest.approx(slow.mean(), rel=0.01)
        assert quick.std() == pytest.approx(slow.std(), rel=0.08)


def test_the_spread_of_a_poisson_rate_and_of_a_mean_is_theorys() -> None:
    gaps_s = RNG.exponential(0.5, 20_000)
    rates, cvs = bootstrap.gap_figures(np.concatenate(([0.0], np.cumsum(gaps_s))), 3_000, RNG)
    assert rates.std() / rates.mean() == pytest.approx(1 / np.sqrt(20_000), rel=0.15)
    assert cvs.mean() == pytest.approx(1, rel=0.03)
    means = bootstrap.means(RNG.integers(1, 100, 10_000), 3_000, RNG)
    assert means.std() == pytest.approx(np.sqrt((99**2 - 1) / 12 / 10_000), rel=0.15)


def test_resampled_dispersions_lie_around_the_index() -> None:
    arrival_s = np.cumsum(RNG.exponential(0.1, 30_000))
    found = bootstrap.dispersions(arrival_s - arrival_s[0], 1.0, 2_000, RNG)
    low, high = bootstrap.interval(found)
    assert low < 1 < high
    assert high - low < 0.3


def test_too_little_has_no_interval() -> None:
    assert bootstrap.interval(np.zeros(0)) is None
    few = np.arange(5.0)
    assert not len(bootstrap.gap_figures(few, 10, RNG)[0])
    assert not len(bootstrap.dispersions(few, 1.0, 10, RNG))
    assert not len(bootstrap.means(few, 10, RNG))
    assert not len(bootstrap.quantiles(few, 0.5, 10, RNG))


def test_two_draws_of_one_preset_seldom_differ_and_others_do() -> None:
    one, two = (synthesise("chat", requests=4_000, seed=seed) for seed in (1, 2))
    same = compare(one, two, resamples=400)
    assert sum(bool(row.differs) for row in same.rows) <= 2  # of 12, each with 5 %
    assert all(distance.distance < 1.3 * distance.chance for distance in same.distances)
    code = compare(one, synthesise("code", requests=4_000, seed=3), resamples=400)
    rows = {row.name: row for row in code.rows}
    assert rows["interarrival_cv"].ratio == pytest.approx(3, rel=0.15)
    for name in ("rate", "interarrival_cv", "dispersion_1_s", "prompt_tokens_p50", "output_tokens_p50"):
        assert rows[name].differs, name
        assert rows[name].low < rows[name].ratio < rows[name].high, name
    assert {distance.name: distance.distance > 0.2 for distance in code.distances} == dict.fromkeys(
        ("prompt_tokens", "output_tokens", "gaps"), True
    )


def test_a_compressed_traffic_differs_in_its_rate_alone() -> None:
    one = synthesise("chat", requests=3_000, seed=1)
    found = compare(one, replace(one, arrival_s=one.arrival_s / 4), resamples=300)
    rows = {row.name: row for row in found.rows}
    assert rows["rate"].ratio == pytest.approx(4)
    assert rows["rate"].differs
    assert not rows["interarrival_cv"].differs
    assert [distance.distance for distance in found.distances] == pytest.approx([0, 0, 0], abs=1e-3)


def test_a_certain_difference_of_nothing_is_none() -> None:
    assert Row("x", "", 7436, 7437, 7437 / 7436, 1.0001, 1.0002).differs is False
    assert Row("x", "", 100, 102, 1.02, 1.01, 1.03).differs is True
    assert Row("x", "", 100, 102, 1.02, 0.99, 1.03).differs is False


@pytest.mark.parametrize("arrival_s", [[0.0], [0.0] * 30, [0.0, 1.0]])
def test_small_traffics_are_compared_without_what_does_not_exist(arrival_s) -> None:
    n = len(arrival_s)
    tiny = Traffic(np.array(arrival_s), np.full(n, 3), np.full(n, 4), "x", "columns")
    for pair in ((tiny, tiny), (tiny, synthesise("demo")), (synthesise("demo"), tiny)):
        found = compare(*pair).to_dict()
        json.dumps(found, allow_nan=False)
        assert all(row["differs"] is None for row in found["rows"])


def test_a_seed_repeats_the_intervals() -> None:
    one, two = synthesise("chat", requests=500), synthesise("code", requests=500)
    assert compare(one, two, seed=4).to_dict() == compare(one, two, seed=4).to_dict()
    assert compare(one, two, seed=4).to_dict() != compare(one, two, seed=5).to_dict()
