"""The prefix cache on random workloads: the kernel equals the reference, and no block is lost or counted twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.steptime.scalar import linear_model
from planner.simulation import kernel, reference
from planner.simulation.kernel.entries import ADVANCE
from planner.simulation.kernel.loop import PAUSED
from planner.simulation.kernel.state import State, build
from planner.simulation.knobs import VllmKnobs
from planner.simulation.prefix import PrefixBlocks, blocks_of
from planner.simulation.profile import Profile
from planner.simulation.reference_requests import Batch, Engine
from planner.simulation.reference_schedule import schedule
from planner.simulation.workload import prepare
from planner.traffic.model import PrefixHashes
from tests.planner.simulation.workloads import assert_same, random_workload

WORKLOADS = 1_000
PART = 100


def cached_workload(seed: int) -> dict[str, Any]:
    """A random workload with a prefix cache: prompts that share beginnings, none that do, or an assumed share."""
    arguments = random_workload(seed, most_requests=24).arguments()
    rng = np.random.default_rng(seed + 10_000)
    knobs = replace(arguments["knobs"], prefix_caching=True)
    kind = rng.choice(["hashes", "hashes", "hashes", "own", "assumed"])
    if kind == "hashes":
        arguments["prefix"] = random_prefix(rng, arguments["prompt_tokens"], knobs.block_size)
    if kind == "assumed":
        arguments["assumed_hit_share"] = float(rng.choice([0.1, 0.5, 0.9, 1.0]))
    return arguments | {"knobs": knobs}


def random_prefix(rng: np.random.Generator, prompts: np.ndarray, block: int) -> PrefixBlocks:
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
    return blocks_of(hashes, prompts, block)


@pytest.mark.parametrize("first", range(0, WORKLOADS, PART))
def test_random_workloads_agree(first: int) -> None:
    for seed in range(first, first + PART):
        arguments = cached_workload(seed)
        record = seed % 3 == 0
        expected = reference.simulate(**arguments, record_steps=record)
        assert_same(expected, kernel.simulate(**arguments, record_steps=record))


def test_the_random_workloads_meet_every_rule() -> None:
    outcomes = [kernel.simulate(**cached_workload(seed)) for seed in range(WORKLOADS)]
    assert sum(outcome.hit_tokens.sum() for outcome in outcomes) > 10_000
    assert sum(outcome.rehit_tokens.sum() for outcome in outcomes) > 10_000
    assert sum(outcome.preemptions.sum() for outcome in outcomes) > 1_000


def test_a_long_busy_run_agrees() -> None:
    rng = np.random.default_rng(11)
    count = 400
    arrival = np.cumsum(rng.exponential(0.02, count))
    prompts, outputs = rng.integers(1, 900, count), rng.integers(1, 300, count)
    model = linear_model(0.01, token_s=1e-5, row_s=1e-4, decode_context_s=1e-7, pair_s=1e-9)
    prefix = random_prefix(rng, prompts, 16)
    for policy, lag in (("fcfs", False), ("fcfs", True), ("priority", True)):
        knobs = VllmKnobs(
            512, 128, num_blocks=900, async_scheduling=lag, policy=policy, prefix_caching=True,
            long_prefill_token_threshold=200,
        )  # fmt: skip
        priority = rng.integers(0, 3, count) if policy == "priority" else None
        arguments = (arrival, prompts, outputs, priority, knobs, model)
        expected = reference.simulate(*arguments, prefix=prefix)
        assert expected.preemptions.sum() > 50
        assert expected.hit_tokens.sum() > 10_000
        assert expected.rehit_tokens.sum() > 10_000
        assert_same(expected, kernel.simulate(*arguments, prefix=prefix))


SEEDS = st.integers(0, 1 << 32)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(SEEDS)
def test_in_the_reference_every_block_is_in_one_place(seed: int) -> None:
    def checked(engine: Engine) -> Batch:
        batch = schedule(engine)
        check_reference(engine)
        return batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "schedule", checked)
        reference.simulate(**cached_workload(seed))


def check_reference(engine: Engine) -> None:
    """Holders are counted right, free and held blocks make up the pool, and every name leads to its copies."""
    cache = engine.cache
    assert cache is not None
    holders = Counter(block for held in cache.held.values() for block in held.blocks)
    assert all(block.holders == count for block, count in holders.items())
    assert all(block.holders == 0 for block in cache.queue.values())
    assert engine.free == len(cache.queue)
    assert engine.free + len(holders) == engine.profile.num_blocks
    assert {request.index: request.blocks for request in engine.running} == {
        request: len(held.blocks) for request, held in cache.held.items()
    }
    named = {block for block in [*holders, *cache.queue.values()] if block.name is not None}
    assert named == {block for copies in cache.copies.values() for block in copies.values()}
    queue = [block.name is not None for block in cache.queue.values()]
    assert queue == sorted(queue)  # nameless ones first


@settings(max_examples=50, deadline=None, derandomize=True)
@given(SEEDS)
def test_in_the_kernel_nodes_and_blocks_add_up(seed: int) -> None:
    arguments = cached_workload(seed)
    knobs, model = arguments["knobs"], arguments["step_time"]
    columns = [arguments[name] for name in ("arrival_s", "prompt_tokens", "output_tokens", "priority")]
    prefix, share = arguments.get("prefix"), arguments.get("assumed_hit_share", 0.0)
    workload = prepare(*columns, knobs.profile, prefix=prefix, assumed_hit_share=share)
    state = build(workload, knobs.profile, count_steps=False, record=False, host_gap_s=0.0)
    advance = ADVANCE[knobs.profile.assembler]
    while advance(state, model, 3) == PAUSED:
        check_kernel(state, knobs.profile)
    check_kernel(state, knobs.profile)
    assert state.now["free"][0] == knobs.num_blocks
    assert (state.prefix["held"] == 0).all()


def check_kernel(state: State, profile: Profile) -> None:
    now, nodes = state.now[0], state.nodes
    listed, at, before = 0, int(now["first_free"]), -1
    while at >= 0:
        node = nodes[at]
        assert node["previous"] == before
        shared = node["name"] >= 0
        assert not shared or node["holders"] == 0
        listed += 1 if shared else int(node["count"])
        if not shared and node["owner"] >= 0:
            assert state.prefix[node["owner"]]["own"] == node["count"]
        at, before = int(node["next"]), at
    assert before == now["last_free"]
    assert listed == now["listed"]
    assert 0 <= now["free"] <= now["fresh"] + now["listed"] <= profile.num_blocks
    assert now["nodes"] <= profile.num_blocks
    held = Counter(
        int(state.shared["node"][request["shared_at"] + block])
        for request in state.prefix
        for block in range(request["held"])
    )
    assert all(nodes[at]["holders"] == count for at, count in held.items())
