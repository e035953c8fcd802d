"""One compiled entry for each pair of assemblers, prefill and decode; nothing is compiled before it is called."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from planner.simulation.arrays import Ints
from planner.simulation.cluster.rules import Rules
from planner.simulation.kernel.assemble import bound
from planner.simulation.kernel.cluster_loop import advance_cluster
from planner.simulation.kernel.cluster_state import Cluster
from planner.simulation.kernel.cluster_turn import turn
from planner.simulation.kernel.compiled import entry, inlined, merged
from planner.simulation.kernel.decode_run import only_decodes
from planner.simulation.kernel.decode_side import take_over
from planner.simulation.kernel.entries import PARTS
from planner.simulation.kernel.state import State
from planner.simulation.profile import IN_ORDER


def entry_for(rules: Rules) -> Callable[[Cluster, int], int]:
    """`cluster_loop.advance_cluster` for these pools; an aggregated deployment has one kind of engine."""
    decode = rules.decode[0].knobs.profile.assembler
    prefill = rules.prefill[0].knobs.profile.assembler if rules.prefill else decode
    advance = _entry(prefill, decode)
    return lambda cluster, most_events: advance(cluster.row, most_events)


@cache
def _entry(prefill: int, decode: int) -> Callable[[Ints, int], int]:
    sender, assemble_prefill, _ = PARTS[prefill]
    receiver, assemble, queue_is_shut = PARTS[decode]
    parts: dict[str, Callable[..., Any]] = {
        "assemble": assemble,
        "assemble_prefill": assemble_prefill,
        "only_decodes": inlined(bound(only_decodes, f"only_decodes_{receiver}", queue_is_shut=queue_is_shut)),
        "take_over": merged(_nothing) if decode == IN_ORDER else take_over,
    }
    name = f"{sender}_{receiver}"
    part = merged(bound(turn, f"turn_{name}", **parts))
    return entry(bound(advance_cluster, f"advance_cluster_{name}", turn=part))


def _nothing(state: State) -> None:
    """vLLM takes over within its schedule."""
