"""Whose turn is it to simulate inside the web server? One what-if of a user at a time, and few of all users.

A slider that is dragged sends a request for every place it passes, and only the last one matters. So every request
writes a ticket before it waits; whoever holds an older one is overtaken: it stops at its next look, or gives up
waiting. What runs is held by `flock`, which the system frees whatever dies, and which works between the processes of
a server as well as between its threads. The folder is the device locks' (RIDGELINE_LOCK_DIR), so the limits are this
machine's: several web servers on one machine share them.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from calibration.engine.device_lock import lock_folder

WAIT_S: Final = 2.0
_POLL_S: Final = 0.01


class Overtaken(Exception):
    """A newer what-if of the same user has come."""

    def __init__(self) -> None:
        super().__init__("A newer what-if of yours has overtaken this one.")


class Busy(Exception):
    """No turn came within the wait."""

    retry_after_s = 1.0

    def __init__(
        self, message: str = "Too many what-ifs are being answered at once; try again in 1 s."
    ) -> None:
        super().__init__(message)


def most_at_once() -> int:
    """Of all users together: half of the processors, one at least."""
    return max(1, (os.cpu_count() or 2) // 2)


@contextmanager
def turn(user: str, *, wait_s: float = WAIT_S, folder: Path | None = None) -> Iterator[Callable[[], bool]]:
    """Holds the user's turn and one place among all; gives a function that says whether it was overtaken since.

    Raises Overtaken when a newer one of theirs comes while this waits, Busy when no place is free within `wait_s`.
    """
    folder = folder or lock_folder() / "what-if"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    ticket = folder / f"{user}.ticket"
    own = _draw(ticket)

    def overtaken() -> bool:
        try:
            return ticket.read_text() != own
        except OSError:
            return False

    held: list[int] = []
    deadline = time.monotonic() + wait_s
    try:
        held.append(_first_free([folder / f"{user}.lock"], deadline, overtaken))
        places = [folder / f"place-{i}.lock" for i in range(most_at_once())]
        held.append(_first_free(places, deadline, overtaken))
        yield overtaken
    finally:
        for descriptor in held:
            os.close(descriptor)


def _draw(ticket: Path) -> str:
    """A new ticket in place of the one before: readers see the one or the other, never half of it."""
    own = uuid.uuid4().hex
    beside = ticket.with_name(f"{ticket.name}.{os.getpid()}.{threading.get_ident()}")
    beside.write_text(own)
    beside.replace(ticket)
    return own


def _first_free(paths: Sequence[Path], deadline: float, overtaken: Callable[[], bool]) -> int:
    """The descriptor of the first of these files that can be locked."""
    while True:
        if overtaken():
            raise Overtaken
        for path in paths:
            if (descriptor := _locked(path)) is not None:
                return descriptor
        if time.monotonic() >= deadline:
            raise Busy
        time.sleep(_POLL_S)


def _locked(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
