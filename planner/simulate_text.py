"""A simulation's figures as lines for people; every number with its unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planner.search.seconds import seconds_text
from planner.simulate_run import Simulation
from planner.simulation.attainment import Attainment
from planner.simulation.cluster.deployment import Disaggregated
from planner.simulation.saturation import SATURATED, STABLE
from planner.simulation.summary import Distribution, Group, Summary

#: Share of the busy time outside the measured region, above which the whole run is warned of.
MOSTLY = 0.5
COLUMNS = ("mean", "p50", "p90", "p95", "p99", "largest")


def lines_of(engine: str, simulation: Simulation, summary: Summary, outside: str = "") -> Iterator[str]:
    """`outside`: by what most of the time outside the measured region is outside."""
    yield f"{engine}, {_topology(simulation)}: {summary.verdict}{_load(summary)}"
    if summary.uncovered_share > MOSTLY:
        yield (
            f"WARNING: {summary.uncovered_share:.1%} of the busy time is in steps that were never measured: each counts"
            " as the nearest one that was, so the real latencies may be far from these"
        )
    yield from _group("all requests", summary.all, summary)
    for name, group in summary.classes.items():
        yield from _group(f"class {name}", group, summary)
    for pool in summary.pools:
        steps = ", ".join(f"{count:,} {kind}" for kind, count in pool.steps.items())
        yield (
            f"{pool.name}: {pool.replicas} x, idle {pool.idle_share:.1%}, KV {pool.kv_mean_share:.1%} on average and"
            f" {pool.kv_peak_share:.1%} at most, batch {pool.mean_batch:.1f} on average, {pool.peak_running} running at"
            f" most; steps: {steps}"
        )
        if pool.uncovered_share > 0.005:
            yield f"  {pool.uncovered_share:.1%} of its busy time in steps that the calibration does not cover"
    if outside:
        yield f"  most of that in {outside}"
    for link in summary.links:
        yield (
            f"link {link.name}: {link.moved_bytes / 1e9:.2f} GB in {link.transfers:,} transfers, loaded"
            f" {link.mean_share:.1%} on average and {link.peak_share:.0%} at most, busy {link.busy_share:.1%}"
        )


def _load(summary: Summary) -> str:
    if summary.verdict == SATURATED:
        return f", {summary.unserved_share:.1%} of the load never served"
    if summary.near_capacity:
        return (
            ", but near capacity: in the second half of the traffic no replica rested and most requests stood in a"
            " queue, which did not grow; a longer traffic like it may not be held"
        )
    if summary.verdict == STABLE and not summary.settled:
        return ", as far as this traffic shows: it ends before the load has settled"
    return ""


def _topology(simulation: Simulation) -> str:
    deployment = simulation.deployment
    if isinstance(deployment, Disaggregated):
        pools = f"{len(deployment.prefill)} prefill and {len(deployment.decode)} decode replicas"
        return f"{pools}, {deployment.hand_off.mode}"
    count = 1 if deployment is None else len(deployment.replicas)
    return f"{count} replica{'s' * (count > 1)}"


def _group(name: str, group: Group, summary: Summary) -> Iterator[str]:
    refused = ", ".join(f"{count:,} {reason}" for reason, count in group.refused.items() if count)
    yield (
        f"{name}: {group.served:,} of {group.offered:,} served" + (f" ({refused})" if refused else "")
        + f", {group.requests_per_s:.3g} requests/s, {group.prompt_tokens_per_s:,.0f} prompt and"
        f" {group.generated_tokens_per_s:,.0f} generated tokens/s, {group.preemptions:,} preemptions"
    )  # fmt: skip
    yield f"  {'':14}" + "".join(f"{column:>10}" for column in COLUMNS)
    yield from _table(group.latency_s)
    yield from _table({f"· {part}": values for part, values in group.ttft_parts_s.items()})
    if group.attainment:
        yield from _attainment(group.attainment)


def _table(rows: Mapping[str, Distribution | None]) -> Iterator[str]:
    for name, values in rows.items():
        if values is not None and (values.largest > 0.0 or not name.startswith("·")):
            yield f"  {name:14}" + "".join(
                f"{seconds_text(getattr(values, column)):>10}" for column in COLUMNS
            )


def _attainment(attainment: Attainment) -> Iterator[str]:
    words = {True: "holds", False: "is missed", None: "is not known"}
    for one in attainment.objectives:
        value = "" if one.value_s is None else f" is {seconds_text(one.value_s)},"
        yield (
            f"  {one.metric.upper()} p{one.percentile:g}{value} at most {seconds_text(one.limit_s)}:"
            f" {words[one.holds]}; {one.share:.2%} of requests meet it"
        )
    yield f"  goodput {attainment.goodput_per_s:.3g} requests/s: {attainment.share:.2%} meet all their objectives"
