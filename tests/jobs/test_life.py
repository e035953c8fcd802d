"""A job's life with a real worker: queued, running, ended, and what interferes."""

import time

import pytest

from tests.jobs.conftest import REQUEST

pytestmark = pytest.mark.worker
# Long enough to be caught at work: a larger model of the same family.
LONGER = {**REQUEST, "config": {**REQUEST["config"], "hidden_size": 256, "intermediate_size": 1024,
                                "num_hidden_layers": 6}}  # fmt: skip


def test_a_job_waits_runs_tells_its_progress_and_ends(no_device):
    pk = no_device.call("start", **REQUEST)
    assert no_device.call("row", pk=pk)["status"] == "queued"
    no_device.start("device")
    seen = []
    while (row := no_device.call("row", pk=pk))["status"] in ("queued", "running"):
        if row["status"] == "running" and row["total"]:
            seen.append((row["done"], len(row["ordinals"])))
        time.sleep(0.05)
    assert row["status"] == "done", row["error"]
    counts = sorted({done for done, _ in seen})
    assert len(counts) >= 3, "progress is told while it runs"
    assert seen == sorted(seen), "neither progress nor stored samples go back"
    assert 0 < seen[0][1] < len(row["ordinals"]) or seen[0][1] == 0, "samples are stored as they come"
    assert row["percent"] == 100 and row["worker"] and row["log"] and row["published"] is not None


def test_a_job_cancelled_while_queued_never_runs(no_device):
    pk = no_device.call("start", **REQUEST)
    assert no_device.call("cancel", pk=pk)
    after = no_device.call("start", **REQUEST)
    no_device.start("device")
    no_device.wait_for_status(after, "done")
    row = no_device.call("row", pk=pk)
    assert (row["status"], row["ordinals"], row["worker"]) == ("cancelled", [], "")


def test_a_running_job_is_cancelled_soon_and_keeps_what_it_measured(device):
    pk = device.call("start", **LONGER)
    row = device.wait_for_status(pk, "running")
    while len(row["ordinals"]) < 3 and row["status"] == "running":
        row = device.call("row", pk=pk)
    assert device.call("cancel", pk=pk)
    row = device.wait_for_status(pk, "cancelled", "done", timeout_s=15)
    assert row["status"] == "cancelled" and len(row["ordinals"]) >= 3
    assert not device.call("cancel", pk=pk), "what has ended cannot be cancelled"


def test_a_message_delivered_twice_runs_once(device):
    pk = device.call("start", **REQUEST)
    device.call("send", pk=pk)
    row = device.wait_for_status(pk, "done")
    device.call("send", pk=pk)
    after = device.call("start", **REQUEST)
    device.wait_for_status(after, "done")
    assert device.call("row", pk=pk) == row
    assert row["ordinals"] == list(range(len(row["ordinals"])))
