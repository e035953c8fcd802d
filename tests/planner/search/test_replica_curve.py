"""The shown configuration on other numbers of replicas: the same numbers as asking for each by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from calibration.architecture import Architecture
from planner.search import PlanResult, SearchSpace, parse_objectives, plan
from planner.search.replica_curve import MAX_POINTS, chosen_counts
from planner.traffic import Traffic


@pytest.fixture
def ask(traffic: Callable[..., Traffic], model: Any, architecture: Architecture) -> Callable[..., PlanResult]:
    def asked(*objectives: str, most: int = 6, rate_per_s: float = 9.0, **options: Any) -> PlanResult:
        space = SearchSpace((256,), max_num_seqs=(64,), max_replicas=most)
        return plan(
            traffic(rate_per_s=rate_per_s), model, 40_000, architecture, parse_objectives(objectives), space,
            refits=0, threads=2, max_model_len=8192, **options,
        )  # fmt: skip

    return asked


def test_both_sides_of_the_choice_are_shown(ask: Callable[..., PlanResult]) -> None:
    result = ask("ttft:p95:0.2")
    assert result.verdict.choice is not None
    own = result.verdict.choice.candidate.replicas
    assert own > 1
    assert [p.replicas for p in result.by_replicas] == list(range(1, min(6, own + 2) + 1))
    assert [p.status == "meets" for p in result.by_replicas] == [
        n >= own for n in range(1, min(6, own + 2) + 1)
    ]
    at_own = result.by_replicas[own - 1]
    assert at_own.values_s["ttft:p95"] == result.verdict.choice.predictions[0].predicted_s
    assert set(at_own.values_s) == {"ttft:p95"}


def test_a_point_is_what_that_many_replicas_would_do(ask: Callable[..., PlanResult]) -> None:
    curve = ask("ttft:p95:0.2").by_replicas
    for point in curve:
        alone = ask("ttft:p95:0.000001", most=point.replicas)
        closest = alone.verdict.closest
        assert closest is not None
        if closest.candidate.replicas == point.replicas and point.values_s:
            assert point.values_s["ttft:p95"] == closest.predictions[0].predicted_s


def test_what_is_saturated_has_no_latency(ask: Callable[..., PlanResult]) -> None:
    first = ask("ttft:p95:1", rate_per_s=60.0).by_replicas[0]
    assert (first.status, first.values_s, first.split_s) == ("saturated", {}, {})
    assert first.reason


def test_a_stopped_search_has_none(ask: Callable[..., PlanResult]) -> None:
    assert ask("ttft:p95:0.2", should_stop=lambda: True).by_replicas == ()


@pytest.mark.parametrize(
    ("own", "last"), [(1, 3), (8, 8), (10, 12), (40, 42), (256, 256), (1, 200), (2, 1000)]
)
def test_many_counts_are_thinned_evenly(own: int, last: int) -> None:
    counts = list(chosen_counts(own, last))
    assert counts == sorted(set(counts))
    assert len(counts) <= MAX_POINTS
    assert counts[0] == 1
    assert counts[-1] == last
    assert own in counts
