"""A plan's answer as data: everything a page, the API or a rerun needs, in JSON-safe form.

Times are seconds, shares are of 1. What is not known is None, never NaN, infinity or a finite stand-in: a
saturated candidate has no latency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from planner.search.objectives import Objective
from planner.search.space import Candidate, Status, knobs_dict
from planner.simulation.knobs import VllmKnobs

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Prediction:
    """One objective's predicted percentile. `claimed`: enough samples stand behind it (see `objectives`).

    `low_s`, `high_s`: 90 % interval from refits of the step-time model, finalists only.
    """

    objective: Objective
    predicted_s: float | None
    margin: float | None  # share of the limit that is left
    samples: int
    requests: int
    claimed: bool
    low_s: float | None = None
    high_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "metric": self.objective.metric,
            "percentile": self.objective.percentile,
            "limit": self.objective.limit_s,
            "predicted": self.predicted_s,
            "margin": self.margin,
            "low": self.low_s,
            "high": self.high_s,
            "samples": self.samples,
            "requests": self.requests,
            "claimed": self.claimed,
        }


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a candidate spends its time; means over requests in `split_s` (seconds)."""

    utilisation: float
    uncovered_share: float
    mean_batch: float
    peak_running: int
    preemptions: int
    steps: int
    prompt_tokens_per_s: float
    generated_tokens_per_s: float
    split_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Tried:
    """The outcome on one replica count."""

    replicas: int
    status: Status
    reason: str


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

    `replicas` is 0 for one that was never simulated; `reason` then says why.
    """

    knobs: VllmKnobs
    replicas: int
    status: Status
    reason: str
    warnings: tuple[str, ...]
    predictions: tuple[Prediction, ...]
    worst_margin: float | None
    behaviour: Behaviour | None
    tried: tuple[Tried, ...]
    trade: TradePoint | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "knobs": knobs_dict(self.knobs),
            "replicas": self.replicas,
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
    """A candidate worth a closer look: the choice, the runner-up, or the closest where nothing meets.

    `holding` of `refits` refits of the step-time model meet every objective.
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

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.candidate.to_dict(),
            "status": self.status,
            "reason": self.reason,
            "objectives": [p.to_dict() for p in self.predictions],
            "behaviour": _plain(self.behaviour),
            "flags": list(self.flags),
            "warnings": list(self.warnings),
            "refits": self.refits,
            "holding": self.holding,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer. `choice` when feasible, else `closest`; `binding` is the key of the tightest objective.

    `alone_s`: the best percentile (seconds by `Objective.key`) of a request that has a replica to itself, only
    where nothing meets the objectives; `impossible`: no number of replicas would do.
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
        }


@dataclass(frozen=True, slots=True)
class Excluded:
    """Requests that can never finish: prompt and output exceed max_model_len. `requests`: the first few, by
    position in the traffic (from 0), with their lengths."""

    count: int
    max_model_len: int
    requests: tuple[tuple[int, int, int], ...]

    def to_dict(self) -> dict[str, Any]:
        first = [{"request": i, "prompt_tokens": p, "output_tokens": o} for i, p, o in self.requests]
        return {"count": self.count, "max_model_len": self.max_model_len, "first": first}


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
    `by_replicas`: the choice (or the closest) on other numbers of replicas; empty for a stopped search."""

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

    @property
    def feasible(self) -> bool:
        return self.verdict.feasible

    @property
    def stopped(self) -> bool:
        """The caller ended the search before it was complete."""
        return not self.complete

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe: no NaN, no infinity."""
        ttft, itl = self.trade_axes
        return {
            "schema": SCHEMA_VERSION,
            "complete": self.complete,
            "summary": self.summary_dict(),
            "verdict": self.verdict.to_dict(),
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "trade": {
                "replicas": self.trade_replicas,
                "ttft_percentile": ttft.percentile,
                "itl_percentile": itl.percentile,
            },
            "by_replicas": [asdict(point) for point in self.by_replicas],
            "excluded": self.excluded.to_dict(),
            "inputs": dict(self.inputs),
            "content_hash": self.content_hash,
        }

    def summary_dict(self) -> dict[str, Any]:
        """The answer in one small object: what the command prints. Infeasible: no replicas, knobs or flags, and
        the predictions of the closest candidate."""
        verdict = self.verdict
        shown = verdict.choice or verdict.closest
        predictions: Sequence[Prediction] = shown.predictions if shown else ()
        choice = verdict.choice
        return {
            "feasible": verdict.feasible,
            "sentence": verdict.sentence,
            "deployment": "aggregated",
            "replicas": choice.candidate.replicas if choice else None,
            "knobs": knobs_dict(choice.candidate.knobs) if choice else None,
            "objectives": [p.to_dict() for p in predictions]
            or [
                {"metric": o.metric, "percentile": o.percentile, "limit": o.limit_s, "predicted": None}
                for o in self.objectives
            ],
            "binding": verdict.binding,
            "flags": list(choice.flags) if choice else [],
            "closest": verdict.closest.candidate.to_dict() if verdict.closest else None,
            "impossible": verdict.impossible,
            "remarks": list(verdict.remarks),
            "excluded": self.excluded.count,
            "complete": self.complete,
            "content_hash": self.content_hash,
        }


def _plain(value: Behaviour | TradePoint | None) -> dict[str, Any] | None:
    return asdict(value) if value is not None else None
