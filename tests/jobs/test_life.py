"""A job's life with a real worker: queued, running, ended, and what interferes."""

import time
from typing import Any

import pytest

from tests.jobs.conftest import LONGER, REQUEST, caught_at_work
from tests.jobs.stack import Stack

pytestmark = [pytest.mark.worker, pytest.mark.usefixtures("killed")]


@pytest.fixture(scope="module")
def finished(stack: Stack) -> dict[str, Any]:
    """A job that was queued without a worker, delivered twice, watched while it ran, and is done."""
    if "device" in stack.processes:
        stack.stop("device")
    pk = stack.call("start", **REQUEST)
    again = stack.call("send", pk=pk)
    before = stack.call("row", pk=pk)
    stack.start("device")
    seen = []
    while (row := stack.call("row", pk=pk))["status"] in ("queued", "running"):
        if row["total"]:
            seen.append((row["done"] / row["total"], len(row["ordinals"])))
        time.sleep(0.02)
    return {"pk": pk, "before": before, "seen": seen, "row": row, "again": again}


def test_a_job_waits_for_a_worker_and_ends(finished):
    assert finished["before"]["status"] == "queued" and not finished["before"]["worker"]
    row = finished["row"]
    assert row["status"] == "done", row["error"]
    assert row["percent"] == 100 and row["worker"] and row["log"]
    assert row["published"] is not None, "the gate has spoken, either way"


def test_progress_is_told_and_samples_are_stored_while_it_runs(finished):
    seen = finished["seen"]
    assert len({share for share, _ in seen}) >= 3
    assert seen == sorted(seen), "neither goes back"
    assert any(0 < samples < len(finished["row"]["ordinals"]) for _, samples in seen)


def test_a_message_delivered_again_runs_nothing(finished, stack):
    stack.wait_for_message(finished["again"])
    stack.wait_for_message(stack.call("send", pk=finished["pk"]))
    assert stack.call("row", pk=finished["pk"]) == finished["row"]
    ordinals = finished["row"]["ordinals"]
    assert ordinals == list(range(len(ordinals)))


def test_a_job_cancelled_while_queued_never_runs(no_device):
    pk = no_device.call("start", **REQUEST)
    assert no_device.call("cancel", pk=pk)
    no_device.start("device")
    no_device.wait_for_message(no_device.call("send", pk=pk))
    row = no_device.call("row", pk=pk)
    assert (row["status"], row["ordinals"], row["worker"]) == ("cancelled", [], "")


def test_a_running_job_is_cancelled_soon_and_keeps_what_it_measured(device):
    pk, _ = caught_at_work(device, LONGER)
    assert device.call("cancel", pk=pk)
    row = device.wait_for_status(pk, "cancelled", "done")
    assert row["status"] == "cancelled" and len(row["ordinals"]) >= 3
    assert not device.call("cancel", pk=pk), "what has ended cannot be cancelled"
