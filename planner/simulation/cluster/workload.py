"""The requests of a cluster run, checked, with the order in which priority queues take them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.simulation.arrays import Bools, Floats, Ints
from planner.simulation.cluster.deployment import AFTER_PREFILL, PUSH_CHUNKS, Replica
from planner.simulation.cluster.rules import Rules
from planner.simulation.knobs import VllmKnobs
from planner.simulation.profile import Profile
from planner.simulation.workload import prepare as prepare_for_one

ROOMY = VllmKnobs(max_num_batched_tokens=1, max_num_seqs=1, num_blocks=1 << 60)


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Columns of N requests in the order of their arrival.

    `arrival_s` is not used in a closed loop. `order_s` is what priority queues compare after the priority: the
    arrival, in a closed loop the position. `handed_over` bool[N]: it goes to the prefill pool first. `fits` bool[N]:
    every replica that it may meet could serve it.
    """

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    max_tokens: Ints
    priority: Ints
    order_s: Floats
    handed_over: Bools
    fits: Bools

    def __len__(self) -> int:
        return len(self.prompt_tokens)


def prepare(
    arrival_s: Floats,
    prompt_tokens: Ints,
    output_tokens: Ints,
    priority: Ints | None,
    max_tokens: Ints | None,
    rules: Rules,
) -> Requests:
    """Check the arrays as `workload.prepare` does; ValueError names what is wrong and the first position."""
    columns = prepare_for_one(
        arrival_s, prompt_tokens, output_tokens, priority, ROOMY.profile, max_tokens=max_tokens
    )
    prompt, output, limit = columns.prompt_tokens, columns.output_tokens, columns.max_tokens
    least = max(rules.local_prefill_tokens, 1 if rules.pulled else 0)  # of one token nothing is left to pull
    handed = prompt > least if rules.prefill else np.zeros(len(prompt), dtype=np.bool_)
    alone = _possible(rules.decode, prompt, output, limit)
    return Requests(
        arrival_s=columns.arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=limit,
        priority=columns.priority,
        order_s=np.arange(len(prompt), dtype=np.float64) if rules.closed_loop else columns.arrival_s,
        handed_over=handed,
        fits=np.where(handed, _possible_to_hand_over(rules, prompt, output, limit, alone), alone),
    )


def _possible_to_hand_over(rules: Rules, prompt: Ints, output: Ints, limit: Ints, alone: Bools) -> Bools:
    """It may have to be computed on the decode side after all, so it must be possible there alone."""
    fits, one = alone.copy(), np.ones(len(prompt), dtype=np.int64)
    for profile in _profiles(rules.decode):
        if rules.hand_off.reserve_outputs:
            fits &= -(-(prompt + limit) // profile.block_size) <= profile.num_blocks
        if rules.hand_off.mode == PUSH_CHUNKS:  # blocks for the first output are taken in any case
            fits &= -(-(prompt + 1) // profile.block_size) <= profile.num_blocks
    if rules.hand_off.mode == AFTER_PREFILL:  # a single token never needs the decode pool
        fits |= output == 1
    return fits & _possible(rules.prefill, prompt, one, one)


def _possible(replicas: tuple[Replica, ...], prompt: Ints, output: Ints, limit: Ints) -> Bools:
    fits = np.ones(len(prompt), dtype=np.bool_)
    for profile in _profiles(replicas):
        fits &= profile.possible(prompt, output, limit)
    return fits


def _profiles(replicas: tuple[Replica, ...]) -> set[Profile]:
    return {replica.knobs.profile for replica in replicas}
