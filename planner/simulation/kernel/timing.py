"""How long the step lasts: the features of its rows, priced by the calibrated step-time function."""

from __future__ import annotations

from calibration.steptime.scalar import StepTimeArrays
from planner.simulation.kernel.compiled import inlined
from planner.simulation.kernel.state import State
from planner.simulation.kernel.steady import longest_context
from planner.simulation.kernel.step_time import step_seconds
from planner.simulation.outcome import DECODE, MIXED, PREFILL


@inlined
def time_step(state: State, model: StepTimeArrays) -> float:
    """Set the step's start and end, add it to the accounts, and return its seconds (0 in the steps clock).

    Features of spec/step-time.md: tokens n, decode rows b, emitting rows S, the decodes' contexts (sum C,
    longest cmax), and for chunks the pairs P and the longest reach kvm.
    """
    now, knobs = state.now[0], state.knobs[0]
    tokens = now.steady
    decodes = now.steady
    emitting = now.steady
    contexts = now.steady_context
    longest = 0
    if now.steady > 0:
        longest = (longest_context(state) if now.longest_stale != 0 else now.longest) + now.tick
    pairs = 0
    reach = 0
    for at in range(now.rows):
        row = state.rows[at]
        request = state.requests[row.request]
        tokens += row.take
        if row.cached + row.take == request.prompt + request.emitted:
            emitting += 1
        if row.decode != 0:
            decodes += 1
            contexts += row.cached
            longest = max(longest, row.cached)
        else:
            pairs += row.take * row.cached + row.take * (row.take + 1) // 2
            reach = max(reach, row.cached + row.take)
    chunks = now.steady + now.rows - decodes
    kind = DECODE if chunks == 0 else (PREFILL if decodes == 0 else MIXED)
    reach = max(reach, longest) if chunks > 0 else 0
    state.step_counts[kind] += 1
    now.computed_tokens += tokens
    now.decode_rows += decodes
    now.all_rows += now.steady + now.rows
    if knobs.count_steps != 0:
        now.start_s = now.scheduled_s
        now.end_before_s = now.end_s
        now.end_s = now.scheduled_s
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
    now.busy_s += seconds
    state.step_busy_s[kind] += seconds
    if not covered:
        now.uncovered_s += seconds
        now.uncovered_steps += 1
    return float(seconds)
