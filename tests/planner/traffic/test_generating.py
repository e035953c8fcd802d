"""Generators against the laws they are named after: means, CVs, dispersions, correlations, and what sessions share."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from planner.simulation.prefix import blocks_of
from planner.traffic import TrafficError, curves, statistics, synthesise
from planner.traffic.arrivals import MAX_REQUESTS
from planner.traffic.dependence import rank_correlation
from planner.traffic.described import described_fields
from planner.traffic.distances import ks_distance
from planner.traffic.generating import (
    ARRIVALS,
    LENGTHS,
    PARTS,
    Sessions,
    SyntheticModel,
    generate,
    parse_model,
)
from planner.traffic.generating.arrivals import Diurnal, Gamma, OnOff, Poisson, Replayed
from planner.traffic.generating.lengths import EmpiricalLengths, LogNormalLengths, MixtureLengths
from planner.traffic.shaping import Parent
from planner.traffic.source import Source

OTHER = Parent("o", "other", synthesise("code", requests=3_000, seed=5))
PLAIN = LogNormalLengths(
    prompt_median_tokens=500, prompt_sigma=1, prompt_largest_tokens=8_000,
    output_median_tokens=100, output_sigma=0.8, output_largest_tokens=2_000,
)  # fmt: skip
TWO = MixtureLengths(
    prompt_share=0.3, prompt_median_tokens=50, prompt_sigma=0.4, prompt_other_median_tokens=3_000,
    prompt_other_sigma=0.5, prompt_largest_tokens=50_000, output_share=1, output_median_tokens=40, output_sigma=0.7,
    output_other_median_tokens=1, output_other_sigma=0, output_largest_tokens=900, rank_correlation=-0.6,
)  # fmt: skip


def source(seed: int = 0) -> Source:
    return Source(np.random.default_rng(seed), {"o": OTHER.traffic})


# Arrivals --------------------------------------------------------------------------------------------------------


def test_poisson_gaps_follow_the_exponential_law() -> None:
    arrival_s = Poisson(rate_per_s=3).draw(source(), 40_001, None)
    gaps_s = np.diff(arrival_s)
    assert stats.kstest(gaps_s, "expon", args=(0, 1 / 3)).pvalue > 0.01
    for width_s in (1.0, 10.0, 60.0):
        windows = arrival_s[-1] / width_s
        assert curves.index_of_dispersion(arrival_s, width_s) == pytest.approx(
            1, abs=4 * np.sqrt(2 / windows)
        )


@pytest.mark.parametrize("cv", [0.3, 2.5])
def test_gamma_gaps_follow_the_gamma_law(cv) -> None:
    gaps_s = np.diff(Gamma(rate_per_s=5, cv=cv).draw(source(1), 30_001, None))
    law = stats.gamma(1 / cv**2, scale=cv**2 / 5)
    least_s = 1e-6  # shorter gaps drown in the precision of times of hours
    share = (law.cdf(gaps_s[gaps_s > least_s]) - law.cdf(least_s)) / law.sf(least_s)
    assert stats.kstest(share, "uniform").pvalue > 0.01
    assert (gaps_s <= least_s).mean() == pytest.approx(law.cdf(least_s), abs=0.01)


def test_on_and_off_has_the_rate_dispersion_and_memory_of_its_law() -> None:
    """Index of dispersion of a two-state MMPP over a window t: 1 + 2 v / (m s) (1 - (1 - exp(-s t)) / (s t)) with the
    variance v of the rate, its mean m and s = 1/on + 1/off (Fischer and Meier-Hellstern 1993); counts of windows k
    apart are correlated as exp(-s k t)."""
    process = OnOff(on_rate_per_s=20, off_rate_per_s=2, mean_on_s=5, mean_off_s=15)
    arrival_s = process.draw(source(2), None, 60_000.0)
    share, speed = 5 / 20, 1 / 5 + 1 / 15
    mean, variance = 20 * share + 2 * (1 - share), share * (1 - share) * 18**2
    assert process.mean_rate_per_s(source()) == mean
    assert len(arrival_s) / 60_000 == pytest.approx(mean, rel=0.04)
    for width_s in (1.0, 10.0, 60.0):
        st = speed * width_s
        law = 1 + 2 * variance / (mean * speed) * (1 - (1 - np.exp(-st)) / st)
        assert curves.index_of_dispersion(arrival_s, width_s) == pytest.approx(law, rel=0.1)
    counts = np.bincount(arrival_s.astype(np.int64)).astype(float)
    lags = np.array([np.corrcoef(counts[:-k], counts[k:])[0, 1] for k in (1, 4, 8)])
    assert lags[1:] / lags[:-1] == pytest.approx(np.exp([-3 * speed, -4 * speed]), abs=0.06)


def test_interrupted_poisson_has_the_cv_of_kuczuras_law() -> None:
    """CV^2 = 1 + 2 rate w1 / (w1 + w2)^2 with the rates w1 of leaving on and w2 of leaving off."""
    arrival_s = OnOff(on_rate_per_s=10, mean_on_s=2, mean_off_s=3).draw(source(3), 200_000, None)
    law = 1 + 2 * 10 * 0.5 / (1 / 2 + 1 / 3) ** 2
    assert curves.interarrival_cv(arrival_s) ** 2 == pytest.approx(law, rel=0.05)


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_day_and_night_swings_as_a_cosine(cv) -> None:
    process = Diurnal(rate_per_s=10, swing=0.8, period_s=1_000, peak_s=300, cv=cv)
    arrival_s = process.draw(source(4), None, 20_000.0)
    assert len(arrival_s) == pytest.approx(200_000, rel=0.03)
    phase = np.histogram(arrival_s % 1_000, 10, (0, 1_000))[0] / len(arrival_s) * 10
    middle = np.arange(50, 1_000, 100)
    assert phase == pytest.approx(1 + 0.8 * np.cos(2 * np.pi * (middle - 300) / 1_000), abs=0.06)
    local = arrival_s[(arrival_s % 1_000 > 250) & (arrival_s % 1_000 < 350)]
    gaps_s = np.diff(local)
    assert gaps_s[gaps_s < 50].std() / gaps_s[gaps_s < 50].mean() == pytest.approx(cv, rel=0.1)


def test_replayed_counts_are_those_of_the_other() -> None:
    once = Replayed(traffic="o", bin_s=30).draw(source(5), OTHER.traffic.requests, None)
    first = once[0]  # times are counted from the first arrival, a little after the interval's beginning
    counts = curves.arrivals_per_bin(OTHER.traffic.arrival_s, 30).count
    shifted = [np.bincount(((once - first + at) // 30).astype(int), minlength=len(counts))[: len(counts)]
               for at in np.linspace(0, 3, 40)]  # fmt: skip
    assert min(np.abs(made - counts).sum() for made in shifted) <= 0.03 * counts.sum()
    twice = Replayed(traffic="o", bin_s=30, scale=0.5).draw(source(6), None, OTHER.traffic.duration_s * 3)
    assert len(twice) == pytest.approx(1.5 * OTHER.traffic.requests, rel=0.03)


@pytest.mark.parametrize("kind", ARRIVALS)
def test_a_number_or_a_duration_bounds_every_process(kind) -> None:
    needed = {"on_off": {"on_rate_per_s": 9, "mean_on_s": 4, "mean_off_s": 4}, "replayed": {"traffic": "o"},
              "gamma": {"rate_per_s": 4, "cv": 2}}  # fmt: skip
    process = ARRIVALS[kind](**needed.get(kind, {"rate_per_s": 4}))
    for requests, duration_s in ((1, None), (500, None), (None, 200.0)):
        arrival_s = process.draw(source(), requests, duration_s)
        assert arrival_s[0] == 0
        assert (np.diff(arrival_s) >= 0).all()
        assert requests is None or len(arrival_s) == requests
        assert duration_s is None or arrival_s[-1] <= duration_s
        assert duration_s is None or len(arrival_s) == pytest.approx(
            200 * process.mean_rate_per_s(source()), rel=0.5
        )


# Lengths ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [-0.9, -0.3, 0.0, 0.6, 1.0])
def test_lengths_have_the_rank_correlation_that_was_asked_for(wanted) -> None:
    lengths = LogNormalLengths(
        **{**{f: getattr(PLAIN, f) for f in PLAIN.__slots__}, "rank_correlation": wanted}
    )
    prompt, output = lengths.draw(source(7), 40_000)
    assert rank_correlation(prompt, output) == pytest.approx(wanted, abs=0.02)
    assert np.median(prompt) == pytest.approx(500, rel=0.02)
    assert (prompt.max(), prompt.min() >= 1) == (8_000, True)


def test_a_mixture_has_both_humps_in_their_shares() -> None:
    prompt, output = TWO.draw(source(8), 40_000)
    assert (prompt < 400).mean() == pytest.approx(0.3, abs=0.01)
    assert np.median(prompt[prompt < 400]) == pytest.approx(50, rel=0.03)
    assert np.median(prompt[prompt >= 400]) == pytest.approx(3_000, rel=0.03)
    assert np.median(output) == pytest.approx(40, rel=0.03)
    assert rank_correlation(prompt, output) == pytest.approx(-0.6, abs=0.02)


@pytest.mark.parametrize(("drawn", "kept"), [("pairs", True), ("apart", False)])
def test_lengths_of_another_traffic(drawn, kept) -> None:
    other = OTHER.traffic
    prompt, output = EmpiricalLengths(traffic="o", drawn=drawn).draw(source(9), 20_000)
    assert ks_distance(prompt, other.prompt_tokens) < 0.03
    pairs = set(zip(other.prompt_tokens.tolist(), other.output_tokens.tolist(), strict=True))
    assert (set(zip(prompt.tolist(), output.tolist(), strict=True)) <= pairs) is kept


# Sessions --------------------------------------------------------------------------------------------------------

TALK = Sessions(
    mean_turns=4, mean_pause_s=20, system_tokens=200, system_prompts=3, longest_tokens=50_000, block_tokens=16
)


def test_prompts_grow_and_share_what_came_before() -> None:
    made = generate(SyntheticModel(Poisson(rate_per_s=5), PLAIN, TALK), requests=3_000, seed=1)
    hashes = made.prefix_hashes
    assert np.array_equal(np.diff(hashes.offsets), -(-made.prompt_tokens // 16))
    assert made.rate_per_s == pytest.approx(5, rel=0.1)
    own = hashes.flat[hashes.offsets[:-1] + 200 // 16]  # the first block that is the session's
    system = hashes.flat[hashes.offsets[:-1]]
    assert len(np.unique(system)) == 3
    sessions = {key: np.flatnonzero(own == key) for key in np.unique(own)}
    assert np.mean([len(turns) for turns in sessions.values()]) == pytest.approx(3.9, rel=0.15)
    hits, _ = curves.prefix_hits(hashes)
    for turns in list(sessions.values())[:200]:
        assert (np.diff(made.prompt_tokens[turns]) > 0).all()
        for before, after in pairwise(turns):
            shared = hashes.offsets[before + 1] - hashes.offsets[before]
            assert hits[after] >= shared
            assert np.array_equal(*(hashes.flat[hashes.offsets[i] :][:shared] for i in (before, after)))
    names = blocks_of(hashes, made.prompt_tokens, 16)  # what the simulator makes of it
    assert len(names.ids) > 0.5 * made.prompt_tokens.sum() / 16


def test_use_is_steady_from_the_first_request_on() -> None:
    made = generate(SyntheticModel(Poisson(rate_per_s=10), PLAIN, TALK), requests=20_000, seed=2)
    thirds = np.array_split(made.prompt_tokens, 3)
    assert [part.mean() for part in thirds] == pytest.approx([made.prompt_tokens.mean()] * 3, rel=0.08)
    counts = curves.arrivals_per_bin(made.arrival_s, made.duration_s / 5).count[:5]
    assert counts == pytest.approx(np.full(5, 4_000), rel=0.08)


@pytest.mark.parametrize("kind", ARRIVALS)
def test_every_arrival_process_begins_sessions_at_its_rate(kind) -> None:
    needed = {"on_off": {"on_rate_per_s": 12, "mean_on_s": 30, "mean_off_s": 30}, "gamma": {"rate_per_s": 6, "cv": 2},
              "replayed": {"traffic": "o", "scale": 2.0}, "diurnal": {"rate_per_s": 6, "period_s": 500}}  # fmt: skip
    process = ARRIVALS[kind](**needed.get(kind, {"rate_per_s": 6}))
    made = generate(SyntheticModel(process, PLAIN, TALK), duration_s=3_000, others=[OTHER], seed=3)
    assert made.duration_s <= 3_000
    assert made.rate_per_s == pytest.approx(process.mean_rate_per_s(source()), rel=0.2)


def test_a_session_ends_before_its_prompt_is_too_long() -> None:
    short = Sessions(mean_turns=20, mean_pause_s=5, longest_tokens=1_500)
    made = generate(SyntheticModel(Poisson(rate_per_s=5), PLAIN, short), requests=1_000, seed=1)
    assert made.prompt_tokens.max() <= 1_500


# Models ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [SyntheticModel(Poisson(rate_per_s=4), PLAIN),
     SyntheticModel(OnOff(on_rate_per_s=9, mean_on_s=5, mean_off_s=9), TWO, TALK),
     SyntheticModel(Replayed(traffic="o"), EmpiricalLengths(traffic="o"))],
)  # fmt: skip
def test_a_model_is_written_as_it_is_read_and_repeats(model) -> None:
    written = json.loads(json.dumps(model.to_dict()))
    assert parse_model(written) == model
    one, two, other = (
        generate(parse_model(written), requests=300, seed=s, others=[OTHER]) for s in (1, 1, 2)
    )
    assert one.recipe["arrays_sha256"] == two.recipe["arrays_sha256"] != other.recipe["arrays_sha256"]
    assert [parent["id"] for parent in one.recipe["parents"]] == model.traffics
    json.dumps(one.recipe, allow_nan=False)
    assert statistics(one)["requests"] == 300


GOOD = SyntheticModel(Poisson(rate_per_s=4), PLAIN).to_dict()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("nothing", "model"), ({"arrivals": None}, "model.arrivals.kind"),
        ({"arrivals": {"kind": "?"}}, "model.arrivals.kind"),
        ({"arrivals": {"kind": "poisson"}}, "model.arrivals.rate_per_s"),
        ({"arrivals": {"kind": "poisson", "rate_per_s": "4"}}, "model.arrivals.rate_per_s"),
        ({"arrivals": {"kind": "poisson", "rate_per_s": 4, "cv": 1}}, "model.arrivals.cv"),
        ({"arrivals": {"kind": "replayed", "traffic": "z"}}, "model.arrivals.traffic"),
        ({"arrivals": {"kind": "replayed", "traffic": "o", "scale": 1e-9}}, "model.arrivals.scale"),
        ({"lengths": {"kind": "empirical", "traffic": "z"}}, "model.lengths.traffic"),
        ({"sessions": {"mean_turns": 0}}, "model.sessions.mean_turns"), ({"sessions": 4}, "model.sessions"),
        ({"extra": 1}, "model.extra"),
        ({"sessions": {"mean_turns": 200, "mean_pause_s": 86_400}}, "requests"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_names_its_field(change: Any, field: str) -> None:
    with pytest.raises(TrafficError) as caught:
        generate(
            parse_model(change if change == "nothing" else {**GOOD, **change}), requests=10**5, others=[OTHER]
        )
    assert caught.value.field == field


FIELDS = {"requests", "duration_s", "seed", "model"} | {
    f"model.{part}.{entry.name}"
    for part, kinds in (*PARTS.items(), ("sessions", {"": Sessions}))
    for kind in kinds.values()
    for entry, _ in described_fields(kind)
}
EXTREMES = st.sampled_from([1e-6, 1e-3, 1.0, 1e3, 1e6])
ANY_ARRIVALS = st.one_of(
    st.builds(lambda a, b: {"kind": "gamma", "rate_per_s": a, "cv": min(100.0, b)}, EXTREMES, EXTREMES),
    st.builds(lambda a, b, c, d: {"kind": "on_off", "on_rate_per_s": a, "off_rate_per_s": b, "mean_on_s": max(1e-3, c),
                                  "mean_off_s": max(1e-3, d)}, EXTREMES, EXTREMES, EXTREMES, EXTREMES),
    st.builds(lambda a, b: {"kind": "diurnal", "rate_per_s": a, "period_s": max(1.0, b)}, EXTREMES, EXTREMES),
    st.builds(lambda a, b: {"kind": "replayed", "traffic": "o", "scale": a, "bin_s": max(1e-3, b)}, EXTREMES, EXTREMES),
)  # fmt: skip
ANY_SESSIONS = st.none() | st.builds(
    lambda turns, pause, system, longest: {"mean_turns": turns, "mean_pause_s": pause, "system_tokens": system,
                                           "longest_tokens": longest},
    st.sampled_from([1.0, 3.0, 200.0]), st.sampled_from([1e-3, 60.0, 86_400.0]), st.sampled_from([0, 10**6]),
    st.sampled_from([2, 4_000, 10**8]),
)  # fmt: skip


@settings(max_examples=80, deadline=None, derandomize=True)
@given(ANY_ARRIVALS, ANY_SESSIONS, st.sampled_from([{"requests": 50}, {"duration_s": 30.0}]))
def test_whatever_cannot_be_made_names_a_field_that_is_there(arrivals: Any, sessions: Any, size: Any) -> None:
    model = {**GOOD, "arrivals": arrivals, **({"sessions": sessions} if sessions else {})}
    try:
        made = generate(parse_model(model), **size, others=[OTHER])
    except TrafficError as error:
        assert {one.field for one in error.errors} <= FIELDS, error.errors
    else:
        assert made.requests == size.get("requests", made.requests)


def test_little_of_a_traffic_is_replayed_as_long_as_it_takes_few_passes() -> None:
    thin = {**GOOD, "arrivals": {"kind": "replayed", "traffic": "o", "scale": 0.01}}
    made = generate(parse_model(thin), requests=400, others=[OTHER])
    assert made.rate_per_s == pytest.approx(0.01 * (OTHER.traffic.rate_per_s or 0), rel=0.2)
    with pytest.raises(TrafficError, match="passes") as caught:
        generate(parse_model(thin), requests=1_000_000, others=[OTHER])
    assert caught.value.field == "model.arrivals.scale"


@pytest.mark.parametrize(
    ("size", "field"),
    [({}, "requests"), ({"requests": 0}, "requests"), ({"requests": MAX_REQUESTS + 1}, "requests"),
     ({"requests": 5, "duration_s": 5.0}, "requests"), ({"duration_s": -1.0}, "duration_s"),
     ({"duration_s": 1e12}, "duration_s"), ({"requests": 5, "seed": -1}, "seed")],
)  # fmt: skip
def test_a_size_that_makes_no_sense_is_refused(size: Any, field: str) -> None:
    with pytest.raises(TrafficError) as caught:
        generate(parse_model(GOOD), **size)
    assert caught.value.field == field


def test_all_kinds_are_described() -> None:
    for kind in (*ARRIVALS.values(), *LENGTHS.values(), Sessions):
        assert kind.TITLE
        assert kind.ABOUT.endswith(".")
