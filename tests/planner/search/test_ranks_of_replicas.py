"""Replicas of several ranks: what pools hand over is what all ranks of the receiving replica keep, copies included."""

from __future__ import annotations

from dataclasses import replace

import pytest

from calibration.capacity import KVCapacity
from calibration.transfer import TransferTable
from planner.search import Conditions, Link, SearchSpace, parse_objectives, prepare
from planner.search.combinations import Candidate
from planner.search.evaluate import run
from planner.search.hardware import Hardware
from planner.search.what_if import bench_at, reopen

SPACE = SearchSpace((256, 1024), max_num_seqs=(16, 64), max_replicas=3, local_prefill_tokens=(0,))
GOALS = parse_objectives(["ttft:p95:1", "itl:p99:1"])
#: Of one rank and of the whole of two, as measured with two at once: 2 GB/s together.
MEASURED = Link(TransferTable.measured((1e6, 1e9), (5e-4, 0.5), latency_s=0.0, label="two ranks", ranks=2))
POOL = KVCapacity.constant(40_000)


def question(architecture, model, traffic, capacity, second=None):
    return prepare(
        traffic(requests=60, rate_per_s=3.0), model, capacity, architecture, GOALS, SPACE,
        conditions=Conditions(link=MEASURED), second=second, max_model_len=8192, refits=0, device="A",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kv_heads", "ranks", "heads_kept"), [(8, 1, 8), (8, 4, 8), (2, 2, 2), (2, 4, 4), (1, 8, 8)]
)
def test_a_hand_over_moves_what_all_ranks_keep(
    architecture, model, traffic, kv_heads, ranks, heads_kept
) -> None:
    few = replace(architecture, kv_heads=kv_heads)
    hand = question(few, model, traffic, replace(POOL, ranks=ranks)).hand
    token_bytes = 2 * few.layers * heads_kept * few.head_dim * 2
    assert hand.bench.bytes_per_token == token_bytes
    pools = hand.pairs[0]
    ran = run(hand.bench, Candidate(pools.decode, 2, pools, 1))
    moved_tokens = (
        hand.bench.requests.prompt_tokens - 1
    ).sum()  # vLLM's decode pool computes the last one itself
    assert ran.moved_bytes == pytest.approx(moved_tokens * token_bytes)


def test_the_receiving_kind_decides(architecture, model, traffic) -> None:
    """One KV head: a rank alone keeps one, each of four a copy. Whoever decodes has them brought."""
    one = replace(architecture, kv_heads=1)
    four = Hardware("B", model, replace(POOL, ranks=4))
    hand = question(one, model, traffic, POOL, four).hand
    found = {
        (pools.prefill_kind, pools.decode_kind): hand.bench.moved_per_token(pools) for pools in hand.pairs
    }
    alone = float(one.kv_bytes_per_token())
    assert found == {(0, 0): alone, (1, 0): alone, (0, 1): 4 * alone, (1, 1): 4 * alone}


def test_a_plan_opened_again_moves_the_same(architecture, model, traffic) -> None:
    one = replace(architecture, kv_heads=1)
    asked = question(
        one, model, traffic, replace(POOL, ranks=2), Hardware("B", model, replace(POOL, ranks=4))
    )
    kinds = [KVCapacity.from_dict(kind["kv_capacity"]) for kind in asked.inputs["hardware"]]
    assert [pool.ranks for pool in kinds] == [2, 4]
    pools = asked.hand.pairs[0]
    subject = reopen(
        traffic(requests=60, rate_per_s=3.0), model.arrays(), KVCapacity.from_dict(asked.inputs["kv_capacity"]), one,
        GOALS, SPACE, Conditions(link=MEASURED), Candidate(pools.decode, 2, pools, 1), max_model_len=8192,
        second=(model.arrays(), kinds[1]), names=("A", "B"),
    )  # fmt: skip
    there = bench_at(subject, subject.start)
    for each in asked.hand.pairs:
        assert there.moved_per_token(each) == asked.hand.bench.moved_per_token(each)
