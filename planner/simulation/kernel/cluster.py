"""The compiled cluster that plans run: `cluster.reference`'s rules at hundreds of thousands of requests a second.

`simulate` takes and returns what `cluster.reference.simulate` does. `warm_up` loads the machine code from numba's
cache, or compiles it, at a worker's start.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibration.steptime.scalar import constant_model
from planner.simulation.arrays import Floats, Ints
from planner.simulation.cluster.deployment import (
    Aggregated,
    Deployment,
    Loss,
    QueueLimit,
    RequestClass,
    pool,
)
from planner.simulation.cluster.glance import Watch
from planner.simulation.cluster.outcome import ClusterOutcome
from planner.simulation.cluster.results import finish
from planner.simulation.cluster.rules import rules_of
from planner.simulation.cluster.workload import prepare
from planner.simulation.kernel.cluster_build import build_cluster
from planner.simulation.kernel.cluster_entries import entry_for
from planner.simulation.kernel.cluster_glance import Paused
from planner.simulation.kernel.cluster_results import drain, raw_of
from planner.simulation.kernel.loop import FINISHED, PAUSED, RECORD_FULL
from planner.simulation.kernel.results import Recorder
from planner.simulation.knobs import Knobs, VllmKnobs
from planner.simulation.prefix import PrefixBlocks

WITHOUT_PAUSE = 1 << 62
LEAST_EVENTS, PAUSES = 64, 16  # between two looks at a watched run: a request makes some ten events


def simulate(
    arrival_s: Floats,
    prompt_tokens: Ints,
    output_tokens: Ints,
    priority: Ints | None,
    deployment: Deployment,
    *,
    concurrency: int = 0,
    think_s: float = 0.0,
    queue_limit: QueueLimit | None = None,
    losses: Sequence[Loss] = (),
    warm_up_requests: int = 0,
    max_tokens: Ints | None = None,
    prefix: PrefixBlocks | None = None,
    assumed_hit_share: float = 0.0,
    request_class: Ints | None = None,
    classes: Sequence[RequestClass] = (),
    ttft_limit_s: float | None = None,
    record_steps: bool = False,
    bin_s: float = 0.0,
    watch: Watch | None = None,
) -> ClusterOutcome:
    """Run the requests to their end; parameters and errors as in `cluster.reference.simulate`. `watch`: shown the run,
    of an open loop without losses, now and then."""
    rules = rules_of(
        deployment, concurrency, think_s, queue_limit, losses, warm_up_requests, classes, ttft_limit_s
    )
    requests = prepare(
        arrival_s,
        prompt_tokens,
        output_tokens,
        priority,
        max_tokens,
        rules,
        prefix,
        assumed_hit_share,
        request_class,
    )
    cluster = build_cluster(requests, rules, record=record_steps, bin_s=bin_s)
    recorders = [Recorder() for _ in rules.replicas] if record_steps else []
    advance = entry_for(rules)
    pause = WITHOUT_PAUSE if watch is None else max(LEAST_EVENTS, len(requests) // PAUSES)
    status = RECORD_FULL
    while status in (RECORD_FULL, PAUSED):
        status = advance(cluster, pause)
        drain(cluster, recorders)
        if watch is not None and status == PAUSED:
            watch(Paused(cluster))
    if status != FINISHED:
        raise RuntimeError(
            "the simulation came to a stop with requests left: this is a defect, please report it"
        )
    return finish(raw_of(cluster, rules, recorders), requests, rules)


def warm_up(*knobs: Knobs) -> None:
    """Load or compile the kernel for pools with the assemblers of these knobs; by default for vLLM's alone."""
    one = np.ones(1, dtype=np.int64)
    for each in knobs or (VllmKnobs(max_num_batched_tokens=1, max_num_seqs=1, num_blocks=1),):
        simulate(np.zeros(1), one, one, None, Aggregated(pool(1, each, constant_model(1.0))))
