"""The knob settings of a space, each judged before it is tried, and what a candidate is.

A budget above the largest measured step, or more sequences than the largest measured batch, is listed as not covered
instead of being tried. What the engine itself refuses is listed as invalid. A chunk cap that is not below its budget
never binds, so it would only repeat the uncapped combination: such repeats are counted and left out.

Two pools have knobs each. What matters to a prefill pool is its budget, to a decode pool its sequences: the others
stand at their most. Only where the decode pool computes short prompts itself does its budget matter too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, Literal

from calibration.capacity import KVCapacity
from planner.search.engines import (
    HAND_OFFS,
    TITLES,
    VARIANTS,
    Engine,
    Variant,
    budget_of,
    engine_of,
    knobs_dict,
    knobs_text,
    make,
    seqs_of,
    violations,
)
from planner.search.space import Bounds, SearchSpace, SpaceError
from planner.simulation.cluster.deployment import PUSH_CHUNKS, ROUND_ROBIN
from planner.simulation.knobs import Knobs

Status = Literal["meets", "fails", "not covered", "saturated", "invalid", "not tried"]


@dataclass(frozen=True, slots=True)
class Combination:
    """A knob setting of the space on one kind of hardware (`fleet`) behind a router; `status` is "not tried" (yet), or
    why it never will be."""

    knobs: Knobs
    status: Status = "not tried"
    reason: str = ""
    warnings: tuple[str, ...] = ()
    kind: int = 0
    router: str = ROUND_ROBIN


@dataclass(frozen=True, slots=True)
class Pools:
    """Knobs of a prefill and a decode pool, on which kind of hardware each is (`fleet`), and how KV caches get from
    one to the other."""

    prefill: Knobs
    decode: Knobs
    hand_off: str
    transfer_chunk_tokens: int = 1
    local_prefill_tokens: int = 0
    prefill_kind: int = 0
    decode_kind: int = 0
    router: str = ROUND_ROBIN
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @property
    def text(self) -> str:
        prefill, decode = knobs_text(self.prefill), knobs_text(self.decode)
        knobs = f"{prefill} in both pools" if prefill == decode else f"prefill {prefill}; decode {decode}"
        sent = f"{self.hand_off}{f' of {self.transfer_chunk_tokens} tokens' if self.sends_chunks else ''}"
        local = f"; prompts up to {self.local_prefill_tokens} tokens prefilled by the decode pool"
        return f"{knobs} (KV hand-over: {sent}{local if self.local_prefill_tokens else ''})"

    @property
    def sends_chunks(self) -> bool:
        return self.hand_off == PUSH_CHUNKS and self.transfer_chunk_tokens > 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """One deployment: `replicas` alike with `knobs` on one kind of hardware, or, with `pools`, `prefill_replicas` of
    them prefilling."""

    knobs: Knobs  # of every replica; of two pools, the decode pool's
    replicas: int
    pools: Pools | None = None
    prefill_replicas: int = 0
    kind: int = 0  # this and the router: of two pools, theirs count
    router: str = ROUND_ROBIN

    @property
    def routed(self) -> str:
        """The router before the replicas, or before each pool."""
        return self.pools.router if self.pools else self.router

    @property
    def kinds(self) -> tuple[int, ...]:
        """Of the replicas alike; of two pools, prefill's and decode's."""
        return (self.pools.prefill_kind, self.pools.decode_kind) if self.pools else (self.kind,)

    @property
    def deployment(self) -> str:
        return "disaggregated" if self.pools else "aggregated"

    @property
    def decode_replicas(self) -> int:
        return self.replicas - self.prefill_replicas

    @property
    def replicas_text(self) -> str:
        """`3 replicas`, `2 prefill and 1 decode replica`."""
        if not self.pools:
            return f"{self.replicas} replica{'s' if self.replicas > 1 else ''}"
        decode = self.decode_replicas
        return f"{self.prefill_replicas} prefill and {decode} decode replica{'s' if decode > 1 else ''}"

    @property
    def knobs_text(self) -> str:
        knobs = self.pools.text if self.pools else knobs_text(self.knobs)
        return knobs if self.routed == ROUND_ROBIN else f"{knobs}, router {self.routed}"

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "deployment": self.deployment,
            "engine": engine_of(self.knobs),
            "replicas": self.replicas,
            "router": self.routed,
        }
        if self.pools is None:
            return found | {"knobs": knobs_dict(self.knobs), "split": None, "kind": self.kind}
        return found | {
            "kind": {"prefill": self.pools.prefill_kind, "decode": self.pools.decode_kind},
            "knobs": {"prefill": knobs_dict(self.pools.prefill), "decode": knobs_dict(self.pools.decode)},
            "split": {
                "prefill": self.prefill_replicas,
                "decode": self.decode_replicas,
                "hand_off": self.pools.hand_off,
                "transfer_chunk_tokens": self.pools.transfer_chunk_tokens,
                "local_prefill_tokens": self.pools.local_prefill_tokens,
            },
        }


def capacity_of(kv_tokens: int | KVCapacity) -> KVCapacity:
    return kv_tokens if isinstance(kv_tokens, KVCapacity) else KVCapacity.constant(max(0, kv_tokens))


def combinations(
    space: SearchSpace,
    bounds: Bounds,
    kv_tokens: int | KVCapacity,
    max_model_len: int,
    engine: Engine = "vllm",
    *,
    longest_prompt_tokens: int | None = None,
    prefix_caching: bool = False,
    kind: int = 0,
) -> tuple[tuple[Combination, ...], int]:
    """All knob settings of `space` on one kind of hardware in a fixed order, and how many repeats of uncapped ones
    were left out.

    `bounds`, `kv_tokens`: that kind's. The KV pool is the same for all budgets or as measured for each.
    """
    capacity = capacity_of(kv_tokens)
    found: list[Combination] = []
    repeats = 0
    longest = longest_prompt_tokens or max_model_len
    for router, budget, variant in product(space.routers, sorted(space.budgets_tokens), VARIANTS[engine]):
        pool = capacity.tokens(budget)
        for cap in sorted(space.chunk_caps_tokens):
            if cap >= budget and 0 in space.chunk_caps_tokens:
                repeats += len(space.max_num_seqs)
                continue
            for seqs in sorted(space.max_num_seqs):
                knobs = _made(space, engine, budget, seqs, cap, pool, variant, prefix_caching)
                judged = _judged(knobs, bounds, max_model_len, longest)
                found.append(replace(judged, kind=kind, router=router))
    return tuple(found), repeats


@dataclass(frozen=True, slots=True)
class Holds:
    """What one kind of hardware was measured for, and the KV pool it has."""

    bounds: Bounds
    capacity: KVCapacity


def pool_pairs_of_kinds(holds: Sequence[Holds], **options: Any) -> tuple[Pools, ...]:
    """`pool_pairs` for every pair of kinds, those of one kind first. `options`: its other arguments."""
    kinds = range(len(holds))
    pairs = sorted(product(kinds, kinds), key=lambda pair: (pair[0] != pair[1], pair))
    return tuple(
        replace(pools, prefill_kind=p, decode_kind=d)
        for p, d in pairs
        for pools in pool_pairs(
            bounds=holds[p].bounds, kv_tokens=holds[p].capacity, decode_side=holds[d], **options
        )
    )


def pool_pairs(
    space: SearchSpace,
    bounds: Bounds,
    kv_tokens: int | KVCapacity,
    max_model_len: int,
    engine: Engine,
    median_prompt_tokens: int,
    *,
    longest_prompt_tokens: int | None = None,
    decode_side: Holds | None = None,
    prefix_caching: bool = False,
) -> tuple[Pools, ...]:
    """Knobs of two pools in a fixed order, without what engine or calibration do not allow.

    Every other budget of the space, its three largest sequence limits, every hand-off that the engine has.
    `decode_side`: of the decode pool, where that is on other hardware.
    """
    here = Holds(bounds, capacity_of(kv_tokens))
    there = decode_side or here
    budgets = sorted(space.budgets_tokens)[::-1][::2][::-1]
    most_seqs = sorted(space.max_num_seqs)[-3:]
    longest = longest_prompt_tokens or max_model_len
    local = space.local_prefill_tokens or (0, 1 << max(0, median_prompt_tokens).bit_length() - 1)

    def usable(side: Holds, budget: int, seqs: int) -> Knobs | None:
        pool = side.capacity.tokens(budget)
        knobs = _made(space, engine, budget, seqs, 0, pool, VARIANTS[engine][0], prefix_caching)
        return knobs if _judged(knobs, side.bounds, max_model_len, longest).status == "not tried" else None

    def fitting(seqs: int, among: Iterable[int]) -> list[Knobs]:
        return [knobs for budget in among if (knobs := usable(there, budget, seqs))]

    found: list[Pools] = []
    prefills = [knobs for budget in budgets if (knobs := _first(partial(usable, here), budget, most_seqs))]
    for hand_off, threshold, seqs in product(HAND_OFFS[engine], sorted(set(local)), most_seqs):
        decodes = fitting(seqs, budgets if threshold else sorted(space.budgets_tokens)[::-1])
        chunks = sorted(space.transfer_chunks_tokens) if hand_off == PUSH_CHUNKS else [1]
        for decode, prefill, chunk in product(decodes if threshold else decodes[:1], prefills, chunks):
            warned = pool_warnings(decode, threshold, max_model_len, longest)
            found.append(Pools(prefill, decode, hand_off, chunk, threshold, warnings=warned))
    return tuple(replace(pools, router=router) for router in space.routers for pools in found)


def pool_warnings(
    decode: Knobs, local_prefill_tokens: int, max_model_len: int, longest_prompt_tokens: int
) -> tuple[str, ...]:
    """What the engine's rules warn of in two pools. They speak of prompts beside running decodes, which neither pool
    has: only a decode pool that computes short prompts itself does."""
    if not local_prefill_tokens:
        return ()
    rules = violations(decode, max_model_len, longest_prompt_tokens)
    return tuple(f"decode pool: {rule.message}" for rule in rules if rule.severity == "warning")


def _first(usable: Callable[[int, int], Knobs | None], budget: int, seqs: Iterable[int]) -> Knobs | None:
    """With the most sequences that the budget allows."""
    return next((knobs for most in sorted(seqs, reverse=True) if (knobs := usable(budget, most))), None)


def _made(
    space: SearchSpace,
    engine: Engine,
    budget: int,
    seqs: int,
    cap: int,
    kv_tokens: int,
    variant: Variant,
    prefix_caching: bool,
) -> Knobs:
    try:
        return make(
            engine,
            budget,
            seqs,
            kv_tokens,
            block_tokens=space.block_tokens,
            cap=cap,
            asynchronous=space.async_scheduling,
            variant=variant,
            prefix_caching=prefix_caching,
        )
    except ValueError as error:
        raise SpaceError("budgets_tokens", f"{TITLES[engine]} cannot have it: {error}") from error


def _judged(knobs: Knobs, bounds: Bounds, max_model_len: int, longest_prompt_tokens: int) -> Combination:
    rules = violations(knobs, max_model_len, longest_prompt_tokens)
    errors = [rule.message for rule in rules if rule.severity == "error"]
    warnings = tuple(rule.message for rule in rules if rule.severity == "warning")
    if errors:
        title = TITLES[engine_of(knobs)]
        return Combination(knobs, "invalid", f"{title} refuses it: {'; '.join(errors)}", warnings)
    budget, seqs = budget_of(knobs), seqs_of(knobs)
    if budget > bounds.step_tokens:
        reason = f"its steps hold up to {budget:,} tokens and the calibration measured up to {bounds.step_tokens:,}"
        return Combination(knobs, "not covered", reason, warnings)
    if seqs > bounds.batch:
        reason = (
            f"its batches hold up to {seqs:,} sequences and the calibration measured up to {bounds.batch:,}"
        )
        return Combination(knobs, "not covered", reason, warnings)
    return Combination(knobs, warnings=warnings)
