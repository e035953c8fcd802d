"""SATURATED is said of loads above capacity, and of no load below it."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.steptime.scalar import constant_model, linear_model
from planner.simulation import kernel
from planner.simulation.knobs import VllmKnobs
from planner.simulation.outcome import Outcome
from planner.simulation.saturation import NO_LOAD, Load, judge, merge_loads

SEEDS = range(20)
ONE_SEAT = VllmKnobs(16, 1, num_blocks=100, async_scheduling=False)
BATCH = VllmKnobs(2048, 32, num_blocks=4_000)
BATCH_STEP = linear_model(0.010, token_s=5e-5, row_s=1e-4)


def single_server(load: float, seed: int) -> Outcome:
    arrival = np.cumsum(np.random.default_rng(seed).exponential(1 / load, 2_000))
    one = np.ones(len(arrival), dtype=np.int64)
    return kernel.simulate(arrival, one, one, None, ONE_SEAT, constant_model(1.0))


def batch_server(load: float, seed: int) -> Outcome:
    """Capacity is what the same requests take when all are there at once."""
    rng = np.random.default_rng(seed)
    prompts = rng.lognormal(np.log(300), 0.8, 2_000).astype(int).clip(1, 2_000)
    outputs = rng.lognormal(np.log(100), 0.7, 2_000).astype(int).clip(1, 800)
    at_once = kernel.simulate(np.zeros(2_000), prompts, outputs, None, BATCH, BATCH_STEP)
    arrival = np.cumsum(rng.exponential(at_once.makespan_s / 2_000 / load, 2_000))
    return kernel.simulate(arrival, prompts, outputs, None, BATCH, BATCH_STEP)


@pytest.mark.parametrize("server", [single_server, batch_server])
@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
def test_below_capacity_is_never_saturated(server, load: float) -> None:
    loads = [server(load, seed).load for seed in SEEDS]
    assert [found.saturated for found in loads] == [False] * len(SEEDS)
    assert all(found.settled for found in loads)
    assert {found.verdict for found in loads} == {"STABLE"}
    assert load > 0.8 or not any(found.near_capacity for found in loads)
    assert min(found.unserved_share for found in loads) >= 0.0


@pytest.mark.parametrize("server", [single_server, batch_server])
@pytest.mark.parametrize("load", [1.2, 1.5, 3.0])
def test_above_capacity_is_always_saturated(server, load: float) -> None:
    loads = [server(load, seed).load for seed in SEEDS]
    assert [found.saturated for found in loads] == [True] * len(SEEDS)
    unserved = np.mean([found.unserved_share for found in loads])
    assert unserved == pytest.approx(1 - 1 / load, abs=0.05)  # offered minus served, of offered


def test_few_requests_are_not_judged() -> None:
    arrival = np.linspace(0, 1, 99)
    assert not judge(arrival, arrival + 1e6, np.array([0, 0, 0, 10_000]), 0.0).saturated


def test_a_burst_after_rest_is_not_saturation() -> None:
    arrival = np.linspace(0.0, 100.0, 400)
    queue = np.array([100, 100, 100, 2_000])
    assert judge(arrival, arrival + 1.0, queue, idle_late_s=0.0).saturated
    assert not judge(arrival, arrival + 1.0, queue, idle_late_s=20.0).saturated


def test_everything_at_once_is_not_judged() -> None:
    one = np.ones(500, dtype=np.int64)
    outcome = kernel.simulate(np.zeros(500), one, one, None, ONE_SEAT, constant_model(1.0))
    assert outcome.load == NO_LOAD
    assert outcome.load.verdict == "not judged"


def test_a_pool_is_as_saturated_as_its_worst_replica() -> None:
    calm, full = Load(False, 0.03, 0.5, True), Load(True, 0.025, 0.0, True)
    assert merge_loads([calm, full]) is full


def rushed(load: float) -> Load:
    """100 requests at once, then one each 1/load s: of a server that takes 1 s for each."""
    arrival = np.concatenate([np.zeros(100), (1.0 + np.arange(900)) / load])
    one = np.ones(len(arrival), dtype=np.int64)
    return kernel.simulate(arrival, one, one, None, ONE_SEAT, constant_model(1.0)).load


def test_a_queue_that_stands_and_does_not_grow_is_told() -> None:
    full = rushed(1.0)
    assert (full.verdict, full.near_capacity) == ("STABLE", True)
    assert not rushed(0.7).near_capacity, "it drained"
    assert not rushed(1.5).near_capacity, "it is saturated"
    falling = rushed(0.95)
    assert (falling.near_capacity, falling.unserved_share) == (True, 0.0), "nothing is served twice"


def test_a_pool_stands_in_the_queue_of_its_fullest_replica() -> None:
    calm = Load(False, 0.01, 0.5, True)
    assert merge_loads([calm, rushed(1.0)]).near_capacity
