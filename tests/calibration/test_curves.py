"""What the pictures show: references that were measured, curves that are the model's, points not misread."""

from __future__ import annotations

import numpy as np
import pytest

from calibration import curves
from calibration.steptime import Chunk, StepFeatures, StepSample, StepShape, StepTimeModel, features_of, fit


@pytest.fixture(scope="module")
def model(fitted_samples) -> StepTimeModel:
    return fit([s for s in fitted_samples if s.role == "fit"], seed=0, bootstrap=8)


def sample(contexts: tuple[int, ...] = (), *chunks: tuple[int, int], role: str = "fit") -> StepSample:
    return StepSample(StepShape(contexts, tuple(Chunk(*chunk) for chunk in chunks)), (0.010, 0.011), role)


def test_references_are_values_that_points_share() -> None:
    values = np.array([128.0] * 5 + [130, 126, 1000, 1010, 990, 17, 300])
    low, high = curves.references(values, 4)
    assert 126 <= low <= 130
    assert 990 <= high <= 1010


def test_references_of_a_grid_span_it() -> None:
    grid = np.repeat([16.0, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384], 9)
    found = curves.references(grid, 4)
    assert len(found) == 4
    assert found[0] == pytest.approx(16)
    assert found[-1] == pytest.approx(16384)


@pytest.mark.parametrize("values", [[], [0.0], [7.0]])
def test_references_of_next_to_nothing(values: list[float]) -> None:
    assert curves.references(np.array(values), 4) == pytest.approx(values)


@pytest.mark.parametrize("kind", ["decode", "prefill", "mixed"])
def test_points_are_predicted_as_the_model_predicts_them(kind, fitted_samples, model) -> None:
    shown = curves.view(kind, fitted_samples, model)
    assert shown.points
    predicted = model.predict_s(features_of(p.sample.shape for p in shown.points))
    assert [p.predicted_s for p in shown.points] == pytest.approx(predicted.tolist())


def test_a_decode_curve_is_the_model_at_its_context(fitted_samples, model) -> None:
    shown = curves.view("decode", fitted_samples, model)
    assert shown.labels == ("16", "256", "1,000")
    curve = shown.curves[2]
    at = int(np.argmin(np.abs(curve.x - 8)))
    direct = model.predict_s(features_of([StepShape((1000,) * int(curve.x[at]))]))
    assert curve.seconds[at] == pytest.approx(direct[0])
    assert (curve.low_s < curve.seconds).all()
    assert (curve.seconds < curve.high_s).all()


def test_chunk_features_are_those_of_the_shape() -> None:
    q = np.array([64.0, 256.0])
    made = curves.chunk_features(q, 128, 4, 500, 1.0)
    shapes = [StepShape((500,) * 4, (Chunk(int(n), 128),)) for n in q]
    assert made.matrix().tolist() == features_of(shapes).matrix().tolist()


def test_decode_features_are_those_of_the_shape() -> None:
    b = np.array([1.0, 8.0])
    made = curves.decode_features(b, 300, np.ones(2))
    assert made.matrix().tolist() == features_of([StepShape((300,) * int(n)) for n in b]).matrix().tolist()


def test_a_curve_beyond_the_measured_region_says_so(fitted_samples, model) -> None:
    curve = curves.view("decode", fitted_samples, model).curves[1]
    assert curve.x.max() > 16
    assert not curve.covered[curve.x > 16].any()
    assert curve.covered[(curve.x >= 2) & (curve.x <= 16)].all()


def test_only_points_under_a_curves_conditions_lie_on_it() -> None:
    samples = [sample((100,) * b) for b in (1, 2, 4)] + [sample((900,) * b) for b in (1, 2, 4)]
    odd = sample((320,) * 4)
    shown = curves.view("decode", [*samples, odd], None)
    assert shown.labels == ("100", "900")
    assert [p.on_curve for p in shown.points] == [True] * 6 + [False]
    assert shown.points[0].group == 0
    assert shown.points[5].group == 1


def test_several_prompts_in_a_step_are_no_single_prompt() -> None:
    shown = curves.view("prefill", [sample((), (256, 0)), sample((), (128, 0), (128, 0))], None)
    assert [(p.x, p.on_curve) for p in shown.points] == [(256.0, True), (256.0, False)]


def test_mixed_curves_span_batches_that_were_spread() -> None:
    samples = [sample((200 + 10 * b,) * b, (32 * b, 0)) for b in range(1, 16)]
    assert curves.view("mixed", samples, None).labels == ("1", "4", "15")


def test_many_points_off_the_curves_are_counted_not_drawn(model) -> None:
    on = [sample((500,) * b, (64, 0)) for b in (1, 1, 1, 8, 8, 8)]
    off = [sample((40 + 3 * i,) * 2, (17 + i, 3 * i)) for i in range(60)]
    shown = curves.view("mixed", [*off, *on], None)
    assert len(shown.points) + shown.left_out == 66
    assert shown.left_out == 0 or all(p.on_curve for p in shown.points)


def test_sentinels_are_left_away(fitted_samples) -> None:
    watched = sample((512,) * 8, role="sentinel")
    assert all(p.sample.role != "sentinel" for p in curves.view("decode", [watched], None).points)


@pytest.mark.parametrize("kind", ["decode", "prefill", "mixed"])
def test_nothing_measured(kind, model) -> None:
    shown = curves.view(kind, [], model)
    assert shown.points == ()
    assert shown.curves == ()


def test_skew_follows_the_measured_batches() -> None:
    samples = [sample((100, 300)), sample((100,))]
    assert curves.skew_over(samples, np.array([1.0, 2.0])).tolist() == [1.0, 1.5]
    assert curves.skew_over([], np.array([3.0])).tolist() == [1.0]


def test_features_have_one_shape() -> None:
    made = curves.chunk_features(np.array([1.0, 2.0, 3.0]), 0, 0, 0, 1)
    assert isinstance(made, StepFeatures)
    assert {len(column) for column in (made.n, made.b, made.S, made.C, made.cmax, made.P, made.kvm)} == {3}
    assert made.cmax.tolist() == [0, 0, 0]
