"""A plan's answer as data: everything a page, the API or a rerun needs, in JSON-safe form.

Times are seconds, shares are of 1. What is not known is None, never NaN, infinity or a finite stand-in: a
saturated candidate has no latency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from planner.search.closer import NOTHING_CLOSER, CloserLook
from planner.search.combinations import Candidate, Pools, Status
from planner.search.excluded import Excluded as Excluded
from planner.search.lost import Lost
from planner.search.objectives import Objective
from planner.search.runs import PoolUse
from planner.simulation.cluster.deployment import ROUND_ROBIN
from planner.simulation.knobs import Knobs

SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True)
class Prediction:
    """One objective's predicted percentile. `claimed`: enough samples stand behind it (see `objectives`).

    `low_s`, `high_s`: 90 % interval (`confidence`), finalists only; `high_s` None where the draws at that end are
    saturated. `probability`: that the objective holds. Of goodput the values are shares of its limits, not seconds,
    and `attained` is the share of the requests that meet all of them.
    """

    objective: Objective
    predicted_s: float | None
    margin: float | None  # share of the limit that is left
    samples: int
    requests: int
    claimed: bool
    low_s: float | None = None
    high_s: float | None = None
    probability: float | None = None
    attained: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.objective.to_dict(),
            "predicted": self.predicted_s,
            "attained": self.attained,
            "margin": self.margin,
            "low": self.low_s,
            "high": self.high_s,
            "probability": self.probability,
            "samples": self.samples,
            "requests": self.requests,
            "claimed": self.claimed,
        }


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a candidate spends its time; means over requests in `split_s` (seconds). pools: see `runs.PoolUse`."""

    utilisation: float
    uncovered_share: float
    mean_batch: float
    peak_running: int
    preemptions: int
    steps: int
    prompt_tokens_per_s: float
    generated_tokens_per_s: float
    split_s: Mapping[str, float]
    pools: tuple[PoolUse, ...] = ()
    link_share: float | None = None
    transfer_adds_s: float | None = None


@dataclass(frozen=True, slots=True)
class Tried:
    """The outcome on one replica count; of two pools, `prefill_replicas` of them prefill."""

    replicas: int
    status: Status
    reason: str
    prefill_replicas: int = 0


@dataclass(frozen=True, slots=True)
class TradePoint:
    """One combination at the plan's replica count; None where it is saturated or has no samples."""

    ttft_s: float | None
    itl_s: float | None
    status: Status
    reason: str


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """A knob combination: on the least replicas that meet the objectives, else on the most that were tried.

    `replicas` is 0 for one that was never simulated; `reason` then says why. With `pools` it is a pair of pools, on
    the split that meets, or misses least.
    """

    knobs: Knobs
    replicas: int
    status: Status
    reason: str
    warnings: tuple[str, ...]
    predictions: tuple[Prediction, ...]
    worst_margin: float | None
    behaviour: Behaviour | None
    tried: tuple[Tried, ...]
    trade: TradePoint | None
    pools: Pools | None = None
    prefill_replicas: int = 0
    kind: int = 0
    router: str = ROUND_ROBIN

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.knobs, self.replicas, self.pools, self.prefill_replicas, self.kind, self.router)

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.candidate.to_dict(),
            "status": self.status,
            "reason": self.reason,
            "warnings": list(self.warnings),
            "objectives": [p.to_dict() for p in self.predictions],
            "worst_margin": self.worst_margin,
            "behaviour": _plain(self.behaviour),
            "tried": [asdict(t) for t in self.tried],
            "trade": _plain(self.trade),
        }


@dataclass(frozen=True, slots=True)
class Finalist:
    """A candidate worth a closer look: the choice, the runner-up, the best of the other deployment, or the closest
    where nothing meets.

    `holding` of `refits` draws (see `confidence`) meet every objective. `flags` of every replica; of two pools,
    `pool_flags` by role. `cost_per_hour` None where no price was given. hardware: names, of two pools by role.
    """

    candidate: Candidate
    status: Status
    reason: str
    predictions: tuple[Prediction, ...]
    behaviour: Behaviour
    flags: tuple[str, ...]
    warnings: tuple[str, ...]
    refits: int
    holding: int
    gpus: int = 1
    cost_per_hour: float | None = None
    pool_flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hardware: str | Mapping[str, str] = ""

    def flags_json(self) -> list[str] | dict[str, list[str]]:
        """A list of arguments; of two pools, one list for each."""
        if not self.pool_flags:
            return list(self.flags)
        return {role: list(arguments) for role, arguments in self.pool_flags.items()}

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.candidate.to_dict(),
            "status": self.status,
            "reason": self.reason,
            "objectives": [p.to_dict() for p in self.predictions],
            "behaviour": _plain(self.behaviour),
            "flags": self.flags_json(),
            "warnings": list(self.warnings),
            "refits": self.refits,
            "holding": self.holding,
            "gpus": self.gpus,
            "cost_per_hour": self.cost_per_hour,
            "hardware": self.hardware,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer. `choice` when feasible, else `closest`; `binding` is the key of the tightest objective.

    `alone_s`: the best percentile (seconds by `Objective.key`) of a request that has a replica to itself, only
    where nothing meets the objectives; `impossible`: no number of replicas would do. `other`: the best of the other
    deployment; `lost`: why each other class is not the answer; `ties`: what the model cannot tell from the choice.
    """

    feasible: bool
    sentence: str
    binding: str | None
    choice: Finalist | None
    runner_up: Finalist | None
    closest: Finalist | None
    remarks: tuple[str, ...]
    impossible: bool = False
    alone_s: Mapping[str, float] | None = None
    other: Finalist | None = None
    lost: tuple[Lost, ...] = ()
    ties: tuple[Candidate, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "feasible": self.feasible,
            "sentence": self.sentence,
            "binding": self.binding,
            "choice": self.choice.to_dict() if self.choice else None,
            "runner_up": self.runner_up.to_dict() if self.runner_up else None,
            "closest": self.closest.to_dict() if self.closest else None,
            "remarks": list(self.remarks),
            "impossible": self.impossible,
            "alone": dict(self.alone_s) if self.alone_s is not None else None,
            "other": self.other.to_dict() if self.other else None,
            "lost": [each.to_dict() for each in self.lost],
            "ties": [each.to_dict() for each in self.ties],
        }


@dataclass(frozen=True, slots=True)
class ReplicaPoint:
    """The shown configuration on one number of replicas; `values_s` (seconds by `Objective.key`) and `split_s`
    are empty where it is saturated."""

    replicas: int
    status: Status
    reason: str
    values_s: Mapping[str, float]
    split_s: Mapping[str, float]
    utilisation: float


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The whole answer. `inputs` is all it takes to ask again; `content_hash` identifies the question.
    `by_replicas`: the choice (or the closest) on other numbers of replicas; empty for a stopped search; `closer`: the
    same looked at closely. `searching`: what is known so far of a search that goes on; never `complete`."""

    verdict: Verdict
    candidates: tuple[CandidateResult, ...]
    objectives: tuple[Objective, ...]
    trade_axes: tuple[Objective, Objective]
    trade_replicas: int
    excluded: Excluded
    complete: bool
    inputs: Mapping[str, Any]
    content_hash: str
    by_replicas: tuple[ReplicaPoint, ...] = ()
    closer: CloserLook | None = None
    searching: bool = False

    @property
    def feasible(self) -> bool:
        return self.verdict.feasible

    @property
    def stopped(self) -> bool:
        """The caller ended the search before it was complete."""
        return not self.complete

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe: no NaN, no infinity, lists for tuples."""
        ttft, itl = self.trade_axes
        found = {
            "schema": SCHEMA_VERSION,
            "complete": self.complete,
            "searching": self.searching,
            "summary": self.summary_dict(),
            "verdict": self.verdict.to_dict(),
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "trade": {
                "replicas": self.trade_replicas,
                "ttft_percentile": ttft.percentile,
                "itl_percentile": itl.percentile,
                "ttft_key": ttft.key,
                "itl_key": itl.key,
            },
            **(self.closer or NOTHING_CLOSER).to_dict(),
            "by_replicas": [asdict(point) for point in self.by_replicas],
            "excluded": self.excluded.to_dict(),
            "inputs": dict(self.inputs),
            "content_hash": self.content_hash,
        }
        return {name: _listed(value) for name, value in found.items()}

    def summary_dict(self) -> dict[str, Any]:
        """The answer in one small object: what the command prints. Infeasible: no replicas, knobs or flags, and
        the predictions of the closest candidate."""
        verdict = self.verdict
        shown = verdict.choice or verdict.closest
        predictions: Sequence[Prediction] = shown.predictions if shown else ()
        choice = verdict.choice
        own = choice.candidate.to_dict() if choice else {"split": None, "knobs": None}
        return {
            "feasible": verdict.feasible,
            "sentence": verdict.sentence,
            "deployment": choice.candidate.deployment if choice else "aggregated",
            "engine": self.inputs["engine"]["name"],
            "replicas": choice.candidate.replicas if choice else None,
            "split": own["split"],
            "knobs": own["knobs"],
            "gpus": choice.gpus if choice else None,
            "cost_per_hour": choice.cost_per_hour if choice else None,
            "hardware": choice.hardware if choice else None,
            "router": choice.candidate.routed if choice else None,
            "headroom": self.inputs["conditions"]["headroom"],
            "objectives": [p.to_dict() for p in predictions]
            or [{**o.to_dict(), "predicted": None} for o in self.objectives],
            "binding": verdict.binding,
            "flags": choice.flags_json() if choice else [],
            "closest": verdict.closest.candidate.to_dict() if verdict.closest else None,
            "impossible": verdict.impossible,
            "remarks": list(verdict.remarks),
            "excluded": self.excluded.count,
            "complete": self.complete,
            "content_hash": self.content_hash,
        }


def _listed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _listed(each) for name, each in value.items()}
    return [_listed(each) for each in value] if isinstance(value, (list, tuple)) else value


def _plain(value: Behaviour | TradePoint | None) -> dict[str, Any] | None:
    return asdict(value) if value is not None else None
