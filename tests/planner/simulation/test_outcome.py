"""Metrics, percentiles, pooling, and what is refused."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from calibration.steptime.scalar import constant_model, linear_model
from planner.simulation import kernel, reference
from planner.simulation.gaps import (
    GAP_BINS,
    HIGHEST_EXPONENT,
    LOWEST_EXPONENT,
    RELATIVE_ERROR,
    bin_middles_s,
    gap_bin,
    gap_percentile,
)
from planner.simulation.knobs import VllmKnobs
from planner.simulation.merge import merge
from planner.simulation.outcome import METRICS, Outcome

KNOBS = VllmKnobs(256, 16, num_blocks=300)
MODEL = linear_model(0.01, token_s=1e-4, row_s=1e-3, decode_context_s=1e-6)


def run(seed: int, count: int = 200) -> Outcome:
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.random(count) * 20)
    prompts, outputs = rng.integers(1, 300, count), rng.integers(1, 60, count)
    return kernel.simulate(arrival, prompts, outputs, None, KNOBS, MODEL, record_steps=True)


def exact_gaps(outcome: Outcome) -> np.ndarray:
    """Every gap between a request's tokens, from the recorded steps."""
    record = outcome.record
    assert record is not None
    end = np.repeat(record.end_s, np.diff(record.offsets))
    known = dict(enumerate(outcome.prompt_tokens.tolist()))
    last: dict[int, float] = {}
    gaps = []
    for request, cached, tokens, at in zip(
        record.request.tolist(), record.cached.tolist(), record.tokens.tolist(), end.tolist(), strict=True
    ):
        if cached + tokens == known[request]:
            known[request] += 1
            if request in last:
                gaps.append(at - last[request])
            last[request] = at
    return np.array(gaps)


def test_gap_percentiles_are_within_the_stated_error() -> None:
    outcome = run(1)
    gaps = np.sort(exact_gaps(outcome))
    assert outcome.gap_counts.sum() == len(gaps)
    for percentile in (0.1, 1, 25, 50, 90, 95, 99, 99.9, 100):
        exact = gaps[max(1, int(np.ceil(len(gaps) * percentile / 100))) - 1]
        assert outcome.percentile("itl", percentile) == pytest.approx(exact, rel=RELATIVE_ERROR)


def test_every_gap_is_within_half_a_per_cent_of_its_bin() -> None:
    middles = bin_middles_s()
    gaps = np.exp(
        np.random.default_rng(2).uniform(np.log(2.0**LOWEST_EXPONENT), np.log(2.0**HIGHEST_EXPONENT), 20_000)
    )
    shown = middles[[gap_bin(gap) for gap in gaps.tolist()]]
    assert RELATIVE_ERROR < 0.005
    assert np.max(np.abs(shown / gaps - 1)) <= RELATIVE_ERROR


def test_extreme_gaps_stay_in_the_histogram() -> None:
    assert gap_bin(0.0) == gap_bin(1e-300) == 0
    assert gap_bin(1e300) == gap_bin(2.0**HIGHEST_EXPONENT) == GAP_BINS - 1


def test_percentiles_of_requests_are_raw() -> None:
    outcome = run(3)
    np.testing.assert_allclose(outcome.percentile("ttft", 95), np.percentile(outcome.ttft_s(), 95))
    several = outcome.output_tokens > 1
    means = (outcome.done_s - outcome.first_token_s)[several] / (outcome.output_tokens[several] - 1)
    np.testing.assert_allclose(outcome.percentile("tpot", 50), np.median(means))
    with pytest.raises(ValueError, match="unknown metric 'latency'"):
        outcome.percentile("latency", 50)


def test_replicas_are_pooled_not_averaged() -> None:
    one, other = run(4), run(5, count=40)
    pool = merge([one, other])
    assert pool.replicas == 2
    for metric in ("ttft", "tpot", "e2e"):
        pooled = np.concatenate([one.values_s(metric), other.values_s(metric)])
        assert pool.percentile(metric, 90) == np.percentile(pooled, 90)
    np.testing.assert_array_equal(pool.gap_counts, one.gap_counts + other.gap_counts)
    assert pool.busy_s == one.busy_s + other.busy_s
    assert pool.makespan_s == max(one.makespan_s, other.makespan_s)
    assert pool.utilisation == pool.busy_s / (2 * pool.makespan_s)
    assert pool.steps == one.steps + other.steps
    with pytest.raises(ValueError, match="no outcomes"):
        merge([])


def test_impossible_requests_are_rejected_by_index_and_the_rest_served() -> None:
    small = VllmKnobs(8, 4, num_blocks=4, block_size=4)
    prompts, outputs = np.array([4, 14, 15, 200, 16]), np.array([4, 3, 3, 1, 1])
    for simulate in (reference.simulate, kernel.simulate):
        outcome = simulate(np.zeros(5), prompts, outputs, None, small, constant_model(1.0))
        assert outcome.rejected.tolist() == [2, 3]  # 14 + 3 - 1 tokens fill 16; one more does not fit
        assert np.isnan(outcome.done_s[outcome.rejected]).all()
        assert len(outcome.ttft_s()) == 3
        assert np.isfinite(outcome.percentile("e2e", 50))
    both = merge([outcome, outcome])
    assert both.rejected.tolist() == [2, 3, 7, 8]


def test_nothing_served_is_no_number() -> None:
    small = VllmKnobs(8, 4, num_blocks=1, block_size=1)
    for count in (0, 3):
        tokens = np.full(count, 5, dtype=np.int64)
        outcome = kernel.simulate(np.zeros(count), tokens, tokens, None, small, constant_model(1.0))
        assert (outcome.steps, outcome.makespan_s, outcome.utilisation, outcome.mean_batch) == (
            0,
            0.0,
            0.0,
            0.0,
        )
        for metric in METRICS:
            with pytest.raises(ValueError, match="no "):
                outcome.percentile(metric, 50)


def test_single_tokens_have_no_gap() -> None:
    one = np.ones(3, dtype=np.int64)
    outcome = kernel.simulate(np.arange(3.0), one, one, None, KNOBS, constant_model(0.5))
    assert outcome.tpot_s().size == 0
    with pytest.raises(ValueError, match="single output token"):
        gap_percentile(outcome.gap_counts, 50)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arrival_s": np.array([1.0, 0.5])}, r"arrival_s must be sorted \(first at position 1\)"),
        ({"arrival_s": np.array([0.0, np.nan])}, "finite"),
        ({"arrival_s": np.array([-1.0, 0.5])}, "not negative"),
        ({"prompt_tokens": np.array([1, 0])}, r"prompt_tokens must be at least 1 \(first at position 1\)"),
        ({"output_tokens": np.array([0, 1])}, r"output_tokens must be at least 1 \(first at position 0\)"),
        ({"output_tokens": np.array([1])}, "output_tokens has 1 entries, arrival_s has 2"),
        ({"priority": np.array([1])}, "priority has 1 entries"),
        ({"clock": "minutes"}, "clock must be one of seconds, steps"),
        ({"step_time": None}, "needs a step time"),
    ],
)
def test_unusable_input_is_refused(change: dict, message: str) -> None:
    arguments = {
        "arrival_s": np.array([0.0, 1.0]),
        "prompt_tokens": np.array([1, 1]),
        "output_tokens": np.array([1, 1]),
        "priority": None,
        "knobs": KNOBS,
        "step_time": MODEL,
    }
    for simulate in (reference.simulate, kernel.simulate):
        with pytest.raises(ValueError, match=message):
            simulate(**{**arguments, **change})


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_num_batched_tokens": 0},
        {"max_num_seqs": 0},
        {"num_blocks": 0},
        {"block_size": 0},
        {"prefill_schedule_interval": 0},
        {"long_prefill_token_threshold": -1},
        {"policy": "lifo"},
        {"watermark": 1.0},
        {"watermark": float("nan")},
    ],
)
def test_impossible_knobs_name_the_knob(wrong: dict) -> None:
    values = {field.name: getattr(KNOBS, field.name) for field in fields(KNOBS)}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        VllmKnobs(**{**values, **wrong})
