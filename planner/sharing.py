"""One plan's search shared among worker processes, on this machine or on others: the plan's own side.

The process that runs the plan (`SharedSearch`) writes the parts of its search as rows, bundles of them, and works
itself: it never waits for a helper that does not come. Helpers (`helpers.py`) are sent for with a Celery group as the
plan begins, so that everybody makes the question ready at the same time. A helper makes the same question from the
plan's row, claims bundles, which is one UPDATE, and writes what came of them. Its heartbeat says that it lives; what a
helper that has fallen silent had, or what one has given back, is done again by whoever comes first. Whoever works on a
bundle while nothing is left to be begun leaves half of the rest to others (`bundles.py`). What is done with the answers
happens in the plan's own process, in the order of the parts, so helpers change when there is an answer and never what
it is. Parts and answers are JSON; they are gone when the plan has ended.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import accumulate
from math import ceil
from typing import Final

from django.db import connection
from django.utils import timezone

from calibration.patience import patiently
from planner.bundles import PAYS_S, Bundle, bundle_sizes, work_through
from planner.models import Plan, PlanPart
from planner.search.crew import Answers, Evaluated, Part, in_threads
from planner.search.parts import Hand

POLL_S: Final = 0.004  # of who has nothing to do: a look takes a tenth of it
BEAT_S: Final = 1.0
LOST_AFTER_S: Final = 5.0
LATEST: Final = 0.2  # weight of a part's time in what one is expected to take


class SharedSearch:
    """`do` does parts (a `crew.Do`). `helpers`: how many may come; `threads`: of this process."""

    def __init__(self, plan: Plan, hand: Hand, *, threads: int, helpers: int) -> None:
        self._plan, self._hand = plan, hand
        self._threads, self._helpers = max(1, threads), helpers
        self._number = 0
        self._took_s: dict[object, float] = {}  # about what a part of each kind takes here

    def do(self, parts: Sequence[Part]) -> Iterator[Answers | None]:
        """Helpers may begin at once; this process works when it is asked for answers."""
        part_s = self._took_s.get(_kind(parts[0]), 0.0) if parts else 0.0
        small = 0.0 < part_s * len(parts) < PAYS_S
        if len(parts) <= self._threads or not self._helpers or small:
            return in_threads(self._one, self._threads)(parts)
        least = ceil(PAYS_S / part_s) if part_s else 1
        sizes = bundle_sizes(len(parts), 1 + self._helpers, max(self._threads, least))
        first, self._number = self._number, self._number + len(parts)
        board = _Board(self._plan, first, parts, sizes)
        return self._answers(board)

    def _answers(self, board: _Board) -> Iterator[Answers | None]:
        try:
            yield from self._collect(board)
        finally:
            board.clear()

    def _one(self, part: Part) -> Answers:
        began_s = time.monotonic()
        answers = self._hand.do(part)
        took_s, kind = time.monotonic() - began_s, _kind(part)
        before_s = self._took_s.get(kind, took_s)
        self._took_s[kind] = before_s + (took_s - before_s) * LATEST
        return answers

    def _collect(self, board: _Board) -> Iterator[Answers | None]:
        busy_s = time.monotonic()
        while not board.is_done:
            bundle = board.claim()
            if bundle is None:
                if not board.look():
                    time.sleep(max(POLL_S, 0.1 * (time.monotonic() - busy_s)))
            else:
                for number, answers in work_through(
                    bundle,
                    self._one,
                    self._threads,
                    lambda bundle=bundle: board.leave(bundle),  # type: ignore[misc]
                ):
                    board.found[number] = answers
                    yield from board.in_order()
                busy_s = time.monotonic()
            if self._hand.bench.should_stop():
                board.give_up()
            yield from board.in_order()


def _kind(part: Part) -> object:
    """Parts that take about as long: a level of splits has nothing to do with a finalist's draw."""
    return part["do"], part.get("what")


def clear(plan: Plan) -> None:
    """No part of the plan is left."""
    patiently(lambda: PlanPart.objects.filter(plan=plan).delete())


def offer(plan: Plan, bundles: Sequence[Bundle]) -> None:
    """For whoever comes first."""
    rows = [
        PlanPart(plan=plan, number=bundle.first, asked=json.dumps(list(bundle.parts))) for bundle in bundles
    ]
    patiently(lambda: PlanPart.objects.bulk_create(rows, ignore_conflicts=True))


class _Board:
    """Which of the parts are open, with somebody, or answered. A bundle's row has the number of its first part."""

    def __init__(self, plan: Plan, first: int, parts: Sequence[Part], sizes: Sequence[int]) -> None:
        self.found: dict[int, Answers | None] = {}  # what is not yet told, by number
        self._plan, self._beyond = plan, first + len(parts)
        self._rows = PlanPart.objects.filter(plan=plan, number__range=(first, first + len(parts) - 1))
        self._told = first  # the number of the next part to be told of
        starts = [stop - size for stop, size in zip(accumulate(sizes), sizes, strict=True)]
        bundles = [Bundle(first + a, parts[a : a + size]) for a, size in zip(starts, sizes, strict=True)]
        self._open = {bundle.first for bundle in bundles}  # those that nobody has, as far as is known here
        self._missed_s = time.monotonic()  # when it was last looked whether a helper is lost
        unheld = self._rows.filter(status__in=(PlanPart.QUEUED, PlanPart.DONE))
        self._unheld_words = unheld.values_list("number", "status").query.sql_with_params()
        offer(plan, bundles)

    @property
    def is_done(self) -> bool:
        return self._told == self._beyond

    def in_order(self) -> Iterator[Answers | None]:
        """Answers that are next."""
        while self._told in self.found:
            self._told += 1
            yield self.found.pop(self._told - 1)

    def claim(self) -> Bundle | None:
        """The first bundle that nobody has, now this process's; None: there is none."""
        while self._open:
            number = min(self._open)
            self._open.remove(number)
            row = self._rows.filter(number=number)
            open_ = row.filter(status=PlanPart.QUEUED)
            if patiently(lambda open_=open_: open_.update(status=PlanPart.OWN)):  # type: ignore[misc]
                (asked,) = patiently(lambda row=row: row.values_list("asked", flat=True))  # type: ignore[misc]
                return Bundle(number, json.loads(asked))
        return None

    def leave(self, bundle: Bundle) -> None:
        """To whoever has nothing to do, part of what this process works on; takes what is answered meanwhile."""
        self.look()
        if self._open:
            return
        rest = bundle.halve()
        if rest is not None:
            self._open.add(rest.first)
            offer(self._plan, [rest])

    def look(self) -> bool:
        """Takes what helpers have answered, and back what they have lost or left. Was there something?"""
        if time.monotonic() - self._missed_s > BEAT_S:
            self._missed_s = time.monotonic()
            silent = timezone.now() - timedelta(seconds=LOST_AFTER_S)
            lost = self._rows.filter(status=PlanPart.RUNNING, heartbeat_at__lt=silent)
            patiently(lambda: lost.update(status=PlanPart.QUEUED))
        states = dict(patiently(self._unheld))
        before, self._open = self._open, {n for n, status in states.items() if status == PlanPart.QUEUED}
        done = self._rows.filter(number__in=[n for n in states if n not in self._open])
        if len(states) > len(self._open):
            for number, text in patiently(lambda: list(done.values_list("number", "answer"))):
                for beyond, answers in enumerate(json.loads(text)):
                    self.found[number + beyond] = [Evaluated.from_dict(each) for each in answers]
            patiently(lambda: done.update(status=PlanPart.OWN))
        return len(states) > len(self._open) or bool(self._open - before)

    def _unheld(self) -> list[tuple[int, str]]:
        """Numbers and states of the rows that nobody works on. Put into words once: it is asked hundreds of times."""
        with connection.cursor() as cursor:
            cursor.execute(*self._unheld_words)
            return list(cursor.fetchall())

    def clear(self) -> None:
        patiently(self._rows.delete)

    def give_up(self) -> None:
        """Everything that is not answered counts as stopped."""
        for number in range(self._told, self._beyond):
            self.found.setdefault(number, None)
        self._open.clear()
