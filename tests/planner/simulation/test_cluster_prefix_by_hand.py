"""Prefix caches in clusters, worked out on paper first; the arithmetic is in the comments.

Scheduling is synchronous, a block holds 4 tokens, KV caches have 1 byte per token, messages take no time. A step takes
0.1 s for each of its tokens. Prompts are told apart by one hash for each block of 4.
"""

from __future__ import annotations

import math

import pytest

from planner.simulation.cluster.deployment import (
    AFTER_PREFILL,
    PULL,
    PUSH_CHUNKS,
    Aggregated,
    Disaggregated,
    HandOff,
    Loss,
)
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


@both
def test_every_replica_has_a_cache_of_its_own(simulate: Simulate) -> None:
    """In turn: A to replica 0 (1.7 s), B to replica 1, which has nothing of it (2.5 s), C to replica 0, which has the
    four blocks of A that are full: one token is left (0.1 s)."""
    outcome = simulate(*FAR_APART, Aggregated((engine(), engine())), prefix=prompts_of(FAR_APART, A, B, A))
    assert outcome.requests.hit_tokens.tolist() == [0, 0, 16]
    assert outcome.requests.ttft_s().tolist() == near(1.7, 2.5, 0.1)
    assert outcome.requests.hit_rate == pytest.approx(16 / 59)
    alone = simulate(*FAR_APART, Aggregated((engine(),)), prefix=prompts_of(FAR_APART, A, B, A))
    assert alone.requests.hit_tokens.tolist() == [0, 16, 16]


@both
def test_a_pull_brings_only_what_the_decode_side_lacks(simulate: Simulate) -> None:
    """A: prefill 0-1.7, pull of 16 tokens (all but the last) 1.7-2.7, decode step until 2.8.
    B: the prefill side has 16 tokens of it, 9 are computed: 10-10.9. So has the decode side, A's: of the 24 to be
    pulled 8 come, 10.9-11.4. Step until 11.5.
    C: one token is computed, 20-20.1; the decode side has all 16: it is ready when it is staged. Step until 20.2."""
    deployment = Disaggregated(
        (engine(),), (engine(),), HandOff(PULL, 1.0), wire(16.0, fabric_bytes_per_s=100.0)
    )
    outcome = simulate(*FAR_APART, deployment, prefix=prompts_of(FAR_APART, A, B, A))
    assert outcome.requests.hit_tokens.tolist() == [0, 16, 16]
    assert outcome.present_tokens.tolist() == [0, 16, 16]
    assert outcome.moved_bytes.tolist() == near(16.0, 8.0, 0.0)
    assert outcome.requests.prefill_end_s.tolist() == near(1.7, 10.9, 20.1)
    assert outcome.kv_ready_s.tolist() == near(2.7, 11.4, 20.1)
    assert outcome.requests.first_token_s.tolist() == near(2.8, 11.5, 20.2)
    assert (outcome.links[0].transfers, outcome.links[0].bytes) == (2, pytest.approx(24.0))


@both
def test_a_decode_side_without_a_cache_pulls_everything(simulate: Simulate) -> None:
    deployment = Disaggregated((engine(),), (engine(caches=False),), HandOff(PULL, 1.0), wire(16.0))
    outcome = simulate(*FAR_APART, deployment, prefix=prompts_of(FAR_APART, A, B, A))
    assert outcome.requests.hit_tokens.tolist() == [0, 16, 16]
    assert outcome.moved_bytes.tolist() == near(16.0, 24.0, 16.0)
    assert outcome.present_tokens.tolist() == [0, 0, 0]


@both
def test_two_prompts_share_blocks_on_a_decode_side_that_has_few(simulate: Simulate) -> None:
    """6 blocks. A (16 tokens, 9 outputs) and D, the same prompt, 2 outputs. A: prefill 0-1.6, pull of 15 tokens
    1.6-2.6. D: the prefill side has three blocks of it (one token is left to compute, so not the fourth): 4 tokens,
    1.6-2.0. On the decode side D wants 4 blocks. At 2.0 two are free, and A's are on their way: nobody can hit them. At
    2.6 A is seated and its blocks have names; hand-offs are staged after it, in the same schedule: D finds three that A
    holds and takes one: pull of 15 - 12 = 3 tokens, 2.6-2.8.
    Steps: 2.6-2.7 A; 2.7-2.8 A, which takes the last free block; 2.8-3.0 A and D (first token). At 3.0 D wants a fifth
    block, there is none, and it loses its own: A alone, 3.0-3.1. Then all 16 tokens of D's prompt are found in A's
    blocks, its own is free again: 3.1-3.3 A and D, which is done; A four more times alone, until 3.7."""
    load = requests((0.0, 16, 9), (0.0, 16, 2))
    same = (1, 2, 3, 4)
    deployment = Disaggregated((engine(budget=16),), (engine(blocks=6),), HandOff(PULL, 1.0), wire(15.0))
    outcome = simulate(*load, deployment, prefix=prompts_of(load, same, same))
    assert outcome.requests.hit_tokens.tolist() == [0, 12]
    assert outcome.requests.prefill_end_s.tolist() == near(1.6, 2.0)
    assert outcome.present_tokens.tolist() == [0, 12]
    assert outcome.kv_ready_s.tolist() == near(2.6, 2.8)
    assert outcome.requests.first_token_s.tolist() == near(2.7, 3.0)
    assert outcome.requests.preemptions.tolist() == [0, 1]
    assert outcome.requests.rehit_tokens.tolist() == [0, 16]
    assert outcome.requests.done_s.tolist() == near(3.7, 3.3)


@both
def test_a_push_sends_only_chunks_that_the_decode_side_lacks(simulate: Simulate) -> None:
    """A: 8 tokens a step, 0-0.8, 0.8-1.6, 1.6-1.7; on the wire (8 bytes/s) 0.8-1.8, 1.8-2.8, 2.8-2.925.
    B: 16 tokens hit on the prefill side, 9 left: 10-10.8 and 10.8-10.9. The decode side has 16 tokens: nothing to
    send before 10.8, when 24 are computed: 10.8-11.8, then the last, 11.8-11.925.
    C: one token, 20-20.1, and all but that one are there: on the wire 20.1-20.225."""
    deployment = Disaggregated((engine(budget=8),), (engine(),), HandOff(PUSH_CHUNKS, 1.0), wire(8.0))
    outcome = simulate(*FAR_APART, deployment, prefix=prompts_of(FAR_APART, A, B, A))
    assert outcome.present_tokens.tolist() == [0, 16, 16]
    assert outcome.moved_bytes.tolist() == near(17.0, 9.0, 1.0)
    assert outcome.requests.first_token_s.tolist() == near(2.925, 11.925, 20.225)


@both
def test_a_push_of_a_prompt_that_is_all_there(simulate: Simulate) -> None:
    """16 tokens, four full blocks on the decode side; the prefill side computes the last one's tokens again."""
    load = requests((0.0, 16, 2), (10.0, 16, 2))
    deployment = Disaggregated((engine(),), (engine(),), HandOff(PUSH_CHUNKS, 1.0), wire(8.0))
    outcome = simulate(*load, deployment, prefix=prompts_of(load, (1, 2, 3, 4), (1, 2, 3, 4)))
    assert outcome.present_tokens.tolist() == [0, 16]
    assert outcome.requests.prefill_end_s.tolist() == near(1.6, 10.4)
    assert outcome.requests.first_token_s.tolist() == near(3.6, 10.4)
    assert outcome.requests.done_s.tolist() == near(3.7, 10.5)


@both
def test_a_lost_replica_takes_its_cache_with_it(simulate: Simulate) -> None:
    """After the prefill: C would find A's blocks on replica 0, but that is lost at 15."""
    deployment = Disaggregated((engine(),), (engine(), engine()), HandOff(AFTER_PREFILL, 1.0), wire(8.0))
    load = requests((0.0, 17, 2), (10.0, 17, 2), (20.0, 17, 2), (30.0, 17, 2))
    found = prompts_of(load, A, (11, 12, 13, 14, 15), A, A)
    outcome = simulate(*load, deployment, prefix=found)
    assert outcome.decode_replica.tolist() == [0, 1, 0, 1]
    assert outcome.present_tokens.tolist() == [0, 0, 16, 0]
    lost = simulate(*load, deployment, prefix=found, losses=[Loss(15.0, 0)])
    assert lost.decode_replica.tolist() == [0, 1, 1, 1]
    assert lost.present_tokens.tolist() == [0, 0, 0, 16]


@both
def test_an_assumed_share_is_cached_where_prompts_are_computed(simulate: Simulate) -> None:
    """Half of all prompt tokens, in whole blocks: 8 of 17, then 12 of 25 (21 in all, 20 in blocks), 8 of 17. The decode
    side is assumed to have nothing."""
    deployment = Disaggregated((engine(),), (engine(),), HandOff(PULL, 1.0), wire(16.0))
    outcome = simulate(*FAR_APART, deployment, assumed_hit_share=0.5)
    assert outcome.requests.hit_tokens.tolist() == [8, 12, 8]
    assert outcome.requests.prefill_end_s.tolist() == near(0.9, 11.3, 20.9)
    assert outcome.moved_bytes.tolist() == near(16.0, 24.0, 16.0)


def test_replicas_that_cache_must_agree_on_the_size_of_a_block() -> None:
    load = requests((0.0, 17, 1))
    with pytest.raises(ValueError, match=r"blocks of one size, not of \[4, 8\] tokens"):
        cluster.simulate(*load, Aggregated((engine(), engine(block=8))))
    with pytest.raises(ValueError, match="assumed_hit_share needs prefix_caching"):
        cluster.simulate(*load, Aggregated((engine(caches=False),)), assumed_hit_share=0.5)
    mixed = cluster.simulate(*load, Aggregated((engine(), engine(caches=False, block=8))))
    assert not math.isnan(mixed.requests.done_s[0])
