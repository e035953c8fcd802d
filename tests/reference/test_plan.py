"""A plan on real input: step times of a real GPU, the whole Azure code trace, and an answer checked another way."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from calibration.architecture import PRESETS
from calibration.sources.choosing import choose_points
from calibration.sources.step_csv import read_step_csv
from calibration.steptime import StepTimeModel, fit
from planner.search import PlanResult, parse_objectives, plan
from planner.simulation.gaps import gap_percentile
from planner.simulation.kernel import simulate
from planner.simulation.knobs import VllmKnobs
from planner.traffic import Traffic, read_traffic

KV_TOKENS = 41_408
TTFT_LIMIT_S, ITL_LIMIT_S = 2.0, 0.1


@pytest.fixture(scope="module")
def model(reference_data: Path) -> StepTimeModel:
    samples = read_step_csv(reference_data / "replay" / "rtx4090-llama-3.1-8b" / "steps.csv.gz")
    return fit(choose_points(samples, 80, 0), seed=0)


@pytest.fixture(scope="module")
def traffic(reference_data: Path) -> Traffic:
    return read_traffic(reference_data / "traces" / "azure-2023-code.csv.gz")


@pytest.fixture(scope="module")
def result(model: StepTimeModel, traffic: Traffic) -> PlanResult:
    objectives = parse_objectives([f"ttft:p95:{TTFT_LIMIT_S}", f"itl:p99:{ITL_LIMIT_S}"])
    return plan(
        traffic, model, KV_TOKENS, PRESETS["llama-3.1-8b"], objectives, device="RTX 4090", refits=4, threads=2
    )


def percentiles(
    traffic: Traffic, model: StepTimeModel, knobs: VllmKnobs, replicas: int
) -> tuple[float, float, float]:
    """TTFT p95, ITL p99 and the uncovered share, dealt and pooled here without the search."""
    outcomes = [
        simulate(
            np.ascontiguousarray(traffic.arrival_s[r::replicas]),
            np.ascontiguousarray(traffic.prompt_tokens[r::replicas]),
            np.ascontiguousarray(traffic.output_tokens[r::replicas]),
            None,
            knobs,
            model.arrays(),
        )
        for r in range(replicas)
    ]
    ttft_s = np.concatenate([outcome.ttft_s() for outcome in outcomes])
    gaps = sum(outcome.gap_counts for outcome in outcomes)
    uncovered = sum(o.uncovered_s for o in outcomes) / sum(o.busy_s for o in outcomes)
    assert isinstance(gaps, np.ndarray)
    return float(np.percentile(ttft_s, 95)), gap_percentile(gaps, 99), uncovered


def test_the_azure_trace_on_a_real_gpu_gets_a_verdict(result: PlanResult, traffic: Traffic) -> None:
    assert traffic.requests == 8819
    assert result.feasible
    assert result.excluded.count == 0
    choice = result.verdict.choice
    assert choice is not None
    assert choice.behaviour.uncovered_share <= 0.005
    assert all(p.claimed for p in choice.predictions)
    assert choice.predictions[0].requests == 8819
    json.dumps(result.to_dict(), allow_nan=False)


def test_the_numbers_of_the_verdict_are_those_of_plain_simulations(
    result: PlanResult, model: StepTimeModel, traffic: Traffic
) -> None:
    choice = result.verdict.choice
    assert choice is not None
    ttft_s, itl_s, uncovered = percentiles(traffic, model, choice.candidate.knobs, choice.candidate.replicas)
    assert [p.predicted_s for p in choice.predictions] == [ttft_s, itl_s]
    assert choice.behaviour.uncovered_share == pytest.approx(uncovered)
    assert ttft_s <= TTFT_LIMIT_S
    assert itl_s <= ITL_LIMIT_S


def test_one_replica_less_meets_the_objectives_with_no_combination(
    result: PlanResult, model: StepTimeModel, traffic: Traffic
) -> None:
    choice = result.verdict.choice
    assert choice is not None
    fewer = choice.candidate.replicas - 1
    assert fewer >= 1
    widest = {
        (c.knobs.max_num_batched_tokens, c.knobs.long_prefill_token_threshold): c.knobs
        for c in result.candidates
    }
    for knobs in widest.values():  # the last of each: most sequences, which only ever helps here
        ttft_s, itl_s, uncovered = percentiles(traffic, model, knobs, fewer)
        assert ttft_s > TTFT_LIMIT_S or itl_s > ITL_LIMIT_S or uncovered > 0.005


def test_a_burst_of_long_prompts_costs_first_tokens_and_big_budgets_cost_gaps(result: PlanResult) -> None:
    """The trade the user must see: at the same replicas, larger budgets raise ITL p99 well beyond the limit."""
    points = {
        c.knobs.max_num_batched_tokens: c.trade.itl_s
        for c in result.candidates
        if c.trade and c.knobs.long_prefill_token_threshold == 0 and c.knobs.max_num_seqs == 128
    }
    budgets = sorted(points)
    gaps = [points[budget] or 0.0 for budget in budgets]
    assert all(smaller < larger for smaller, larger in pairwise(gaps))
    assert gaps[-1] > 1.5 * ITL_LIMIT_S
