"""The search against trying everything: the same answers, on any number of threads, at any point of stopping."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from planner.search import ladder, ranking
from planner.search.combinations import Combination, combinations
from planner.search.crew import Crew, in_threads
from planner.search.evaluate import Bench, Requests, evaluate, judge
from planner.search.ladder import Climbed, climb_all
from planner.search.objective_text import parse_objectives
from planner.search.parts import Hand
from planner.search.space import Bounds, SearchSpace
from planner.simulation.kernel import simulate
from planner.traffic import Traffic

MAX_REPLICAS = 4
BOUNDS = Bounds(4096, 64)


def problem(seed: int, traffic: Callable[..., Traffic], model: Any) -> tuple[Bench, tuple[Combination, ...]]:
    """A random question: load from idle to far too much, limits from lax to impossible."""
    random = np.random.default_rng(1000 + seed)
    some = traffic(
        requests=160, rate_per_s=random.uniform(1, 60), prompt=int(random.integers(100, 900)), seed=seed
    )
    objectives = parse_objectives(
        [
            f"ttft:p{random.choice([50, 90, 95])}:{random.uniform(0.05, 2.0):.3f}",
            f"itl:p{random.choice([50, 90, 99])}:{random.uniform(0.012, 0.12):.4f}",
        ]
    )
    found, _ = combinations(SearchSpace((64, 256, 1024), (0, 128), (4, 16, 64)), BOUNDS, 20_000, 8192)
    requests = Requests(some.arrival_s, some.prompt_tokens, some.output_tokens)
    return Bench(requests, objectives, objectives, model.arrays(), 0.0, simulate, lambda: False), found  # type: ignore[arg-type]


def crew_of(bench: Bench, found: tuple[Combination, ...], threads: int = 1) -> Crew:
    return Crew(in_threads(Hand(bench, found).do, threads), found)


def climb(bench: Bench, found: tuple[Combination, ...], threads: int = 1) -> Climbed:
    return climb_all(bench, crew_of(bench, found, threads), MAX_REPLICAS, on_progress=lambda *_: None)


@pytest.mark.parametrize("seed", range(20))
def test_the_search_finds_what_trying_everything_finds(
    seed: int, traffic: Callable[..., Traffic], model: Any
) -> None:
    bench, found = problem(seed, traffic, model)
    climbed = climb(bench, found)
    least: dict[Any, int] = {}
    for combination in found:
        for replicas in range(1, MAX_REPLICAS + 1):
            whole = evaluate(bench, combination.knobs, replicas, complete=True)
            if judge(whole, bench.objectives)[0] == "meets":
                least[combination.knobs] = replicas
                break
    assert {c.combination.knobs: c.met.replicas for c in climbed.climbs if c.met} == least
    assert climbed.feasible == bool(least)
    if least:
        assert climbed.replicas == min(least.values())
        chosen = ranking.choose(ranking.options(climbed), bench.objectives, 0.0)[0]
        best = max(
            evaluate(bench, knobs, climbed.replicas, complete=True).worst_margin(bench.objectives)
            for knobs, replicas in least.items()
            if replicas == climbed.replicas
        )
        assert chosen.margin(bench.objectives) == best


def test_the_random_problems_are_of_all_kinds(traffic: Callable[..., Traffic], model: Any) -> None:
    answers = [climb(*problem(seed, traffic, model)) for seed in range(20)]
    replicas = {answer.replicas for answer in answers if answer.feasible}
    assert len(replicas) >= 3
    assert any(not answer.feasible for answer in answers)


def test_every_combination_is_whole_on_the_rung_of_the_answer(
    traffic: Callable[..., Traffic], model: Any
) -> None:
    for seed in range(6):
        bench, found = problem(seed, traffic, model)
        climbed = climb(bench, found)
        for one in climbed.climbs:
            rung = one.at(climbed.replicas)
            assert rung is not None
            assert rung.evaluation == evaluate(bench, one.combination.knobs, climbed.replicas, complete=True)


def test_threads_change_nothing(traffic: Callable[..., Traffic], model: Any) -> None:
    for seed in range(3):
        bench, found = problem(seed, traffic, model)
        assert climb(bench, found, threads=1) == climb(bench, found, threads=4)


def test_how_many_numbers_are_tried_at_once_changes_nothing(
    traffic: Callable[..., Traffic], model: Any, monkeypatch: Any
) -> None:
    asked: list[int] = []
    most = []
    climbs = Crew.climb
    monkeypatch.setattr(
        Crew,
        "climb",
        lambda *of, **how: asked.append(len(of[2])) or climbs(*of, **how),  # type: ignore[func-returns-value]
    )
    answers = []
    for quick_s in (0.0, 1e9):
        asked.clear()
        monkeypatch.setattr(ladder, "QUICK_S", quick_s)
        answers.append([climb(*problem(seed, traffic, model)) for seed in range(12)])
        most.append(max(asked))
    assert most == [1, 2]
    assert answers[0] == answers[1]


def test_progress_ends_at_its_total(traffic: Callable[..., Traffic], model: Any) -> None:
    bench, found = problem(2, traffic, model)
    seen: list[tuple[int, int]] = []
    crew = crew_of(bench, found, 2)
    climb_all(bench, crew, MAX_REPLICAS, on_progress=lambda d, t, m: seen.append((d, t)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1] == len(found) * MAX_REPLICAS


def test_a_smaller_limit_that_never_binds_is_not_simulated_again(
    traffic: Callable[..., Traffic], model: Any
) -> None:
    bench, _ = problem(0, traffic, model)
    calls: list[int] = []

    def counting(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments[4].max_num_seqs)
        return simulate(*arguments, **options)

    idle = traffic(requests=100, rate_per_s=0.05)
    quiet = Bench(
        Requests(idle.arrival_s, idle.prompt_tokens, idle.output_tokens),
        bench.objectives, bench.trade, bench.step_time, 0.0, counting, lambda: False,
    )  # fmt: skip
    found, _ = combinations(SearchSpace((256,), (0,), (8, 16, 64), max_replicas=1), BOUNDS, 20_000, 8192)
    climb_all(quiet, crew_of(quiet, found), 1, on_progress=lambda *_: None)
    assert calls == [64]


def test_stopping_keeps_what_was_found(traffic: Callable[..., Traffic], model: Any) -> None:
    bench, found = problem(1, traffic, model)
    asked = iter(range(10_000))
    limited = Bench(
        bench.requests,
        bench.objectives,
        bench.trade,
        bench.step_time,
        0.0,
        simulate,
        lambda: next(asked) >= 4,
    )
    climbed = climb(limited, found)
    assert climbed.stopped
    assert any(one.last for one in climbed.climbs)
    assert any(one.last is None for one in climbed.climbs)
