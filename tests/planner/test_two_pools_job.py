"""The job that replays two pools: from row to report, with engines of the test's own; and one of them dying."""

from __future__ import annotations

import contextlib
import copy

import pytest
from django.urls import reverse

from calibration import jobs
from calibration.engine.client import EngineError
from planner import verification_engines, verification_work
from planner.models import Verification
from planner.search.conditions import Link
from planner.verifications import Asked, rerun, start_verification, why_not
from tests.planner.verification.test_two_pools import Engine

pytestmark = pytest.mark.django_db


@pytest.fixture
def plan(finished_plan):
    """The finished plan with its choice split into two pools."""
    result = copy.deepcopy(finished_plan.result)
    choice = result["verdict"]["choice"]
    knobs = choice["knobs"]
    choice["knobs"] = {"prefill": knobs, "decode": knobs}
    choice["split"] = {"prefill": 1, "decode": 2, "hand_off": "pull", "transfer_chunk_tokens": 1,
                       "local_prefill_tokens": 0}  # fmt: skip
    result["summary"]["deployment"] = "disaggregated"
    result["inputs"].setdefault("conditions", {})["link"] = Link.entered(10.0).to_dict()
    finished_plan.result = result
    finished_plan.save(update_fields=["result"])
    return finished_plan


@pytest.fixture
def engines(monkeypatch):
    """Stand where the engine processes would: (engines so far, which of them dies after how many steps)."""
    made: list[Engine] = []
    dying: dict[int, int] = {}

    class Started(Engine):
        def __init__(self, kv_tokens):
            super().__init__(kv_tokens // 16)
            self.dies_after = dying.get(len(made))

        def attach(self, descriptor, size_bytes):
            self.attached = size_bytes

        def measure(self, decode_contexts, chunks, seed, lead_in=()):
            return None

        def serve(self, step):
            if self.dies_after is not None and self.steps >= self.dies_after:
                raise EngineError("the engine process ended (signal 9)")
            return super().serve(step)

    def client(architecture, *, kv_tokens, **more):
        made.append(Started(kv_tokens))
        return contextlib.nullcontext(made[-1])

    monkeypatch.setattr(verification_engines, "EngineClient", client)
    return made, dying


def run(row) -> Verification:
    jobs.run(Verification, str(row.pk), verification_work.verify)
    row.refresh_from_db()
    return row


def test_every_replica_gets_an_engine_and_the_report_its_hand_offs(
    plan, owner, no_broker, engines, owner_client
):
    made, _ = engines
    row = run(start_verification(plan, owner, Asked(50)))
    assert row.status == Verification.DONE, row.error
    assert len(made) == 3
    assert all(engine.steps > 0 for engine in made)
    hand_offs = row.result["hand_offs"]
    assert hand_offs["count"] == 50
    assert hand_offs["differing"] == 0 < hand_offs["computed_twice"]
    assert "shared memory" in hand_offs["over"]
    assert "10 GB/s" in hand_offs["plans_link"]
    assert {line["metric"] for line in row.result["lines"]} == {"ttft", "itl", "tpot", "e2e"}
    page = owner_client.get(reverse("planner:verification_detail", args=[row.pk])).content.decode()
    assert "Hand-offs" in page
    assert (
        "of one replica" not in page
        and "an engine for every replica" in page
        and "the two pools hold" in page
    )


def test_an_engine_that_dies_leaves_a_partial_report_and_what_it_measured(
    plan, owner, no_broker, engines, owner_client
):
    _, dying = engines
    dying[2] = 40
    row = run(start_verification(plan, owner, Asked(50)))
    assert row.status == Verification.FAILED
    assert row.holds is None
    assert "the decode engine ended" in row.sentence
    assert "signal 9" in row.error
    assert 0 < row.result["partial"]["finished"] < 50
    assert all(line["bar"] is None for line in row.result["lines"])
    page = owner_client.get(reverse("planner:verification_detail", args=[row.pk])).content.decode()
    assert "broke off" in page
    dying.clear()
    kept = verification_engines.kept_steps(row)[0]
    again = run(rerun(row, owner))
    assert again.status == Verification.DONE, again.error
    assert verification_engines.kept_steps(again)[0][: len(kept)] == kept


def test_more_pools_than_engines_fit_are_refused_in_words(plan, owner, no_broker, monkeypatch):
    monkeypatch.setattr(verification_engines, "cpu_memory_bytes", lambda: (1 << 30, 1 << 27))
    row = run(start_verification(plan, owner, Asked(50)))
    assert row.status == Verification.FAILED
    assert "3 engines beside each other do not fit" in row.error
    plan.result["verdict"]["choice"]["split"] |= {"prefill": 5, "decode": 4}
    assert "more than 8 replicas" in why_not(plan)
