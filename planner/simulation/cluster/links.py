"""Which links lie between two replicas, and what they carry.

A transfer from prefill replica p to decode replica d crosses, as far as the network limits them: the way between
just these two; the card of p's host outwards and of d's host inwards; and the fabric. Two replicas on one host
reach each other without cards and fabric. Capacities in bytes per second (decimal).
What is fetched from the prefix pool crosses the pool's own link only.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.simulation.cluster.deployment import Replica
from planner.simulation.cluster.rules import Rules


@dataclass(frozen=True, slots=True)
class Topology:
    """paths[p][d]: positions of the links that a transfer crosses, at most MOST_LINKS."""

    names: tuple[str, ...]
    bytes_per_s: tuple[float, ...]
    paths: tuple[tuple[tuple[int, ...], ...], ...]
    from_prefix_pool: tuple[int, ...] = ()


MOST_LINKS = 4


def topology_of(rules: Rules) -> Topology:
    network = rules.network
    names: list[str] = []
    capacities: list[float] = []
    seen: dict[str, int] = {}

    def link(name: str, capacity: float | None) -> tuple[int, ...]:
        if capacity is None:
            return ()
        if name not in seen:
            seen[name] = len(names)
            names.append(name)
            capacities.append(capacity)
        return (seen[name],)

    def path(p: int, d: int) -> tuple[int, ...]:
        sender, receiver = rules.prefill[p], rules.decode[d]
        crossed = link(f"prefill {p} to decode {d}", network.pair_bytes_per_s)
        if sender.host is not None and sender.host == receiver.host:
            return crossed
        crossed += link(f"out of {_host(sender, 'prefill', p)}", network.host_bytes_per_s)
        crossed += link(f"into {_host(receiver, 'decode', d)}", network.host_bytes_per_s)
        return crossed + link("fabric", network.fabric_bytes_per_s)

    paths = tuple(tuple(path(p, d) for d in range(len(rules.decode))) for p in range(len(rules.prefill)))
    pool = rules.prefix_pool
    from_pool = link("prefix pool", None if pool is None else pool.bytes_per_s)
    return Topology(tuple(names), tuple(capacities), paths, from_pool)


def _host(replica: Replica, pool: str, position: int) -> str:
    return f"host of {pool} {position}" if replica.host is None else f"host {replica.host}"
