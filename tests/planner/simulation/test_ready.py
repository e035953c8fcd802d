"""The simulator is compiled before anybody waits for it, by one process."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numba
import pytest

from planner.simulation import ready
from tests.ops.services import PATIENCE_S

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """An empty cache, and a note for each time that everything is compiled."""
    done: list[str] = []
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(ready, "compile_for_vllm", lambda: done.append("vllm"))
    monkeypatch.setattr(ready, "compile_for_others", lambda: done.append("others"))
    monkeypatch.delenv(ready.PARENT, raising=False)
    return done


def test_it_compiles_once(compiles: list[str]) -> None:
    assert not ready.is_ready()
    ready.main()
    assert ready.is_ready()
    ready.main()
    assert compiles == ["vllm", "others"]


def test_other_sources_are_compiled_anew(compiles: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ready.main()
    monkeypatch.setattr(ready, "kernel_version", lambda: "another")
    assert not ready.is_ready()
    ready.main()
    assert compiles == ["vllm", "others"] * 2


def test_who_comes_while_another_compiles_waits_for_it(compiles: list[str]) -> None:
    stamp = ready._stamp(ready.VLLM)
    assert stamp is not None
    stamp.parent.mkdir()
    with stamp.with_name(f"{stamp.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = threading.Thread(target=ready.main)
        second.start()
        second.join(0.3)
        assert second.is_alive()
        stamp.touch()
    second.join(PATIENCE_S)
    assert not second.is_alive() and compiles == ["others"]


def test_a_failure_leaves_no_stamp(compiles: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError

    monkeypatch.setattr(ready, "compile_for_others", fail)
    with pytest.raises(RuntimeError):
        ready.main()
    assert ready.is_ready("vllm") and not ready.is_ready("sglang")


def test_a_wait_asks_and_can_be_left(compiles: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(SLEEP))
        return started[-1]

    class Left(Exception):
        pass

    asked: list[float] = []

    def leave() -> None:
        asked.append(time.monotonic())
        if len(asked) == 2:
            raise Left

    monkeypatch.setattr(ready, "start", start)
    with pytest.raises(Left):
        ready.wait(leave)
    assert started[0].poll() is not None, "what the wait started has ended with it"


def test_plans_for_vllm_wait_for_their_own_part_alone(
    compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp = ready._stamp(ready.VLLM)
    assert stamp is not None
    stamp.parent.mkdir()
    monkeypatch.setattr(ready, "start", lambda: subprocess.Popen(SLEEP))
    ready.wait(stamp.touch, "vllm")
    assert not ready.is_ready("tensorrt_llm")


def test_there_is_nothing_to_wait_for_when_it_is_ready(
    compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready.main()
    monkeypatch.setattr(ready, "start", None)
    ready.wait(lambda: pytest.fail("asked"))


@pytest.mark.slow
def test_everything_a_plan_needs_is_loaded_afterwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With an empty cache: the first process compiles, the second loads all six kernels and compiles none."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    code = (
        "from planner.simulation import ready; from planner.simulation.kernel.compiled import entries;"
        " ready.main(); ready.compile_for_vllm(); ready.compile_for_others();"
        " print(sum(sum(e.stats.cache_misses.values()) for e in entries), len(entries))"
    )
    told = [
        subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).split()
        for _ in range(2)
    ]
    assert told[1][0] == "0" and int(told[0][0]) == 6
