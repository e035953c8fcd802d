"""Why the answer behaves as it does: where the time goes, which pool does which work, and what is nearly used up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from planner.search.evaluate import Evaluation
from planner.search.objectives import METRICS, Latency
from planner.search.runs import PoolUse, Ran
from planner.simulation.outcome import Outcome

#: Percentiles of the curves; the first and last are the least and the largest value.
CURVE: Final = (0.0, *(float(p) for p in range(1, 100)), 99.5, 99.9, 100.0)


@dataclass(frozen=True, slots=True)
class Limit:
    """How much of something is used: a share of 1, and what that is in words."""

    what: str
    share: float
    words: str

    def to_dict(self) -> dict[str, Any]:
        return {"what": self.what, "share": self.share, "words": self.words}


@dataclass(frozen=True, slots=True)
class Why:
    """work: busy seconds of prefill, decode and mixed steps by role. curves_s: seconds by metric, at CURVE."""

    split_s: Mapping[str, float]
    work: tuple[Mapping[str, Any], ...]
    limits: tuple[Limit, ...]
    curves_s: Mapping[str, Sequence[float]]

    def to_dict(self) -> dict[str, Any]:
        return {
            "latency_budget_s": dict(self.split_s),
            "work": [dict(pool) for pool in self.work],
            "limits": [limit.to_dict() for limit in self.limits],
            "curve_percentiles": list(CURVE),
            "curves_s": {metric: list(values) for metric, values in self.curves_s.items()},
        }


def why(ran: Ran, evaluation: Evaluation) -> Why:
    return Why(
        split_s=evaluation.split_s,
        work=tuple(_work(pool) for pool in evaluation.pools),
        limits=limits(evaluation),
        curves_s=curves(ran),
    )


def _work(pool: PoolUse) -> dict[str, Any]:
    decode_s, prefill_s, mixed_s = pool.busy_s
    return {
        "role": pool.role,
        "replicas": pool.replicas,
        "prefill_s": prefill_s,
        "decode_s": decode_s,
        "mixed_s": mixed_s,
        "idle_share": pool.idle_share,
        "seconds_per_replica": (decode_s + prefill_s + mixed_s) / pool.replicas,
    }


def limits(evaluation: Evaluation) -> tuple[Limit, ...]:
    """The most used first."""
    found: list[Limit] = []
    for pool in evaluation.pools:
        of = "" if pool.role == "replica" else f" of the {pool.role} pool"
        busy = 1.0 - pool.idle_share
        found.append(Limit(f"compute{of}", busy, "of the time steps run"))
        kv = "of its room holds tokens when it is fullest"
        if evaluation.preemptions:
            kv += f", {evaluation.preemptions:,} requests were preempted"
        found.append(Limit(f"KV cache{of}", pool.full_share, kv))
        seats = f"up to {pool.peak_running:,} of {pool.seats:,} sequences ran at once"
        found.append(Limit(f"sequences{of}", min(1.0, pool.peak_running / pool.seats), seats))
        if pool.chunk_fill:
            fill = "of it are prompt tokens in steps with prompts"
            found.append(Limit(f"token budget{of}", min(1.0, pool.chunk_fill), fill))
    if evaluation.link_share is not None:
        found.append(Limit("link", evaluation.link_share, "of what it could carry the busiest card carries"))
    return tuple(sorted(found, key=lambda limit: -limit.share))


def curves(ran: Ran) -> dict[str, list[float]]:
    """Seconds at each percentile of CURVE, for every metric that has values."""
    found: dict[str, list[float]] = {}
    for metric in METRICS:
        if _has(ran.pooled, metric):
            found[metric] = _curve(ran, metric)
    return found


def _has(pooled: Outcome, metric: Latency) -> bool:
    least = 2 if metric in ("itl", "tpot") else 1
    return bool((pooled.served & (pooled.output_tokens >= least)).any())


def _curve(ran: Ran, metric: Latency) -> list[float]:
    if metric == "itl":
        return [ran.pooled.percentile("itl", p) for p in CURVE]
    values = ran.pooled.values_s(metric)
    if ran.extra_s is not None and metric in ("ttft", "e2e"):
        values = values + ran.extra_s[ran.pooled.served]
    # All at once: each call of its own would put the values in order again.
    at: list[float] = np.percentile(values, CURVE).tolist()
    return at
