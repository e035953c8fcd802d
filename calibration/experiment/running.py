"""Measuring a list of points so that what the machine does meanwhile does not look like a difference between them.

  warm-up   the largest steps of each kind, then sentinels until ten in a row vary little
  passes    every open point once per pass, each pass in a fresh random order: slow minutes hit all points alike
  repeats   at least 5; a point closes when the bootstrap 95 % interval of its median is narrow enough
            (half-width 2 % on a GPU, 5 % on a CPU), or at 15
  sentinels two fixed steps every 25 measurements: they show drift that the shuffling hides
  lead-in   before each timed step an untimed one as a server runs it there, because most of its steps follow decodes:
            the same decodes alone, or one decode. Behind another point of the list, which may be a chunk of a thousand
            tokens, small decodes took 2 to 5 % longer than behind decodes (demo model on one core). It is asked for by
            itself, so that the host does between the two what it does between a server's steps: behind a step that ran
            the moment before, decodes took 3 % less than in a replay (benchmarks/step_surroundings.py tells)
Each repeat has fresh random inputs and blocks. Every repeat is handed out as it comes, so that whoever stores
it loses nothing when the run is stopped or dies.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from calibration.engine.interface import Runner, StepTiming
from calibration.experiment.points import Point
from calibration.steptime import StepSample, StepShape

OnSample = Callable[[int, StepSample], None]
OnProgress = Callable[[int, int, str, float | None], None]
WARM_UP_STEPS = 3
#: From so many repeats on their spread says how many more it will take.
TELLING_REPEATS = 3


class Stopped(Exception):
    """should_stop said so; what was measured has been handed out."""


@dataclass(frozen=True, slots=True)
class Rules:
    """When to stop repeating a point, and how steady the device must be before the first one."""

    half_width: float
    steady_within: float
    least_repeats: int = 5
    most_repeats: int = 15
    sentinel_every: int = 25
    most_warm_up_sentinels: int = 30


RULES = {"cpu": Rules(half_width=0.05, steady_within=0.05), "gpu": Rules(half_width=0.02, steady_within=0.02)}


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """Samples in the order of their ordinals, and what the run itself saw (JSON-safe)."""

    samples: list[StepSample]
    observed: dict[str, object]


@dataclass(slots=True)
class _Measured:
    """A point being measured."""

    ordinal: int
    point: Point
    seconds: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    contended: int = 0
    wall_s: float = 0.0
    half_width: float = math.inf
    open: bool = True

    def resume(self, earlier: StepSample | None, rules: Rules) -> int:
        """Takes over the repeats of an interrupted run, if it measured this very step for this; their number."""
        if earlier is None or earlier.shape != self.point.shape or earlier.role != self.point.role:
            return 0
        repeats = len(earlier.seconds)
        self.seconds, self.gaps_s = list(earlier.seconds), [earlier.host_gap_s] * repeats
        self.contended = round(earlier.contended_share * repeats)
        self.judge(rules)
        return repeats

    def judge(self, rules: Rules) -> None:
        """Open while there are too few repeats, or the median is not tight and more are allowed."""
        repeats = len(self.seconds)
        if repeats >= TELLING_REPEATS:
            self.half_width = self.sample().ci_half_width
        wide = repeats < rules.least_repeats or self.half_width > rules.half_width
        self.open = repeats < rules.most_repeats and wide

    def expected(self, rules: Rules) -> int | None:
        """About how many repeats it closes after: its interval narrows with the root of their number. None while there
        are too few to tell."""
        if not self.open:
            return len(self.seconds)
        if not math.isfinite(self.half_width):
            return None
        if rules.half_width == 0.0:  # no interval is narrow enough
            return rules.most_repeats
        wanted = math.ceil(len(self.seconds) * (self.half_width / rules.half_width) ** 2)
        least = max(rules.least_repeats, len(self.seconds) + 1)
        return min(max(wanted, least), rules.most_repeats)

    def sample(self) -> StepSample:
        return StepSample(
            shape=self.point.shape,
            seconds=tuple(self.seconds),
            role=self.point.role,
            contended_share=self.contended / len(self.seconds),
            host_gap_s=float(np.median(self.gaps_s)),
        )


def run_experiment(
    runner: Runner,
    points: Sequence[Point],
    sentinels: Sequence[Point],
    warm_up: Sequence[StepShape],
    *,
    rules: Rules,
    seed: int,
    on_sample: OnSample,
    on_progress: OnProgress,
    on_log: Callable[[str], None],
    should_stop: Callable[[], bool],
    first_ordinal: int = 0,
    earlier: Mapping[int, StepSample] | None = None,
    clock: Callable[[], float | None] = lambda: None,
) -> ExperimentResult:
    """Measures all points. `earlier`: samples of a run that was interrupted, by ordinal; their repeats count.
    `clock`: the device's clock in MHz, read beside the sentinels.
    `on_sample(ordinal, sample)` comes after every repeat with the sample as it stands:
    its `seconds` grow; an ordinal always means the same step. Raises Stopped, and what the runner raises."""
    measured = [_Measured(first_ordinal + index, point) for index, point in enumerate([*points, *sentinels])]
    resumed = sum(item.resume((earlier or {}).get(item.ordinal), rules) for item in measured)
    stream = [seed, 3, resumed] if resumed else [seed, 3]  # inputs and orders of what is left are fresh ones
    run = _Run(runner, rules, np.random.default_rng(stream), on_sample, on_progress, should_stop, clock)
    watched = measured[len(points) :]
    started_wall, load = time.monotonic(), os.getloadavg()[0]
    run.warm_up(warm_up, [item.point.shape for item in watched], on_log)
    run.measure_passes(measured[: len(points)], watched, on_log)
    done = [item for item in measured if item.seconds]
    loose = sum(item.sample().ci_half_width > rules.half_width for item in done if item not in watched)
    on_log(f"Measured {len(points)} points with {sum(len(item.seconds) for item in done)} steps")
    observed: dict[str, object] = {
        "measured_wall_s": time.monotonic() - started_wall,
        "load_average": [load, os.getloadavg()[0]],
        "steps": sum(len(item.seconds) for item in done),
        "steps_of_an_earlier_run": resumed,
        "contended_share": sum(item.contended for item in done) / max(1, sum(len(i.seconds) for i in done)),
        "points_above_half_width": loose,
        "sentinel_drift": [_drift(item.seconds) for item in watched if item.seconds],
        "clock_mhz": run.clocks_seen(),
        "engine_usage": runner.usage(),
    }
    return ExperimentResult([item.sample() for item in done], observed)


def run_step(runner: Runner, shape: StepShape, seed: int, lead_in: Sequence[int] = ()) -> StepTiming:
    """`Runner.measure` of a shape. Raises what the runner raises."""
    chunks = [(chunk.query_tokens, chunk.cached_tokens, chunk.samples) for chunk in shape.chunks]
    return runner.measure(shape.decode_contexts, chunks, seed, lead_in=lead_in)


def lead_in_of(shape: StepShape) -> tuple[int, ...]:
    """Contexts of the decodes that run before the timed step."""
    return shape.decode_contexts or (shape.chunks[0].cached_tokens + shape.chunks[0].query_tokens - 1,)


@dataclass(slots=True)
class _Run:
    """One experiment under way: the random stream, the callbacks, and the steps done so far."""

    runner: Runner
    rules: Rules
    rng: np.random.Generator
    on_sample: OnSample
    on_progress: OnProgress
    should_stop: Callable[[], bool]
    clock: Callable[[], float | None] = lambda: None
    clocks_mhz: list[float] = field(default_factory=list)
    steps: int = 0
    share: float = 0.0  # of the work that was told to be done, of 1

    def clocks_seen(self) -> dict[str, float]:
        """Lowest, median and highest of the clocks read beside the sentinels; empty where none can be read."""
        if not self.clocks_mhz:
            return {}
        low, middle, high = np.percentile(self.clocks_mhz, [0, 50, 100]).tolist()
        return {"lowest": low, "median": middle, "highest": high}

    def warm_up(
        self, shapes: Sequence[StepShape], sentinels: Sequence[StepShape], on_log: Callable[[str], None]
    ) -> None:
        """Largest steps three times each, then sentinels until ten in a row are steady."""
        self.on_progress(0, 1, "Warming up", None)
        for shape in shapes:
            for _ in range(WARM_UP_STEPS):
                self.step(shape)
        for shape in sentinels[:1]:
            recent: list[float] = []
            while len(recent) < self.rules.most_warm_up_sentinels:
                recent.append(self.step(shape)[0])
                if len(recent) >= 10 and _variation(recent[-10:]) <= self.rules.steady_within:
                    break
            variation = _variation(recent[-10:])
            state = "steady" if variation <= self.rules.steady_within else "not steady"
            on_log(
                f"Warm-up: {state} after {len(recent)} sentinel steps, the last ten within {variation:.1%}"
            )

    def measure_passes(
        self, measured: Sequence[_Measured], sentinels: Sequence[_Measured], on_log: Callable[[str], None]
    ) -> None:
        """Every open point once per pass, in a fresh order, until all are closed."""
        since_sentinel = self.rules.sentinel_every  # the first measurement is preceded by a sentinel
        for number in range(self.rules.most_repeats):
            remaining = [item for item in measured if item.open]
            if not remaining:
                break
            on_log(f"Pass {number + 1}: {len(remaining)} points")
            for index in self.rng.permutation(len(remaining)):
                if since_sentinel >= self.rules.sentinel_every:
                    since_sentinel = 0
                    if (mhz := self.clock()) is not None:
                        self.clocks_mhz.append(mhz)
                    for sentinel in sentinels:
                        self._repeat(sentinel)
                self._repeat(remaining[index])
                since_sentinel += 1
                self._report(measured, remaining[index].point)
        for sentinel in sentinels:
            self._repeat(sentinel)

    def step(self, shape: StepShape) -> tuple[float, float, bool]:
        """(seconds, host gap in seconds, contended) of one step on fresh inputs; raises Stopped."""
        if self.should_stop():
            raise Stopped
        self.steps += 1
        timing = run_step(self.runner, shape, int(self.rng.integers(1 << 62)), lead_in_of(shape))
        return timing.seconds, timing.host_gap_s, timing.contended

    def _repeat(self, item: _Measured) -> None:
        started = time.monotonic()
        seconds, gap_s, contended = self.step(item.point.shape)
        item.wall_s += time.monotonic() - started
        item.seconds.append(seconds)
        item.gaps_s.append(gap_s)
        item.contended += contended
        item.judge(self.rules)
        self.on_sample(item.ordinal, item.sample())

    def _report(self, measured: Sequence[_Measured], last: Point) -> None:
        """Progress in steps. How many more a point will need follows from how wide its interval still is; of one that
        does not say yet it is what the others need on average, and before any does, the most it may need: what is done
        never looks like less than it did."""
        done = sum(len(item.seconds) for item in measured)
        expected = [item.expected(self.rules) for item in measured]
        told = [count for count in expected if count is not None]
        usual = round(sum(told) / len(told)) if told else self.rules.most_repeats
        missing = [
            (usual if count is None else count) - len(item.seconds)
            for count, item in zip(expected, measured, strict=True)
        ]
        known = [item for item in measured if item.seconds]
        typical = sum(item.wall_s for item in known) / max(1, sum(len(item.seconds) for item in known))
        eta_s = sum(
            count * (item.wall_s / len(item.seconds) if item.wall_s else typical)
            for count, item in zip(missing, measured, strict=True)
        )
        total = done + sum(missing)
        if total * self.share > done:  # more is to come than was thought: the bar waits, it does not go back
            total = max(done, int(done / self.share))
        self.share = done / total
        self.on_progress(done, total, f"Measuring {describe(last.shape)}", eta_s)


def describe(shape: StepShape) -> str:
    """A step in words: "4 decodes, a chunk of 128 after 256"."""
    return ", ".join(_words(shape))


def _words(shape: StepShape) -> Iterator[str]:
    rows = len(shape.decode_contexts)
    if rows:
        average = sum(shape.decode_contexts) / rows
        yield f"{rows} decode{'s' if rows > 1 else ''} at {average:,.0f} tokens"
    if len(shape.chunks) == 1:
        chunk = shape.chunks[0]
        yield f"a chunk of {chunk.query_tokens:,}{_after(chunk.cached_tokens)}"
    elif shape.chunks:
        tokens = sum(chunk.query_tokens for chunk in shape.chunks)
        longest = max(chunk.cached_tokens for chunk in shape.chunks)
        yield f"{len(shape.chunks)} chunks of {tokens:,} tokens together{_after(longest)}"


def _after(cached_tokens: int) -> str:
    return f" after {cached_tokens:,}" if cached_tokens else ""


def _variation(seconds: Sequence[float]) -> float:
    """Half the spread of the middle eight of ten, relative to the median: one outlier does not count."""
    low, middle, high = np.percentile(seconds, [10, 50, 90])
    return float((high - low) / 2 / middle)


def _drift(seconds: Sequence[float]) -> float:
    """log ratio of a sentinel's last third to its first, by medians; 0 when there are too few."""
    third = len(seconds) // 3
    if third < 1:
        return 0.0
    return math.log(float(np.median(seconds[-third:])) / float(np.median(seconds[:third])))
