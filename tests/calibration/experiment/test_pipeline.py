"""From samples to a published model or an honest refusal, on laws that are known."""

import dataclasses
import json

import numpy as np
import pytest

from calibration.architecture import PRESETS
from calibration.experiment import DEMO_ENVELOPE, BadEnvelope, Envelope
from calibration.pipeline import (
    IMPORT_FIT_POINTS,
    CalibrationResult,
    Stopped,
    calibrate,
    calibrate_with,
    device_kind,
    fit_samples,
)
from calibration.steptime import Chunk, StepSample, StepShape, StepTimeModel, features_of

DEMO = PRESETS["demo"]


def run(runner, **callbacks) -> CalibrationResult:
    quiet = {
        "on_sample": lambda ordinal, sample: None,
        "on_progress": lambda *progress: None,
        "on_log": lambda line: None,
        "should_stop": lambda: False,
    }
    return calibrate_with(
        runner, DEMO, DEMO_ENVELOPE, device="cpu", kv_tokens=100_000, seed=1, **(quiet | callbacks)
    )


def test_a_known_law_is_found_and_published(formula):
    kept, lines = {}, []
    result = run(
        formula.FormulaRunner(noise=0.01),
        on_sample=lambda ordinal, sample: kept.__setitem__(ordinal, sample),
        on_log=lines.append,
    )
    assert result.published
    assert result.first_gate is None
    assert result.report.median < 0.03
    assert [kept[ordinal] for ordinal in sorted(kept)] == result.samples
    assert result.reason in lines
    assert result.environment["dtype"] == "formula"
    assert result.environment["envelope"] == DEMO_ENVELOPE.to_dict()
    stored = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    model = StepTimeModel.from_dict(stored["model"])
    features = features_of([StepShape((300,) * 4)])
    assert model.predict_s(features)[0] == pytest.approx(
        formula.roofline_seconds(StepShape((300,) * 4)), rel=0.06
    )
    assert stored["points"]["heldout"] == 12
    assert stored["heldout"]["median"] == result.report.median
    assert json.dumps(result.environment, allow_nan=False)


def test_what_no_model_can_know_is_refused_after_one_retry_and_publishes_nothing(formula):
    """Every shape has its own random factor: a fit of other shapes says nothing about it."""

    def law(shape):
        factor = np.random.default_rng(abs(hash(shape)) % 2**32).uniform(0.5, 2.0)
        return formula.roofline_seconds(shape) * factor

    lines = []
    result = run(formula.FormulaRunner(law), on_log=lines.append)
    assert not result.published
    assert result.model is None
    assert result.to_dict()["model"] is None
    assert result.first_gate is not None
    assert "refused" in result.reason
    assert "bar" in result.reason
    roles = [sample.role for sample in result.samples]
    assert roles.count("retry") == 8
    assert roles.count("retry_heldout") == 12
    assert "Measuring more where the fit errs most" in lines
    shapes = [sample.shape for sample in result.samples if sample.role != "sentinel"]
    assert len(set(shapes)) == len(shapes)


def test_a_retry_is_judged_by_fresh_steps_alone(formula):
    """The first attempt's held-out steps read three times too slow, and only they: the retry must not see them."""
    from calibration.experiment import Region, points

    held = {p.shape for p in points(Region(DEMO_ENVELOPE, 100_000), "cpu", 1) if p.role == "heldout"}

    def law(shape):
        return formula.roofline_seconds(shape) * (3.0 if shape in held else 1.0)

    result = run(formula.FormulaRunner(law))
    assert not result.first_gate.passed
    assert result.published
    assert len(result.report.rows) == 12


def test_stopping_is_an_exception_and_keeps_the_samples(formula):
    runner, kept = formula.FormulaRunner(), {}
    with pytest.raises(Stopped):
        run(
            runner,
            on_sample=lambda ordinal, sample: kept.__setitem__(ordinal, sample),
            should_stop=lambda: len(runner.asked) > 60,
        )
    assert kept


def test_an_envelope_the_model_does_not_have_starts_nothing():
    with pytest.raises(BadEnvelope):
        calibrate(DEMO, Envelope(16, 8_192, 512), kv_tokens=100_000)


def imported(formula, count, rng, longest=2_000):
    shapes = [
        StepShape(tuple(rng.integers(1, longest, rng.integers(1, 17)).tolist())) for _ in range(count // 2)
    ]
    for _ in range(count - len(shapes)):
        from calibration.steptime import Chunk

        rows = tuple(rng.integers(1, longest, rng.integers(0, 17)).tolist())
        shapes.append(StepShape(rows, (Chunk(int(rng.integers(1, 500)), int(rng.integers(0, longest))),)))
    noise = np.exp(0.01 * rng.standard_normal(count))
    return [
        StepSample(shape, (formula.roofline_seconds(shape) * float(factor),))
        for shape, factor in zip(shapes, noise, strict=True)
    ]


def test_imported_samples_are_split_by_shape_and_scored_on_the_rest(formula):
    samples = imported(formula, 600, np.random.default_rng(0))
    lines = []
    result = fit_samples(samples, device="somebody's GPU", kv_tokens=20_000, on_log=lines.append)
    assert result.published
    fitted, outside = (result.to_dict()["points"][role] for role in ("fit", "outside"))
    assert 300 < fitted <= IMPORT_FIT_POINTS
    assert 0 < outside == sum(sample.role == "outside" for sample in result.samples)
    assert len(result.report.rows) == 600 - fitted - outside >= 0.3 * (600 - outside)
    assert f"{outside} of 600 steps need more KV" in lines[0]


def test_imported_runs_of_ours_keep_their_roles(formula):
    first = run(formula.FormulaRunner())
    again = fit_samples(first.samples, device="cpu", seed=1)
    assert again.samples == first.samples
    assert again.report.median == first.report.median


@pytest.mark.parametrize("count", [1, 3])
def test_too_few_samples_are_refused_with_words(formula, count):
    result = fit_samples(imported(formula, count, np.random.default_rng(1)), device="cuda:0")
    assert not result.published
    assert result.reason.startswith("refused")


def test_no_sample_fits_the_pool(formula):
    result = fit_samples(imported(formula, 30, np.random.default_rng(2)), device="cuda:0", kv_tokens=1)
    assert not result.published
    assert {sample.role for sample in result.samples} == {"outside"}
    assert "30 of 30 steps need more KV than the pool of 1 tokens that was named" in result.reason


def test_too_few_samples_with_a_fitted_role_are_named(formula):
    samples = [
        dataclasses.replace(sample, role="fit" if index < 2 else "heldout")
        for index, sample in enumerate(imported(formula, 30, np.random.default_rng(2)))
    ]
    result = fit_samples(samples, device="cuda:0")
    assert "of 30 samples 2 have a role that is fitted (roles: 2 fit, 28 heldout)" in result.reason


def test_odd_tables_are_refused_without_a_warning():
    """Warnings are errors here: times over thirteen decades, one shape far from all others."""
    rng = np.random.default_rng(6)
    for seed in range(2):
        shapes = [StepShape((int(c),) * int(b)) for b, c in rng.integers(1, 40, (8, 2))]
        shapes += [StepShape((), (Chunk(int(q), 0),)) for q in rng.integers(1, 900, 5)]
        samples = [StepSample(shape, (10.0 ** rng.uniform(-7, 3.5),)) for shape in shapes]
        result = fit_samples(samples, device="a GPU", seed=seed)
        assert result.reason.startswith("refused")


def test_device_kinds():
    assert device_kind("cpu") == "cpu"
    assert device_kind("cuda:0") == device_kind("NVIDIA H200") == "gpu"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("AMD EPYC 7763", "cpu"), ("Intel Xeon Platinum 8480+", "cpu"), ("this machine's CPU", "cpu"),
     ("Core i9-13900K", "cpu"), ("RTX 4090", "gpu"), ("A100-80GB", "gpu"), ("H100 beside an EPYC 9654", "gpu"),
     ("Radeon Pro", "gpu"), ("something", "gpu")],
)  # fmt: skip
def test_what_was_measured_elsewhere_is_of_the_kind_that_its_name_says(name, kind):
    assert device_kind(name) == kind


def test_the_real_engine_end_to_end(tmp_path, monkeypatch):
    """A tiny model on this machine's processor. Whether its gate passes depends on the machine; the rest not."""
    from calibration.architecture import Architecture

    tiny = Architecture(
        name="tiny", model_type="llama", layers=2, hidden_size=64, heads=4, kv_heads=2, head_dim=16,
        intermediate_size=96, vocab_size=128, tie_word_embeddings=True,
    )  # fmt: skip
    monkeypatch.setenv("RIDGELINE_LOCK_DIR", str(tmp_path))
    kept, progress = {}, []
    result = calibrate(
        tiny,
        Envelope(4, 64, 32),
        kv_tokens=1_024,
        dtype="float32",
        surroundings=False,
        on_sample=lambda ordinal, sample: kept.__setitem__(ordinal, sample),
        on_progress=lambda *values: progress.append(values),
    )
    assert [kept[ordinal] for ordinal in sorted(kept)] == result.samples
    assert all(len(sample.seconds) >= 5 for sample in result.samples if sample.role in ("fit", "heldout"))
    assert result.report.rows
    assert result.environment["parameters"] == tiny.parameters
    assert result.environment["kv_tokens"] == 1_024
    assert 0 < result.environment["cpu_s"] < 150
    assert progress[0][2] == "Waiting for cpu, which measures one thing at a time"
    assert result.facts.engine.name == "ridgeline"
    assert result.facts.engine.version.startswith("torch ")
    json.dumps([result.environment, result.to_dict()], allow_nan=False)


def test_stopped_while_another_job_has_the_device(tmp_path, monkeypatch):
    from calibration.engine.device_lock import device_lock

    monkeypatch.setenv("RIDGELINE_LOCK_DIR", str(tmp_path))
    with device_lock("cpu"), pytest.raises(Stopped):
        calibrate(DEMO, DEMO_ENVELOPE, kv_tokens=100_000, should_stop=lambda: True)


def test_memory_that_went_while_the_job_waited_is_a_refusal(tmp_path, monkeypatch):
    from calibration.experiment import DoesNotFit

    monkeypatch.setenv("RIDGELINE_LOCK_DIR", str(tmp_path))
    monkeypatch.setattr("calibration.pipeline.cpu_memory_bytes", lambda: (1 << 30, 1 << 20))
    with pytest.raises(DoesNotFit, match="free 1,048,576 bytes"):
        calibrate(DEMO, DEMO_ENVELOPE, kv_tokens=100_000)
