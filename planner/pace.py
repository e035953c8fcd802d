"""How long a piece of work will still take, from how fast it went lately."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

LATELY_S: Final = 10.0
LEAST_S: Final = 1.0  # before anything is said


class Pace:
    """Told how much is done; says how many seconds are left. Its stages go at different paces, so only the last ten
    seconds count."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque([(clock(), 0)])

    def left_s(self, done: int, total: int) -> float | None:
        """Seconds; None while there is too little to tell by."""
        now_s = self._clock()
        self._seen.append((now_s, done))
        while len(self._seen) > 2 and now_s - self._seen[1][0] >= LATELY_S:
            self._seen.popleft()
        since_s, before = self._seen[0]
        if now_s - since_s < LEAST_S or done <= before:
            return None
        return (total - done) * (now_s - since_s) / (done - before)
