"""A plan that two processes of a worker search together: one may be killed at work, and the answer is the same."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.stack import Stack
from tests.ops.services import wait_for

pytestmark = pytest.mark.worker

OBJECTIVES = ["ttft:p95:0.02", "itl:p99:0.02"]
SPACE = {"budgets_tokens": [64, 128, 256, 512], "max_num_seqs": [8, 16], "max_replicas": 4}
TRAFFIC = {"requests": 30_000, "rate_per_s": 120.0, "seed": 1}
TRIES = 5


@pytest.fixture
def sharing(stack: Stack) -> Stack:
    stack.start_missing("default")
    return stack


@pytest.fixture
def helped(sharing: Stack, calibration_result: dict[str, Any]) -> tuple[str, int]:
    """A plan on which a helper is at work, and the helper's process, held still. Where the helper was sent for too late
    to do a part, the plan is asked for again: whether there is time to help is not what is tested here."""
    for _ in range(TRIES):
        plan = sharing.call(
            "start_plan", calibration=calibration_result, objectives=OBJECTIVES, space=SPACE, traffic=TRAFFIC
        )
        if helper := _caught_helper(sharing, plan):
            return plan, helper
    pytest.fail(f"nobody helped with {TRIES} plans: {sharing.log('default')[-3000:]}")


def _caught_helper(stack: Stack, pk: str) -> int | None:
    """A helper that is at work on a part, held still; None when the plan was done before there was one."""
    found: list[int | None] = []

    def caught() -> bool:
        row = stack.call("plan_row", pk=pk)
        if row["status"] == "done":
            found.append(None)
        assert row["status"] in ("queued", "running", "done"), row
        for part in row["parts"]:
            if part["status"] != "running":
                continue
            pid = int(part["worker"].rpartition(":")[2])
            os.kill(pid, signal.SIGSTOP)
            if part in stack.call("plan_row", pk=pk)["parts"]:
                found.append(pid)
                break
            os.kill(pid, signal.SIGCONT)
        return bool(found)

    wait_for(caught, lambda: stack.log("default")[-3000:])
    return found[0]


def test_a_part_whose_process_is_killed_is_done_again(sharing: Stack, helped: tuple[str, int]) -> None:
    asked, helper = helped
    os.kill(helper, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{helper}").exists(), "the killed process to end")
    row = sharing.wait_for_plan(asked, "done")
    assert row["parts"] == []
    assert not row["worker"].endswith(f":{helper}"), "it was a helper"
    assert row["result"]["complete"]
    assert row["result"].pop("schedule") is None
    assert row["result"].pop("answer_hash")
    assert row["result"].pop("made_with")
    assert row["result"] == sharing.call("answer_alone", pk=asked), "by one process"


def test_a_shared_plan_is_cancelled_with_its_helper_and_keeps_what_it_knew(
    sharing: Stack, helped: tuple[str, int]
) -> None:
    asked, helper = helped

    def rest_is_begun() -> bool:
        """By the plan's own process, which then has done all but what it begun last."""
        return all(part["status"] != "queued" for part in sharing.call("plan_row", pk=asked)["parts"])

    wait_for(rest_is_begun, lambda: sharing.log("default")[-3000:])
    assert sharing.call("cancel_plan", pk=asked)  # it cannot be done: the helper holds a part, and is held
    os.kill(helper, signal.SIGCONT)
    row = sharing.wait_for_plan(asked, "cancelled")
    assert row["parts"] == []
    assert row["result"]["complete"] is False
    assert row["result"]["searching"] is False
    assert row["result"]["verdict"]["closest"] or row["result"]["verdict"]["choice"]
