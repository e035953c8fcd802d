"""A run under the microscope: every step of a window with its rows, and who waits in it, for whom and why.

A simulation is deterministic, so a window costs no memory beforehand: the run is made again without a record up to
just before the window, and recorded from there to its end. At that point the kernel's own lists say who runs and in
which order the others wait; from there `waits` follows them from step to step. Windows are given by schedule numbers
or by time (a step belongs to a window that it overlaps). A timeline plot reads `Look.to_dict`. Seconds, tokens.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from calibration.steptime.scalar import StepTimeArrays
from planner.simulation.arrays import Floats, Ints
from planner.simulation.kernel.entries import ADVANCE
from planner.simulation.kernel.loop import FINISHED, RECORD_FULL, STUCK
from planner.simulation.kernel.records import LOOSE, STEADY
from planner.simulation.kernel.results import Recorder
from planner.simulation.kernel.state import State, build
from planner.simulation.knobs import Knobs
from planner.simulation.outcome import StepRecord
from planner.simulation.prefix import PrefixBlocks
from planner.simulation.waits import Followed, Wait, begin_with
from planner.simulation.workload import Workload, prepare

MOST_STEPS: Final = 2000
COARSE_STEPS: Final = 1024  # a window by time is found to within so many
PIECE_STEPS: Final = 64


@dataclass(frozen=True, slots=True)
class Window:
    """Schedules `from_step` to before `to_step`, or, where those are None, what overlaps `from_s` to `to_s`."""

    from_s: float = 0.0
    to_s: float = 0.0
    from_step: int | None = None
    to_step: int | None = None

    def __post_init__(self) -> None:
        if (self.from_step is None) != (self.to_step is None):
            raise ValueError("a window by steps needs both its first step and its end")
        if self.from_step is not None and self.to_step is not None:
            if not 0 <= self.from_step < self.to_step:
                raise ValueError(f"steps {self.from_step} to {self.to_step} are no window")
        elif not 0.0 <= self.from_s < self.to_s < np.inf:
            raise ValueError(f"{self.from_s:g} s to {self.to_s:g} s is no window")


@dataclass(frozen=True, slots=True)
class Row:
    """`phase`: "prefill" or "decode". `context`: tokens in its KV cache before the step."""

    request: int
    phase: str
    tokens: int
    context: int


@dataclass(frozen=True, slots=True)
class Step:
    """`waits`: the first of those without a token in it; `more_waiting` are not listed. `free_blocks` after the
    schedule."""

    number: int
    replica: int
    scheduled_s: float
    start_s: float
    end_s: float
    running: int
    waiting: int
    free_blocks: int
    rows: tuple[Row, ...]
    preempted: tuple[int, ...]
    waits: tuple[Wait, ...] = ()
    more_waiting: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """`truncated`: the window has more steps than MOST_STEPS."""

    window: Window
    steps: tuple[Step, ...]
    truncated: bool

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        return asdict(self)


def look(
    arrival_s: Floats,
    prompt_tokens: Ints,
    output_tokens: Ints,
    priority: Ints | None,
    knobs: Knobs,
    step_time: StepTimeArrays,
    window: Window,
    *,
    host_gap_s: float = 0.0,
    max_tokens: Ints | None = None,
    prefix: PrefixBlocks | None = None,
    assumed_hit_share: float = 0.0,
) -> Look:
    """The window of the run that `kernel.simulate` makes of the same arguments; its errors are the same."""
    profile = knobs.profile
    workload = prepare(
        arrival_s,
        prompt_tokens,
        output_tokens,
        priority,
        profile,
        None,
        max_tokens,
        prefix,
        assumed_hit_share,
    )
    again = _Run(workload, knobs, step_time, host_gap_s)
    first = window.from_step if window.from_step is not None else _steps_before(again, window.from_s)
    state = again.state_after(first)
    followed = begin_with(_who_runs(state), _who_waits(state), workload, profile, state)
    steps: list[Step] = []
    piece = (
        1 if profile.drafts else PIECE_STEPS
    )  # what was accepted shows in no row: the kernel is asked again
    number, over = first, False
    while not over and len(steps) <= MOST_STEPS:
        most = piece if window.to_step is None else min(piece, window.to_step - number)
        record, over = again.recorded(state, most)
        for step in _steps(record, number, workload, followed):
            if window.to_step is not None or (step.end_s >= window.from_s and step.start_s <= window.to_s):
                steps.append(step)
        if profile.drafts:
            followed = begin_with(_who_runs(state), _who_waits(state), workload, profile, state)
        number += len(record.end_s)
        if window.to_step is not None:
            over |= number >= window.to_step
        elif len(record.end_s):
            over |= float(record.scheduled_s[-1]) > window.to_s
    return Look(window, tuple(steps[:MOST_STEPS]), len(steps) > MOST_STEPS)


@dataclass(frozen=True, slots=True)
class _Run:
    """A run that can be made again, up to any schedule."""

    workload: Workload
    knobs: Knobs
    step_time: StepTimeArrays
    host_gap_s: float

    def state_after(self, schedules: int) -> State:
        state = build(
            self.workload, self.knobs.profile, count_steps=False, record=True, host_gap_s=self.host_gap_s
        )
        state.knobs["record"] = 0
        self.go_on(state, schedules)
        return state

    def go_on(self, state: State, schedules: int) -> bool:
        """True at the end of the run."""
        if schedules <= 0:
            return False
        status = ADVANCE[self.knobs.profile.assembler](state, self.step_time, schedules)
        if status == STUCK:
            raise RuntimeError("the simulation came to a stop with requests left: this is a defect")
        return bool(status == FINISHED)

    def recorded(self, state: State, schedules: int) -> tuple[StepRecord, bool]:
        """The next schedules, and whether they were the last."""
        recorder, status = Recorder(), RECORD_FULL
        state.knobs["record"] = 1
        until = int(state.now["schedules"][0]) + schedules
        while status == RECORD_FULL:
            left = until - int(state.now["schedules"][0])
            status = ADVANCE[self.knobs.profile.assembler](state, self.step_time, left)
            recorder.drain(state)
        return recorder.record(self.workload.kept), status == FINISHED


def _steps_before(again: _Run, time_s: float) -> int:
    """A number of schedules after which no step has reached `time_s`, less than COARSE_STEPS short of the most."""
    state = again.state_after(0)
    before = 0
    while not again.go_on(state, COARSE_STEPS) and state.now["end_s"][0] < time_s:
        before += COARSE_STEPS
    return before


def _who_runs(state: State) -> list[int]:
    """In running order."""
    found, position = [], int(state.now["head"][0])
    while position >= 0:
        if state.requests["state"][position] in (LOOSE, STEADY):
            found.append(position)
        position = int(state.requests["next"][position])
    return found


def _who_waits(state: State) -> list[int]:
    """In the order of the queue."""
    if state.knobs["priority"][0]:
        heap = state.heap[: int(state.now["queued"][0])]
        return [int(state.by_rank[rank]) for rank in np.sort(heap)]
    found, position = [], int(state.now["first"][0])
    while position >= 0:
        found.append(position)
        position = int(state.requests["next"][position])
    return found


def _steps(record: StepRecord, first: int, workload: Workload, followed: Followed) -> list[Step]:
    """A record's schedules in full; `followed` goes along."""
    steps = []
    for at in range(len(record.end_s)):
        step = step_of(record, at, first + at)
        places = np.searchsorted(workload.kept, [row.request for row in step.rows]).tolist()
        batch = [
            (place, row.tokens, row.context, row.phase == "decode")
            for place, row in zip(places, step.rows, strict=True)
        ]
        waits, more = followed.step(
            batch,
            np.searchsorted(workload.kept, list(step.preempted)).tolist(),
            step.scheduled_s,
            step.end_s,
            step.running,
            step.free_blocks,
        )
        steps.append(_with_waits(step, waits, more))
    return steps


def step_of(record: StepRecord, at: int, number: int, replica: int = 0) -> Step:
    rows = slice(int(record.offsets[at]), int(record.offsets[at + 1]))
    gone = slice(int(record.preempted_offsets[at]), int(record.preempted_offsets[at + 1]))
    columns = (record.request, record.decode, record.tokens, record.cached)
    values = zip(*(column[rows].tolist() for column in columns), strict=True)
    return Step(
        number=number,
        replica=replica,
        scheduled_s=float(record.scheduled_s[at]),
        start_s=float(record.start_s[at]),
        end_s=float(record.end_s[at]),
        running=int(record.running[at]),
        waiting=int(record.waiting[at]),
        free_blocks=int(record.free_blocks[at]),
        rows=tuple(
            Row(request, "decode" if decode else "prefill", tokens, cached)
            for request, decode, tokens, cached in values
        ),
        preempted=tuple(record.preempted[gone].tolist()),
    )


def _with_waits(step: Step, waits: list[Wait], more: int) -> Step:
    return replace(step, waits=tuple(waits), more_waiting=more)
