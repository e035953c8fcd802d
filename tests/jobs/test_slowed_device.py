"""A device that slows down by 12 %, from its schedule to whoever is told: the real beat, workers and engine process.

Its steps run; what they are said to take is a formula with 1 % of noise (engine/process.FORMULA), times the hook that
stretches steps (STRETCH). Measured times of so small a model are those of Python on a machine that does other things
as well: whether a calibration of it is published would be chance. That the statistic tells 12 % from a CPU's own noise,
and a drift from a quiet run, is what tests/calibration/test_drift_checks.py and benchmarks/drift_alarms.py ask.
Nothing here waits by the clock: each wait is for a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from calibration.engine.process import FORMULA, STRETCH
from tests.jobs.conftest import TINY
from tests.jobs.stack import Stack, running
from tests.ops.services import wait_for

pytestmark = pytest.mark.worker
MODEL = {
    "config": TINY | {"max_position_embeddings": 2048}, "kv_tokens": 16_384, "max_batch": 8,
    "max_context_tokens": 1024, "max_step_tokens": 256, "dtype": "float32",
}  # fmt: skip
SLOWER = 1.12


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One of its own: its device is no other test's."""
    with running(tmp_path_factory.mktemp("slowed"), SWEEP_EVERY_S="3") as installation:
        yield installation


def until(stack: Stack, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The story, once it has come to that."""
    told: dict[str, Any] = {}

    def reached() -> bool:
        told.clear()
        told.update(stack.call("story"))
        return holds(told)

    wait_for(reached, lambda: f"{told}\n{stack.log('device')[-1500:]}\n{stack.log('default')[-1500:]}")
    return told


def checked(count: int) -> Callable[[dict[str, Any]], bool]:
    return lambda told: (
        len(told["checks"]) == count and told["checks"][-1]["status"] not in ("queued", "running")
    )


def test_a_slowed_device_is_found_measured_anew_and_its_plans_are_told_of_once(stack: Stack) -> None:
    stack.start("device", "default", "beat", **{FORMULA: "1"})
    first = stack.call("start", **MODEL)
    row = stack.wait_for_status(first, "done")
    assert row["published"], row
    loose = stack.call("plan_on", pk=first, objectives=["itl:p50:0.05"])
    answer = stack.wait_for_plan(loose, "done")["result"]
    itl_s = answer["verdict"]["choice"]["objectives"][0]["predicted"]
    tight = stack.call("plan_on", pk=first, objectives=[f"itl:p50:{1.06 * itl_s:.6f}"])
    assert stack.wait_for_plan(tight, "done")["result"]["verdict"]["choice"] is not None
    schedule = stack.call("watch", pk=first)

    # As fast as it was: the check says so, and nothing follows.
    stack.call("come_due", pk=schedule)
    told = until(stack, checked(1))
    [check] = told["checks"]
    assert (check["status"], check["drifted"], check["reasons"]) == ("done", False, []), check
    stack.call("sweep_all")
    told = stack.call("story")
    assert [run[0] for run in told["runs"]] == ["started"]
    assert len(told["calibrations"]) == 1 and not told["reviews"] and not told["told"]
    assert told["plans"] == {loose: "current", tight: "current"}

    # Slower by 12 %: found, measured anew, both plans looked at again, the one that depends on it stale, told once.
    stack.stop("device")
    stack.start("device", **{FORMULA: "1", STRETCH: str(SLOWER)})
    stack.call("come_due", pk=schedule)
    check = until(stack, checked(2))["checks"][1]
    assert (check["of"], check["drifted"]) == (first, True), check
    told = until(
        stack,
        lambda told: (
            [each[1] for each in told["told"]] == ["delivered"] * 2
            and [each["status"] for each in told["reviews"]] == ["done"] * 2
        ),
    )
    check = told["checks"][1]
    assert check["statistic"] == pytest.approx(math.log(SLOWER), abs=0.03)
    assert "steps take" in check["reasons"][0]
    _, anew = told["calibrations"]
    assert (anew["pk"], anew["rerun_of"]) == (check["recalibration"], first)
    assert (anew["published"], anew["stretched"]) == (True, SLOWER), anew
    assert told["plans"] == {loose: "same answer", tight: "choice no longer holds"}
    assert {review["of"] for review in told["reviews"]} == {anew["pk"]}
    [stale] = [review for review in told["reviews"] if review["plan"] == tight]
    [line] = stale["difference"]["objectives"]
    assert line["now_s"] / line["then_s"] == pytest.approx(SLOWER, abs=0.04)
    assert line["then_s"] <= line["limit_s"] < line["now_s"]
    assert sorted(event for event, _, _, _ in told["told"]) == ["drift", "plan_stale"]
    assert all(tries == 1 for _, _, tries, _ in told["told"])

    # Looked at again by everybody: nothing twice. The next check compares with what was measured last.
    stack.call("sweep_all")
    stack.call("sweep_all")
    stack.call("come_due", pk=schedule)
    after = until(stack, checked(3))
    last = after["checks"][2]
    assert (last["of"], last["drifted"]) == (anew["pk"], False), last
    stack.call("sweep_all")
    after = stack.call("story")
    assert [run[0] for run in after["runs"]] == ["started"] * 3
    for part in ("calibrations", "reviews", "told", "plans"):
        assert after[part] == told[part], part
    assert stack.log("default").count("Subject: ") == 2, "mails went out once each"
