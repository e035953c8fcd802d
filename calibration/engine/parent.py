"""A process that must not outlive the one that started it, which may be killed without a word."""

from __future__ import annotations

import os
import threading
import time

CHECK_S = 0.5


def end_with(parent: int) -> None:
    """From now on this process ends, with status 1, once its parent is another one than `parent` [process id]. It is
    looked at twice a second, by a thread, even in the middle of a long computation."""
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(CHECK_S)
    os._exit(1)
