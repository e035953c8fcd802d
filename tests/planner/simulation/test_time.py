"""When things happen: hand-worked schedules, and a queue whose waiting time theory knows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from calibration.steptime.scalar import constant_model, linear_model
from planner.simulation import kernel, reference
from planner.simulation.knobs import VllmKnobs
from planner.simulation.outcome import Outcome

both = pytest.mark.parametrize("simulate", [reference.simulate, kernel.simulate], ids=["reference", "kernel"])
Simulate = Callable[..., Outcome]


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def knobs(*, lag: bool, budget: int = 100, seats: int = 10) -> VllmKnobs:
    return VllmKnobs(budget, seats, num_blocks=1_000, async_scheduling=lag)


@both
@pytest.mark.parametrize("lag", [False, True])
def test_a_request_alone(simulate: Simulate, lag: bool) -> None:
    """Two chunks of 4 and 2 tokens, then two decodes; a step lasts 1 s + 0.1 s per token."""
    model = linear_model(1.0, token_s=0.1)
    outcome = simulate(np.array([5.0]), ints(6), ints(3), None, knobs(lag=lag, budget=4), model)
    assert outcome.first_scheduled_s == 5.0
    assert outcome.prefill_end_s == outcome.first_token_s == pytest.approx(5.0 + 1.4 + 1.2)
    assert outcome.prefill_wait_s == pytest.approx(0.0, abs=1e-12)
    assert outcome.done_s == outcome.makespan_s == pytest.approx(7.6 + 2.2)
    assert outcome.max_gap_s == pytest.approx(1.1)
    assert outcome.tpot_s() == pytest.approx(1.1)
    assert outcome.busy_s == pytest.approx(4.8)
    assert outcome.utilisation == pytest.approx(4.8 / 9.8)
    assert outcome.step_counts.tolist() == [2, 2, 0]
    assert outcome.step_busy_s == pytest.approx([2.2, 2.6, 0.0])
    assert outcome.computed_tokens == 8
    assert outcome.generated_tokens_per_s == pytest.approx(3 / 9.8)
    assert outcome.prompt_tokens_per_s == pytest.approx(6 / 9.8)


@both
def test_asynchronous_scheduling_makes_an_arrival_wait_one_more_step(simulate: Simulate) -> None:
    """A runs 1 s steps from 0; B arrives at 0.5, in the first step."""
    arrival, prompts, outputs = np.array([0.0, 0.5]), ints(1, 1), ints(6, 1)
    sync = simulate(arrival, prompts, outputs, None, knobs(lag=False), constant_model(1.0))
    lagged = simulate(arrival, prompts, outputs, None, knobs(lag=True), constant_model(1.0))
    assert sync.first_scheduled_s.tolist() == [0.0, 1.0]
    # schedules 0 and 1 are made at time 0, schedule 2 when step 0 ends at 1; its work starts after step 1, at 2
    assert lagged.first_scheduled_s.tolist() == [0.0, 2.0]
    assert lagged.queue_s().tolist() == [0.0, 1.5]


@both
def test_asynchronous_scheduling_keeps_a_finished_request_one_schedule_longer(simulate: Simulate) -> None:
    """One seat, both there at 0: A's only token is out at 1, but the schedule made then does not know it yet."""
    arrival, prompts, outputs = np.zeros(2), ints(1, 1), ints(2, 1)
    sync = simulate(
        arrival, prompts, outputs, None, knobs(lag=False, seats=1), constant_model(1.0), record_steps=True
    )
    lagged = simulate(
        arrival, prompts, outputs, None, knobs(lag=True, seats=1), constant_model(1.0), record_steps=True
    )
    assert sync.record is not None
    assert lagged.record is not None
    assert np.diff(sync.record.offsets).tolist() == [1, 1, 1]
    # the schedule made at 1 is empty: A has no token left to compute, but its seat is still taken
    assert np.diff(lagged.record.offsets).tolist() == [1, 1, 0, 1, 0]
    assert lagged.empty_schedules == 2
    assert lagged.record.scheduled_s.tolist() == [0.0, 0.0, 1.0, 2.0, 2.0]
    assert (
        sync.done_s.tolist() == lagged.done_s.tolist() == [2.0, 3.0]
    )  # the empty schedule costs no time here


@both
@pytest.mark.parametrize("lag", [False, True])
def test_time_jumps_over_rest(simulate: Simulate, lag: bool) -> None:
    arrival = np.array([0.0, 100.0])
    outcome = simulate(arrival, ints(1, 1), ints(2, 2), None, knobs(lag=lag), constant_model(1.0))
    assert outcome.done_s.tolist() == [2.0, 102.0]
    assert outcome.utilisation == pytest.approx(4 / 102)


@both
def test_waits_between_chunks_are_kept_apart(simulate: Simulate) -> None:
    """Budget 2, steps of 1 s. A decodes 9 tokens; B's prompt of 4 gets the token that A leaves, in every step or,
    with an interval of 3, in steps 0, 3, 6 and 9 only."""
    arrival, prompts, outputs = np.zeros(2), ints(1, 4), ints(9, 1)
    for interval, ends_s, wait_s in ((1, 4.0, 0.0), (3, 10.0, 6.0)):
        spaced = VllmKnobs(2, 4, 100, async_scheduling=False, prefill_schedule_interval=interval)
        outcome = simulate(arrival, prompts, outputs, None, spaced, constant_model(1.0))
        assert outcome.first_scheduled_s.tolist() == [0.0, 0.0]
        assert outcome.prefill_end_s.tolist() == [1.0, ends_s]
        assert outcome.prefill_wait_s.tolist() == [0.0, wait_s]


@both
def test_a_preempted_request_has_a_long_gap(simulate: Simulate) -> None:
    """Two requests of 5 + 6 tokens and 8 blocks of 2: the later one loses its blocks and starts again."""
    small = VllmKnobs(16, 4, num_blocks=8, block_size=2, async_scheduling=False)
    outcome = simulate(np.zeros(2), ints(5, 5), ints(6, 6), None, small, constant_model(1.0))
    assert outcome.preemptions.tolist() == [0, 1]
    assert outcome.max_gap_s[0] == 1.0
    assert outcome.max_gap_s[1] > 1.0
    assert outcome.computed_tokens > 2 * 10
    assert outcome.gap_counts.sum() == 10
    assert outcome.percentile("itl", 100) == pytest.approx(outcome.max_gap_s[1], rel=1 / 256)


@both
def test_the_host_gap_is_part_of_every_step(simulate: Simulate) -> None:
    outcome = simulate(
        np.zeros(1), ints(1), ints(4), None, knobs(lag=True), constant_model(1.0), host_gap_s=0.25
    )
    assert outcome.done_s == 5.0
    assert outcome.busy_s == 5.0


@both
def test_uncovered_time_is_counted(simulate: Simulate) -> None:
    """Beyond 3 tokens a step is not covered: the prompt's step (5 tokens) is, the decodes are not."""
    model = constant_model(2.0)
    high = model.high.copy()
    high[0] = 3.0
    outcome = simulate(np.zeros(1), ints(5), ints(3), None, knobs(lag=False), model._replace(high=high))
    assert (outcome.uncovered_steps, outcome.uncovered_s, outcome.busy_s) == (1, 2.0, 6.0)
    assert outcome.uncovered_share == pytest.approx(1 / 3)


def single_server(load: float, requests: int, seed: int) -> Outcome:
    """M/D/1: one seat, one token, steps of 1 s, Poisson arrivals."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1 / load, requests))
    one = np.ones(requests, dtype=np.int64)
    return kernel.simulate(arrival, one, one, None, knobs(lag=False, seats=1), constant_model(1.0))


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_waiting_in_an_m_d_1_queue(load: float) -> None:
    """Mean waiting rho / (2 (1 - rho)) service times; the 95 % interval from 50 batch means is within 2 %."""
    waits = single_server(load, 1_000_000, seed=int(100 * load)).queue_s()
    batches = waits.reshape(50, -1).mean(axis=1)
    half_width = 1.96 * batches.std(ddof=1) / np.sqrt(len(batches))
    expected = load / (2 * (1 - load))
    assert half_width < 0.02 * expected
    assert abs(batches.mean() - expected) < 1.5 * half_width


def test_every_wait_follows_lindley() -> None:
    outcome = single_server(0.9, 3_000, seed=9)
    wait, previous = 0.0, outcome.arrival_s[0]
    for arrival_s, simulated in zip(outcome.arrival_s.tolist(), outcome.queue_s().tolist(), strict=True):
        wait = max(0.0, wait + (1.0 if arrival_s > previous else 0.0) - (arrival_s - previous))
        assert simulated == pytest.approx(wait, abs=1e-6)
        previous = arrival_s
