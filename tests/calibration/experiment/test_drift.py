"""Injected drift is found, noise is not, and whatever else changed is named."""

import numpy as np
import pytest

from calibration.experiment import DEMO_ENVELOPE, Region
from calibration.experiment.drift import (
    COMPARED,
    LEAST_SENTINELS,
    REPEATS,
    changed,
    choose_sentinels,
    confirmed,
    judge_drift,
    measure_drift,
)
from calibration.steptime import Chunk, StepSample, StepShape

SHAPES = [StepShape((256,) * 2), StepShape((900,) * 16), StepShape((), (Chunk(64, 0),)),
          StepShape((), (Chunk(500, 0),)),
          StepShape((256,) * 4, (Chunk(64, 0),)), StepShape((256,) * 15, (Chunk(400, 0),))]  # fmt: skip
SECONDS = [0.010, 0.020, 0.025, 0.180, 0.030, 0.160]


def measured(rng, noise, repeats, factors=(1.0,) * 6, outliers=0.0):
    """Repeats of each shape: lognormal noise, and now and then one that was disturbed by half."""
    found = []
    for shape, seconds, factor in zip(SHAPES, SECONDS, factors, strict=True):
        values = seconds * factor * np.exp(noise * rng.standard_normal(repeats))
        values *= np.where(rng.random(repeats) < outliers, 1.5, 1.0)
        found.append(StepSample(shape, tuple(values.tolist()), "sentinel"))
    return found


def judged(kind, noise, factors, seed, outliers=0.05):
    rng = np.random.default_rng(seed)
    return judge_drift(
        measured(rng, noise, 7, outliers=outliers), measured(rng, noise, REPEATS, factors, outliers), kind
    )


@pytest.mark.parametrize(("kind", "noise"), [("gpu", 0.01), ("cpu", 0.04)])
def test_noise_is_no_drift(kind, noise) -> None:
    """25 checks of a device that did not change, a twentieth of the repeats disturbed: none calls for recalibration."""
    assert sum(judged(kind, noise, (1.0,) * 6, seed).drifted for seed in range(25)) == 0


@pytest.mark.parametrize(
    ("kind", "noise", "drift"), [("gpu", 0.01, 1.045), ("gpu", 0.01, 0.955), ("cpu", 0.04, 1.12)]
)
def test_injected_drift_is_found(kind, noise, drift) -> None:
    reports = [judged(kind, noise, (drift,) * 6, seed) for seed in range(20)]
    assert sum(report.drifted for report in reports) >= 19
    assert np.mean([r.mean.log_ratio for r in reports]) == pytest.approx(np.log(drift), abs=0.015)
    assert all(r.mean.low <= r.mean.log_ratio <= r.mean.high for r in reports)


def test_one_kind_alone_is_enough() -> None:
    report = judged("cpu", 0.01, (1.0, 1.0, 1.15, 1.15, 1.0, 1.0), 3)
    assert report.drifted
    assert len(report.reasons) == 1
    assert report.reasons[0].startswith("prefill steps take 1")


def test_the_interval_has_its_level() -> None:
    inside = [
        r.mean.low <= 0.0 <= r.mean.high for r in (judged("cpu", 0.04, (1.0,) * 6, s) for s in range(40))
    ]
    assert np.mean(inside) >= 0.9


def test_a_changed_environment_is_drift_whatever_the_times_say() -> None:
    then = {"torch": "2.13.0", "processor": "A", "load_at_start": 1.0, "driver": "1"}
    assert changed(then, then | {"load_at_start": 9.0}) == ()
    assert changed(then, {"torch": "2.13.0"}) == ()  # what is not known now says nothing
    (change,) = changed(then, then | {"torch": "2.14.0"})
    samples = measured(np.random.default_rng(0), 0.01, 9)
    report = judge_drift(samples, samples, "cpu", [change])
    assert report.drifted
    assert report.reasons == ("torch was '2.13.0' and is '2.14.0'",)
    assert "measuring_code_sha256" in COMPARED


def test_sentinels_are_spread_over_the_kinds() -> None:
    chosen = choose_sentinels(measured(np.random.default_rng(0), 0.01, 7))
    assert [s.kind for s in chosen] == ["decode", "decode", "prefill", "prefill", "mixed", "mixed"]
    only = choose_sentinels([s for s in measured(np.random.default_rng(0), 0.01, 7) if s.kind != "prefill"])
    assert len(only) == LEAST_SENTINELS
    with pytest.raises(ValueError, match="repeated three times"):
        choose_sentinels(measured(np.random.default_rng(0), 0.01, 1))
    with pytest.raises(ValueError, match="same steps"):
        judge_drift(chosen, chosen[:3], "cpu")


@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_a_device_is_timed_again(formula, factor) -> None:
    """Ten interleaved repeats of each, after a warm-up, in an order that no step can rely on."""
    from calibration.experiment import RULES, points, run_experiment, sentinels, warm_up

    region = Region(DEMO_ENVELOPE, 100_000)
    then = run_experiment(
        formula.FormulaRunner(noise=0.01), points(region, "cpu", 1)[::4], sentinels(region), warm_up(region),
        rules=RULES["cpu"], seed=1, on_sample=lambda *a: None, on_progress=lambda *a: None, on_log=lambda line: None,
        should_stop=lambda: False,
    ).samples  # fmt: skip
    slower = formula.FormulaRunner(lambda shape: factor * formula.roofline_seconds(shape), noise=0.01, seed=9)
    report = measure_drift(slower, region, then, {"dtype": "x"}, {"dtype": "x"}, "cpu")
    assert report.drifted == (factor != 1.0)
    chosen = [s.shape for s in choose_sentinels(then)]
    timed = [shape for shape in slower.asked[-(10 * len(chosen) + 20) :] if shape in chosen]
    assert all(timed.count(shape) >= REPEATS for shape in chosen)
    assert timed[:6] != timed[6:12]


def test_what_the_times_say_is_confirmed_before_it_is_told() -> None:
    rng = np.random.default_rng(5)
    then = measured(rng, 0.01, 9)
    slow, quiet = (measured(rng, 0.01, REPEATS, (factor,) * 6) for factor in (1.15, 1.0))
    once = confirmed(then, slow, quiet, "cpu")
    assert (once.drifted, once.confirmed, once.reasons) == (False, False, ())
    twice = confirmed(then, slow, slow, "cpu")
    assert twice.drifted and twice.confirmed and len(twice.reasons) >= 1
    assert twice.mean.log_ratio == pytest.approx(np.log(1.15), abs=0.02)
    (change,) = changed({"torch": "1"}, {"torch": "2"})
    still = confirmed(then, slow, quiet, "cpu", [change])
    assert still.drifted and still.reasons == ("torch was '1' and is '2'",), (
        "what changed needs no confirmation"
    )


def test_a_device_that_was_disturbed_for_a_minute_raises_no_alarm(formula) -> None:
    """Slow while it is timed for the first time, as it was when it is timed again."""
    from calibration.experiment import RULES, points, run_experiment, sentinels, warm_up

    region = Region(DEMO_ENVELOPE, 100_000)
    then = run_experiment(
        formula.FormulaRunner(noise=0.01), points(region, "cpu", 1)[::4], sentinels(region), warm_up(region),
        rules=RULES["cpu"], seed=1, on_sample=lambda *a: None, on_progress=lambda *a: None, on_log=lambda line: None,
        should_stop=lambda: False,
    ).samples  # fmt: skip
    said: list[str] = []
    runner = formula.FormulaRunner(
        lambda shape: (1.0 if said else 1.2) * formula.roofline_seconds(shape), noise=0.01, seed=9
    )

    def keep(line: str) -> None:
        if "once more" in line:
            said.append(line)

    report = measure_drift(runner, region, then, {}, {}, "cpu", on_log=keep)
    assert said and (report.drifted, report.confirmed) == (False, False)
