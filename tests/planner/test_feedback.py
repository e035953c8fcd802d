"""What the residuals of a replay lead to: wider intervals that the new plan states, points to be measured."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import ApiToken
from calibration import services as calibrations
from calibration.experiment import DEMO_ENVELOPE, Region, points, with_points
from calibration.models import Calibration
from calibration.steptime import StepShape, step_seconds
from planner.models import Plan
from planner.search.conditions import Conditions
from planner.search.draws import draws_of
from planner.verification.feedback import mispriced, step_spread
from planner.verification.loop import replay
from planner.verification.report import compare
from planner.verification_results import result_of
from tests.planner.verification.device import KNOBS, LAW, STEPS, Device, some_requests
from tests.planner.verification.test_replay import simulated

REQUESTS = some_requests(80)


def replayed(**stretch):
    return [replay(Device(**stretch), REQUESTS, KNOBS, LAW)]


def test_the_points_are_steps_that_ran_of_the_kind_that_was_mispriced():
    replays = replayed(chunk=1.3)
    report = compare(simulated(REQUESTS, KNOBS), [], replays, STEPS, "cpu")
    found = mispriced(replays, STEPS, report.residuals)
    assert 3 <= len(found) <= 12
    assert all(shape.chunks for shape in found)
    assert set(found) <= set(replays[0].shapes)
    assert len({step_seconds(LAW, *shape.features)[0] for shape in found}) > 2
    share = sum(row.busy_share for row in report.residuals if row.kind != "decode")
    assert step_spread(report.residuals) == pytest.approx((share * 0.2624**2) ** 0.5, rel=1e-3)


def test_a_device_that_does_as_predicted_asks_for_nothing():
    replays = replayed()
    report = compare(simulated(REQUESTS, KNOBS), [], replays, STEPS, "cpu")
    assert mispriced(replays, STEPS, report.residuals) == []
    assert step_spread(report.residuals) == pytest.approx(0.0, abs=1e-9)


def test_a_calibration_measures_them_beside_its_own_as_far_as_its_region_goes():
    region = Region(DEMO_ENVELOPE, 65_536)
    usual = points(region, "cpu", 0)
    inside, outside = StepShape((90, 120, 77)), StepShape((2_000,))
    more = with_points(usual, [inside, outside, usual[0].shape], region)
    assert more[: len(usual)] == usual
    assert [(point.shape, point.role) for point in more[len(usual) :]] == [(inside, "fit")]


@pytest.fixture
def mispriced_row(db, verification):
    replays = replayed(chunk=1.3)
    report = compare(simulated(REQUESTS, KNOBS), [], replays, STEPS, "cpu")
    verification.result = result_of(report, 0, 80, simulated(REQUESTS, KNOBS), replays, STEPS)
    verification.save(update_fields=["result"])
    return verification


def test_the_plan_again_with_wider_intervals_says_so(owner_client, mispriced_row, no_broker):
    page = owner_client.get(reverse("planner:verification_detail", args=[mispriced_row.pk])).content.decode()
    assert "Plan again with wider intervals" in page
    answer = owner_client.post(reverse("planner:verification_widen", args=[mispriced_row.pk]))
    plan = Plan.objects.latest("created_at")
    assert answer.url == reverse("planner:plan_detail", args=[plan.pk])
    assert (plan.rerun_of, plan.calibration) == (mispriced_row.plan, mispriced_row.plan.calibration)
    conditions = Conditions.from_dict(plan.conditions)
    assert conditions.step_uncertainty > 0.05
    assert any("as a replay found" in line for line in conditions.assumed)


def test_its_draws_are_wider():
    class Model:
        refits = ()

    spreads = [
        max(
            draw.step_factor
            for draw in draws_of(Model(), some_requests(20), 40, 1, link_sigma=0.0, step_sigma=sigma).each
        )
        for sigma in (0.02, 0.1)
    ]
    assert spreads[1] > spreads[0] > 1.0


def test_the_calibration_is_of_the_same_subject_with_the_points_in_it(owner_client, mispriced_row, no_broker):
    old = mispriced_row.plan.calibration
    answer = owner_client.post(reverse("planner:verification_measure", args=[mispriced_row.pk]))
    new = Calibration.objects.latest("created_at")
    assert answer.url == reverse("calibration:detail", args=[new.pk])
    assert new.rerun_of == old
    assert (new.architecture, new.device, new.envelope) == (old.architecture, old.device, old.envelope)
    asked = calibrations.request_of(new).also
    assert [shape.to_dict() for shape in asked] == mispriced_row.result["points"]


def test_the_api_does_both_and_refuses_where_nothing_was_off(owner, bearer, mispriced_row, no_broker):
    client = Client(headers=bearer(owner, ApiToken.WRITE))
    url = f"/api/v1/verifications/{mispriced_row.pk}"
    wider = client.post(f"{url}/widen", {}, content_type="application/json")
    assert wider.status_code == 202, wider.content
    assert wider.json()["step_uncertainty"] > 0.05
    more = client.post(f"{url}/measure", {}, content_type="application/json")
    assert (more.status_code, more.json()["points"]) == (202, len(mispriced_row.result["points"]))
    mispriced_row.result |= {"points": [], "step_spread": 0.001}
    mispriced_row.save(update_fields=["result"])
    assert client.post(f"{url}/widen", {}, content_type="application/json").status_code == 409
    assert client.post(f"{url}/measure", {}, content_type="application/json").status_code == 409
