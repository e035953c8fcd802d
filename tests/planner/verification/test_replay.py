"""The serving loop and its report: the simulator's batches, the runner's times, and words that follow the figures."""

from __future__ import annotations

import json

import numpy as np
import pytest

from calibration.steptime import step_seconds
from planner.search.evaluate import Requests
from planner.simulation import kernel
from planner.simulation.knobs import SglangKnobs, VllmKnobs
from planner.verification.loop import Stopped, replay
from planner.verification.partial import served_by_one
from planner.verification.report import compare
from planner.verification.window import busiest
from tests.planner.verification.device import KNOBS, LAW, STEPS, Device, some_requests


@pytest.fixture(scope="module")
def requests() -> Requests:
    return some_requests(120)


@pytest.fixture(scope="module")
def predicted(requests):
    return simulated(requests, KNOBS)


def simulated(requests, knobs):
    return kernel.simulate(
        requests.arrival_s, requests.prompt_tokens, requests.output_tokens, None, knobs, LAW, record_steps=True
    )  # fmt: skip


@pytest.mark.parametrize(
    "knobs",
    [
        KNOBS,
        VllmKnobs(max_num_batched_tokens=48, max_num_seqs=6, num_blocks=20, async_scheduling=False),
        SglangKnobs(chunked_prefill_size=64, max_running_requests=8, max_total_tokens=1024),
    ],
)
def test_fed_the_same_step_times_the_loop_is_the_simulator(requests, knobs):
    replayed = replay(Device(), requests, knobs, LAW)
    expected = simulated(requests, knobs)
    found = replayed.outcome
    for name in ("first_scheduled_s", "first_token_s", "done_s", "gap_counts", "preemptions"):
        assert np.array_equal(getattr(found, name), getattr(expected, name), equal_nan=True), name
    assert len(replayed.seconds) == expected.steps
    assert replayed.seconds.sum() == pytest.approx(expected.busy_s)


def test_the_hosts_gap_counts_only_where_it_is_asked_for(requests):
    device = replay(Device(), requests, KNOBS, LAW, with_host_gap=True)
    assert device.seconds.sum() == pytest.approx(
        sum(step_seconds(LAW, *row)[0] + 1e-3 for row in device.features.tolist())
    )


def test_an_interrupted_replay_resumes_where_it_was(requests):
    whole = replay(Device(noise=0.05), requests, KNOBS, LAW)
    first = Device(noise=0.05)
    with pytest.raises(Stopped) as stopped:
        replay(first, requests, KNOBS, LAW, should_stop=lambda: first.steps >= 100)
    kept = stopped.value.steps_s
    assert kept == whole.seconds[:100].tolist()
    second = Device(noise=0.05)
    second.rng.standard_normal(100)  # the device goes on where it was
    again = replay(second, requests, KNOBS, LAW, known_s=json.loads(json.dumps(kept)))
    assert second.steps == len(whole.seconds) - 100
    assert np.array_equal(again.outcome.done_s, whole.outcome.done_s)
    assert np.array_equal(again.seconds, whole.seconds)


def test_progress_is_told_step_by_step(requests):
    told = []
    replayed = replay(Device(), requests, KNOBS, LAW, on_step=lambda tokens, seconds: told.append(tokens))
    assert len(told) == len(replayed.seconds)
    assert told == sorted(told)
    assert told[-1] == replayed.outcome.computed_tokens


def test_a_true_prediction_holds(requests, predicted):
    replays = [replay(Device(noise=0.01, seed=seed), requests, KNOBS, LAW) for seed in range(3)]
    report = compare(predicted, [], replays, STEPS, "cpu")
    assert report.holds
    assert abs(report.busy_bias) < 0.01
    assert "did what was predicted" in report.sentence
    assert {line.metric for line in report.lines} == {"ttft", "itl", "tpot", "e2e"}
    assert all(line.spread is not None and line.spread < 0.1 for line in report.lines)
    assert all(line.measured_low_s <= line.measured_s <= line.measured_high_s for line in report.lines)
    json.dumps(report.to_dict(), allow_nan=False)


def test_steps_off_by_more_than_their_bar_are_not_called_as_predicted(requests, predicted):
    report = compare(predicted, [], [replay(Device(0.93, 0.93), requests, KNOBS, LAW)], STEPS, "cpu")
    assert all(line.holds for line in report.lines)
    assert report.busy_bias > report.busy_bar
    assert not report.holds
    assert "did what was predicted" not in report.sentence
    assert "too long over the whole replay; the bar is 5.0 %" in report.sentence


@pytest.mark.parametrize(("stretch", "way"), [(1.4, "optimistic"), (0.6, "pessimistic")])
def test_a_wrong_price_is_named_with_its_direction(requests, predicted, stretch, way):
    report = compare(predicted, [], [replay(Device(stretch, stretch), requests, KNOBS, LAW)], STEPS, "cpu")
    assert not report.holds
    assert report.sentence.startswith(f"The plan is {way} by")
    assert report.busy_bias == pytest.approx(1 / stretch - 1)
    assert any("recalibrate" in advice for advice in report.advice)


def test_residuals_name_the_kind_of_step_that_was_mispriced(requests, predicted):
    report = compare(predicted, [], [replay(Device(chunk=1.3), requests, KNOBS, LAW)], STEPS, "cpu")
    errors = {kind: [r.error for r in report.residuals if r.kind == kind] for kind in ("decode", "mixed")}
    assert errors["decode"] == pytest.approx([0.0] * len(errors["decode"]), abs=1e-9)
    assert errors["mixed"] == pytest.approx([0.3] * len(errors["mixed"]))
    assert sum(r.busy_share for r in report.residuals) == pytest.approx(1.0)
    assert sum(r.steps for r in report.residuals) == report.steps
    assert any("Measure more mixed steps" in advice for advice in report.advice)


def test_replays_that_lie_further_apart_than_a_bar_are_said_to(requests, predicted):
    replays = [replay(Device(stretch, stretch), requests, KNOBS, LAW) for stretch in (0.8, 1.0, 1.4)]
    apart = compare(predicted, [], replays, STEPS, "cpu")
    assert any("no prediction can be held to" in advice for advice in apart.advice)
    alike = compare(predicted, [], [replay(Device(), requests, KNOBS, LAW)] * 2, STEPS, "cpu")
    assert not any("no prediction" in advice for advice in alike.advice)


def test_nothing_replayed_is_no_report(predicted):
    with pytest.raises(ValueError, match="nothing was replayed"):
        compare(predicted, [], [], STEPS, "cpu")


def test_the_window_is_the_busiest_stretch():
    arrival = np.concatenate([np.arange(50) * 1.0, 50 + np.arange(50) * 0.1, 55 + np.arange(50) * 1.0])
    requests = Requests(arrival, np.full(150, 10), np.full(150, 5))
    part, first = busiest(requests, 40)
    assert 50 <= first <= 60
    assert part.count == 40
    assert part.arrival_s[0] == 0.0
    assert part.arrival_s[-1] == pytest.approx(3.9)
    assert busiest(requests, 200) == (requests, 0)
    with pytest.raises(ValueError, match="at least 2"):
        busiest(requests, 1)


@pytest.mark.parametrize(
    "knobs",
    [KNOBS, VllmKnobs(max_num_batched_tokens=48, max_num_seqs=6, num_blocks=20, async_scheduling=False)],
)
def test_what_was_served_when_it_broke_off_is_what_had_ended_by_then(requests, knobs):
    """Whatever the steps would have taken that never ran."""
    whole = replay(Device(noise=0.3, seed=5), requests, knobs, LAW).outcome
    times = replay(Device(noise=0.3, seed=5), requests, knobs, LAW).seconds.tolist()
    kinds = replay(Device(noise=0.3, seed=5), requests, knobs, LAW).features[:, 5] > 0
    for steps in (0, 1, 60, len(times)):
        served = served_by_one(requests, knobs, LAW, times[:steps])
        assert (served.prefill_steps, served.decode_steps) == (sum(kinds[:steps]), steps - sum(kinds[:steps]))
        slower = replay(Device(decode=9.0, chunk=9.0), requests, knobs, LAW, known_s=times[:steps]).outcome
        for other in (whole, slower):
            assert np.array_equal(served.first_token_s, other.first_token_s[served.finished])
            assert np.array_equal(served.last_token_s, other.done_s[served.finished])
    assert len(served.finished) == requests.count and served.hand_offs is None
    assert 0 < len(served_by_one(requests, knobs, LAW, times[:60]).finished) < requests.count
    assert len(served_by_one(requests, knobs, LAW, []).finished) == 0
