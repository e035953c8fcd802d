"""kill -9 at work, a broker that is away, and messages that must not be believed."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.jobs.conftest import LONGER, REQUEST
from tests.ops.services import wait_for

pytestmark = pytest.mark.worker


def caught_at_work(stack) -> tuple[str, int]:
    """A job that is running with some samples stored, and how many."""
    pk = stack.call("start", **LONGER)
    row = stack.wait_for_status(pk, "running")
    while len(row["ordinals"]) < 3:
        row = stack.call("row", pk=pk)
        assert row["status"] in ("running",), row
    return pk, len(row["ordinals"])


def test_a_killed_worker_leaves_interrupted_rows_within_a_minute_and_the_rerun_completes(beating):
    """Once the pool's child is killed, which its worker survives; once the worker itself, whose child must not
    work on. The sweep that beat sends finds both."""
    child_killed, samples_a = caught_at_work(beating)
    [child] = beating.children("device")
    os.kill(child, signal.SIGKILL)
    worker_killed, samples_b = caught_at_work(beating)
    [child] = beating.children("device")
    worker = beating.processes.pop("device")
    worker.kill()
    worker.wait()
    killed_s = time.monotonic()
    wait_for(lambda: not Path(f"/proc/{child}").exists(), 10, "the killed worker's child to end")
    for pk, samples in ((child_killed, samples_a), (worker_killed, samples_b)):
        row = beating.wait_for_status(pk, "interrupted", timeout_s=60)
        assert len(row["ordinals"]) >= samples, "what was measured is kept"
        assert "run it again" in row["error"]
    assert time.monotonic() - killed_s < 60
    beating.start("device")
    again = beating.call("rerun", pk=worker_killed)
    row = beating.wait_for_status(again, "done", timeout_s=60)
    assert row["ordinals"] == list(range(len(row["ordinals"])))
    assert beating.call("row", pk=child_killed)["status"] == "interrupted"


@pytest.mark.skipif(
    bool(os.environ.get("REDIS_URL")), reason="takes the embedded queue away; Redis is not ours"
)
def test_a_job_whose_message_could_not_be_sent_is_sent_by_the_sweep(beating):
    queue = beating.folder / "data" / "queue"
    away = queue.rename(queue.with_name("away"))
    try:
        pk = beating.call("start", **REQUEST)
        assert beating.call("row", pk=pk)["status"] == "queued"
        assert "could not send" in beating.log("driver")
    finally:
        away.rename(queue)
    beating.call("age", pk=pk, seconds=60)
    beating.wait_for_status(pk, "running", timeout_s=45)
    beating.call("cancel", pk=pk)
    beating.wait_for_status(pk, "cancelled", "done")


def test_a_pickled_message_is_refused(beating, tmp_path):
    touched = tmp_path / "touched"
    beating.call("pickled", path=str(touched))
    wait_for(lambda: "ContentDisallowed" in beating.log("default"), 20, "the refusal")
    assert not touched.exists()
    swept = beating.log("default").count("succeeded")
    wait_for(lambda: beating.log("default").count("succeeded") > swept, 30, "the worker to work on")
