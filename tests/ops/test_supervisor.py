"""The supervisor and its warden, with services that are small scripts."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from config import warden
from config.supervisor import Service, Supervisor
from tests.ops.services import PATIENCE_S, wait_for

ROOT = Path(__file__).resolve().parents[2]
SLEEP = "import time; print('up', flush=True); time.sleep(600)"
# A child in a session of its own, as a service's engine process might be.
PARENT = (
    "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
    " start_new_session=True); print('child', child.pid, flush=True); time.sleep(600)"
)
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def script(name: str, code: str) -> Service:
    return Service(name, (sys.executable, "-c", code))


@pytest.fixture
def supervise(tmp_path: Path):
    started: list[Supervisor] = []

    def start(*services: Service) -> tuple[Supervisor, list[str]]:
        said: list[str] = []
        supervisor = Supervisor(
            services, environment=os.environ, folder=ROOT, log_dir=tmp_path, say=said.append, grace_s=0.5
        )
        supervisor.start()
        started.append(supervisor)
        return supervisor, said

    yield start
    for supervisor in started:
        supervisor.stop()


def log(tmp_path: Path, name: str) -> str:
    path = tmp_path / f"{name}.log"
    return path.read_text() if path.exists() else ""


def test_stop_ends_grandchildren_in_other_sessions_and_services_deaf_to_term(supervise, tmp_path):
    supervisor, _ = supervise(script("parent", PARENT), script("deaf", DEAF))
    wait_for(lambda: "child" in log(tmp_path, "parent") and "up" in log(tmp_path, "deaf"))
    pids = [*supervisor.pids().values(), int(log(tmp_path, "parent").split()[1])]
    assert all(running(pid) for pid in pids)
    supervisor.stop()
    assert not any(running(pid) for pid in pids)


def test_a_dead_service_is_started_again_and_its_orphans_are_not_left_beside_it(supervise, tmp_path):
    supervisor, said = supervise(script("parent", PARENT), script("other", SLEEP))
    wait_for(lambda: "child" in log(tmp_path, "parent"))
    orphan, first, other = (
        int(log(tmp_path, "parent").split()[1]), supervisor.pids()["parent"], supervisor.pids()["other"]
    )  # fmt: skip
    os.kill(first, signal.SIGKILL)

    def again() -> bool:
        supervisor.tick()
        return supervisor.pids()["parent"] != first

    wait_for(again)
    assert "parent ended (SIGKILL); starting it again in 1 s" in said[0]
    assert not running(orphan)
    assert supervisor.pids()["other"] == other


def test_a_service_that_keeps_dying_is_tried_less_and_less_often(supervise, monkeypatch):
    monkeypatch.setattr("config.supervisor.MAX_DELAY_S", 0.2)
    supervisor, said = supervise(script("broken", "raise SystemExit(3)"))

    def three() -> bool:
        supervisor.tick()
        return len(said) >= 3

    wait_for(three)
    assert "exit status 3" in said[0] and "log" in said[0]


DRIVER = """
import os, sys, time
from pathlib import Path
from config.supervisor import Service, Supervisor, stopping_signals
services = [Service("parent", (sys.executable, "-c", sys.argv[2]))]
supervisor = Supervisor(services, environment=os.environ, folder=Path.cwd(), log_dir=Path(sys.argv[1]), say=print)
try:
    with stopping_signals():
        supervisor.start()
        while True:
            supervisor.tick(); time.sleep(0.05)
except KeyboardInterrupt:
    supervisor.stop()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_however_the_supervisor_ends_nothing_is_left(tmp_path, number):
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path), PARENT], cwd=ROOT)
    try:
        wait_for(lambda: "child" in log(tmp_path, "parent"))
        child = int(log(tmp_path, "parent").split()[1])
        parent = int(Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[1])
        driver.send_signal(number)
        driver.wait(timeout=PATIENCE_S)
        wait_for(lambda: not running(child) and not running(parent))
    finally:
        driver.kill()
        driver.wait()


def test_a_terminal_that_goes_ends_the_tree_though_its_signal_went_elsewhere(tmp_path):
    master, slave = pty.openpty()
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path), PARENT], cwd=ROOT, stdout=slave)
    os.close(slave)
    try:
        wait_for(lambda: "child" in log(tmp_path, "parent"))
        child = int(log(tmp_path, "parent").split()[1])
        os.close(master)
        driver.wait(timeout=PATIENCE_S)
        wait_for(lambda: not running(child))
    finally:
        driver.kill()
        driver.wait()


def test_only_processes_of_the_named_tree_are_found(tmp_path):
    processes = {
        tag: subprocess.Popen([sys.executable, "-c", SLEEP], env=os.environ | {warden.TAG: tag},
                              stdout=subprocess.PIPE)
        for tag in ("abc:web", "abcd:web")
    }  # fmt: skip
    try:
        for process in processes.values():
            assert process.stdout is not None and process.stdout.readline()
        assert warden.tagged("abc") == [processes["abc:web"].pid]
        assert warden.tagged("abc:device") == []
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()
