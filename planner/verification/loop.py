"""The serving loop: the plan's scheduler decides each step, the engine runs it, and the clock is what it took.

Scheduling is `planner.simulation.reference` itself, so the loop's batches are the simulator's whenever the steps take
as long; only the pricing of a step is replaced by running it. On a CPU the clock is virtual: each step advances it by
its measured CPU time, because wall time on a shared machine is anybody's (wall-clock replay missed TTFT p95 by 40 %).
On a GPU the step's device time and the host's gap around it count.

A replay that was interrupted resumes: the schedule is a function of the steps' times, so the times that were recorded
bring the loop back to where it was without running anything. Seconds, tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from calibration.engine.interface import Runner
from calibration.steptime import Chunk, StepShape, StepTimeArrays
from planner.search.requests import Requests
from planner.simulation import reference
from planner.simulation.knobs import Knobs
from planner.simulation.outcome import Outcome
from planner.simulation.reference_requests import Row

Floats = NDArray[np.float64]


class Stopped(Exception):
    """The caller asked to stop; `steps_s` are the times measured until then, to resume with."""

    def __init__(self, steps_s: list[float]) -> None:
        super().__init__("stopped")
        self.steps_s = steps_s


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """K steps that ran: `features` float64[K, 7] (order of steptime.FEATURE_NAMES), `seconds` float64[K], and whether
    each shared its core with others; `shapes` says what was in it; `prefill`, of two pools: which of them ran in the
    prefill pool. `outcome` holds what the requests saw."""

    outcome: Outcome
    features: Floats
    seconds: Floats
    contended: NDArray[np.bool_]
    shapes: tuple[StepShape, ...] = ()
    prefill: NDArray[np.bool_] | None = None


def shape_of(rows: list[Row]) -> StepShape:
    """A batch as the calibration describes steps."""
    contexts = tuple(row.cached for row in rows if row.decode)
    return StepShape(contexts, tuple(Chunk(r.tokens, r.cached, r.emits) for r in rows if not r.decode))


@dataclass(slots=True)
class _Loop:
    runner: Runner
    seed: int
    with_host_gap: bool
    known_s: Sequence[float]
    on_step: Callable[[int, float], None]
    should_stop: Callable[[], bool]
    seconds: list[float] = field(default_factory=list)
    features: list[tuple[float, ...]] = field(default_factory=list)
    contended: list[bool] = field(default_factory=list)
    shapes: list[StepShape] = field(default_factory=list)
    tokens: int = 0

    def __call__(self, rows: list[Row]) -> float:
        step = len(self.seconds)
        self.features.append(reference.features(rows))
        self.shapes.append(shape_of(rows))
        if step < len(self.known_s):
            seconds, contended = self.known_s[step], False
        else:
            if self.should_stop():
                raise Stopped(self.seconds)
            timing = self.runner.measure(
                [row.cached for row in rows if row.decode],
                [(row.tokens, row.cached, row.emits) for row in rows if not row.decode],
                self.seed + step,
            )
            gap_s = timing.host_gap_s if self.with_host_gap else 0.0
            seconds, contended = timing.seconds + gap_s, timing.contended
        self.seconds.append(seconds)
        self.contended.append(contended)
        self.tokens += sum(row.tokens for row in rows)
        self.on_step(self.tokens, seconds)
        return seconds


def replay(
    runner: Runner,
    requests: Requests,
    knobs: Knobs,
    step_time: StepTimeArrays,
    *,
    seed: int = 0,
    with_host_gap: bool = False,
    known_s: Sequence[float] = (),
    on_step: Callable[[int, float], None] = lambda tokens, seconds: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Replayed:
    """Serve `requests` (one replica's) with `knobs` on `runner`'s device. `step_time` is not asked for any time.

    `with_host_gap`: the host's work around a step counts, as on a GPU it does.
    `known_s`: times of the first steps, from an earlier replay of the same requests, knobs and seed.
    `on_step(tokens, seconds)` comes after every step with the tokens computed so far. Raises Stopped.
    """
    loop = _Loop(runner, seed, with_host_gap, known_s, on_step, should_stop)
    outcome = reference.simulate(
        requests.arrival_s,
        requests.prompt_tokens,
        requests.output_tokens,
        requests.priority,
        knobs,
        step_time,
        max_tokens=requests.max_tokens,
        measure=loop,
    )
    return Replayed(
        outcome,
        np.array(loop.features, dtype=np.float64).reshape(-1, 7),
        np.array(loop.seconds),
        np.array(loop.contended, dtype=np.bool_),
        tuple(loop.shapes),
    )
