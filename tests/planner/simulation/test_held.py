"""Blocks and seats held over time: worked by hand, and the same sums in bins of any width."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.steptime.scalar import constant_model, linear_model
from calibration.transfer import TransferTable
from planner.simulation import kernel, reference
from planner.simulation.cluster import reference as cluster_reference
from planner.simulation.cluster.deployment import PULL, Disaggregated, HandOff, Network, pool
from planner.simulation.kernel import cluster
from planner.simulation.knobs import VllmKnobs
from planner.simulation.time_bins import (
    BUSY_S,
    COMPUTED_TOKENS,
    FINEST_BIN_S,
    GENERATED_TOKENS,
    HELD_BLOCKS,
    HELD_SEATS,
    MOST_BINS,
    STEPS,
    pooled_bins,
)


@pytest.mark.parametrize("simulate", [reference.simulate, kernel.simulate])
def test_one_request_then_a_rest_then_another(simulate) -> None:
    """Blocks of 4, steps of 1 s. A: 4 tokens in, 3 out, from 0 s: its steps hold 1, 2 and 2 blocks, then it rests
    until 10 s. B, 1 token in and out, holds 1 block for its step. 3 seat-seconds and 1."""
    outcome = simulate(
        np.array([0.0, 10.0]),
        np.array([4, 1]),
        np.array([3, 1]),
        None,
        VllmKnobs(8, 4, num_blocks=10, block_size=4, async_scheduling=False),
        constant_model(1.0),
        bin_s=1.0,
    )
    assert outcome.kv_block_s == 1 + 2 + 2 + 1
    assert outcome.kv_blocks == 10
    bins = outcome.bins
    assert outcome.bin_s == 1.0
    assert bins[:12, HELD_BLOCKS].tolist() == [1, 2, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0]
    assert bins[:12, HELD_SEATS].tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0]
    assert bins[:12, BUSY_S].tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0]
    assert bins[:12, COMPUTED_TOKENS].tolist() == [0, 4, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1]
    assert bins[:12, GENERATED_TOKENS].tolist() == [0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("simulate", [cluster_reference.simulate, cluster.simulate])
def test_a_prefill_replica_holds_blocks_until_they_are_pulled(simulate) -> None:
    """9 prompt tokens in blocks of 4: 3 blocks from 0 s, a step of 1 s, a pull of 8 tokens for 4 s: until 5 s. The
    decode side takes its 3 at 1 s, computes the last token at 5 s, and one output more: until 7 s."""
    knobs = VllmKnobs(16, 4, num_blocks=10, block_size=4, async_scheduling=False)
    deployment = Disaggregated(
        pool(1, knobs, constant_model(1.0)),
        pool(1, knobs, constant_model(1.0)),
        HandOff(PULL, bytes_per_token=1.0),
        Network.cards(TransferTable.line(0.0, 2.0)),
    )
    outcome = simulate(np.zeros(1), np.array([9]), np.array([2]), None, deployment, bin_s=1.0)
    assert outcome.requests.done_s.tolist() == [7.0]
    for link in outcome.links:
        assert (link.peak_bytes_per_s, link.busy_s, link.occupancy(7.0)) == (2.0, 4.0, 4 / 7)
    assert (outcome.prefill[0].kv_block_s, outcome.decode[0].kv_block_s) == (15.0, 18.0)
    assert outcome.requests.kv_block_s == 33.0
    assert outcome.requests.bins[:8, HELD_BLOCKS].tolist() == [3, 6, 6, 6, 6, 3, 3, 0]
    assert outcome.prefill[0].bins[:7, HELD_SEATS].tolist() == [1, 0, 0, 0, 0, 0, 0]


def test_bins_keep_every_sum_while_they_widen() -> None:
    """A run thousands of times longer than the finest bins last."""
    rng = np.random.default_rng(4)
    arrival, prompts, outputs = np.sort(rng.random(400) * 500), *rng.integers(1, 90, (2, 400))
    model = linear_model(0.01, token_s=1e-4, row_s=1e-3)
    knobs = VllmKnobs(256, 16, num_blocks=300)
    outcome = kernel.simulate(arrival, prompts, outputs, None, knobs, model, bin_s=FINEST_BIN_S)
    bins = outcome.bins
    assert len(bins) == MOST_BINS
    assert outcome.makespan_s / outcome.bin_s > MOST_BINS / 2 - 1
    sums = bins.sum(axis=0)
    assert sums[HELD_BLOCKS] == pytest.approx(outcome.kv_block_s, rel=1e-9)
    assert sums[BUSY_S] == pytest.approx(outcome.busy_s, rel=1e-9)
    assert sums[COMPUTED_TOKENS] == outcome.computed_tokens
    assert sums[GENERATED_TOKENS] == outputs.sum()
    assert sums[STEPS] == outcome.steps
    fewer = kernel.simulate(arrival, prompts, outputs, None, knobs, model, bin_s=outcome.bin_s)
    np.testing.assert_allclose(fewer.bins, bins, rtol=1e-9, atol=1e-9)
    plain = kernel.simulate(arrival, prompts, outputs, None, knobs, model)
    assert (plain.bins, plain.kv_block_s) == (None, outcome.kv_block_s)


def test_replicas_with_bins_of_different_widths_are_added_up() -> None:
    one, other = np.arange(24.0).reshape(4, 6), np.ones((4, 6))
    width, total = pooled_bins([(1.0, one), (2.0, other)])
    assert width == 2.0
    np.testing.assert_array_equal(total[:2], one[0::2] + one[1::2] + 1)
    np.testing.assert_array_equal(total[2:], other[2:])
    assert pooled_bins([(1.0, one), (0.0, None)]) == (0.0, None)
