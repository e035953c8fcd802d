"""What a command that takes minutes says meanwhile: the log's lines as they come, and how far it is.

On a terminal how far it is stands in one line, written over and over; where it goes to a file or a pipe it is a line of
its own, now and then, so that a log of an hour stays readable.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

EVERY_S = 10.0
CLEAR = "\r\033[K"


class Stream(Protocol):
    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...
    def isatty(self) -> bool: ...


class Teller:
    """Writes to a stream, standard error as a rule. `clock`: seconds, ever growing."""

    def __init__(self, stream: Stream, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._terminal = stream.isatty()
        self._told_s = -EVERY_S

    def log(self, line: str) -> None:
        self._write(f"{CLEAR if self._terminal else ''}{line}\n")

    def progress(
        self, done: int, total: int, message: str, eta_s: float | None = None, *, at_most: bool = False
    ) -> None:
        """`done` of `total`; `eta_s`: what is left, or the most that can be, where that is known."""
        left = "" if eta_s is None else f", {'at most' if at_most else 'about'} {eta_s:.0f} s left"
        line = f"{f'{done}/{total} ' if total > 1 else ''}{message}{left}"
        if self._terminal:
            self._write(CLEAR + line)
        elif self._clock() - self._told_s >= EVERY_S:
            self._told_s = self._clock()
            self._write(line + "\n")

    def end(self) -> None:
        """Takes the last line of progress away."""
        if self._terminal:
            self._write(CLEAR)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
