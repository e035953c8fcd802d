from __future__ import annotations

import numpy as np
import pytest

from planner.traffic import PrefixHashes, Traffic, curves, statistics

POISSON = np.concatenate(([0.0], np.cumsum(np.random.default_rng(5).exponential(0.1, 40_000))))


def traffic(arrival_s: list[float], outputs: list[int] | None = None) -> Traffic:
    n = len(arrival_s)
    ones = np.ones(n, np.int64)
    return Traffic(np.array(arrival_s), ones, np.array(outputs or ones), source="test", format="test")


def test_statistics_by_hand() -> None:
    figures = statistics(traffic([0.0, 1.0, 4.0], [1, 2, 4]))
    assert figures["rate_per_s"] == 0.5
    assert figures["interarrival_cv"] == 0.5  # gaps 1 and 3: deviation 1, mean 2
    assert figures["output_tokens"] == {"p50": 2.0, "mean": pytest.approx(7 / 3), "p99": 3.96, "max": 4}
    assert figures["tpot_requests"] == 2


@pytest.mark.parametrize("arrival_s", [[0.0], [0.0, 0.0, 0.0]])
def test_what_does_not_exist_is_none(arrival_s: list[float]) -> None:
    figures = statistics(traffic(arrival_s))
    assert figures["rate_per_s"] is None
    assert figures["interarrival_cv"] is None


def test_counts_cover_every_request_once() -> None:
    counts = curves.arrivals_per_bin(POISSON, 60)
    assert counts.count.sum() == len(POISSON)
    assert counts.width_s == 60
    assert counts.count[:-1].mean() == pytest.approx(600, rel=0.05)


def test_a_long_span_widens_the_bins_instead_of_filling_the_memory() -> None:
    counts = curves.arrivals_per_bin(np.array([0.0, 3e8]), 60)
    assert len(counts.count) <= curves.MAX_BINS
    assert counts.count.sum() == 2
    assert counts.width_s % 60 == 0
    burst = curves.burst_counts(np.array([0.0, 0.001, 0.002, 3e8]))
    assert burst.count.sum() == 3 or burst.width_s > 1


def test_burst_counts_show_the_busiest_moment() -> None:
    arrivals = np.sort(np.concatenate((np.arange(0, 1_000, 1.0), np.full(50, 500.25))))
    burst = curves.burst_counts(arrivals, bins=20)
    assert burst.count.max() >= 50
    assert burst.start_s[0] <= 500.25 <= burst.start_s[-1] + burst.width_s


def test_poisson_traffic_has_a_dispersion_of_one_on_every_scale() -> None:
    widths_s, index = curves.dispersion_curve(POISSON)
    assert index[widths_s < 10] == pytest.approx(1.0, abs=0.12)


def test_dispersion_by_hand() -> None:
    # Windows of 1 s: 2, 0, 1, 1 arrivals (mean 1, variance 0.5); the part window after 4 s is left out.
    assert curves.index_of_dispersion(np.array([0.0, 0.5, 2.0, 3.0, 4.2]), 1.0) == pytest.approx(0.5)
    assert curves.index_of_dispersion(np.array([0.0, 0.5]), 1.0) is None


def test_dispersion_is_said_for_windows_that_come_often_enough() -> None:
    found = curves.dispersion_by_window(POISSON[POISSON < 700])
    assert [entry["window_s"] for entry in found] == [1.0, 10.0, 60.0]
    assert found[0]["index"] == pytest.approx(1.0, abs=0.15)
    assert curves.dispersion_by_window(np.array([0.0, 5.0])) == []


def test_cdf_is_exact_for_few_lengths_and_thinned_for_many() -> None:
    values, share = curves.cdf_points(np.array([5, 5, 7, 9]))
    assert values.tolist() == [5, 7, 9]
    assert share.tolist() == [0.5, 0.75, 1.0]
    values, share = curves.cdf_points(np.arange(1, 100_001), points=100)
    assert len(values) <= 100
    assert (values[0], values[-1], share[-1]) == (1, 100_000, 1.0)
    assert share == pytest.approx(values / 100_000)


def test_prefix_hits_are_contiguous_and_from_earlier_requests() -> None:
    requests = [[1, 2, 3], [1, 2, 4], [9, 2, 3], [1, 2, 4, 4], []]
    flat = np.array([block for request in requests for block in request], np.uint64)
    offsets = np.concatenate(([0], np.cumsum([len(request) for request in requests])))
    hits, blocks = curves.prefix_hits(PrefixHashes(flat, offsets))
    assert hits.tolist() == [0, 2, 0, 4, 0]
    assert blocks.tolist() == [3, 3, 3, 4, 0]
    assert curves.prefix_hit_rate(PrefixHashes(flat, offsets)) == 6 / 13
