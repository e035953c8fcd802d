"""A bundle: parts of a search that one process works on, from the front, while others may be given what is left of it.

Parts of one kind differ a hundredfold in what they take (a bound settles one, another runs whole), so nobody knows
beforehand how to share them out. So who works on a bundle looks up now and then (`LOOK_EVERY_S`), and where nothing is
left for others to begin, leaves them half of what it has not begun itself (`Bundle.halve`): all end at about the same
time, and what is shared is shared few times.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final

from planner.search.crew import Answers, Part
from planner.search.evaluate import Stopped

LOOK_EVERY_S: Final = 0.03
#: Of work, for others to be left it: offering a bundle and taking its answers takes the two processes 2 to 6 ms.
PAYS_S: Final = 0.01
#: After so long, who works on a bundle lets go of what it has not begun, and tells what it has done.
LONGEST_S: Final = 0.5

Do = Callable[[Part], Answers]


@dataclass(slots=True)
class Bundle:
    """`parts`, the first of which is number `first` of its search; `stop`: those from there on are others'."""

    first: int
    parts: Sequence[Part]
    stop: int = field(init=False)
    longest_s: float = field(default=0.0, init=False)  # of the parts that are done
    began_s: float = field(default_factory=time.monotonic, init=False)
    _next: int = field(default=0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        self.stop = len(self.parts)

    def take(self) -> int | None:
        """The position of a part to be done, now the caller's; None: there is none left."""
        with self._lock:
            if self._next >= self.stop:
                return None
            self._next += 1
            return self._next - 1

    def halve(self) -> Bundle | None:
        """What is left is given away, but for half of it; all of it by who has worked for long. None: that does not
        pay."""
        with self._lock:
            left = self.stop - self._next
            given = left if time.monotonic() - self.began_s > LONGEST_S else left // 2
            if not given or given * self.longest_s < PAYS_S:
                return None
            self.stop -= given
            return Bundle(self.first + self.stop, self.parts[self.stop : self.stop + given])

    @property
    def is_long(self) -> bool:
        return time.monotonic() - self.began_s > LONGEST_S


def work_through(
    bundle: Bundle, do: Do, threads: int, look_up: Callable[[], None]
) -> Iterator[tuple[int, Answers | None]]:
    """Numbers of parts and their answers (None: it was stopped), as they come. `look_up` is called every now and then,
    in the caller's thread."""

    def one() -> tuple[int, Answers | None] | None:
        position = bundle.take()
        if position is None:
            return None
        began_s = time.monotonic()
        try:
            answers: Answers | None = do(bundle.parts[position])
        except Stopped:
            answers = None
        bundle.longest_s = max(bundle.longest_s, time.monotonic() - began_s)
        return bundle.first + position, answers

    looked_s = time.monotonic()
    for found in _as_they_come(one, threads):
        if found is not None:
            yield found
        if time.monotonic() - looked_s > LOOK_EVERY_S:
            look_up()
            looked_s = time.monotonic()


def _as_they_come(
    one: Callable[[], tuple[int, Answers | None] | None], threads: int
) -> Iterator[tuple[int, Answers | None] | None]:
    """What `one` finds until it finds nothing, in threads; None where there is nothing new after LOOK_EVERY_S. One
    thread is the caller's own: handing parts to another costs more than small parts do."""
    if threads == 1:
        while (found := one()) is not None:
            yield found
        return
    with ThreadPoolExecutor(threads) as pool:
        busy: set[Future[tuple[int, Answers | None] | None]] = {pool.submit(one) for _ in range(threads)}
        while busy:
            ended, busy = wait(busy, timeout=LOOK_EVERY_S, return_when=FIRST_COMPLETED)
            for future in ended:
                if (found := future.result()) is not None:
                    busy.add(pool.submit(one))
                    yield found
            yield None


def bundle_sizes(parts: int, processes: int, least: int) -> list[int]:
    """How many parts to a bundle, for the plan's own process, which takes bundles from the front, and helpers, who take
    them from the back: each takes a share of what is left, so that the last ones, in the middle, are small and
    everybody ends at about the same time. `least`: of one bundle."""
    taken: list[int] = []
    while parts:
        taken.append(min(parts, max(least, -(-parts // (2 * processes)))))
        parts -= taken[-1]
    helpers = [size for turn, size in enumerate(taken) if turn % processes]
    return [*taken[::processes], *helpers[::-1]]
