"""The compiled cluster equals the plain-Python one, bit for bit; N replicas apart equal N simulated one by one."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from calibration.steptime.scalar import linear_model
from calibration.transfer import TransferTable
from planner.simulation import kernel
from planner.simulation.cluster import reference
from planner.simulation.cluster.deployment import (
    HAND_OFFS,
    LEAST_TOKENS,
    PULL,
    Aggregated,
    Disaggregated,
    HandOff,
    Network,
    pool,
)
from planner.simulation.cluster.order import QUEUE_FULL, TOO_LATE
from planner.simulation.cluster.outcome import ClusterOutcome
from planner.simulation.cluster.results import finish
from planner.simulation.cluster.rules import rules_of
from planner.simulation.cluster.workload import prepare
from planner.simulation.kernel import cluster
from planner.simulation.kernel.cluster_build import build_cluster
from planner.simulation.kernel.cluster_entries import entry_for
from planner.simulation.kernel.cluster_results import raw_of
from planner.simulation.kernel.loop import PAUSED
from planner.simulation.knobs import VllmKnobs
from planner.simulation.merge import merge
from planner.simulation.outcome import Outcome
from tests.planner.simulation.cluster_workloads import assert_same_cluster, random_cluster
from tests.planner.simulation.workloads import assert_equal, random_workload, with_holes

CLUSTERS = 400
PART = 100
OTHER_ENGINES = ("sglang", "trtllm", "sarathi", "orca", "prefill-first", "policy")


def agree(seed: int, engines: tuple[str, ...] = ("vllm",), *, cached: bool = False) -> ClusterOutcome:
    arguments, settings = random_cluster(seed, engines=engines, cached=cached)
    record, bin_s = seed % 3 == 0, (0.0, 2.0**-6)[seed % 2]
    expected = reference.simulate(*arguments, **settings, record_steps=record, bin_s=bin_s)
    assert_same_cluster(expected, cluster.simulate(*arguments, **settings, record_steps=record, bin_s=bin_s))
    return expected


@pytest.mark.parametrize("first", range(0, CLUSTERS, PART))
def test_random_clusters_agree(first: int) -> None:
    """And they meet every rule: agreement means little unless losses, refusals and the rest occur."""
    outcomes = [agree(seed) for seed in range(first, first + PART)]
    assert sum(outcome.requests.preemptions.sum() for outcome in outcomes) > 20
    assert sum(outcome.lost_kv.sum() for outcome in outcomes) > 10
    assert sum((outcome.refusal == QUEUE_FULL).sum() for outcome in outcomes) > 20
    assert sum(outcome.handed_over.sum() for outcome in outcomes) > 200
    assert sum(link.transfers for outcome in outcomes for link in outcome.links) > 200
    assert sum(outcome.requests.empty_schedules for outcome in outcomes) > 200


@pytest.mark.parametrize("first", range(CLUSTERS, CLUSTERS + 200, PART))
def test_random_clusters_that_cache_prefixes_agree(first: int) -> None:
    outcomes = [agree(seed, cached=True) for seed in range(first, first + PART)]
    assert sum(outcome.requests.hit_tokens.sum() for outcome in outcomes) > 5_000
    assert sum(outcome.requests.rehit_tokens.sum() for outcome in outcomes) > 500
    assert sum(outcome.present_tokens.sum() for outcome in outcomes) > 1_000
    assert sum((outcome.moved_bytes == 0)[outcome.handed_over].sum() for outcome in outcomes) > 5
    assert sum(outcome.pool_hit_tokens.sum() for outcome in outcomes) > 200
    assert sum(outcome.prefix_pool.evicted_blocks for outcome in outcomes if outcome.prefix_pool) > 100
    assert sum((outcome.refusal == TOO_LATE).sum() for outcome in outcomes) > 50


@pytest.mark.slow  # compiles the cluster for nine pairs of assemblers
@pytest.mark.parametrize("first", range(0, CLUSTERS, PART))
def test_random_clusters_of_any_engines_agree(first: int) -> None:
    for seed in range(first, first + PART):
        agree(seed, ("vllm", *OTHER_ENGINES), cached=True)


@pytest.mark.parametrize("mode", HAND_OFFS)
def test_a_long_busy_run_agrees(mode: str) -> None:
    """Hundreds of rows, a decode pool that preempts, and links on which transfers wait for each other."""
    rng = np.random.default_rng(3)
    count = 300
    load = np.cumsum(rng.exponential(0.02, count)), rng.integers(1, 900, count), rng.integers(1, 200, count)
    model = with_holes(linear_model(0.01, token_s=1e-5, row_s=1e-4, decode_context_s=1e-7, pair_s=1e-9), rng)
    knobs = VllmKnobs(1024, 128, num_blocks=900)
    table = TransferTable((1e3, 1e5, 1e6), (1e-3, 2e-3, 3e-3), (1e6, 5e7, 1e8))
    deployment = Disaggregated(
        pool(2, knobs, model),
        pool(2, VllmKnobs(1024, 128, num_blocks=500), model),
        HandOff(mode, 1e4, message_s=1e-3, chunk_tokens=64),
        Network.cards(table),
        LEAST_TOKENS,
        LEAST_TOKENS,
    )
    expected = reference.simulate(*load, None, deployment)
    assert expected.requests.preemptions.sum() > 20
    assert max(link.occupancy(expected.makespan_s) for link in expected.links) > 0.2
    assert_same_cluster(expected, cluster.simulate(*load, None, deployment))


def test_replicas_behind_a_round_robin_are_replicas_alone() -> None:
    """Bit for bit: what each replica gets is known beforehand, so simulating them apart gives the same."""
    compared = 0
    for seed in range(150):
        arguments = random_workload(seed, most_requests=40).arguments()
        replicas = 1 + seed % 4
        if arguments["clock"] == "steps" or len(arguments["arrival_s"]) < replicas:
            continue
        compared += 1
        assert_alike(arguments, replicas)
    assert compared > 100


def test_a_saturated_replica_makes_the_pool_saturated() -> None:
    rng = np.random.default_rng(8)
    arguments: dict[str, Any] = {
        "arrival_s": np.cumsum(rng.exponential(0.05, 600)),
        "prompt_tokens": rng.integers(1, 200, 600),
        "output_tokens": rng.integers(1, 60, 600),
        "priority": None,
        "knobs": VllmKnobs(256, 4, num_blocks=200),
        "step_time": linear_model(0.02),
        "host_gap_s": 0.0,
        "max_tokens": None,
    }
    assert assert_alike(arguments, 2).saturated


def assert_alike(arguments: dict[str, Any], replicas: int) -> Outcome:
    names = ("arrival_s", "prompt_tokens", "output_tokens", "priority", "max_tokens")
    count = len(arguments["arrival_s"])
    shares = [slice(r, None, replicas) for r in range(replicas)]
    alone = merge(
        [
            kernel.simulate(
                knobs=arguments["knobs"],
                step_time=arguments["step_time"],
                host_gap_s=arguments["host_gap_s"],
                **{name: None if (column := arguments[name]) is None else column[share] for name in names},
            )
            for share in shares
        ]
    )
    deployment = Aggregated(
        pool(replicas, arguments["knobs"], arguments["step_time"], arguments["host_gap_s"])
    )
    together = cluster.simulate(
        *(arguments[name] for name in names[:4]), deployment, max_tokens=arguments["max_tokens"]
    ).requests
    order = np.concatenate([np.arange(count)[share] for share in shares])
    for field in fields(Outcome):
        mine, yours = getattr(alone, field.name), getattr(together, field.name)
        if field.name == "rejected":
            mine = np.sort(order[mine])
        elif field.name in PER_REQUEST:
            yours = yours[order]
        assert_equal(field.name, mine, yours)
    return together


PER_REQUEST = (
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "first_scheduled_s",
    "prefill_end_s",
    "prefill_wait_s",
    "first_token_s",
    "done_s",
    "max_gap_s",
    "preemptions",
)


def test_a_run_can_be_paused_anywhere() -> None:
    arguments, settings = random_cluster(2)
    deployment, max_tokens = arguments[4], settings.pop("max_tokens")
    request_class = settings.pop("request_class", None)
    settings.update(losses=(), queue_limit=None)
    rules = rules_of(deployment, **settings)
    requests = prepare(*arguments[:4], max_tokens, rules, request_class=request_class)
    state, pauses = build_cluster(requests, rules, record=False), 0
    while entry_for(rules)(state, 7) == PAUSED:
        pauses += 1
    assert pauses > 3
    expected = reference.simulate(*arguments, **settings, max_tokens=max_tokens, request_class=request_class)
    assert_same_cluster(expected, finish(raw_of(state, rules, []), requests, rules))


def test_recording_changes_nothing_and_outgrows_its_arrays() -> None:
    one, count = linear_model(0.5), 20
    knobs = VllmKnobs(64, 4, num_blocks=100)
    ones = np.ones(count, dtype=np.int64)
    deployment = Disaggregated(
        pool(1, knobs, one), pool(1, knobs, one), HandOff(PULL, 1.0), Network(TransferTable.line(0.0, 100.0))
    )
    load = np.arange(float(count)) * 100.0, 2 * ones, 300 * ones, None
    recorded = cluster.simulate(*load, deployment, record_steps=True)
    record = recorded.decode[0].record
    assert record is not None
    assert len(record.free_blocks) > 4_096  # more than the kernel's array for them holds
    assert_same_cluster(reference.simulate(*load, deployment, record_steps=True), recorded)
    plain = cluster.simulate(*load, deployment)
    assert plain.decode[0].record is None
    np.testing.assert_array_equal(plain.requests.done_s, recorded.requests.done_s)
