"""What holds for every cluster: nothing is lost or counted twice, time runs forward; and what theory says of some."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.steptime.scalar import constant_model, linear_model
from calibration.transfer import TransferTable
from planner.simulation.cluster.deployment import (
    AFTER_PREFILL,
    HAND_OFFS,
    PULL,
    Aggregated,
    Disaggregated,
    HandOff,
    Network,
    Replica,
    pool,
)
from planner.simulation.cluster.order import NO_REPLICA, SERVED, TOO_LATE
from planner.simulation.cluster.outcome import ClusterOutcome
from planner.simulation.cluster.results import finish
from planner.simulation.cluster.rules import Rules, rules_of
from planner.simulation.cluster.workload import Requests, prepare
from planner.simulation.kernel import cluster
from planner.simulation.kernel.cluster_build import build_cluster
from planner.simulation.kernel.cluster_entries import entry_for
from planner.simulation.kernel.cluster_results import raw_of
from planner.simulation.kernel.cluster_state import Cluster
from planner.simulation.kernel.loop import FINISHED
from planner.simulation.knobs import VllmKnobs
from tests.planner.simulation.cluster_workloads import random_cluster


@settings(max_examples=600, deadline=None, derandomize=True)
@given(st.integers(0, 1_000_000))
def test_what_holds_for_every_cluster(seed: int) -> None:
    arguments, named = random_cluster(seed, most_requests=40, cached=bool(seed % 2))
    names = ("max_tokens", "prefix", "assumed_hit_share", "request_class")
    of_requests = {name: named.pop(name) for name in names if name in named}
    rules = rules_of(arguments[4], **named)
    requests = prepare(*arguments[:4], of_requests.pop("max_tokens"), rules, **of_requests)
    state = build_cluster(requests, rules, record=False)
    assert entry_for(rules)(state, 1 << 62) == FINISHED
    outcome = finish(raw_of(state, rules, []), requests, rules)
    check_everything_came_back(state, rules)
    check_counts(outcome, requests, rules)
    check_times(outcome, rules)
    check_bytes(outcome, requests, rules)
    check_prefix_pool(outcome, rules)


def check_everything_came_back(state: Cluster, rules: Rules) -> None:
    """Blocks, seats, reservations and links, of all replicas that were not lost."""
    between = state.between
    alive = between.replicas["lost"] == 0
    now, knobs = between.now[alive], between.knobs[alive]
    if not between.ways["abandoned"].any():  # such are still computed, for nothing, when all else is over
        np.testing.assert_array_equal(now["free"], knobs["num_blocks"])
        assert not between.legs["held"].any()
        for name in ("running", "waiting", "staged", "ready", "steady", "loose", "mid_prefill", "committed"):
            assert not now[name].any(), name
        assert not between.prefix["held"].any()
        if not (between.ways["refusal"] == NO_REPLICA).any():
            for name in ("prefill_tokens", "active_blocks", "ahead_tokens", "ahead_pairs"):
                assert not between.replicas[alive][name].any(), name
    assert (now["free"] >= 0).all()
    assert (now["least_free"] >= 0).all()
    assert (now["peak_running"] <= knobs["seats"]).all()
    assert between.run["active"][0] == 0
    assert not between.links["active"].any()
    assert not between.ways["staged"][between.ways["refusal"] == SERVED].any()


def check_counts(outcome: ClusterOutcome, requests: Requests, rules: Rules) -> None:
    """Accepted and refused are what was offered; tokens are computed once each, or again for a reason."""
    requested = outcome.requests
    served = outcome.refusal == SERVED
    np.testing.assert_array_equal(requested.rejected, np.flatnonzero(~served))
    assert len(requested.ttft_s()) + len(requested.rejected) == len(requests)
    assert (outcome.refusal[~requests.fits] != SERVED).all()
    assert (requests.ttft_limit_s[outcome.refusal == TOO_LATE] < math.inf).all()
    np.testing.assert_array_equal(outcome.request_class, requests.request_class)
    assert not np.isnan(requested.done_s[served]).any()
    assert np.isnan(requested.done_s[~served]).all()
    assert (outcome.decode_replica[served & (requests.output_tokens > 1)] >= 0).all()
    prompt, output = requests.prompt_tokens, requests.output_tokens
    found = requested.hit_tokens + outcome.pool_hit_tokens
    assert (found < prompt)[served].all()
    needed = (prompt + output - 1 - found)[served].sum()
    if rules.pulled:
        needed += (served & outcome.handed_over & (outcome.lost_kv == 0)).sum()  # the last prompt token again
    again = requested.preemptions.sum() + outcome.lost_kv.sum() + (outcome.refusal == NO_REPLICA).sum()
    assert requested.computed_tokens >= needed - requested.rehit_tokens.sum() or outcome.lost_kv.any()
    if again == 0:
        assert requested.computed_tokens == needed
    gaps = (output - 1)[served].sum()
    if rules.warm_up_requests == 0 and not (outcome.refusal == NO_REPLICA).any():
        assert requested.gap_counts.sum() == gaps
    sent = sum(use.requests for use in outcome.decode)
    assert sent >= (served & ~(outcome.prefill_replica >= 0)).sum()


def check_times(outcome: ClusterOutcome, rules: Rules) -> None:
    requested, served = outcome.requests, outcome.refusal == SERVED
    parts = outcome.ttft_parts_s()
    for part in parts.values():
        assert (part[served] >= -1e-9).all()
    np.testing.assert_allclose(
        sum(parts.values())[served], (requested.first_token_s - requested.arrival_s)[served], atol=1e-9
    )
    assert (requested.done_s[served] >= requested.first_token_s[served]).all()
    assert (outcome.transfer_s()[served] >= 0).all()
    assert (outcome.first_decode_s()[served] >= 0).all()
    span = requested.done_s - requested.first_token_s
    assert (requested.max_gap_s[served] <= span[served] + 1e-9).all()
    assert outcome.makespan_s >= np.max(requested.done_s[served], initial=0.0)
    for use in (*outcome.prefill, *outcome.decode):
        assert 0.0 <= use.busy_s <= outcome.makespan_s + 1e-9
    if rules.closed_loop:
        check_concurrency(outcome, rules)


def check_concurrency(outcome: ClusterOutcome, rules: Rules) -> None:
    """Never more requests under way than clients (a departure at an instant makes room for an arrival then)."""
    served = outcome.refusal == SERVED
    arrivals, ends = outcome.requests.arrival_s[served], outcome.requests.done_s[served]
    times = np.concatenate([arrivals, ends])
    steps = np.concatenate([np.ones(len(arrivals)), -np.ones(len(ends))])
    under_way = np.cumsum(steps[np.lexsort((steps, times))])
    assert under_way.max(initial=0) <= rules.concurrency


def check_bytes(outcome: ClusterOutcome, requests: Requests, rules: Rules) -> None:
    """Every handed-over prompt's KV cache went over once, and links carried no more than they can."""
    moved = outcome.moved_bytes / rules.hand_off.bytes_per_token
    tokens = requests.prompt_tokens - (1 if rules.pulled else 0)
    once = outcome.handed_over & (outcome.lost_kv == 0)
    if not rules.losses:
        np.testing.assert_allclose(moved[once], (tokens - outcome.present_tokens)[once])
    assert (moved[~outcome.handed_over & (outcome.refusal == SERVED)] <= tokens.max(initial=0)).all()
    for link in outcome.links:
        assert link.bytes <= link.capacity_bytes_per_s * link.busy_s * (1 + 1e-9) + 1e-6
        assert link.busy_s <= outcome.makespan_s + 1e-9 or rules.losses  # given up when nothing else ran
    if len(outcome.links) and not rules.losses and rules.network.pair_bytes_per_s is not None:
        pairs = sum(link.bytes for link in outcome.links if " to " in link.name)
        np.testing.assert_allclose(pairs, outcome.moved_bytes.sum(), rtol=1e-9)


def check_prefix_pool(outcome: ClusterOutcome, rules: Rules) -> None:
    """What was stored is there or made room; what was fetched went over the pool's link, and nothing else did."""
    if rules.prefix_pool is None:
        assert outcome.prefix_pool is None
        assert not outcome.pool_hit_tokens.any()
        return
    use, link = outcome.prefix_pool, outcome.links[-1]
    assert use is not None
    assert use.blocks == use.stored_blocks - use.evicted_blocks
    assert 0 <= use.blocks <= (rules.prefix_pool.blocks or math.inf)
    assert link.name == "prefix pool"
    needed = outcome.pool_hit_tokens.sum() * rules.prefix_pool.bytes_per_token
    assert link.bytes >= needed * (1 - 1e-9)
    assert (outcome.fetch_s[outcome.pool_hit_tokens > 0] > 0).all()


# Theory -----------------------------------------------------------------------------------------------------------


def single_server(load: float, requests: int, seed: int, **settings: Any) -> ClusterOutcome:
    """The prefill replica of a pull deployment as M/D/1: one prompt of one chunk a step, steps of 1 s."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1 / load, requests))
    prompts, one = np.full(requests, 8), np.ones(requests, dtype=np.int64)
    knobs = VllmKnobs(8, 8, num_blocks=10**9, async_scheduling=False)
    fast = VllmKnobs(1024, 1024, num_blocks=10**9, async_scheduling=False)
    deployment = Disaggregated(
        pool(1, knobs, constant_model(1.0)),
        pool(1, fast, constant_model(1e-3)),
        HandOff(PULL, 1.0),
        Network(TransferTable.line(0.0, 1e9)),
    )
    return cluster.simulate(arrival, prompts, one, None, deployment, **settings)


def test_waiting_for_a_prefill_replica_is_that_of_m_d_1() -> None:
    """Mean waiting rho / (2 (1 - rho)) service times; the 95 % interval from 50 batch means is within 2 %."""
    load = 0.6
    waits = single_server(load, 800_000, seed=60).ttft_parts_s()["queue"]
    check_mean(waits, load / (2 * (1 - load)))


def test_waiting_for_one_of_several_seats_is_that_of_m_m_c() -> None:
    """Outputs are geometric with mean m steps, so the service is as good as exponential; c seats. Erlang C: a request
    waits with probability C, then on average 1 / (c mu - lambda). Whoever comes to a busy replica also waits for the
    step's end, half a step on average: added to what is expected (m is 200 steps)."""
    seats, load, mean_steps, count = 3, 0.6, 200, 1_000_000
    rng = np.random.default_rng(4)
    offered = load * seats
    arrival = np.cumsum(rng.exponential(mean_steps / offered, count))
    outputs = rng.geometric(1 / mean_steps, count)
    knobs = VllmKnobs(64, seats, num_blocks=10**9, async_scheduling=False)
    deployment = Aggregated(pool(1, knobs, constant_model(1.0)))
    outcome = cluster.simulate(arrival, np.ones(count, dtype=np.int64), outputs, None, deployment)
    top = offered**seats / math.factorial(seats) / (1 - load)
    waiting = top / (sum(offered**k / math.factorial(k) for k in range(seats)) + top)
    expected = waiting * mean_steps / (seats - offered)
    idle = 1 / (sum(offered**k / math.factorial(k) for k in range(seats)) + top)
    check_mean(outcome.ttft_parts_s()["queue"], expected + 0.5 * (1 - idle))


def check_mean(waits: np.ndarray, expected: float) -> None:
    batches = waits[: len(waits) // 50 * 50].reshape(50, -1).mean(axis=1)
    half_width = 1.96 * batches.std(ddof=1) / np.sqrt(len(batches))
    assert half_width < 0.02 * expected
    assert abs(batches.mean() - expected) < 1.5 * half_width


@pytest.mark.parametrize("mode", HAND_OFFS)
def test_littles_law_in_a_closed_loop(mode: str) -> None:
    """Clients that never rest: requests under way = throughput x time in the system, here 40, but for the ends of the
    run. And on a link: mean transfers under way = transfers per second x their time."""
    rng = np.random.default_rng(6)
    count, clients = 4_000, 40
    prompts, outputs = rng.integers(1, 600, count), rng.integers(2, 60, count)
    model = linear_model(0.01, token_s=1e-5, row_s=1e-4, decode_context_s=1e-7)
    knobs = VllmKnobs(1024, 128, num_blocks=5_000)
    deployment = Disaggregated(
        pool(2, knobs, model),
        pool(1, knobs, model),
        HandOff(mode, 1e4),
        Network(TransferTable.line(0.0, 2e8), fabric_bytes_per_s=2e8),
    )
    outcome = cluster.simulate(np.zeros(count), prompts, outputs, None, deployment, concurrency=clients)
    requests = outcome.requests
    under_way = count / outcome.makespan_s * requests.e2e_s().mean()
    assert under_way == pytest.approx(clients, rel=0.02)
    if mode != AFTER_PREFILL:
        return
    in_transfer_s = outcome.kv_ready_s - outcome.transfer_start_s
    (fabric,) = outcome.links
    assert np.nansum(in_transfer_s) >= fabric.busy_s - 1e-6  # at least one at any busy moment
    assert fabric.bytes == pytest.approx(2e8 * fabric.busy_s)  # and always at the full rate


def test_a_closed_loop_obeys_the_response_time_law() -> None:
    """N clients who think for Z: R = N / X - Z. One seat, service of 1 s: X is at most 1 per second."""
    count, think_s = 3_000, 3.0
    ones = np.ones(count, dtype=np.int64)
    replica = Replica(VllmKnobs(8, 1, num_blocks=100, async_scheduling=False), constant_model(1.0))
    for clients in (2, 4, 10):
        outcome = cluster.simulate(
            np.zeros(count), ones, ones, None, Aggregated((replica,)), concurrency=clients, think_s=think_s
        )
        throughput = count / outcome.makespan_s
        assert throughput == pytest.approx(min(1.0, clients / (1.0 + think_s)), rel=0.01)
        assert outcome.requests.e2e_s().mean() == pytest.approx(clients / throughput - think_s, rel=0.01)


def test_the_order_is_kept() -> None:
    """First come, first served, one prefill replica, one decode replica: first tokens in the order of arrival."""
    outcome = single_server(0.9, 3_000, seed=1)
    assert (np.diff(outcome.requests.first_token_s) >= 0).all()
    assert len(outcome.requests.rejected) == 0
