"""A window of a run: the same steps as the whole record has, and everybody without a token accounted for."""

from __future__ import annotations

import json

import numpy as np
import pytest

from calibration.steptime.scalar import constant_model, linear_model
from planner.simulation import kernel
from planner.simulation import microscope as module
from planner.simulation.knobs import PolicyKnobs, PrefillFirstKnobs, VllmKnobs
from planner.simulation.knobs.speculation import SpeculativeConfig
from planner.simulation.microscope import Window, look, step_of
from tests.planner.simulation.workloads import ENGINES, random_workload

ONE_SECOND = constant_model(1.0)


def why(step) -> dict[int, tuple[str, tuple[int, ...]]]:
    return {wait.request: (wait.why, wait.waits_for) for wait in step.waits}


def test_seats_the_queue_and_a_late_arrival_by_hand() -> None:
    """One seat, steps of 1 s: A computes, B waits for the seat, C behind B, D comes while the step runs."""
    told = look(
        np.array([0.0, 0.0, 0.0, 0.5]), np.full(4, 4), np.full(4, 2), None,
        VllmKnobs(8, 1, num_blocks=100, async_scheduling=False), ONE_SECOND, Window(from_step=0, to_step=2),
    )  # fmt: skip
    first, second = told.steps
    assert [(row.request, row.phase, row.tokens, row.context) for row in first.rows] == [(0, "prefill", 4, 0)]
    assert why(first) == {1: ("seats", ()), 2: ("queue", (1,)), 3: ("step", ())}
    assert why(second) == {1: ("seats", ()), 2: ("queue", (1,)), 3: ("queue", (1,))}
    assert (second.start_s, second.end_s, second.running, second.waiting) == (1.0, 2.0, 1, 3)
    assert not told.truncated
    json.dumps(told.to_dict(), allow_nan=False)


def test_budget_blocks_and_preemption_by_hand() -> None:
    """Budget 4: B's prompt waits for A's chunk, its request of 8. Two blocks of 4 tokens: when A needs its second,
    nothing is left for B, which is preempted and waits again."""
    knobs = VllmKnobs(4, 4, num_blocks=3, block_size=4, async_scheduling=False)
    told = look(
        np.zeros(2),
        np.array([4, 4]),
        np.array([5, 5]),
        None,
        knobs,
        ONE_SECOND,
        Window(from_step=0, to_step=9),
    )
    assert why(told.steps[0]) == {1: ("budget", (0,))}
    gone = next(step for step in told.steps if step.preempted)
    assert gone.preempted == (1,)
    assert why(gone) == {1: ("preemption", (1,))}
    after = told.steps[gone.number + 1]
    assert [(wait.why, wait.again) for wait in after.waits] == [("kv", True)]


def test_decodes_wait_for_a_prefill_batch_and_prompts_for_their_turn() -> None:
    told = look(
        np.array([0.0, 1.5]), np.array([4, 4]), np.array([5, 5]), None,
        PrefillFirstKnobs(8, 4, num_blocks=100), ONE_SECOND, Window(from_step=2, to_step=3),
    )  # fmt: skip
    assert why(told.steps[0]) == {0: ("prefill", (1,))}
    fair = PolicyKnobs(4, 8, 100, policy="decode-first", async_scheduling=False)
    told = look(
        np.zeros(2),
        np.array([6, 6]),
        np.array([2, 2]),
        None,
        fair,
        ONE_SECOND,
        Window(from_step=1, to_step=2),
    )
    assert [(row.request, row.tokens) for row in told.steps[0].rows] == [(0, 2), (1, 2)]
    assert told.steps[0].waits == ()


@pytest.mark.parametrize("engine", ENGINES)
def test_windows_are_parts_of_the_whole_record(engine: str) -> None:
    """By step numbers and by time; and in every step, whoever neither has a token nor is done is told of."""
    checked = 0
    for seed in range(25):
        arguments = random_workload(seed, most_requests=20, engine=engine).arguments()
        if arguments.pop("clock") == "steps" or arguments["tie"] is not None:
            continue
        arguments.pop("tie")
        outcome = kernel.simulate(**arguments, record_steps=True)
        record = outcome.record
        if not len(record.end_s):
            continue
        whole = [step_of(record, at, at) for at in range(len(record.end_s))]
        first, last = len(whole) // 3, max(len(whole) // 3 + 1, 2 * len(whole) // 3)
        by_number = look(**arguments, window=Window(from_step=first, to_step=last))
        expected = whole[first:last][: module.MOST_STEPS]
        assert [without_waits(step) for step in by_number.steps] == expected
        low, high = record.start_s[first], record.end_s[last - 1] + 1e-9
        by_time = look(**arguments, window=Window(low, high))
        overlapping = [step for step in whole if step.end_s >= low and step.start_s <= high]
        assert [without_waits(step) for step in by_time.steps] == overlapping[: module.MOST_STEPS]
        assert by_time.truncated == (len(overlapping) > module.MOST_STEPS)
        for told in (by_number, by_time):
            for step in told.steps:
                queued = sum(wait.phase == "queue" and wait.why != "step" for wait in step.waits)
                assert queued + step.more_waiting == step.waiting or len(step.waits) == 50
                without = sum(wait.phase != "queue" for wait in step.waits)
                assert len(step.rows) + without <= step.running  # the rest only wait for their results
                checked += 1
        json.dumps(by_time.to_dict(), allow_nan=False)
    assert checked > 200


def without_waits(step):
    return type(step)(**{name: getattr(step, name) for name in step.__slots__[:-2]})


def test_a_window_far_into_a_long_run() -> None:
    rng = np.random.default_rng(5)
    count = 20_000
    arrival = np.cumsum(rng.exponential(0.05, count))
    prompts, outputs = rng.integers(1, 500, count), rng.integers(1, 100, count)
    model = linear_model(0.005, token_s=1e-5, row_s=1e-5)
    knobs = VllmKnobs(512, 64, num_blocks=2000)
    told = look(arrival, prompts, outputs, None, knobs, model, Window(900.0, 900.2))
    assert 10 < len(told.steps) < 60
    assert told.steps[0].start_s <= 900.0 < 900.2 <= told.steps[-1].end_s
    assert [step.number for step in told.steps] == list(
        range(told.steps[0].number, told.steps[0].number + len(told.steps))
    )
    whole = kernel.simulate(arrival, prompts, outputs, None, knobs, model)
    for step in told.steps:
        for row in step.rows:
            assert arrival[row.request] <= step.scheduled_s <= whole.done_s[row.request]


def test_nobody_who_is_done_waits_where_tokens_are_guessed() -> None:
    rng = np.random.default_rng(7)
    arrival, (prompts, outputs) = np.sort(rng.random(60)), rng.integers(1, 100, (2, 60))
    knobs = VllmKnobs(128, 8, 300, async_scheduling=False, speculative_config=SpeculativeConfig(3, 0.7))
    load = arrival, prompts, outputs, None, knobs, linear_model(0.01, token_s=1e-4)
    whole = kernel.simulate(*load)
    told = look(*load, Window(from_step=10, to_step=300))
    assert len(told.steps) > 150
    for step in told.steps:
        queued = sum(wait.phase == "queue" and wait.why != "step" for wait in step.waits)
        assert queued + step.more_waiting == step.waiting
        assert len(step.rows) + sum(wait.phase != "queue" for wait in step.waits) <= step.running
        assert all(whole.done_s[wait.request] > step.end_s for wait in step.waits)


@pytest.mark.parametrize(
    "wrong",
    [
        {"from_step": 3},
        {"from_step": 3, "to_step": 3},
        {"from_step": -1, "to_step": 3},
        {},
        {"from_s": 2.0, "to_s": 1.0},
        {"from_s": 0.0, "to_s": float("inf")},
    ],
)
def test_windows_that_are_none(wrong: dict) -> None:
    with pytest.raises(ValueError, match="window"):
        Window(**wrong)
