"""Clusters whose every moment was worked out on paper first; the arithmetic is in the comments.

Unless said: scheduling is synchronous, a block holds 4 tokens, KV caches have 1 byte per token, messages take no time,
and a request pulls all of its prompt but the last token.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from calibration.steptime.scalar import constant_model
from calibration.transfer import TransferTable
from planner.simulation.cluster import reference
from planner.simulation.cluster.deployment import (
    AFTER_PREFILL,
    LEAST_TOKENS,
    PULL,
    PUSH_CHUNKS,
    Aggregated,
    Disaggregated,
    HandOff,
    Loss,
    Network,
    QueueLimit,
    Replica,
)
from planner.simulation.cluster.order import NO_REPLICA, QUEUE_FULL, SERVED
from planner.simulation.cluster.outcome import ClusterOutcome
from planner.simulation.kernel import cluster
from planner.simulation.knobs import VllmKnobs

both = pytest.mark.parametrize(
    "simulate", [reference.simulate, cluster.simulate], ids=["reference", "kernel"]
)
Simulate = Callable[..., ClusterOutcome]


def engine(step_s: float, *, budget: int = 10_000, blocks: int = 100_000, seats: int = 100) -> Replica:
    knobs = VllmKnobs(budget, seats, num_blocks=blocks, block_size=4, async_scheduling=False)
    return Replica(knobs, constant_model(step_s))


def wire(bytes_per_s: float, **limits: float) -> Network:
    return Network(TransferTable.line(limits.pop("latency_s", 0.0), bytes_per_s), **limits)


def requests(*rows: tuple[float, int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, None]:
    """(arrival_s, prompt, output) each."""
    arrival, prompt, output = zip(*rows, strict=True)
    return np.array(arrival, dtype=np.float64), np.array(prompt), np.array(output), None


def near(*values: float) -> object:
    return pytest.approx(list(values), abs=1e-6, nan_ok=True)


# Two transfers share a link ---------------------------------------------------------------------------------------

# A: 1,001 tokens, on prefill replica 0 from 0.0 to 1.0. B: 2,001 tokens, on replica 1 from 0.5 to 1.5.
# A million bytes per token, so A pulls 1e9 bytes and B 2e9; a transfer alone reaches 1e9 bytes/s.
SHARED = requests((0.0, 1001, 1), (0.5, 2001, 1))
MEGABYTE_TOKENS = HandOff(PULL, 1e6)


@both
def test_two_transfers_share_the_fabric(simulate: Simulate) -> None:
    """A has the fabric to itself from 1.0 to 1.5 (0.5e9 moved), then half of it: the other 0.5e9 take until 2.5. B has
    moved 0.5e9 by then and has the fabric to itself again: the other 1.5e9 take until 4.0."""
    deployment = Disaggregated(
        (engine(1.0), engine(1.0)), (engine(0.25),), MEGABYTE_TOKENS, wire(1e9, fabric_bytes_per_s=1e9)
    )
    outcome = simulate(*SHARED, deployment)
    assert outcome.transfer_start_s.tolist() == near(1.0, 1.5)
    assert outcome.kv_ready_s.tolist() == near(2.5, 4.0)
    assert outcome.requests.first_token_s.tolist() == near(2.75, 4.25)
    parts = outcome.ttft_parts_s()
    assert parts["queue"].tolist() == near(0.0, 0.0)
    assert parts["prefill"].tolist() == near(1.0, 1.0)
    assert parts["transfer"].tolist() == near(1.5, 2.5)
    assert parts["first decode"].tolist() == near(0.25, 0.25)
    (fabric,) = outcome.links
    assert (fabric.name, fabric.bytes, fabric.transfers) == ("fabric", pytest.approx(3e9), 2)
    assert fabric.busy_s == pytest.approx(3.0)  # 1.0 to 4.0, always full: 3e9 bytes in 3 s
    assert outcome.makespan_s == pytest.approx(4.25)
    assert fabric.occupancy(outcome.makespan_s) == pytest.approx(3 / 4.25)


@both
def test_latency_does_not_load_the_link(simulate: Simulate) -> None:
    """Everything 0.1 s later: A loads the fabric from 1.1, B from 1.6."""
    deployment = Disaggregated(
        (engine(1.0), engine(1.0)),
        (engine(0.25),),
        MEGABYTE_TOKENS,
        wire(1e9, latency_s=0.1, fabric_bytes_per_s=1e9),
    )
    outcome = simulate(*SHARED, deployment)
    assert outcome.kv_ready_s.tolist() == near(2.6, 4.1)
    assert outcome.links[0].busy_s == pytest.approx(3.0)


@both
@pytest.mark.parametrize("limit", ["pair_bytes_per_s", "host_bytes_per_s"])
def test_what_is_shared_depends_on_the_links(simulate: Simulate, limit: str) -> None:
    """With a way per pair nothing is shared: A ends at 2.0, B at 3.5. With a card per host, both come in by that of
    the decode host: as if it were the fabric."""
    deployment = Disaggregated(
        (engine(1.0), engine(1.0)), (engine(0.25),), MEGABYTE_TOKENS, wire(1e9, **{limit: 1e9})
    )
    outcome = simulate(*SHARED, deployment)
    if limit == "pair_bytes_per_s":
        assert outcome.kv_ready_s.tolist() == near(2.0, 3.5)
        assert [link.name for link in outcome.links] == ["prefill 0 to decode 0", "prefill 1 to decode 0"]
    else:
        assert outcome.kv_ready_s.tolist() == near(2.5, 4.0)
        incoming = next(link for link in outcome.links if link.name == "into host of decode 0")
        assert incoming.bytes == pytest.approx(3e9)


@both
def test_a_fast_wire_is_shared_only_beyond_what_one_transfer_reaches(simulate: Simulate) -> None:
    """The fabric carries 1.5e9 bytes/s, one transfer 1e9. A alone from 1.0: 0.5e9 by 1.5. Together 0.75e9 each: A's
    other 0.5e9 take 2/3 s, until 13/6. B has 0.5e9 by then, and 1.5e9 to go at its own 1e9: until 11/3."""
    deployment = Disaggregated(
        (engine(1.0), engine(1.0)), (engine(0.25),), MEGABYTE_TOKENS, wire(1e9, fabric_bytes_per_s=1.5e9)
    )
    outcome = simulate(*SHARED, deployment)
    assert outcome.kv_ready_s.tolist() == near(13 / 6, 11 / 3)


@both
def test_replicas_on_one_host_use_neither_card_nor_fabric(simulate: Simulate) -> None:
    sender, receiver = engine(1.0), engine(0.25)
    together = tuple(Replica(replica.knobs, replica.step_time, host=7) for replica in (sender, receiver))
    network = wire(1e9, host_bytes_per_s=1e8, fabric_bytes_per_s=1e8)
    apart = simulate(*SHARED, Disaggregated((sender,), (receiver,), MEGABYTE_TOKENS, network))
    outcome = simulate(*SHARED, Disaggregated(together[:1], together[1:], MEGABYTE_TOKENS, network))
    # one prefill replica: A from 0.0 to 1.0, B from 1.0 to 2.0; transfers of 1 s and 2 s at 1e9 bytes/s
    assert outcome.kv_ready_s.tolist() == near(2.0, 4.0)
    assert outcome.links == ()
    assert apart.kv_ready_s[0] == pytest.approx(11.0 + 9.0)  # 1e8 alone for 1 s, then half of it for 18 s


# Push per chunk ---------------------------------------------------------------------------------------------------

# 400 tokens in four steps of 100 tokens and 1 s; 100 tokens take 0.5 s on the wire.
LONG_PROMPT = requests((0.0, 400, 3))


def four_steps(hand_off: HandOff, bytes_per_s: float = 200.0) -> Disaggregated:
    return Disaggregated((engine(1.0, budget=100),), (engine(0.25),), hand_off, wire(bytes_per_s))


@both
def test_push_per_chunk_exposes_only_the_last_transfer(simulate: Simulate) -> None:
    """The decode side has room at once, the prefill runs 0 to 4; chunks are on the wire 1-1.5, 2-2.5, 3-3.5, 4-4.5.
    The first token counts at 4.5; the decode side's steps 4.5-4.75 and 4.75-5 emit the other two."""
    outcome = simulate(*LONG_PROMPT, four_steps(HandOff(PUSH_CHUNKS, 1.0)))
    assert outcome.requests.prefill_end_s.tolist() == near(4.0)
    assert outcome.kv_ready_s.tolist() == near(4.5)
    assert outcome.requests.first_token_s.tolist() == near(4.5)
    assert outcome.requests.done_s.tolist() == near(5.0)
    assert outcome.requests.max_gap_s.tolist() == near(0.25)
    assert outcome.transfer_s().tolist() == near(0.5)
    assert outcome.first_decode_s().tolist() == near(0.0)
    assert outcome.moved_bytes.tolist() == near(400.0)


@both
def test_after_the_prefill_the_whole_transfer_is_waited_for(simulate: Simulate) -> None:
    """The first token is out at 4; 400 tokens take 2 s, so the second comes from the step 6-6.25."""
    outcome = simulate(*LONG_PROMPT, four_steps(HandOff(AFTER_PREFILL, 1.0)))
    assert outcome.requests.first_token_s.tolist() == near(4.0)
    assert outcome.kv_ready_s.tolist() == near(6.0)
    assert outcome.requests.max_gap_s.tolist() == near(2.25)
    assert outcome.requests.done_s.tolist() == near(6.5)
    assert outcome.ttft_parts_s()["transfer"].tolist() == near(0.0)
    assert outcome.transfer_s().tolist() == near(2.0)


@both
def test_a_pull_ends_with_a_step_of_the_decode_side(simulate: Simulate) -> None:
    """399 tokens take 1.995 s; the step 5.995-6.245 emits the first token."""
    outcome = simulate(*LONG_PROMPT, four_steps(HandOff(PULL, 1.0)))
    assert outcome.kv_ready_s.tolist() == near(5.995)
    assert outcome.requests.first_token_s.tolist() == near(6.245)
    assert outcome.requests.done_s.tolist() == near(6.745)


@both
def test_a_wire_slower_than_the_prefill_exposes_more(simulate: Simulate) -> None:
    """1.5 s per 100 tokens: 1-2.5, 2.5-4, 4-5.5, 5.5-7, one after the other."""
    outcome = simulate(*LONG_PROMPT, four_steps(HandOff(PUSH_CHUNKS, 1.0), bytes_per_s=100 / 1.5))
    assert outcome.kv_ready_s.tolist() == near(7.0)
    assert outcome.transfer_start_s.tolist() == near(5.5)


@both
@pytest.mark.parametrize(
    ("chunk_tokens", "ready_s"),
    [
        (200, 5.0),  # 200 tokens at 2 (until 3), the other 200 at 4 (until 5)
        (150, 4.5),  # 150 at 2, 150 at 3, the last 100 at 4
        (1_000, 6.0),  # all 400 at 4: as after the prefill
    ],
)
def test_the_size_of_a_transfer_chunk(simulate: Simulate, chunk_tokens: int, ready_s: float) -> None:
    outcome = simulate(*LONG_PROMPT, four_steps(HandOff(PUSH_CHUNKS, 1.0, chunk_tokens=chunk_tokens)))
    assert outcome.kv_ready_s.tolist() == near(ready_s)


@both
def test_a_push_waits_for_room_on_the_decode_side_before_the_prefill(simulate: Simulate) -> None:
    """The decode side has 6 blocks. A (prompt 16, 4 outputs) takes 5 of them at 0 (prompt and first output), B waits.
    Word takes 0.5 s: A's prefill 0.5-1.5, 16 tokens on the wire 1.5-2.5 (first token), decode steps 2.5-3.5 .. 4.5-5.5.
    At 5.5 B gets its blocks; its prefill runs 6-7, the wire 7-8, and its only token came with the KV cache."""
    deployment = Disaggregated(
        (engine(1.0),), (engine(1.0, blocks=6),), HandOff(PUSH_CHUNKS, 1.0, message_s=0.5), wire(16.0)
    )
    outcome = simulate(*requests((0.0, 16, 4), (0.0, 16, 1)), deployment)
    assert outcome.requests.first_scheduled_s.tolist() == near(0.5, 6.0)
    assert outcome.kv_ready_s.tolist() == near(2.5, 8.0)
    assert outcome.requests.first_token_s.tolist() == near(2.5, 8.0)
    assert outcome.requests.done_s.tolist() == near(5.5, 8.0)
    assert outcome.decode[0].least_free_blocks == 1


# The decode side is full ------------------------------------------------------------------------------------------

# Four prompts of 16 tokens (4 blocks), one per prefill step of 1 s; 15 pulled tokens take 1 s; decode steps of 1 s.
# The prefill side has 8 blocks, the decode side 6.
CROWD = requests((0.0, 16, 8), (0.0, 16, 2), (0.0, 16, 1), (0.0, 16, 1))


def crowded(hand_off: HandOff) -> Disaggregated:
    prefill, decode = engine(1.0, budget=16, blocks=8), engine(1.0, budget=16, blocks=6)
    return Disaggregated((prefill,), (decode,), hand_off, wire(15.0))


@both
def test_a_full_decode_side_holds_up_the_prefill_side(simulate: Simulate) -> None:
    """A: prefill 0-1, pull 1-2, decode steps 2-3 .. 9-10 (5 blocks from its second step, 6 from its sixth).
    B: prefill 1-2, then waits with its 4 blocks held on the prefill side, because 4 are not free on the decode side.
    C: prefill 2-3 in the blocks that A's pull freed at 2, then the same. D finds no block on the prefill side.
    At 10 A is gone: B takes blocks, pull 10-11, decode 11-12 (first token) and 12-13. Its pull frees 4 blocks on the
    prefill side at 11: D's prefill 11-12. C: blocks at 13, pull 13-14, decode 14-15. D: 15, 15-16, 16-17."""
    outcome = simulate(*CROWD, crowded(HandOff(PULL, 1.0)))
    assert outcome.requests.first_scheduled_s.tolist() == near(0.0, 1.0, 2.0, 11.0)
    assert outcome.requests.prefill_end_s.tolist() == near(1.0, 2.0, 3.0, 12.0)
    assert outcome.transfer_start_s.tolist() == near(1.0, 10.0, 13.0, 15.0)
    assert outcome.kv_ready_s.tolist() == near(2.0, 11.0, 14.0, 16.0)
    assert outcome.requests.first_token_s.tolist() == near(3.0, 12.0, 15.0, 17.0)
    assert outcome.requests.done_s.tolist() == near(10.0, 13.0, 15.0, 17.0)
    assert outcome.prefill[0].least_free_blocks == 0
    assert outcome.lost_kv.tolist() == [0, 0, 0, 0]
    assert outcome.requests.preemptions.tolist() == [0, 0, 0, 0]


@both
def test_a_lease_that_runs_out(simulate: Simulate) -> None:
    """As before, but blocks nobody began to pull are given up 5.5 s after the prefill: B's at 7.5, C's at 8.5.
    D's prefill runs 7.5-8.5. At 10 the decode side computes B's prompt itself (16 tokens, first token 11), B ends at
    12; C's 12-13; D's blocks are held until 14: its pull begins at 13 and ends at 14, in time."""
    outcome = simulate(*CROWD, crowded(HandOff(PULL, 1.0, lease_s=5.5, lease_renewed=False)))
    assert outcome.requests.prefill_end_s.tolist() == near(1.0, 2.0, 3.0, 8.5)
    assert outcome.requests.first_token_s.tolist() == near(3.0, 11.0, 13.0, 15.0)
    assert outcome.requests.done_s.tolist() == near(10.0, 12.0, 13.0, 15.0)
    assert outcome.lost_kv.tolist() == [0, 1, 1, 0]
    assert outcome.transfer_start_s.tolist() == near(1.0, math.nan, math.nan, 13.0)
    parts = outcome.ttft_parts_s()  # B waited from 2 to 10 for its turn, and computed for a step
    assert parts["transfer"].tolist() == near(1.0, 8.0, 9.0, 5.5)
    assert parts["first decode"].tolist() == near(1.0, 1.0, 1.0, 1.0)


@both
def test_a_renewed_lease_does_not_run_out(simulate: Simulate) -> None:
    held = simulate(*CROWD, crowded(HandOff(PULL, 1.0)))
    renewed = simulate(*CROWD, crowded(HandOff(PULL, 1.0, lease_s=5.5)))
    assert renewed.requests.first_token_s.tolist() == held.requests.first_token_s.tolist()
    assert renewed.lost_kv.tolist() == [0, 0, 0, 0]


@both
def test_a_decode_side_that_reserves_outputs(simulate: Simulate) -> None:
    """10 blocks; A (16 + 8 tokens) reserves 6 and B (16 + 2) 5: B waits until A is gone. Prefill 0-1 and 1-2, A on the
    wire 1-2, decode 2-3 .. 8-9; B's blocks at 9, wire 9-10, decode 10-11. Without reservation both get 5 blocks
    (prompt and first output), B at 2, and when A wants its sixth, B loses its blocks."""
    load = requests((0.0, 16, 8), (0.0, 16, 8))
    prefill, decode = (engine(1.0, budget=16),), (engine(1.0, blocks=10),)
    reserved = HandOff(AFTER_PREFILL, 1.0, reserve_outputs=True)
    outcome = simulate(*load, Disaggregated(prefill, decode, reserved, wire(16.0)))
    assert outcome.requests.first_token_s.tolist() == near(1.0, 2.0)
    assert outcome.kv_ready_s.tolist() == near(2.0, 10.0)
    assert outcome.requests.done_s.tolist() == near(9.0, 17.0)
    assert outcome.requests.preemptions.tolist() == [0, 0]
    taken = simulate(*load, Disaggregated(prefill, decode, HandOff(AFTER_PREFILL, 1.0), wire(16.0)))
    assert taken.kv_ready_s.tolist() == near(2.0, 3.0)
    assert taken.requests.preemptions.tolist() == [0, 1]


@both
def test_tokens_reserved_for_each_request_on_the_decode_side(simulate: Simulate) -> None:
    """16 blocks, 8 tokens (2 blocks) reserved for each. A and B want 5 blocks each. A comes to an empty side: taken.
    B: 5 blocks and 2 x 2 reserved of the 11 that are free: taken. C: 5 and 3 x 2 of the 6 left: not before A is gone.
    Prefill ends at 1, 2, 3; wire 1-2, 2-3; A decodes 2-3 .. 4-5, B 3-4 .. 5-6. C's turn is at 5: wire 5-6, 6-7."""
    deployment = Disaggregated(
        (engine(1.0, budget=16),),
        (engine(1.0, blocks=16),),
        HandOff(AFTER_PREFILL, 1.0, reserved_tokens=8),
        wire(16.0),
    )
    outcome = simulate(*requests((0.0, 16, 4), (0.0, 16, 4), (0.0, 16, 2)), deployment)
    assert outcome.transfer_start_s.tolist() == near(1.0, 2.0, 5.0)
    assert outcome.requests.done_s.tolist() == near(5.0, 6.0, 7.0)


@both
def test_a_limit_of_requests_that_have_blocks_and_do_not_run(simulate: Simulate) -> None:
    """One at a time. 15 tokens take 2 s: A's pull 1-3, B's 3-5 (it is there at 2; at 3 A is seated, then B staged, in
    the same schedule), C's 5-7."""
    deployment = Disaggregated(
        (engine(1.0, budget=16),), (engine(1.0),), HandOff(PULL, 1.0, staging_requests=1), wire(7.5)
    )
    outcome = simulate(*requests((0.0, 16, 1), (0.0, 16, 1), (0.0, 16, 1)), deployment)
    assert outcome.transfer_start_s.tolist() == near(1.0, 3.0, 5.0)
    assert outcome.kv_ready_s.tolist() == near(3.0, 5.0, 7.0)


# Who goes where ---------------------------------------------------------------------------------------------------


@both
def test_a_short_prompt_is_prefilled_on_the_decode_pool(simulate: Simulate) -> None:
    """Up to 10 tokens. The short one: decode replica, 0-1 (its first token), 1-2. The long one (11 tokens): prefill
    0-1, pull of 10 tokens 1-2, decode step 2-3."""
    deployment = Disaggregated(
        (engine(1.0),), (engine(1.0),), HandOff(PULL, 1.0), wire(10.0), local_prefill_tokens=10
    )
    outcome = simulate(*requests((0.0, 10, 2), (0.0, 11, 1)), deployment)
    assert outcome.prefill_replica.tolist() == [-1, 0]
    assert outcome.decode_replica.tolist() == [0, 0]
    assert outcome.requests.first_token_s.tolist() == near(1.0, 3.0)
    assert outcome.requests.done_s.tolist() == near(2.0, 3.0)
    assert outcome.kv_ready_s.tolist() == near(math.nan, 2.0)
    assert outcome.handed_over.tolist() == [False, True]
    assert outcome.transfer_s().tolist() == near(0.0, 1.0)
    assert outcome.first_decode_s().tolist() == near(0.0, 1.0)


@both
def test_two_prefill_replicas_of_unequal_speed(simulate: Simulate) -> None:
    """Steps of 1 s and 3 s, one prompt each; decode 0.5 s. In turn: replica 0 has requests 0 (0-1) and 2 (1-2),
    replica 1 has 1 (0-3) and 3 (3-6). The wire takes no time to speak of."""
    deployment = Disaggregated(
        (engine(1.0, budget=16), engine(3.0, budget=16)), (engine(0.5),), HandOff(PULL, 1.0), wire(1e9)
    )
    outcome = simulate(*requests(*[(0.0, 16, 1)] * 4), deployment)
    assert outcome.prefill_replica.tolist() == [0, 1, 0, 1]
    assert outcome.requests.prefill_end_s.tolist() == near(1.0, 3.0, 2.0, 6.0)
    assert outcome.requests.first_token_s.tolist() == near(1.5, 3.5, 2.5, 6.5)
    assert outcome.idle_share("prefill") == pytest.approx(1 - (2 + 6) / (2 * 6.5))
    assert outcome.idle_share("decode") == pytest.approx(1 - 4 * 0.5 / 6.5)


@both
def test_the_router_that_counts_tokens_spares_the_slow_replica(simulate: Simulate) -> None:
    """The same replicas; two requests at 0, two at 1.5. By then replica 0 is done with its first (at 1), replica 1 is
    not: request 2 goes to 0 (1.5-2.5). For request 3 both have 16 tokens outstanding: the first is taken (2.5-3.5)."""
    replicas = (engine(1.0, budget=16), engine(3.0, budget=16))
    deployment = Disaggregated(
        replicas, (engine(0.5),), HandOff(PULL, 1.0), wire(1e9), prefill_router=LEAST_TOKENS
    )
    outcome = simulate(*requests((0.0, 16, 1), (0.0, 16, 1), (1.5, 16, 1), (1.5, 16, 1)), deployment)
    assert outcome.prefill_replica.tolist() == [0, 1, 0, 0]
    assert outcome.requests.prefill_end_s.tolist() == near(1.0, 3.0, 2.5, 3.5)


@both
def test_tokens_outstanding_on_aggregated_replicas(simulate: Simulate) -> None:
    """Two replicas, 1 s steps. A (10 + 3 tokens) on replica 0 until 3, B (10 + 1) on replica 1 until 1. C at 0.5 finds
    13 and 11: replica 1. D at 2 finds 13 and C's 2 + 9: replica 1 again."""
    deployment = Aggregated((engine(1.0), engine(1.0)), LEAST_TOKENS)
    outcome = simulate(*requests((0.0, 10, 3), (0.0, 10, 1), (0.5, 2, 9), (2.0, 1, 1)), deployment)
    assert outcome.decode_replica.tolist() == [0, 1, 1, 1]
    assert outcome.requests.done_s.tolist() == near(3.0, 1.0, 10.0, 3.0)


# A decode replica is lost -----------------------------------------------------------------------------------------


@both
def test_a_decode_replica_is_lost(simulate: Simulate) -> None:
    """Prefill steps of 1 s and one prompt, 15 pulled tokens in 1 s, decode steps of 1 s. Requests 0 and 2 go to decode
    replica 0, request 1 to replica 1; replica 0 is lost at 4.5.

    0: prefill 0-1, pull 1-2, tokens at 3, 4 and 5 (the step 4-5 was under way). At 5 it goes to replica 1 with 19
       known tokens, which are computed there in the step 5-6: its 4th token; 5th and 6th at 7 and 8.
    1: prefill 1-2, pull 2-3, tokens at 4, 5, 6, 7, 8, 9.
    2: prefill 3.3-4.3, reaches replica 0's queue at 4.3 and is not taken; at 5 it goes to replica 1, which takes it at
       once: pull 5-6, and its only token at 7."""
    deployment = Disaggregated(
        (engine(1.0, budget=16),),
        (engine(1.0, budget=32), engine(1.0, budget=32)),
        HandOff(PULL, 1.0),
        wire(15.0),
    )
    outcome = simulate(*requests((0.0, 16, 6), (0.0, 16, 6), (3.3, 16, 1)), deployment, losses=[Loss(4.5, 0)])
    assert outcome.decode_replica.tolist() == [1, 1, 1]
    assert outcome.requests.first_token_s.tolist() == near(3.0, 4.0, 7.0)
    assert outcome.requests.done_s.tolist() == near(8.0, 9.0, 7.0)
    assert outcome.kv_ready_s.tolist() == near(2.0, 3.0, 6.0)
    assert outcome.lost_kv.tolist() == [1, 0, 0]
    assert outcome.decode[0].busy_s == pytest.approx(3.0)  # 2-5
    # computed on replica 1: request 0's 19 tokens and 2 more, request 1's six rows, request 2's one
    assert outcome.decode[1].computed_tokens == 19 + 2 + 6 + 1


@both
def test_a_transfer_to_a_lost_replica_is_begun_again(simulate: Simulate) -> None:
    """Prefill 0-1, pull of 15 tokens 1-4 to replica 0, which is lost at 2: the pull begins again, 2-5, to replica 1."""
    deployment = Disaggregated(
        (engine(1.0),), (engine(1.0), engine(1.0)), HandOff(PULL, 1.0), wire(5.0, fabric_bytes_per_s=5.0)
    )
    outcome = simulate(*requests((0.0, 16, 2)), deployment, losses=[Loss(2.0, 0)])
    assert outcome.transfer_start_s.tolist() == near(2.0)
    assert outcome.kv_ready_s.tolist() == near(5.0)
    assert outcome.requests.done_s.tolist() == near(7.0)
    assert outcome.links[0].bytes == pytest.approx(5.0 + 15.0)
    assert outcome.lost_kv.tolist() == [0]


@both
def test_nobody_is_left(simulate: Simulate) -> None:
    """Two replicas, lost at 1.5 and 2.5. Request 0 has its second token at 2 on replica 0 and goes on on replica 1,
    which can still do the step 2-3; request 1 comes when nobody is there."""
    deployment = Aggregated((engine(1.0), engine(1.0)))
    outcome = simulate(*requests((0.0, 5, 9), (4.0, 5, 1)), deployment, losses=[Loss(1.5, 0), Loss(2.5, 1)])
    assert outcome.refusal.tolist() == [NO_REPLICA, NO_REPLICA]
    assert outcome.requests.rejected.tolist() == [0, 1]
    assert np.isnan(outcome.requests.done_s).all()
    assert outcome.decode[1].computed_tokens == 7


# Who may come -----------------------------------------------------------------------------------------------------


@both
def test_a_full_queue_turns_requests_away(simulate: Simulate) -> None:
    """One seat. Of five requests at 0, the first has its step at once but is still in the queue when the others come:
    two may wait, so three are turned away. At 0.5 the second waits: one more may come."""
    deployment = Aggregated((engine(1.0, seats=1),))
    load = requests(*[(0.0, 5, 1)] * 5, (0.5, 5, 1), (0.5, 5, 1))
    outcome = simulate(*load, deployment, queue_limit=QueueLimit(requests=2))
    refused = [SERVED, SERVED, QUEUE_FULL, QUEUE_FULL, QUEUE_FULL, SERVED, QUEUE_FULL]
    assert outcome.refusal.tolist() == refused
    assert outcome.requests.done_s.tolist() == near(1.0, 2.0, math.nan, math.nan, math.nan, 3.0, math.nan)
    by_tokens = simulate(*load, deployment, queue_limit=QueueLimit(tokens=10))
    assert by_tokens.refusal.tolist() == refused


@both
def test_a_closed_loop(simulate: Simulate) -> None:
    """Two clients, who think for 0.5 s; steps of 1 s. Requests 0 (2 outputs) and 1 (1) at 0; 1 is done at 1, so 2 (1)
    arrives at 1.5 and runs 2-3; 0 is done at 2, so 3 (1) arrives at 2.5 and runs 3-4."""
    deployment = Aggregated((engine(1.0),))
    load = requests((0.0, 5, 2), (0.0, 5, 1), (0.0, 5, 1), (0.0, 5, 1))
    outcome = simulate(*load, deployment, concurrency=2, think_s=0.5)
    assert outcome.requests.arrival_s.tolist() == near(0.0, 0.0, 1.5, 2.5)
    assert outcome.requests.first_scheduled_s.tolist() == near(0.0, 0.0, 2.0, 3.0)
    assert outcome.requests.done_s.tolist() == near(2.0, 1.0, 3.0, 4.0)


@both
def test_the_warm_up_is_not_measured(simulate: Simulate) -> None:
    """Request 0 has gaps at 2, 3, 4 (three of 1 s); request 1 arrives at 2.5, in the step 2-3, whose gap was counted
    before: from then on there are the gaps of the steps 3-4 (request 0) and 4-5 (request 1)."""
    deployment = Aggregated((engine(1.0),))
    load = requests((0.0, 5, 4), (2.5, 5, 2))
    outcome = simulate(*load, deployment, warm_up_requests=1)
    measured = outcome.measured()
    assert measured.ttft_s().tolist() == near(1.5)
    assert measured.gap_counts.sum() == 2
    assert outcome.requests.ttft_s().tolist() == near(1.0, 1.5)
