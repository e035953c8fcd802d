"""Two kinds of hardware: every pool on either, compared by cost, with the same answer as trying everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calibration.architecture import Architecture
from calibration.capacity import KVCapacity
from calibration.steptime import linear_model
from planner.search import Conditions, Link, PlanResult, SearchSpace, parse_objectives, plan, prepare, ranking
from planner.search.combinations import Candidate
from planner.search.conditions import ConditionError
from planner.search.crew import in_threads
from planner.search.evaluate import evaluate_candidate, judge
from planner.search.fleet import Fleet
from planner.search.hardware import Hardware
from planner.search.plan import search
from planner.simulation.cluster.deployment import Disaggregated, HandOff, Network, pool
from planner.simulation.kernel.cluster import simulate as simulate_cluster
from planner.traffic import Traffic

FAST = Link.entered(50.0, 0.001)
SPACE = SearchSpace((256, 1024), max_num_seqs=(16, 64), max_replicas=3, local_prefill_tokens=(0,))
Ask = Callable[..., PlanResult]


def other(model: Any, step_s: float, token_s: float) -> Hardware:
    """Hardware B with the KV pool of a smaller device."""
    return Hardware(
        "B", replace(model, base=linear_model(step_s, token_s=token_s)), KVCapacity.constant(30_000)
    )


@pytest.fixture
def ask(traffic: Callable[..., Traffic], model: Any, architecture: Architecture) -> Ask:
    def asked(*objectives: str, requests: Traffic | None = None, **options: Any) -> PlanResult:
        options = {"refits": 2, "threads": 2, "max_model_len": 8192, "device": "A"} | options
        some = requests or traffic(requests=240, rate_per_s=6.0)
        goals = parse_objectives(objectives)
        return plan(some, model, 40_000, architecture, goals, options.pop("space", SPACE), **options)

    return asked


def priced(first: float, second: float, **more: Any) -> Conditions:
    return Conditions(link=FAST, price_per_gpu_hour=first, second_price_per_gpu_hour=second, **more)


def test_every_deployment_on_either_kind_is_compared(ask: Ask, model: Any) -> None:
    """B decodes twice as fast and prefills half as fast."""
    result = ask(
        "ttft:p95:0.6", "itl:p99:0.04", second=other(model, 0.005, 2e-4), conditions=priced(2.0, 2.0)
    )
    pairs = {(c.pools.prefill_kind, c.pools.decode_kind) for c in result.candidates if c.pools}
    alike = {c.kind for c in result.candidates if not c.pools}
    assert pairs == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert alike == {0, 1}
    told = result.to_dict()
    assert [kind["device"] for kind in told["inputs"]["hardware"]] == ["A", "B"]
    versions = {kind["step_time_sha256"] for kind in told["inputs"]["hardware"]}
    assert len(versions) == 2
    assert told["inputs"]["step_time_sha256"] in versions
    lost = [each.what for each in result.verdict.lost]
    assert len([what for what in lost if " on " in what and not what.startswith("max_num")]) == 5, (
        "every class but the choice's own"
    )


def test_the_cheaper_hardware_wins_and_the_dearer_says_by_how_much(ask: Ask, model: Any) -> None:
    same = Hardware("B", model, KVCapacity.constant(40_000))
    for prices, name in (((4.0, 1.0), "B"), ((1.0, 4.0), "A")):
        result = ask("ttft:p95:1", "itl:p99:0.2", second=same, conditions=priced(*prices))
        choice = result.verdict.choice
        assert choice is not None
        assert choice.hardware == name
        assert choice.cost_per_hour == choice.gpus * 1.0
        assert f"on {name} with" in result.verdict.sentence
        assert "an hour" in result.verdict.sentence
        dearer = next(
            x for x in result.verdict.lost if x.what == f"aggregated on {'A' if name == 'B' else 'B'}"
        )
        assert "costs more (4 times as much)" in dearer.reason


def test_budgets_that_break_an_objective_are_said_of_the_replicas_they_are_of(ask: Ask, model: Any) -> None:
    """On A every large budget breaks ITL p99, on B, which is fast, none does: it is not said of all of them."""
    for prices, name in (((1.0, 9.0), "A"), ((9.0, 1.0), "B")):
        result = ask(
            "ttft:p95:2", "itl:p99:0.06", second=other(model, 0.002, 2e-5), conditions=priced(*prices)
        )
        assert result.verdict.choice is not None
        said = [each.what for each in result.verdict.lost if each.what.startswith("max_num_batched_tokens")]
        replicas = result.verdict.choice.candidate.replicas
        where = f" of {replicas} replica{'s' if replicas > 1 else ''} alike on {name}"
        assert all(what.endswith(where) for what in said), said
        assert bool(said) == (name == "A")


def test_equal_hardware_at_equal_prices_is_the_plan_of_one_kind(ask: Ask, model: Any) -> None:
    """The second kind changes nothing where it is the first again: ties go to the first."""
    alone = ask("ttft:p95:0.5", "itl:p99:0.2", conditions=Conditions(link=FAST))
    twice = ask("ttft:p95:0.5", "itl:p99:0.2", conditions=Conditions(link=FAST),
                second=Hardware("B", model, KVCapacity.constant(40_000)))  # fmt: skip
    one, two = alone.verdict.choice, twice.verdict.choice
    assert one is not None
    assert two is not None
    assert (two.candidate, two.predictions, two.gpus) == (one.candidate, one.predictions, one.gpus)


def test_mixed_pools_win_where_each_phase_has_the_hardware_for_it(
    model: Any, traffic: Callable[..., Traffic], architecture: Architecture
) -> None:
    """A prefills fast and decodes slowly, B the other way round: on two GPUs only A for prefill and B for decode meets
    both limits."""
    fast_prefill = replace(model, base=linear_model(0.030, token_s=2e-5))
    some = traffic(requests=300, rate_per_s=4.0, prompt=600, output=40)
    goals = parse_objectives(["ttft:p95:0.3", "itl:p99:0.014"])
    result = plan(
        some, fast_prefill, 40_000, architecture, goals, replace(SPACE, max_replicas=2),
        second=other(model, 0.008, 6e-4), device="A", refits=2, threads=2, max_model_len=8192,
        conditions=priced(1.0, 1.0),
    )  # fmt: skip
    choice = result.verdict.choice
    assert choice is not None
    assert choice.hardware == {"prefill": "A", "decode": "B"}
    assert choice.candidate.kinds == (0, 1)
    assert "on A for prefill and B for decode" in result.verdict.sentence
    assert result.summary_dict()["hardware"] == {"prefill": "A", "decode": "B"}


def test_step_times_go_with_the_pool(
    model: Any, traffic: Callable[..., Traffic], architecture: Architecture
) -> None:
    """The candidate's run is the cluster simulator's with A's steps in one pool and B's in the other."""
    some = traffic(requests=120, rate_per_s=4.0)
    second = other(model, 0.005, 3e-4)
    question = prepare(some, model, 40_000, architecture, parse_objectives(["ttft:p95:1", "itl:p99:1"]), SPACE,
                       conditions=Conditions(link=FAST), second=second, max_model_len=8192, refits=0)  # fmt: skip
    hand = question.hand
    for pools in hand.pairs[:: max(1, len(hand.pairs) // 8)]:
        candidate = Candidate(pools.decode, 3, pools, 1)
        found = evaluate_candidate(hand.bench, candidate)
        steps = [model.arrays(), second.model.arrays()]
        out = simulate_cluster(
            some.arrival_s, some.prompt_tokens, some.output_tokens, None,
            Disaggregated(
                pool(1, pools.prefill, steps[pools.prefill_kind]), pool(2, pools.decode, steps[pools.decode_kind]),
                HandOff.vllm(float(architecture.kv_bytes_per_token())), Network.cards(FAST.table),
            ),
        )  # fmt: skip
        assert found.values_s["ttft:p95"] == np.percentile(out.requests.ttft_s(), 95.0)
        assert found.values_s["itl:p99"] == out.requests.percentile("itl", 99.0)


@pytest.mark.parametrize("seed", range(20))
def test_the_search_finds_what_trying_everything_finds(
    seed: int,
    model: Any,
    traffic: Callable[..., Traffic],
    architecture: Architecture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Random hardware, prices, limits, links and loads: the least cost that meets is found, on any number of threads,
    and whatever was rejected fails where it is tried."""
    monkeypatch.setattr("planner.search.screening.LEAST_REQUESTS", 100)
    random = np.random.default_rng(seed)
    some = traffic(
        requests=160, rate_per_s=random.uniform(3, 25), prompt=int(random.integers(100, 700)), seed=seed
    )
    second = other(model, random.uniform(0.004, 0.02), random.uniform(5e-5, 3e-4))
    terms = priced(random.choice([1.0, 2.5]), random.choice([1.0, 2.0, 4.0]),
                   second_max_gpus=int(random.choice([1, 2, 9])))  # fmt: skip
    if seed >= 6:
        terms = replace(terms, link=Link.entered(float(random.choice([0.1, 1.0, 50.0])), 0.001))
    texts = [f"ttft:p90:{random.uniform(0.05, 0.8):.3f}", f"itl:p95:{random.uniform(0.008, 0.05):.4f}"]
    question = prepare(some, model, 40_000, architecture, parse_objectives(texts), replace(SPACE, max_replicas=3),
                       conditions=terms, second=second, max_model_len=8192, refits=0, device="A")  # fmt: skip
    hand = question.hand
    bench, fleet = hand.bench, hand.bench.fleet
    everything = [Candidate(c.knobs, n, kind=c.kind) for c in hand.combinations for n in range(1, 4)]
    everything += [Candidate(p.decode, n, p, k) for p in hand.pairs for n in (2, 3) for k in range(1, n)]
    met = []
    whole = {}
    for candidate in everything:
        if fleet.allows(candidate):
            evaluation = evaluate_candidate(bench, candidate)
            status, reason = judge(evaluation, bench.objectives)
            whole[candidate] = status
            if status == "meets":
                met.append(ranking.Option(candidate, evaluation, status, reason, (), fleet.per_replica))
    results = [search(question, in_threads(hand.do, threads)) for threads in (1, 3)]
    assert results[0].to_dict() == results[1].to_dict()
    for row in results[0].candidates:
        for tried in row.tried:
            there = replace(row.candidate, replicas=tried.replicas, prefill_replicas=tried.prefill_replicas)
            assert (tried.status == "meets") == (whole[there] == "meets"), tried.reason
            assert tried.reason or tried.status == "meets"
    choice = results[0].verdict.choice
    assert (choice is not None) == bool(met)
    if choice is not None:
        assert choice.cost_per_hour == pytest.approx(min(option.cost for option in met))
        assert choice.candidate in [option.candidate for option in met]


def test_limits_of_gpus_are_kept_and_replicas_have_their_ranks(ask: Ask, model: Any) -> None:
    terms = priced(1.0, 1.0, gpus_per_replica=2, max_gpus=4, second_gpus_per_replica=4, second_max_gpus=4)
    result = ask("ttft:p95:0.0005", second=other(model, 0.005, 1e-4), conditions=terms)
    tried = {(c.kind, t.replicas) for c in result.candidates if not c.pools for t in c.tried}
    assert {n for kind, n in tried if kind == 0} <= {1, 2}
    assert {n for kind, n in tried if kind == 1} == {1}
    fleet = Fleet.of(terms, ("A", "B"), 8)
    assert fleet.per_replica == (2.0, 4.0)
    assert fleet.gpus_of(Candidate(result.candidates[0].knobs, 2, kind=1)) == 8


def test_one_price_alone_compares_nothing() -> None:
    with pytest.raises(ConditionError, match="both prices"):
        Conditions(second_price_per_gpu_hour=2.0)
    with pytest.raises(ConditionError, match="both prices"):
        Conditions(price_per_gpu_hour=0.0, second_price_per_gpu_hour=2.0)
