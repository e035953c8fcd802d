"""Candidates of a stored result (planner/search/result.py) as the search knows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.plan_recipes import KINDS
from planner.search.combinations import Candidate, Pools
from planner.simulation.cluster.deployment import ROUND_ROBIN

Result = Mapping[str, Any]


def candidate_of(finalist: Result) -> Candidate:
    """What `Candidate.to_dict` wrote, within a finalist or by itself."""
    kind, knobs, split = KINDS[finalist.get("engine", "vllm")], finalist["knobs"], finalist.get("split")
    number, router = finalist.get("kind", 0), finalist.get("router", ROUND_ROBIN)
    if not split:
        return Candidate(kind(**knobs), finalist["replicas"], kind=number, router=router)
    numbers = number or {"prefill": 0, "decode": 0}
    pools = Pools(
        prefill=kind(**knobs["prefill"]),
        decode=kind(**knobs["decode"]),
        hand_off=split["hand_off"],
        transfer_chunk_tokens=split["transfer_chunk_tokens"],
        local_prefill_tokens=split["local_prefill_tokens"],
        prefill_kind=numbers["prefill"],
        decode_kind=numbers["decode"],
        router=router,
    )
    return Candidate(pools.decode, finalist["replicas"], pools, split["prefill"])
