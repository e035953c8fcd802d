"""Pooling over replicas, bounds that cut hopeless runs short, and what an evaluation means."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.search.combinations import Candidate, Pools
from planner.search.conditions import Link
from planner.search.evaluate import (
    Bench,
    Evaluation,
    Requests,
    Stopped,
    evaluate,
    evaluate_candidate,
    judge,
)
from planner.search.objective_text import parse_objectives
from planner.search.objectives import Objective
from planner.search.outside import outside, with_axis
from planner.search.seconds import percent_text, seconds_text
from planner.simulation.cluster.deployment import LEAST_TOKENS, ROUND_ROBIN
from planner.simulation.kernel import simulate
from planner.simulation.knobs import VllmKnobs
from planner.traffic import Traffic

KNOBS = VllmKnobs(max_num_batched_tokens=512, max_num_seqs=16, num_blocks=4000)
TTFT, ITL = Objective("ttft", 95.0, 1.0), Objective("itl", 99.0, 0.1)


def bench(traffic: Traffic, model: Any, *objectives: Objective) -> Bench:
    requests = Requests(traffic.arrival_s, traffic.prompt_tokens, traffic.output_tokens)
    return Bench(
        requests, objectives or (TTFT, ITL), (TTFT, ITL), model.arrays(), 0.0, simulate, lambda: False
    )


def test_requests_are_dealt_in_turn() -> None:
    requests = Requests(np.arange(5.0), np.arange(5), np.arange(5))
    assert requests.share(1, 3).arrival_s.tolist() == [1.0, 4.0]
    assert sorted(a for r in range(3) for a in requests.share(r, 3).arrival_s) == [0, 1, 2, 3, 4]


def test_percentiles_come_from_pooled_samples(traffic: Callable[..., Traffic], model: Any) -> None:
    """Two replicas of very different latency: the mean of their percentiles is not the pool's percentile."""
    uneven = traffic(requests=200, rate_per_s=3.0)
    prompt = uneven.prompt_tokens.copy()
    prompt[1::2] = 5
    uneven = replace(uneven, prompt_tokens=prompt)
    found = evaluate(bench(uneven, model), KNOBS, 2, complete=True)
    parts = []
    for replica in range(2):
        part = Requests(uneven.arrival_s, uneven.prompt_tokens, uneven.output_tokens).share(replica, 2)
        parts.append(
            simulate(part.arrival_s, part.prompt_tokens, part.output_tokens, None, KNOBS, model.arrays())
        )
    pooled = float(np.percentile(np.concatenate([p.ttft_s() for p in parts]), 95.0))
    averaged = float(np.mean([p.percentile("ttft", 95.0) for p in parts]))
    assert found.values_s["ttft:p95"] == pooled
    assert abs(averaged / pooled - 1.0) > 0.05


def test_queue_and_prefill_add_up_to_ttft(traffic: Callable[..., Traffic], model: Any) -> None:
    some = traffic(requests=200)
    found = evaluate(bench(some, model, Objective("ttft", 50.0, 1.0)), KNOBS, 1, complete=True)
    outcome = simulate(some.arrival_s, some.prompt_tokens, some.output_tokens, None, KNOBS, model.arrays())
    assert found.split_s["queue"] + found.split_s["prefill"] == pytest.approx(outcome.ttft_s().mean())
    assert 0.0 <= found.split_s["wait_between_chunks"] <= found.split_s["prefill"]


@pytest.mark.parametrize("seed", range(8))
def test_a_run_cut_short_gives_a_lower_bound_and_the_same_answer(
    seed: int, traffic: Callable[..., Traffic], model: Any
) -> None:
    random = np.random.default_rng(seed)
    texts = [
        f"ttft:p{random.choice([50, 90, 99])}:{random.uniform(0.02, 0.5):.3f}",
        f"itl:p{random.choice([50, 90, 99])}:{random.uniform(0.012, 0.05):.3f}",
        f"tpot:p{random.choice([50, 90])}:{random.uniform(0.012, 0.05):.3f}",
        f"e2e:p{random.choice([50, 90])}:{random.uniform(0.2, 1.0):.3f}",
    ]
    some = bench(
        traffic(requests=240, rate_per_s=random.uniform(2, 20), seed=seed), model, *parse_objectives(texts)
    )
    for replicas in (1, 2, 3, 5, 8):
        whole = evaluate(some, KNOBS, replicas, complete=True)
        short = evaluate(some, KNOBS, replicas, complete=False)
        assert whole.complete
        met = judge(whole, some.objectives)[0] == "meets"
        assert (judge(short, some.objectives)[0] == "meets") == met
        if met:
            assert short == whole
        for key, bound in short.values_s.items():
            assert bound <= whole.values_s[key]


def test_a_hopeless_candidate_is_cut_short(traffic: Callable[..., Traffic], model: Any) -> None:
    some = bench(traffic(requests=400), model, Objective("itl", 50.0, 0.001))
    short = evaluate(some, KNOBS, 8, complete=False)
    assert not short.complete
    status, reason = judge(short, some.objectives)
    assert status == "fails"
    assert "at least" in reason


def test_more_load_than_capacity_is_saturated_however_lax_the_limit(
    traffic: Callable[..., Traffic], model: Any
) -> None:
    lax = bench(traffic(requests=600, rate_per_s=60.0), model, Objective("ttft", 95.0, 80_000.0))
    found = evaluate(lax, KNOBS, 1, complete=True)
    status, reason = judge(found, lax.objectives)
    assert status == "saturated"
    assert "never served" in reason


def test_time_outside_the_calibrated_region_is_not_covered(
    traffic: Callable[..., Traffic], measured_model: Callable[..., Any]
) -> None:
    some = bench(traffic(), measured_model(tokens=300), Objective("ttft", 50.0, 100.0))
    found = evaluate(some, KNOBS, 1, complete=True)
    assert found.uncovered_share > 0.005
    assert judge(found, some.objectives)[0] == "not covered"
    barely = replace(found, uncovered_share=0.005)
    assert judge(barely, some.objectives)[0] == "meets"


def test_what_is_not_covered_says_what_it_would_miss_as_well(
    traffic: Callable[..., Traffic], measured_model: Callable[..., Any]
) -> None:
    some = bench(traffic(), measured_model(tokens=300), Objective("ttft", 50.0, 0.001))
    found = evaluate(some, KNOBS, 1, complete=True)
    status, reason = judge(found, some.objectives)
    assert status == "not covered"
    assert "(at most 0.5 %); by the nearest measured steps TTFT p50 " in reason
    assert reason.endswith("> 1 ms")


@pytest.mark.parametrize("by", ["itself", "router", "pools"])
def test_the_axis_that_it_is_outside_by_is_worked_out(
    traffic: Callable[..., Traffic], measured_model: Callable[..., Any], by: str
) -> None:
    plain = bench(traffic(), measured_model(tokens=300), Objective("ttft", 50.0, 100.0))
    some = replace(plain, link=Link.entered(25.0))
    candidate = Candidate(KNOBS, 2, router=ROUND_ROBIN if by == "itself" else LEAST_TOKENS)
    if by == "pools":
        candidate = Candidate(KNOBS, 2, Pools(KNOBS, KNOBS, "pull"), 1)
    found = evaluate_candidate(some, candidate)
    assert found.uncovered_share > 0.005
    share = f"{100 * found.uncovered_share:.3g} % in steps of up to "
    text = outside(some, candidate, found)
    assert text.startswith(share)
    assert text.endswith(" tokens; measured up to 300")
    reason = with_axis(judge(found, some.objectives)[1], text)
    assert reason.endswith(f"(at most 0.5 %): {text}")
    wide = bench(traffic(), measured_model(tokens=10_000), Objective("ttft", 50.0, 100.0))
    assert outside(replace(wide, link=some.link), candidate, found) == ""


def test_stopping_ends_between_replicas(traffic: Callable[..., Traffic], model: Any) -> None:
    with pytest.raises(Stopped):
        evaluate(replace(bench(traffic(), model), should_stop=lambda: True), KNOBS, 1, complete=True)


def test_a_metric_without_samples_is_absent(traffic: Callable[..., Traffic], model: Any) -> None:
    some = traffic(requests=50)
    single = replace(some, output_tokens=np.ones(50, dtype=np.int64))
    found = evaluate(bench(single, model), KNOBS, 2, complete=False)
    assert set(found.values_s) == {"ttft:p95"}
    assert isinstance(found, Evaluation)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.0, "2 s"), (1.6123, "1.61 s"), (0.1, "100 ms"), (0.07123, "71.2 ms"), (0.00045, "450 µs"), (0.0, "0 s"),
     (12345.6, "12,346 s"), (0.9999, "1,000 ms")],
)  # fmt: skip
def test_times_are_written_with_their_unit(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("share", "signed", "text"),
    [(0.12, False, "12 %"), (0.0034, False, "0.34 %"), (0.034, True, "+3.4 %"), (-0.155, True, "-16 %"),
     (0.9962, False, "100 %"), (2.1649, False, "216 %"), (658.0, False, "65,800 %"), (0.0, False, "0 %")],
)  # fmt: skip
def test_shares_are_written_in_whole_per_cents_or_two_digits(share: float, signed: bool, text: str) -> None:
    assert percent_text(share, signed=signed) == text
