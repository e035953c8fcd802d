"""The state of a cluster in plain Python: requests, pools, links, and what is still to happen."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from calibration.transfer import TransferArrays
from planner.simulation.cluster.deployment import AFTER_PREFILL, PULL, Replica
from planner.simulation.cluster.links import topology_of
from planner.simulation.cluster.order import ARRIVAL, SERVED
from planner.simulation.cluster.reference_decode_side import ReferenceDecodeSide
from planner.simulation.cluster.reference_links import ReferenceLinks, Transfer, links_of
from planner.simulation.cluster.reference_pool import Pool
from planner.simulation.cluster.reference_prefix_pool import PrefixStore
from planner.simulation.cluster.reference_replica import Drive, Leg, ReferenceReplica
from planner.simulation.cluster.rules import Rules, speculating_profile
from planner.simulation.cluster.workload import Requests
from planner.simulation.held import Held
from planner.simulation.luck import keys_of
from planner.simulation.reference_prefix import PrefixCache
from planner.simulation.reference_requests import Engine


class Event(NamedTuple):
    """What happens at `time_s`, ordered by the first three; `subject` is a request or a replica."""

    time_s: float
    kind: int
    number: int
    subject: int
    tokens: int = 0  # COMPUTED: of the prompt, up to here
    mark: int = 0  # COMPUTED: preemptions of the prefill leg when scheduled; PREALLOCATED: which staging
    transfer: Transfer | None = None  # JOINS
    again: bool = False  # HANDED_OVER, LOST: the second time, see there; PREFILLED: by the prefill pool
    remote: bool = True  # HANDED_OVER again: its KV cache is, or will be, on the prefill side


@dataclass(slots=True, eq=False)
class Way:
    """A request's way through the cluster. Without a prefill leg one replica serves it alone."""

    prompt: int
    output: int
    decode: Leg
    prefill: Leg | None = None
    arrival_s: float = -1.0
    refusal: int = SERVED
    ttft_limit_s: float = math.inf
    fetching: bool = False  # what is on its way comes from the prefix pool
    fetch_start_s: float = 0.0
    fetch_s: float = 0.0
    prefill_sent: bool = False  # push: word of the decode side's blocks has reached the prefill side
    abandoned: bool = False  # push: its decode replica was lost after that
    prefill_over: bool = False  # and the router knows
    computed_tokens: int = 0  # push: of the prompt, could be sent
    moved_tokens: int = 0  # push: of those, are on the decode side
    staged: bool = False  # has blocks on the decode side for what is on its way
    stagings: int = 0  # how often it got them
    transfer: Transfer | None = None  # on its way, from the start of its latency
    transfer_tokens: int = 0
    transfer_start_s: float = -1.0
    kv_ready_s: float = -1.0
    moved_bytes: float = 0.0
    present_tokens: int = 0  # of the prompt, were on the decode side when it was staged there
    lost_kv: int = 0

    @property
    def sender(self) -> Leg:
        """Its prefill leg, of a request that is handed over."""
        assert self.prefill is not None  # noqa: S101
        return self.prefill


@dataclass(slots=True)
class Run:
    rules: Rules
    ways: list[Way]
    prefill: Pool
    decode: Pool
    links: ReferenceLinks
    table: TransferArrays
    store: PrefixStore | None = None
    events: list[Event] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    entries: Iterator[int] = field(default_factory=itertools.count)
    sent: int = 0  # closed loop: how many requests the clients have begun
    over: int = 0  # finished or turned away
    drive: Drive | None = None

    @property
    def replicas(self) -> list[ReferenceReplica]:
        return self.prefill.replicas + self.decode.replicas

    def at(
        self,
        time_s: float,
        kind: int,
        subject: int,
        *,
        tokens: int = 0,
        mark: int = 0,
        transfer: Transfer | None = None,
        again: bool = False,
        remote: bool = True,
    ) -> None:
        """Something is to happen, see Event."""
        number = next(self.numbers)
        heapq.heappush(
            self.events, Event(time_s, kind, number, subject, tokens, mark, transfer, again, remote)
        )

    def is_over(self, now: float) -> None:
        """A request is finished or turned away: in a closed loop its client goes on."""
        self.over += 1
        self.next_client(now + self.rules.think_s)

    def next_client(self, time_s: float) -> None:
        if self.rules.closed_loop and self.sent < len(self.ways):
            self.at(time_s, ARRIVAL, self.sent)
            self.sent += 1


def build(requests: Requests, rules: Rules, bin_s: float = 0.0, drive: Drive | None = None) -> Run:
    columns = zip(
        requests.order_s.tolist(),
        requests.prompt_tokens.tolist(),
        requests.output_tokens.tolist(),
        requests.max_tokens.tolist(),
        requests.priority.tolist(),
        requests.handed_over.tolist(),
        requests.assumed_blocks.tolist(),
        requests.ttft_limit_s.tolist(),
        strict=True,
    )
    ids, offsets = requests.prefix.ids.tolist(), requests.prefix.offsets.tolist()
    shared = [ids[start:stop] for start, stop in itertools.pairwise(offsets)]
    block_tokens = requests.prefix.block_tokens
    ways = [_way(rules, i, block_tokens, *values) for i, values in enumerate(columns)]
    keys = keys_of(speculating_profile(rules).luck_seed, np.arange(len(ways))).tolist()
    for way, key in zip(ways, keys, strict=True):
        way.decode.luck = key
    run = Run(
        rules=rules,
        ways=ways,
        prefill=_pool(rules, rules.prefill, rules.prefill_router, shared, first=0, bin_s=bin_s),
        decode=_pool(rules, rules.decode, rules.decode_router, shared, first=len(rules.prefill), bin_s=bin_s),
        links=links_of(topology_of(rules)),
        table=rules.network.table.arrays(),
        store=PrefixStore(rules.prefix_pool, shared) if rules.prefix_pool else None,
        drive=drive,
    )
    for replica in run.replicas:
        replica.drive = drive
    return run


def _pool(
    rules: Rules,
    replicas: tuple[Replica, ...],
    router: str,
    shared: list[list[int]],
    *,
    first: int,
    bin_s: float,
) -> Pool:
    numbered = enumerate(replicas, first)
    made = [_replica(of, rules, shared, number, bin_s) for number, of in numbered]
    return Pool(made, router, rules.overlap_weight)


def _replica(
    of: Replica, rules: Rules, shared: list[list[int]], number: int, bin_s: float
) -> ReferenceReplica:
    side = ReferenceDecodeSide(rules.hand_off)
    profile = rules.profile_of(of)
    cache = PrefixCache(profile.num_blocks, profile.block_size, shared) if profile.caching else None
    engine = Engine(profile, profile.num_blocks, ratio=profile.ratio, decode_side=side, cache=cache)
    held = Held.from_start(bin_s)
    return ReferenceReplica(number, of, engine, side, least_free=engine.free, held=held)


def _way(
    rules: Rules,
    i: int,
    block_tokens: int,
    order_s: float,
    prompt: int,
    output: int,
    limit: int,
    priority: int,
    handed_over: bool,
    assumed_blocks: int,
    ttft_limit_s: float,
) -> Way:
    assumed = assumed_blocks * block_tokens
    if not handed_over:
        leg = Leg(i, order_s, prompt, output, priority, i, limit, assumed)
        return Way(prompt, output, leg, ttft_limit_s=ttft_limit_s)
    keeps_blocks = rules.hand_off.mode != AFTER_PREFILL or output > 1
    prefill = Leg(
        i, order_s, prompt, 1, priority, i, 1, assumed, prefill_side=True, keeps_blocks=keeps_blocks
    )
    if rules.hand_off.mode == PULL:
        decode = Leg(i, order_s, prompt - 1, output + 1, priority, i, limit + 1, generated=1)
    else:
        decode = Leg(i, order_s, prompt, output, priority, i, limit, generated=1)
    return Way(prompt, output, decode, prefill, ttft_limit_s=ttft_limit_s)
