"""The pages of verifications of every kind in a browser: wide and narrow, light and dark, without a barrier."""

from __future__ import annotations

import os

import numpy as np
import pytest
from django.urls import reverse

from calibration.experiment import DEMO_ENVELOPE
from calibration.steptime import linear_model
from calibration.transfer import TransferTable
from planner.endpoint_work import endpoint_result_of
from planner.models import Verification
from planner.verification import mixed_load
from planner.verification.endpoint_report import compare_endpoint
from planner.verification.measured import measure
from planner.verification.mixed_load import Case
from planner.verification.stream import Answer
from tests.browser.barriers import settled, severe
from tests.planner.verification.device import KNOBS, some_requests
from tests.planner.verification.test_replay import simulated

PRICES = linear_model(4e-3, token_s=2e-4)
CASE = Case(400, 128, 6)


def mixed_result() -> dict:
    requests = mixed_load.requests_of(CASE, PRICES, DEMO_ENVELOPE, 65_536)
    table = TransferTable.link(10.0, 0.0, 0.0, "shared memory")
    served = []
    for way in mixed_load.ways_of(CASE, DEMO_ENVELOPE, apart=True):
        outcome = mixed_load.predict(way, CASE, requests, DEMO_ENVELOPE, 65_536, PRICES, table, 1_000.0)
        served.append(mixed_load.served(way, CASE, outcome, [], [outcome, outcome], "cpu"))
    return {
        "lines": [], "busy_bias": None, "requests": 10, "replays": 2, "sentence": mixed_load.sentence(served),
        "advice": [], "holds": True, "served": [each.to_dict() for each in served], "over": "shared memory",
        "left_out": ["prompts of 4,096 tokens beside 1 streams of 32: contexts of 4,097 tokens"],
    }  # fmt: skip


def endpoint_result() -> dict:
    predicted = simulated(some_requests(60), KNOBS)
    answers = []
    for i, (due, first, done) in enumerate(
        zip(predicted.arrival_s, predicted.first_token_s, predicted.done_s, strict=True)
    ):
        tokens = int(predicted.output_tokens[i])
        answer = Answer(i, float(due), tokens, sent_s=float(due) + 1e-3, status=200, usage_tokens=tokens)
        if i % 20 == 7:
            answer.error = "HTTP 429: slow down"
        else:
            answer.chunk_s = np.linspace(first, max(done, first), tokens).tolist()
            answer.chunk_tokens, answer.done_s = [1] * tokens, float(done)
        answers.append(answer)
    measured = measure(answers)
    report = compare_endpoint(predicted, [], measured, "cpu")
    return endpoint_result_of(report, predicted, measured) | {
        "held_per_s": 12.0, "rate_per_s": 9.6, "first": 0, "of": 60, "replicas": 1,
    }  # fmt: skip


@pytest.fixture
def rows(verification, finished_plan, project, owner) -> dict[str, Verification]:
    """One of each kind."""

    def made(kind: str, result: dict, **options) -> Verification:
        return Verification.objects.create(
            project=project, owner=owner, name=kind, plan=finished_plan, kind=kind, requests=60, replays=2,
            options=options, status=Verification.DONE, result=result, holds=result["holds"],
            sentence=result["sentence"],
        )  # fmt: skip

    verification.result |= {
        "held_per_s": 19.4, "rate_per_s": 15.5, "step_spread": 0.08, "points": [{"decode": [5], "chunks": []}],
        "advice": ["Measure more mixed steps of 64 to 127 tokens: they took +12 % against their price."],
        "hand_offs": {"count": 60, "bytes": 4e8, "over": "shared memory between two processes", "median_s": 2e-3,
                      "plans_link": "10 GB/s, 0 ms, as entered", "error": -0.04, "computed_twice": 60, "differing": 1},
    }  # fmt: skip
    verification.save()
    return {
        "replay": verification,
        "endpoint": made("endpoint", endpoint_result(), base_url="https://llm.example.com/v1"),
        "mixed_load": made("mixed_load", mixed_result(), prompt_tokens=400, streams=6, output_tokens=128),
    }


@pytest.mark.parametrize("kind", ["replay", "endpoint", "mixed_load"])
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_every_kind_has_its_page(visit, rows, kind, width, scheme):
    page = settled(
        visit(reverse("planner:verification_detail", args=[rows[kind].pk]), width=width, scheme=scheme)
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert severe(page) == []
    if "SHOTS" in os.environ:
        page.screenshot(path=f"{os.environ['SHOTS']}/{kind}-{width}.png", full_page=True)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_plan_asks_for_all_three(visit, finished_plan, width, scheme):
    page = visit(reverse("planner:plan_detail", args=[finished_plan.pk]), width=width, scheme=scheme)
    for summary in ("By a running server", "Long prompts beside short answers"):
        page.get_by_text(summary, exact=True).click()
    page.locator("#endpoint-base_url").fill("http://10.0.0.1/v1")
    page.locator("#endpoint-model").fill("x")
    if "SHOTS" in os.environ:
        page.locator("section", has=page.locator("#verify")).screenshot(
            path=f"{os.environ['SHOTS']}/plan-{width}.png"
        )
    page.get_by_role("button", name="Send it this traffic").click()
    page.wait_for_selector("#endpoint-base_url[aria-invalid=true]")
    assert "OUTBOUND_NETWORKS" in page.content()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
