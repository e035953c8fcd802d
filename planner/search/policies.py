"""What the three generic scheduling policies would do on the chosen deployment.

Decode first, prefill first and fair share (`PolicyKnobs`) are simulated with the choice's budget, sequences and KV
pool, on as many replicas. An engine that cannot express one never gets it recommended: it is shown with what it would
gain, in points of the worst margin, and the flags of what is nearest to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.search.combinations import Candidate, Status
from planner.search.crew import POLICY, Crew
from planner.search.engines import POLICIES, TITLES, budget_of, engine_of, seqs_of
from planner.search.evaluate import Bench, judge
from planner.serving_engines.rules import expressible
from planner.simulation.knobs import SCHEDULING_POLICIES, Knobs, PolicyKnobs


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """One policy; values_s seconds by `Objective.key`, empty where saturated. gain: of the worst margin over the
    choice's, None where there is none to compare."""

    policy: str
    status: Status
    reason: str
    values_s: Mapping[str, float]
    worst_margin: float | None
    gain: float | None
    expressible: bool
    flags: tuple[str, ...]
    note: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "status": self.status,
            "reason": self.reason,
            "values": dict(self.values_s),
            "worst_margin": self.worst_margin,
            "gain": self.gain,
            "expressible": self.expressible,
            "flags": list(self.flags),
            "note": self.note,
        }


def under_policy(bench: Bench, candidate: Candidate, policy: str) -> tuple[Bench, Candidate]:
    """The candidate's deployment under a generic policy, which knows no prefix cache."""
    pools = candidate.pools
    if pools is not None:
        pools = replace(pools, prefill=_as(policy, pools.prefill), decode=_as(policy, pools.decode))
    uncached = replace(bench, hit_share=0.0, requests=replace(bench.requests, prefix=None))
    return uncached, replace(candidate, knobs=_as(policy, candidate.knobs), pools=pools)


def compare_policies(
    bench: Bench, crew: Crew, candidate: Candidate, own_margin: float
) -> tuple[PolicyResult, ...]:
    """All three on `candidate`'s deployment. Raises Stopped when the caller wants to stop."""
    engine = engine_of(candidate.knobs)
    found = []
    evaluations = crew.under(candidate, POLICY, list(SCHEDULING_POLICIES))
    for policy, evaluation in zip(SCHEDULING_POLICIES, evaluations, strict=True):
        status, reason = judge(evaluation, bench.objectives)
        margin = None if evaluation.saturated else evaluation.worst_margin(bench.objectives)
        support = [each for each in POLICIES[engine] if each.policy == policy]
        says = expressible(support, policy)
        found.append(
            PolicyResult(
                policy,
                status,
                reason,
                {} if evaluation.saturated else _asked(bench, evaluation.values_s),
                margin,
                None if margin is None else margin - own_margin,
                says,
                tuple(flag for each in support for flag in each.flags),
                _note(TITLES[engine], says, [each.note for each in support if each.note]),
            )
        )
    return tuple(found)


def _note(title: str, says: bool, notes: Sequence[str]) -> str:
    if says:
        return "; ".join(notes)
    nearest = f"; nearest: {'; '.join(notes)}" if notes else ""
    return f"{title} cannot be told to{nearest}"


def _asked(bench: Bench, values_s: Mapping[str, float]) -> dict[str, float]:
    return {o.key: values_s[o.key] for o in bench.objectives if o.key in values_s}


def _as(policy: str, knobs: Knobs) -> PolicyKnobs:
    profile = knobs.profile
    return PolicyKnobs(
        max_num_batched_tokens=budget_of(knobs),
        max_num_seqs=seqs_of(knobs),
        num_blocks=profile.num_blocks,
        block_size=profile.block_size,
        policy=policy,
        async_scheduling=bool(profile.lag),
    )
