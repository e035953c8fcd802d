"""How fast a device was beside a replay: found as it is, told as it is, and no verdict rests on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibration.steptime import StepSample, StepShape, step_seconds
from calibration.steptime.shapes import Chunk
from planner.simulation import reference
from planner.verification.loop import replay
from planner.verification.report import Report, compare
from planner.verification.speed import EVERY_STEPS, REPEATS, Speed, SpeedWatch
from tests.planner.verification.device import KNOBS, LAW, STEPS, Device, some_requests

SHAPES = [
    StepShape((40,) * 4), StepShape((90,) * 8), StepShape((), (Chunk(16, 0, True),)),
    StepShape((), (Chunk(60, 0, True),)), StepShape((50, 60), (Chunk(20, 5, True),)),
    StepShape((50,) * 6, (Chunk(50, 0, True),)),
]  # fmt: skip


def calibrated(noise: float = 0.01) -> list[StepSample]:
    rng = np.random.default_rng(0)
    seconds = [step_seconds(LAW, *shape.features)[0] for shape in SHAPES]
    return [
        StepSample(shape, tuple(s * np.exp(noise * rng.standard_normal(6))), "fit")
        for shape, s in zip(SHAPES, seconds, strict=True)
    ]


def watched(stretch: float, looks: int = 4) -> Speed | None:
    watch = SpeedWatch.of(Device(stretch, stretch, noise=0.01), calibrated(), 0)
    for _ in range(looks):
        watch.look()
    return watch.speed()


@pytest.mark.parametrize("stretch", [0.95, 1.0, 1.05])
def test_the_change_is_found_with_its_interval(stretch: float) -> None:
    speed = watched(stretch)
    assert speed is not None
    assert speed.low <= stretch - 1.0 <= speed.high
    assert speed.high - speed.low < 0.03
    assert speed.is_sure == (stretch != 1.0)
    assert (speed.steps, speed.repeats) == (len(SHAPES), 4 * REPEATS)


def test_it_is_timed_behind_the_same_steps_as_it_was_calibrated() -> None:
    asked = []

    class Asked(Device):
        def measure(self, decode_contexts, chunks, seed, lead_in=()):
            asked.append((tuple(decode_contexts), tuple(lead_in)))
            return super().measure(decode_contexts, chunks, seed, lead_in=lead_in)

    SpeedWatch.of(Asked(), calibrated(), 0).look()
    assert len(asked) == REPEATS * len(SHAPES)
    assert all(lead_in == contexts or (not contexts and lead_in) for contexts, lead_in in asked)


def test_it_is_timed_in_the_replay_too_and_tells_how_fast_the_device_was_on_the_whole() -> None:
    """A device that slows down by a tenth in the middle of it."""

    class Slowing(Device):
        def measure(self, decode_contexts, chunks, seed, lead_in=()):
            timing = super().measure(decode_contexts, chunks, seed, lead_in=lead_in)
            return replace(timing, seconds=timing.seconds * (1.1 if self.steps > 800 else 1.0))

    device, requests = Slowing(), some_requests(150)
    watch = SpeedWatch.of(device, calibrated(), 0)
    watch.look()
    served = replay(device, requests, KNOBS, LAW, on_step=lambda tokens, seconds: watch.stepped())
    watch.look()
    speed = watch.speed()
    assert speed is not None
    assert speed.repeats == 2 * REPEATS + len(served.seconds) // EVERY_STEPS
    really = served.seconds.sum() / STEPS.priced_s(served).sum() - 1.0
    assert 0.02 < really < 0.08
    assert speed.low <= really <= speed.high


def test_a_calibration_without_repeats_tells_nothing() -> None:
    once = [StepSample(shape, (0.01,), "fit") for shape in SHAPES]
    watch = SpeedWatch.of(Device(), once, 0)
    watch.look()
    assert watch.speed() is None
    assert SpeedWatch.of(Device(), calibrated(), 0).speed() is None, "nobody looked"


def report_of(stretch: float, speed: Speed | None, chunk: float | None = None) -> Report:
    requests = some_requests(120)
    arrays = (requests.arrival_s, requests.prompt_tokens, requests.output_tokens)
    predicted = reference.simulate(*arrays, None, KNOBS, LAW)
    at_speed = reference.simulate(*arrays, None, KNOBS, STEPS.scaled(speed.factor).decode) if speed else None
    served = replay(Device(stretch, chunk or stretch), requests, KNOBS, LAW)
    return compare(predicted, [predicted], [served], STEPS, "cpu", speed=speed, at_speed=at_speed)


def test_a_slow_device_is_told_apart_from_a_wrong_plan() -> None:
    """At the speed that it had, everything is as predicted; missed it is all the same."""
    report = report_of(1.3, Speed(0.3, 0.28, 0.32, 6, 12))
    assert not report.holds
    assert (
        "Meanwhile steps of the calibration took 30 % longer than when it was made (+28 % to +32 %)."
        in report.sentence
    )
    assert any("At the speed that the device had" in line for line in report.advice)
    for line in report.lines:
        assert line.at_speed_s == pytest.approx(line.measured_s, rel=1e-6)
    assert report.busy_bias == pytest.approx(1 / 1.3 - 1.0)


def test_a_plan_is_not_excused_by_a_device_that_is_as_fast_as_it_was() -> None:
    report = report_of(1.0, Speed(0.001, -0.01, 0.012, 6, 12), chunk=1.6)
    assert not report.holds
    assert "Meanwhile" not in report.sentence
    assert any("not the device's speed that is off" in line for line in report.advice)


def test_nothing_is_said_of_it_where_the_plan_holds_or_it_is_not_known() -> None:
    assert "Meanwhile" not in report_of(1.0, Speed(0.02, 0.01, 0.03, 6, 12)).sentence
    unknown = report_of(1.3, None)
    assert unknown.to_dict()["speed"] is None
    assert {line.at_speed_s for line in unknown.lines} == {None}
