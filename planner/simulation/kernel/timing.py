"""How long the step lasts: the features of its rows, priced by the calibrated step-time function."""

from __future__ import annotations

from calibration.steptime.scalar import StepTimeArrays
from planner.simulation.kernel.compiled import inlined
from planner.simulation.kernel.held import note_step
from planner.simulation.kernel.state import State
from planner.simulation.kernel.steady import longest_context
from planner.simulation.kernel.step_time import step_seconds
from planner.simulation.outcome import DECODE, MIXED, PREFILL


@inlined
def time_step(state: State, model: StepTimeArrays) -> float:
    """Set the step's start and end, add it to the accounts, and return its seconds (0 in the steps clock).

    Features, as `step_seconds` takes them: tokens n, decode rows b, logits S (a row that checks drafts has one for each
    and one more), the decodes' contexts (sum C, longest cmax), and for chunks the pairs P and the longest reach kvm.
    """
    now, knobs = state.now[0], state.knobs[0]
    steady = now.steady if now.paused == 0 else 0
    tokens = steady
    decodes = steady
    emitting = steady
    contexts = now.steady_context if steady > 0 else 0
    longest = 0
    if steady > 0:
        longest = (longest_context(state) if now.longest_stale != 0 else now.longest) + now.tick
    pairs = 0
    reach = 0
    for at in range(now.rows):
        row = state.rows[at]
        request = state.requests[row.request]
        tokens += row.take
        emitting += max(0, row.cached + row.take + 1 - request.prompt - request.emitted)
        if row.decode != 0:
            decodes += 1
            contexts += row.cached
            longest = max(longest, row.cached)
        else:
            pairs += row.take * row.cached + row.take * (row.take + 1) // 2
            reach = max(reach, row.cached + row.take)
    chunks = steady + now.rows - decodes
    kind = DECODE if chunks == 0 else (PREFILL if decodes == 0 else MIXED)
    reach = max(reach, longest) if chunks > 0 else 0
    state.step_counts[kind] += 1
    now.computed_tokens += tokens
    now.decode_rows += decodes
    now.all_rows += steady + now.rows
    if knobs.count_steps != 0:
        now.start_s = now.scheduled_s
        now.end_before_s = now.end_s
        now.end_s = now.scheduled_s
        note_step(state, tokens, emitting)
        _note_share(state, 1.0, chunks)
        return 0.0
    seconds, covered = step_seconds(
        model,
        float(tokens),
        float(decodes),
        float(emitting),
        float(contexts),
        float(longest),
        float(pairs),
        float(reach),
    )
    seconds += knobs.host_gap_s
    now.start_s = max(now.scheduled_s, now.end_s)
    now.end_before_s = now.end_s
    now.end_s = now.start_s + seconds
    note_step(state, tokens, emitting)
    _note_share(state, seconds, chunks)
    now.busy_s += seconds
    state.step_busy_s[kind] += seconds
    if not covered:
        now.uncovered_s += seconds
        now.uncovered_steps += 1
    return float(seconds)


@inlined
def _note_share(state: State, seconds: float, chunks: int) -> None:
    """The account that shares of time are kept by (see `reference_mixed`)."""
    now = state.now[0]
    if now.sharing != 0:
        now.shared_s += seconds
        if chunks > 0:
            now.prefill_s += seconds
