"""A database that is away for a moment must not end an hour of measuring: writes of a running job are retried."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import InterfaceError, OperationalError, connection

PATIENCE_S = 60.0
PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)

Result = TypeVar("Result")
log = logging.getLogger(__name__)


def patiently(action: Callable[[], Result], patience_s: float = PATIENCE_S) -> Result:
    """What ``action`` returns; tried again for ``patience_s`` seconds while the database does not answer.

    ``action`` must bear being repeated. Inside a transaction nothing is retried: the whole of it is lost.
    Raises what the last try raised.
    """
    until_s, tries = time.monotonic() + patience_s, 0
    while True:
        try:
            return action()
        except (OperationalError, InterfaceError):
            if connection.in_atomic_block or time.monotonic() >= until_s:
                raise
            log.warning("the database does not answer; trying again", exc_info=tries == 0)
            connection.close()
            time.sleep(PAUSES_S[min(tries, len(PAUSES_S) - 1)])
            tries += 1
