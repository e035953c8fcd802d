"""The mixed-load experiment without devices: which cases and ways there are, and what the simulation says of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from calibration.experiment import DEMO_ENVELOPE, Envelope
from calibration.steptime import linear_model
from calibration.transfer import TransferTable
from planner.simulation.gaps import RELATIVE_ERROR
from planner.verification import mixed_load
from planner.verification.loop import replay
from planner.verification.mixed_load import Case, Way
from tests.planner.verification.device import Device

LAW = linear_model(4e-3, token_s=2e-4)
POOL = 65_536
TABLE = TransferTable.link(10.0, 0.0, 0.0)
CASE = Case(prompt_tokens=400, output_tokens=128, streams=6)


def outcome(way: Way, case: Case = CASE):
    requests = mixed_load.requests_of(case, LAW, DEMO_ENVELOPE, POOL)
    return mixed_load.predict(way, case, requests, DEMO_ENVELOPE, POOL, LAW, TABLE, 1_000.0)


def test_only_the_streams_have_gaps_and_every_prompt_is_served():
    for way in mixed_load.ways_of(CASE, DEMO_ENVELOPE, apart=True):
        found = outcome(way)
        assert found.gap_counts.sum() == 6 * 127, way.text
        assert not len(found.rejected)
        assert len(found.ttft_s()) == 6 + CASE.prompts


def test_chunks_bound_the_gap_and_pools_take_it_away():
    ways = {way.text: outcome(way) for way in mixed_load.ways_of(CASE, DEMO_ENVELOPE, apart=True)}
    assert list(ways) == ["whole", "chunks of 50", "chunks of 100", "chunks of 200", "separate pools"]
    p99 = {name: found.percentile("itl", 99) for name, found in ways.items()}
    assert (
        p99["whole"]
        > p99["chunks of 200"]
        > p99["chunks of 100"]
        > p99["chunks of 50"]
        > p99["separate pools"]
    )
    # Of a prompt that was prefilled elsewhere the decode pool computes the last token anew.
    assert p99["separate pools"] == pytest.approx(4e-3 + 2e-4 * (6 + 1), rel=RELATIVE_ERROR)
    assert p99["whole"] == pytest.approx(4e-3 + 2e-4 * (6 + 400), rel=RELATIVE_ERROR)
    prompts = {name: np.median(found.ttft_s()[6:]) for name, found in ways.items()}
    assert prompts["whole"] < prompts["chunks of 100"] < prompts["chunks of 50"]


def test_prompts_come_while_all_streams_are_written():
    requests = mixed_load.requests_of(CASE, LAW, DEMO_ENVELOPE, POOL)
    found = outcome(Way())
    assert requests.arrival_s[6:].max() < found.done_s[:6].min()


def test_the_grid_keeps_what_was_measured_and_says_why_not_the_rest():
    held, left = mixed_load.grid(DEMO_ENVELOPE, POOL)
    assert {(case.prompt_tokens, case.output_tokens, case.streams) for case in held} == {
        (prompt, output, streams) for prompt in (128, 1_024) for output in (32, 256) for streams in (1, 4, 15)
    }
    reasons = dict(left)
    assert "contexts of 4,096 tokens" in reasons[Case(4_096, 32, 4)]
    assert "contexts of 1,039 tokens" in reasons[Case(128, 1_024, 4)]
    large = Envelope(max_batch=257, max_context_tokens=20_000, max_step_tokens=20_000)
    held, left = mixed_load.grid(large, 10_000_000)
    assert (len(held), left) == (4 * 3 * 5, [])
    _, left = mixed_load.grid(large, 100_000)
    assert all("tokens of KV" in reason for _, reason in left)


def test_a_prompt_longer_than_a_step_is_not_served_whole():
    case = Case(prompt_tokens=600, output_tokens=64, streams=4)
    assert [way.text for way in mixed_load.ways_of(case, DEMO_ENVELOPE, apart=False)] == [
        "chunks of 75", "chunks of 150", "chunks of 300",
    ]  # fmt: skip
    assert mixed_load.why_not_whole(case, DEMO_ENVELOPE) == "steps of 604 tokens, and 512 were measured"
    assert not mixed_load.why_not_whole(CASE, DEMO_ENVELOPE)


@pytest.mark.parametrize("prompt", mixed_load.GRID_PROMPTS)
@pytest.mark.parametrize("streams", [1, 15, 64])
def test_every_prompt_of_the_grid_has_three_chunk_sizes_that_were_measured(prompt, streams):
    """Of steps of 2,048 tokens half of a prompt of 16,384 is none."""
    envelope = Envelope(max_batch=128, max_context_tokens=16_384, max_step_tokens=2_048)
    ways = mixed_load.ways_of(Case(prompt, 32, streams), envelope, apart=True)
    chunks = [way.chunk_tokens for way in ways if way.chunk_tokens]
    assert len(chunks) == 3 and max(chunks) + streams <= 2_048
    assert (Way() in ways) == (prompt + streams <= 2_048)


def test_the_report_holds_for_a_device_that_does_as_predicted_and_not_for_another():
    class Slow(Device):
        def measure(self, decode_contexts, chunks, seed, lead_in=()):
            timing = super().measure(decode_contexts, chunks, seed)
            tokens = len(decode_contexts) + sum(chunk[0] for chunk in chunks)
            seconds = (4e-3 + 2e-4 * tokens) * (self.chunk if chunks else self.decode)
            return type(timing)(seconds, 0.0, False)

    requests = mixed_load.requests_of(CASE, LAW, DEMO_ENVELOPE, POOL)
    found = {}
    for stretch in (1.0, 1.5):
        knobs = mixed_load.knobs_of(Way(), CASE, DEMO_ENVELOPE, POOL)
        measured = replay(Slow(chunk=stretch), requests, knobs, LAW).outcome
        found[stretch] = mixed_load.served(Way(), CASE, outcome(Way()), [], [measured], "cpu")
    assert found[1.0].line(99.0).error == pytest.approx(0.0, abs=1e-9)
    assert not found[1.5].line(99.0).holds
    words = mixed_load.sentence([found[1.5]])
    assert "prompts of 400 tokens beside 6 streams of 128" in words
    assert "served whole, and no other way makes it smaller" in words
    assert "ITL p99, whole" in words
    chunked = mixed_load.served(Way(100), CASE, outcome(Way(100)), [], [outcome(Way(100))], "cpu")
    assert "at best, with chunks of 100" in mixed_load.sentence([found[1.5], chunked])


def test_what_was_measured_has_an_interval_that_holds_it_and_narrows_with_more_steps():
    """Gaps of one step belong together: ten times the streams say no more of the steps than one does."""
    for output, streams in ((128, 1), (128, 10), (512, 1)):
        case = Case(400, output, streams)
        found = outcome(Way(100), case)
        [p50, p95, p99, ttft] = mixed_load.served(Way(100), case, found, [], [found], "cpu").lines
        for line in (p50, p95, p99, ttft):
            assert line.measured_low_s <= line.measured_s <= line.measured_high_s and line.within
    noisy = np.random.default_rng(0)
    gaps = np.zeros_like(found.gap_counts)
    gaps[:400] = noisy.integers(1, 50, min(400, len(gaps)))
    spread = dataclasses.replace(found, gap_counts=gaps)
    few, many = (mixed_load._of_steps(spread, 95.0, Case(400, output, 1)) for output in (32, 1_024))
    assert few[0] < many[0] < many[1] < few[1]
    assert mixed_load._of_steps(spread, 95.0, Case(400, 32, 50)) == few
