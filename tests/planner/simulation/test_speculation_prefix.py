"""Speculative decoding beside a prefix cache: schedules worked out by hand, and tokens per step as without one.

Blocks have 4 tokens, scheduling is synchronous and step k is made at time k unless said. A row is (request, kind,
tokens, tokens cached before).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.steptime.scalar import constant_model
from planner.simulation import kernel
from planner.simulation.knobs import SpeculativeConfig, VllmKnobs
from planner.simulation.outcome import Outcome
from planner.simulation.prefix import blocks_of
from tests.planner.simulation.test_prefix_agreement import cached_workload
from tests.planner.simulation.test_prefix_cache import BY, R, free, hashes, run, steps
from tests.planner.simulation.test_speculation import check_account


def guess(by: str, requests: list[R], blocks: int, config: SpeculativeConfig, **others: Any) -> Outcome:
    return run(by, requests, blocks, speculative_config=config, **others)


@BY
def test_accepted_tokens_are_found_again(by: str) -> None:
    """Step 2: A takes the last block, B loses its three, which hold 12 tokens that are all known. Step 3: A takes the
    third of them (the tail goes first), and B has no room. Step 4: B finds two."""
    requests = [R("A", 0, 8, 13), R("B", 0, 8, 13)]
    outcome = guess(by, requests, 7, SpeculativeConfig(3, 1.0, "ngram"))
    assert steps(outcome, requests) == [
        [("A", "P", 8, 0), ("B", "P", 8, 0)],
        [("A", "D", 4, 8), ("B", "D", 4, 8)],
        [("A", "D", 4, 12)],
        [("A", "D", 4, 16)],
        [("B", "P", 5, 8)],
        [("B", "D", 4, 13)],
        [("B", "D", 4, 17)],
    ]
    assert free(outcome) == [3, 1, 3, 2, 3, 2, 1]
    assert outcome.rehit_tokens.tolist() == [0, 8]


@BY
def test_rejected_tokens_have_no_block_to_be_found(by: str) -> None:
    """After step 1 each has 9 tokens and holds three blocks, 12 slots. B loses them twice, the third without a name:
    it is taken first, and B always finds its 8 tokens."""
    requests = [R("A", 0, 8, 6), R("B", 0, 8, 5)]
    outcome = guess(by, requests, 7, SpeculativeConfig(3, 0.0, "ngram"))
    assert steps(outcome, requests) == [
        [("A", "P", 8, 0), ("B", "P", 8, 0)],
        [("A", "D", 4, 8), ("B", "D", 4, 8)],
        [("A", "D", 4, 9)],
        [("A", "D", 4, 10), ("B", "P", 2, 8)],
        [("A", "D", 4, 11)],
        [("A", "D", 4, 12), ("B", "P", 3, 8)],
        [("B", "D", 4, 11)],
    ]
    assert free(outcome) == [3, 1, 3, 0, 3, 0, 3]
    assert outcome.rehit_tokens.tolist() == [0, 16]


@BY
def test_asynchronously_tokens_in_flight_are_not_found(by: str) -> None:
    """Schedule 2 is made when step 1 is under way: 12 tokens of B are computed, but only 8 are known. It asks for a
    fourth block and loses its three. A takes the third, which has no name, in schedule 3. With step 3 A has all its
    tokens, but schedule 4 does not know: its row for nothing takes B's second block. When A is gone, B finds its first.
    """
    requests = [R("A", 0, 8, 13), R("B", 0, 8, 13)]
    outcome = guess(by, requests, 7, SpeculativeConfig(3, 1.0, "ngram_gpu"), async_scheduling=True)
    assert steps(outcome, requests)[:6] == [
        [("A", "P", 8, 0), ("B", "P", 8, 0)],
        [("A", "D", 4, 8), ("B", "D", 4, 8)],
        [("A", "D", 4, 12)],
        [("A", "D", 4, 16)],
        [("A", "D", 4, 20)],
        [("B", "P", 9, 4)],
    ]
    assert free(outcome)[:6] == [3, 1, 3, 2, 1, 3]
    assert outcome.rehit_tokens.tolist() == [0, 4]


AGAIN = [
    R("A", 0, 9, 1, [1, 2, 3]),
    R("B", 1, 9, 1, [1, 2, 3]),
    R("C", 2, 9, 1, [1, 2, 4]),
    R("D", 3, 8, 1, [1, 2]),
]


@BY
@pytest.mark.parametrize(
    ("method", "found"),
    [("ngram", [0, 8, 8, 4]), ("draft_model", [0, 8, 8, 4]), ("eagle", [0, 8, 4, 4]), ("mtp", [0, 8, 4, 4])],
)
def test_a_drafter_that_reads_ahead_needs_the_next_token_to_agree(
    by: str, method: str, found: list[int]
) -> None:
    """C's third block differs, so the token behind its second does. D would find both blocks, but one token at least
    is computed."""
    outcome = guess(by, AGAIN, 40, SpeculativeConfig(2, 0.5, method))
    assert outcome.hit_tokens.tolist() == found


@BY
def test_a_newcomer_that_finds_all_but_a_token_is_padded(by: str) -> None:
    """B's row has its one token and 3 drafts that are rejected, beside A's with 3 that are accepted."""
    requests = [R("A", 0, 9, 9, [1, 2, 3]), R("B", 1, 9, 2, [1, 2, 3])]
    outcome = guess(by, requests, 40, SpeculativeConfig(3, 1.0, "ngram"))
    assert steps(outcome, requests) == [
        [("A", "P", 9, 0)],
        [("A", "D", 4, 9), ("B", "P", 4, 8)],
        [("A", "D", 4, 13), ("B", "D", 4, 9)],
    ]
    # A: 3 blocks, 4, 5; B: 2 of A's and 1, its 12 slots; then 4 slots from its 9th token on
    assert free(outcome) == [37, 40 - 4 - 1, 40 - 5 - 2]
    assert (outcome.verifications, outcome.draft_tokens, outcome.accepted_tokens) == (3, 9, 6)


@BY
def test_an_admission_asks_for_the_drafter_s_slots(by: str) -> None:
    """4 blocks: a prompt of 9 tokens has 3 of them. With 2 slots more it still has, with 4 it needs the last."""
    for drafts, left in ((2, 1), (4, 0)):
        outcome = guess(by, [R("A", 0, 9, 1)], 8, SpeculativeConfig(drafts, 0.5, "eagle"))
        assert free(outcome) == [4 + left]


@pytest.mark.parametrize("method", ["ngram_gpu", "eagle"])
@pytest.mark.parametrize("rate", [0.0, 0.6, 0.9, 1.0])
def test_tokens_per_verification(method: str, rate: float) -> None:
    """(1 - a^(k+1)) / (1 - a) within 1 %, with prompts that are found and requests that are preempted."""
    count, drafts = 200, 4
    rng = np.random.default_rng(6)
    prompts, outputs = rng.integers(200, 400, count), np.full(count, 3000)
    config = SpeculativeConfig(drafts, rate, method, seed=3)
    engine = VllmKnobs(4096, 256, 5_000, prefix_caching=True, speculative_config=config)
    families = [[1000 * (i % 5) + block for block in range(prompt // 16)] for i, prompt in enumerate(prompts)]
    prefix = blocks_of(hashes(families, 16), prompts, 16, engine.profile.named_ahead)
    outcome = kernel.simulate(
        np.arange(count) * 0.05, prompts, outputs, None, engine, constant_model(0.01), prefix=prefix
    )
    assert outcome.hit_tokens.sum() > 0.8 * prompts.sum()
    assert outcome.preemptions.sum() > 20
    expected = drafts + 1 if rate == 1.0 else (1 - rate ** (drafts + 1)) / (1 - rate)
    assert outcome.tokens_per_verification == pytest.approx(expected, rel=0.01)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1 << 32))
def test_tokens_are_conserved(seed: int) -> None:
    arguments = cached_workload(seed, guesses=True)
    check_account(kernel.simulate(**arguments, record_steps=True), arguments["knobs"])
