"""What stands where: replicas, routers, the hand-off between two pools, and the links it goes over.

Aggregated: N replicas, each prefills and decodes. Disaggregated: P replicas prefill, D decode, and the KV cache of
every prompt moves from one to the other. Three ways to hand it over:

  pull           (vLLM with NIXL) after the prefill the request goes to a decode replica, which takes blocks for the
                 whole prompt, pulls all but its last token, and computes that one itself: the first token is its own
  after prefill  (TensorRT-LLM) the prefill side emits the first token at once, then the KV cache moves
  push chunks    (SGLang) the decode side takes blocks before the prefill may start; while the prefill runs, what is
                 computed is pushed on, so that only the last chunk's transfer is waited for; the first token is the
                 prefill side's and counts when the last chunk is there
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from calibration.steptime.scalar import StepTimeArrays
from calibration.transfer import TransferTable
from planner.simulation.knobs import Knobs

ROUND_ROBIN = "round robin"
LEAST_TOKENS = "least outstanding tokens"
PREFIX_AWARE = "prefix aware"
ROUTERS = (ROUND_ROBIN, LEAST_TOKENS, PREFIX_AWARE)

PULL = "pull"
AFTER_PREFILL = "after prefill"
PUSH_CHUNKS = "push chunks"
HAND_OFFS = (PULL, AFTER_PREFILL, PUSH_CHUNKS)

VLLM_LEASE_S = 30.0
SGLANG_RESERVED_TOKENS = 512


@dataclass(frozen=True, slots=True, eq=False)
class Replica:
    """One serving engine: its knobs (KV pool included) and how long its steps take.

    `host`: replicas with the same number share a host and its network card; None: a host of its own.
    """

    knobs: Knobs
    step_time: StepTimeArrays
    host_gap_s: float = 0.0
    host: int | None = None

    @property
    def gap_s(self) -> float:
        """Between two steps: the host's, and the drafter's."""
        return self.host_gap_s + self.knobs.profile.draft_s


@dataclass(frozen=True, slots=True)
class HandOff:
    """How KV caches get from the prefill to the decode pool; `vllm`, `tensorrt_llm`, `sglang` give the engines' ways.

    bytes_per_token: KV bytes of one token (as `Architecture.kv_bytes_per_token`). message_s: a request's way from
    one pool to the other, without its KV cache. chunk_tokens: with push, what is computed is sent on in multiples
    of so many tokens (1: after every step). A decode replica takes a hand-off in only if, beside the blocks for it,
    reserved_tokens for it and for each request it has (running or arriving) would be free; or, with reserve_outputs,
    only if all outputs of all of them fit. staging_requests: at most so many that have blocks but do not run yet
    (0: any number). With pull, the prefill side frees the blocks that nobody began to pull lease_s after the
    prefill; the decode side then computes the prompt itself. A living decode replica renews the lease of what
    waits there, unless lease_renewed is False (older vLLM).
    """

    mode: str
    bytes_per_token: float
    message_s: float = 0.0
    chunk_tokens: int = 1
    reserved_tokens: int = 0
    reserve_outputs: bool = False
    staging_requests: int = 0
    lease_s: float = math.inf
    lease_renewed: bool = True

    def __post_init__(self) -> None:
        if self.mode not in HAND_OFFS:
            raise ValueError(f"mode must be one of {', '.join(HAND_OFFS)}, not {self.mode!r}")
        if not 0.0 < self.bytes_per_token < math.inf:
            raise ValueError(f"bytes_per_token must be positive, not {self.bytes_per_token}")
        if not 0.0 <= self.message_s < math.inf:
            raise ValueError(f"message_s must not be negative, not {self.message_s}")
        if self.chunk_tokens < 1:
            raise ValueError(f"chunk_tokens must be at least 1, not {self.chunk_tokens}")
        if self.reserved_tokens < 0 or self.staging_requests < 0:
            raise ValueError("reserved_tokens and staging_requests must not be negative")
        if not self.lease_s > 0.0:
            raise ValueError(f"lease_s must be positive, not {self.lease_s}")

    @property
    def lease_ends(self) -> bool:
        """Can a lease run out while its decode replica lives?"""
        return self.mode == PULL and not self.lease_renewed and math.isfinite(self.lease_s)

    @classmethod
    def vllm(cls, bytes_per_token: float, message_s: float = 0.0, *, lease_renewed: bool = True) -> HandOff:
        return cls(PULL, bytes_per_token, message_s, lease_s=VLLM_LEASE_S, lease_renewed=lease_renewed)

    @classmethod
    def tensorrt_llm(cls, bytes_per_token: float, message_s: float = 0.0) -> HandOff:
        return cls(AFTER_PREFILL, bytes_per_token, message_s, reserve_outputs=True)

    @classmethod
    def sglang(cls, bytes_per_token: float, message_s: float = 0.0, *, chunk_tokens: int = 1) -> HandOff:
        return cls(
            PUSH_CHUNKS,
            bytes_per_token,
            message_s,
            chunk_tokens=chunk_tokens,
            reserved_tokens=SGLANG_RESERVED_TOKENS,
        )


@dataclass(frozen=True, slots=True)
class Network:
    """One transfer alone takes what `table` says; several share the links that they have in common.

    Capacities in bytes per second (decimal), None where nothing limits: of the way between one prefill and one
    decode replica, of a host's card in each direction, and of the fabric that all of it crosses. Transfers within a
    host use neither card nor fabric. Shares are max-min fair, as `links` says.
    """

    table: TransferTable
    pair_bytes_per_s: float | None = None
    host_bytes_per_s: float | None = None
    fabric_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("pair_bytes_per_s", "host_bytes_per_s", "fabric_bytes_per_s"):
            capacity = getattr(self, name)
            if capacity is not None and not 0.0 < capacity < math.inf:
                raise ValueError(f"{name} must be positive, not {capacity}")

    @classmethod
    def cards(cls, table: TransferTable) -> Network:
        """Every host has one card, which carries as much as one transfer reaches at best."""
        return cls(table, host_bytes_per_s=table.peak_bytes_per_s)


@dataclass(frozen=True, slots=True)
class PrefixPool:
    """KV blocks of prompts that all replicas share, in memory of their hosts (as Mooncake's store).

    Blocks of a prompt that its replica lacks and the pool has are fetched instead of computed, `bytes_per_token` each
    (as `Architecture.kv_bytes_per_token`). One fetch alone takes what `table` says; all of them share `bytes_per_s`.
    `blocks`: the pool's size in KV blocks of the replicas, the least recently used make room; None: it forgets nothing.
    """

    table: TransferTable
    bytes_per_s: float
    bytes_per_token: float
    blocks: int | None = None

    def __post_init__(self) -> None:
        for name in ("bytes_per_s", "bytes_per_token"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} of the prefix pool must be positive, not {getattr(self, name)}")
        if self.blocks is not None and self.blocks < 1:
            raise ValueError(f"blocks of the prefix pool must be at least 1, not {self.blocks}")


@dataclass(frozen=True, slots=True, eq=False)
class Aggregated:
    """`replicas` behind one router. `overlap_weight` counts for the router that is aware of prefixes only, see
    `reference_pool`."""

    replicas: tuple[Replica, ...]
    router: str = ROUND_ROBIN
    overlap_weight: float = 1.0
    prefix_pool: PrefixPool | None = None

    def __post_init__(self) -> None:
        _check_pool("replicas", self.replicas)
        _check_router("router", self.router)
        _check_prefixes(self.overlap_weight, self.prefix_pool, self.replicas)


@dataclass(frozen=True, slots=True, eq=False)
class Disaggregated:
    """A prefill and a decode pool. Prompts of up to `local_prefill_tokens` go straight to the decode pool and are
    prefilled there (conditional disaggregation; 0: none does)."""

    prefill: tuple[Replica, ...]
    decode: tuple[Replica, ...]
    hand_off: HandOff
    network: Network
    prefill_router: str = ROUND_ROBIN
    decode_router: str = ROUND_ROBIN
    local_prefill_tokens: int = 0
    overlap_weight: float = 1.0
    prefix_pool: PrefixPool | None = None

    def __post_init__(self) -> None:
        _check_pool("prefill", self.prefill)
        _check_pool("decode", self.decode)
        _check_router("prefill_router", self.prefill_router)
        _check_router("decode_router", self.decode_router)
        if self.local_prefill_tokens < 0:
            raise ValueError("local_prefill_tokens must not be negative")
        _check_prefixes(self.overlap_weight, self.prefix_pool, self.prefill + self.decode)


Deployment = Aggregated | Disaggregated


@dataclass(frozen=True, slots=True)
class QueueLimit:
    """A request is turned away when the replica it would go to has so many requests, or with this one more than so
    many prompt tokens, that have not had their first step yet. None: no limit."""

    requests: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("requests", "tokens"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise ValueError(f"the queue limit of {name} must be at least 1, not {limit}")


@dataclass(frozen=True, slots=True)
class RequestClass:
    """Requests that belong together. `priority`: lower ones go first, in engines that schedule by priority.
    `ttft_limit_s`: as in `simulate`, for these requests; None: what holds for all."""

    name: str
    priority: int = 0
    ttft_limit_s: float | None = None

    def __post_init__(self) -> None:
        check_ttft_limit(f"ttft_limit_s of class {self.name}", self.ttft_limit_s)


def check_ttft_limit(name: str, limit_s: float | None) -> None:
    if limit_s is not None and not 0.0 < limit_s < math.inf:
        raise ValueError(f"{name} must be positive, not {limit_s}")


@dataclass(frozen=True, slots=True)
class Loss:
    """A decode (or aggregated) replica, by its position in its pool, makes no schedule from `time_s` on.

    The steps that it has scheduled by then still count. Then its requests go to the replicas that remain, which
    compute the lost KV caches anew. Those that wait for blocks, or whose pull can begin again, are handed over
    again; with push, what a prefill replica has begun to compute for it is of no use, though it is computed to the end.
    """

    time_s: float
    replica: int


def pool(count: int, knobs: Knobs, step_time: StepTimeArrays, host_gap_s: float = 0.0) -> tuple[Replica, ...]:
    """`count` replicas alike, each on a host of its own."""
    return (Replica(knobs, step_time, host_gap_s),) * count


def _check_pool(name: str, replicas: tuple[Replica, ...]) -> None:
    if not replicas:
        raise ValueError(f"{name} needs at least one replica")
    if len({replica.knobs.profile.assembler for replica in replicas}) > 1:
        raise ValueError(f"{name} mixes engines that assemble their steps in different ways")


def _check_prefixes(weight: float, prefix_pool: PrefixPool | None, replicas: tuple[Replica, ...]) -> None:
    if not 0.0 <= weight < math.inf:
        raise ValueError(f"overlap_weight must be finite and not negative, not {weight}")
    if prefix_pool is not None and not any(replica.knobs.profile.caching for replica in replicas):
        raise ValueError("prefix_pool needs replicas that cache prefixes")


def _check_router(name: str, router: str) -> None:
    if router not in ROUTERS:
        raise ValueError(f"{name} must be one of {', '.join(ROUTERS)}, not {router!r}")
