"""How points are repeated: order, stopping, sentinels, and nothing lost on the way."""

import dataclasses
from collections import Counter

import pytest

from calibration.experiment import (
    DEMO_ENVELOPE,
    RULES,
    Point,
    Region,
    Rules,
    Stopped,
    points,
    run_experiment,
    sentinels,
    warm_up,
)
from calibration.experiment.running import describe
from calibration.steptime import Chunk, StepShape

DEMO = Region(DEMO_ENVELOPE, 100_000)
WATCHED = sentinels(DEMO)


def run(runner, listed, *, rules=RULES["cpu"], seed=1, **callbacks):
    kept = {}
    result = run_experiment(
        runner,
        listed,
        WATCHED,
        warm_up(DEMO),
        rules=rules,
        seed=seed,
        on_sample=callbacks.get("on_sample", lambda ordinal, sample: kept.__setitem__(ordinal, sample)),
        on_progress=callbacks.get("on_progress", lambda *progress: None),
        on_log=callbacks.get("on_log", lambda line: None),
        should_stop=callbacks.get("should_stop", lambda: False),
        first_ordinal=callbacks.get("first_ordinal", 0),
    )
    return result, kept


def decodes(count):
    return [Point(StepShape((100 + index,)), "fit") for index in range(count)]


def test_a_quiet_device_needs_five_repeats_a_noisy_one_fifteen(formula):
    quiet, _ = run(formula.FormulaRunner(noise=0.001), decodes(6))
    assert {len(sample.seconds) for sample in quiet.samples if sample.role == "fit"} == {5}
    noisy, _ = run(formula.FormulaRunner(noise=0.5), decodes(6))
    assert {len(sample.seconds) for sample in noisy.samples if sample.role == "fit"} == {15}
    assert noisy.observed["points_above_half_width"] == 6


def test_a_point_closes_when_its_own_median_is_tight(formula):
    def law(shape):
        return 1e-3

    class OneNoisy(formula.FormulaRunner):
        def measure(self, decode_contexts, chunks, seed, lead_in=()):
            self.noise = 0.3 if decode_contexts == (103,) else 0.001
            return super().measure(decode_contexts, chunks, seed, lead_in=lead_in)

    result, _ = run(OneNoisy(law), decodes(6))
    repeats = {
        sample.shape.decode_contexts[0]: len(sample.seconds)
        for sample in result.samples
        if sample.role == "fit"
    }
    assert repeats.pop(103) > 8
    assert set(repeats.values()) == {5}


def test_each_pass_measures_every_open_point_once_in_a_fresh_order(formula):
    runner = formula.FormulaRunner(noise=0.001)
    run(runner, decodes(20))
    asked = [shape.decode_contexts[0] for shape in runner.asked if shape in {p.shape for p in decodes(20)}]
    passes = [asked[start : start + 20] for start in range(0, 100, 20)]
    assert all(sorted(order) == list(range(100, 120)) for order in passes)
    assert len({tuple(order) for order in passes}) == 5
    assert len(set(runner.seeds)) == len(runner.seeds)


def test_sentinels_come_first_last_and_every_twenty_five_measurements(formula):
    runner = formula.FormulaRunner(noise=0.001)
    result, _ = run(runner, decodes(20))
    watched = [sample for sample in result.samples if sample.role == "sentinel"]
    assert [len(sample.seconds) for sample in watched] == [5, 5]  # before 1, 26, 51, 76 and after 100
    assert result.observed["sentinel_drift"] == pytest.approx([0.0, 0.0], abs=0.01)


def test_drift_shows_in_the_sentinels(formula):
    class Slowing(formula.FormulaRunner):
        def measure(self, decode_contexts, chunks, seed, lead_in=()):
            timing = super().measure(decode_contexts, chunks, seed, lead_in=lead_in)
            return type(timing)(timing.seconds * (1 + len(self.asked) / 1_000), timing.host_gap_s, False)

    result, _ = run(Slowing(noise=0.0), decodes(150))
    assert all(drift > 0.2 for drift in result.observed["sentinel_drift"])


def test_warm_up_takes_the_largest_steps_and_waits_for_a_steady_sentinel(formula):
    runner, lines = formula.FormulaRunner(noise=0.0), []
    run(runner, decodes(1), on_log=lines.append)
    first = runner.asked[:9]
    assert Counter(first) == dict.fromkeys(warm_up(DEMO), 3)
    assert runner.asked[9:19] == [WATCHED[0].shape] * 10
    assert "steady after 10" in lines[0]
    restless, lines = formula.FormulaRunner(noise=0.5), []
    run(restless, decodes(1), on_log=lines.append)
    assert "not steady after 30" in lines[0]


def test_every_repeat_is_handed_out_as_it_comes(formula):
    calls = []
    result, _ = run(
        formula.FormulaRunner(noise=0.001),
        decodes(3),
        on_sample=lambda ordinal, sample: calls.append((ordinal, sample)),
        first_ordinal=40,
    )
    by_ordinal = {}
    for ordinal, sample in calls:
        before = by_ordinal.get(ordinal)
        if before is not None:
            assert sample.shape == before.shape
            assert sample.seconds[:-1] == before.seconds
        by_ordinal[ordinal] = sample
    assert sorted(by_ordinal) == [40, 41, 42, 43, 44]
    assert [by_ordinal[ordinal] for ordinal in sorted(by_ordinal)] == result.samples
    assert all(sample.host_gap_s == 1e-4 for sample in result.samples)
    assert 0 < result.observed["contended_share"] < 0.5


def test_stopping_between_steps_loses_nothing_that_was_measured(formula):
    runner, kept = formula.FormulaRunner(noise=0.001), {}
    with pytest.raises(Stopped):
        run(
            runner,
            decodes(10),
            on_sample=lambda ordinal, sample: kept.__setitem__(ordinal, sample),
            should_stop=lambda: len(runner.asked) >= 50,
        )
    assert len(runner.asked) == 50
    warming = 9 + 10
    assert sum(len(sample.seconds) for sample in kept.values()) == 50 - warming


def test_progress_never_falls_back_and_ends_full(formula):
    seen = []
    run(formula.FormulaRunner(noise=0.05), decodes(12), on_progress=lambda *progress: seen.append(progress))
    measuring = [progress for progress in seen if progress[2].startswith("Measuring")]
    done = [progress[0] for progress in measuring]
    assert done == sorted(done)
    shares = [progress[0] / progress[1] for progress in measuring]
    assert shares == sorted(shares)
    assert measuring[-1][0] == measuring[-1][1]
    assert measuring[-1][3] == 0
    assert all(eta_s >= 0 for *_, eta_s in measuring)


def test_the_same_seed_asks_for_the_same_steps(formula):
    def asked(seed):
        runner = formula.FormulaRunner(noise=0.0)
        run(
            runner,
            points(DEMO, "cpu", 0),
            seed=seed,
            rules=Rules(0.05, 0.05, least_repeats=1, most_repeats=1),
        )
        return runner.asked, runner.seeds

    assert asked(1) == asked(1)
    assert asked(1)[0] != asked(2)[0]


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (StepShape((1_000,)), "1 decode at 1,000 tokens"),
        (StepShape((10, 20), (Chunk(128, 2_000),)), "2 decodes at 15 tokens, a chunk of 128 after 2,000"),
        (StepShape((), (Chunk(8, 0), Chunk(8, 0))), "2 chunks of 16 tokens together"),
    ],
)
def test_steps_in_words(shape, words):
    assert describe(shape) == words


def test_an_interrupted_run_goes_on_with_what_it_has(formula):
    """Repeats of before count; closed points are not measured again; a step that is another one is not taken over."""
    listed = decodes(6)
    _, kept = run(formula.FormulaRunner(noise=0.001), listed)
    held = {ordinal: kept[ordinal] for ordinal in range(4)} | {
        4: dataclasses.replace(kept[4], shape=kept[0].shape)
    }
    half = dataclasses.replace(kept[0], seconds=kept[0].seconds[:2])
    runner = formula.FormulaRunner(noise=0.001, seed=7)
    result = run_experiment(
        runner, listed, WATCHED, warm_up(DEMO), rules=RULES["cpu"], seed=1, on_sample=lambda *a: None,
        on_progress=lambda *a: None, on_log=lambda line: None, should_stop=lambda: False, earlier=held | {0: half},
    )  # fmt: skip
    asked = Counter(shape for shape in runner.asked if shape in {point.shape for point in listed})
    assert [asked[point.shape] for point in listed] == [3, 0, 0, 0, 5, 5]
    assert result.samples[0].seconds[:2] == half.seconds
    assert result.samples[1] == kept[1]
    assert result.observed["steps_of_an_earlier_run"] == 2 + 3 * 5
    assert [len(sample.seconds) for sample in result.samples[:6]] == [5] * 6


def test_every_step_is_timed_behind_decodes_as_a_server_runs_it(formula):
    runner = formula.FormulaRunner()
    listed = [
        Point(StepShape((30, 40)), "fit"),
        Point(StepShape((30, 40), (Chunk(64, 10),)), "fit"),
        Point(StepShape((), (Chunk(64, 10),)), "fit"),
    ]
    run(runner, listed)
    behind = dict(zip(runner.asked, runner.lead_ins, strict=True))
    assert [behind[point.shape] for point in listed] == [(30, 40), (30, 40), (73,)]


@pytest.mark.parametrize(("noise", "repeats"), [(0.5, 15), (0.001, 5)])
def test_the_total_that_is_told_is_about_what_it_comes_to(formula, noise, repeats):
    """From the fourth pass on, of fifteen that a noisy device takes; one more for each open point would tell four."""
    seen = []
    run(formula.FormulaRunner(noise=noise), decodes(12), on_progress=lambda *progress: seen.append(progress))
    told = [total for done, total, message, _ in seen if message.startswith("Measuring") and done > 3 * 12]
    assert told[-1] == repeats * 12
    assert all(0.85 * told[-1] <= total <= 1.15 * told[-1] for total in told)
    late = [p for p in seen if p[2].startswith("Measuring") and p[1] > p[0] > 4 * 12]
    assert all(eta_s > 0 for *_, eta_s in late)


def test_where_no_interval_is_narrow_enough_every_repeat_is_taken_and_told(formula):
    """A drift check's rules."""
    seen = []
    rules = Rules(half_width=0.0, steady_within=0.05, least_repeats=3, most_repeats=6)
    run(
        formula.FormulaRunner(noise=0.01),
        decodes(4),
        rules=rules,
        on_progress=lambda *told: seen.append(told),
    )
    told = [total for done, total, message, _ in seen if message.startswith("Measuring") and done > 4 * 4]
    assert set(told) == {6 * 4}
