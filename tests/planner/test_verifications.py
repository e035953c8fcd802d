"""Verifications: the job from row to report with a device of the test's own, its pages and its API."""

from __future__ import annotations

import contextlib
import json
import uuid
from io import StringIO

import numpy as np
import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from calibration import jobs
from calibration.engine.client import EngineError
from calibration.services import step_time_model
from calibration.steptime import StepShape, step_seconds
from calibration.steptime.shapes import Chunk
from planner import verification_engines, verification_work
from planner.models import Verification
from planner.verification_subject import subject_of
from planner.verifications import Asked, rerun, start_verification, why_not
from tests.planner.verification.device import Device

pytestmark = pytest.mark.django_db


@pytest.fixture
def engine(monkeypatch, finished_plan):
    """Stands where the engine process would; answers with the calibration's own law, stretched."""
    arrays = step_time_model(finished_plan.calibration).arrays()

    class Engine(Device):
        stretch, dies_after, asked = 1.0, None, {}

        def measure(self, decode_contexts, chunks, seed, lead_in=()):
            type(self).taken += not lead_in  # steps of the calibration, timed beside it, come behind another
            if self.dies_after is not None and type(self).taken > self.dies_after:
                raise EngineError("the engine process ended (signal 9)")
            timing = super().measure(decode_contexts, chunks, seed, lead_in=lead_in)
            shape = StepShape(tuple(decode_contexts), tuple(Chunk(*chunk) for chunk in chunks))
            seconds = step_seconds(arrays, *shape.features)[0] * self.stretch
            return type(timing)(seconds, timing.host_gap_s, timing.contended)

    Engine.taken = 0

    def client(architecture, **asked):
        Engine.asked = asked
        return contextlib.nullcontext(Engine())

    monkeypatch.setattr(verification_engines, "EngineClient", client)
    return Engine


def run(row) -> Verification:
    jobs.run(Verification, str(row.pk), verification_work.verify)
    row.refresh_from_db()
    return row


@pytest.fixture
def started(finished_plan, owner, no_broker):
    return start_verification(finished_plan, owner, Asked(50))


def test_a_device_that_does_what_was_predicted(started, engine):
    row = run(started)
    assert (row.status, row.holds) == (Verification.DONE, True), row.error
    assert "did what was predicted" in row.sentence
    assert abs(row.result["busy_bias"]) < 1e-9
    assert row.result["requests"] == 50
    assert sum(row.steps_of) == row.result["steps"] == len(verification_engines.kept_steps(row)[0])
    assert engine.asked["kv_tokens"] == row.plan.calibration.kv_tokens


def test_how_fast_the_device_was_meanwhile_is_told_apart(started, engine, owner_client):
    """Steps of the calibration are timed beside the replay; at the speed they had, the plan would have been right."""
    engine.stretch = 1.5
    row = run(started)
    assert (row.status, row.holds) == (Verification.DONE, False), row.error
    assert row.result["speed"]["change"] == pytest.approx(0.5, abs=0.03)
    for line in row.result["lines"]:
        assert line["at_speed_s"] == pytest.approx(line["measured_s"], rel=0.1)
    page = owner_client.get(reverse("planner:verification_detail", args=[row.pk])).content.decode()
    assert "At its speed then [ms]" in page
    told = owner_client.get(f"/api/v1/verifications/{row.pk}").json()
    assert told["result"]["speed"] == row.result["speed"]


def test_a_slower_device_is_named(started, engine):
    engine.stretch = 1.5
    row = run(started)
    assert (row.status, row.holds) == (Verification.DONE, False)
    assert "optimistic" in row.sentence
    assert row.result["busy_bias"] == pytest.approx(1 / 1.5 - 1)


def test_an_engine_that_dies_leaves_a_partial_report_and_running_again_goes_on(
    started, engine, owner, browser
):
    engine.dies_after = 120
    row = run(started)
    assert row.status == Verification.FAILED
    assert "signal 9" in row.error
    kept = verification_engines.kept_steps(row)[0]
    assert 20 < len(kept) < 120  # some were for warming up
    assert (row.message, row.holds) == ("Broke off", None)
    partial = row.result["partial"]
    assert sum(partial["steps"].values()) == len(kept) and partial["steps"]["prefill"] > 0
    assert 2 <= partial["finished"] < partial["of"] == 50 and partial["hand_offs"] is None
    assert row.sentence == row.result["sentence"] == row.error
    assert f"broke off after {len(kept)} steps" in row.sentence and "the engine ended" in row.sentence
    assert all(line["bar"] is None for line in row.result["lines"]) and row.result["lines"]
    page = browser.get(reverse("planner:verification_detail", args=[row.pk])).content.decode()
    assert "broke off" in page and "Steps with prefill" in page and "Hand-offs" not in page
    told = browser.get(f"/api/v1/verifications/{row.pk}").json()
    assert (told["status"], told["result"]["partial"]["hand_offs"], told["holds"]) == ("failed", None, None)
    engine.dies_after, engine.taken = None, 0
    again = run(rerun(row, owner))
    assert again.status == Verification.DONE, again.error
    assert verification_engines.kept_steps(again)[0][: len(kept)] == kept
    whole = run(rerun(again, owner))
    for one, other in zip(again.result["lines"], whole.result["lines"], strict=True):
        # One was timed beside fewer steps.
        assert one | {"at_speed_s": None} == other | {"at_speed_s": None}
    assert engine.taken < 2 * sum(whole.steps_of)


def test_of_several_replays_the_one_that_broke_off_is_named(finished_plan, owner, no_broker, engine):
    whole = run(start_verification(finished_plan, owner, Asked(50)))
    warming, engine.taken = engine.taken - sum(whole.steps_of), 0
    engine.dies_after = warming + sum(whole.steps_of) + 5
    row = run(start_verification(finished_plan, owner, Asked(50, replays=3)))
    assert row.status == Verification.FAILED
    assert row.sentence.startswith("Replay 2 of 3 broke off after 5 steps")
    assert row.steps_of == [sum(whole.steps_of), 5]


def test_replays_are_told_apart(finished_plan, owner, no_broker, engine):
    row = run(start_verification(finished_plan, owner, Asked(50, replays=3)))
    assert len(row.steps_of) == row.result["replays"] == 3
    assert all(line["spread"] is not None for line in row.result["lines"])


def test_a_request_to_stop_is_heard_and_what_was_measured_is_kept(started, engine, browser, monkeypatch):
    stops = iter([False] * 30)
    monkeypatch.setattr(jobs.JobRun, "should_stop", lambda self: next(stops, True))
    row = run(started)
    assert row.status == Verification.CANCELLED
    assert 0 < sum(row.steps_of) <= 30
    assert (row.holds, row.error, sum(row.result["partial"]["steps"].values())) == (
        None,
        "",
        sum(row.steps_of),
    )
    assert row.sentence.startswith("The replay was stopped after ")
    page = browser.get(reverse("planner:verification_detail", args=[row.pk])).content.decode()
    assert "Go on where it was" in page and "timed steps are kept" in page and "not as predicted" not in page
    monkeypatch.undo()


def test_steps_that_an_earlier_job_timed_say_nothing_of_the_pace(started):
    """They come at once: what is left, told by them, would be next to nothing."""
    told = []

    class Run:
        def progress(self, done, total, message, eta_s=None):
            told.append((done, total, eta_s))

    started.steps, started.steps_of = np.full(3, 0.01).tobytes(), [3]
    kept = verification_engines.KeptTimes(started, Run(), total=100)
    assert kept.begin() == [0.01] * 3
    for tokens in (10, 20, 30, 40):
        kept.told(tokens, 0.01)
    assert [eta_s for _, _, eta_s in told[:3]] == [None] * 3
    assert told[3][:2] == (40, 100) and told[3][2] > 0


def test_it_is_served_by_the_engine_that_was_timed(finished_plan, owner, no_broker, engine):
    """Weights of 8 bits compute in bfloat16: a replay in bfloat16 would be of another model."""
    calibration = finished_plan.calibration
    calibration.environment = {
        "dtype": "bfloat16",
        "weights": "float8_e4m3fn, a scale per row",
        "mixed_mode": "split",
    }
    calibration.save(update_fields=["environment"])
    row = run(start_verification(finished_plan, owner, Asked(50)))
    assert row.status == Verification.DONE, row.error
    assert (engine.asked["dtype"], engine.asked["mixed_mode"]) == ("float8", "split")


def test_a_window_of_more_than_there_is_takes_all(finished_plan):
    subject = subject_of(finished_plan, 20_000)
    assert subject.requests.count == subject.of
    assert np.all(np.diff(subject.requests.arrival_s) >= 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda plan: plan.result["verdict"].update(choice=None), "recommends something"),
        (lambda plan: setattr(plan.calibration, "source", "imported"), "imported"),
    ],
)
def test_what_cannot_be_replayed_says_why(finished_plan, change, words):
    import copy

    finished_plan.result = copy.deepcopy(finished_plan.result)
    assert why_not(finished_plan) == ""
    change(finished_plan)
    assert words in why_not(finished_plan)


@pytest.fixture
def browser(owner):
    client = Client()
    client.force_login(owner)
    return client


def test_the_page_says_what_the_device_did(browser, verification):
    page = browser.get(reverse("planner:verification_detail", args=[verification.pk])).content.decode()
    assert "as predicted" in page
    assert "TTFT p95" in page
    for name in ("ttft", "itl", "residuals"):
        figure = browser.get(reverse("planner:verification_figure", args=[verification.pk, name]))
        assert figure.json()["table"]["rows"]
    plan = browser.get(reverse("planner:plan_detail", args=[verification.plan_id])).content.decode()
    assert reverse("planner:verification_detail", args=[verification.pk]) in plan


def test_a_plan_is_replayed_by_a_click(browser, finished_plan, no_broker):
    answer = browser.post(reverse("planner:plan_verify", args=[finished_plan.pk]), {"requests": "60"})
    row = Verification.objects.get()
    assert answer.url == reverse("planner:verification_detail", args=[row.pk])
    assert (row.requests, row.replays, row.status) == (60, 1, Verification.QUEUED)
    refused = browser.post(
        reverse("planner:plan_verify", args=[finished_plan.pk]), {"requests": "1", "load": "0.8"}
    )
    assert refused.status_code == 422
    form = refused.context["verify"]
    assert form.errors == {"requests": ["Ensure this value is greater than or equal to 50."]}
    assert 'name="load" value="0.8"' in refused.content.decode()
    assert Verification.objects.count() == 1


def test_a_load_is_a_share_of_what_a_replica_holds(finished_plan, owner, no_broker, engine):
    half, most = (
        run(start_verification(finished_plan, owner, Asked(50, options={"load": load})))
        for load in (0.5, 0.8)
    )
    assert half.status == most.status == Verification.DONE, half.error
    assert half.result["held_per_s"] == most.result["held_per_s"]
    assert half.result["rate_per_s"] == pytest.approx(0.5 * half.result["held_per_s"])
    assert most.result["rate_per_s"] == pytest.approx(0.8 * most.result["held_per_s"])
    ttft = [row.result["lines"][1]["measured_s"] for row in (half, most)]
    assert ttft[0] < ttft[1]


def test_the_api_starts_watches_and_ends(browser, bearer, owner, finished_plan, no_broker):
    from accounts.models import ApiToken

    client = Client(headers=bearer(owner, ApiToken.WRITE))
    url = f"/api/v1/plans/{finished_plan.pk}/verifications"
    answer = client.post(url, {"requests": 60}, content_type="application/json")
    assert answer.status_code == 202, answer.content
    pk = answer.json()["id"]
    assert client.get(f"/api/v1/verifications/{pk}").json()["result"] is None
    assert client.get("/api/v1/verifications", {"plan": str(finished_plan.pk)}).json()["count"] == 1
    assert (
        client.post(f"/api/v1/verifications/{pk}/rerun", {}, content_type="application/json").status_code
        == 409
    )
    assert (
        client.post(f"/api/v1/verifications/{pk}/cancel", {}, content_type="application/json").status_code
        == 202
    )
    assert (
        client.post(f"/api/v1/verifications/{pk}/cancel", {}, content_type="application/json").status_code
        == 409
    )
    refused = client.post(url, {"requests": 1}, content_type="application/json")
    assert refused.status_code == 422


@pytest.mark.parametrize(("stretch", "code"), [(1.0, 0), (1.5, 1)])
def test_the_command_replays_here_and_now(finished_plan, owner, engine, stretch, code):
    engine.stretch = stretch
    out = StringIO()
    asked = ("verify", str(finished_plan.pk), "--requests", "50", "--load", "0.8", "--json")
    if code:
        with pytest.raises(SystemExit) as left:
            call_command(*asked, user="owner", stdout=out)
        assert left.value.code == code
    else:
        call_command(*asked, user="owner", stdout=out)
    told = json.loads(out.getvalue().splitlines()[-1])
    assert told["holds"] == (code == 0)
    assert told["rate_per_s"] == pytest.approx(0.8 * told["held_per_s"])


def test_a_plans_earlier_verifications_are_a_click_away(browser, finished_plan, verification):
    for _ in range(6):
        verification.pk = uuid.uuid4()
        verification.save(force_insert=True)
    page = browser.get(reverse("planner:plan_detail", args=[finished_plan.pk])).content.decode()
    assert "2 earlier" in page and page.count("/verifications/") >= 7
