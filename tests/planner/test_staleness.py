"""Plans under newer step times: which turn stale, which stay, and what the difference is."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from django.urls import reverse
from django.utils import timezone

from calibration import jobs
from calibration.models import Calibration
from calibration.steptime import StepSample, StepTimeModel, fit
from planner import reviews, services
from planner.models import Plan, PlanReview
from planner.staleness import review

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def never_stopped(monkeypatch):
    """The search asks from threads of its own, whose connections see nothing of a test's transaction."""
    monkeypatch.setattr(jobs.JobRun, "should_stop", lambda run: False)


@pytest.fixture(scope="session")
def slowed(fitted_samples):
    """The law of a device on which every step takes `factor` times as long."""
    kept: dict[float, dict[str, Any]] = {}

    def law(factor: float) -> dict[str, Any]:
        if factor not in kept:
            samples = [
                StepSample(s.shape, tuple(v * factor for v in s.seconds), s.role) for s in fitted_samples
            ]
            kept[factor] = fit(samples, seed=0, bootstrap=2).to_dict()
        return kept[factor]

    return law


@pytest.fixture
def newer(published, slowed):
    """Publishes a later calibration of the same subject, `factor` times as slow."""

    def publish(factor: float, **changes: Any) -> Calibration:
        values = {
            name: getattr(published, name)
            for name in (
                "project",
                "owner",
                "architecture",
                "device",
                "envelope",
                "kv_tokens",
                "provenance",
                "facts",
            )
        }
        values |= {
            "name": f"{factor:g} times as slow", "status": Calibration.DONE, "published": True,
            "finished_at": timezone.now() + timedelta(hours=1), "rerun_of": published,
            "result": (published.result or {}) | {"model": slowed(factor)},
        } | changes  # fmt: skip
        return Calibration.objects.create(**values)

    return publish


def looked_at(plan: Plan) -> PlanReview:
    assert reviews.start_reviews() == 1
    row = plan.reviews.get()
    assert jobs.run(PlanReview, str(row.pk), reviews.work) == "done", PlanReview.objects.get(pk=row.pk).error
    row.refresh_from_db()
    return row


def test_a_plan_whose_calibration_has_no_newer_one_stays(finished_plan, newer, no_broker):
    assert reviews.start_reviews() == 0 and reviews.staleness_of(finished_plan).state == "current"
    newer(2.0, device="cuda:0")
    newer(2.0, published=False)
    newer(2.0, status=Calibration.RUNNING)
    newer(2.0, envelope={"max_batch": 8, "max_context_tokens": 1024, "max_step_tokens": 512})
    assert reviews.start_reviews() == 0, "another device, unpublished, unfinished, another region"
    assert reviews.staleness_of(finished_plan).state == "current"


def test_the_same_speed_is_the_same_answer_and_reviewed_once(finished_plan, newer, no_broker):
    newer(1.0)
    assert reviews.staleness_of(finished_plan).state == "checking"
    row = looked_at(finished_plan)
    assert (row.outcome, row.replan) == ("same answer", None)
    assert reviews.start_reviews() == 0, "once under each newer calibration"
    found = reviews.staleness_of(finished_plan)
    assert not found.stale and "still the answer" in found.sentence


def test_a_slower_device_breaks_the_choice_and_the_page_shows_the_difference(
    finished_plan, newer, no_broker, owner_client
):
    later = newer(15.0)
    row = looked_at(finished_plan)
    assert row.outcome == "choice no longer holds"
    choice = (finished_plan.result or {})["verdict"]["choice"]
    then = {f"{o['metric'].upper()} p{o['percentile']:g}": o["predicted"] for o in choice["objectives"]}
    for line in row.difference["objectives"]:
        assert line["then_s"] == then[line["label"]]
        assert line["now_s"] is None or line["now_s"] > line["then_s"]
    page = owner_client.get(f"/plans/{finished_plan.pk}/").content.decode()
    assert "choice no longer holds" in page and "Predicted now [ms]" in page
    assert "stale: choice no longer holds" in owner_client.get("/plans/").content.decode()
    body = owner_client.get(f"/api/v1/plans/{finished_plan.pk}").json()["staleness"]
    assert body["stale"] and body["calibration"] == str(later.pk)
    assert body["difference"]["objectives"][0]["now_s"] == row.difference["objectives"][0]["now_s"]


def test_a_faster_device_that_needs_fewer_replicas_changes_the_answer(
    finished_plan, newer, plan_of, no_broker
):
    plan = plan_of(["ttft:p95:0.05", "itl:p95:0.02"], rate_multiplier=200.0)
    choice = plan.result["verdict"]["choice"]
    assert choice is not None and choice["replicas"] > 1, "or fewer could not do"
    newer(0.25)
    finished_plan.delete()
    row = looked_at(plan)
    assert row.outcome == "answer changed"
    assert {change["name"] for change in row.difference["changes"]} >= {"Replicas"}


def test_what_nothing_met_may_be_met_on_a_faster_device(finished_plan, newer, plan_of, no_broker):
    plan = plan_of(["ttft:p50:0.004"])
    assert plan.result["verdict"]["choice"] is None
    finished_plan.delete()
    newer(1.0)
    assert looked_at(plan).outcome == "same answer"
    newer(0.1, finished_at=timezone.now() + timedelta(hours=2))
    assert reviews.start_reviews() == 1
    row = plan.reviews.first()
    assert jobs.run(PlanReview, str(row.pk), reviews.work) == "done"
    row.refresh_from_db()
    assert row.outcome == "answer changed" and "does" in row.sentence


@pytest.fixture
def plan_of(project, owner, published, traffic, calibration_result):
    """A finished plan for some objectives, really searched in a small space."""
    from calibration.architecture import PRESETS
    from planner.search import Conditions, SearchSpace, parse_objectives, plan

    def made(objectives: list[str], **conditions: Any) -> Plan:
        terms = Conditions(**conditions)
        result = plan(
            services.traffic_of(traffic), StepTimeModel.from_dict(calibration_result["model"]), 16_384,
            PRESETS["demo"], parse_objectives(objectives),
            SearchSpace(budgets_tokens=(256, 512), max_num_seqs=(8, 16), max_replicas=8), conditions=terms, refits=2,
            threads=1,
        )  # fmt: skip
        stored = result.to_dict()
        return Plan.objects.create(
            project=project, owner=owner, name="made", calibration=published, traffic=traffic, objectives=objectives,
            space=stored["inputs"]["space"], conditions=terms.to_dict(), status=Plan.DONE, result=stored,
            feasible=result.feasible, sentence=result.verdict.sentence,
        )  # fmt: skip

    return made


def test_it_is_made_again_only_if_that_was_asked_and_once(finished_plan, newer, no_broker):
    later = newer(15.0)
    Plan.objects.filter(pk=finished_plan.pk).update(replan_when_stale=True)
    row = looked_at(finished_plan)
    anew = row.replan
    assert anew.calibration_id == later.pk and anew.rerun_of_id == finished_plan.pk and anew.replan_when_stale
    assert (anew.objectives, anew.space, anew.traffic_id) == (
        finished_plan.objectives, finished_plan.space, finished_plan.traffic_id,
    )  # fmt: skip
    assert reviews.replan(row, finished_plan.owner).pk == anew.pk
    newer(16.0, finished_at=timezone.now() + timedelta(hours=2))
    assert reviews.start_reviews() == 0, "its successor is what later calibrations concern"


def test_the_page_and_the_api_make_it_again(
    finished_plan, newer, no_broker, owner_client, client, owner, bearer
):
    newer(15.0)
    looked_at(finished_plan)
    url = f"/plans/{finished_plan.pk}"
    assert owner_client.post(f"{url}/follow", {"replan_when_stale": "on"}).status_code == 302
    finished_plan.refresh_from_db()
    assert finished_plan.replan_when_stale
    made = client.post(f"/api/v1{url}/replan", headers=bearer(owner)).json()
    assert made["staleness"]["replan"] == str(Plan.objects.get(rerun_of=finished_plan).pk)
    again = owner_client.post(f"{url}/replan")
    assert again.status_code == 302 and Plan.objects.filter(rerun_of=finished_plan).count() == 1
    set_off = client.put(
        f"/api/v1{url}/staleness", {"replan_when_stale": False}, "application/json", headers=bearer(owner)
    ).json()
    assert set_off["replan_when_stale"] is False


def test_nothing_to_make_again_is_said(finished_plan, client, owner, bearer, no_broker):
    answer = client.post(f"/api/v1/plans/{finished_plan.pk}/replan", headers=bearer(owner))
    assert answer.status_code == 409


def test_two_pools_are_found_again_among_all(calibration_result, slowed):
    """A disaggregated plan: its own pair of pools under its own law is the same answer, under a slow one it is not."""
    from calibration.architecture import PRESETS
    from planner.search import Conditions, Link, SearchSpace, parse_objectives, plan
    from planner.traffic import synthesise

    traffic, objectives = (
        synthesise("demo", requests=40, seed=1),
        parse_objectives(["ttft:p50:1", "itl:p50:0.05"]),
    )
    terms = Conditions(link=Link.entered(25.0))
    space = SearchSpace(budgets_tokens=(512,), max_num_seqs=(16,), max_replicas=2)

    def asked(law: dict[str, Any], within: SearchSpace = space) -> Any:
        return plan(
            traffic, StepTimeModel.from_dict(law), 16_384, PRESETS["demo"], objectives, within, conditions=terms,
            refits=0, threads=1,
        )  # fmt: skip

    own = asked(calibration_result["model"]).to_dict()
    pair = next(c for c in own["candidates"] if c["split"] and c["status"] == "meets")
    chosen = own | {"verdict": own["verdict"] | {"choice": pair | {"gpus": 2}}}
    same = review(chosen, lambda within: asked(calibration_result["model"], within))
    assert same.outcome in ("same answer", "answer changed"), "one replica may do as well"
    slow = review(chosen, lambda within: asked(slowed(20.0), within))
    assert slow.outcome == "choice no longer holds"
    assert "prefill" in slow.then


def test_objectives_of_classes_and_of_several_limits_keep_their_names_and_values(calibration_result, slowed):
    from calibration.architecture import PRESETS
    from planner.search import SearchSpace, parse_objectives, plan
    from planner.traffic import synthesise

    made = synthesise("demo", requests=60, seed=1)
    classed = replace(made, request_class=np.arange(60, dtype=np.int16) % 2, class_names=("chat", "batch"))
    goals = parse_objectives(["chat=ttft:p90:1", "batch=ttft:p90:2", "batch=goodput:p90:ttft=3+e2e=30"])
    space = SearchSpace((128,), (0,), (8,), max_replicas=2)

    def asked(law: dict[str, Any], within: Any) -> Any:
        return plan(
            classed, StepTimeModel.from_dict(law), 16_384, PRESETS["demo"], goals, within, refits=0, threads=1
        )

    result = asked(calibration_result["model"], space).to_dict()
    found = review(result, lambda within: asked(slowed(2.0), within))
    chat, batch, joint = found.objectives
    assert [o.label for o in found.objectives] == ["chat: TTFT p90", "batch: TTFT p90", "batch: goodput p90"]
    assert [o.joint for o in found.objectives] == [False, False, True]
    assert all(o.now_s > o.then_s for o in (chat, batch, joint))
    assert chat.now_s != batch.now_s


@pytest.mark.parametrize("chosen", [0, 1])
def test_both_calibrations_of_a_plan_on_two_kinds_count(on_two, newer, no_broker, chosen):
    plan, second = on_two(chosen)
    assert reviews.staleness_of(plan).state == "current"
    later = newer(15.0, device=second.device, name="the other, anew", rerun_of=second)
    assert reviews.staleness_of(plan).state == "checking"
    row = looked_at(plan)
    assert row.calibration == later
    assert row.outcome == ("choice no longer holds" if chosen else "same answer")
    assert "the other" in row.sentence or second.device in row.sentence or not chosen
    assert reviews.start_reviews() == 0, "once"
    anew = reviews.replan(row, plan.owner)
    assert (anew.calibration_id, anew.second_calibration_id) == (plan.calibration_id, later.pk)


def test_a_newer_first_calibration_leaves_an_answer_on_the_second(on_two, newer, no_broker):
    """The review asks with both kinds of hardware, as the plan did: the second's did not change."""
    plan, second = on_two(1)
    later = newer(15.0)
    row = looked_at(plan)
    assert row.outcome == "same answer"
    assert reviews.rests_on(plan, later) == (later, second)
    assert reviews.staleness_of(plan).state == "same answer"


def test_each_of_its_calibrations_says_how_fresh_it_is(on_two, newer, owner_client):
    plan, second = on_two(0)
    later = newer(15.0, device=second.device, name="the other, anew", rerun_of=second)
    for body in (
        owner_client.get(f"/api/v1/plans/{plan.pk}").json(),
        owner_client.get("/api/v1/plans").json()["items"][0],
    ):
        told = {each["calibration"]: each for each in body["freshness"]}
        assert list(told) == [str(plan.calibration_id), str(second.pk)]
        assert told[str(second.pk)]["state"] == "superseded"
        assert told[str(second.pk)]["newer"] == str(later.pk)
        assert told[str(plan.calibration_id)]["state"] == "fresh"
    page = owner_client.get(f"/plans/{plan.pk}/").content.decode()
    for number, row in enumerate((plan.calibration, second)):
        assert reverse("calibration:drift", args=[row.pk]) in page
        assert plan.result["inputs"]["hardware"][number]["step_time_sha256"][:16] in page
    assert "superseded</span>" in page and "fresh</span>" in page


def test_two_measurements_of_one_subject_side_by_side_are_never_out_of_date(on_two, newer, no_broker):
    plan, _ = on_two(0)
    Plan.objects.filter(pk=plan.pk).update(second_calibration=newer(2.0))
    assert reviews.start_reviews() == 0
    assert reviews.staleness_of(Plan.objects.get(pk=plan.pk)).state == "current"
