"""A job's progress in a terminal: one line that is rewritten; in a log, a line each few seconds."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from typing import Any

from calibration.jobs import Job

LOG_EVERY_S = 10.0


class ProgressLine:
    """Writes to ``out`` (anything with write, flush and isatty). A terminal that has gone is no error."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self._live = bool(getattr(out, "isatty", lambda: False)())
        self._open = False
        self._last: tuple[float, str] = (-1e9, "")

    def say(self, text: str) -> None:
        self._write(("\r\x1b[K" if self._open else "") + text + "\n")
        self._open = False

    def show(self, title: str, job: Job) -> None:
        text = f"{title}: {describe(job)}"
        if self._live:
            width = max(20, shutil.get_terminal_size().columns - 1)
            self._write("\r\x1b[K" + text[:width])
            self._open = True
            return
        now_s = time.monotonic()
        if now_s - self._last[0] >= LOG_EVERY_S and text != self._last[1]:
            self._write(text + "\n")
            self._last = (now_s, text)

    def _write(self, text: str) -> None:
        with suppress(OSError):
            self._out.write(text, ending="")
            self._out.flush()


def describe(job: Job) -> str:
    """``45/312 (14 %), about 70 s left: message``, or ``at most 70 s left``."""
    if job.status == Job.QUEUED:
        return "waiting for a worker"
    count = f"{job.done}/{job.total} ({job.percent} %)" if job.total else "starting"
    by = "at most" if job.eta_at_most else "about"
    left = f", {by} {job.eta_s:.0f} s left" if job.eta_s is not None else ""
    return f"{count}{left}: {job.message}" if job.message else f"{count}{left}"
