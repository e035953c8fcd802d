"""Load, window, front end, prefixes and output limits; what cannot be is refused beside its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calibration.architecture import Architecture
from planner.search import (
    ConditionError,
    Conditions,
    Link,
    PlanError,
    PlanResult,
    SearchSpace,
    parse_objectives,
    plan,
)
from planner.search.requests import requests_of
from planner.traffic import Traffic

SPACE = SearchSpace((256, 1024), (0,), (64,), max_replicas=4)


@pytest.fixture
def ask(traffic: Callable[..., Traffic], model: Any, architecture: Architecture) -> Callable[..., PlanResult]:
    def asked(requests: Traffic | None = None, **conditions: Any) -> PlanResult:
        goals = parse_objectives(["ttft:p95:0.4", "itl:p99:0.2"])
        return plan(
            requests or traffic(rate_per_s=9.0), model, 40_000, architecture, goals, SPACE, refits=0, threads=1,
            max_model_len=8192, conditions=Conditions(**conditions),
        )  # fmt: skip

    return asked


def test_headroom_growth_and_rate_squeeze_the_arrivals(traffic: Callable[..., Traffic]) -> None:
    some = traffic()
    conditions = Conditions(headroom=0.2, growth=0.5, rate_multiplier=2.0)
    assert conditions.load == pytest.approx(3.6)
    requests, _ = requests_of(some, conditions, 8192, 16)
    np.testing.assert_allclose(requests.arrival_s, some.arrival_s / 3.6)
    assert (requests.prompt_tokens == some.prompt_tokens).all()


def test_a_plan_with_headroom_is_the_plan_of_faster_traffic(
    ask: Callable[..., PlanResult], traffic: Callable[..., Traffic]
) -> None:
    some = traffic(rate_per_s=9.0)
    faster = replace(some, arrival_s=some.arrival_s / 1.2)
    with_headroom, plain = ask(headroom=0.2), ask(faster)
    assert with_headroom.verdict.choice is not None
    assert plain.verdict.choice is not None
    assert with_headroom.verdict.choice.candidate == plain.verdict.choice.candidate
    assert "at 1.2 times the traffic's rate" in with_headroom.verdict.sentence
    assert with_headroom.closer is not None
    assert with_headroom.closer.breaking is not None
    breaks = with_headroom.closer.breaking
    assert breaks.holds_up_to is None or breaks.holds_up_to >= 1.2
    at_planned = next(p for p in breaks.points if p.load == pytest.approx(1.2))
    assert at_planned.values_s["ttft:p95"] == with_headroom.verdict.choice.predictions[0].predicted_s


def test_a_window_takes_only_what_arrives_in_it(traffic: Callable[..., Traffic]) -> None:
    some = traffic()
    requests, _ = requests_of(some, Conditions(window_s=(20.0, 50.0)), 8192, 16)
    inside = (some.arrival_s >= 20) & (some.arrival_s < 50)
    assert requests.count == inside.sum()
    assert requests.arrival_s[0] == 0.0
    with pytest.raises(ConditionError) as caught:
        requests_of(some, Conditions(window_s=(1e6, 2e6)), 8192, 16)
    assert caught.value.field == "window"


def test_front_end_and_network_add_to_the_first_token_only(
    ask: Callable[..., PlanResult], traffic: Callable[..., Traffic]
) -> None:
    plain, slow = ask().verdict.choice, ask(front_end_s=0.02, network_s=0.01).verdict.choice
    assert plain is not None
    assert slow is not None
    ttft, itl = (p.predicted_s for p in slow.predictions)
    assert ttft == pytest.approx((plain.predictions[0].predicted_s or 0) + 0.03)
    assert itl == plain.predictions[1].predicted_s
    assert slow.behaviour.split_s["front_end"] == pytest.approx(0.03)


def test_assumed_hits_make_prompts_cheaper(ask: Callable[..., PlanResult]) -> None:
    plain, cached = ask(), ask(prefix="share", hit_share=0.5)
    assert cached.verdict.choice is not None
    assert plain.verdict.choice is not None
    with_hits, without = (
        c.predictions[0].predicted_s or 0.0 for c in (cached.verdict.choice, plain.verdict.choice)
    )
    assert with_hits < 0.75 * without
    assert any("50 % of all prompt tokens" in remark for remark in cached.verdict.remarks)
    assert cached.closer is not None
    assert any(s.what == "prefix hits" and s.harm and s.harm > 0 for s in cached.closer.sensitivities)


def test_hashes_that_are_not_there_are_asked_for_in_vain(ask: Callable[..., PlanResult]) -> None:
    with pytest.raises(PlanError) as caught:
        ask(prefix="trace")
    assert caught.value.field == "prefix"


def test_output_limits_decide_where_the_engine_reserves_them(
    ask: Callable[..., PlanResult], traffic: Callable[..., Traffic]
) -> None:
    space_free = {"engine": "tensorrt_llm"}
    own, asked = ask(**space_free), ask(**space_free, assumed_max_tokens=4000)
    assert own.verdict.choice is not None
    peak = own.verdict.choice.behaviour.peak_running
    shown = asked.verdict.choice or asked.verdict.closest
    assert shown is not None
    assert (
        shown.behaviour.peak_running < peak
        or shown.candidate.replicas > own.verdict.choice.candidate.replicas
    )
    assert any("taken to ask for exactly" in remark for remark in own.verdict.remarks)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"engine": "orca"}, "engine"),
        ({"headroom": -0.1}, "headroom"),
        ({"headroom": float("nan")}, "headroom"),
        ({"rate_multiplier": 0.0}, "rate_multiplier"),
        ({"price_per_gpu_hour": -1.0}, "price_per_gpu_hour"),
        ({"gpus_per_replica": 0}, "gpus_per_replica"),
        ({"prefix": "share"}, "hit_share"),
        ({"hit_share": 0.5}, "hit_share"),
        ({"prefix": "trace", "engine": "sglang"}, "prefix"),
        ({"window_s": (5.0, 5.0)}, "window"),
    ],
)
def test_what_cannot_be_is_refused_beside_its_name(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(ConditionError) as caught:
        Conditions(**wrong)
    assert caught.value.field == field


def test_conditions_survive_their_dictionary() -> None:
    some = Conditions(
        engine="sglang", link=Link.entered(25.0, 0.002, 0.3), headroom=0.2, window_s=(1.0, 2.0), price_per_gpu_hour=1.5,
        assumed_max_tokens=100,
    )  # fmt: skip
    assert Conditions.from_dict(some.to_dict()) == some
    assert Conditions.from_dict({}) == Conditions()


def test_an_entered_link_is_decimal() -> None:
    link = Link.entered(100.0)
    assert link.table.seconds(2.147483648e9) == pytest.approx(
        0.02147, rel=1e-3
    )  # 4,096 tokens of Llama-2-7B: 21 ms
    assert link.scaled(0.5).table.seconds(1e9) == pytest.approx(2 * link.table.seconds(1e9))
    with pytest.raises(ConditionError) as caught:
        Link.entered(0.0)
    assert caught.value.field == "link_gb_per_s"
