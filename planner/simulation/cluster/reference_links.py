"""Transfers that share links, in plain Python.

Every transfer crosses some links (see `links`) and goes at most as fast as it would alone. Shares are max-min fair:
the most crowded link is divided equally among its transfers, those that cannot use their share leave the rest to
the others, and so on with what remains (progressive filling). Whenever a transfer starts or ends, all rates are
computed anew; one whose rate changes is first credited with what it moved. Bytes, seconds, bytes per second.

    until every transfer has a rate:
        share = least (free capacity / transfers without a rate) of all links that have such transfers
        those that alone are no faster than `share` go at their own speed, if there are any;
        otherwise those on the first link with that share go at `share`
        what they take is no longer free on their links
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from planner.simulation.cluster.links import Topology


@dataclass(slots=True, eq=False)
class Transfer:
    """`alone_bytes_per_s`: the most it can reach; `left_bytes` was current at `updated_s`."""

    request: int
    bytes: float
    alone_bytes_per_s: float
    path: tuple[int, ...]
    left_bytes: float = 0.0
    rate_bytes_per_s: float = 0.0
    updated_s: float = 0.0
    ends_s: float = math.inf


@dataclass(slots=True)
class Link:
    name: str
    capacity_bytes_per_s: float
    active: int = 0
    busy_since_s: float = 0.0
    busy_s: float = 0.0
    bytes: float = 0.0
    transfers: int = 0
    peak_bytes_per_s: float = 0.0


@dataclass(slots=True)
class ReferenceLinks:
    """`active`: in the order in which they joined."""

    links: list[Link]
    paths: tuple[tuple[tuple[int, ...], ...], ...]  # by prefill and decode replica
    from_prefix_pool: tuple[int, ...]
    active: list[Transfer] = field(default_factory=list)

    def next_end(self) -> Transfer | None:
        """The transfer that ends first; of equals the one that joined first."""
        return min(self.active, key=lambda transfer: transfer.ends_s, default=None)

    def join(self, transfer: Transfer, now: float) -> None:
        transfer.left_bytes, transfer.updated_s = transfer.bytes, now
        self.active.append(transfer)
        for position in transfer.path:
            link = self.links[position]
            if link.active == 0:
                link.busy_since_s = now
            link.active += 1
            link.transfers += 1
        self._share(now)

    def leave(self, transfer: Transfer, now: float) -> None:
        """It has ended, or is given up; what it moved is on its links' account."""
        moved = transfer.bytes
        if transfer.ends_s > now:
            moved -= transfer.left_bytes - transfer.rate_bytes_per_s * (now - transfer.updated_s)
        self.active.remove(transfer)
        for position in transfer.path:
            link = self.links[position]
            link.active -= 1
            link.bytes += moved
            if link.active == 0:
                link.busy_s += now - link.busy_since_s
        self._share(now)

    def _share(self, now: float) -> None:
        free = [link.capacity_bytes_per_s for link in self.links]
        without = list(self.active)
        while without:
            crowd = [sum(position in transfer.path for transfer in without) for position in range(len(free))]
            shares = [
                capacity / count if count else math.inf for capacity, count in zip(free, crowd, strict=True)
            ]
            share = min(shares, default=math.inf)
            chosen = [transfer for transfer in without if transfer.alone_bytes_per_s <= share]
            slow = bool(chosen)
            if not slow:
                tightest = shares.index(share)
                chosen = [transfer for transfer in without if tightest in transfer.path]
            for transfer in chosen:
                rate = transfer.alone_bytes_per_s if slow else share
                _set_rate(transfer, rate, now)
                for position in transfer.path:
                    free[position] -= rate
            without = [transfer for transfer in without if transfer not in chosen]
        for link, left in zip(self.links, free, strict=True):
            link.peak_bytes_per_s = max(link.peak_bytes_per_s, link.capacity_bytes_per_s - left)


def _set_rate(transfer: Transfer, rate_bytes_per_s: float, now: float) -> None:
    if rate_bytes_per_s == transfer.rate_bytes_per_s:
        return
    transfer.left_bytes -= transfer.rate_bytes_per_s * (now - transfer.updated_s)
    transfer.updated_s = now
    transfer.rate_bytes_per_s = rate_bytes_per_s
    transfer.ends_s = now + max(transfer.left_bytes, 0.0) / rate_bytes_per_s


def links_of(topology: Topology) -> ReferenceLinks:
    pairs = zip(topology.names, topology.bytes_per_s, strict=True)
    links = [Link(name, capacity) for name, capacity in pairs]
    return ReferenceLinks(links, topology.paths, topology.from_prefix_pool)
