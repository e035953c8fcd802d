"""The prefix cache on schedules worked out by hand, and what must hold for it on any workload.

Blocks have 4 tokens unless said. A row is (request, kind, tokens, tokens cached before). In the comments, the
free queue is written as fresh blocks (without content worth keeping) + least recently used first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from planner.simulation import kernel, reference
from planner.simulation.knobs import VllmKnobs
from planner.simulation.outcome import Outcome
from planner.simulation.prefix import PrefixBlocks, blocks_of
from planner.traffic.model import PrefixHashes

SIMULATE = {"reference": reference.simulate, "kernel": kernel.simulate}
BY = pytest.mark.parametrize("by", SIMULATE)
BLOCK = 4


@dataclass
class R:
    """A request; `ids`: the hashes of its prompt's blocks."""

    name: str
    arrive: int
    prompt: int
    out: int
    ids: list[int] = field(default_factory=list)


def run(by: str, requests: list[R], blocks: int, budget: int = 64, **others: Any) -> Outcome:
    knobs = VllmKnobs(
        budget, 100, blocks, block_size=BLOCK, **{"async_scheduling": False, "prefix_caching": True} | others
    )
    prompts = np.array([request.prompt for request in requests])
    return SIMULATE[by](
        np.array([float(request.arrive) for request in requests]),
        prompts,
        np.array([request.out for request in requests]),
        None,
        knobs,
        clock="steps",
        record_steps=True,
        prefix=blocks_of(
            hashes([request.ids for request in requests], BLOCK), prompts, BLOCK, knobs.profile.named_ahead
        ),
    )


def hashes(ids: list[list[int]], block_tokens: int) -> PrefixHashes:
    flat = np.array([name for row in ids for name in row], dtype=np.uint64)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in ids])]).astype(np.int64)
    return PrefixHashes(flat, offsets, block_tokens)


def steps(outcome: Outcome, requests: list[R]) -> list[list[tuple[str, str, int, int]]]:
    record = outcome.record
    assert record is not None
    rows = [
        (requests[request].name, "D" if decode else "P", tokens, cached)
        for request, decode, tokens, cached in zip(
            record.request.tolist(),
            record.decode.tolist(),
            record.tokens.tolist(),
            record.cached.tolist(),
            strict=True,
        )
    ]
    return [rows[record.offsets[k] : record.offsets[k + 1]] for k in range(len(record.free_blocks))]


def free(outcome: Outcome) -> list[int]:
    assert outcome.record is not None
    return outcome.record.free_blocks.tolist()


@BY
def test_a_prompt_shares_the_blocks_of_one_that_runs(by: str) -> None:
    requests = [R("A", 0, 10, 3, [1, 2]), R("B", 1, 12, 2, [1, 2, 3])]
    outcome = run(by, requests, blocks=20)
    assert steps(outcome, requests) == [
        [("A", "P", 10, 0)],
        [("A", "D", 1, 10), ("B", "P", 4, 8)],  # B: 2 blocks of A and 1 of its own
        [("A", "D", 1, 11), ("B", "D", 1, 12)],
    ]
    assert free(outcome) == [17, 16, 15]
    assert outcome.hit_tokens.tolist() == [0, 8]
    assert outcome.rehit_tokens.tolist() == [0, 0]
    assert outcome.hit_rate == 8 / 22


@BY
def test_at_least_one_token_is_computed_so_a_whole_hit_recomputes_the_last_block(by: str) -> None:
    requests = [R("A", 0, 8, 1, [1, 2]), R("B", 1, 8, 1, [1, 2]), R("C", 2, 8, 1, [1, 2])]
    outcome = run(by, requests, blocks=20)
    assert steps(outcome, requests) == [[("A", "P", 8, 0)], [("B", "P", 4, 4)], [("C", "P", 4, 4)]]
    assert free(outcome) == [18, 18, 18]
    assert outcome.hit_tokens.tolist() == [0, 4, 4]


@BY
def test_a_block_is_there_to_hit_once_its_tokens_are_scheduled(by: str) -> None:
    requests = [R("A", 0, 9, 1, [1, 2]), R("B", 0, 11, 1, [1, 2])]
    outcome = run(by, requests, blocks=20)
    assert steps(outcome, requests) == [[("A", "P", 9, 0), ("B", "P", 3, 8)]]
    assert free(outcome) == [16]
    outcome = run(by, requests, blocks=20, budget=6)
    assert steps(outcome, requests) == [[("A", "P", 6, 0)], [("A", "P", 3, 6), ("B", "P", 3, 8)]]
    assert free(outcome) == [18, 16]


@BY
def test_the_least_recently_used_block_goes_first_and_of_one_request_its_tail(by: str) -> None:
    requests = [
        R("A", 0, 12, 1, [1, 2, 3]),  # leaves 3 fresh + a3 a2 a1
        R("B", 1, 14, 1, [7, 8, 9]),  # takes 3 fresh and a3; leaves 1 fresh + a2 a1 b9 b8 b7
        R("C", 2, 16, 1, [1, 2, 3, 4]),  # hits a1 a2, takes 1 fresh and b9; leaves b8 b7 c4 c3 a2 a1
        R("D", 3, 13, 1, [7, 8, 9]),  # hits b7 b8, takes c4 and c3; leaves 1 fresh + a2 a1 d9 b8 b7
        R("E", 4, 17, 1, [1, 2, 3, 4]),  # hits a1 a2, takes 1 fresh, d9 and b8
    ]
    outcome = run(by, requests, blocks=6)
    assert steps(outcome, requests) == [
        [("A", "P", 12, 0)],
        [("B", "P", 14, 0)],
        [("C", "P", 8, 8)],
        [("D", "P", 5, 8)],
        [("E", "P", 9, 8)],
    ]
    assert free(outcome) == [3, 2, 2, 2, 1]


@BY
def test_a_preempted_request_hits_its_own_blocks(by: str) -> None:
    """Step 5: A needs a fourth block, B loses its three (12 tokens) and A takes the last of them."""
    requests = [R("A", 0, 8, 9), R("B", 0, 8, 6)]
    outcome = run(by, requests, blocks=6)
    assert steps(outcome, requests) == [
        [("A", "P", 8, 0), ("B", "P", 8, 0)],
        *([("A", "D", 1, cached), ("B", "D", 1, cached)] for cached in (8, 9, 10, 11)),
        *([("A", "D", 1, cached)] for cached in (12, 13, 14, 15)),
        [("B", "P", 5, 8)],
    ]
    assert free(outcome) == [2, 0, 0, 0, 0, 2, 2, 2, 2, 2]
    assert outcome.preemptions.tolist() == [0, 1]
    assert outcome.hit_tokens.tolist() == [0, 0]
    assert outcome.rehit_tokens.tolist() == [0, 8]


@BY
def test_a_block_is_cached_only_when_its_last_token_is_known(by: str) -> None:
    """Asynchronous, step 5: B has computed 8 tokens, but the eighth is still in flight when B is preempted."""
    requests = [R("A", 0, 4, 9), R("B", 0, 4, 6)]
    outcome = run(by, requests, blocks=4, async_scheduling=True)
    assert steps(outcome, requests) == [
        [("A", "P", 4, 0), ("B", "P", 4, 0)],
        *([("A", "D", 1, cached), ("B", "D", 1, cached)] for cached in (4, 5, 6, 7)),
        *([("A", "D", 1, cached)] for cached in (8, 9, 10, 11)),
        [],
        [("B", "P", 5, 4)],
        [],
    ]
    assert free(outcome) == [2, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]
    assert outcome.rehit_tokens.tolist() == [0, 4]


@BY
def test_a_hit_in_the_free_queue_still_takes_a_free_block(by: str) -> None:
    """Step 1: C needs one new block besides two hits, but the hits lie in the queue: 3 of 2 free blocks."""
    requests = [R("A", 0, 8, 1, [1, 2]), R("B", 1, 12, 3, [8, 9, 10]), R("C", 1, 9, 1, [1, 2])]
    outcome = run(by, requests, blocks=5)
    assert steps(outcome, requests) == [
        [("A", "P", 8, 0)],
        [("B", "P", 12, 0)],
        [("B", "D", 1, 12)],  # takes a2
        [("B", "D", 1, 13)],
        [("C", "P", 5, 4)],
    ]
    assert free(outcome) == [3, 2, 1, 1, 2]


@BY
def test_a_second_copy_of_a_block_outlives_the_first(by: str) -> None:
    requests = [
        R("A", 0, 8, 1, [1, 2]),  # leaves 2 fresh + a2 a1
        R("B", 1, 8, 1, [1, 2]),  # hits a1, computes block 2 again; leaves 1 fresh + a2 b2 a1
        R("C", 2, 7, 1),  # takes 1 fresh and a2; leaves 1 fresh + b2 a1 c1
        R("D", 3, 9, 1, [1, 2]),  # hits a1 and b2
    ]
    outcome = run(by, requests, blocks=4)
    assert steps(outcome, requests)[3] == [("D", "P", 1, 8)]
    assert free(outcome) == [2, 2, 2, 1]


@BY
def test_without_caching_hashes_change_nothing(by: str) -> None:
    requests = [R("A", 0, 10, 3, [1, 2]), R("B", 1, 12, 2, [1, 2, 3])]
    outcome = run(by, requests, blocks=20, prefix_caching=False)
    assert steps(outcome, requests)[1] == [("A", "D", 1, 10), ("B", "P", 12, 0)]
    assert outcome.hit_tokens.tolist() == [0, 0]


@BY
def test_an_assumed_share_is_skipped_by_whole_blocks(by: str) -> None:
    """Half of 16, 10, 3 and 9 tokens: 2, 3.25, 3.625 and 4.75 blocks so far, so 2, 1, 0 and 1 for each."""
    prompts, ones = np.array([16, 10, 3, 9]), np.ones(4, dtype=np.int64)
    knobs = VllmKnobs(64, 100, 100, block_size=BLOCK, async_scheduling=False, prefix_caching=True)
    arguments = (np.zeros(4), prompts, ones, None, knobs)
    outcome = SIMULATE[by](*arguments, clock="steps", record_steps=True, assumed_hit_share=0.5)
    assert outcome.hit_tokens.tolist() == [8, 4, 0, 4]
    assert outcome.record is not None
    assert outcome.record.tokens.tolist() == [8, 6, 3, 5]
    assert free(outcome) == [100 - 4 - 3 - 1 - 3]  # whose blocks they share is unknown: they take room
    outcome = SIMULATE[by](*arguments, clock="steps", assumed_hit_share=1.0)
    assert outcome.hit_tokens.tolist() == [12, 8, 0, 8]  # at least one token is computed


def test_what_cannot_be_is_refused() -> None:
    prompts, ones = np.array([8]), np.array([1])
    prefix = blocks_of(hashes([[1, 2]], 4), prompts, 4)
    knobs = VllmKnobs(64, 100, 100, block_size=4, prefix_caching=True)
    arguments = (np.zeros(1), prompts, ones, None)
    for others, message in (
        ({"assumed_hit_share": 1.5}, "assumed_hit_share must be in"),
        ({"assumed_hit_share": 0.5, "prefix": prefix}, "either"),
        ({"prefix": blocks_of(hashes([[1, 2]], 4), prompts, 2)}, "blocks of 2 tokens"),
        ({"prefix": blocks_of(hashes([[1, 2]], 4), prompts, 4, 1)}, "cover 1 tokens behind a block"),
        ({"prefix": prefix.take(np.array([], dtype=np.int64))}, "0 requests"),
    ):
        with pytest.raises(ValueError, match=message):
            kernel.simulate(*arguments, knobs, clock="steps", **others)
    with pytest.raises(ValueError, match="needs prefix_caching"):
        kernel.simulate(*arguments, VllmKnobs(64, 100, 100), clock="steps", assumed_hit_share=0.5)


def ids_of(blocks: PrefixBlocks) -> list[list[int]]:
    return [blocks.ids[a:b].tolist() for a, b in zip(blocks.offsets[:-1], blocks.offsets[1:], strict=True)]


def test_a_block_is_named_by_all_that_comes_before_it() -> None:
    """The same hash after another beginning is another block; what occurs once needs no name."""
    blocks = blocks_of(hashes([[5, 7, 9], [5, 7], [7, 9], [6, 7]], 4), np.array([12, 8, 8, 8]), 4)
    assert ids_of(blocks) == [[0, 1], [0, 1], [], []]
    assert blocks.distinct == 2


def test_trace_blocks_hold_several_engine_blocks() -> None:
    """10-token trace blocks, 4-token engine blocks: block i is named by the trace block its last token is in."""
    blocks = blocks_of(hashes([[1, 2, 3], [1, 2]], 10), np.array([25, 19]), 4)
    # tokens 0-3 and 4-7 end in the first trace block; 8-11, 12-15 and 16-19 in the second
    assert ids_of(blocks) == [[0, 1, 2, 3, 4], [0, 1, 2, 3]]
    blocks = blocks_of(hashes([[1, 2, 3], [1, 5, 3]], 10), np.array([25, 25]), 4)
    assert ids_of(blocks) == [[0, 1], [0, 1]]
    blocks = blocks_of(hashes([[1, 2, 3], [1, 2]], 2), np.array([6, 4]), 4)  # 2-token trace blocks
    assert ids_of(blocks) == [[0], [0]]


def test_a_name_may_cover_the_token_behind_its_block() -> None:
    """Then the last block that two prompts share is one whose next token they share too; a whole prompt's last block
    has no next token yet. Trace blocks may end within engine blocks."""
    ids = [[1, 2, 3], [1, 2, 4], [1, 2, 3]]
    prompts = np.array([9, 9, 8])
    assert ids_of(blocks_of(hashes(ids, 4), prompts, 4)) == [[0, 1], [0, 1], [0, 1]]
    ahead = blocks_of(hashes(ids, 4), prompts, 4, ahead_tokens=1)
    assert ids_of(ahead) == [[0, 1], [0], [0]]
    assert ahead.ahead_tokens == ahead.take(np.array([1])).ahead_tokens == 1
    # trace blocks of 10 tokens: the third prompt's block of tokens 4-7 has its next token in the first of them
    ahead = blocks_of(hashes([[1, 2], [1, 2], [1, 5]], 10), np.array([20, 21, 20]), 4, ahead_tokens=1)
    assert ids_of(ahead) == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1]]
    # blocks of 5: the second ends with the trace block, and its next token is in the next one
    ahead = blocks_of(hashes([[1, 2], [1, 2], [1, 5]], 10), np.array([20, 21, 20]), 5, ahead_tokens=1)
    assert ids_of(ahead) == [[0, 1, 2], [0, 1, 2], [0]]


def test_a_size_that_is_not_known_is_asked_for() -> None:
    with pytest.raises(ValueError, match="how many tokens"):
        blocks_of(PrefixHashes(np.zeros(0, np.uint64), np.zeros(2, np.int64), None), np.array([3]), 4)
