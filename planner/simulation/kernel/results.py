"""From the kernel's arrays to an Outcome."""

from __future__ import annotations

import numpy as np

from planner.simulation import saturation
from planner.simulation.arrays import Floats, Ints
from planner.simulation.held import Held
from planner.simulation.kernel.records import Records
from planner.simulation.kernel.state import State
from planner.simulation.outcome import Outcome, StepRecord
from planner.simulation.workload import Workload


class Recorder:
    """Collects recorded steps whenever the kernel's arrays for them are full."""

    __slots__ = ("preempted", "preempted_ends", "row_ends", "rows", "steps")

    def __init__(self) -> None:
        self.steps: list[Records] = []
        self.rows: list[Records] = []
        self.preempted: list[Ints] = []
        self.row_ends: list[Ints] = [np.zeros(1, dtype=np.int64)]
        self.preempted_ends: list[Ints] = [np.zeros(1, dtype=np.int64)]

    def drain(self, state: State) -> None:
        """Take what is recorded and leave the arrays empty."""
        now = state.now[0]
        steps = state.recorded_steps[: now["recorded_steps"]].copy()
        self.steps.append(steps)
        self.rows.append(state.recorded_rows[: now["recorded_rows"]].copy())
        self.preempted.append(state.recorded_preempted[: now["recorded_preempted"]].copy())
        self.row_ends.append(steps["rows"] + self.row_ends[-1][-1:].sum())
        self.preempted_ends.append(steps["preempted"] + self.preempted_ends[-1][-1:].sum())
        state.now["recorded_steps"] = state.now["recorded_rows"] = state.now["recorded_preempted"] = 0

    def record(self, kept: Ints) -> StepRecord:
        steps, rows = np.concatenate(self.steps), np.concatenate(self.rows)
        return StepRecord(
            offsets=np.concatenate(self.row_ends),
            request=kept[rows["request"]],
            tokens=rows["take"].copy(),
            cached=rows["cached"].copy(),
            decode=rows["decode"].copy(),
            preempted_offsets=np.concatenate(self.preempted_ends),
            preempted=kept[np.concatenate(self.preempted)],
            free_blocks=steps["free_blocks"].copy(),
            running=steps["running"].copy(),
            waiting=steps["waiting"].copy(),
            scheduled_s=steps["scheduled_s"].copy(),
            start_s=steps["start_s"].copy(),
            end_s=steps["end_s"].copy(),
        )


def outcome(
    state: State, workload: Workload, arrival_s: Floats, prompt: Ints, output: Ints, recorder: Recorder | None
) -> Outcome:
    """The finished run's outcome; arrays in the order of the input."""
    now, requests = state.now[0], state.requests
    first_scheduled, first_token = requests["first_scheduled_s"], requests["first_token_s"]
    done = requests["last_token_s"]
    waits = np.maximum(first_token - first_scheduled - requests["chunks_s"], 0.0)
    held = held_of(now, state.bins)
    held.close(float(now["end_s"]))
    return Outcome(
        arrival_s=np.array(arrival_s, dtype=np.float64),
        prompt_tokens=np.array(prompt, dtype=np.int64),
        output_tokens=np.array(output, dtype=np.int64),
        first_scheduled_s=workload.spread(first_scheduled),
        prefill_end_s=workload.spread(first_token),
        prefill_wait_s=workload.spread(waits),
        first_token_s=workload.spread(first_token),
        done_s=workload.spread(done),
        max_gap_s=workload.spread(requests["max_gap_s"]),
        preemptions=workload.spread_counts(requests["preemptions"]),
        hit_tokens=_hits(state, workload, "hit_tokens"),
        rehit_tokens=_hits(state, workload, "rehit_tokens"),
        rejected=workload.rejected,
        gap_counts=state.gap_counts,
        step_counts=state.step_counts,
        step_busy_s=state.step_busy_s,
        empty_schedules=int(now["empty_schedules"]),
        computed_tokens=int(now["computed_tokens"]),
        decode_rows=int(now["decode_rows"]),
        rows=int(now["all_rows"]),
        peak_running=int(now["peak_running"]),
        least_free_blocks=int(now["least_free"]),
        busy_s=float(now["busy_s"]),
        uncovered_s=float(now["uncovered_s"]),
        uncovered_steps=int(now["uncovered_steps"]),
        makespan_s=float(now["end_s"]),
        verifications=int(now["verifications"]),
        draft_tokens=int(now["draft_tokens"]),
        accepted_tokens=int(now["accepted_tokens"]),
        load=saturation.judge(
            workload.arrival_s,
            done,
            state.in_queue,
            float(now["idle_late_s"]),
            first_scheduled,
            first_token,
        ),
        kv_blocks=int(state.knobs["num_blocks"][0]),
        kv_block_s=held.kv_block_s,
        bin_s=held.bin_s,
        bins=held.series,
        record=None if recorder is None else recorder.record(workload.kept),
    )


def held_of(now: Records, bins: Floats) -> Held:
    """One replica's account as the kernel has left it."""
    return Held(
        float(now["bin_s"]),
        bins,
        int(now["held_blocks"]),
        int(now["held_seats"]),
        float(now["held_since_s"]),
        float(now["kv_block_s"]),
    )


def _hits(state: State, workload: Workload, name: str) -> Ints:
    if not state.knobs["caching"][0]:
        return np.zeros(workload.total, dtype=np.int64)
    return workload.spread_counts(state.prefix[name])
