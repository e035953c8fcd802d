"""A plan asked differently: the form holds its question, and what would help where nothing met it."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.urls import reverse
from django.utils.html import escape

from planner.models import Plan
from planner.plan_again import initial_of
from planner.plan_forms import PlanForm
from planner.result_helps import helps_of, relaxed
from planner.search import Objective

pytestmark = pytest.mark.django_db

QUESTIONS: dict[str, dict[str, Any]] = {
    "defaults": {"ttft_percentile": "95", "ttft_limit_ms": 1000},
    "all of it": {
        "objectives": "ttft:p97:2\nitl:p99:0.05\nitl:p50:0.02\ngoodput:p95:ttft=1+tpot=0.05", "max_replicas": 5,
        "budgets_tokens": "128, 256", "chunk_caps_tokens": "0", "max_num_seqs": "8", "scheduling": "sync", "seed": 7,
        "headroom": 0.1, "rate_multiplier": 2, "growth": 0.5, "window_start_s": 1, "window_end_s": 1000,
        "link": "entered", "link_gb_per_s": 12.5, "link_latency_s": 0.001, "link_uncertainty": 0.2,
        "message_s": 0.002, "local_prefill_tokens": "0, 64",
        "price_per_gpu_hour": 2.5, "max_gpus": 4, "front_end_s": 0.01, "network_s": 0.02, "host_gap_s": 0.001,
        "prefix_hits": "share", "hit_share": 0.3, "assumed_max_tokens": 100, "schedule": "parts",
        "schedule_parts": 4,
    },
    "SGLang": {"engine": "sglang", "objectives": "e2e:p99.9:60", "schedule": "hours", "first_request_at": "09:30"},
}  # fmt: skip


def stored(plan: Plan, **asked: Any) -> Plan:
    """The plan, asked so."""
    form = PlanForm(
        {"calibration": plan.calibration_id, "traffic": plan.traffic_id, **asked}, user=plan.owner
    )
    assert form.is_valid(), form.errors
    request = form.request()
    Plan.objects.filter(pk=plan.pk).update(
        objectives=[o.spec for o in request.objectives], space=request.space.to_dict() if request.space else {},
        conditions=request.conditions.to_dict(), schedule=request.schedule.to_dict(), seed=request.seed,
    )  # fmt: skip
    return Plan.objects.get(pk=plan.pk)


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_form_holds_what_was_asked(name, finished_plan) -> None:
    plan = stored(finished_plan, **QUESTIONS[name])
    again = stored(plan, **{k: v for k, v in initial_of(plan).items() if k not in ("calibration", "traffic")})
    for column in ("objectives", "space", "conditions", "schedule", "seed"):
        one, other = getattr(plan, column), getattr(again, column)
        assert one == other if column != "objectives" else sorted(one) == sorted(other)


def test_only_what_was_chosen_stands_in_the_form(finished_plan, owner_client) -> None:
    plan = stored(finished_plan, **QUESTIONS["defaults"])
    assert set(initial_of(plan)) == {
        "calibration", "traffic", "max_replicas", "ttft_percentile", "ttft_limit_ms"
    }  # fmt: skip
    address = f"{reverse('planner:plan_new')}?plan={plan.pk}"
    detail = owner_client.get(reverse("planner:plan_detail", args=[plan.pk])).content.decode()
    assert f'href="{address}"' in detail
    page = owner_client.get(address).content.decode()
    assert 'value="1000"' in page
    assert "<details open>" not in page
    stored(plan, **QUESTIONS["all of it"])
    page = owner_client.get(address).content.decode()
    assert page.count("<details open>") == 8, "all but the second kind of hardware"
    assert "12.5" in page


def test_a_plan_that_is_not_ones_own_fills_nothing_in(finished_plan, outsider_client, owner_client) -> None:
    url = reverse("planner:plan_new")
    for word in ("nonsense", str(finished_plan.traffic_id)):
        assert owner_client.get(f"{url}?plan={word}").status_code == 200
    page = outsider_client.get(f"{url}?plan={finished_plan.pk}").content.decode()
    assert str(finished_plan.traffic_id) not in page


@pytest.mark.parametrize(
    ("which", "told"), [("impossible", {"objective"}), ("short", {"max_replicas", "objective"}),
                        ("saturated", {"max_replicas"})]
)  # fmt: skip
def test_what_would_help_can_be_asked_for(
    which, told, answers, make_plan, owner_client, viewer_client
) -> None:
    plan = make_plan(answers[which])
    helps = helps_of(plan, plan.result or {})
    said = [parse_qs(urlsplit(each.address).query) for each in helps]
    assert {name for one in said for name in one} == {"plan", *told}
    assert all(one["plan"] == [str(plan.pk)] for one in said)
    address = reverse("planner:plan_detail", args=[plan.pk])
    page = owner_client.get(address).content.decode()
    assert "What would do" in page
    for each in helps:
        assert escape(each.address) in page
        assert owner_client.get(each.address).status_code == 200
    assert "Ask for this" not in viewer_client.get(address).content.decode()


def test_nothing_would_help_a_plan_that_meets(answers, make_plan) -> None:
    plan = make_plan(answers["feasible"])
    assert helps_of(plan, plan.result or {}) == []


@pytest.mark.parametrize(
    ("spec", "value", "wide"),
    [("ttft:p95:1", 1.2001, 1.21), ("itl:p99:0.02", 0.0311, 0.0311), ("itl:p99:0.02", 0.031101, 0.0312)],
)
def test_a_limit_is_widened_to_three_digits_that_hold(spec, value, wide) -> None:
    metric, percentile, limit = spec.split(":")
    objective = Objective(metric, float(percentile[1:]), float(limit))  # type: ignore[arg-type]
    assert relaxed(objective, value).limit_s == wide


def test_limits_of_goodput_widen_together() -> None:
    wide = relaxed(Objective.goodput(95.0, {"ttft": 1.0, "tpot": 0.05}), 1.5)
    assert wide.limits == (("ttft", 1.5), ("tpot", 0.075))


@pytest.mark.parametrize("said", ["foo", "ttft:p95:nan", "", "\0", "x" * 5000])
def test_an_objective_in_the_address_that_is_none_stands_in_the_form_as_it_was_said(
    said, make_plan, answers, owner_client
):
    plan = make_plan(answers["feasible"])
    page = owner_client.get(reverse("planner:plan_new"), {"plan": plan.pk, "objective": [said, "itl:p99:1"]})
    assert page.status_code == 200
    assert page.context["form"].initial["objectives"] == f"{said}\nitl:p99:1"
