"""The compiled kernel equals the plain-Python reference, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.steptime.scalar import StepTimeArrays, linear_model
from calibration.steptime.scalar import step_seconds as plain_step_seconds
from planner.simulation import kernel, reference
from planner.simulation.kernel.entries import ADVANCE
from planner.simulation.kernel.loop import PAUSED
from planner.simulation.kernel.results import outcome
from planner.simulation.kernel.state import build
from planner.simulation.kernel.step_time import step_seconds
from planner.simulation.knobs import VllmKnobs
from planner.simulation.workload import prepare
from tests.planner.simulation.workloads import ENGINES, assert_same, random_workload, with_holes

WORKLOADS = 250
NEVER_PREEMPT = ("trtllm", "orca")


@pytest.mark.parametrize("engine", ENGINES)
def test_random_workloads_agree(engine: str) -> None:
    """And they meet every rule: agreement means little unless preemption, rejection and the rest occur."""
    preemptions = rejected = empty = uncovered = 0
    kinds = np.zeros(3, dtype=np.int64)
    for seed in range(WORKLOADS):
        arguments = random_workload(seed, most_requests=20, engine=engine).arguments()
        kept = {"record_steps": seed % 3 == 0, "bin_s": (0.0, 2.0**-6)[seed % 2]}
        expected = reference.simulate(**arguments, **kept)
        assert_same(expected, kernel.simulate(**arguments, **kept))
        preemptions += int(expected.preemptions.sum())
        rejected += len(expected.rejected)
        empty += expected.empty_schedules
        uncovered += expected.uncovered_steps
        kinds += expected.step_counts
        assert not expected.saturated  # all are shorter than can be judged
    assert (preemptions > 100) == (engine not in NEVER_PREEMPT)
    assert min(rejected, empty, uncovered) > 50
    mixes = engine != "prefill-first"
    assert (kinds[: 3 if mixes else 2] > 100).all()
    assert mixes == bool(kinds[2])


def test_a_long_busy_run_agrees() -> None:
    """Hundreds of rows, thousands of steps, a load that saturates, and a pool that preempts."""
    rng = np.random.default_rng(11)
    count = 500
    arrival = np.cumsum(rng.exponential(0.02, count))
    prompts, outputs = rng.integers(1, 900, count), rng.integers(1, 300, count)
    model = with_holes(linear_model(0.01, token_s=1e-5, row_s=1e-4, decode_context_s=1e-7, pair_s=1e-9), rng)
    for lag in (False, True):
        knobs = VllmKnobs(1024, 128, num_blocks=900, async_scheduling=lag)
        expected = reference.simulate(arrival, prompts, outputs, None, knobs, model)
        assert expected.preemptions.sum() > 50
        assert expected.saturated
        assert_same(expected, kernel.simulate(arrival, prompts, outputs, None, knobs, model))


def test_recording_changes_nothing_and_outgrows_its_arrays() -> None:
    ones = np.ones(20, dtype=np.int64)
    arrival = np.arange(20.0) * 100.0
    knobs = VllmKnobs(64, 4, num_blocks=100)
    model = linear_model(0.5)
    recorded = kernel.simulate(arrival, ones, 300 * ones, None, knobs, model, record_steps=True)
    assert recorded.record is not None
    assert len(recorded.record.free_blocks) > 4_096  # more than the kernel's array for them holds
    expected = reference.simulate(arrival, ones, 300 * ones, None, knobs, model, record_steps=True)
    assert_same(expected, recorded)
    plain = kernel.simulate(arrival, ones, 300 * ones, None, knobs, model)
    assert plain.record is None
    np.testing.assert_array_equal(plain.done_s, recorded.done_s)


def test_a_run_can_be_paused_anywhere() -> None:
    arguments = random_workload(3).arguments()
    knobs, model = arguments["knobs"], arguments["step_time"]
    columns = [arguments[name] for name in ("arrival_s", "prompt_tokens", "output_tokens")]
    workload = prepare(*columns, None, knobs.profile)
    state = build(workload, knobs.profile, count_steps=False, record=False, host_gap_s=0.0)
    advance = ADVANCE[knobs.profile.assembler]
    pauses = 0
    while advance(state, model, 7) == PAUSED:
        pauses += 1
    assert pauses > 3
    assert_same(reference.simulate(*columns, None, knobs, model), outcome(state, workload, *columns, None))


def test_the_compiled_step_time_is_the_plain_one() -> None:
    rng = np.random.default_rng(5)
    model = with_holes(linear_model(0.01, token_s=1e-4, row_s=1e-3, decode_context_s=1e-6, pair_s=1e-8), rng)

    def both(m: StepTimeArrays, *features: float) -> None:
        compiled, plain = step_seconds(m, *features), plain_step_seconds(m, *features)
        assert compiled[0] == pytest.approx(plain[0], rel=1e-12)
        assert compiled[1] == plain[1]

    for _ in range(300):
        rows, tokens = float(rng.integers(0, 40)), float(rng.integers(1, 80))
        contexts = rows * float(rng.integers(1, 60))
        pairs = float(rng.integers(1, 1000)) if tokens > rows else 0.0
        both(model, max(tokens, rows), rows, rows, contexts, contexts, pairs, pairs)
