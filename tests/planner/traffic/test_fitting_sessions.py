"""Sessions are found in what prompts share, and kept only where they hold on what was not seen."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.traffic import PrefixHashes, Traffic, TrafficError
from planner.traffic.fitting import FitReport, fit, judged
from planner.traffic.fitting.sessions import NONE, continued, fitted_sessions
from planner.traffic.generating import SyntheticModel, generate, parse_model
from planner.traffic.generating.arrivals import Gamma, OnOff, Poisson
from planner.traffic.generating.lengths import LogNormalLengths
from planner.traffic.generating.sessions import Sessions
from planner.traffic.shaping import Parent

SHORT = LogNormalLengths(
    prompt_median_tokens=300, prompt_sigma=0.8, prompt_largest_tokens=6_000, output_median_tokens=200,
    output_sigma=0.7, output_largest_tokens=2_000, rank_correlation=0.3,
)  # fmt: skip
CHAT = Sessions(
    mean_turns=4,
    mean_pause_s=30,
    system_tokens=1_024,
    system_prompts=5,
    longest_tokens=60_000,
    block_tokens=64,
)


STEADY = Poisson(rate_per_s=5)


def made(sessions: Sessions | None, arrivals=STEADY, requests=8_000, seed=1) -> Traffic:
    return generate(SyntheticModel(arrivals, SHORT, sessions), requests=requests, seed=seed)


def of(prompts: list[tuple[int, list[int]]], block_tokens: int = 10, output: int = 5) -> Traffic:
    """(tokens, hashes) of each prompt, a second apart."""
    count = len(prompts)
    offsets = np.cumsum([0, *(len(names) for _, names in prompts)])
    flat = np.array([name for _, names in prompts for name in names], np.uint64)
    return Traffic(
        np.arange(float(count)), np.array([tokens for tokens, _ in prompts]), np.full(count, output), "x", "columns",
        prefix_hashes=PrefixHashes(flat, offsets, block_tokens),
    )  # fmt: skip


def parents(traffic: Traffic) -> list[int]:
    hashes = traffic.prefix_hashes
    assert hashes is not None and hashes.block_tokens is not None
    return continued(traffic, hashes, hashes.block_tokens).tolist()


def test_a_conversation_is_followed_through_its_partial_blocks() -> None:
    """25 tokens are two whole blocks and a part; the next prompt begins with the two whole ones."""
    traffic = of([(25, [1, 2, 90]), (12, [7, 91]), (47, [1, 2, 3, 4, 92]), (60, [1, 2, 3, 4, 5, 6])])
    assert parents(traffic) == [NONE, NONE, 0, 2]


def test_a_prompt_that_leaves_no_room_for_the_answer_continues_nothing() -> None:
    assert parents(of([(20, [1, 2]), (24, [1, 2, 9])])) == [NONE, NONE]
    assert parents(of([(20, [1, 2]), (26, [1, 2, 9])])) == [NONE, 0]


def test_each_is_continued_once_and_the_longest_beginning_counts() -> None:
    traffic = of([(20, [1, 2]), (40, [1, 2, 3, 4]), (60, [1, 2, 3, 4, 5, 6]), (70, [1, 2, 3, 4, 8, 8, 8])])
    assert parents(traffic) == [NONE, 0, 1, NONE]


def test_what_many_go_on_from_is_no_conversation() -> None:
    """Three texts begin with the same document, one request was the document alone."""
    asked = [(20, [1, 2]), (40, [1, 2, 3, 30]), (40, [1, 2, 4, 40]), (40, [1, 2, 5, 50])]
    assert parents(of(asked)) == [NONE] * 4


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 80), st.integers(1, 4)), min_size=1, max_size=40), st.integers(1, 16)
)
def test_whatever_is_shared_only_earlier_requests_are_continued_once(prompts, block) -> None:
    asked = [(tokens, [owner * 100 + at for at in range(-(-tokens // block))]) for tokens, owner in prompts]
    found = parents(of(asked, block))
    kept = [one for one in found if one != NONE]
    assert len(set(kept)) == len(kept)
    assert all(one < at for at, one in enumerate(found))


def test_the_parameters_of_sessions_are_found() -> None:
    found = fitted_sessions(made(CHAT, requests=12_000), "x")
    assert found is not None
    assert found.sessions.mean_turns == pytest.approx(4, rel=0.07)
    assert found.sessions.mean_pause_s == pytest.approx(30, rel=0.07)
    assert (found.sessions.system_tokens, found.sessions.system_prompts) == (1_024, 5)
    assert found.arrivals["poisson"].rate_per_s == pytest.approx(5, rel=0.07)
    assert found.lengths["lognormal"].prompt_median_tokens == pytest.approx(300, rel=0.05)
    assert found.lengths["lognormal"].output_median_tokens == pytest.approx(200, rel=0.05)
    assert set(found.lengths) == {"lognormal", "mixture"}
    assert "replayed" not in found.arrivals


@pytest.mark.parametrize("arrivals", [STEADY, OnOff(on_rate_per_s=20, mean_on_s=30, mean_off_s=90)])
def test_sessions_are_kept_where_a_cache_finds_as_much(arrivals) -> None:
    parent = Parent("x", "made", made(CHAT, arrivals))
    report = fit(parent).report
    assert report.chosen[2] == "growing"
    none, growing = report.sessions
    assert none.figures["hit_rate"] == 0.0
    assert growing.figures["hit_rate"] == pytest.approx(growing.figures["hit_rate_heldout"], abs=0.05)
    assert report.model.sessions is not None
    assert parse_model(report.model.to_dict()) == report.model
    assert FitReport.from_dict(json.loads(json.dumps(report.to_dict(), allow_nan=False))) == report
    assert report.remarks == ()
    _, synthetic = judged(parent, *report.chosen)
    assert synthetic.prefix_hashes is not None


def test_documents_that_many_ask_about_are_no_sessions() -> None:
    """Each prompt is one of 20 documents and a question of its own: nothing goes on from anything."""
    rng = np.random.default_rng(3)
    asked = [(220, [*(int(document) * 100 + at for at in range(20)), 10_000 + 2 * at, 10_001 + 2 * at])
             for at, document in enumerate(rng.integers(0, 20, 1_000))]  # fmt: skip
    traffic = of(asked)
    report = fit(Parent("x", "x", traffic)).report
    assert report.chosen[2] == "none"
    assert report.sessions == ()
    assert any("is not in the model" in remark for remark in report.remarks)


def test_requests_on_their_own_are_taken_where_asked_for() -> None:
    parent = Parent("x", "made", made(CHAT))
    assert fit(parent, sessions="none").report.model.sessions is None
    assert fit(parent, lengths="empirical").report.chosen[1:] == ("empirical", "none")
    assert fit(parent, arrivals="gamma").report.chosen[0] == "gamma"


@pytest.mark.parametrize(
    ("sessions", "kinds", "field"),
    [(None, {"sessions": "growing"}, "sessions"), (None, {"sessions": "nonsense"}, "sessions"),
     (CHAT, {"sessions": "growing", "lengths": "empirical"}, "lengths"),
     (CHAT, {"sessions": "growing", "arrivals": "replayed"}, "arrivals")],
)  # fmt: skip
def test_what_sessions_cannot_be_fitted_with_is_refused_beside_its_field(sessions, kinds, field) -> None:
    with pytest.raises(TrafficError) as caught:
        fit(Parent("x", "x", made(sessions, Gamma(rate_per_s=5, cv=1.5), 1_500)), **kinds)
    assert caught.value.field == field


def test_how_partial_blocks_are_named_is_no_error_of_the_model() -> None:
    """Two traffics alike but for the last block of a prompt, which one names as the whole block it becomes."""
    traffic = made(CHAT)
    hashes = traffic.prefix_hashes
    assert hashes is not None and hashes.block_tokens is not None
    flat = hashes.flat.copy()
    partial = traffic.prompt_tokens % hashes.block_tokens > 0
    flat[hashes.offsets[1:][partial] - 1] = np.arange(partial.sum(), dtype=np.uint64)
    renamed = replace(traffic, prefix_hashes=replace(hashes, flat=flat))
    reports = [fit(Parent("x", "x", one)).report for one in (traffic, renamed)]
    held = [one.sessions[1].figures["hit_rate_heldout"] for one in reports]
    assert held[0] == pytest.approx(held[1], abs=1e-9)
    assert reports[1].chosen == reports[0].chosen


def test_what_sessions_do_not_bring_is_told() -> None:
    """A few long documents that many ask about, beside short talks of two turns: most of the reuse is no session's."""
    rng = np.random.default_rng(4)
    asked: list[tuple[int, list[int]]] = []
    for at in range(600):
        if at % 3 == 0:
            blocks = 20 * int(rng.integers(1, 9))
            asked.append((10 * blocks + 10, [*range(1_000 * blocks, 1_000 * blocks + blocks), 10**6 + at]))
        own = [2 * 10**6 + 10 * at + k for k in range(5)]
        asked += [(20, own[:2]), (50, own)]
    traffic = of(asked)
    report = fit(Parent("x", "x", traffic), sessions="growing").report
    assert any("whole blocks" in remark for remark in report.remarks)


@pytest.mark.parametrize(
    ("prompts", "words"),
    [([(25, [1, 2, 90])] * 400, "0 requests continue an earlier one"),
     ([(10 * (at % 400 + 1), list(range(at % 400 + 1))) for at in range(600)], "sessions begin")],
)  # fmt: skip
def test_why_sessions_cannot_be_fitted_is_told(prompts, words) -> None:
    with pytest.raises(TrafficError) as caught:
        fit(Parent("x", "x", of(prompts)), sessions="growing")
    assert words in caught.value.detail
