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


@pytest.fixture
def sharing(stack: Stack) -> Stack:
    if "default" not in stack.processes:
        stack.start("default")
    return stack


@pytest.fixture
def asked(sharing: Stack, calibration_result: dict[str, Any]) -> str:
    return str(
        sharing.call("start_plan", calibration=calibration_result, objectives=OBJECTIVES, space=SPACE, traffic=TRAFFIC)
    )  # fmt: skip


def _caught_helper(stack: Stack, pk: str) -> tuple[int, int]:
    """A helper that is at work on a part, held still: its process id and the part's number."""
    found: list[tuple[int, int]] = []

    def caught() -> bool:
        row = stack.call("plan_row", pk=pk)
        assert row["status"] in ("queued", "running"), row
        for part in row["parts"]:
            if part["status"] != "running":
                continue
            pid = int(part["worker"].rpartition(":")[2])
            os.kill(pid, signal.SIGSTOP)
            if part in stack.call("plan_row", pk=pk)["parts"]:
                found.append((pid, part["number"]))
                return True
            os.kill(pid, signal.SIGCONT)
        return False

    wait_for(caught, 60, lambda: stack.log("default")[-3000:])
    return found[0]


def test_a_part_whose_process_is_killed_is_done_again(sharing: Stack, asked: str) -> None:
    helper, _ = _caught_helper(sharing, asked)
    os.kill(helper, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{helper}").exists(), 10, "the killed process to end")
    row = sharing.wait_for_plan(asked, "done", timeout_s=120)
    assert row["parts"] == []
    assert not row["worker"].endswith(f":{helper}"), "it was a helper"
    assert row["result"]["complete"]
    assert row["result"].pop("schedule") is None
    assert row["result"].pop("answer_hash")
    assert row["result"].pop("made_with")
    assert row["result"] == sharing.call("answer_alone", pk=asked), "by one process"


def test_a_shared_plan_is_cancelled_with_its_helper_and_keeps_what_it_knew(
    sharing: Stack, asked: str
) -> None:
    wait_for(
        lambda: any(part["status"] == "running" for part in sharing.call("plan_row", pk=asked)["parts"]),
        60, lambda: sharing.log("default")[-3000:],
    )  # fmt: skip
    assert sharing.call("cancel_plan", pk=asked)
    row = sharing.wait_for_plan(asked, "cancelled", timeout_s=30)
    assert row["parts"] == []
    assert row["result"]["complete"] is False
    assert row["result"]["searching"] is False
    assert row["result"]["verdict"]["closest"] or row["result"]["verdict"]["choice"]
