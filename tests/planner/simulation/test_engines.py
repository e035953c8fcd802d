"""How each engine divides the same few steps: schedules worked out by hand, by both simulators.

A row is (request, tokens); requests are numbered by arrival, arrivals are numbers of steps, all lag 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from calibration.steptime.scalar import constant_model
from planner.simulation import kernel, reference
from planner.simulation.knobs import (
    Knobs,
    OrcaKnobs,
    PolicyKnobs,
    PrefillFirstKnobs,
    SarathiKnobs,
    SglangKnobs,
    TrtLlmKnobs,
)
from planner.simulation.outcome import Outcome

both = pytest.mark.parametrize("simulate", [reference.simulate, kernel.simulate], ids=["reference", "kernel"])
Simulate = Callable[..., Outcome]
Schedule = list[list[tuple[int, int]]]


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def schedule_of(outcome: Outcome) -> Schedule:
    record = outcome.record
    assert record is not None
    rows = list(zip(record.request.tolist(), record.tokens.tolist(), strict=True))
    return [rows[start:stop] for start, stop in zip(record.offsets, record.offsets[1:], strict=False)]


def run(simulate: Simulate, knobs: Knobs, *requests: tuple[int, int, int], **options: object) -> Outcome:
    """Requests as (arrival step, prompt, output)."""
    arrival, prompts, outputs = (np.array(column) for column in zip(*requests, strict=True))
    return simulate(
        arrival.astype(float), prompts, outputs, None, knobs, clock="steps", record_steps=True, **options
    )


def sglang(chunk: int, tokens: int = 1_000, **others: object) -> SglangKnobs:
    return SglangKnobs(chunk, 10, tokens, overlap_schedule=False, **others)  # type: ignore[arg-type]


def trtllm(budget: int, blocks: int = 1_000, **others: object) -> TrtLlmKnobs:
    return TrtLlmKnobs(
        budget,
        10,
        blocks,
        tokens_per_block=2,
        overlap_scheduler=False,
        **others,  # type: ignore[arg-type]
    )


def policy(name: str, **others: object) -> PolicyKnobs:
    return PolicyKnobs(
        4,
        10,
        1_000,
        policy=name,
        async_scheduling=False,
        **others,  # type: ignore[arg-type]
    )


# Request 0 decodes (3 + 4 tokens from step 0) when request 1 comes (6 + 2 tokens at step 1).
BESIDE_A_PROMPT: dict[str, tuple[Knobs, Schedule]] = {
    "sarathi": (SarathiKnobs(4, 10, 1_000), [[(0, 3)], [(0, 1), (1, 3)], [(0, 1), (1, 3)], [(0, 1), (1, 1)]]),
    "orca": (OrcaKnobs(10, 10, 1_000, 1), [[(0, 3)], [(0, 1), (1, 6)], [(0, 1), (1, 1)], [(0, 1)]]),
    "prefill first": (
        PrefillFirstKnobs(8, 10, 1_000),
        [[(0, 3)], [(1, 6)], [(0, 1), (1, 1)], [(0, 1)], [(0, 1)]],
    ),
    "sglang": (sglang(4), [[(0, 3)], [(1, 4)], [(1, 2)], [(0, 1), (1, 1)], [(0, 1)], [(0, 1)]]),
    "sglang mixed": (
        sglang(4, enable_mixed_chunk=True),
        [[(0, 3)], [(0, 1), (1, 3)], [(0, 1), (1, 3)], [(0, 1), (1, 1)]],
    ),
    "sglang with a gap": (
        sglang(4, prefill_decode_interval=1),
        [[(0, 3)], [(0, 1)], [(1, 4)], [(0, 1)], [(1, 2)], [(0, 1), (1, 1)]],
    ),
    "trtllm in chunks": (
        trtllm(4, enable_chunked_prefill=True),  # of the 3 tokens left, a chunk may have 2
        [[(0, 3)], [(0, 1), (1, 2)], [(0, 1), (1, 2)], [(0, 1), (1, 2)], [(1, 1)]],
    ),
    "trtllm whole": (trtllm(6), [[(0, 3)], [(0, 1)], [(0, 1)], [(0, 1)], [(1, 6)], [(1, 1)]]),
    "decode first": (
        policy("decode-first"),
        [[(0, 3)], [(0, 1), (1, 3)], [(0, 1), (1, 3)], [(0, 1), (1, 1)]],
    ),
    "prefill first policy": (
        policy("prefill-first"),
        [[(0, 3)], [(1, 4)], [(0, 1), (1, 2)], [(0, 1), (1, 1)], [(0, 1)]],
    ),
    # the decode needs 1 of its 2 tokens; the other passes to the prompt
    "fair share": (policy("fair-share"), [[(0, 3)], [(0, 1), (1, 3)], [(0, 1), (1, 3)], [(0, 1), (1, 1)]]),
}


@both
@pytest.mark.parametrize("engine", BESIDE_A_PROMPT)
def test_a_decode_beside_a_prompt(simulate: Simulate, engine: str) -> None:
    knobs, schedule = BESIDE_A_PROMPT[engine]
    assert schedule_of(run(simulate, knobs, (0, 3, 4), (1, 6, 2))) == schedule


@both
def test_a_fair_share_holds_decodes_back(simulate: Simulate) -> None:
    """Half of 4 tokens for decodes: three of them and a prompt of 6; the third decode waits for the prompt's end."""
    requests = [(0, 1, 5)] * 3 + [(1, 6, 1)]
    shared = [[(0, 1), (1, 1), (3, 2)]] * 3
    assert schedule_of(run(simulate, policy("fair-share"), *requests)) == [
        [(0, 1), (1, 1), (2, 1)],
        *shared,
        [(0, 1), (1, 1), (2, 1)],
        *[[(2, 1)]] * 3,
    ]


@both
def test_a_share_of_time(simulate: Simulate) -> None:
    """A quarter of the steps, all equally long, may compute prompts while somebody decodes."""
    knobs = policy("fair-share", prefill_share=0.25, share_of="time")
    outcome = run(simulate, knobs, (0, 1, 7), (1, 6, 1))
    assert schedule_of(outcome) == [
        [(0, 1)],
        [(0, 1), (1, 3)],
        *[[(0, 1)]] * 3,
        [(0, 1), (1, 3)],
        [(0, 1)],
    ]
    # alone, a prompt is not held back
    assert schedule_of(run(simulate, knobs, (0, 9, 1))) == [[(0, 4)], [(0, 4)], [(0, 1)]]


@both
def test_equal_progress(simulate: Simulate) -> None:
    """6 tokens in units of 2 for prompts of 5 and 3: two rounds for the first, one for the second."""
    knobs = trtllm(6, enable_chunked_prefill=True, context_chunking_policy="EQUAL_PROGRESS")
    assert schedule_of(run(simulate, knobs, (0, 5, 1), (0, 3, 1))) == [[(0, 4), (1, 2)], [(0, 1), (1, 1)]]


@both
def test_a_chunk_of_nothing_lets_the_next_prompt_pass(simulate: Simulate) -> None:
    """1 token is left beside the first prompt: less than a unit of the second, all of the third."""
    knobs = trtllm(4, enable_chunked_prefill=True)
    outcome = run(simulate, knobs, (0, 3, 1), (0, 6, 1), (0, 1, 1))
    assert schedule_of(outcome) == [[(0, 3), (2, 1)], [(1, 4)], [(1, 2)]]


@both
def test_reservations_count_what_clients_allow(simulate: Simulate) -> None:
    """8 blocks of 2: two requests of 4 + 3 tokens fit, unless the clients allow 8 outputs; with 13 neither could."""
    knobs, requests = trtllm(100, blocks=8), [(0, 4, 3), (0, 4, 3)]
    assert run(simulate, knobs, *requests).first_token_s.tolist() == [0, 0]
    assert run(simulate, knobs, *requests, max_tokens=ints(8, 8)).first_token_s.tolist() == [0, 3]
    assert run(simulate, knobs, *requests, max_tokens=ints(13, 3)).rejected.tolist() == [0]
    with pytest.raises(ValueError, match="max_tokens must not be below output_tokens"):
        run(simulate, knobs, *requests, max_tokens=ints(2, 3))


@both
def test_without_chunks_a_prompt_above_the_limit_runs_alone(simulate: Simulate) -> None:
    """max_prefill_tokens 8. Three and four tokens share a batch, the next would reach 8 exactly and waits; the nine
    are more than the limit: they wait for a batch of their own, and nobody joins them."""
    knobs = sglang(-1, max_prefill_tokens=8)
    outcome = run(simulate, knobs, (0, 3, 1), (0, 4, 1), (0, 1, 1), (0, 9, 1), (0, 1, 1))
    assert schedule_of(outcome) == [[(0, 3), (1, 4)], [(2, 1)], [(3, 9)], [(4, 1)]]
    assert outcome.rejected.tolist() == []


@both
def test_an_estimate_too_low_sends_the_fewest_outputs_back(simulate: Simulate) -> None:
    """13 pages of 1 token. Request 1 is admitted at step 2 since nothing is estimated for what request 0 still needs.
    At step 7 they hold 7 + 5 and need 2 more: request 1, with 5 outputs against 6, goes back. The ratio is 1 now, so
    it waits until request 0 has left, and is computed again as one prompt of 1 + 5."""
    knobs = sglang(8, tokens=13, init_new_token_ratio=0.0)
    outcome = run(simulate, knobs, (0, 2, 9), (2, 1, 6))
    alone = [(0, 1)]
    assert schedule_of(outcome) == [
        [(0, 2)],
        alone,
        [(1, 1)],
        *[[(0, 1), (1, 1)]] * 4,
        *[alone] * 3,
        [(1, 6)],
    ]
    assert outcome.preemptions.tolist() == [0, 1]
    assert outcome.record is not None
    assert outcome.record.free_blocks.tolist() == [11, 10, 9, 7, 5, 3, 1, 5, 4, 3, 7]


@both
def test_an_unfinished_prompt_gives_way_where_the_engine_would_fail(simulate: Simulate) -> None:
    """11 pages of 1 token; each step gives 1 to a decode and 1 to a prompt of 6. At step 6 no page is left, and the
    only decode needs one: the prompt goes back to the queue and starts again when the decode has ended."""
    knobs = sglang(2, tokens=11, enable_mixed_chunk=True, init_new_token_ratio=0.0)
    outcome = run(simulate, knobs, (0, 1, 7), (1, 6, 1))
    assert schedule_of(outcome) == [[(0, 1)], *[[(0, 1), (1, 1)]] * 5, [(0, 1)], *[[(1, 2)]] * 3]
    assert outcome.preemptions.tolist() == [0, 1]


@both
def test_whole_prompts_take_their_blocks_at_once(simulate: Simulate) -> None:
    """Sarathi holds 3 blocks of 2 for a prompt of 6 from its first chunk on, vLLM's rules only those of the chunk."""
    sarathi = run(simulate, SarathiKnobs(2, 4, 10, block_size=2), (0, 6, 1))
    generic = run(simulate, PolicyKnobs(2, 4, 10, block_size=2, async_scheduling=False), (0, 6, 1))
    assert sarathi.record is not None
    assert generic.record is not None
    assert sarathi.record.free_blocks.tolist() == [7, 7, 7]
    assert generic.record.free_blocks.tolist() == [9, 8, 7]


@both
def test_a_pause_is_one_gap_for_every_decode(simulate: Simulate) -> None:
    """Steps of 1 s: three decodes wait two steps for a prompt in two chunks, so each has one gap of 3 s."""
    outcome = simulate(
        np.array([0.0, 0.0, 0.0, 3.5]),
        ints(1, 1, 1, 8),
        ints(9, 9, 9, 1),
        None,
        sglang(4),
        constant_model(1.0),
    )
    assert outcome.max_gap_s.tolist() == [3.0, 3.0, 3.0, 0.0]
    assert outcome.first_token_s.tolist() == [1.0, 1.0, 1.0, 6.0]
    assert outcome.done_s.tolist() == [11.0, 11.0, 11.0, 6.0]
    assert outcome.percentile("itl", 100) == pytest.approx(3.0, rel=1 / 256)


@both
def test_overlap_makes_an_arrival_wait_one_more_step(simulate: Simulate) -> None:
    """As in vLLM: at 1.0 s the schedule of the second step is already made."""
    for lag, first_s in ((False, 1.0), (True, 2.0)):
        knobs = SglangKnobs(8, 10, 100, overlap_schedule=lag)
        outcome = simulate(np.array([0.0, 0.5]), ints(1, 1), ints(6, 1), None, knobs, constant_model(1.0))
        assert outcome.first_scheduled_s.tolist() == [0.0, first_s]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SglangKnobs(3, 1, 10, page_size=4), "chunked_prefill_size must be at least 4"),
        (lambda: SglangKnobs(0, 1, 10), "or -1 to switch chunking off"),
        (lambda: SglangKnobs(-1, 1, 10, enable_mixed_chunk=True), "enable_mixed_chunk: without chunked"),
        (
            lambda: SglangKnobs(4, 1, 10, speculative_num_steps=3),
            "speculative_num_steps: .* not simulated for SGLang",
        ),
        (lambda: TrtLlmKnobs(16, 1, 10, max_draft_len=3), "max_draft_len: .* not simulated for TensorRT"),
        (lambda: SglangKnobs(4, 1, 10, init_new_token_ratio=1.5), "init_new_token_ratio must be in"),
        (
            lambda: SglangKnobs(4, 1, 10, min_new_token_ratio=0.8),
            r"min_new_token_ratio must be in \[0, 0.7\]",
        ),
        (lambda: TrtLlmKnobs(16, 1, 10, enable_chunked_prefill=True), "max_num_tokens must be at least 32"),
        (lambda: TrtLlmKnobs(16, 1, 10, context_chunking_policy="x"), "context_chunking_policy must be one"),
        (lambda: OrcaKnobs(1, 100, 3, 16), "num_blocks: 3 blocks hold no request"),
        (lambda: PolicyKnobs(1, 1, 1, policy="x"), "policy must be one of decode-first, prefill-first"),
        (lambda: PolicyKnobs(1, 1, 1, prefill_share=1.0), "prefill_share must be between 0 and 1"),
        (lambda: SarathiKnobs(0, 1, 1), "chunk_size must be at least 1"),
    ],
)
def test_knobs_that_cannot_work_are_refused_by_name(make: Callable[[], Knobs], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
