"""Who helps with a plan's search (`sharing.py`): a worker process that does bundles of its parts for a turn.

A helper works for a turn and then sends itself on, to the end of the queue: an import need not wait for a plan.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from django.db import connection, transaction
from django.utils import timezone

from calibration.jobs import JobRefused, JobRun, stamping
from calibration.patience import patiently
from planner.bundles import Bundle, work_through
from planner.models import Plan, PlanPart
from planner.search.conditions import Conditions
from planner.search.parts import Hand
from planner.sharing import BEAT_S, POLL_S, offer
from planner.simulation import ready

TURN_S: Final = 5.0
IDLE_S: Final = 0.5  # without a part to do, after which a helper lets others have the process
PAUSE_S: Final = 0.05  # between two batches of parts; after a longer one, the plan may have ended
HELD: Final = 2  # questions that a helping process keeps ready

log = logging.getLogger(__name__)


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
            open_ = last()
            if open_ is not None and _claimed(open_[0], open_[2], me):
                _Work(plan, *open_, me, last).through(hand, threads)
                busy_s = time.monotonic()
            elif (idle_s := time.monotonic() - busy_s) > IDLE_S or (idle_s > PAUSE_S and not _runs(plan)):
                break
            else:
                time.sleep(max(POLL_S, 0.1 * idle_s))
    if run.should_stop() or not _runs(plan):
        hands.let_go(plan)
        return False
    return True


def _runs(plan: Plan) -> bool:
    rows = Plan.objects.filter(pk=plan.pk, status=Plan.RUNNING)
    return patiently(rows.exists)


Open = tuple[Any, int, str]  # key, number and parts of a row


def _last_open(plan: Plan) -> Callable[[], Open | None]:
    """Which is the last row that nobody has (None: there is none)? The plan's own process takes them from the front.
    The query is put into words once: a helper asks it hundreds of times."""
    open_ = PlanPart.objects.filter(plan=plan, status=PlanPart.QUEUED).order_by("-number")
    words, values = open_.values_list("pk", "number", "asked")[:1].query.sql_with_params()

    def ask() -> Open | None:
        with connection.cursor() as cursor:
            cursor.execute(words, values)
            found: Open | None = cursor.fetchone()
        return found

    return lambda: patiently(ask)


def _claimed(key: Any, asked: str, me: str) -> bool:
    """If nobody has the row by now, nor has had it and made it smaller."""
    row = PlanPart.objects.filter(pk=key, status=PlanPart.QUEUED, asked=asked)
    now = timezone.now()
    return bool(patiently(lambda: row.update(status=PlanPart.RUNNING, worker=me, heartbeat_at=now)))


class _Work:
    """On a claimed row."""

    def __init__(
        self, plan: Plan, key: Any, number: int, asked: str, me: str, last: Callable[[], Any]
    ) -> None:
        self._plan, self._last = plan, last
        self._bundle = Bundle(number, json.loads(asked))
        self._row = PlanPart.objects.filter(pk=key, worker=me, status=PlanPart.RUNNING)

    def through(self, hand: Hand, threads: int) -> None:
        """Writes what came of it, or gives it back: an error is the plan's own process's to meet and to tell."""
        try:
            found = dict(work_through(self._bundle, hand.do, threads, self._leave))
        except Exception:
            log.exception("a part of plan %s was given back", self._plan.pk)
            self._give_back()
            raise
        if None in found.values():
            self._give_back()
            return
        told = [[each.to_dict() for each in found[number] or ()] for number in sorted(found)]
        text = json.dumps(told, default=_plain)
        patiently(lambda: self._row.update(status=PlanPart.DONE, answer=text))

    def _give_back(self) -> None:
        patiently(lambda: self._row.update(status=PlanPart.QUEUED))

    def _leave(self) -> None:
        """To whoever has nothing to do, part of what is left."""
        if self._last() is None and (rest := self._bundle.halve()) is not None:
            patiently(lambda: self._shared(rest))

    def _shared(self, rest: Bundle) -> None:
        """One row becomes two; not where the row has been taken for lost, and is somebody else's."""
        kept = json.dumps(list(self._bundle.parts[: self._bundle.stop]))
        with transaction.atomic():
            if self._row.update(asked=kept):
                offer(self._plan, [rest])


def _plain(value: object) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")
