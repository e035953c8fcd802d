"""A setting of a finished plan, asked again: the plan's own numbers where the plan stands, the search's elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibration.capacity import KVCapacity
from planner.search import Conditions, Link, SearchSpace, parse_objectives, plan, what_if
from planner.search.evaluate import Stopped, evaluate_candidate
from planner.search.limit_parts import limit_parts, with_limits
from planner.search.neighbours import neighbours, steps_of
from planner.search.what_if import SettingError, ask, bench_at, candidate_at, reopen

GOALS = parse_objectives(["ttft:p95:2", "itl:p99:0.2"])
SPACE = SearchSpace((256, 512, 1024), (0, 256), (16, 32), max_replicas=4)
KV_TOKENS = 16_384


@pytest.fixture(scope="module")
def open_again(model, architecture, traffic):
    """A plan that is really made, and the same opened again."""

    def made(engine="vllm", goals=GOALS, **conditions):
        terms = Conditions(engine=engine, headroom=0.2, price_per_gpu_hour=2.5, **conditions)
        space = replace(SPACE, chunk_caps_tokens=SPACE.chunk_caps_tokens if engine == "vllm" else (0,))
        load = traffic(requests=300, rate_per_s=6.0)
        answer = plan(
            load, model, KV_TOKENS, architecture, goals, space, conditions=terms, refits=0, threads=1
        )
        chosen = answer.verdict.choice or answer.verdict.closest
        subject = reopen(
            load, model.arrays(), KVCapacity.constant(KV_TOKENS), architecture, goals, space, terms,
            chosen.candidate, max_model_len=answer.inputs["max_model_len"],
        )  # fmt: skip
        return chosen, subject

    return made


@pytest.fixture(scope="module")
def alike(open_again):
    return open_again()


@pytest.fixture(scope="module")
def apart(open_again):
    """Gaps so short that only separate pools hold them."""
    goals = parse_objectives(["ttft:p95:2", "itl:p99:0.015"])
    chosen, subject = open_again(goals=goals, link=Link.entered(25.0, 0.0))
    assert chosen.candidate.pools is not None
    return chosen, subject


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm"])
def test_where_the_plan_stands_are_the_plans_numbers(engine, open_again) -> None:
    chosen, subject = open_again(engine, rate_multiplier=1.1)
    found = ask(subject, subject.start)
    assert found.candidate == chosen.candidate
    assert (found.status, found.reason) == (chosen.status, chosen.reason)
    assert [p.predicted_s for p in found.predictions] == [p.predicted_s for p in chosen.predictions]
    assert found.behaviour == chosen.behaviour
    assert (found.gpus, found.cost_per_hour) == (chosen.gpus, chosen.cost_per_hour)


def test_so_it_is_with_separate_pools(apart) -> None:
    chosen, subject = apart
    found = ask(subject, subject.start)
    assert found.candidate == chosen.candidate
    assert [p.predicted_s for p in found.predictions] == [p.predicted_s for p in chosen.predictions]
    assert found.behaviour == chosen.behaviour


def test_another_rate_is_a_plan_at_that_rate(alike, open_again) -> None:
    _, subject = alike
    _, faster = open_again(rate_multiplier=1.5)
    moved = replace(subject.start, rate_multiplier=1.5)
    direct = evaluate_candidate(bench_at(faster, faster.start), subject.shown)
    found = ask(subject, moved)
    assert {p.objective.key: p.predicted_s for p in found.predictions} == {
        key: direct.values_s[key] for key in ("ttft:p95", "itl:p99")
    }


def test_a_limit_decides_and_changes_no_latency(alike) -> None:
    _, subject = alike
    before = ask(subject, subject.start)
    tight = tuple(replace(p.objective, limit_s=0.5 * (p.predicted_s or 1.0)) for p in before.predictions)
    after = ask(subject, replace(subject.start, objectives=tight))
    assert (before.status, after.status) == ("meets", "fails")
    assert [p.predicted_s for p in after.predictions] == [p.predicted_s for p in before.predictions]
    assert "TTFT p95" in after.reason


def test_too_much_load_is_saturated_and_has_no_latency(alike) -> None:
    _, subject = alike
    found = ask(subject, replace(subject.start, rate_multiplier=30.0, replicas=1))
    assert found.status == "saturated"
    assert [p.predicted_s for p in found.predictions] == [None, None]
    assert found.curves_s == {}


def test_what_the_engine_refuses_is_not_simulated(alike) -> None:
    _, subject = alike
    found = ask(subject, replace(subject.start, budget_tokens=16, max_num_seqs=64))
    assert found.status == "invalid"
    assert "refuses it" in found.reason
    assert found.behaviour is None


def test_what_was_not_measured_is_not_covered(open_again, measured_model, architecture, traffic) -> None:
    _, subject = open_again()
    held = subject.holds[0]
    small = replace(subject, holds=(replace(held, bounds=replace(held.bounds, step_tokens=512)),))
    found = ask(small, replace(small.start, budget_tokens=2048))
    assert found.status == "not covered"
    assert max(steps_of(small).budget_tokens) <= max(512, max(SPACE.budgets_tokens))


def test_pools_need_a_link_and_somebody_to_decode(alike) -> None:
    _, subject = alike
    for changed, field in (
        ({"prefill_replicas": 1}, "link_gb_per_s"),
        ({"prefill_replicas": 2}, "prefill_replicas"),
    ):
        with pytest.raises(SettingError) as caught:
            candidate_at(subject, replace(subject.start, replicas=2, **changed))
        assert caught.value.field == field
    split = replace(subject.start, replicas=2, prefill_replicas=1, link_gb_per_s=25.0)
    found = ask(subject, split)
    assert found.candidate.deployment == "disaggregated"
    assert found.behaviour is not None
    assert {pool.role for pool in found.behaviour.pools} == {"prefill", "decode"}


def test_a_slower_link_takes_longer(apart) -> None:
    _, subject = apart
    slow = ask(subject, replace(subject.start, link_gb_per_s=0.5))
    own = ask(subject, subject.start)
    assert slow.behaviour is not None and own.behaviour is not None
    assert slow.behaviour.split_s["transfer"] > 10 * own.behaviour.split_s["transfer"]


def test_of_many_requests_the_busiest_stretch_is_simulated_and_said(
    alike, open_again, traffic, model, architecture
):
    _, whole = alike
    part = reopen(
        traffic(requests=300, rate_per_s=6.0), model.arrays(), KVCapacity.constant(KV_TOKENS), architecture, GOALS,
        SPACE, whole.conditions, whole.shown, max_model_len=whole.max_model_len, most_requests=100,
    )  # fmt: skip
    window = part.window
    assert window is not None
    assert (window.count, window.of) == (100, whole.at_own_rate.count)
    assert 0.0 <= window.from_s < window.to_s <= float(whole.at_own_rate.arrival_s[-1])
    assert ask(part, part.start).requests == 100
    assert whole.window is None


def test_long_outputs_are_cut_by_tokens(alike, traffic, model, architecture, monkeypatch) -> None:
    _, whole = alike
    tokens = int(whole.at_own_rate.output_tokens.sum())
    monkeypatch.setattr(what_if, "MOST_TOKENS", tokens // 3)
    part = reopen(
        traffic(requests=300, rate_per_s=6.0), model.arrays(), KVCapacity.constant(KV_TOKENS), architecture, GOALS,
        SPACE, whole.conditions, whole.shown, max_model_len=whole.max_model_len,
    )  # fmt: skip
    assert part.window is not None
    assert part.window.count == pytest.approx(whole.at_own_rate.count / 3, abs=1)


def test_joint_objectives_and_those_of_classes_are_judged_as_the_plan_judges_them(
    model, architecture, traffic
) -> None:
    goals = parse_objectives(
        ["goodput:p90:ttft=2+itl=0.3", "chat=ttft:p95:1.5", "chat=itl:p99:0.3", "ttft:p95:3"]
    )
    load = traffic(requests=300, rate_per_s=6.0)
    load = replace(load, request_class=np.arange(300, dtype=np.int16) % 2, class_names=("chat", "batch"))
    terms = Conditions()
    answer = plan(load, model, KV_TOKENS, architecture, goals, SPACE, conditions=terms, refits=0, threads=1)
    chosen = answer.verdict.choice or answer.verdict.closest
    subject = reopen(
        load, model.arrays(), KVCapacity.constant(KV_TOKENS), architecture, goals, SPACE, terms, chosen.candidate,
        max_model_len=answer.inputs["max_model_len"],
    )  # fmt: skip
    found = ask(subject, subject.start)
    assert [p.to_dict() for p in found.predictions] == [p.to_dict() for p in chosen.predictions]
    with pytest.raises(SettingError) as caught:
        ask(subject, replace(subject.start, objectives=parse_objectives(["ttft:p95:1"])))
    assert caught.value.field == "objectives"
    parts = limit_parts(goals)
    assert [part.name for part in parts] == [
        "limit_ms_0_ttft", "limit_ms_0_itl", "limit_ms_1", "limit_ms_2", "limit_ms_3",
    ]  # fmt: skip
    assert with_limits(goals, [part.limit_s for part in parts]) == goals
    moved = with_limits(goals, [1.0, 0.3, 1.5, 0.3, 3.0])
    assert [o.spec for o in moved] == ["goodput:p90:ttft=1+itl=0.3", *(o.spec for o in goals[1:])]


def test_it_stops_when_told(alike) -> None:
    _, subject = alike
    with pytest.raises(Stopped):
        ask(subject, subject.start, lambda: True)


def test_neighbours_are_one_step_of_one_knob_away(alike, apart) -> None:
    for _, subject in (alike, apart):
        steps = steps_of(subject)
        found = list(neighbours(subject, subject.start))
        assert len({(n.knob, n.after) for n in found}) == len(found)
        for n in found:
            moved = {f for f in ("budget_tokens", "chunk_cap_tokens", "max_num_seqs", "replicas", "prefill_replicas")
                     if getattr(n.setting, f) != getattr(subject.start, f)}  # fmt: skip
            assert moved == {n.knob}
            values = getattr(steps, n.knob)
            if n.knob == "chunk_cap_tokens":  # none is the loosest; those that never bind are left out
                values = [cap for cap in values if cap < subject.start.budget_tokens]
            assert abs(values.index(n.after) - values.index(n.before)) == 1
            candidate_at(subject, n.setting)  # none is impossible
    knobs = {n.knob for n in neighbours(apart[1], apart[1].start)}
    assert "budget_tokens" in knobs and "replicas" in knobs


def test_every_slider_stops_where_the_plan_stands(alike, apart) -> None:
    for _, subject in (alike, apart):
        steps, start = steps_of(subject), subject.start
        assert all(o.limit_s in values for o, values in zip(start.objectives, steps.limits_s, strict=True))
        assert start.rate_multiplier in steps.rate_multiplier
        for knob in ("budget_tokens", "chunk_cap_tokens", "max_num_seqs", "replicas", "prefill_replicas"):
            values = getattr(steps, knob)
            assert getattr(start, knob) in values
            assert list(values) == sorted(
                set(values), key=lambda v: (knob == "chunk_cap_tokens" and not v, v)
            )
    assert apart[1].start.link_gb_per_s in steps_of(apart[1]).link_gb_per_s
