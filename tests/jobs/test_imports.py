"""kill -9 while a file is imported: the row says so, nothing half is left, and the file can be read again."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.stack import Stack
from tests.ops.services import wait_for

pytestmark = pytest.mark.worker
ROWS = 2_000_000  # a second or two of work: enough to be caught at


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "large.csv"
    path.write_bytes(b"time,input_tokens,output_tokens\n" + b"1.5,1000,20\n" * ROWS)
    return path


def ended(stack: Stack, pk: str) -> dict[str, Any]:
    row: dict[str, Any] = {}

    def reached() -> bool:
        row.update(stack.call("import_row", pk=pk))
        return row["status"] not in ("queued", "running")

    wait_for(reached, lambda: f"{row}\n{stack.log('default')[-2000:]}")
    return row


def test_an_import_killed_at_work_leaves_the_truth_and_can_be_run_again(stack: Stack, trace: Path) -> None:
    stack.start_missing("default")
    before = stack.call("import_row", pk=(pk := stack.call("start_import", path=str(trace))))
    assert before["held"] == [], "a file that is being imported waits for nobody"
    [file] = before["files"]
    wait_for(lambda: stack.call("import_row", pk=pk)["done"] > 0, lambda: stack.log("default")[-2000:])
    worker = stack.processes.pop("default")
    children = [int(child) for task in Path(f"/proc/{worker.pid}/task").glob("*/children")
                for child in task.read_text().split()]  # fmt: skip
    for process in (*children, worker.pid):
        os.kill(process, signal.SIGKILL)
    worker.wait()
    row = stack.call("import_row", pk=pk)
    assert row["status"] == "running" and 0 < row["done"] < row["total"], "nobody has noticed yet"
    stack.call("import_silent", pk=pk)
    row = stack.call("import_row", pk=pk)
    assert row["status"] == "interrupted" and "run it again" in row["error"]
    assert (row["traffic"], row["arrays"]) == (before["traffic"], before["arrays"])
    assert row["files"] == [file] == row["held"], "the upload waits for its owner, and nothing else is there"
    stack.start("default")
    again = ended(stack, stack.call("import_again", pk=pk))
    assert (again["status"], again["requests"]) == ("done", ROWS), again["error"]
    wait_for(lambda: not stack.call("import_row", pk=pk)["files"], "the file to be deleted")
    again = stack.call("import_row", pk=pk)
    assert (again["files"], again["held"], again["traffic"]) == ([], [], before["traffic"] + 1)
    assert again["status"] == "interrupted", "what happened stays on record"
