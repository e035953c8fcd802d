"""The prefix cache on the Mooncake trace (512-token hashes) with a cache that forgets nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibration.steptime.scalar import constant_model
from calibration.transfer import TransferTable
from planner.simulation import kernel
from planner.simulation.cluster.deployment import Aggregated, PrefixPool, pool
from planner.simulation.kernel import cluster
from planner.simulation.knobs import VllmKnobs
from planner.simulation.outcome import Outcome
from planner.simulation.prefix import blocks_of
from planner.traffic import Traffic, read_traffic

TRACE_BLOCK = 512


@pytest.fixture(scope="module")
def traffic(reference_data: Path) -> Traffic:
    path = reference_data / "traces" / "mooncake-synthetic.jsonl.gz"
    with path.open("rb") as file:
        return read_traffic(file, name=path.name)


def unlimited(traffic: Traffic, block: int) -> Outcome:
    """Every request is over before the next comes, and the pool holds all of them at once."""
    blocks = int((-(-(traffic.prompt_tokens + traffic.output_tokens) // block)).sum())
    knobs = VllmKnobs(1 << 20, 4096, num_blocks=blocks, block_size=block, prefix_caching=True)
    assert traffic.prefix_hashes is not None
    return kernel.simulate(
        traffic.arrival_s,
        traffic.prompt_tokens,
        traffic.output_tokens,
        None,
        knobs,
        constant_model(1e-9),
        prefix=blocks_of(traffic.prefix_hashes, traffic.prompt_tokens, block),
    )


def seen_before(traffic: Traffic, block: int) -> list[int]:
    """Tokens of each prompt that an earlier one had too, counted block by block with a set; never the last one."""
    hashes = traffic.prefix_hashes
    assert hashes is not None
    seen: set[tuple[int, int]] = set()
    found = []
    flat, offsets = hashes.flat.tolist(), hashes.offsets.tolist()
    for prompt, start, stop in zip(traffic.prompt_tokens.tolist(), offsets[:-1], offsets[1:], strict=True):
        beginning, names = 0, []
        for i in range(prompt // block):
            if ((i + 1) * block - 1) // TRACE_BLOCK != (i * block - 1) // TRACE_BLOCK or i == 0:
                place = start + ((i + 1) * block - 1) // TRACE_BLOCK
                assert place < stop
                beginning = hash((beginning, flat[place]))
            names.append((beginning, i))
        hits = 0
        while hits < min(len(names), (prompt - 1) // block) and names[hits] in seen:
            hits += 1
        found.append(hits * block)
        seen.update(names)
    return found


def test_every_hit_is_one_that_an_account_of_its_own_finds(traffic: Traffic) -> None:
    outcome = unlimited(traffic, 64)
    assert outcome.hit_tokens.tolist() == seen_before(traffic, 64)
    assert outcome.hit_rate == pytest.approx(0.6511, abs=5e-5)  # of the tokens
    assert outcome.preemptions.sum() == 0


@pytest.mark.parametrize(("block", "expected"), [(8, 0.640), (16, 0.639)])
def test_hit_rate_by_trace_blocks(traffic: Traffic, block: int, expected: float) -> None:
    """0.640 of the trace's blocks were seen before. A KV block is only ever hit when it is full, so the part of a
    repeated prompt's last trace block that does not fill one is computed again: with 16 tokens that costs 36 of
    the 121,000 trace blocks their hit, 0.6394 instead of 0.6396."""
    outcome = unlimited(traffic, block)
    touched = -(-outcome.hit_tokens // TRACE_BLOCK)
    assert traffic.prefix_hashes is not None
    assert round(float(touched.sum()) / len(traffic.prefix_hashes.flat), 3) == expected


def test_hit_rate_of_replicas_with_a_prefix_pool(traffic: Traffic) -> None:
    """Two replicas in turn, each with a cache that forgets nothing, and a pool that forgets nothing: what one replica
    lacks the other has computed, so together they find what one alone would, 0.640 by blocks."""
    block = 8
    blocks = int((-(-(traffic.prompt_tokens + traffic.output_tokens) // block)).sum())
    knobs = VllmKnobs(1 << 20, 4096, num_blocks=blocks, block_size=block, prefix_caching=True)
    assert traffic.prefix_hashes is not None
    prefix = blocks_of(traffic.prefix_hashes, traffic.prompt_tokens, block)
    shared = PrefixPool(TransferTable.line(0.0, 1e18), bytes_per_s=1e18, bytes_per_token=1.0)
    load = traffic.arrival_s, traffic.prompt_tokens, traffic.output_tokens, None
    deployment = Aggregated(pool(2, knobs, constant_model(1e-9)), prefix_pool=shared)
    outcome = cluster.simulate(*load, deployment, prefix=prefix)
    alone = unlimited(traffic, block)
    found = outcome.requests.hit_tokens + outcome.pool_hit_tokens
    np.testing.assert_array_equal(found, alone.hit_tokens)
    rate = float((-(-found // TRACE_BLOCK)).sum()) / len(traffic.prefix_hashes.flat)
    assert round(rate, 3) == 0.640
    assert outcome.pool_hit_tokens.sum() > 0.2 * found.sum()
    assert outcome.links[0].bytes == outcome.pool_hit_tokens.sum()


def test_a_cache_of_limited_size_hits_less(traffic: Traffic) -> None:
    assert traffic.prefix_hashes is not None
    prefix = blocks_of(traffic.prefix_hashes, traffic.prompt_tokens, 16)
    rates = []
    for blocks in (20_000, 60_000, 200_000):
        knobs = VllmKnobs(1 << 20, 4096, num_blocks=blocks, prefix_caching=True)
        outcome = kernel.simulate(
            traffic.arrival_s, traffic.prompt_tokens, traffic.output_tokens, None, knobs, constant_model(1e-9),
            prefix=prefix,
        )  # fmt: skip
        rates.append(outcome.hit_rate)
    assert np.all(np.diff(rates) > 0.01)
    assert rates[-1] < 0.6512
