"""What queueing theory says, against long compiled runs: M/M/c with the engine's steps taken into account, and
Little's law in every run.

How a workload becomes the queue: one prompt token, a step of one second whatever it holds, synchronous schedules, c
seats. A request with n output tokens then is in service for n seconds. M/D/1 (one seat, one token) is in
`test_time`. For M/M/c the outputs are geometric, and since an engine admits nobody within a step this is a queue in
discrete time, whose mean waiting is computed here exactly, not approximated by Erlang's formula.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from calibration.steptime.scalar import constant_model, linear_model
from planner.simulation import kernel
from planner.simulation.knobs import SglangKnobs, SpeculativeConfig, TrtLlmKnobs, VllmKnobs
from planner.simulation.time_bins import HELD_SEATS
from tests.planner.simulation.workloads import ENGINES, random_workload

STATES = 400  # requests in the system at most; beyond it the probability is nothing


def waiting_by_steps(seats: int, rate_per_s: float, ends: float) -> float:
    """Mean waiting time in a queue that is served in steps of 1 s, exactly.

    Requests arrive by a Poisson process; in service at most `seats`, each of which ends with a step with probability
    `ends`. Waiting is over at the next step that has a seat; a step begins when one ends, or with an arrival to an
    empty system. The chain of the numbers n in the system at the beginnings of steps, from n >= 1: of min(n, seats)
    in service some leave (binomial), some arrive meanwhile (Poisson), and 0 becomes 1 after an idle time. In a step
    that began with n, (n - seats)+ requests wait throughout and arrivals half of it on average; Little's law for the
    queue turns their integral into the mean waiting time.
    """
    counts = np.arange(STATES)
    arriving = np.exp(counts * math.log(rate_per_s) - rate_per_s - np.cumsum(np.log(np.maximum(counts, 1))))
    after = np.zeros((STATES, STATES))  # [n, n of the end of the step]
    for n in range(1, STATES):
        served = min(n, seats)
        for leave in range(served + 1):
            share = math.comb(served, leave) * ends**leave * (1 - ends) ** (served - leave)
            stay = n - leave
            after[n, stay:] += share * arriving[: STATES - stay]
    step = after.copy()
    step[:, 1] += step[:, 0]
    step[:, 0] = 0.0
    chain = step[1:, 1:] / step[1:, 1:].sum(axis=1, keepdims=True)
    balance = chain.T - np.eye(STATES - 1)
    balance[-1] = 1.0  # the last equation follows from the others: that they are probabilities does not
    begins = np.linalg.solve(balance, np.eye(STATES - 1)[-1])
    queue = begins @ (np.maximum(counts[1:] - seats, 0) + rate_per_s / 2)
    lasts_s = 1.0 + (begins @ after[1:, 0]) / rate_per_s
    return float(queue / lasts_s / rate_per_s)


def erlang_waiting(seats: int, offered: float, mean_s: float) -> float:
    """Mean waiting time of M/M/c."""
    top = offered**seats / math.factorial(seats) / (1 - offered / seats)
    waits = top / (sum(offered**k / math.factorial(k) for k in range(seats)) + top)
    return waits * mean_s / (seats - offered)


def test_the_queue_in_steps_is_the_known_ones_at_its_limits() -> None:
    for load in (0.3, 0.8):  # a service of one step: M/D/1, exactly
        assert waiting_by_steps(1, load, 1.0) == pytest.approx(load / (2 * (1 - load)), rel=1e-9)
    for seats, load in ((1, 0.7), (4, 0.8)):  # services of many steps: M/M/c, but for one in as many
        mean_s = 2_000.0
        offered = load * seats
        exact, erlang = (
            waiting_by_steps(seats, offered / mean_s, 1 / mean_s),
            erlang_waiting(seats, offered, mean_s),
        )
        assert exact == pytest.approx(erlang, rel=1 / mean_s)


@pytest.mark.parametrize(("seats", "load"), [(1, 0.5), (3, 0.6), (8, 0.6)])
def test_waiting_in_an_m_m_c_queue(seats: int, load: float) -> None:
    """The 99 % interval from 50 batch means has a half-width of at most 2 %, and the exact mean is in it."""
    mean_s, count = 8.0, 1_500_000
    rng = np.random.default_rng(seats)
    rate_per_s = load * seats / mean_s
    arrival = np.cumsum(rng.exponential(1 / rate_per_s, count))
    outputs = rng.geometric(1 / mean_s, count)
    knobs = VllmKnobs(10_000, seats, num_blocks=10**9, async_scheduling=False)
    outcome = kernel.simulate(
        arrival, np.ones(count, dtype=np.int64), outputs, None, knobs, constant_model(1.0)
    )
    batches = outcome.queue_s().reshape(50, -1).mean(axis=1)
    half_width = 2.576 * batches.std(ddof=1) / np.sqrt(len(batches))
    expected = waiting_by_steps(seats, rate_per_s, 1 / mean_s)
    assert half_width < 0.02 * expected
    assert abs(batches.mean() - expected) < half_width


@pytest.mark.parametrize(
    "knobs",
    [
        VllmKnobs(512, 32, 10_000, async_scheduling=False),
        VllmKnobs(512, 32, 10_000, async_scheduling=False, speculative_config=SpeculativeConfig(3, 0.7)),
        SglangKnobs(512, 32, 160_000, overlap_schedule=False),
        TrtLlmKnobs(512, 32, 10_000, overlap_scheduler=False),
    ],
    ids=["vllm", "vllm speculative", "sglang", "trtllm"],
)
def test_littles_law_of_the_seats(knobs: VllmKnobs | SglangKnobs | TrtLlmKnobs) -> None:
    """Seats held, integrated schedule by schedule = rate x mean time in a seat, from the requests' own times."""
    rng = np.random.default_rng(5)
    count = 5_000
    arrival = np.cumsum(rng.exponential(0.1, count))
    prompts, outputs = rng.integers(1, 200, count), rng.integers(1, 80, count)
    model = linear_model(0.01, token_s=1e-4, row_s=1e-3)
    outcome = kernel.simulate(arrival, prompts, outputs, None, knobs, model, bin_s=1.0)
    assert outcome.preemptions.sum() == 0
    assert outcome.bins is not None
    seated_s = outcome.done_s - outcome.first_scheduled_s
    rate_per_s = count / outcome.makespan_s
    mean_held = outcome.bins[:, HELD_SEATS].sum() / outcome.makespan_s
    assert mean_held == pytest.approx(rate_per_s * seated_s.mean(), rel=1e-9)
    assert mean_held > 1.0


@pytest.mark.parametrize("engine", ENGINES)
def test_littles_law_of_the_system(engine: str) -> None:
    """Requests in the system over time = rate x mean time in it; the first from the steps: who has arrived and is
    not finished, whatever happens to him in between."""
    for seed in range(30):
        arguments = random_workload(seed, 20, engine).arguments() | {"clock": "seconds"}
        outcome = kernel.simulate(**arguments, record_steps=True)
        record, served = outcome.record, outcome.served
        assert record is not None
        if not served.any():
            continue
        emitted = np.zeros(len(served), dtype=np.int64)
        computed = np.zeros(len(served), dtype=np.int64)
        finished = np.full(len(served), np.nan)
        for k in range(len(record.end_s)):
            computed[record.preempted[record.preempted_offsets[k] : record.preempted_offsets[k + 1]]] = 0
            for row in range(record.offsets[k], record.offsets[k + 1]):
                request = record.request[row]
                computed[request] += record.tokens[row]
                if computed[request] == outcome.prompt_tokens[request] + emitted[request]:
                    emitted[request] += 1
                    finished[request] = record.end_s[k]
        np.testing.assert_array_equal(emitted[served], outcome.output_tokens[served])
        times = np.sort(np.concatenate([outcome.arrival_s[served], finished[served]]))
        inside = np.array(
            [((outcome.arrival_s <= at) & (finished > at) & served).sum() for at in times[:-1]],
            dtype=np.float64,
        )
        in_system_s = float(inside @ np.diff(times))
        span_s = outcome.makespan_s
        assert in_system_s / span_s == pytest.approx(served.sum() / span_s * outcome.e2e_s().mean(), rel=1e-9)
