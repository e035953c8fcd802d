import dataclasses
import json

import numba
import numpy as np
import pytest

from calibration.steptime import (
    Chunk,
    FitError,
    ModelFormatError,
    StepSample,
    StepShape,
    StepTimeModel,
    features_of,
    fit,
    gate,
    heldout_report,
    step_seconds,
)
from calibration.steptime.law import Tokens, seconds_and_slopes
from calibration.steptime.probing import monotonicity_violations


def errors(model, law, shapes):
    return np.abs(model.predict_s(features_of(shapes)) / np.array([law(s) for s in shapes]) - 1)


@pytest.mark.parametrize(
    ("law", "noise", "median", "p90"), [("roofline", 0.0, 0.003, 0.01), ("outside", 0.02, 0.04, 0.12)]
)
def test_the_truth_is_recovered_from_noisy_points(truth, law, noise, median, p90):
    law = getattr(truth, law)
    samples = truth.measure(law, truth.corners() + truth.shapes(41, 5), noise=noise, seed=5)
    found = errors(fit(samples, seed=5, bootstrap=4), law, truth.shapes(150, 50))
    assert np.median(found) < median
    assert np.percentile(found, 90) < p90


def test_noise_is_averaged_out_and_predictions_are_nearer_the_truth_than_the_samples(noisy, truth):
    model, _ = noisy
    assert np.median(errors(model, truth.roofline, truth.shapes(150, 50))) < 0.015


def test_a_contended_sample_pulls_little(noisy, truth):
    model, samples = noisy
    slow = [
        StepSample(s.shape, tuple(t * (3 if k == 20 else 1) for t in s.seconds))
        for k, s in enumerate(samples)
    ]
    shapes = truth.shapes(150, 50)
    moved = fit(slow, seed=1, bootstrap=0).predict_s(features_of(shapes)) / model.predict_s(
        features_of(shapes)
    )
    assert np.percentile(np.abs(moved - 1), 90) < 0.03


def test_a_staircase_is_used_where_it_predicts_better_and_only_there(truth):
    where = truth.corners() + truth.shapes(60, 1)
    model = fit(truth.measure(truth.staircase, where, noise=0.0), bootstrap=0)
    assert (model.tokens.tile, model.tokens.ramp) == (256, 1)
    assert model.left_out_losses["256/1"] < model.left_out_losses["0/1"] / 2
    plain = fit(truth.measure(truth.roofline, where, noise=0.0), bootstrap=0)
    assert plain.tokens.tile == 0


def test_the_laws_own_error_is_told_from_the_scatter_of_the_points(noisy, truth):
    """The points of `noisy` are 2 % off by themselves, and their repeats scatter by as much. Exact points of another
    law: the spread is its own, but for the refits'."""
    model, _ = noisy
    assert model.decode_spread.law_error < 0.95 * model.decode_spread.scale
    assert 0.015 < model.chunk_spread.law_error < 0.95 * model.chunk_spread.scale
    exact = truth.measure(truth.outside, truth.corners() + truth.shapes(41, 1), noise=0.0, seed=1)
    other = fit(exact, seed=1)
    assert other.chunk_spread.law_error > 0.75 * other.chunk_spread.scale
    old = model.to_dict()
    del old["chunk_spread"]["law"]
    assert StepTimeModel.from_dict(old).chunk_spread.law_error == model.chunk_spread.scale


def test_intervals_have_their_level_on_fresh_samples(truth):
    inside = []
    for seed in range(3):
        where = truth.corners() + truth.shapes(41, seed)
        model = fit(truth.measure(truth.roofline, where, noise=0.03, seed=seed), seed=seed, staircase=False)
        held = truth.measure(
            truth.roofline, truth.shapes(100, seed + 90), noise=0.03, seed=seed + 7, role="heldout"
        )
        inside.append(heldout_report(model, held).inside)
    assert 0.82 <= np.mean(inside) <= 0.97  # at a level of 0.9


def test_intervals_widen_with_the_level_and_away_from_the_points(noisy, truth):
    model, _ = noisy
    features = features_of(truth.shapes(50, 9))
    narrow, wide = (np.subtract(*reversed(model.interval_s(features, level))) for level in (0.5, 0.95))
    assert np.all(wide > narrow)
    with pytest.raises(ValueError, match="level"):
        model.interval_s(features, 1.0)


def test_scalar_vectorised_and_compiled_agree(noisy, truth):
    model, _ = noisy
    arrays = model.arrays()
    shapes = [
        *truth.shapes(120, 8),
        StepShape((9000,)),
        StepShape((), (Chunk(5000, 0),)),
        StepShape((1,) * 90),
    ]
    seconds, covered = model.predict_s(features_of(shapes)), model.covered(features_of(shapes))
    jitted = numba.njit(step_seconds)
    for shape, s, c in zip(shapes, seconds, covered, strict=True):
        assert step_seconds(arrays, *shape.features) == (pytest.approx(s, rel=1e-12), c)
        assert jitted(arrays, *shape.features) == step_seconds(arrays, *shape.features)
    assert covered[:-3].mean() > 0.8
    assert not covered[-3:].any()


def test_every_refit_has_arrays_of_its_own(noisy, truth):
    model, _ = noisy
    row = truth.shapes(1, 3)[0].features
    values = {step_seconds(model.arrays(refit=k), *row)[0] for k in range(len(model.refits))}
    assert len(values) > 50
    assert np.std(list(values)) / np.mean(list(values)) < 0.1


def test_decodes_choose_the_check_model_by_themselves(truth):
    """Beyond 16 rows decodes run another kernel, 15 % slower: no smooth law shows that, a piecewise one does."""

    def law(shape):
        slower = 1.15 if not shape.chunks and len(shape.decode_contexts) > 16 else 1.0
        return slower * truth.roofline(shape)

    contexts = (16, 64, 256, 1024, 4096)
    decodes = [StepShape((context,) * rows, ()) for rows in (1, 2, 4, 8, 16, 32, 64) for context in contexts]
    model = fit(truth.measure(law, truth.shapes(40, 3) + decodes, noise=0.0), bootstrap=0)
    losses = model.left_out_losses
    assert model.check_shares[0] >= 0.5
    assert losses[f"decode check {model.check_shares[0]}"] < losses["decode check 0.25"]
    assert "chunk check 0.25" in losses
    assert np.median(errors(model, law, [s for s in decodes if len(s.decode_contexts) >= 16])) < 0.02


def test_json_gives_the_same_model_back(noisy, truth):
    model, _ = noisy
    text = json.dumps(model.to_dict(), allow_nan=False)
    again = StepTimeModel.from_dict(json.loads(text))
    features = features_of(truth.shapes(80, 4))
    assert json.dumps(again.to_dict()) == text
    assert np.array_equal(again.predict_s(features), model.predict_s(features))
    assert np.array_equal(again.interval_s(features)[1], model.interval_s(features)[1])


def test_a_model_of_before_the_norm_was_sharper_says_what_it_said(noisy, truth):
    """Its prices were fitted with a power of 3: read as anything else they would be up to 6 % too low."""
    data = json.loads(json.dumps(noisy[0].to_dict()))
    del data["tokens"]["attention_power"]
    old = StepTimeModel.from_dict(data)
    features = features_of([s for s in truth.shapes(60, 9) if s.chunks])
    law, _ = seconds_and_slopes(old.theta, Tokens(attention_power=3), features)
    alone = dataclasses.replace(old, check_shares=(0.0, 0.0))
    inside = np.all(np.clip(features.matrix(), old.hull.low, old.hull.high) == features.matrix(), axis=1)
    assert inside.sum() > 20
    assert np.allclose(alone.predict_s(features)[inside], law[inside], rtol=1e-9)
    sharper = dataclasses.replace(alone, tokens=dataclasses.replace(old.tokens, attention_power=4))
    assert np.all(sharper.predict_s(features) <= alone.predict_s(features) * (1 + 1e-12))
    assert StepTimeModel.from_dict(old.to_dict()).tokens.attention_power == 3


def test_many_samples_show_what_no_line_has(truth):
    """Short contexts beside a chunk are padded to a tile: seen by the surface, chosen where it predicts better."""

    def law(shape):
        padded = 6e-7 * max(0.0, 128.0 * len(shape.decode_contexts) - sum(shape.decode_contexts))
        return truth.roofline(shape) + (padded if shape.chunks else 0.0)

    model = fit(truth.measure(law, truth.corners() + truth.shapes(500, 5), noise=0.01), bootstrap=2)
    losses = model.left_out_losses
    assert len(model.check.surface)
    assert (
        min(losses["check with surface"], losses["check with surface, many knots"])
        < losses["check with lines"]
    )
    assert monotonicity_violations(model, points=300) == 0
    again = StepTimeModel.from_dict(json.loads(json.dumps(model.to_dict())))
    features = features_of(truth.shapes(50, 6))
    assert np.array_equal(again.predict_s(features), model.predict_s(features))
    cut = model.to_dict()
    cut["check"]["values"] = cut["check"]["values"][:-1]
    with pytest.raises(ModelFormatError, match=r"check\.refits|check\.values"):
        StepTimeModel.from_dict(cut)


def test_a_model_of_before_steps_with_a_chunk_had_a_share_of_their_own_is_understood(noisy, truth):
    data = noisy[0].to_dict()
    del data["check"]["chunk_share"]
    data["check"]["share"] = 0.25
    assert StepTimeModel.from_dict(data).check_shares == (0.25, 0.25)


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("version",), 2, "version"),
        (("parameters", "g"), -1.0, "parameters"),
        (("parameters", "g"), float("nan"), "parameters.g"),
        (("parameters", "g"), 10**400, "parameters.g"),
        (("refits",), [[1.0]], "refits"),
        (("hull", "high"), [1e12] * 7, "hull.high"),
        (("hull", "low"), [1.0], "hull"),
        (("hull",), None, "hull"),
        (("check", "knots"), [3.0, 2.0], "check.knots"),
        (("check", "values"), [0.1], "check.values"),
        (("check", "share"), 2.0, "check.share"),
        (("check", "chunk_share"), -0.5, "check.chunk_share"),
        (("residual_s",), [-1.0, -1.0], "parameters"),
        (("tokens", "padded_sizes"), [4, 2], "tokens.padded_sizes"),
        (("seed",), 1.5, "seed"),
    ],
)
def test_a_damaged_model_is_refused_at_its_field(noisy, path, value, field):
    data = noisy[0].to_dict()
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ModelFormatError) as caught:
        StepTimeModel.from_dict(data)
    assert caught.value.field == field


def test_the_same_seed_gives_the_same_model(truth):
    samples = truth.measure(truth.roofline, truth.shapes(30, 2))
    first, again, other = (fit(samples, seed=s, bootstrap=3, staircase=False).to_dict() for s in (3, 3, 4))
    assert first == again
    assert first["refits"] != other["refits"]


def test_more_work_never_gets_cheaper(noisy, truth):
    samples = truth.measure(truth.staircase, truth.corners() + truth.shapes(60, 1), noise=0.0)
    model = fit(samples, bootstrap=0)
    assert model.tokens.tile
    assert monotonicity_violations(model) == 0


def test_the_probe_finds_a_dip(truth):
    times = (0.014, 0.026, 0.031, 0.012, 0.02, 0.03)
    dip = [StepSample(StepShape((64,) * b), (t, t, t)) for b, t in enumerate(times, 1)]
    samples = dip + truth.measure(truth.roofline, truth.corners(), noise=0.0)
    assert monotonicity_violations(fit(samples, bootstrap=0)) > 0


def test_reproducible_oddities_of_small_batches_are_carried(truth):
    def odd(shape):
        """The 1..4 rows of a CPU, on top of a smooth law."""
        bump = {2: 0.004, 3: 0.005}.get(len(shape.decode_contexts), 0.0)
        return truth.roofline(shape) + (0 if shape.chunks else bump)

    where = truth.corners() + truth.shapes(30, 3) + [StepShape((200,) * b) for b in range(1, 9)]
    model = fit(truth.measure(odd, where, noise=0.005, repeats=5), bootstrap=8, staircase=False)
    asked = [StepShape((400,) * b) for b in range(1, 9)]
    assert errors(model, odd, asked).max() < 0.06
    assert 1e-3 < model.residual_s[2] < 6e-3
    assert model.covered(features_of(asked)).all()  # though law and check model may differ there
    single = truth.measure(odd, where, noise=0.005, repeats=1)
    assert not len(
        fit(single, bootstrap=0, staircase=False).residual_s
    )  # unrepeated: noise unknown, no evidence


def test_padded_batches_are_a_staircase(truth):
    sizes = (1, 2, 4, 8, 16, 32, 64)

    def padded(shape):
        n, _, S, C, _, P, _ = shape.features
        n = n if shape.chunks else min(s for s in sizes if s >= n)
        return 0.002 + (0.003**2 + (1e-4 * n) ** 2) ** 0.5 + 1e-5 * S + 1.5e-7 * C + 2e-9 * P

    where = truth.corners() + truth.shapes(50, 3) + [StepShape((100,) * b) for b in (8, 9, 16, 17, 32, 33)]
    model = fit(truth.measure(padded, where, noise=0.0), padded_sizes=sizes, staircase=False, bootstrap=0)
    seconds = model.predict_s(features_of([StepShape((100,) * b) for b in (32, 33, 64)]))
    assert seconds[1] - seconds[0] > 3 * (seconds[2] - seconds[1])
    assert errors(model, padded, truth.shapes(60, 30)).max() < 0.1


def test_held_out_samples_are_never_looked_at(noisy, truth):
    model, samples = noisy
    absurd = [StepSample(s.shape, (1e3,), "heldout") for s in samples]
    assert fit(samples + absurd, seed=1).to_dict() == model.to_dict()


def test_decode_alone_can_be_fitted_and_chunks_are_then_not_covered(truth):
    shapes = [StepShape((c,) * b) for b in (1, 2, 4, 8, 16, 64) for c in (64, 512, 4096)]
    model = fit(truth.measure(truth.roofline, shapes, noise=0.0), bootstrap=4)
    assert errors(model, truth.roofline, [StepShape((300,) * 20)]).max() < 0.02
    asked = [StepShape((300,) * 20), StepShape((300,), (Chunk(8, 0),))]
    assert model.covered(features_of(asked)).tolist() == [True, False]


def test_too_few_points_are_refused(truth):
    with pytest.raises(FitError, match="at least"):
        fit(truth.measure(truth.roofline, truth.shapes(4, 1) * 3))


def test_report_and_gate(noisy, truth):
    model, samples = noisy
    held = truth.measure(truth.roofline, truth.shapes(30, 77), seed=9, role="heldout")
    report = heldout_report(model, held)
    assert report.median < report.p90 < 0.12
    assert report.rows[0].error == pytest.approx(report.rows[0].predicted_s / held[0].median_s - 1)
    assert abs(report.decode_bias) < 0.03
    assert sum(count for count, _, _ in report.by_kind.values()) == len(held)
    json.dumps(report.to_dict(), allow_nan=False)
    passed = gate(report, "cpu")
    assert passed.passed
    assert "6%" in passed.reason

    slow = [StepSample(s.shape, tuple(t * 1.5 for t in s.seconds), "heldout") for s in held]
    refused = gate(heldout_report(model, slow), "gpu")
    assert not refused.passed
    assert "median and p90" in refused.reason
    assert not gate(heldout_report(model, held[:3]), "cpu").passed
    with pytest.raises(ValueError, match="never scored"):
        heldout_report(model, samples)
    with pytest.raises(ValueError, match="no held-out"):
        heldout_report(model, [])


def odd_table(seed):
    """Counts from one to millions, times from a tenth of a microsecond to an hour, repeats a million times apart."""
    rng = np.random.default_rng(seed)
    most, longest = rng.choice([10, 1000, 2**20]), rng.choice([1, 100, 2**24])
    samples = []
    for _ in range(int(rng.integers(6, 30))):
        kind = rng.integers(3)
        rows = int(rng.choice([1, 2, 16, 500])) if kind != 1 else 0
        context = int(rng.integers(0, longest)) if rows else 0
        cached = int(rng.integers(0, longest)) if kind and rng.random() < 0.5 else 0
        chunks = (Chunk(int(rng.integers(1, most)), cached),) if kind else ()
        seconds = 1e-7 * (1 + 1e9 * rng.random() ** 20)
        repeats = (seconds,) * 2 if rng.random() < 0.6 else (seconds, min(3600.0, seconds * 1e6))
        samples.append(StepSample(StepShape((context,) * rows, chunks), repeats))
    return samples


@pytest.mark.parametrize("seed", [0, 28])
def test_odd_tables_are_fitted_without_a_warning_and_every_step_takes_some_time(seed):
    samples = odd_table(seed)
    model = fit(samples, seed=seed, bootstrap=2)
    features = features_of(s.shape for s in samples)
    seconds = np.concatenate([model.predict_s(features), *model.interval_s(features)])
    assert np.all(np.isfinite(seconds))
    assert np.all(seconds > 0)
    StepTimeModel.from_dict(model.to_dict())  # the bounds that a file is held to


def test_the_small_batch_table_takes_nothing_from_a_step_that_has_less(noisy):
    """Long contexts showed less time than the law says; a step of the same size without any must keep some."""
    long, short = StepShape((4000,)), StepShape((1,))
    others = [StepShape((c,) * b) for b in (2, 4, 8, 16, 32) for c in (1, 4000)]
    samples = [StepSample(s, (1e-5 + 1e-3 * sum(s.decode_contexts) / 4000,) * 3) for s in others]
    samples += [StepSample(long, (1e-4,) * 3), StepSample(short, (1e-5,))]
    model = fit(samples, bootstrap=4)
    assert np.all(model.predict_s(features_of([long, short, *others])) > 0)
