"""Two pools: screened or not the same answer, engine rules for everything shown, and when separate pools win."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calibration.architecture import Architecture
from planner.search import Conditions, Link, PlanResult, SearchSpace, parse_objectives, plan, ranking
from planner.search.combinations import Candidate, pool_pairs
from planner.search.crew import Crew, in_threads
from planner.search.engines import ENGINES, Engine, violations
from planner.search.evaluate import Bench, evaluate_candidate, judge
from planner.search.floors import Floors, too_much_work
from planner.search.ladder import Climbed
from planner.search.parts import Hand
from planner.search.requests import Requests
from planner.search.screening import beginning, fails_early
from planner.search.space import Bounds
from planner.search.splits import Splits, search_splits
from planner.simulation.kernel import simulate
from planner.traffic import Traffic

MOST = 4
SPACE = SearchSpace((64, 256, 1024), (0,), (4, 16, 64), max_replicas=MOST)
BOUNDS = Bounds(4096, 64)
FAST = Link.entered(50.0, 0.001)


def problem(seed: int, traffic: Callable[..., Traffic], model: Any, requests: int = 240) -> Bench:
    """A random question: load from idle to far too much, limits from lax to impossible, links from slow to fast."""
    random = np.random.default_rng(3000 + seed)
    some = traffic(
        requests=requests,
        rate_per_s=random.uniform(2, 40),
        prompt=int(random.integers(100, 900)),
        output=int(random.integers(5, 40)),
        seed=seed,
    )
    goals = parse_objectives(
        [
            f"ttft:p{random.choice([50, 90, 95])}:{random.uniform(0.05, 2.0):.3f}",
            f"itl:p{random.choice([50, 90, 99])}:{random.uniform(0.012, 0.06):.4f}",
        ]
    )
    return Bench(
        Requests(some.arrival_s, some.prompt_tokens, some.output_tokens), goals, goals, model.arrays(), 0.0, simulate,
        lambda: False, link=Link.entered(random.choice([0.5, 5.0, 50.0]), 0.001), bytes_per_token=131_072.0,
    )  # type: ignore[arg-type]  # fmt: skip


def pairs_of(bench: Bench, engine: Engine = "vllm") -> Any:
    median = int(np.median(bench.requests.prompt_tokens))
    return pool_pairs(SPACE, BOUNDS, 20_000, 8192, engine, median)


def split(bench: Bench, pairs: Any) -> Splits:
    crew = Crew(in_threads(Hand(bench, (), pairs).do, 1), (), pairs)
    return search_splits(bench, crew, MOST, on_progress=lambda *_: None)


@pytest.mark.parametrize("seed", range(20))
def test_screened_is_exhaustive(
    seed: int, traffic: Callable[..., Traffic], model: Any, monkeypatch: Any
) -> None:
    """The same least replicas, and a choice inside the band of the best that trying everything finds."""
    monkeypatch.setattr("planner.search.screening.LEAST_REQUESTS", 100)
    bench = problem(seed, traffic, model)
    pairs = pairs_of(bench)[:: 1 + seed % 3]
    screened = split(bench, pairs)
    least = None
    whole = []
    for replicas in range(2, MOST + 1):
        for prefill in range(1, replicas):
            for pair in pairs:
                candidate = Candidate(pair.decode, replicas, pair, prefill)
                evaluation = evaluate_candidate(bench, candidate)
                status, reason = judge(evaluation, bench.objectives)
                whole.append(ranking.Option(candidate, evaluation, status, reason))
        if any(option.status == "meets" for option in whole):
            least = replicas
            break
    assert len(screened.attempts) == len(whole)
    met = {option.candidate: option for option in whole if option.status == "meets"}
    assert {attempt.candidate for attempt in screened.met} == set(met)
    if met:
        nothing = Climbed((), MOST, False, False)
        best = ranking.choose(ranking.options(nothing, screened), bench.objectives, 0.0)[0]
        assert best.candidate.replicas == least
        assert best.margin(bench.objectives) == max(o.margin(bench.objectives) for o in met.values())


def test_the_random_problems_are_of_all_kinds(traffic: Callable[..., Traffic], model: Any) -> None:
    found = []
    for seed in range(20):
        bench = problem(seed, traffic, model)
        splits = split(bench, pairs_of(bench)[::3])
        found.append(splits.most_replicas if splits.met else 0)
    assert len(set(found)) >= 3


def test_bounds_reject_only_what_fails_and_do_reject(traffic: Callable[..., Traffic], model: Any) -> None:
    goals = parse_objectives(["ttft:p95:0.2", "itl:p99:0.1"])
    crowded = replace(problem(1, traffic, model, requests=900), objectives=goals, trade=goals)  # type: ignore[arg-type]
    last_s = float(crowded.requests.arrival_s[-1])
    crowded = replace(crowded, requests=crowded.requests.faster(last_s / 20.0))  # 45 requests a second
    floors, opening = Floors.of(crowded, 1024), beginning(crowded)
    assert opening is not None
    rejected = [0, 0]
    for pair in pairs_of(crowded)[::4]:
        for prefill in (1, 2):
            candidate = Candidate(pair.decode, 3, pair, prefill)
            reasons = (too_much_work(crowded, floors, candidate), fails_early(crowded, opening, candidate))
            rejected = [n + bool(reason) for n, reason in zip(rejected, reasons, strict=True)]
            if any(reasons):
                assert judge(evaluate_candidate(crowded, candidate), crowded.objectives)[0] != "meets"
    assert rejected[1] > 0


@pytest.fixture
def ask(traffic: Callable[..., Traffic], model: Any, architecture: Architecture) -> Callable[..., PlanResult]:
    def asked(*objectives: str, requests: Traffic | None = None, **options: Any) -> PlanResult:
        space = options.pop("space", SPACE)
        options = {"refits": 2, "threads": 2, "max_model_len": 8192} | options
        goals = parse_objectives(objectives)
        return plan(requests or traffic(rate_per_s=6.0), model, 40_000, architecture, goals, space, **options)

    return asked


def test_without_a_link_replicas_alike_are_all_there_is(ask: Callable[..., PlanResult]) -> None:
    result = ask("ttft:p95:1")
    assert {candidate.pools for candidate in result.candidates} == {None}
    assert any("Separate prefill and decode pools were not tried" in r for r in result.verdict.remarks)
    assert result.verdict.other is None


def test_separate_pools_win_where_the_gap_objective_needs_them(
    ask: Callable[..., PlanResult], traffic: Callable[..., Traffic]
) -> None:
    """A step costs 10 ms and 0.1 ms a token: beside a chunk of 64 tokens a gap is 16 ms. At most 14 ms at p99 is for
    decodes that never share a step; at 30 ms two replicas alike do, and are simpler."""
    chat = traffic(requests=400, rate_per_s=6.0, prompt=300, output=60)  # 2 % of the gaps are beside a prompt
    space = replace(SPACE, max_replicas=2)
    tight = ask("ttft:p95:1", "itl:p99:0.014", requests=chat, space=space, conditions=Conditions(link=FAST))
    choice = tight.verdict.choice
    assert choice is not None
    assert choice.candidate.deployment == "disaggregated"
    assert (choice.candidate.prefill_replicas, choice.candidate.decode_replicas) == (1, 1)
    assert tight.verdict.other is not None
    assert tight.verdict.other.status != "meets"
    assert any(lost.what == "aggregated" and "ITL p99" in lost.reason for lost in tight.verdict.lost)
    lax = ask("ttft:p95:1", "itl:p99:0.03", requests=chat, space=space, conditions=Conditions(link=FAST))
    assert lax.verdict.choice is not None
    assert lax.verdict.choice.candidate.deployment == "aggregated"


def test_a_wider_margin_is_no_reason_for_a_second_pool(
    ask: Callable[..., PlanResult], traffic: Callable[..., Traffic]
) -> None:
    """At 14 requests a second two replicas are needed either way. Pools would leave 35 % of the limits, replicas alike
    27 %, and both hold in every draw."""
    chat = traffic(requests=400, rate_per_s=14.0, prompt=300, output=60)
    space = replace(SPACE, budgets_tokens=(192, 1024), max_num_seqs=(16, 64), max_replicas=2)
    goals, link = ("ttft:p95:0.3", "itl:p99:0.04"), Conditions(link=FAST)
    verdict = ask(*goals, requests=chat, space=space, conditions=link, refits=8).verdict
    assert verdict.choice is not None
    assert verdict.other is not None
    assert (verdict.choice.candidate.deployment, verdict.choice.candidate.replicas) == ("aggregated", 2)
    assert (verdict.other.candidate.deployment, verdict.other.status) == ("disaggregated", "meets")
    assert verdict.choice.holding == verdict.other.holding == 8
    ours, theirs = (
        min(p.margin for p in finalist.predictions if p.margin is not None)
        for finalist in (verdict.choice, verdict.other)
    )
    assert theirs > ours
    lost = next(lost for lost in verdict.lost if lost.what == "disaggregated")
    assert "holds as surely, and replicas alike are simpler" in lost.reason


def test_two_pools_say_what_is_on_each(
    ask: Callable[..., PlanResult], traffic: Callable[..., Traffic]
) -> None:
    chat = traffic(requests=400, rate_per_s=3.0, prompt=300, output=60)
    conditions = Conditions(link=FAST, price_per_gpu_hour=2.5, gpus_per_replica=2)
    result = ask("itl:p99:0.014", "ttft:p95:1", requests=chat, conditions=conditions)
    summary = result.summary_dict()
    assert summary["deployment"] == "disaggregated"
    assert set(summary["knobs"]) == set(summary["flags"]) == {"prefill", "decode"}
    assert summary["split"]["prefill"] + summary["split"]["decode"] == summary["replicas"]
    assert summary["gpus"] == 2 * summary["replicas"]
    assert summary["cost_per_hour"] == 2.5 * summary["gpus"]
    assert result.closer is not None
    assert result.closer.why is not None
    assert [pool["role"] for pool in result.closer.why.work] == ["prefill", "decode"]
    assert "transfer" in result.closer.why.split_s
    assert any(s.what == "link speed" for s in result.closer.sensitivities)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_is_planned_by_its_own_rules(
    engine: Engine, ask: Callable[..., PlanResult], traffic: Callable[..., Traffic]
) -> None:
    space = SearchSpace(
        (64, 256, 1000, 1024),
        (0,),
        (16, 64),
        max_replicas=3,
        block_tokens={"vllm": 16, "sglang": 1}.get(engine, 32),
    )
    result = ask(
        "ttft:p95:0.5", "itl:p99:0.2", space=space, conditions=Conditions(engine=engine, link=FAST),
        requests=traffic(rate_per_s=6.0),
    )  # fmt: skip
    longest = result.inputs["max_model_len"]
    for candidate in result.candidates:
        every = [candidate.knobs, *([candidate.pools.prefill] if candidate.pools else [])]
        broken = [r for k in every for r in violations(k, longest, 800) if r.severity == "error"]
        assert bool(broken) == (candidate.status == "invalid")
        assert candidate.reason or candidate.status == "meets"
    assert result.summary_dict()["engine"] == engine
    assert result.verdict.choice is not None
    assert result.verdict.choice.flags or result.verdict.choice.pool_flags
    if engine == "tensorrt_llm":
        assert any(
            c.status == "invalid" and "1000" in c.reason for c in result.candidates
        )  # no multiple of 32


def test_one_thread_or_four_the_same_plan(ask: Callable[..., PlanResult]) -> None:
    one, four = (
        ask("ttft:p95:0.3", "itl:p99:0.02", conditions=Conditions(link=FAST), threads=threads).to_dict()
        for threads in (1, 4)
    )
    assert one == four


def test_a_decode_pool_is_warned_of_only_where_it_prefills() -> None:
    space = SearchSpace((256,), (0,), (256,), local_prefill_tokens=(0, 64))
    pairs = pool_pairs(space, Bounds(4096, 512), 20_000, 8192, "vllm", 100)
    warned = {pair.local_prefill_tokens: pair.warnings for pair in pairs}
    assert warned[0] == ()
    assert "256 running decodes leave 0 of 256 tokens for prompts" in warned[64][0]
