"""The simulator in plain Python: the oracle that the compiled kernel must equal bit for bit.

Time. Synchronous: schedule k is made when step k-1 ends. With lag 1 (asynchronous or overlapped scheduling, the
default of vLLM, SGLang and TensorRT-LLM) it is made when step k-2 ends and its work starts at max(schedule time, end
of k-1), so results are applied one schedule late. Requests with arrival <= schedule time are visible. An empty
schedule ends at max(schedule time, end of k-1) and costs nothing; with nothing to do, time jumps to the next arrival.
Clock "steps" instead makes schedule k at time k, with arrivals given as step numbers: what recordings of real
schedulers are compared by. All times in seconds (in the steps clock: step numbers).

Order at one instant: results, then arrivals, then the schedule. Nothing here is fast; everything is meant to be
read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from calibration.steptime.scalar import StepTimeArrays
from planner.simulation import saturation
from planner.simulation.arrays import Floats, Ints
from planner.simulation.clocks import check_clock
from planner.simulation.gaps import GAP_BINS, gap_bin
from planner.simulation.held import Held
from planner.simulation.kernel.step_time import step_seconds
from planner.simulation.knobs import Knobs
from planner.simulation.luck import keys_of
from planner.simulation.outcome import DECODE, MIXED, PREFILL, Outcome, StepRecord
from planner.simulation.prefix import PrefixBlocks
from planner.simulation.profile import Profile
from planner.simulation.reference_prefix import PrefixCache
from planner.simulation.reference_requests import Batch, Engine, Request, Row, deliver, enqueue, note_time
from planner.simulation.reference_schedule import schedule
from planner.simulation.workload import Workload, prepare

StepSeconds = Callable[..., tuple[float, bool]]
Measure = Callable[[list[Row]], float]


def simulate(
    arrival_s: Floats,
    prompt_tokens: Ints,
    output_tokens: Ints,
    priority: Ints | None,
    knobs: Knobs,
    step_time: StepTimeArrays | None = None,
    clock: str = "seconds",
    record_steps: bool = False,
    host_gap_s: float = 0.0,
    tie: Ints | None = None,
    max_tokens: Ints | None = None,
    step_seconds: StepSeconds = step_seconds,
    prefix: PrefixBlocks | None = None,
    assumed_hit_share: float = 0.0,
    measure: Measure | None = None,
    bin_s: float = 0.0,
) -> Outcome:
    """Run the workload to its end. Arrays have one entry per request, sorted by arrival.

    `host_gap_s` is added to every step. `tie` orders requests of equal priority and arrival. `max_tokens` is what
    the clients allowed, for engines that reserve or estimate by it; None: just the outputs. `prefix` names the
    blocks prompts share, or `assumed_hit_share` of the prompt tokens is taken to be cached (engines with a prefix
    cache that is on). `bin_s` > 0 keeps a time series, in bins at first so wide (see time_bins). `measure` says how
    long a batch took where a step is really run (planner.verification): then nothing is predicted. The compiled
    step-time function is the default so that a comparison with the kernel compares scheduling and accounting.
    ValueError for an unusable workload (see `workload.prepare`), an unknown clock, or a missing step time.
    """
    check_clock(clock, step_time)
    profile = knobs.profile
    workload = prepare(
        arrival_s, prompt_tokens, output_tokens, priority, profile, tie, max_tokens, prefix, assumed_hit_share
    )
    cache = _prefix_cache(workload, profile)
    engine = Engine(profile, profile.num_blocks, ratio=profile.ratio, cache=cache)
    gap_s = host_gap_s + profile.draft_s
    run = _Run(measure, profile, clock == "steps", step_time, gap_s, step_seconds, engine)
    run.requests = [
        Request(i, *fields)
        for i, fields in enumerate(
            zip(
                workload.arrival_s.tolist(),
                workload.prompt_tokens.tolist(),
                workload.output_tokens.tolist(),
                workload.priority.tolist(),
                workload.tie.tolist(),
                workload.max_tokens.tolist(),
                (workload.assumed_blocks * profile.block_size).tolist(),
                strict=True,
            )
        )
    ]
    lucks = keys_of(profile.luck_seed, workload.kept).tolist()
    for request, luck, later in zip(run.requests, lucks, workload.victim_tie.tolist(), strict=True):
        request.luck, request.victim_tie = luck, later
    run.times = {request.index: _Times() for request in run.requests}
    run.least_free = profile.num_blocks
    run.held = Held.from_start(bin_s)
    _loop(run)
    return _outcome(run, workload, np.asarray(arrival_s), prompt_tokens, output_tokens, record_steps)


def _prefix_cache(workload: Workload, profile: Profile) -> PrefixCache | None:
    if not profile.caching:
        return None
    ids, offsets = workload.prefix.ids.tolist(), workload.prefix.offsets.tolist()
    shared = [ids[start:stop] for start, stop in pairwise(offsets)]
    return PrefixCache(profile.num_blocks, profile.block_size, shared)


@dataclass(slots=True)
class _Times:
    first_scheduled_s: float = -1.0
    chunks_s: float = 0.0
    first_token_s: float = -1.0
    last_token_s: float = -1.0
    max_gap_s: float = 0.0


@dataclass(slots=True)
class _Step:
    batch: Batch
    free_blocks: int
    running: int
    waiting: int
    scheduled_s: float
    start_s: float = 0.0
    end_s: float = 0.0


@dataclass(slots=True)
class _Run:
    measure: Measure | None
    profile: Profile
    count_steps: bool
    step_time: StepTimeArrays | None
    host_gap_s: float
    step_seconds: StepSeconds
    engine: Engine
    requests: list[Request] = field(default_factory=list)
    times: dict[int, _Times] = field(default_factory=dict)
    steps: list[_Step] = field(default_factory=list)
    arrived: int = 0
    finished: int = 0
    gaps: list[int] = field(default_factory=lambda: [0] * GAP_BINS)
    step_counts: list[int] = field(default_factory=lambda: [0, 0, 0])
    step_busy_s: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    busy_s: float = 0.0
    uncovered_s: float = 0.0
    uncovered_steps: int = 0
    peak_running: int = 0
    least_free: int = 0
    waiting: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    idle_late_s: float = 0.0
    held: Held = field(default_factory=Held)


def _loop(run: _Run) -> None:
    engine, lag = run.engine, run.profile.lag
    while run.finished < len(run.requests):
        now = _schedule_time(run, lag)
        _arrive(run, now)
        if not (engine.running or engine.waiting or run.count_steps):
            run.held.hold(now, run.profile.num_blocks - engine.free, len(engine.running))
            now = _jump(run, now)
            _arrive(run, now)
        batch = schedule(engine)
        step = _Step(batch, engine.free, len(engine.running), len(engine.waiting), now)
        run.steps.append(step)
        run.peak_running = max(run.peak_running, len(engine.running))
        run.least_free = min(run.least_free, engine.free)
        run.held.hold(now, run.profile.num_blocks - engine.free, len(engine.running))
        _time(run, step)
        for row in step.batch.rows:
            _account(run, row, step)
        if len(run.steps) > lag:
            run.finished += deliver(engine, run.steps[-1 - lag].batch)


def _schedule_time(run: _Run, lag: int) -> float:
    if run.count_steps:
        return float(len(run.steps))
    last = run.steps[-1].scheduled_s if run.steps else 0.0
    return max(last, run.steps[-1 - lag].end_s) if len(run.steps) > lag else last


def _arrive(run: _Run, now: float) -> None:
    while run.arrived < len(run.requests) and run.requests[run.arrived].arrival_s <= now:
        enqueue(run.engine, run.requests[run.arrived])
        quarter = saturation.quarter_of(run.arrived, len(run.requests))
        run.arrived += 1
        run.waiting[quarter] += len(run.engine.waiting)


def _jump(run: _Run, now: float) -> float:
    arrival_s = run.requests[run.arrived].arrival_s
    if run.arrived > len(run.requests) // 2:
        run.idle_late_s += arrival_s - max(now, run.steps[-1].end_s if run.steps else 0.0)
    return arrival_s


def _time(run: _Run, step: _Step) -> None:
    """Give the step its start and end, and add it to the account of busy time."""
    rows = step.batch.rows
    if run.count_steps:
        step.start_s = step.end_s = step.scheduled_s
    else:
        step.start_s = step.end_s = max(step.scheduled_s, run.steps[-2].end_s if len(run.steps) > 1 else 0.0)
    if not rows:
        return
    kind = _kind(rows)
    run.step_counts[kind] += 1
    tokens, emitted = sum(row.tokens for row in rows), sum(row.emitted for row in rows)
    if run.count_steps:
        run.held.note_step(step.start_s, step.end_s, tokens, emitted)
        note_time(run.engine, step.batch, 1.0)
        return
    if run.measure is not None:
        seconds, covered = run.measure(rows), True
    else:
        seconds, covered = run.step_seconds(run.step_time, *features(rows))
    seconds += run.host_gap_s
    step.end_s = step.start_s + seconds
    run.held.note_step(step.start_s, step.end_s, tokens, emitted)
    note_time(run.engine, step.batch, seconds)
    run.busy_s += seconds
    run.step_busy_s[kind] += seconds
    if not covered:
        run.uncovered_s += seconds
        run.uncovered_steps += 1
    for row in rows:
        if not row.decode and run.times[row.request.index].first_token_s < 0:
            run.times[row.request.index].chunks_s += seconds


def _kind(rows: list[Row]) -> int:
    decodes = sum(row.decode for row in rows)
    if decodes == len(rows):
        return DECODE
    return MIXED if decodes else PREFILL


def features(rows: list[Row]) -> tuple[float, float, float, float, float, float, float]:
    """n, b, S, C, cmax, P, kvm of `calibration.steptime.scalar.step_seconds`."""
    contexts = [row.cached for row in rows if row.decode]
    chunks = [row for row in rows if not row.decode]
    longest = max(contexts, default=0)
    pairs = sum(row.tokens * row.cached + row.tokens * (row.tokens + 1) // 2 for row in chunks)
    reach = max([longest, *(row.cached + row.tokens for row in chunks)]) if chunks else 0
    return (
        float(sum(row.tokens for row in rows)),
        float(len(contexts)),
        float(sum(row.logits for row in rows)),
        float(sum(contexts)),
        float(longest),
        float(pairs),
        float(reach),
    )


def _account(run: _Run, row: Row, step: _Step) -> None:
    """Note a request's first step and, where the row emits a token, the token's time and its gap."""
    times = run.times[row.request.index]
    if times.first_scheduled_s < 0:
        times.first_scheduled_s = step.start_s
    if not row.emits:
        return
    if times.first_token_s < 0:
        times.first_token_s = step.end_s
    else:
        gap_s = step.end_s - times.last_token_s
        times.max_gap_s = max(times.max_gap_s, gap_s)
        run.gaps[gap_bin(gap_s)] += 1
    times.last_token_s = step.end_s


def _outcome(
    run: _Run, workload: Workload, arrival_s: Floats, prompt: Ints, output: Ints, record_steps: bool
) -> Outcome:
    times = [run.times[request.index] for request in run.requests]
    first_scheduled = np.array([t.first_scheduled_s for t in times], dtype=np.float64)
    first_token = np.array([t.first_token_s for t in times], dtype=np.float64)
    done = np.array([t.last_token_s for t in times], dtype=np.float64)
    chunks = np.array([t.chunks_s for t in times], dtype=np.float64)
    rows = [row for step in run.steps for row in step.batch.rows]
    makespan_s = run.steps[-1].end_s if run.steps else 0.0
    run.held.close(makespan_s)
    return Outcome(
        arrival_s=np.array(arrival_s, dtype=np.float64),
        prompt_tokens=np.array(prompt, dtype=np.int64),
        output_tokens=np.array(output, dtype=np.int64),
        first_scheduled_s=workload.spread(first_scheduled),
        prefill_end_s=workload.spread(first_token),
        prefill_wait_s=workload.spread(np.maximum(first_token - first_scheduled - chunks, 0.0)),
        first_token_s=workload.spread(first_token),
        done_s=workload.spread(done),
        max_gap_s=workload.spread(np.array([t.max_gap_s for t in times], dtype=np.float64)),
        preemptions=workload.spread_counts(_ints([request.preemptions for request in run.requests])),
        hit_tokens=workload.spread_counts(_ints([request.hit_tokens for request in run.requests])),
        rehit_tokens=workload.spread_counts(_ints([request.rehit_tokens for request in run.requests])),
        rejected=workload.rejected,
        gap_counts=np.array(run.gaps, dtype=np.int64),
        step_counts=np.array(run.step_counts, dtype=np.int64),
        step_busy_s=np.array(run.step_busy_s, dtype=np.float64),
        empty_schedules=sum(not step.batch.rows for step in run.steps),
        computed_tokens=sum(row.tokens for row in rows),
        decode_rows=sum(row.decode for row in rows),
        rows=len(rows),
        peak_running=run.peak_running,
        least_free_blocks=run.least_free,
        busy_s=run.busy_s,
        uncovered_s=run.uncovered_s,
        uncovered_steps=run.uncovered_steps,
        makespan_s=makespan_s,
        load=saturation.judge(
            workload.arrival_s,
            done,
            np.array(run.waiting),
            run.idle_late_s,
            first_scheduled,
            first_token,
        ),
        kv_blocks=run.profile.num_blocks,
        kv_block_s=run.held.kv_block_s,
        bin_s=run.held.bin_s,
        bins=run.held.series,
        verifications=sum(row.emits and row.drafts > 0 and not row.padded for row in rows),
        draft_tokens=sum(row.drafts for row in rows if row.emits and not row.padded),
        accepted_tokens=sum(row.drafts - row.rejected for row in rows if row.emits),
        record=_record(run, workload) if record_steps else None,
    )


def _record(run: _Run, workload: Workload) -> StepRecord:
    rows = [row for step in run.steps for row in step.batch.rows]
    preempted = [request for step in run.steps for request in step.batch.preempted]
    return StepRecord(
        offsets=_offsets([len(step.batch.rows) for step in run.steps]),
        request=workload.kept[[row.request.index for row in rows]] if rows else _ints([]),
        tokens=_ints([row.tokens for row in rows]),
        cached=_ints([row.cached for row in rows]),
        decode=_ints([row.decode for row in rows]),
        preempted_offsets=_offsets([len(step.batch.preempted) for step in run.steps]),
        preempted=workload.kept[[request.index for request in preempted]] if preempted else _ints([]),
        free_blocks=_ints([step.free_blocks for step in run.steps]),
        running=_ints([step.running for step in run.steps]),
        waiting=_ints([step.waiting for step in run.steps]),
        scheduled_s=np.array([step.scheduled_s for step in run.steps], dtype=np.float64),
        start_s=np.array([step.start_s for step in run.steps], dtype=np.float64),
        end_s=np.array([step.end_s for step in run.steps], dtype=np.float64),
    )


def _ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _offsets(lengths: list[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
