"""Bounds and early ends: below what every run does, and rejecting what the whole trace rejects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calibration.steptime import linear_model
from planner.search import Link, SearchSpace, floors, parse_objectives
from planner.search.combinations import Candidate, Pools, pool_pairs
from planner.search.engines import ENGINES, Engine
from planner.search.evaluate import Bench, evaluate_candidate, judge, run
from planner.search.floors import Floors, out_of_reach
from planner.search.requests import Requests
from planner.search.screening import Hopeless, missed_by_now, screen_of, watch
from planner.search.space import Bounds
from planner.search.splits import evaluate_pairs
from planner.simulation.cluster.glance import Glance, Told
from planner.simulation.kernel import cluster as kernel
from planner.simulation.kernel import simulate
from planner.traffic import Traffic

SPACE = SearchSpace((64, 512), (0,), (8, 64), max_replicas=6)
Problem = Callable[..., Bench]


@pytest.fixture
def problem(traffic: Callable[..., Traffic], model: Any) -> Problem:
    """A random question whose second kind of hardware is another; from idle to far too much for a few replicas."""

    def make(seed: int, requests: int = 700, **changes: Any) -> Bench:
        random = np.random.default_rng(700 + seed)
        some = traffic(
            requests=requests, rate_per_s=random.uniform(4, 60), prompt=int(random.integers(60, 900)),
            output=int(random.integers(4, 60)), seed=seed,
        )  # fmt: skip
        goals = parse_objectives(
            [
                f"ttft:p{random.choice([50, 90, 95])}:{random.uniform(0.05, 2.0):.3f}",
                f"itl:p{random.choice([50, 90, 99])}:{random.uniform(0.009, 0.06):.4f}",
                f"e2e:p{random.choice([50, 90])}:{random.uniform(0.3, 6.0):.3f}",
            ]
        )
        bench = Bench(
            Requests(some.arrival_s, some.prompt_tokens, some.output_tokens), goals, (goals[0], goals[1]),
            model.arrays(), 0.0, simulate, lambda: False, link=Link.entered(random.choice([0.2, 2.0, 50.0]), 0.001),
            bytes_per_token=131_072.0, second_step_time=linear_model(0.006, token_s=2e-4, decode_context_s=2e-7),
        )  # type: ignore[arg-type]  # fmt: skip
        return replace(bench, fleet=replace(bench.fleet, names=("A", "B"), gpus=(1, 1), prices=(None, None),
                                            most=(9, 9)), **changes)  # fmt: skip

    return make


def pairs_of(bench: Bench, engine: Engine = "vllm", kv_tokens: int = 12_000) -> list[Pools]:
    median = int(np.median(bench.requests.prompt_tokens))
    space = replace(SPACE, block_tokens={"vllm": 16, "sglang": 1}.get(engine, 32))
    found = pool_pairs(space, Bounds(4096, 64), kv_tokens, 8192, engine, median)
    return [replace(p, prefill_kind=k % 2, decode_kind=k // 2 % 2) for k, p in enumerate(found)]


def floors_of(bench: Bench) -> tuple[Floors, ...]:
    return tuple(Floors.of(bench.of_kind(kind), 512) for kind in (0, 1))


@pytest.mark.parametrize("seed", range(6))
def test_no_request_is_served_sooner_than_the_least_wait(seed: int, problem: Problem) -> None:
    bench = problem(seed)
    own = floors_of(bench)
    near: list[float] = []
    for pair in pairs_of(bench, kv_tokens=200_000 if seed % 2 else 12_000)[::3]:
        for prefill, decode in ((1, 3), (3, 1)):
            candidate = Candidate(pair.decode, prefill + decode, pair, prefill)
            least_s = floors._least_waits_s(bench, own[pair.prefill_kind], candidate)
            pooled = run(bench, candidate).pooled
            assert (pooled.ttft_s() >= least_s).all()
            told_s = (pooled.prefill_end_s - pooled.arrival_s).max()
            near.append(float(least_s.max() / told_s) if not pair.local_prefill_tokens else 0.0)
            tpot_s = (pooled.done_s - pooled.first_token_s)[pooled.output_tokens > 1]
            gaps = pooled.output_tokens[pooled.output_tokens > 1] - 1
            assert (tpot_s >= gaps * own[pair.decode_kind].step_s).all()
    assert seed % 2 == 0 or max(near) > 0.5, "with room for KV caches the bound is near"


@pytest.mark.parametrize("seed", range(12))
def test_what_is_out_of_reach_fails_on_the_whole_trace(seed: int, problem: Problem) -> None:
    bench = problem(seed)
    own = floors_of(bench)
    for pair in pairs_of(bench)[:: 2 + seed % 3]:
        for prefill, decode in ((1, 1), (2, 1), (1, 3)):
            candidate = Candidate(pair.decode, prefill + decode, pair, prefill)
            if out_of_reach(bench, own, candidate):
                assert judge(evaluate_candidate(bench, candidate), bench.objectives)[0] != "meets"


def test_every_bound_rejects_what_it_is_for(problem: Problem) -> None:
    """Each by itself, on a question in which only what it bounds is short."""
    found: dict[str, set[str]] = {}
    cases = {
        "gaps": (["itl:p50:0.005"], 50.0, 12_000),
        "wait": (["ttft:p90:0.2"], 50.0, 12_000),
        "outputs": (["e2e:p95:5"], 50.0, 12_000),
        "transfers": (["ttft:p95:50"], 0.02, 12_000),
    }
    for name, (texts, gb_per_s, kv_tokens) in cases.items():
        goals = parse_objectives(texts)
        bench = problem(3, objectives=goals, trade=(goals[0], goals[0]), link=Link.entered(gb_per_s, 0.001))
        last_s = float(bench.requests.arrival_s[-1])
        heavy = replace(
            bench, requests=replace(bench.requests.faster(last_s / 25.0), output_tokens=np.full(700, 80))
        )
        own = floors_of(heavy)
        for pair in pairs_of(heavy, kv_tokens=kv_tokens):
            for prefill in (1, 4):
                said = out_of_reach(heavy, own, Candidate(pair.decode, prefill + 1, pair, prefill))
                found.setdefault(name, set()).add(said)
    assert any("takes at least" in said for said in found["gaps"])
    assert any("though every step were as short as can be" in said for said in found["wait"])
    assert any("the outputs take at least" in said for said in found["outputs"])
    assert any("the transfers take at least" in said for said in found["transfers"])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(3))
def test_what_a_glance_tells_is_what_comes_of_it(
    engine: Engine, seed: int, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every look: what is told of a request is so in the end, and what is still to come is not earlier."""
    monkeypatch.setattr(kernel, "PAUSES", 400)
    bench = problem(seed)
    for pair in pairs_of(bench, engine)[:: 3 + seed]:
        candidate = Candidate(pair.decode, 4, pair, 1 + seed % 3)
        seen: list[tuple[int, int, Any, Told]] = []

        def look(glance: Glance, seen: Any = seen) -> None:
            seen.append((glance.arrived, glance.peak_running, glance.gap_counts(), glance.told()))

        whole = run(bench, candidate)
        watched = run(bench, candidate, look)
        pooled = watched.pooled
        assert np.array_equal(pooled.done_s, whole.pooled.done_s)
        assert watched.pools == whole.pools
        assert len(seen) > 20
        for arrived, peak, gaps, told in seen:
            first_s, done_s = pooled.first_token_s[:arrived], pooled.done_s[:arrived]
            assert peak <= watched.pools[-1].peak_running
            assert (gaps <= pooled.gap_counts).all()
            assert np.array_equal(told.first_token_s[told.begun], first_s[told.begun])
            assert np.array_equal(told.done_s[told.ended], done_s[told.ended])
            assert (told.first_token_s <= first_s)[told.served].all()
            assert (told.done_s <= done_s)[told.served].all()
            gapped = told.ended & (pooled.output_tokens[:arrived] > 1)
            assert np.array_equal(told.max_gap_s[gapped], pooled.max_gap_s[:arrived][gapped])


@pytest.mark.parametrize("seed", range(8))
def test_what_is_abandoned_fails_on_the_whole_trace(seed: int, problem: Problem) -> None:
    bench = problem(seed)
    looks = screen_of(bench, 512).looks
    assert looks == tuple(sorted(looks))
    abandoned = 0
    for pair in pairs_of(bench)[::2]:
        candidate = Candidate(pair.decode, 3, pair, 1)
        try:
            run(bench, candidate, watch(bench, looks))
        except Hopeless as error:
            abandoned += 1
            assert "are allowed in all" in error.reason
            assert judge(evaluate_candidate(bench, candidate), bench.objectives)[0] != "meets"
    assert seed or abandoned


def test_a_joint_objective_and_classes_are_looked_at_too(problem: Problem) -> None:
    goals = parse_objectives(["goodput:p90:ttft=0.2+itl=0.05+tpot=0.03", "a=e2e:p90:1"])
    bench = problem(3, objectives=goals, trade=(goals[0], goals[0]))
    requests = replace(bench.requests.faster(4.0), group=np.arange(700) % 2, classes=("a",))
    bench = replace(bench, requests=requests)
    pair = pairs_of(bench)[0]
    known: list[str] = []
    whole = run(
        bench, Candidate(pair.decode, 2, pair, 1), lambda glance: known.append(missed_by_now(bench, glance))
    )
    assert any(known)
    assert whole.pooled.done_s.max() > 0.0


def test_seats_that_were_never_filled_are_not_asked_again(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs that differ in sequences alone: what was abandoned before they filled is abandoned for fewer, too."""
    goals = parse_objectives(["ttft:p95:0.05"])
    bench = problem(2, objectives=goals, trade=(goals[0], goals[0]))
    bench = replace(bench, requests=bench.requests.faster(3.0))
    calls: list[int] = []

    def counting(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return kernel.simulate(*arguments, **options)

    bench = replace(bench, simulate_cluster=counting)
    [first, *_] = pairs_of(bench)
    first = replace(first, decode=replace(first.decode, num_blocks=600))
    pairs = [replace(first, decode=replace(first.decode, max_num_seqs=seats)) for seats in (64, 256, 1024)]
    screen = screen_of(bench, 512)
    monkeypatch.setattr("planner.search.splits.out_of_reach", lambda *_: "")
    found = evaluate_pairs(bench, pairs, 3, 4, screen)
    assert found[0].rejected
    assert found == [found[0]] * 3
    assert len(calls) == 1
