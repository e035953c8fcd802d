"""A link that is offered more than it moves makes the run saturated, though every replica rests."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.steptime.scalar import constant_model
from calibration.transfer import TransferTable
from planner.simulation.cluster.deployment import HAND_OFFS, PULL, Disaggregated, HandOff, Network, pool
from planner.simulation.cluster.outcome import ClusterOutcome
from planner.simulation.cluster.transfers_load import judge_transfers
from planner.simulation.kernel import cluster
from planner.simulation.knobs import VllmKnobs


def offered(load: float, seed: int, mode: str = PULL, count: int = 2000) -> ClusterOutcome:
    """Transfers of 1 s one by one, on average 1 / load s apart; two replicas on either side, steps of 0.01 s."""
    arrival = np.cumsum(np.random.default_rng(seed).exponential(1.0 / load, count))
    model, knobs = constant_model(0.01), VllmKnobs(8192, 256, num_blocks=100_000)
    deployment = Disaggregated(
        pool(2, knobs, model),
        pool(2, knobs, model),
        HandOff(mode, bytes_per_token=1.0),
        Network(TransferTable.line(0.0, 100.0), fabric_bytes_per_s=100.0),
    )
    prompts = np.full(count, 101 if mode == PULL else 100)
    return cluster.simulate(arrival, prompts, np.full(count, 2), None, deployment)


@pytest.mark.parametrize("mode", HAND_OFFS)
def test_above_the_links_capacity(mode: str) -> None:
    for seed in range(10):
        for load in (1.2, 2.0):
            outcome = offered(load, seed, mode)
            assert outcome.requests.load.verdict == "SATURATED"
            assert outcome.transfers_load.unserved_share > 1 - 1 / load - 0.05  # sharing, all are late
            assert not any(use.load.saturated for use in (*outcome.prefill, *outcome.decode))
        for load in (0.3, 0.7, 0.9):
            assert offered(load, seed, mode).requests.load.verdict == "STABLE"


def test_judged_by_hand() -> None:
    """200 requests a second apart, each transfer 2 s, one after the other: half of them are never served in time."""
    prefilled = np.arange(200.0)
    ready = 2.0 * np.arange(200.0) + 2.0
    load = judge_transfers(prefilled, ready - 2.0, ready)
    assert (load.saturated, load.idle_share) == (True, 0.0)
    assert load.unserved_share == pytest.approx(0.5, abs=0.01)
    rests = judge_transfers(
        prefilled, prefilled, prefilled + 0.75
    )  # under way for three quarters of the time
    assert (rests.saturated, rests.unserved_share) == (False, 0.0)
    assert rests.idle_share == pytest.approx(0.25, abs=0.01)
    nobody = judge_transfers(np.zeros(0), np.zeros(0), np.zeros(0))
    assert not nobody.judged
