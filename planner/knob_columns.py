"""A candidate's knobs as a table, a figure or a file shows them, whatever the engine and the deployment.

A stored candidate (planner/search/result.py) has its engine's own names; of two pools the budget is the prefill
pool's and the sequences are the decode pool's, because those are what each depends on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.search.engines import NAMES
from planner.simulation.cluster.deployment import ROUND_ROBIN

Result = Mapping[str, Any]


def names_of(candidate: Result) -> tuple[str, str, str]:
    """Budget, sequences and cap under the engine's names; "" for what it has not."""
    return NAMES[candidate.get("engine", "vllm")]


def knobs_of(candidate: Result, role: str) -> Result:
    """Of every replica, or of the pool `role` ("prefill" or "decode")."""
    knobs: Result = candidate["knobs"]
    return knobs[role] if candidate.get("split") else knobs


def budget_of(candidate: Result) -> int:
    return int(knobs_of(candidate, "prefill")[names_of(candidate)[0]])


def seqs_of(candidate: Result) -> int:
    return int(knobs_of(candidate, "decode")[names_of(candidate)[1]])


def cap_of(candidate: Result) -> int:
    """0: none."""
    return int(knobs_of(candidate, "prefill").get(names_of(candidate)[2] or "-", 0))


def replicas_text(candidate: Result) -> str:
    """`3 replicas`, `2 prefill and 1 decode replica`."""
    split, count = candidate.get("split"), candidate["replicas"]
    if not split:
        return f"{count:,} replica{'s' if count != 1 else ''}"
    return f"{split['prefill']:,} prefill and {split['decode']:,} decode replica{'s' if split['decode'] != 1 else ''}"


def knob_words(candidate: Result) -> str:
    """`budget 768 tokens, 256 sequences[, chunks up to 512]`, and what else two pools have."""
    cap, split = cap_of(candidate), candidate.get("split")
    words = f"budget {budget_of(candidate):,} tokens, {seqs_of(candidate):,} sequences"
    if cap:
        words += f", chunks up to {cap:,}"
    if split:
        words = f"{split['hand_off']}, {words}"
        if split["local_prefill_tokens"]:
            words += f", prompts up to {split['local_prefill_tokens']:,} tokens prefilled by the decode pool"
    if (router := candidate.get("router", ROUND_ROBIN)) != ROUND_ROBIN:
        words += f", router {router}"
    return words + "".join(f", {word}" for word in variant_words(candidate))


def deployment_text(candidate: Result, names: Sequence[str] = ()) -> str:
    """`3 replicas with budget 768 tokens, 256 sequences`; `names`: of the kinds of hardware, if several."""
    where = hardware_text(candidate, names)
    return f"{replicas_text(candidate)}{f' on {where}' if where else ''} with {knob_words(candidate)}"


def hardware_text(candidate: Result, names: Sequence[str]) -> str:
    """`A`, `A for prefill, B for decode`; nothing where there is one kind."""
    kind = candidate.get("kind", 0)
    if len(names) < 2:
        return ""
    if not isinstance(kind, Mapping):
        return names[kind]
    prefill, decode = names[kind["prefill"]], names[kind["decode"]]
    return prefill if prefill == decode else f"{prefill} for prefill, {decode} for decode"


def kinds_of(candidate: Result) -> tuple[int, int]:
    """The kind of hardware of prefill and of decode, by number; 0 where a plan knew of one only."""
    kind = candidate.get("kind", 0)
    return (kind["prefill"], kind["decode"]) if isinstance(kind, Mapping) else (kind, kind)


def hardware_names(result: Result) -> list[str]:
    """Of the kinds that a stored plan could use."""
    return [kind["device"] for kind in result["inputs"].get("hardware", ())]


def variant_words(candidate: Result) -> list[str]:
    """What else the engine is told."""
    knobs = knobs_of(candidate, "decode")
    found = []
    if knobs.get("enable_mixed_chunk"):
        found.append("mixed chunk")
    if knobs.get("enable_chunked_prefill") is False:
        found.append("whole prompts")
    if knobs.get("context_chunking_policy") == "EQUAL_PROGRESS":
        found.append("equal progress")
    return found


def same_candidate(one: Result, other: Result) -> bool:
    """The same knobs on the same deployment."""
    same = all(one.get(key) == other.get(key) for key in ("knobs", "replicas", "split"))
    usual = {"kind": 0, "router": ROUND_ROBIN}
    return same and all(one.get(key, value) == other.get(key, value) for key, value in usual.items())
