"""Transfers that share links, compiled: the rules of `cluster.reference_links` over flat arrays.

What is on its way for a request is part of its way's record; `active` lists those that load links, in the order in
which they joined. `next_end_s` and `next_end` are kept: the earliest end, of equals the first in the list.
"""

from __future__ import annotations

from planner.simulation.kernel.cluster_records import NO_TRANSFER, ON_LINKS
from planner.simulation.kernel.cluster_state import Between
from planner.simulation.kernel.compiled import compiled, inlined

MOST_LINKS = 4
NEVER = float("inf")


@compiled
def join_links(between: Between, i: int, now_s: float) -> None:
    run, way = between.run[0], between.ways[i]
    way.on_its_way = ON_LINKS
    way.left_bytes = way.transfer_bytes
    way.rate_bytes_per_s = 0.0
    way.updated_s = now_s
    way.ends_s = NEVER
    between.active[run.active] = i
    run.active += 1
    path = between.paths[way.path]
    for at in range(MOST_LINKS):
        if path[at] >= 0:
            link = between.links[path[at]]
            if link.active == 0:
                link.busy_since_s = now_s
            link.active += 1
            link.transfers += 1
    _share(between, now_s)


@compiled
def leave_links(between: Between, i: int, now_s: float) -> None:
    """The transfer has ended, or is given up; what it moved is on its links' account."""
    run, way = between.run[0], between.ways[i]
    moved = way.transfer_bytes
    if way.ends_s > now_s:
        moved -= way.left_bytes - way.rate_bytes_per_s * (now_s - way.updated_s)
    way.on_its_way = NO_TRANSFER
    at = 0
    while between.active[at] != i:
        at += 1
    run.active -= 1
    for later in range(at, run.active):
        between.active[later] = between.active[later + 1]
    path = between.paths[way.path]
    for at in range(MOST_LINKS):
        if path[at] >= 0:
            link = between.links[path[at]]
            link.active -= 1
            link.bytes += moved
            if link.active == 0:
                link.busy_s += now_s - link.busy_since_s
    _share(between, now_s)


@compiled
def _share(between: Between, now_s: float) -> None:
    """Give every transfer its max-min fair rate, and find the earliest end."""
    run, links, ways = between.run[0], between.links, between.ways
    for k in range(len(links)):
        links[k].free_bytes_per_s = links[k].capacity_bytes_per_s
        links[k].without_rate = links[k].active
    for at in range(run.active):
        ways[between.active[at]].rate_set = 0
    left = run.active
    while left > 0:
        share, tightest = NEVER, -1
        for k in range(len(links)):
            if links[k].without_rate > 0:
                each = links[k].free_bytes_per_s / links[k].without_rate
                if each < share:
                    share, tightest = each, k
        slow = False
        for at in range(run.active):
            way = ways[between.active[at]]
            if way.rate_set == 0 and way.alone_bytes_per_s <= share:
                slow = True
                left -= 1
                _set_rate(between, between.active[at], way.alone_bytes_per_s, now_s)
        if slow:
            continue
        for at in range(run.active):
            way = ways[between.active[at]]
            if way.rate_set == 0 and _crosses(between, between.active[at], tightest):
                left -= 1
                _set_rate(between, between.active[at], share, now_s)
    for k in range(len(links)):
        loaded = links[k].capacity_bytes_per_s - links[k].free_bytes_per_s
        links[k].peak_bytes_per_s = max(links[k].peak_bytes_per_s, loaded)
    run.next_end_s = NEVER
    for at in range(run.active):
        if ways[between.active[at]].ends_s < run.next_end_s:
            run.next_end_s = ways[between.active[at]].ends_s
            run.next_end = at


@inlined
def _crosses(between: Between, i: int, link: int) -> bool:
    way = between.ways[i]
    path = between.paths[way.path]
    return bool(path[0] == link or path[1] == link or path[2] == link or path[3] == link)


@compiled
def _set_rate(between: Between, i: int, rate_bytes_per_s: float, now_s: float) -> None:
    way = between.ways[i]
    way.rate_set = 1
    path = between.paths[way.path]
    for at in range(MOST_LINKS):
        if path[at] >= 0:
            link = between.links[path[at]]
            link.free_bytes_per_s -= rate_bytes_per_s
            link.without_rate -= 1
    if rate_bytes_per_s == way.rate_bytes_per_s:
        return
    way.left_bytes -= way.rate_bytes_per_s * (now_s - way.updated_s)
    way.updated_s = now_s
    way.rate_bytes_per_s = rate_bytes_per_s
    way.ends_s = now_s + max(way.left_bytes, 0.0) / rate_bytes_per_s
