"""Fits find the parameters that made a traffic, and are judged on what they have not seen."""

from __future__ import annotations

import json

import numpy as np
import pytest

from planner.traffic import Traffic, TrafficError, curves
from planner.traffic.fitting import fit, judged
from planner.traffic.fitting.arrivals import fitted_arrivals
from planner.traffic.fitting.lengths import fitted_lengths
from planner.traffic.generating import SyntheticModel, generate, parse_model
from planner.traffic.generating.arrivals import Diurnal, Gamma, OnOff, Poisson
from planner.traffic.generating.lengths import LogNormalLengths, MixtureLengths
from planner.traffic.shaping import Parent

ONE = LogNormalLengths(
    prompt_median_tokens=600, prompt_sigma=0.9, prompt_largest_tokens=6_000, output_median_tokens=80,
    output_sigma=0.7, output_largest_tokens=2_000, rank_correlation=0.4,
)  # fmt: skip
TWO = MixtureLengths(
    prompt_share=0.35, prompt_median_tokens=60, prompt_sigma=0.4, prompt_other_median_tokens=2_500,
    prompt_other_sigma=0.5, prompt_largest_tokens=40_000, output_share=0.7, output_median_tokens=20, output_sigma=0.5,
    output_other_median_tokens=400, output_other_sigma=0.4, output_largest_tokens=4_000,
)  # fmt: skip
BUSY = OnOff(on_rate_per_s=20, mean_on_s=3, mean_off_s=12)


def made(arrivals, lengths=ONE, requests=6_000, seed=1) -> Parent:
    return Parent("x", "made", generate(SyntheticModel(arrivals, lengths), requests=requests, seed=seed))


@pytest.mark.parametrize(
    ("arrivals", "lengths", "kinds"),
    [(Poisson(rate_per_s=5), ONE, ("poisson", "lognormal")), (Gamma(rate_per_s=5, cv=3), TWO, ("gamma", "mixture")),
     (BUSY, ONE, ("on_off", "lognormal"))],
)  # fmt: skip
def test_the_kind_that_made_it_is_found(arrivals, lengths, kinds) -> None:
    found = fit(made(arrivals, lengths))
    assert found.report.chosen == (*kinds, "none")
    distances = {one.name: one for one in found.report.comparison.distances}
    assert distances["prompt_tokens"].distance < 0.05
    assert distances["output_tokens"].distance < 0.05
    assert (
        json.loads(json.dumps(found.report.to_dict(), allow_nan=False))["model"]
        == found.report.model.to_dict()
    )
    assert parse_model(found.report.model.to_dict()) == found.report.model


def test_the_parameters_of_an_interrupted_process_are_found() -> None:
    traffic = made(BUSY, requests=60_000).traffic
    process = fitted_arrivals(traffic, "x")["on_off"]
    assert process.on_rate_per_s == pytest.approx(20, rel=0.15)
    assert process.mean_on_s == pytest.approx(3, rel=0.2)
    assert process.mean_off_s == pytest.approx(12, rel=0.2)


def test_the_parameters_of_lengths_are_found() -> None:
    one = fitted_lengths(made(Poisson(rate_per_s=1), ONE, 25_000).traffic, "x")["lognormal"]
    assert one.prompt_median_tokens == pytest.approx(600, rel=0.03)
    assert one.prompt_sigma == pytest.approx(0.9, rel=0.03)
    assert one.rank_correlation == pytest.approx(0.4, abs=0.02)
    two = fitted_lengths(made(Poisson(rate_per_s=1), TWO, 25_000).traffic, "x")["mixture"]
    assert two.prompt_share == pytest.approx(0.35, abs=0.02)
    assert two.prompt_median_tokens == pytest.approx(60, rel=0.03)
    assert two.prompt_other_median_tokens == pytest.approx(2_500, rel=0.03)
    assert two.output_sigma == pytest.approx(0.5, rel=0.05)


def test_a_day_is_found() -> None:
    process = Diurnal(rate_per_s=0.1, swing=0.6, peak_s=50_000)
    traffic = made(process, requests=30_000).traffic
    found = fitted_arrivals(traffic, "x")["diurnal"]
    assert found.swing == pytest.approx(0.6, abs=0.05)
    assert found.peak_s == pytest.approx(50_000, abs=2_500)  # counted from the first arrival
    assert "diurnal" not in fitted_arrivals(made(Poisson(rate_per_s=5)).traffic, "x")


def test_even_arrivals_have_no_on_and_off() -> None:
    found = fitted_arrivals(made(Gamma(rate_per_s=5, cv=0.5)).traffic, "x")
    assert set(found) == {"poisson", "gamma", "replayed"}


def test_it_is_judged_on_what_it_has_not_seen() -> None:
    """The second half is another traffic: the fit cannot know, and the distance says so, as the halves' does."""
    slow, fast = (made(Poisson(rate_per_s=5), lengths, 2_000).traffic for lengths in (ONE, TWO))
    half = Traffic(
        np.concatenate((slow.arrival_s, fast.arrival_s + slow.duration_s + 0.2)),
        np.concatenate((slow.prompt_tokens, fast.prompt_tokens)),
        np.concatenate((slow.output_tokens, fast.output_tokens)), "x", "columns",
    )  # fmt: skip
    found = fit(Parent("x", "x", half))
    for comparison in (found.report.comparison, found.report.floor):
        assert comparison.distances[0].distance > 0.3
    assert found.heldout.requests == found.synthetic.requests == pytest.approx(2_000, rel=0.06)


def test_named_kinds_are_taken_and_the_quick_way_gives_the_same() -> None:
    parent = made(BUSY)
    found = fit(parent, arrivals="gamma", lengths="empirical")
    assert found.report.chosen == ("gamma", "empirical", "none")
    heldout, synthetic = judged(parent, "gamma", "empirical")
    assert np.array_equal(heldout.arrival_s, found.heldout.arrival_s)
    assert np.array_equal(synthetic.arrival_s, found.synthetic.arrival_s)
    assert curves.interarrival_cv(synthetic.arrival_s) == found.report.arrivals[1].figures["cv"]


@pytest.mark.parametrize(
    ("traffic", "kinds", "field"),
    [
        (made(BUSY, requests=150).traffic, {}, "traffic"),
        (Traffic(np.zeros(400), np.ones(400, np.int64), np.ones(400, np.int64), "x", "columns"), {}, "traffic"),
        (Traffic(np.append(np.arange(399) * 0.01, 1e5), np.ones(400, np.int64), np.ones(400, np.int64), "x", "columns"),
         {}, "traffic"),
        (made(Poisson(rate_per_s=5)).traffic, {"arrivals": "diurnal"}, "arrivals"),
        (made(Poisson(rate_per_s=5)).traffic, {"lengths": "uniform"}, "lengths"),
    ],
)  # fmt: skip
def test_what_cannot_be_fitted_is_refused(traffic, kinds, field) -> None:
    with pytest.raises(TrafficError) as caught:
        fit(Parent("x", "x", traffic), **kinds)
    assert caught.value.field == field


def test_one_length_is_fitted() -> None:
    arrival_s = Poisson(rate_per_s=5).draw
    from planner.traffic.source import Source

    times = arrival_s(Source(np.random.default_rng(0), {}), 1_000, None)
    same = Traffic(times, np.full(1_000, 7), np.full(1_000, 1), "x", "columns")
    found = fit(Parent("x", "x", same))
    assert found.report.chosen[1] == "lognormal"
    assert set(found.synthetic.prompt_tokens.tolist()) == {7}
