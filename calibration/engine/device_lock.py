"""One job per device: a lock file that the system frees whatever dies.

`flock` belongs to the open file, so it ends with the last process that has it open. The engine process gets
the same open file: the device stays taken until the engine is gone too, not merely its starter.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.2


class DeviceBusy(RuntimeError):
    """Another job has the device."""


def lock_folder() -> Path:
    """Where lock files lie: $RIDGELINE_LOCK_DIR, else a private folder in the system's temporary one."""
    named = os.environ.get("RIDGELINE_LOCK_DIR")
    return Path(named) if named else Path(tempfile.gettempdir()) / f"ridgeline-locks-{os.getuid()}"


@contextmanager
def device_lock(
    device: str,
    *,
    wait_s: float = 0.0,
    should_stop: Callable[[], bool] = lambda: False,
    folder: Path | None = None,
) -> Iterator[int]:
    """Holds the device; gives the lock's file descriptor, to pass to the engine process.

    Raises DeviceBusy when another job still has it after `wait_s` seconds, or when should_stop says so.
    """
    folder = folder or lock_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9.-]", "_", device)[:100]
    descriptor = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _acquire(descriptor, device, wait_s, should_stop)
        yield descriptor
    finally:
        os.close(descriptor)  # not LOCK_UN: that would free it under an engine still running


def _acquire(descriptor: int, device: str, wait_s: float, should_stop: Callable[[], bool]) -> None:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline or should_stop():
                raise DeviceBusy(f"another job is running on {device}") from None
            time.sleep(_POLL_S)
        else:
            return
