"""A cluster under the microscope: every replica's steps in a window of time, and what each request went through in it.

As `microscope` does for one replica, the run is made again without a record up to just before the window, and
recorded from there. What lies between steps, transfers and waits of requests, follows from their own times in the whole
run's outcome: `phases` of every request that was in the cluster during the window. Seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from planner.simulation.arrays import Floats
from planner.simulation.cluster.outcome import ClusterOutcome
from planner.simulation.cluster.rules import Rules
from planner.simulation.cluster.workload import Requests
from planner.simulation.kernel.cluster_build import build_cluster
from planner.simulation.kernel.cluster_entries import entry_for
from planner.simulation.kernel.cluster_results import drain
from planner.simulation.kernel.cluster_state import Cluster
from planner.simulation.kernel.loop import PAUSED, RECORD_FULL
from planner.simulation.kernel.results import Recorder
from planner.simulation.microscope import MOST_STEPS, Step, Window, step_of

MOST_REQUESTS: Final = 2000
COARSE_EVENTS: Final = 4096
PIECE_EVENTS: Final = 256


@dataclass(frozen=True, slots=True)
class Phase:
    """queue, prefill, room (prefilled, waits for blocks on the decode side), transfer, first decode (pull), decode."""

    name: str
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Way:
    """A request during the window; replicas by position in their pools, None where it never came to one."""

    request: int
    prefill_replica: int | None
    decode_replica: int | None
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """`steps` by their start; `replica` counts prefill replicas first. `truncated`: there are more than
    microscope.MOST_STEPS steps or MOST_REQUESTS requests."""

    window: Window
    steps: tuple[Step, ...]
    requests: tuple[Way, ...]
    truncated: bool

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        return asdict(self)


def look_at_cluster(requests: Requests, rules: Rules, outcome: ClusterOutcome, window: Window) -> ClusterLook:
    """`requests` and `rules` are what `outcome` was simulated from. ValueError for a window by steps: every replica
    counts its own."""
    if window.from_step is not None:
        raise ValueError("a cluster's window is one of time")
    steps: list[Step] = []
    for step in _recorded(requests, rules, window):
        if step.end_s >= window.from_s and step.start_s <= window.to_s:
            steps.append(step)
        if len(steps) > MOST_STEPS * len(rules.replicas):
            break
    steps.sort(key=lambda step: (step.start_s, step.replica))
    ways = list(_ways(outcome, window))
    return ClusterLook(
        window,
        tuple(steps[:MOST_STEPS]),
        tuple(ways[:MOST_REQUESTS]),
        len(steps) > MOST_STEPS or len(ways) > MOST_REQUESTS,
    )


def _recorded(requests: Requests, rules: Rules, window: Window) -> Iterator[Step]:
    """Every replica's schedules from before the window to its end, replica by replica in pieces."""
    advance = entry_for(rules)
    cluster = _after(requests, rules, advance, _events_before(requests, rules, advance, window.from_s))
    numbers = cluster.between.now["schedules"].tolist()
    of_leg = np.arange(len(cluster.between.requests)) % max(1, len(cluster.between.ways))
    cluster.between.knobs["record"] = cluster.between.run["record"] = 1
    going = True
    while going:
        recorders = [Recorder() for _ in rules.replicas]
        status = RECORD_FULL
        while status == RECORD_FULL:
            status = advance(cluster, PIECE_EVENTS)
            drain(cluster, recorders)
        going = status == PAUSED and _next_s(cluster) <= window.to_s
        for replica, recorder in enumerate(recorders):
            record = recorder.record(of_leg)
            for at in range(len(record.end_s)):
                yield step_of(record, at, numbers[replica] + at, replica)
            numbers[replica] += len(record.end_s)


def _after(requests: Requests, rules: Rules, advance: Callable[..., int], events: int) -> Cluster:
    cluster = build_cluster(requests, rules, record=True)
    cluster.between.knobs["record"] = cluster.between.run["record"] = 0
    advance(cluster, events)
    return cluster


def _events_before(requests: Requests, rules: Rules, advance: Callable[..., int], time_s: float) -> int:
    """A number of events after which no step has reached `time_s`."""
    cluster, before = _after(requests, rules, advance, 0), 0
    while advance(cluster, COARSE_EVENTS) == PAUSED and cluster.between.now["end_s"].max() < time_s:
        before += COARSE_EVENTS
    return before


def _next_s(cluster: Cluster) -> float:
    """When something happens next."""
    between = cluster.between
    run = between.run
    times = [float(between.next_s.min()), float(run["next_end_s"][0])]
    if run["events"][0]:
        times.append(float(between.events["time_s"][0]))
    if not run["closed_loop"][0] and run["arrived"][0] < run["count"][0]:
        times.append(float(between.ways["arrival_s"][run["arrived"][0]]))
    return min(times)


def _ways(outcome: ClusterOutcome, window: Window) -> Iterator[Way]:
    run = outcome.requests
    here = run.served & (run.arrival_s <= window.to_s) & (run.done_s >= window.from_s)
    handed = outcome.handed_over
    begun = np.where(handed, np.maximum(outcome.transfer_start_s, run.prefill_end_s), np.nan)
    times: Mapping[str, tuple[Floats, Floats]] = {
        "queue": (run.arrival_s, run.first_scheduled_s),
        "prefill": (run.first_scheduled_s, run.prefill_end_s),
        "room": (np.where(handed, run.prefill_end_s, np.nan), begun),
        "transfer": (np.where(handed, outcome.transfer_start_s, np.nan), outcome.kv_ready_s),
        "first decode": (np.where(handed & outcome.pulled, outcome.kv_ready_s, np.nan), run.first_token_s),
        "decode": (run.first_token_s, run.done_s),
    }
    for i in np.flatnonzero(here).tolist():
        spans = [(name, float(start[i]), float(end[i])) for name, (start, end) in times.items()]
        replicas = (int(outcome.prefill_replica[i]), int(outcome.decode_replica[i]))
        prefill, decode = (None if replica < 0 else replica for replica in replicas)
        phases = tuple(Phase(name, start, end) for name, start, end in spans if end > start)
        yield Way(i, prefill, decode, phases)
