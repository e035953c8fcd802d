"""Who goes where, who may come and what is fetched, worked out on paper first; the arithmetic is in the comments.

As in `hand_worked`: scheduling is synchronous, a block holds 4 tokens, a step takes 0.1 s for each of its tokens.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from calibration.steptime.scalar import constant_model
from calibration.transfer import TransferTable
from planner.simulation.cluster.deployment import (
    PREFIX_AWARE,
    PULL,
    PUSH_CHUNKS,
    Aggregated,
    Disaggregated,
    HandOff,
    Loss,
    PrefixPool,
    RequestClass,
)
from planner.simulation.cluster.order import SERVED, TOO_LATE
from planner.simulation.cluster.outcome import PrefixPoolUse
from planner.simulation.kernel import cluster
from tests.planner.simulation.hand_worked import (
    FAR_APART,
    A,
    B,
    Simulate,
    both,
    engine,
    near,
    prompts_of,
    requests,
    wire,
)

# The router that is aware of prefixes -----------------------------------------------------------------------------


@both
@pytest.mark.parametrize("weight", [0.0, 1.0, 3.0])
def test_cached_blocks_attract_and_work_repels(simulate: Simulate, weight: float) -> None:
    """A (17 tokens, 5 blocks) costs 17/4 w + 5 on either replica: the first. A again, at 10: 1/4 w + 1 there.
    D (33 tokens) at 20 has no part in common: 33/4 w + 9 on either, the first, computed until 23.3.
    A at 20.5: replica 0 has D's 33 tokens to compute and its 9 blocks: 34/4 w + 9 + 1; replica 1: 17/4 w + 5, which is
    less for any weight. At 30 both have A's blocks and nothing to do: the first."""
    load = requests((0.0, 17, 1), (10.0, 17, 1), (20.0, 33, 1), (20.5, 17, 1), (30.0, 17, 1))
    deployment = Aggregated((engine(), engine()), PREFIX_AWARE, overlap_weight=weight)
    outcome = simulate(*load, deployment, prefix=prompts_of(load, A, A, range(20, 29), A, A))
    assert outcome.decode_replica.tolist() == [0, 0, 0, 1, 0]
    assert outcome.requests.hit_tokens.tolist() == [0, 16, 0, 0, 16]
    assert outcome.requests.ttft_s().tolist() == near(1.7, 0.1, 3.3, 1.7, 0.1)


@both
def test_a_request_counts_by_its_tokens_and_then_by_its_blocks(simulate: Simulate) -> None:
    """Prompts of one block that nobody shares. The first, with 100 outputs, goes to replica 0. At 1.0 its prompt is
    long computed but its block is there: 1 + 2 on replica 0, 1 + 1 on replica 1, which computes until 1.4. At 1.05:
    1 + 2 on replica 0, (4 + 4)/4 + 2 on replica 1. At 1.6 two requests are on replica 0, of which one is over
    (computed behind the step that ends at 1.1, with a row of the first: until 1.6), and none on replica 1: 1 + 1."""
    load = requests((0.0, 4, 100), (1.0, 4, 1), (1.05, 4, 1), (1.6, 4, 1))
    deployment = Aggregated((engine(caches=False), engine(caches=False)), PREFIX_AWARE)
    outcome = simulate(*load, deployment)
    assert outcome.decode_replica.tolist() == [0, 1, 0, 1]
    assert outcome.requests.done_s[1:].tolist() == near(1.4, 1.6, 2.0)


@both
def test_both_pools_find_what_they_have(simulate: Simulate) -> None:
    """A goes to the first of each pool. B at 10 is drawn to both by the 16 tokens that it has in common with A. C at
    20, of 5 tokens with nothing in common, goes to the first of each, all being idle."""
    load = requests((0.0, 17, 1), (10.0, 25, 1), (20.0, 5, 1))
    deployment = Disaggregated(
        (engine(), engine()), (engine(), engine()), HandOff(PULL, 1.0), wire(16.0), PREFIX_AWARE, PREFIX_AWARE
    )
    outcome = simulate(*load, deployment, prefix=prompts_of(load, A, B, (30, 31)))
    assert outcome.prefill_replica.tolist() == [0, 0, 0]
    assert outcome.decode_replica.tolist() == [0, 0, 0]
    assert outcome.moved_bytes.tolist() == near(16.0, 8.0, 4.0)


# The prefix pool --------------------------------------------------------------------------------------------------


def pool(blocks: int | None = None) -> PrefixPool:
    return PrefixPool(TransferTable.line(0.0, 16.0), bytes_per_s=16.0, bytes_per_token=1.0, blocks=blocks)


@both
def test_what_a_replica_lacks_is_fetched(simulate: Simulate) -> None:
    """A: replica 0, 0-1.7. B at 10 on replica 1, which has nothing of it: A's 16 tokens are fetched, 10-11, its other 9
    are computed, 11-11.9. A at 20 on replica 0, which has all itself. The pool holds A's 4 full blocks and B's 2."""
    deployment = Aggregated((engine(), engine()), prefix_pool=pool())
    outcome = simulate(*FAR_APART, deployment, prefix=prompts_of(FAR_APART, A, B, A))
    assert outcome.requests.hit_tokens.tolist() == [0, 0, 16]
    assert outcome.pool_hit_tokens.tolist() == [0, 16, 0]
    assert outcome.fetch_s.tolist() == near(0.0, 1.0, 0.0)
    assert outcome.requests.ttft_s().tolist() == near(1.7, 1.9, 0.1)
    assert outcome.ttft_parts_s()["queue"].tolist() == near(0.0, 1.0, 0.0)
    assert outcome.prefix_pool == PrefixPoolUse(blocks=6, stored_blocks=6, evicted_blocks=0)
    assert [(link.name, link.transfers, link.bytes) for link in outcome.links] == [("prefix pool", 1, 16.0)]
    assert outcome.requests.computed_tokens == 17 + 9 + 1


@both
def test_fetches_share_the_bandwidth_of_the_pool(simulate: Simulate) -> None:
    """Two at once: 2 x 16 bytes at 16 bytes/s, 10-12."""
    load = requests((0.0, 17, 1), (10.0, 25, 1), (10.0, 25, 1))
    deployment = Aggregated((engine(),) * 3, prefix_pool=pool())
    outcome = simulate(*load, deployment, prefix=prompts_of(load, A, B, (1, 2, 3, 4, 9, 10, 11)))
    assert outcome.pool_hit_tokens.tolist() == [0, 16, 16]
    assert outcome.requests.ttft_s().tolist() == near(1.7, 2.9, 2.9)


@both
def test_the_least_recently_used_blocks_make_room(simulate: Simulate) -> None:
    """5 blocks. A's 4 at 1.7; X's 2, which are its own, at 5.8: the tail of A goes. B at 10 on the third replica
    fetches 12 tokens, 10-10.75, and computes 13, until 12.05. Its 2 own blocks and A's fourth make 8: X's two go, and
    one of B's own. In all 4 + 2 + 3 were stored."""
    load = requests((0.0, 17, 1), (5.0, 8, 1), (10.0, 25, 1))
    deployment = Aggregated((engine(),) * 3, prefix_pool=pool(5))
    outcome = simulate(*load, deployment, prefix=prompts_of(load, A, (20, 21), B))
    assert outcome.pool_hit_tokens.tolist() == [0, 0, 12]
    assert outcome.requests.done_s.tolist() == near(1.7, 5.8, 12.05)
    assert outcome.prefix_pool == PrefixPoolUse(blocks=5, stored_blocks=9, evicted_blocks=4)


@both
@pytest.mark.parametrize(("mode", "first_token_s"), [(PULL, 13.4 + 0.1), (PUSH_CHUNKS, 11.9 + 25 / 16)])
def test_prefill_replicas_fetch(simulate: Simulate, mode: str, first_token_s: float) -> None:
    """B on the second of two prefill replicas: fetch 10-11, prefill 11-11.9. Its 24 pulled tokens take 1.5 s at 16
    bytes/s and the step 0.1 s; all 25 pushed ones follow each other (the 16 that were fetched are sent with the others,
    after the step that is the first to be over)."""
    decode = (engine(caches=False),)
    deployment = Disaggregated(
        (engine(), engine()), decode, HandOff(mode, 1.0), wire(16.0), prefix_pool=pool()
    )
    load = requests((0.0, 17, 1), (10.0, 25, 1))
    outcome = simulate(*load, deployment, prefix=prompts_of(load, A, B))
    assert outcome.pool_hit_tokens.tolist() == [0, 16]
    assert outcome.requests.prefill_end_s.tolist() == near(1.7, 11.9)
    assert outcome.requests.first_token_s[1] == pytest.approx(first_token_s)


@both
def test_a_fetch_for_a_lost_replica_is_in_vain(simulate: Simulate) -> None:
    """B's fetch on replica 1 began at 10; that is lost at 10.5, when 8 bytes were moved. B is computed on replica 0,
    which has A's 16 tokens itself: 10.5-11.4."""
    load = requests((0.0, 17, 1), (10.0, 25, 1))
    deployment = Aggregated((engine(), engine()), prefix_pool=pool())
    outcome = simulate(*load, deployment, prefix=prompts_of(load, A, B), losses=[Loss(10.5, 1)])
    assert outcome.pool_hit_tokens.tolist() == [0, 0]
    assert outcome.requests.hit_tokens.tolist() == [0, 16]
    assert outcome.requests.done_s.tolist() == near(1.7, 11.4)
    assert outcome.links[0].bytes == pytest.approx(8.0)


# Early rejection --------------------------------------------------------------------------------------------------


@both
def test_a_request_that_would_be_late_is_turned_away(simulate: Simulate) -> None:
    """10 tokens a step, limit 2.05 s. At 0: 10 tokens, 1 s; 10 more, 2 s; 10 more would be 3 s. At 1.5 the second's
    step lasts for another 0.5 s: 5 tokens behind it make 1.0 s, and are there at 2.5; 12 more would be two steps of
    8.5 tokens, 0.5 + 1.7."""
    load = requests((0.0, 10, 1), (0.0, 10, 1), (0.0, 10, 1), (1.5, 5, 1), (1.5, 12, 1))
    outcome = simulate(*load, Aggregated((engine(budget=10),)), ttft_limit_s=2.05)
    assert outcome.refusal.tolist() == [SERVED, SERVED, TOO_LATE, SERVED, TOO_LATE]
    assert outcome.requests.ttft_s().tolist() == near(1.0, 2.0, 1.0)
    assert outcome.requests.rejected.tolist() == [2, 4]


@both
@pytest.mark.parametrize(("limit_s", "refused"), [(4.6, False), (4.5, True)])
def test_the_prediction_counts_decodes_caches_and_transfers(
    simulate: Simulate, limit_s: float, refused: bool
) -> None:
    """Prefill 17 tokens, then B: at 10 it has 16 tokens cached, 9 to compute: 0.9 s; 24 tokens over the wire at 8
    bytes/s: 3 s; message 0.65 s: 4.55 s. (Its pull is shorter in the end: the decode side has 16 of them.)"""
    load = requests((0.0, 17, 1), (10.0, 25, 1))
    hand_off = HandOff(PULL, 1.0, message_s=0.65)
    classes = [RequestClass("first", ttft_limit_s=100.0), RequestClass("second")]
    outcome = simulate(
        *load,
        Disaggregated((engine(),), (engine(),), hand_off, wire(8.0)),
        prefix=prompts_of(load, A, B),
        request_class=np.array([0, 1]),
        classes=classes,
        ttft_limit_s=limit_s,
    )
    assert outcome.refusal.tolist() == [SERVED, TOO_LATE if refused else SERVED]


@both
def test_a_decode_row_for_each_running_request(simulate: Simulate) -> None:
    """Budget 10; one request decodes (4 + 100 tokens). At 1.05 its step lasts until 1.1, and leaves 9 tokens a step: 18
    tokens are two steps of 9 + 1: 0.05 + 2.0 s."""
    load = requests((0.0, 4, 100), (1.05, 18, 1))
    for limit_s, refusal in ((2.06, SERVED), (2.04, TOO_LATE)):
        outcome = simulate(*load, Aggregated((engine(budget=10, caches=False),)), ttft_limit_s=limit_s)
        assert outcome.refusal.tolist() == [SERVED, refusal]
        if refusal == SERVED:
            assert outcome.requests.ttft_s()[1] == pytest.approx(2.05)


def test_where_the_prediction_is_exact_nobody_who_is_accepted_is_late() -> None:
    """One prompt of one step, one output, in order of arrival: what is ahead is all that is waited for."""
    rng = np.random.default_rng(5)
    count, limit_s = 20_000, 4.0
    load = np.cumsum(rng.exponential(0.8, count)), np.full(count, 8), np.ones(count, dtype=np.int64), None
    replica = replace(engine(budget=8, caches=False), step_time=constant_model(1.0))
    outcome = cluster.simulate(*load, Aggregated((replica,)), ttft_limit_s=limit_s)
    late = outcome.refusal == TOO_LATE
    assert 0.2 < late.mean() < 0.3  # 1.25 requests a second come, 1 is served
    assert outcome.requests.ttft_s().max() <= limit_s + 1e-6
    assert outcome.requests.ttft_s().max() > limit_s - 0.1
    everybody = cluster.simulate(*load, Aggregated((replica,)))
    assert everybody.requests.ttft_s().max() > 1_000.0


# Classes ----------------------------------------------------------------------------------------------------------


@both
def test_classes_give_priorities_and_limits(simulate: Simulate) -> None:
    """One seat, steps of 1 s. At 0 two of the class that can wait and one that goes first: 1, then 2 and 3."""
    replica = replace(engine(seats=1, policy="priority"), step_time=constant_model(1.0))
    classes = [RequestClass("chat", 0), RequestClass("batch", 5)]
    load = requests((0.0, 4, 1), (0.0, 4, 1), (0.0, 4, 1))
    kinds = np.array([1, 1, 0])
    outcome = simulate(*load, Aggregated((replica,)), request_class=kinds, classes=classes)
    assert outcome.requests.done_s.tolist() == near(2.0, 3.0, 1.0)
    assert outcome.request_class.tolist() == [1, 1, 0]
    strict = [RequestClass("chat", 0, ttft_limit_s=0.5), RequestClass("batch", 5)]
    outcome = simulate(*load, Aggregated((replica,)), request_class=kinds, classes=strict)
    assert outcome.refusal.tolist() == [SERVED, SERVED, TOO_LATE]


def test_what_cannot_be() -> None:
    load = requests((0.0, 4, 1), (0.0, 4, 1))
    deployment = Aggregated((engine(),))
    two = [RequestClass("chat"), RequestClass("batch", 1)]
    for message, settings in (
        ("request_class 2 does not exist .first at position 1", {"request_class": [0, 2], "classes": two}),
        ("request_class has 1 entries", {"request_class": [0]}),
        ("ttft_limit_s must be positive, not 0.0", {"ttft_limit_s": 0.0}),
    ):
        with pytest.raises(ValueError, match=message):
            cluster.simulate(*load, deployment, **settings)
    with pytest.raises(ValueError, match="either a priority for each request or classes"):
        cluster.simulate(*load[:3], np.zeros(2, dtype=np.int64), deployment, classes=two)
    with pytest.raises(ValueError, match="of class chat must be positive"):
        RequestClass("chat", ttft_limit_s=-1.0)
    with pytest.raises(ValueError, match="prefix_pool needs replicas that cache prefixes"):
        Aggregated((engine(caches=False),), prefix_pool=pool())
    with pytest.raises(ValueError, match="needs the trace's prefix, not an assumed_hit_share"):
        cluster.simulate(*load, Aggregated((engine(),), prefix_pool=pool()), assumed_hit_share=0.5)
    with pytest.raises(ValueError, match="overlap_weight must be finite and not negative"):
        Aggregated((engine(),), overlap_weight=-1.0)
    with pytest.raises(ValueError, match="blocks of the prefix pool must be at least 1"):
        pool(0)
    with pytest.raises(ValueError, match="bytes_per_s of the prefix pool must be positive"):
        PrefixPool(TransferTable.line(0.0, 1.0), 0.0, 1.0)
    passed = cluster.simulate(*load, deployment, request_class=np.array([7, 3]))
    assert passed.request_class.tolist() == [7, 3]
    assert not math.isnan(passed.requests.done_s[1])
