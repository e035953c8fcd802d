"""A real worker compiles the simulator as it comes up, in a process that ends with it, and jobs wait for that."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.jobs.stack import Stack, running
from tests.ops.services import wait_for

pytestmark = pytest.mark.worker
COMPILES = b"planner.simulation.ready"


def compiling(tag: str) -> list[int]:
    """Processes of the installation that compile."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (
                COMPILES in (entry / "cmdline").read_bytes()
                and tag.encode() in (entry / "environ").read_bytes()
            ):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An installation that has never compiled."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    with running(tmp_path) as installation:
        yield installation


def test_a_worker_that_plans_compiles_at_its_start_and_leaves_nothing_when_it_is_killed(cold: Stack) -> None:
    cold.start("device")
    assert not compiling(cold.tag), "it plans nothing"
    worker = cold.start("default")
    wait_for(lambda: compiling(cold.tag), lambda: cold.log("default"))
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    wait_for(lambda: not compiling(cold.tag), "the compiling process to end with its worker")
