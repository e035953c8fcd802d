"""The mixed-load experiment as a job: form, page, API and command, with an engine of the test's own."""

from __future__ import annotations

import contextlib
import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from accounts.models import ApiToken
from calibration import jobs
from calibration.engine.client import EngineError
from calibration.services import step_time_model
from calibration.steptime import StepShape, step_seconds
from calibration.steptime.shapes import Chunk
from planner import mixed_load_work, verification_engines
from planner.models import Verification
from planner.tasks import work_of
from planner.verification_forms import MixedLoadForm
from planner.verifications import start_verification
from tests.planner.verification.device import Device
from tests.planner.verification.test_two_pools import Engine

pytestmark = pytest.mark.django_db


@pytest.fixture
def engines(monkeypatch, finished_plan):
    """Stand where the engine processes would; steps take what the calibration says."""
    arrays = step_time_model(finished_plan.calibration).arrays()

    class Started(Engine, Device):
        contended = False
        calls, dies_at = 0, None  # steps of all of them together

        def lives(self):
            Started.calls += 1
            if Started.calls == Started.dies_at:
                raise EngineError("the engine process ended (signal 9: somebody killed it)")

        def __init__(self, kv_tokens):
            Engine.__init__(self, kv_tokens // 16)

        def attach(self, descriptor, size_bytes):
            pass

        def measure(self, decode_contexts, chunks, seed, lead_in=()):
            self.lives()
            shape = StepShape(tuple(decode_contexts), tuple(Chunk(*chunk) for chunk in chunks))
            from calibration.engine.interface import StepTiming

            return StepTiming(step_seconds(arrays, *shape.features)[0], 0.0, self.contended)

        def serve(self, step):
            self.lives()
            timing, tokens = Engine.serve(self, step)
            rows = list(zip(step.query_tokens, step.cached_tokens, step.sampled, strict=True))
            contexts = tuple(cached for query, cached, _ in rows if query == 1)
            chunks = tuple(Chunk(*row) for row in rows if row[0] > 1)
            seconds = step_seconds(arrays, *StepShape(contexts, chunks).features)[0]
            return type(timing)(seconds, 0.0, self.contended), tokens

    def client(architecture, *, kv_tokens, **more):
        return contextlib.nullcontext(Started(kv_tokens))

    monkeypatch.setattr(verification_engines, "EngineClient", client)
    return Started


def asked(plan, **sent):
    form = MixedLoadForm({"prompt_tokens": "200", "output_tokens": "64", "streams": "4"} | sent, plan=plan)
    assert form.is_valid(), form.errors
    return form.asked()


def run(row) -> Verification:
    jobs.run(Verification, str(row.pk), work_of)
    row.refresh_from_db()
    return row


def test_every_way_is_predicted_and_run_in_one_report(finished_plan, owner, no_broker, engines, owner_client):
    row = run(start_verification(finished_plan, owner, asked(finished_plan)))
    assert (row.status, row.holds, row.result["advice"]) == (Verification.DONE, True, []), row.error
    served = row.result["served"]
    assert [each["way"] for each in served] == [
        "whole", "chunks of 25", "chunks of 50", "chunks of 100", "separate pools",
    ]  # fmt: skip
    assert all(each["gaps"] == 4 * 63 for each in served)
    page = owner_client.get(reverse("planner:verification_detail", args=[row.pk])).content.decode()
    assert "Long prompts beside short answers" in page
    assert "separate pools" in page
    figure = owner_client.get(reverse("planner:verification_figure", args=[row.pk, "mixed"])).json()
    assert len(figure["table"]["rows"]) == 5


WAYS = ["whole", "chunks of 25", "chunks of 50", "chunks of 100", "separate pools"]


def killed_at(share, engines, plan, owner, **sent):
    """The experiment with an engine that is killed after so much of its steps; and the row of one that is not."""
    engines.calls, engines.dies_at = 0, None
    whole = run(start_verification(plan, owner, asked(plan, **sent)))
    assert whole.status == Verification.DONE, whole.error
    engines.calls, engines.dies_at = 0, int(share * engines.calls)
    return run(start_verification(plan, owner, asked(plan, **sent))), whole


@pytest.mark.parametrize("share", [0.4, 0.7])
def test_an_engine_that_dies_leaves_the_ways_that_were_done(
    finished_plan, owner, no_broker, engines, owner_client, share
):
    row, whole = killed_at(share, engines, finished_plan, owner)
    assert (row.status, row.holds) == (Verification.FAILED, None)
    partial, done = row.result["partial"], row.result["served"]
    assert 0 < partial["ways_done"] < 4 and partial["ways"] == 5
    assert done == whole.result["served"][: partial["ways_done"]]  # as they would be in the whole report
    assert partial["way"] == WAYS[partial["ways_done"]]
    assert partial["case"] == "prompts of 200 tokens beside 4 streams of 64"
    assert sum(partial["steps"].values()) > 0 and partial["hand_offs"] is None
    assert partial["of"] == 6
    for words in (partial["way"], "signal 9", f"way {partial['ways_done'] + 1} of 5"):
        assert words in row.sentence
    assert row.error == row.sentence == row.result["sentence"]
    page = owner_client.get(reverse("planner:verification_detail", args=[row.pk])).content.decode()
    assert "broke off" in page and "Ways done" in page and "What each way costs" in page
    figure = owner_client.get(reverse("planner:verification_figure", args=[row.pk, "mixed"])).json()
    assert len(figure["table"]["rows"]) == partial["ways_done"]


def test_an_engine_that_dies_in_a_repeat_leaves_those_before_it(
    finished_plan, owner, no_broker, engines, bearer
):
    """The last step of all: the decode pool's, in the second repeat of the last way."""
    row, whole = killed_at(1.0, engines, finished_plan, owner, replays="2")
    partial, done = row.result["partial"], row.result["served"]
    assert (partial["ways_done"], partial["repeats_done"], partial["way"]) == (4, 1, "separate pools")
    assert [each["repeats"] for each in done] == [2, 2, 2, 2, 1]
    assert done[:4] == whole.result["served"][:4]
    assert "the decode engine ended" in row.sentence and "repeat 2 of 2" in row.sentence
    assert partial["hand_offs"] == 2 and partial["finished"] < partial["of"]
    told = Client(headers=bearer(owner)).get(f"/api/v1/verifications/{row.pk}").json()
    assert told["result"]["partial"]["repeats_done"] == 1
    assert told["result"]["served"][4]["repeats"] == 1
    page = Client()
    page.force_login(owner)
    page = page.get(reverse("planner:verification_detail", args=[row.pk])).content.decode()
    assert "1 of 2 repeats" in page


def test_an_engine_that_dies_at_once_leaves_the_reason(
    finished_plan, owner, no_broker, engines, owner_client
):
    """Right after the engines were warmed up: the first step of the first way."""
    warmed = []
    real = verification_engines._warm
    engines.dies_at = None
    verification_engines._warm = lambda *given: (real(*given), warmed.append(engines.calls))
    try:
        run(start_verification(finished_plan, owner, asked(finished_plan)))
    finally:
        verification_engines._warm = real
    engines.calls, engines.dies_at = 0, warmed[-1] + 1
    row = run(start_verification(finished_plan, owner, asked(finished_plan)))
    assert (row.result["served"], row.result["contended_share"]) == ([], None)
    assert row.result["partial"]["steps"] == {"prefill": 0, "decode": 0}
    assert "after 0 steps" in row.sentence
    page = owner_client.get(reverse("planner:verification_detail", args=[row.pk])).content.decode()
    assert "Ways done" in page and "What each way costs" not in page
    assert "begins anew" in page


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_asked_to_stop_it_keeps_the_ways_that_were_done(
    finished_plan, owner, no_broker, engines, owner_client, monkeypatch, share
):
    engines.calls, asked_so_far = 0, []
    monkeypatch.setattr(jobs.JobRun, "should_stop", lambda self: bool(asked_so_far.append(1)))
    whole = run(start_verification(finished_plan, owner, asked(finished_plan)))
    steps = int(share * len(asked_so_far)) - 1
    left = iter([False] * steps)
    monkeypatch.setattr(jobs.JobRun, "should_stop", lambda self: next(left, True))
    row = run(start_verification(finished_plan, owner, asked(finished_plan)))
    assert (row.status, row.holds, row.error) == (Verification.CANCELLED, None, "")
    partial, done = row.result["partial"], row.result["served"]
    assert 0 < partial["ways_done"] == len(done) < 5
    assert done == whole.result["served"][: len(done)]
    assert f"was stopped in way {len(done) + 1} of 5 ({WAYS[len(done)]}" in row.sentence
    page = owner_client.get(reverse("planner:verification_detail", args=[row.pk])).content.decode()
    assert "What each way costs" in page and "Stopped in" in page and "broke off" not in page


def test_where_it_is_not_as_predicted_it_says_what_to_do(
    finished_plan, owner, no_broker, engines, monkeypatch
):
    monkeypatch.setattr(mixed_load_work.mixed_load, "BARS", {"cpu": dict.fromkeys([("itl", 99.0)], -1.0)})
    row = run(start_verification(finished_plan, owner, asked(finished_plan)))
    assert (row.status, row.holds) == (Verification.DONE, False), row.error
    assert row.result["advice"] == [mixed_load_work.WHICH_STEPS]


def test_a_worker_that_vanishes_leaves_the_ways_that_were_done(
    finished_plan, owner, no_broker, engines, owner_client, bearer, monkeypatch
):
    class Killed(BaseException):
        """Nothing of ours sees the end of a process."""

    engines.calls, engines.dies_at, seen = 0, None, []
    whole = run(start_verification(finished_plan, owner, asked(finished_plan)))
    vanishes_at = int(0.6 * engines.calls)

    def lives():
        engines.calls += 1
        if engines.calls == vanishes_at:
            running = Verification.objects.order_by("created_at").last()
            page = owner_client.get(
                reverse("planner:verification_detail", args=[running.pk])
            ).content.decode()
            seen.append((running.result is None, running.told, "broke off" in page))
            raise Killed

    engines.calls = 0
    monkeypatch.setattr(engines, "lives", lambda self: lives())
    row = start_verification(finished_plan, owner, asked(finished_plan))
    with pytest.raises(Killed):
        run(row)
    assert seen == [(False, None, False)], "while it runs nothing is told of that"
    Verification.objects.filter(pk=row.pk).interrupt()
    row.refresh_from_db()
    partial, done = row.result["partial"], row.result["served"]
    assert 0 < partial["ways_done"] == len(done) < 5 and partial["steps"] is None
    assert done == whole.result["served"][: len(done)]
    page = owner_client.get(reverse("planner:verification_detail", args=[row.pk])).content.decode()
    assert f"broke off after {len(done)} of 5 ways" in page and "What each way costs" in page
    told = Client(headers=bearer(owner)).get(f"/api/v1/verifications/{row.pk}").json()
    assert (told["status"], len(told["result"]["served"])) == ("interrupted", len(done))


@pytest.mark.parametrize("contended", [False, True])
def test_steps_that_shared_their_core_are_told_of(
    finished_plan, owner, no_broker, engines, owner_client, contended
):
    engines.contended = contended
    row = run(start_verification(finished_plan, owner, asked(finished_plan)))
    assert row.result["contended_share"] == contended
    assert any("quieter machine" in line for line in row.result["advice"]) == contended
    page = owner_client.get(reverse("planner:verification_detail", args=[row.pk])).content.decode()
    assert ("quieter machine" in page) == contended and "of steps shared their core" in page


def test_the_grid_joins_and_says_what_it_left_out(finished_plan, owner, no_broker, engines):
    row = run(start_verification(finished_plan, owner, asked(finished_plan, grid="on", streams="2")))
    assert row.status == Verification.DONE, row.error
    assert (
        len(
            {(each["prompt_tokens"], each["output_tokens"], each["streams"]) for each in row.result["served"]}
        )
        == 13
    )
    assert any("contexts of 16,384 tokens" in line for line in row.result["left_out"])
    assert (
        "prompts of 1,024 tokens beside 1 stream of 32, whole: steps of 1,025 tokens, and 512 were measured"
        in (row.result["left_out"])
    )


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("streams", "16", "17 sequences at once, and 16 were measured"),
        ("prompt_tokens", "2000", "contexts of 2,000 tokens"),
        ("output_tokens", "1020", "contexts of 1,035 tokens"),
        ("output_tokens", "1", "greater than or equal to 2"),
    ],
)
def test_what_was_not_measured_is_refused_beside_its_field(
    owner_client, finished_plan, no_broker, field, value, words
):
    sent = {"prompt_tokens": "200", "output_tokens": "64", "streams": "4"} | {field: value}
    page = owner_client.post(reverse("planner:plan_mixed_load", args=[finished_plan.pk]), sent)
    assert page.status_code == 422
    assert list(page.context["mixed"].errors) == [field]
    assert words in str(page.context["mixed"].errors[field])
    assert Verification.objects.count() == 0


def test_the_api_and_the_command_take_the_same(owner, bearer, finished_plan, no_broker, engines):
    client = Client(headers=bearer(owner, ApiToken.WRITE))
    url = f"/api/v1/plans/{finished_plan.pk}/verifications/mixed-load"
    sent = {"prompt_tokens": 200, "output_tokens": 64, "streams": 4}
    answer = client.post(url, sent, content_type="application/json")
    assert answer.status_code == 202, answer.content
    assert answer.json()["kind"] == "mixed_load"
    run(Verification.objects.get())
    assert client.get(f"/api/v1/verifications/{answer.json()['id']}").json()["result"]["served"]
    refused = client.post(url, sent | {"streams": 99}, content_type="application/json")
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "streams")
    out = StringIO()
    call_command(
        "mixed_load", str(finished_plan.pk), "--prompt-tokens=200", "--output-tokens=64", "--streams=4", "--json",
        user="owner", stdout=out,
    )  # fmt: skip
    assert len(json.loads(out.getvalue().splitlines()[-1])["served"]) == 5
    with pytest.raises(CommandError, match="is not the id or exact name of a plan"):
        call_command("mixed_load", "not-an-id", user="owner", stdout=StringIO())


def test_imported_step_times_run_nothing(owner_client, finished_plan, no_broker):
    finished_plan.calibration.source = "imported"
    finished_plan.calibration.save(update_fields=["source"])
    page = owner_client.post(reverse("planner:plan_mixed_load", args=[finished_plan.pk]), {}, follow=True)
    assert "no engine here" in page.content.decode()
