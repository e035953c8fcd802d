"""A run in numbers: everything that is told about it, for one replica, several, and clusters alike.

Latencies are of the requests behind the warm-up, pooled over replicas; percentiles of requests interpolate between
raw values, those of gaps come from the histogram (`gaps.RELATIVE_ERROR`). Rates are over the time from the first of
those requests' arrival to the end of the run. What replicas and links did is told of the whole run. Seconds, tokens,
bytes; shares of 1; None where nothing was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from planner.simulation.arrays import Floats, Ints
from planner.simulation.attainment import Attainment, Objective, attain, attain_by_class, values_s
from planner.simulation.cluster.order import NEVER_FITS, REFUSALS, SERVED
from planner.simulation.cluster.outcome import ClusterOutcome, ReplicaUse
from planner.simulation.gaps import bin_middles_s, gap_percentile
from planner.simulation.outcome import STEP_KINDS, Outcome
from planner.simulation.phases import ttft_parts_s
from planner.simulation.saturation import SATURATED
from planner.simulation.selection import take

PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of `count` values, seconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    largest: float


@dataclass(frozen=True, slots=True)
class PoolUse:
    """Replicas of one kind over the whole run. Shares: of their time, of their KV blocks (mean over time and
    replicas; the fullest replica's peak). steps and busy_s by outcome.STEP_KINDS. mean_batch: rows per step."""

    name: str
    replicas: int
    idle_share: float
    kv_mean_share: float
    kv_peak_share: float
    peak_running: int
    mean_batch: float
    steps: Mapping[str, int]
    busy_s: Mapping[str, float]
    empty_schedules: int
    computed_tokens: int
    uncovered_share: float


@dataclass(frozen=True, slots=True)
class LinkSummary:
    """mean_share and peak_share of what the link carries, over the whole run; busy_share: with any transfer on it."""

    name: str
    capacity_bytes_per_s: float
    moved_bytes: float
    transfers: int
    mean_share: float
    peak_share: float
    busy_share: float


@dataclass(frozen=True, slots=True)
class Group:
    """Requests of one class, or all of them. refused: by reason. latency_s: ttft, tpot, e2e, largest gap, and of
    all requests itl; ttft_parts_s by phases.TTFT_PARTS."""

    offered: int
    served: int
    refused: Mapping[str, int]
    preemptions: int
    preempted_requests: int
    latency_s: Mapping[str, Distribution | None]
    ttft_parts_s: Mapping[str, Distribution | None]
    requests_per_s: float
    prompt_tokens_per_s: float
    generated_tokens_per_s: float
    attainment: Attainment | None

    def spares(self, percentile: float) -> bool:
        """Were no more requests turned away than lie above the percentile?"""
        return 100.0 * (self.offered - self.served) <= (100.0 - percentile) * self.offered


@dataclass(frozen=True, slots=True)
class Summary:
    """`verdict`: STABLE, SATURATED or not judged, `near_capacity`: STABLE with nothing left (saturation.py);
    `unserved_share` of the offered load.

    `all` requests, and each class by its name (none where the traffic has none). span_s: what rates are over.
    """

    verdict: str
    unserved_share: float
    settled: bool
    warm_up_requests: int
    makespan_s: float
    span_s: float
    hit_rate: float
    all: Group
    classes: Mapping[str, Group]
    pools: tuple[PoolUse, ...]
    links: tuple[LinkSummary, ...]
    near_capacity: bool = False
    by_class: bool = False  # some class has objectives of its own

    @property
    def uncovered_share(self) -> float:
        """Of the busy time of all pools."""
        busy_s = [sum(pool.busy_s.values()) for pool in self.pools]
        outside_s = sum(pool.uncovered_share * busy for pool, busy in zip(self.pools, busy_s, strict=True))
        return outside_s / sum(busy_s) if sum(busy_s) > 0 else 0.0

    @property
    def holds(self) -> bool:
        """Every objective is known to hold: those of the classes where they have their own, else those of all
        requests. A saturated run meets none, since its latencies grow with its length; and a request that was turned
        away had no latency within any limit, so more of them than a percentile leaves out miss it."""
        own = [group for group in self.classes.values() if group.attainment]
        groups = own if self.by_class else [self.all]
        asked = [(group, one) for group in groups if group.attainment for one in group.attainment.objectives]
        return not asked or (
            self.verdict != SATURATED
            and all(one.holds is True and group.spares(one.percentile) for group, one in asked)
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        return asdict(self)


def summarise(
    outcome: Outcome | ClusterOutcome,
    objectives: Sequence[Objective] = (),
    *,
    request_class: Ints | None = None,
    class_names: Sequence[str] = (),
    class_objectives: Mapping[str, Sequence[Objective]] | None = None,
) -> Summary:
    """`objectives` are those of all requests; with classes (`request_class` int[N] into `class_names`) of the classes
    that `class_objectives` does not name. ValueError for a class that does not exist."""
    cluster = outcome if isinstance(outcome, ClusterOutcome) else None
    requests = cluster.requests if cluster else outcome
    assert isinstance(requests, Outcome)  # noqa: S101  for the type checker
    skipped = cluster.warm_up_requests if cluster else 0
    kept = np.arange(min(skipped, len(requests.arrival_s)), len(requests.arrival_s))
    run = _Run(
        requests=requests,
        refusal=cluster.refusal if cluster else np.where(requests.served, SERVED, NEVER_FITS),
        parts_s=ttft_parts_s(outcome),
        span_s=max(0.0, requests.makespan_s - float(requests.arrival_s[kept].min(initial=np.inf))),
    )
    own = dict(class_objectives or {})
    unknown = sorted(set(own) - set(class_names))
    if unknown:
        raise ValueError(
            f"the traffic has no class {unknown[0]!r}: it has {', '.join(class_names) or 'none'}"
        )
    classes: dict[str, Group] = {}
    total = _group(run, kept, objectives, of_a_class=False)
    if request_class is not None and len(class_names) > 0:
        by_number = {number: own.get(name, objectives) for number, name in enumerate(class_names)}
        for number, name in enumerate(class_names):
            members = kept[request_class[kept] == number]
            classes[name] = _group(run, members, by_number[number], of_a_class=True)
        if own:
            joint = attain_by_class(take(requests, kept), request_class[kept], by_number, run.span_s)
            total = _with_attainment(total, joint)
    return Summary(
        verdict=requests.load.verdict,
        near_capacity=requests.load.near_capacity,
        unserved_share=requests.load.unserved_share,
        settled=requests.load.settled,
        warm_up_requests=skipped,
        makespan_s=requests.makespan_s,
        span_s=run.span_s,
        hit_rate=requests.hit_rate,
        all=total,
        classes=classes,
        pools=_pools(outcome),
        links=_links(cluster) if cluster else (),
        by_class=bool(own),
    )


@dataclass(frozen=True, slots=True)
class _Run:
    requests: Outcome
    refusal: Ints
    parts_s: Mapping[str, Floats]
    span_s: float


def _group(run: _Run, members: Ints, objectives: Sequence[Objective], *, of_a_class: bool) -> Group:
    part = take(run.requests, members)
    served = part.served
    several = served & (part.output_tokens >= 2)
    latency: dict[str, Distribution | None] = {
        "ttft": distribution(part.ttft_s()),
        "tpot": distribution(part.tpot_s()),
        "e2e": distribution(part.e2e_s()),
        "largest gap": distribution(values_s(part, "itl")[several]),
    }
    if not of_a_class:
        latency["itl"] = _gaps(part.gap_counts, latency["largest gap"])
    refusal = np.bincount(run.refusal[members], minlength=len(REFUSALS))
    per_s = 1.0 / run.span_s if run.span_s > 0.0 else 0.0
    return Group(
        offered=len(members),
        served=int(served.sum()),
        refused={REFUSALS[code]: int(refusal[code]) for code in range(SERVED + 1, len(REFUSALS))},
        preemptions=int(part.preemptions.sum()),
        preempted_requests=int((part.preemptions > 0).sum()),
        latency_s=latency,
        ttft_parts_s={name: distribution(values[members][served]) for name, values in run.parts_s.items()},
        requests_per_s=int(served.sum()) * per_s,
        prompt_tokens_per_s=int(part.prompt_tokens[served].sum()) * per_s,
        generated_tokens_per_s=int(part.output_tokens[served].sum()) * per_s,
        attainment=attain(part, objectives, run.span_s, of_a_class=of_a_class) if objectives else None,
    )


def _with_attainment(group: Group, joint: Attainment) -> Group:
    """Classes have objectives of their own: all requests together are held to those."""
    kept = group.attainment.objectives if group.attainment else ()
    return replace(group, attainment=replace(joint, objectives=kept))


def distribution(values: Floats) -> Distribution | None:
    """Of raw values (linear interpolation); None of nothing."""
    if len(values) == 0:
        return None
    p50, p90, p95, p99 = map(float, np.percentile(values, PERCENTILES))
    return Distribution(len(values), float(values.mean()), p50, p90, p95, p99, float(values.max()))


def _gaps(counts: Ints, largest: Distribution | None) -> Distribution | None:
    """Of the histogram; the largest gap is known exactly."""
    total = int(counts.sum())
    if total == 0:
        return None
    mean = float((counts * bin_middles_s()).sum()) / total
    p50, p90, p95, p99 = (gap_percentile(counts, percentile) for percentile in PERCENTILES)
    longest = largest.largest if largest else gap_percentile(counts, 100.0)
    return Distribution(total, mean, p50, p90, p95, p99, longest)


def _pools(outcome: Outcome | ClusterOutcome) -> tuple[PoolUse, ...]:
    if isinstance(outcome, Outcome):
        blocks = outcome.kv_blocks / outcome.replicas
        peak = 1.0 - outcome.least_free_blocks / blocks if blocks else 0.0
        return (_pool("replicas", [outcome], outcome.replicas, outcome.makespan_s, peak),)
    pools = []
    for name, uses in (("prefill", outcome.prefill), ("decode", outcome.decode)):
        if uses:
            peak = max(1.0 - use.least_free_blocks / use.kv_blocks for use in uses)
            shown = name if outcome.prefill else "replicas"
            pools.append(_pool(shown, uses, len(uses), outcome.makespan_s, peak))
    return tuple(pools)


def _pool(
    name: str, uses: Sequence[ReplicaUse | Outcome], replicas: int, makespan_s: float, kv_peak_share: float
) -> PoolUse:
    def total(field: str) -> Any:
        return sum(getattr(use, field) for use in uses)

    seconds, steps, busy_s = replicas * makespan_s, int(total("step_counts").sum()), float(total("busy_s"))
    return PoolUse(
        name=name,
        replicas=replicas,
        idle_share=max(0.0, 1.0 - busy_s / seconds) if seconds > 0 else 0.0,
        kv_mean_share=total("kv_block_s") / (total("kv_blocks") * makespan_s) if makespan_s > 0 else 0.0,
        kv_peak_share=kv_peak_share,
        peak_running=max(use.peak_running for use in uses),
        mean_batch=total("rows") / steps if steps else 0.0,
        steps=dict(zip(STEP_KINDS, map(int, total("step_counts")), strict=True)),
        busy_s=dict(zip(STEP_KINDS, map(float, total("step_busy_s")), strict=True)),
        empty_schedules=int(total("empty_schedules")),
        computed_tokens=int(total("computed_tokens")),
        uncovered_share=total("uncovered_s") / busy_s if busy_s > 0 else 0.0,
    )


def _links(outcome: ClusterOutcome) -> tuple[LinkSummary, ...]:
    span_s = outcome.makespan_s
    return tuple(
        LinkSummary(
            name=link.name,
            capacity_bytes_per_s=link.capacity_bytes_per_s,
            moved_bytes=link.bytes,
            transfers=link.transfers,
            mean_share=link.occupancy(span_s),
            peak_share=link.peak_bytes_per_s / link.capacity_bytes_per_s,
            busy_share=link.busy_s / span_s if span_s > 0 else 0.0,
        )
        for link in outcome.links
    )
