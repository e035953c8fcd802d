"""What a simulation found: times per request, the gaps between tokens, and where the machine's time went.

TTFT = queue (arrival to the start of the first step that computes for the request) + prefill (to the end of the
step that completes the prompt; the part of it spent waiting between chunks is kept apart) + first decode, which is
0 when one pool does both phases, because the step that completes the prompt emits the first token.
ITL is the distribution of all gaps between tokens, a preempted request's long gap included. Tokens of one step
(speculative decoding) come out as one piece of the stream and have no gaps between them: a gap is what a reader waits
for the next piece, as load generators take it, and zeros between tokens would make any limit on ITL easy. TPOT is one
request's time after TTFT over its tokens after the first, however they come; E2E is arrival to last token.
Percentiles always come from pooled requests or pooled gaps, over replicas too: `merge` pools, nothing averages
percentiles. Seconds, tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.simulation.arrays import Bools, Floats, Ints
from planner.simulation.gaps import gap_percentile
from planner.simulation.saturation import Load

DECODE, PREFILL, MIXED = 0, 1, 2
STEP_KINDS = ("decode", "prefill", "mixed")
METRICS = ("ttft", "itl", "tpot", "e2e")


@dataclass(frozen=True, slots=True, eq=False)
class StepRecord:
    """Every schedule of a run, in order, for comparison and for looking at a window step by step.

    K schedules (empty ones included), R rows: the rows of schedule k are offsets[k]:offsets[k+1]. `request`,
    `tokens`, `cached` (tokens in its KV cache before the step) int64[R]; `decode` bool[R]: exactly one known token
    was left and the prompt was computed before. `preempted` likewise with `preempted_offsets`. `free_blocks`
    int64[K] is read after the schedule, before its result, as are `running` (seats taken) and `waiting` (the queue).
    scheduled_s, start_s, end_s float64[K]; an empty schedule has start = end.
    """

    offsets: Ints
    request: Ints
    tokens: Ints
    cached: Ints
    decode: Ints
    preempted_offsets: Ints
    preempted: Ints
    free_blocks: Ints
    running: Ints
    waiting: Ints
    scheduled_s: Floats
    start_s: Floats
    end_s: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One replica's run, or several pooled. Per-request arrays have N entries in the order of the input; a
    rejected request (it could never fit the KV pool) holds NaN there and its index in `rejected`.
    """

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    first_scheduled_s: Floats
    prefill_end_s: Floats
    prefill_wait_s: Floats  # waits between chunks, within prefill
    first_token_s: Floats
    done_s: Floats
    max_gap_s: Floats  # 0 for a single output token
    preemptions: Ints
    hit_tokens: Ints  # of the prompt, found in the prefix cache when first admitted
    rehit_tokens: Ints  # found when admitted again after a preemption
    rejected: Ints
    gap_counts: Ints  # bins of gaps.py
    step_counts: Ints  # int64[3] by STEP_KINDS
    step_busy_s: Floats  # float64[3]
    empty_schedules: int
    computed_tokens: int  # prompt and generated tokens put through the model, recomputed ones included
    decode_rows: int  # sum over steps
    rows: int
    peak_running: int
    least_free_blocks: int
    busy_s: float
    uncovered_s: float  # busy time of steps that the calibration does not cover
    uncovered_steps: int
    makespan_s: float  # time 0 to the end of the last step
    load: Load
    kv_blocks: int  # of all replicas' pools
    kv_block_s: float  # blocks held, integrated over time
    replicas: int = 1
    bin_s: float = 0.0  # width of the bins of the time series; 0: none was kept
    bins: Floats | None = None  # float64[bins, time_bins.SUMS]
    verifications: int = 0  # rows that checked drafts and emitted
    draft_tokens: int = 0  # checked in them
    accepted_tokens: int = 0
    record: StepRecord | None = None

    @property
    def served(self) -> Bools:
        """bool[N]: not rejected."""
        mask = np.ones(len(self.arrival_s), dtype=np.bool_)
        mask[self.rejected] = False
        return mask

    @property
    def steps(self) -> int:
        return int(self.step_counts.sum())

    @property
    def saturated(self) -> bool:
        return self.load.saturated

    @property
    def uncovered_share(self) -> float:
        return self.uncovered_s / self.busy_s if self.busy_s > 0 else 0.0

    @property
    def utilisation(self) -> float:
        """Busy share of all replicas from time 0 to the end of the last step."""
        return self.busy_s / (self.makespan_s * self.replicas) if self.makespan_s > 0 else 0.0

    @property
    def mean_batch(self) -> float:
        """Mean rows per step."""
        return self.rows / self.steps if self.steps else 0.0

    @property
    def tokens_per_verification(self) -> float:
        """Mean tokens emitted by a row that checked drafts; 1 without any."""
        return 1.0 + (self.accepted_tokens / self.verifications if self.verifications else 0.0)

    @property
    def hit_rate(self) -> float:
        """Share of the served prompts' tokens that were found in the prefix cache (first admissions only)."""
        prompts = int(self.prompt_tokens[self.served].sum())
        return int(self.hit_tokens.sum()) / prompts if prompts else 0.0

    @property
    def prompt_tokens_per_s(self) -> float:
        return self._per_s(int(self.prompt_tokens[self.served].sum()))

    @property
    def generated_tokens_per_s(self) -> float:
        return self._per_s(int(self.output_tokens[self.served].sum()))

    def _per_s(self, tokens: int) -> float:
        return tokens / self.makespan_s if self.makespan_s > 0 else 0.0

    def queue_s(self) -> Floats:
        """Arrival to the start of the first step, served requests only."""
        waits: Floats = (self.first_scheduled_s - self.arrival_s)[self.served]
        return waits

    def prefill_s(self) -> Floats:
        """First step's start to the end of the one that completes the prompt, waits between chunks included."""
        spans: Floats = (self.prefill_end_s - self.first_scheduled_s)[self.served]
        return spans

    def ttft_s(self) -> Floats:
        times: Floats = (self.first_token_s - self.arrival_s)[self.served]
        return times

    def e2e_s(self) -> Floats:
        times: Floats = (self.done_s - self.arrival_s)[self.served]
        return times

    def tpot_s(self) -> Floats:
        """Mean gap per request; only requests with two output tokens or more have one."""
        some = self.served & (self.output_tokens >= 2)
        gaps: Floats = (self.done_s[some] - self.first_token_s[some]) / (self.output_tokens[some] - 1)
        return gaps

    def values_s(self, metric: str) -> Floats:
        """All values of "ttft", "tpot" or "e2e" (raw); gaps ("itl") exist only as a histogram."""
        if metric not in ("ttft", "tpot", "e2e"):
            raise ValueError(f"unknown metric {metric!r}: one of {', '.join(METRICS)}")
        values: Floats = getattr(self, f"{metric}_s")()
        return values

    def percentile(self, metric: str, percentile: float) -> float:
        """The pooled percentile (0..100) of a metric, seconds. ValueError when nothing was measured.

        TTFT, TPOT and E2E are raw values (linear interpolation); gaps are within gaps.RELATIVE_ERROR.
        """
        if metric == "itl":
            return gap_percentile(self.gap_counts, percentile)
        values = self.values_s(metric)
        if len(values) == 0:
            raise ValueError(f"no {metric} values: no request has one")
        return float(np.percentile(values, percentile))
