"""Random workloads for the simulators: small pools, odd knobs and bursts, so that every rule is met."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from calibration.steptime.scalar import StepTimeArrays, linear_model
from planner.simulation.knobs import VllmKnobs
from planner.simulation.outcome import Outcome
from planner.simulation.saturation import Load


@dataclass(frozen=True)
class RandomWorkload:
    arrival_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    priority: np.ndarray | None
    knobs: VllmKnobs
    step_time: StepTimeArrays
    clock: str
    host_gap_s: float
    tie: np.ndarray | None

    def arguments(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def random_workload(seed: int, most_requests: int = 60) -> RandomWorkload:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, most_requests + 1))
    prompts = rng.integers(1, int(rng.choice([2, 12, 60, 400])), count)
    outputs = rng.integers(1, int(rng.choice([2, 8, 40, 150])), count)
    block = int(rng.choice([1, 2, 4, 8, 16, 3]))
    largest = int(np.max(-(-(prompts + outputs - 1) // block)))
    blocks = int(largest * rng.choice([0.8, 1.0, 1.2, 2.0, 5.0, 100.0])) + int(rng.integers(0, 3))
    steps = rng.random() < 0.2
    span = float(rng.choice([0.0, 5.0, 40.0, 300.0, 3000.0]))
    arrival = np.sort(rng.random(count) * span)
    if steps or rng.random() < 0.3:  # equal arrivals
        arrival = np.floor(arrival)
    priority = rng.random() < 0.35
    knobs = VllmKnobs(
        max_num_batched_tokens=int(rng.choice([1, 4, 7, 16, 64, 256, 1024])),
        max_num_seqs=int(rng.choice([1, 2, 4, 9, 24, 100])),
        num_blocks=max(1, blocks),
        block_size=block,
        long_prefill_token_threshold=int(rng.choice([0, 0, 1, 3, 20, 100])),
        adaptive_threshold=bool(rng.random() < 0.3),
        prefill_schedule_interval=int(rng.choice([1, 1, 1, 2, 3, 5])),
        policy="priority" if priority else "fcfs",
        watermark=float(rng.choice([0.0, 0.0, 0.05, 0.3])),
        async_scheduling=bool(rng.random() < 0.5),
    )
    step_time = linear_model(
        float(rng.random()),
        token_s=float(rng.random() * 0.02),
        row_s=float(rng.random() * 0.02),
        logit_s=float(rng.random() * 0.01),
        decode_context_s=float(rng.random() * 1e-3),
        mixed_s=float(rng.random()),
        pair_s=float(rng.random() * 1e-4),
    )
    return RandomWorkload(
        arrival_s=arrival,
        prompt_tokens=prompts,
        output_tokens=outputs,
        priority=rng.integers(0, 3, count) if priority else None,
        knobs=knobs,
        step_time=with_holes(step_time, rng) if rng.random() < 0.5 else step_time,
        clock="steps" if steps else "seconds",
        host_gap_s=float(rng.choice([0.0, 0.001])),
        tie=rng.permutation(count) if rng.random() < 0.5 else None,
    )


def with_holes(model: StepTimeArrays, rng: np.random.Generator) -> StepTimeArrays:
    """A model that covers only part of the feature space, so that some steps are uncovered and clipped."""
    low, high = model.low.copy(), model.high.copy()
    high[0] = float(rng.integers(2, 64))  # tokens
    high[3] = float(rng.integers(10, 1000))  # sum of decode contexts
    return model._replace(low=low, high=high)


def assert_same(one: Outcome, other: Outcome) -> None:
    """Bit for bit: every array and number of the outcome and of its step record."""
    for field in fields(Outcome):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if field.name == "record" and left is not None:
            for part in fields(left):
                assert_equal(f"record.{part.name}", getattr(left, part.name), getattr(right, part.name))
        else:
            assert_equal(field.name, left, right)


def assert_equal(name: str, left: Any, right: Any) -> None:
    if isinstance(left, np.ndarray):
        assert left.dtype == right.dtype, name
        np.testing.assert_array_equal(left, right, err_msg=name)  # NaN equals NaN, nothing is approximate
    else:
        assert left == right, name
        assert isinstance(left, Load) or type(left) is type(right), name
