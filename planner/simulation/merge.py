"""Several replicas' outcomes as one: requests and gaps are pooled, times are added, nothing is averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.simulation.outcome import Outcome
from planner.simulation.saturation import merge_loads
from planner.simulation.selection import PER_REQUEST
from planner.simulation.time_bins import pooled_bins

_SUMMED = (
    "gap_counts",
    "step_counts",
    "step_busy_s",
    "empty_schedules",
    "computed_tokens",
    "decode_rows",
    "rows",
    "busy_s",
    "kv_blocks",
    "kv_block_s",
    "uncovered_s",
    "uncovered_steps",
    "replicas",
    "verifications",
    "draft_tokens",
    "accepted_tokens",
)


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    """Pool the outcomes of replicas that ran side by side; requests follow each other replica by replica.

    `rejected` indexes the pooled arrays. Step records are dropped. ValueError for an empty sequence.
    """
    if not outcomes:
        raise ValueError("no outcomes to merge")
    starts = np.cumsum([0, *(len(outcome.arrival_s) for outcome in outcomes)])
    pooled: dict[str, Any] = {
        name: np.concatenate([getattr(outcome, name) for outcome in outcomes]) for name in PER_REQUEST
    }
    summed: dict[str, Any] = {name: sum(getattr(outcome, name) for outcome in outcomes) for name in _SUMMED}
    bin_s, bins = pooled_bins([(outcome.bin_s, outcome.bins) for outcome in outcomes])
    return Outcome(
        **pooled,
        **summed,
        rejected=np.concatenate([o.rejected + start for o, start in zip(outcomes, starts[:-1], strict=True)]),
        peak_running=max(outcome.peak_running for outcome in outcomes),
        least_free_blocks=min(outcome.least_free_blocks for outcome in outcomes),
        makespan_s=max(outcome.makespan_s for outcome in outcomes),
        load=merge_loads([outcome.load for outcome in outcomes]),
        bin_s=bin_s,
        bins=bins,
    )
