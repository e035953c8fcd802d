"""The real beat, a real worker and the web server, killed and restarted at any moment: every occasion of a schedule
is accounted for once. On the embedded database and queue, or on those that DATABASE_URL and REDIS_URL name (CI runs
both).

The device worker is not needed: what is started waits in its queue, and the history is what counts.
"""

from __future__ import annotations

import http.client
import itertools
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.jobs.stack import Stack, running
from tests.ops.services import PATIENCE_S, wait_for

pytestmark = pytest.mark.worker
EVERY_S = 1


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One of its own: what is killed here is nobody else's."""
    with running(tmp_path_factory.mktemp("schedules")) as installation:
        yield installation


def press_run_now(stack: Stack, pk: str, token: str) -> int | None:
    """Status of the answer, None when the web server died over it."""
    request = urllib.request.Request(
        f"{stack.url}/api/v1/schedules/{pk}/run", method="POST", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        return refused.code
    except (http.client.HTTPException, urllib.error.URLError, ConnectionError):
        return None


def test_beat_worker_and_web_killed_at_any_moment_lose_no_schedule_and_double_no_run(stack):
    stack.start("default", "beat", "web")
    pk = stack.call("make_schedule", every_s=EVERY_S)
    token = stack.call("issue_token")

    def wait_for_more(count: int) -> list[dict[str, Any]]:
        wanted = len(stack.call("runs_of", pk=pk)) + count
        wait_for(
            lambda: len(stack.call("runs_of", pk=pk)) >= wanted,
            lambda: f"{wanted} runs; {stack.call('runs_of', pk=pk)}\n{stack.log('beat')[-1500:]}",
        )  # fmt: skip
        return stack.call("runs_of", pk=pk)

    wait_for_more(3)
    assert stack.call("beats_row", pk=pk)["enabled"]
    stack.kill("beat")
    stack.start("beat")
    wait_for_more(2)
    stack.kill("default")
    stack.start("default")
    wait_for_more(2)

    with ThreadPoolExecutor(1) as pool:
        assert press_run_now(stack, pk, token) == 202
        pressed = pool.submit(press_run_now, stack, pk, token)
        stack.kill("web")
        stack.start(
            "web"
        )  # the socket outlives it: a request that nobody had taken is answered by the new one
        answers = [202, pressed.result(timeout=PATIENCE_S), press_run_now(stack, pk, token)]
    answered = answers.count(202)
    assert set(answers) <= {202, None}
    assert answers[-1] == 202 and answered <= stack.call("runs_by_hand", pk=pk) <= len(answers)
    wait_for_more(1)

    for name in ("beat", "default", "web"):
        stack.kill(name)
    before = stack.call("runs_of", pk=pk)
    time.sleep(3 * EVERY_S)  # nothing runs: three occasions are missed
    stack.start("default", "beat", "web")
    runs = wait_for_more(2)

    assert any(run["missed"] >= 2 for run in runs[len(before) :]), "what was missed is run once"
    for one, following in itertools.pairwise(runs):
        stands_for = 1 + one["missed"]
        assert following["due_s"] - one["due_s"] == pytest.approx(stands_for * EVERY_S, abs=1e-3), (
            "every occasion has its run, and no run has two"
        )
    assert all(run["late_s"] >= 0 for run in runs)
    assert all((run["check"] is not None) == (run["outcome"] == "started") for run in runs)
    started = [run["check"] for run in runs if run["check"]]
    assert len(set(started)) == len(started) >= 5
    left = stack.call("delete_schedule", pk=pk)
    assert left["tasks"] == 0 and left["checks"] >= len(started)
    checks = left["checks"]
    time.sleep(2 * EVERY_S)
    other = stack.call("make_schedule", every_s=10_000)
    assert stack.call("delete_schedule", pk=other)["checks"] == checks, "what is deleted starts nothing"
