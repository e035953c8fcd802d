"""The requests of a cluster run, checked, with the order in which priority queues take them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.simulation.arrays import Bools, Floats, Ints
from planner.simulation.cluster.deployment import AFTER_PREFILL, PUSH_CHUNKS, Replica
from planner.simulation.cluster.rules import Rules
from planner.simulation.knobs import VllmKnobs
from planner.simulation.prefix import PrefixBlocks
from planner.simulation.profile import Profile
from planner.simulation.workload import prepare as prepare_for_one

ROOMY = VllmKnobs(max_num_batched_tokens=1, max_num_seqs=1, num_blocks=1 << 60)


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Columns of N requests in the order of their arrival.

    `arrival_s` is not used in a closed loop. `order_s` is what priority queues compare after the priority: the
    position, since requests of one tick of the clock come one after another. `handed_over` bool[N]: it goes to the
    prefill pool first. `fits` bool[N]: every replica that it may meet could serve it. `prefix` and `assumed_blocks`
    int64[N] as in `workload.Workload`, in the blocks of the replicas that cache. `request_class` int64[N];
    `ttft_limit_s` float64[N], inf where there is none.
    """

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    max_tokens: Ints
    priority: Ints
    order_s: Floats
    handed_over: Bools
    fits: Bools
    prefix: PrefixBlocks
    assumed_blocks: Ints
    request_class: Ints
    ttft_limit_s: Floats

    def __len__(self) -> int:
        return len(self.prompt_tokens)


def prepare(
    arrival_s: Floats,
    prompt_tokens: Ints,
    output_tokens: Ints,
    priority: Ints | None,
    max_tokens: Ints | None,
    rules: Rules,
    prefix: PrefixBlocks | None = None,
    assumed_hit_share: float = 0.0,
    request_class: Ints | None = None,
) -> Requests:
    """Check the arrays as `workload.prepare` does; ValueError names what is wrong and the first position."""
    classes, priority = _classes(request_class, priority, len(arrival_s), rules)
    if assumed_hit_share > 0.0 and rules.prefix_pool is not None:
        raise ValueError("a prefix_pool needs the trace's prefix, not an assumed_hit_share")
    columns = prepare_for_one(
        arrival_s,
        prompt_tokens,
        output_tokens,
        priority,
        that_caches_as(rules),
        max_tokens=max_tokens,
        prefix=prefix,
        assumed_hit_share=assumed_hit_share,
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
        order_s=np.arange(len(prompt), dtype=np.float64),
        handed_over=handed,
        fits=np.where(handed, _possible_to_hand_over(rules, prompt, output, limit, alone), alone),
        prefix=columns.prefix,
        assumed_blocks=columns.assumed_blocks,
        request_class=classes,
        ttft_limit_s=_ttft_limits(classes, rules),
    )


def _classes(given: Ints | None, priority: Ints | None, count: int, rules: Rules) -> tuple[Ints, Ints | None]:
    """Each request's class, 0 unless given, and the priorities that follow."""
    classes = np.zeros(count, dtype=np.int64) if given is None else np.asarray(given, dtype=np.int64)
    if len(classes) != count:
        raise ValueError(f"request_class has {len(classes)} entries, arrival_s has {count}")
    if (classes < 0).any() or (rules.classes and (classes >= len(rules.classes)).any()):
        wrong = int(np.flatnonzero((classes < 0) | (classes >= max(1, len(rules.classes))))[0])
        raise ValueError(f"request_class {classes[wrong]} does not exist (first at position {wrong})")
    if not any(each.priority for each in rules.classes):
        return classes, priority
    if priority is not None:
        raise ValueError("either a priority for each request or classes with priorities, not both")
    return classes, np.array([each.priority for each in rules.classes], dtype=np.int64)[classes]


def _ttft_limits(classes: Ints, rules: Rules) -> Floats:
    if not rules.classes:
        return np.full(len(classes), rules.ttft_limit_s)
    own = [each.ttft_limit_s for each in rules.classes]
    return np.array([rules.ttft_limit_s if limit is None else limit for limit in own])[classes]


def that_caches_as(rules: Rules) -> Profile:
    """An engine that any request fits, with the prefix blocks of these."""
    caching = [profile for profile in map(rules.profile_of, rules.replicas) if profile.caching]
    sizes = sorted({profile.block_size for profile in caching})
    ahead = sorted({profile.named_ahead for profile in caching})
    if len(sizes) > 1:
        raise ValueError(f"replicas that cache prefixes need blocks of one size, not of {sizes} tokens")
    if len(ahead) > 1:
        raise ValueError(
            "replicas that cache prefixes need drafters that all read ahead (eagle, eagle3, mtp), or none of them"
        )
    if not sizes:
        return ROOMY.profile
    return replace(ROOMY.profile, block_size=sizes[0], caching=True, named_ahead=ahead[0])


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
