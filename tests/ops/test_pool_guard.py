"""A worker of the filesystem queue whose idle child is killed: its pool would wait for ever."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest

from config import pool_guard
from tests.jobs.stack import running
from tests.ops.services import wait_for


def pool(*at_work: int, state: int = pool_guard.RUNNING) -> SimpleNamespace:
    jobs = [SimpleNamespace(worker_pids=lambda pid=pid: [pid], ready=lambda: False) for pid in at_work]
    return SimpleNamespace(_cache=dict(enumerate(jobs)), _state=state)


@pytest.fixture
def exits(monkeypatch) -> list[int]:
    codes: list[int] = []
    monkeypatch.setattr(pool_guard.os, "_exit", codes.append)
    monkeypatch.setattr(pool_guard.logging, "shutdown", lambda: None)
    return codes


@pytest.mark.parametrize(
    ("exitcode", "at_work", "state", "ends"),
    [(-9, (), 0, True), (-9, (7,), 0, False), (-9, (8,), 0, True), (0, (), 0, False), (1, (), 0, False),
     (-15, (), 1, False)],
)  # fmt: skip
def test_only_an_idle_child_that_was_killed_ends_the_worker(exitcode, at_work, state, ends, exits) -> None:
    pool_guard.ended(pool(*at_work, state=state), SimpleNamespace(pid=7, exitcode=exitcode))
    assert exits == ([1] if ends else [])


@pytest.mark.skipif(bool(os.environ.get("REDIS_URL")), reason="with Redis every child has a pipe of its own")
def test_a_real_worker_ends_for_its_supervisor_to_start_it_again(tmp_path) -> None:
    with running(tmp_path) as installation:
        process = installation.start("default")
        wait_for(lambda: len(installation.children("default")) > 1, lambda: installation.log("default"))
        os.kill(installation.children("default")[0], signal.SIGKILL)
        wait_for(lambda: process.poll() is not None, lambda: installation.log("default"))
        assert process.poll() == 1
