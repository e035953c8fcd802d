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
from planner.simulation.profile import Profile
from planner.simulation.reference_requests import Batch, Engine
from planner.simulation.reference_schedule import schedule
from planner.simulation.workload import prepare
from tests.planner.simulation.workloads import (
    assert_same,
    random_prefix,
    random_workload,
    speculating,
)

WORKLOADS = 1_000
PART = 100


def cached_workload(seed: int, *, guesses: bool = False) -> dict[str, Any]:
    """A random workload with a prefix cache: prompts that share beginnings, none that do, or an assumed share."""
    arguments = random_workload(seed, most_requests=24).arguments()
    if guesses:
        arguments = speculating(arguments, seed)
    rng = np.random.default_rng(seed + 10_000)
    knobs = replace(arguments["knobs"], prefix_caching=True)
    kind = rng.choice(["hashes", "hashes", "hashes", "own", "assumed"])
    if kind == "hashes":
        arguments["prefix"] = random_prefix(
            rng, arguments["prompt_tokens"], knobs.block_size, knobs.profile.named_ahead
        )
    if kind == "assumed":
        arguments["assumed_hit_share"] = float(rng.choice([0.1, 0.5, 0.9, 1.0]))
    return arguments | {"knobs": knobs}


@pytest.mark.parametrize(
    ("first", "guesses"),
    [(first, guesses) for guesses in (False, True) for first in range(0, WORKLOADS, PART)],
)
def test_random_workloads_agree(first: int, guesses: bool) -> None:
    for seed in range(first, first + PART):
        arguments = cached_workload(seed, guesses=guesses)
        record = seed % 3 == 0
        expected = reference.simulate(**arguments, record_steps=record)
        assert_same(expected, kernel.simulate(**arguments, record_steps=record))


@pytest.mark.parametrize("guesses", [False, True])
def test_the_random_workloads_meet_every_rule(guesses: bool) -> None:
    outcomes = [kernel.simulate(**cached_workload(seed, guesses=guesses)) for seed in range(WORKLOADS)]
    assert (sum(outcome.accepted_tokens for outcome in outcomes) > 10_000) == guesses
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
@given(SEEDS, st.booleans())
def test_in_the_reference_every_block_is_in_one_place(seed: int, guesses: bool) -> None:
    def checked(engine: Engine) -> Batch:
        batch = schedule(engine)
        check_reference(engine)
        return batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "schedule", checked)
        reference.simulate(**cached_workload(seed, guesses=guesses))


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
@given(SEEDS, st.booleans())
def test_in_the_kernel_nodes_and_blocks_add_up(seed: int, guesses: bool) -> None:
    arguments = cached_workload(seed, guesses=guesses)
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
        int(state.places["node"][request["shared_at"] + block])
        for request in state.prefix
        for block in range(request["held"])
    )
    assert all(nodes[at]["holders"] == count for at, count in held.items())
