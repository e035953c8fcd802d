"""Ends whole process trees, also after the supervisor itself was killed.

Every process that the supervisor starts carries a tag in its environment, and everything it starts inherits the
tag: workers' children, engine processes, whatever session or group they moved to. On Linux the tag is looked up
in /proc, so nobody can be missed; elsewhere the process group of each service stands in.

``python config/warden.py TAG`` sits beside a supervisor and reads its standard input, on which the supervisor
writes the process ids of the services it starts. The pipe closes when the supervisor ends, however it ends
(kill -9 included), and the warden then ends what is left. Standard library only: it must not fail to start.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

TAG = "RIDGELINE_TREE"
GRACE_S = 3.0  # an idle Celery worker on the filesystem queue takes six: it loses nothing by being killed
PROC = Path("/proc")


def tagged(tag: str) -> list[int]:
    """Processes whose environment at start carried ``tag`` or began with ``tag:`` (Linux). Zombies have none."""
    needle = f"\0{TAG}={tag}".encode()
    found = []
    for entry in PROC.glob("[0-9]*"):
        with suppress(OSError):
            environment = b"\0" + (entry / "environ").read_bytes()
            at = environment.find(needle)
            if at >= 0 and environment[at + len(needle) : at + len(needle) + 1] in (b"\0", b":", b""):
                found.append(int(entry.name))
    return found


def members(tag: str, leaders: Iterable[int]) -> list[int]:
    """What to signal: process ids on Linux, negated process groups elsewhere."""
    if (PROC / "self" / "environ").exists():
        return tagged(tag)
    alive = []
    for leader in leaders:
        with suppress(OSError):
            os.killpg(leader, 0)
            alive.append(-leader)
    return alive


def signal_all(targets: Iterable[int], number: int) -> None:
    for target in targets:
        with suppress(OSError):
            os.kill(target, number)


def end(
    tag: str, leaders: Iterable[int], grace_s: float = GRACE_S, reap: Callable[[], None] | None = None
) -> bool:
    """Asks the services to stop; kills what they leave behind, and themselves after ``grace_s``. True when
    nothing is left.

    Only the leaders are asked: a worker that loses its children first takes them for crashed and starts others.
    """
    leaders = list(leaders)
    reap = reap or (lambda: None)
    alive = members(tag, leaders)
    signal_all((pid for pid in alive if abs(pid) in leaders), signal.SIGTERM)
    deadline_s = time.monotonic() + grace_s
    while any(abs(pid) in leaders for pid in alive) and time.monotonic() < deadline_s:
        time.sleep(0.05)
        reap()
        alive = members(tag, leaders)
    deadline_s = time.monotonic() + 5.0
    while alive and time.monotonic() < deadline_s:
        signal_all(alive, signal.SIGKILL)
        time.sleep(0.02)
        reap()
        alive = members(tag, leaders)
    return not alive


def main(tag: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its pipe, not before
    leaders = [int(line) for line in sys.stdin if line.strip().isdigit()]
    end(tag, leaders)


if __name__ == "__main__":
    main(sys.argv[1])
