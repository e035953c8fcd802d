"""One replica of a cluster in plain Python: the engine of `reference_schedule` with a clock and an account.

The rules of time are those of `planner.simulation.reference`; here a replica makes one schedule whenever it is
its turn, sleeps when there is nothing that it could do, and tells what its steps will bring about (`Turn`): whose
tokens are out at the end of the step, and which hand-offs got blocks. Seconds, tokens, blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from planner.simulation.cluster.deployment import Replica
from planner.simulation.cluster.reference_decode_side import ReferenceDecodeSide
from planner.simulation.gaps import GAP_BINS, gap_bin
from planner.simulation.held import Held
from planner.simulation.kernel.step_time import step_seconds
from planner.simulation.outcome import DECODE, MIXED, PREFILL
from planner.simulation.profile import RESERVES
from planner.simulation.reference import features
from planner.simulation.reference_requests import (
    Batch,
    Engine,
    Request,
    Row,
    arrive,
    enqueue,
    note_time,
    release,
)
from planner.simulation.reference_schedule import schedule


@dataclass(slots=True, eq=False)
class Leg(Request):
    """One side's part in a request. A prefill leg has a single output token. A decode leg that takes over a hand-off
    has one known token beyond what it gets (pull: the prompt's last, so its prompt is one shorter and its outputs
    are one more, and coins of drafts count from it, too; otherwise the first output), which makes its first row an
    ordinary decode, or with drafts one that is padded."""

    prefill_side: bool = False
    keeps_blocks: bool = False  # prefill side: after it is finished, until they were transferred
    keeps: bool = False  # it does so now
    finished: bool = False
    tells: bool = False  # its first token here will mean that its prompt is computed
    booked_tokens: int = 0  # this and the following: its part in the router's accounts, see reference_pool
    booked_blocks: int = 0
    ahead_tokens: int = 0
    ahead_pairs: int = 0
    queued: bool = False  # counted in its replica's queue until its first step
    entry: int = -1
    replica: int = -1
    entered_s: float = -1.0
    seen_waiting: int = 0
    rest_s: float = 0.0
    first_scheduled_s: float = -1.0
    first_token_s: float = -1.0
    last_token_s: float = -1.0
    chunks_s: float = 0.0
    max_gap_s: float = 0.0


@dataclass(slots=True)
class Step:
    batch: Batch
    free_blocks: int
    running: int
    waiting: int
    scheduled_s: float
    finishing: int  # rows with a last token
    start_s: float = 0.0
    seconds: float = 0.0
    end_s: float = 0.0


@dataclass(slots=True)
class Turn:
    """What a schedule brings about: rows that end at `end_s`, and hand-offs staged at `start_s`."""

    start_s: float
    end_s: float
    rows: list[Row]
    staged: list[Request]


class Drive(Protocol):
    """Where steps and hand-offs really happen (planner.verification): then nothing of them is predicted."""

    def step(self, replica: int, rows: list[Row]) -> float:
        """Runs a batch on the replica of this number, prefill replicas first; seconds."""

    def transfer(self, sender: Leg, receiver: Leg, first_token: int, tokens: int) -> tuple[float, float]:
        """Moves the KV cache of these tokens of a prompt between the legs' replicas, alone: latency [s] and bytes
        per second."""


@dataclass(slots=True)
class ReferenceReplica:
    number: int  # prefill replicas first
    of: Replica
    engine: Engine
    side: ReferenceDecodeSide
    next_s: float = math.inf
    asleep: bool = True
    resting: bool = True  # asleep with nothing to do, not for want of blocks
    lost: bool = False
    scheduled_s: float = 0.0
    end_s: float = 0.0
    end_before_s: float = 0.0
    steps: list[Step] = field(default_factory=list)
    outstanding_tokens: int = 0  # for the router
    prefill_tokens: int = 0  # this and the following: see reference_pool
    active_blocks: int = 0
    ahead_tokens: int = 0
    ahead_pairs: int = 0
    queued: int = 0  # sent here, without a first step
    queued_tokens: int = 0
    sent: int = 0
    gaps: list[int] = field(default_factory=lambda: [0] * GAP_BINS)
    step_counts: list[int] = field(default_factory=lambda: [0, 0, 0])
    step_busy_s: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    busy_s: float = 0.0
    uncovered_s: float = 0.0
    uncovered_steps: int = 0
    peak_running: int = 0
    least_free: int = 0
    held: Held = field(default_factory=Held)
    drive: Drive | None = None

    @property
    def lag(self) -> int:
        return self.engine.profile.lag

    def enter(self, leg: Leg, now: float, entry: int, *, remote: bool) -> None:
        """A request joins the queue; a sleeping replica wakes."""
        leg.remote = remote
        leg.tells = not remote
        leg.entry, leg.entered_s, leg.rest_s = entry, now, 0.0
        enqueue(self.engine, leg)
        leg.seen_waiting = len(self.engine.waiting)
        self.sent += 1
        self.wake(now, leg)

    def wake(self, now: float, leg: Leg) -> None:
        """Something happened that may let a sleeping replica go on; `leg` is noted to have ended its rest."""
        if not self.asleep or self.lost:
            return
        if self.resting:
            leg.rest_s += now - max(self.scheduled_s, self.end_s)
        self.asleep = self.resting = False
        self.next_s = max(now, self._schedule_time())

    def _schedule_time(self) -> float:
        return max(self.scheduled_s, self.end_before_s if self.lag else self.end_s)

    def turn(self, now: float) -> Turn | None:
        """Make the schedule that is due now; None: it went to sleep instead."""
        engine, side = self.engine, self.side
        self.scheduled_s = now
        if not (engine.running or engine.waiting or side.ready):
            self._hold(now)
            self.resting = True
            self._sleep()
            return None
        outstanding = self.steps[-1].finishing if self.lag and self.steps else 0
        batch = schedule(engine)
        finishing = sum(row.emits and _is_last(row.request) for row in batch.rows)
        step = Step(batch, engine.free, len(engine.running), len(engine.waiting), now, finishing)
        self.steps.append(step)
        self.peak_running = max(self.peak_running, len(engine.running))
        self.least_free = min(self.least_free, engine.free)
        self._hold(now)
        self._time(step)
        note_time(engine, batch, step.seconds)
        for row in batch.rows:
            self._account(row, step)
        if len(self.steps) > self.lag:
            deliver(engine, side, self.steps[-1 - self.lag].batch)
        self.next_s = self._schedule_time()
        if not (batch.rows or batch.preempted or outstanding or engine.in_gap):
            self._sleep()
        return Turn(step.start_s, step.end_s, batch.rows, side.newly_staged)

    def _hold(self, now: float) -> None:
        self.held.hold(now, self.engine.profile.num_blocks - self.engine.free, len(self.engine.running))

    def _sleep(self) -> None:
        self.asleep = True
        self.next_s = math.inf

    def _time(self, step: Step) -> None:
        step.start_s = max(step.scheduled_s, self.end_s)
        if step.batch.rows:
            if self.drive is not None:
                seconds, covered = self.drive.step(self.number, step.batch.rows), True
            else:
                seconds, covered = step_seconds(self.of.step_time, *features(step.batch.rows))
            step.seconds = seconds = seconds + self.of.gap_s
            kind = _kind(step.batch.rows)
            self.step_counts[kind] += 1
            self.step_busy_s[kind] += seconds
            self.busy_s += seconds
            if not covered:
                self.uncovered_s += seconds
                self.uncovered_steps += 1
        step.end_s = step.start_s + step.seconds
        if step.batch.rows:
            rows = step.batch.rows
            tokens, emitted = sum(row.tokens for row in rows), sum(row.emitted for row in rows)
            self.held.note_step(step.start_s, step.end_s, tokens, emitted)
        self.end_before_s = self.end_s
        self.end_s = step.end_s

    def _account(self, row: Row, step: Step) -> None:
        leg = row.request
        assert isinstance(leg, Leg)  # noqa: S101  for the type checker
        if leg.first_scheduled_s < 0:
            leg.first_scheduled_s = step.start_s
        if leg.queued:
            leg.queued = False
            self.queued -= 1
            self.queued_tokens -= leg.prompt
        if not row.decode and leg.first_token_s < 0:
            leg.chunks_s += step.seconds
        if not row.emits:
            return
        if leg.first_token_s < 0:
            leg.first_token_s = step.end_s
        else:
            gap_s = step.end_s - leg.last_token_s
            leg.max_gap_s = max(leg.max_gap_s, gap_s)
            self.gaps[gap_bin(gap_s)] += 1
        leg.last_token_s = step.end_s


def deliver(engine: Engine, side: ReferenceDecodeSide, batch: Batch) -> None:
    """A step's result: tokens in flight become generated, finished requests leave."""
    for row in batch.rows:
        if not row.emits:
            continue
        leg = row.request
        assert isinstance(leg, Leg)  # noqa: S101  for the type checker
        arrive(engine, row)
        if leg.prefill_side and leg not in engine.running:
            leg.generated -= 1
            leg.first_token_s = (
                -1.0
            )  # preempted after its last chunk: its KV cache is gone, it is computed again
            continue
        if engine.cache and leg in engine.running:
            engine.cache.learn(leg.index, leg.computed - leg.in_flight)
        if leg.generated == leg.output:
            leg.finished = True
            engine.shut = False
            (engine.running if leg in engine.running else engine.waiting).remove(leg)
            if leg.keeps_blocks:
                leg.keeps = True
                if engine.profile.admission == RESERVES:
                    engine.set_aside += leg.blocks
            else:
                release(engine, leg)
            side.committed.pop(leg.index, None)


def _is_last(request: Request) -> bool:
    return request.generated + request.in_flight == request.output


def _kind(rows: list[Row]) -> int:
    decodes = sum(row.decode for row in rows)
    if decodes == len(rows):
        return DECODE
    return MIXED if decodes else PREFILL
