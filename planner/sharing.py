"""One plan's search shared among worker processes, on this machine or on others.

The process that runs the plan (`SharedSearch`) writes the parts of its search as rows and works itself: it never waits
for a helper that does not come. Helpers are sent for with a Celery group as the plan begins, so that everybody makes
the question ready at the same time. A helper (`help_with`) makes the same question
from the plan's row, claims parts, which is one UPDATE, and writes what came of them. Its heartbeat says that it lives;
a part whose helper has fallen silent, or has given it back, is done again by whoever comes first. What is done with
the answers happens in the plan's own process, in the order of the parts, so helpers change when there is an answer and
never what it is. Parts and answers are JSON; they are gone when the plan has ended.

A helper works for a turn and then sends itself on, to the end of the queue: an import need not wait for a plan.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from datetime import timedelta
from itertools import accumulate
from math import ceil
from typing import Any, Final

import numpy as np
from django.db import connection
from django.utils import timezone

from calibration.jobs import JobRefused, JobRun, stamping
from calibration.patience import patiently
from planner.models import Plan, PlanPart
from planner.search.conditions import Conditions
from planner.search.crew import Answers, Evaluated, Part, in_threads
from planner.search.parts import Hand
from planner.simulation import ready

TURN_S: Final = 5.0  # of a helper
IDLE_S: Final = 0.5  # without a part to do, after which a helper lets others have the process
POLL_S: Final = 0.004  # of who has nothing to do: a look takes a tenth of it
BEAT_S: Final = 1.0
LOST_AFTER_S: Final = 5.0
PAYS_S: Final = (
    0.01  # of work, for others to be asked, and in a bundle: offering and answering one takes 2 to 6 ms
)
LATEST: Final = 0.2  # weight of a part's time in what one is expected to take
BUNDLE_S: Final = 0.5  # about the most that a bundle takes: it is done to its end, whoever waits
HELD: Final = 2  # questions that a helping process keeps ready

log = logging.getLogger(__name__)


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
        least, most = (ceil(PAYS_S / part_s), int(BUNDLE_S / part_s)) if part_s else (1, 1)
        sizes = bundle_sizes(len(parts), 1 + self._helpers, max(self._threads, least), most)
        ends = list(accumulate(sizes))
        return self._answers(self._offered([parts[e - n : e] for e, n in zip(ends, sizes, strict=True)]))

    def _offered(self, bundles: Sequence[Sequence[Part]]) -> _Board:
        first, self._number = self._number, self._number + len(bundles)
        rows = [
            PlanPart(plan=self._plan, number=first + i, asked=json.dumps(list(bundle)))
            for i, bundle in enumerate(bundles)
        ]
        patiently(lambda: PlanPart.objects.bulk_create(rows, ignore_conflicts=True))
        return _Board(self._plan, first, bundles)

    def _answers(self, board: _Board) -> Iterator[Answers | None]:
        try:
            with ThreadPoolExecutor(self._threads) if self._threads > 1 else _Here() as pool:
                yield from self._collect(board, pool)
        finally:
            board.clear()

    def _done(self, bundle: Sequence[Part]) -> list[Answers | None]:
        """Part by part; None from where the caller wanted to stop."""
        return list(in_threads(self._one, 1)(bundle))

    def _one(self, part: Part) -> Answers:
        began_s = time.monotonic()
        answers = self._hand.do(part)
        took_s, kind = time.monotonic() - began_s, _kind(part)
        before_s = self._took_s.get(kind, took_s)
        self._took_s[kind] = before_s + (took_s - before_s) * LATEST
        return answers

    def _collect(self, board: _Board, pool: Executor) -> Iterator[Answers | None]:
        mine: dict[Future[list[Answers | None]], int] = {}
        next_ = 0
        busy_s = time.monotonic()
        while next_ < len(board.bundles):
            while len(mine) < self._threads and (number := board.claim()) is not None:
                mine[pool.submit(self._done, board.bundles[number])] = number
            if mine:
                busy_s = time.monotonic()
            else:
                time.sleep(max(POLL_S, 0.1 * (time.monotonic() - busy_s)))
            finished, _ = wait(mine, timeout=POLL_S, return_when=FIRST_COMPLETED)
            for future in finished:
                board.answers[mine.pop(future)] = future.result()
            if self._hand.bench.should_stop():
                board.give_up()
            elif not board.open and len(mine) < self._threads:
                board.look()
            while next_ in board.answers:
                yield from board.answers.pop(next_)
                next_ += 1


def _kind(part: Part) -> object:
    """Parts that take about as long: a level of splits has nothing to do with a finalist's draw."""
    return part["do"], part.get("what")


def clear(plan: Plan) -> None:
    """No part of the plan is left."""
    patiently(lambda: PlanPart.objects.filter(plan=plan).delete())


class _Board:
    """Which bundles are open, with a helper, or answered."""

    def __init__(self, plan: Plan, first: int, bundles: Sequence[Sequence[Part]]) -> None:
        self.bundles = bundles
        self.answers: dict[int, list[Answers | None]] = {}
        self._rows = PlanPart.objects.filter(plan=plan, number__range=(first, first + len(bundles) - 1))
        self._first = first
        self.open = list(range(len(bundles)))[::-1]
        self._away: set[int] = set()  # with helpers
        self._missed_s = time.monotonic()  # when it was last looked whether one is lost

    def claim(self) -> int | None:
        """The first bundle that nobody has, now this process's; None: there is none."""
        while self.open:
            number = self.open.pop()
            row = self._rows.filter(number=self._first + number, status=PlanPart.QUEUED)
            if patiently(lambda row=row: row.update(status=PlanPart.OWN)):  # type: ignore[misc]
                return number
            self._away.add(number)
        return None

    def look(self) -> None:
        """Takes what helpers have answered, and back what they have lost."""
        if not self._away:
            return
        away = self._rows.filter(number__in=[self._first + number for number in self._away])
        if time.monotonic() - self._missed_s > BEAT_S:
            self._missed_s = time.monotonic()
            silent = timezone.now() - timedelta(seconds=LOST_AFTER_S)
            lost = away.filter(status=PlanPart.RUNNING, heartbeat_at__lt=silent)
            patiently(lambda: lost.update(status=PlanPart.QUEUED))
        ended = away.filter(status__in=(PlanPart.QUEUED, PlanPart.DONE))
        for number, status, answer in patiently(
            lambda: list(ended.values_list("number", "status", "answer"))
        ):
            self._away.discard(number - self._first)
            if status == PlanPart.DONE:
                found = [[Evaluated.from_dict(each) for each in answers] for answers in json.loads(answer)]
                self.answers[number - self._first] = list(found)
            else:
                self.open.append(number - self._first)

    def clear(self) -> None:
        patiently(self._rows.delete)

    def give_up(self) -> None:
        """Everything that nobody here works on counts as stopped."""
        for number in [*self.open, *self._away]:
            self.answers[number] = [None] * len(self.bundles[number])
        self.open.clear()
        self._away.clear()


class _Here(Executor):
    """One thread is the caller's own: handing parts to another costs more than small parts do."""

    def submit(self, function: Callable[..., Any], /, *values: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*values, **named))
        except Exception as error:
            future.set_exception(error)
        return future


def bundle_sizes(parts: int, processes: int, least: int, most: int) -> list[int]:
    """How many parts to a bundle, for the plan's own process, which takes bundles from the front, and helpers, who take
    them from the back: each takes a share of what is left, so that the last ones, in the middle, are small and
    everybody ends at the same time. `least`, `most`: of one bundle; the first prevails."""
    taken: list[int] = []
    while parts:
        taken.append(min(parts, max(least, min(most, -(-parts // (2 * processes))))))
        parts -= taken[-1]
    helpers = [size for turn, size in enumerate(taken) if turn % processes]
    return [*taken[::processes], *helpers[::-1]]


class ReadyHands:
    """The last questions that a helping process has made ready: making one takes longer than doing many parts."""

    def __init__(self, prepare: Callable[[Plan, Callable[[], bool]], Hand]) -> None:
        self._prepare = prepare
        self._held: OrderedDict[Any, tuple[Hand, JobRun]] = OrderedDict()

    def of(self, plan: Plan) -> tuple[Hand, JobRun]:
        if plan.pk not in self._held:
            run = JobRun(plan)
            self._held[plan.pk] = self._prepare(plan, run.should_stop), run
        self._held.move_to_end(plan.pk)
        while len(self._held) > HELD:
            self._held.popitem(last=False)
        return self._held[plan.pk]

    def let_go(self, plan: Plan) -> None:
        """Of a plan that has ended: its traffic need not stay in memory."""
        self._held.pop(plan.pk, None)


def help_with(pk: str, hands: ReadyHands, threads: int) -> bool:
    """A helper's turn: parts of the plan until TURN_S are over or there are none. Whether to send for it again."""
    plan = Plan.objects.filter(pk=pk, status=Plan.RUNNING).first()
    if plan is None or not ready.is_ready(Conditions.from_dict(plan.conditions).engine):
        return False  # a machine that still compiles is no help
    try:
        hand, run = hands.of(plan)
    except JobRefused:
        return False  # which the plan's own process tells
    me = f"{socket.gethostname()}:{os.getpid()}"
    own = PlanPart.objects.filter(plan=plan, worker=me, status=PlanPart.RUNNING)
    until_s = time.monotonic() + TURN_S
    busy_s = time.monotonic()
    last = _last_open(plan)
    with stamping(own, f"helper-{pk}", BEAT_S):
        while time.monotonic() < until_s and not run.should_stop():
            row = _claim(plan, last(), me)
            if row is not None:
                _answer(row, hand, me, threads)
                busy_s = time.monotonic()
            elif time.monotonic() - busy_s > IDLE_S:
                break
            else:
                time.sleep(max(POLL_S, 0.1 * (time.monotonic() - busy_s)))
    if run.should_stop():
        hands.let_go(plan)
        return False
    return True


def _last_open(plan: Plan) -> Callable[[], Any]:
    """Which is the key of the last part that nobody has (None: there is none)? The plan's own process takes them from
    the front. The query is put into words once: a helper without work asks it hundreds of times."""
    open_ = PlanPart.objects.filter(plan=plan, status=PlanPart.QUEUED).order_by("-number")
    words, values = open_.values_list("pk")[:1].query.sql_with_params()

    def ask() -> Any:
        with connection.cursor() as cursor:
            cursor.execute(words, values)
            found = cursor.fetchone()
        return found and found[0]

    return lambda: patiently(ask)


def _claim(plan: Plan, key: Any, me: str) -> PlanPart | None:
    """The part of that key, if nobody has it by now."""
    if key is None:
        return None
    open_ = PlanPart.objects.filter(plan=plan, status=PlanPart.QUEUED)
    row = open_.filter(pk=key).first()
    if row is None:
        return None
    now = timezone.now()
    taken = patiently(
        lambda: open_.filter(pk=row.pk).update(status=PlanPart.RUNNING, worker=me, heartbeat_at=now)
    )
    return row if taken else None


def _answer(row: PlanPart, hand: Hand, me: str, threads: int) -> None:
    """Writes what came of a part, or gives it back: an error is the plan's own process's to meet and to tell."""
    rows = PlanPart.objects.filter(pk=row.pk, worker=me, status=PlanPart.RUNNING)
    try:
        found = list(in_threads(hand.do, threads)(json.loads(row.asked)))
    except Exception:
        log.exception("a part of plan %s was given back", row.plan_id)
        patiently(lambda: rows.update(status=PlanPart.QUEUED))
        raise
    if any(answers is None for answers in found):
        patiently(lambda: rows.update(status=PlanPart.QUEUED))
        return
    text = json.dumps([[each.to_dict() for each in answers or ()] for answers in found], default=_plain)
    patiently(lambda: rows.update(status=PlanPart.DONE, answer=text))


def _plain(value: object) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")
