"""The requests of one run, checked, without those that could never be served, and with their queue order.

A request needs KV for its prompt and all its outputs but the last (the last token is never read back). One that
needs more blocks than the pool has would wait, or be preempted, for ever: it is rejected before the run and its
index reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.simulation.arrays import Bools, Floats, Ints
from planner.simulation.knobs import VllmKnobs


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """`kept` int64[N]: positions of the served requests in the input; the other arrays have N entries, by arrival.

    `tie` orders requests of equal priority and arrival (vLLM compares ids as strings).
    """

    total: int
    kept: Ints
    rejected: Ints
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    priority: Ints
    tie: Ints

    def spread(self, values: Floats) -> Floats:
        """Back to the input's positions; NaN where a request was rejected."""
        spread = np.full(self.total, np.nan)
        spread[self.kept] = values
        return spread


def prepare(
    arrival_s: Floats,
    prompt_tokens: Ints,
    output_tokens: Ints,
    priority: Ints | None,
    knobs: VllmKnobs,
    tie: Ints | None = None,
) -> Workload:
    """Check the arrays (equal lengths, sorted finite arrivals from 0 on, at least one prompt and output token).

    ValueError names what is wrong and the first position. `tie` defaults to the order of the arrays.
    """
    arrival = np.ascontiguousarray(arrival_s, dtype=np.float64)
    prompt = np.ascontiguousarray(prompt_tokens, dtype=np.int64)
    output = np.ascontiguousarray(output_tokens, dtype=np.int64)
    count = len(arrival)
    order = (
        np.zeros(count, dtype=np.int64)
        if priority is None
        else np.ascontiguousarray(priority, dtype=np.int64)
    )
    ties = np.arange(count, dtype=np.int64) if tie is None else np.ascontiguousarray(tie, dtype=np.int64)
    for name, array in (
        ("prompt_tokens", prompt),
        ("output_tokens", output),
        ("priority", order),
        ("tie", ties),
    ):
        if len(array) != count:
            raise ValueError(f"{name} has {len(array)} entries, arrival_s has {count}")
    for name, array in (("prompt_tokens", prompt), ("output_tokens", output)):
        _refuse(array < 1, f"{name} must be at least 1")
    _refuse(~np.isfinite(arrival) | (arrival < 0), "arrival_s must be finite and not negative")
    _refuse(np.diff(arrival, prepend=0.0) < 0, "arrival_s must be sorted")
    possible = -(-(prompt + output - 1) // knobs.block_size) <= knobs.num_blocks
    kept = np.flatnonzero(possible)
    return Workload(
        total=count,
        kept=kept,
        rejected=np.flatnonzero(~possible),
        arrival_s=arrival[kept],
        prompt_tokens=prompt[kept],
        output_tokens=output[kept],
        priority=order[kept],
        tie=ties[kept],
    )


def _refuse(wrong: Bools, message: str) -> None:
    if wrong.any():
        raise ValueError(f"{message} (first at position {int(np.flatnonzero(wrong)[0])})")
