"""Processes that measure end with whoever started them, whatever they are at."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
#: Starts what it is given, with its own standard input, says the process id and waits for the end.
STARTER = """
import os, subprocess, sys
child = subprocess.Popen([word.replace("OWN", str(os.getpid())) for word in sys.argv[1:]])
print(child.pid, flush=True)
child.wait()
"""
BUSY = (
    "import sys; from calibration.engine.parent import end_with; end_with(int(sys.argv[1]))\nwhile True: pass"
)
WAYS = {
    "busy": ["-c", BUSY, "OWN"],
    "waiting for what to measure": ["-m", "calibration.experiment.surroundings_process", "OWN"],
    "the other end of a transfer": [
        "-m", "calibration.experiment.tcp_worker", "--port", "1", "--sizes", "1", "--parent", "OWN",
    ],
}  # fmt: skip


@pytest.mark.parametrize("way", list(WAYS))
def test_a_process_ends_when_its_parent_is_killed(way) -> None:
    command = [sys.executable, "-c", STARTER, sys.executable, *WAYS[way]]
    pipe = subprocess.PIPE  # its input stays open until the end of this test
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as starter:
        assert starter.stdout is not None
        child = os.pidfd_open(int(starter.stdout.readline()))
        assert not select.select([child], [], [], 0)[0]
        starter.send_signal(signal.SIGKILL)
        starter.wait()
        assert select.select([child], [], [], 60)[0], "it goes on without its parent"
        os.close(child)
