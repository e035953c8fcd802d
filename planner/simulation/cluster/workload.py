"""The requests of a cluster run, checked, with the order in which priority queues take them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.simulation.arrays import Bools, Floats, Ints
from planner.simulation.cluster.deployment import (
    AFTER_PREFILL,
    PUSH_CHUNKS,
    Aggregated,
    Deployment,
    Replica,
)
from planner.simulation.knobs import VllmKnobs
from planner.simulation.workload import prepare as prepare_for_one

ROOMY = VllmKnobs(max_num_batched_tokens=1, max_num_seqs=1, num_blocks=1 << 60)


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Columns of N requests in the order of their arrival.

    `arrival_s` is not used in a closed loop. `order_s` is what priority queues compare after the priority: the
    arrival, in a closed loop the position. `fits` bool[N]: the smallest KV pool that it may meet can hold it.
    """

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    priority: Ints
    order_s: Floats
    fits: Bools

    def __len__(self) -> int:
        return len(self.prompt_tokens)


def prepare(
    arrival_s: Floats,
    prompt_tokens: Ints,
    output_tokens: Ints,
    priority: Ints | None,
    deployment: Deployment,
    *,
    closed_loop: bool,
) -> Requests:
    """Check the arrays as `workload.prepare` does; ValueError names what is wrong and the first position."""
    columns = prepare_for_one(arrival_s, prompt_tokens, output_tokens, priority, ROOMY.profile)
    count = columns.total
    return Requests(
        arrival_s=columns.arrival_s,
        prompt_tokens=columns.prompt_tokens,
        output_tokens=columns.output_tokens,
        priority=columns.priority,
        order_s=np.arange(count, dtype=np.float64) if closed_loop else columns.arrival_s,
        fits=_fits(deployment, columns.prompt_tokens, columns.output_tokens),
    )


def _fits(deployment: Deployment, prompt: Ints, output: Ints) -> Bools:
    if isinstance(deployment, Aggregated):
        return _held(deployment.replicas, prompt + output - 1)
    tokens = prompt + output if deployment.hand_off.reserve_outputs else prompt + output - 1
    if deployment.hand_off.mode == PUSH_CHUNKS:  # blocks for the first output are taken in any case
        tokens = np.maximum(tokens, prompt + 1)
    whole = _held(deployment.decode, tokens)
    prefilled = _held(deployment.prefill, prompt)
    if deployment.hand_off.mode == AFTER_PREFILL:  # a single token never needs the decode pool
        whole = whole | (output == 1)
    local = prompt <= deployment.local_prefill_tokens
    return np.where(local, _held(deployment.decode, prompt + output - 1), whole & prefilled)


def _held(replicas: tuple[Replica, ...], tokens: Ints) -> Bools:
    fits = np.ones(len(tokens), dtype=np.bool_)
    for knobs in {replica.knobs for replica in replicas}:
        fits &= -(-tokens // knobs.block_size) <= knobs.num_blocks
    return fits
