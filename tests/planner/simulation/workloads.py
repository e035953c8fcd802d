"""Random workloads for the simulators: small pools, odd knobs and bursts, so that every rule is met."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from calibration.steptime.scalar import StepTimeArrays, linear_model
from planner.simulation.knobs import (
    Knobs,
    OrcaKnobs,
    PolicyKnobs,
    PrefillFirstKnobs,
    SarathiKnobs,
    SglangKnobs,
    SpeculativeConfig,
    TrtLlmKnobs,
    VllmKnobs,
)
from planner.simulation.outcome import Outcome
from planner.simulation.prefix import PrefixBlocks, blocks_of
from planner.simulation.saturation import Load
from planner.traffic.model import PrefixHashes


@dataclass(frozen=True)
class RandomWorkload:
    arrival_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    priority: np.ndarray | None
    knobs: Knobs
    step_time: StepTimeArrays
    clock: str
    host_gap_s: float
    tie: np.ndarray | None
    max_tokens: np.ndarray | None = None

    def arguments(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


ENGINES = ("vllm", "sglang", "trtllm", "sarathi", "orca", "prefill-first", "policy")


def random_workload(seed: int, most_requests: int = 60, engine: str = "vllm") -> RandomWorkload:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, most_requests + 1))
    prompts = rng.integers(1, int(rng.choice([2, 12, 60, 400])), count)
    outputs = rng.integers(1, int(rng.choice([2, 8, 40, 150])), count)
    block = int(rng.choice([1, 2, 4, 8, 16, 3]))
    steps = rng.random() < 0.2
    span = float(rng.choice([0.0, 5.0, 40.0, 300.0, 3000.0]))
    room = float(rng.choice([0.8, 1.0, 1.2, 2.0, 5.0, 100.0]))
    if engine == "sglang" and rng.random() < 0.5:  # what makes an estimate too low
        prompts, outputs = rng.integers(1, 12, count), rng.integers(40, 150, count)
        span, room = 20.0, float(rng.choice([1.2, 2.0, 3.0]))
    largest = int(np.max(-(-(prompts + outputs - 1) // block)))
    blocks = int(largest * room) + int(rng.integers(0, 3))
    arrival = np.sort(rng.random(count) * span)
    if steps or rng.random() < 0.3:  # equal arrivals
        arrival = np.floor(arrival)
    knobs = random_knobs(engine, rng, max(1, blocks), block)
    priority = getattr(knobs, "policy", "") == "priority"
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
        max_tokens=outputs + rng.integers(0, 40, count) if rng.random() < 0.3 else None,
    )


def random_knobs(engine: str, rng: np.random.Generator, blocks: int, block: int) -> Knobs:
    budget = int(rng.choice([1, 4, 7, 16, 64, 256, 1024]))
    seats = int(rng.choice([1, 2, 4, 9, 24, 100]))
    lag = bool(rng.random() < 0.5)
    if engine == "vllm":
        return VllmKnobs(
            max_num_batched_tokens=budget,
            max_num_seqs=seats,
            num_blocks=blocks,
            block_size=block,
            long_prefill_token_threshold=int(rng.choice([0, 0, 1, 3, 20, 100])),
            adaptive_threshold=bool(rng.random() < 0.3),
            prefill_schedule_interval=int(rng.choice([1, 1, 1, 2, 3, 5])),
            policy=str(rng.choice(["fcfs", "fcfs", "priority"])),
            watermark=float(rng.choice([0.0, 0.0, 0.05, 0.3])),
            async_scheduling=lag,
        )
    if engine == "sglang":
        mixed = bool(rng.random() < 0.5)
        whole = not mixed and rng.random() < 0.25
        return SglangKnobs(
            chunked_prefill_size=-1 if whole else block * max(1, budget // block),
            max_prefill_tokens=block * max(1, int(rng.choice([7, 64, 400])) // block) if whole else 16384,
            max_running_requests=seats if rng.random() < 0.3 else 24,
            max_total_tokens=(blocks + 2 + blocks // 5) * block + int(rng.integers(0, block)),
            page_size=block,
            enable_mixed_chunk=mixed,
            init_new_token_ratio=float(rng.choice([0.0, 0.0, 0.0, 0.05, 0.1, 0.7])),
            new_token_ratio_decay_steps=int(rng.choice([5, 600])),
            prefill_decode_interval=int(rng.choice([0, 0, 0, 1, 3])),
            prefill_decode_interval_min_bs=int(rng.choice([0, 2])),
            overlap_schedule=lag,
        )
    if engine == "trtllm":
        chunked = bool(rng.random() < 0.7)
        return TrtLlmKnobs(
            max_num_tokens=max(block, budget),
            max_batch_size=seats,
            num_blocks=blocks,
            tokens_per_block=block,
            enable_chunked_prefill=chunked,
            context_chunking_policy=str(rng.choice(["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"])),
            overlap_scheduler=lag,
        )
    watermark = int(rng.choice([0, 0, 1, 3]))
    if engine == "sarathi":
        return SarathiKnobs(budget, seats, blocks, block, watermark)
    if engine == "prefill-first":
        return PrefillFirstKnobs(budget if rng.random() < 0.5 else 1024, seats, blocks, block, watermark)
    if engine == "orca":
        longest = -(-blocks * block // int(rng.choice([1, 1, 2])))
        return OrcaKnobs(seats, longest, blocks * int(rng.choice([1, 3, 10])), block)
    return PolicyKnobs(
        max_num_batched_tokens=budget,
        max_num_seqs=seats,
        num_blocks=blocks,
        block_size=block,
        policy=str(rng.choice(["decode-first", "prefill-first", "fair-share"])),
        prefill_share=float(rng.choice([0.1, 0.5, 0.9])),
        share_of=str(rng.choice(["tokens", "time"])),
        async_scheduling=lag,
    )


def speculating(arguments: dict[str, Any], seed: int) -> dict[str, Any]:
    """By priority nobody comes at the very instant of another (a `tie` says so): of equals vLLM preempts the first, so
    two of them can take each other's blocks for ever."""
    rng = np.random.default_rng(seed + 1_000_000)
    knobs = guessing(arguments["knobs"], random_config(rng, seed))
    arrival_s = arguments["arrival_s"]
    if knobs.policy == "priority" and arguments["tie"] is not None:
        arrival_s = arrival_s + 1e-6 * np.arange(len(arrival_s))
    return {**arguments, "arrival_s": arrival_s, "knobs": knobs}


def guessing(knobs: VllmKnobs, config: SpeculativeConfig | None) -> VllmKnobs:
    """With a budget that can hold its guesses."""
    least = 1 + config.num_speculative_tokens if config else 1
    budget = max(knobs.max_num_batched_tokens, least)
    return replace(knobs, max_num_batched_tokens=budget, speculative_config=config)


def random_config(rng: np.random.Generator, seed: int) -> SpeculativeConfig:
    return SpeculativeConfig(
        num_speculative_tokens=int(rng.choice([1, 2, 3, 5, 8])),
        acceptance_rate=float(rng.choice([0.0, 0.3, 0.6, 0.9, 1.0])),
        method=str(rng.choice(["eagle", "ngram_gpu", "draft_model"])),
        draft_step_s=float(rng.choice([0.0, 0.1])),
        seed=seed,
    )


def random_prefix(rng: np.random.Generator, prompts: np.ndarray, block: int, ahead: int = 0) -> PrefixBlocks:
    """Prompts drawn from a few families; members agree up to a random point, some to their last block."""
    trace_block = int(rng.choice([block, block, 2 * block, max(1, block // 2), 5]))
    families = rng.integers(0, int(rng.choice([1, 2, 5])), len(prompts))
    alike = float(rng.choice([0.3, 0.8, 1.0]))
    flat: list[int] = []
    offsets = [0]
    for request, (prompt, family) in enumerate(zip(prompts.tolist(), families.tolist(), strict=True)):
        blocks = -(-prompt // trace_block)
        same = blocks if rng.random() < alike else int(rng.integers(0, blocks + 1))
        flat += [1000 * family + i if i < same else 1_000_000 * (request + 1) + i for i in range(blocks)]
        offsets.append(len(flat))
    hashes = PrefixHashes(np.array(flat, dtype=np.uint64), np.array(offsets, dtype=np.int64), trace_block)
    return blocks_of(hashes, prompts, block, ahead)


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
