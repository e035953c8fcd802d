"""A plan on two kinds of hardware is moved by hand and held against reality with the calibrations of what it chose."""

from __future__ import annotations

import contextlib
import json

import pytest
from django.urls import reverse

from calibration import jobs
from calibration.services import step_time_model
from calibration.steptime import Chunk, StepShape, step_seconds
from planner import verification_engines, verification_feedback, verification_work
from planner.models import Verification
from planner.pool_models import PoolModels, chosen_calibrations
from planner.verification_subject import predict, subject_of
from planner.verifications import Asked, start_verification, why_not, why_not_endpoint, why_not_mixed_load
from tests.planner.verification.device import Device
from tests.planner.verification.test_two_pools import Engine

pytestmark = pytest.mark.django_db


@pytest.fixture(params=[1, "apart"])
def plan(request):
    """All of it on the second kind, which is the slower one here; or decode alone."""
    if request.param == "apart":
        return request.getfixturevalue("pools_on_two")[0]
    second, laws = request.getfixturevalue("second"), request.getfixturevalue("laws")
    second.result = second.result | {"model": laws[1]}
    second.save(update_fields=["result"])
    return request.getfixturevalue("on_two")(1)[0]


def test_what_if_starts_with_the_plans_own_numbers_there(
    plan, owner_client, owner, bearer, no_broker
) -> None:
    page = owner_client.get(reverse("planner:plan_detail", args=[plan.pk])).content.decode()
    address = reverse("planner:what_if", args=[plan.pk])
    assert address in page
    assert owner_client.get(address).status_code == 200
    answer = owner_client.post(
        f"/api/v1/plans/{plan.pk}/what-if", "{}", content_type="application/json", headers=bearer(owner)
    )
    assert answer.status_code == 200, answer.content
    found, choice = answer.json()["answer"], plan.result["verdict"]["choice"]
    for key in ("kind", "split", "knobs", "status", "gpus", "cost_per_hour", "behaviour"):
        assert found[key] == choice[key], key
    assert [o["predicted"] for o in found["objectives"]] == [o["predicted"] for o in choice["objectives"]]
    moved = owner_client.post(
        f"/api/v1/plans/{plan.pk}/what-if", json.dumps({"budget_tokens": 256, "neighbours": True}),
        content_type="application/json", headers=bearer(owner),
    ).json()  # fmt: skip
    assert moved["answer"]["kind"] == choice["kind"]
    assert moved["neighbours"]
    said = owner_client.post(reverse("planner:what_if_move", args=[plan.pk]), {}).content.decode()
    assert f"On {plan.second_calibration.device_label}" in said or "for prefill and" in said


def test_the_window_is_predicted_with_the_step_times_of_the_chosen_hardware(plan) -> None:
    outcome = predict(subject_of(plan, 20_000), PoolModels.of(plan).steps)
    for o in plan.result["verdict"]["choice"]["objectives"]:
        assert outcome.percentile(o["metric"], o["percentile"]) == o["predicted"]
    assert why_not_endpoint(plan) == why_not_mixed_load(plan) == ""


@pytest.fixture
def engine(monkeypatch, second, laws):
    """Takes what the second kind's law says."""

    class Started(Device):
        asked: dict[str, object] = {}

        def measure(self, decode_contexts, chunks, seed, lead_in=()):
            timing = super().measure(decode_contexts, chunks, seed, lead_in=lead_in)
            shape = StepShape(tuple(decode_contexts), tuple(Chunk(*chunk) for chunk in chunks))
            seconds = step_seconds(step_time_model(second).arrays(), *shape.features)[0]
            return type(timing)(seconds, 0.0, timing.contended)

    def client(architecture, **asked):
        Started.asked = asked
        return contextlib.nullcontext(Started())

    monkeypatch.setattr(verification_engines, "EngineClient", client)
    return Started


def test_a_replay_is_on_the_second_device_and_judged_by_its_calibration(
    second, laws, on_two, engine, owner, owner_client, no_broker
) -> None:
    second.result = second.result | {"model": laws[1]}
    second.save(update_fields=["result"])
    plan, _ = on_two(1)
    assert why_not(plan) == ""
    row = start_verification(plan, owner, Asked(50))
    jobs.run(Verification, str(row.pk), verification_work.verify)
    row.refresh_from_db()
    assert (row.status, row.holds) == (Verification.DONE, True), row.error
    assert abs(row.result["busy_bias"]) < 1e-9
    assert engine.asked["device"] == second.device == row.calibration.device
    page = owner_client.get(reverse("planner:verification_detail", args=[row.pk])).content.decode()
    assert f"served on {second.device_label}" in page


def test_pools_on_two_devices_are_not_replayed_and_it_is_said_why(
    pools_on_two, owner_client, no_broker
) -> None:
    plan, second = pools_on_two
    assert "a replay runs both on one device, and none here is both" in why_not(plan)
    assert second.name in why_not(plan)
    assert plan.calibration.name in why_not(plan)
    page = owner_client.get(reverse("planner:plan_detail", args=[plan.pk])).content.decode()
    assert "none here is both" in page


def test_pools_of_two_calibrations_of_one_device_are_replayed_each_by_its_own(
    second, pools_on_two, owner, no_broker, monkeypatch
) -> None:
    plan, second = pools_on_two
    second.device = plan.calibration.device
    second.save(update_fields=["device"])
    plan.refresh_from_db()
    laws = [step_time_model(row).arrays() for row in chosen_calibrations(plan)]
    made: list[Engine] = []

    class Timed(Engine):
        def attach(self, descriptor, size_bytes):
            self.number = made.index(self)

        def measure(self, decode_contexts, chunks, seed, lead_in=()):
            return None

        def serve(self, step):
            timing, sampled = super().serve(step)
            seconds = step_seconds(laws[self.number], *self.features(step))[0]
            return type(timing)(seconds, timing.host_gap_s, timing.contended), sampled

        def features(self, step):
            return features_of[len(features_of) - 1]

    features_of: list[tuple[float, ...]] = []

    def client(architecture, *, kv_tokens, **more):
        made.append(Timed(kv_tokens // 16))
        return contextlib.nullcontext(made[-1])

    from planner.verification import two_pools

    step_of = two_pools.TwoPools.step

    def noted(self, replica, rows):
        features_of.append(two_pools.reference.features(rows))
        return step_of(self, replica, rows)

    monkeypatch.setattr(two_pools.TwoPools, "step", noted)
    monkeypatch.setattr(verification_engines, "EngineClient", client)
    assert why_not(plan) == ""
    row = start_verification(plan, owner, Asked(50))
    jobs.run(Verification, str(row.pk), verification_work.verify)
    row.refresh_from_db()
    assert row.status == Verification.DONE, row.error
    assert abs(row.result["busy_bias"]) < 1e-9, "each step is priced by the law of the pool that ran it"
    assert len(made) == 2
    assert "two calibrations" in verification_feedback.why_not_measure(
        Verification(plan=plan, result=row.result | {"points": [{}]})
    )
