import numpy as np

from calibration.steptime import Chunk, StepShape, features_of
from calibration.steptime.check import MAX_KNOTS, Detail, details_for, fit_check, token_knots
from calibration.steptime.law import Tokens


def test_a_piecewise_linear_law_is_found(truth):
    features = features_of(truth.corners() + truth.shapes(60, 2))
    chunk = features.has_chunk
    attention = np.where(chunk, 1e-3 + 3e-7 * features.C, 1e-7 * features.C)
    seconds = 0.004 + 1e-5 * features.n + 2e-5 * features.S + attention
    check = fit_check(features, seconds, Tokens())
    assert np.max(np.abs(check.predict_s(features, Tokens()) / seconds - 1)) < 1e-3


def test_heavy_points_are_met_and_light_ones_give_way():
    shapes = [StepShape((100,) * rows, ()) for rows in (4, 4, 8, 8)]
    seconds, knots = np.array([1.0, 1.04, 2.0, 2.08]), np.array([4.0, 8.0])
    heavy = fit_check(features_of(shapes), seconds, Tokens(), knots, np.array([100.0, 1.0, 100.0, 1.0]))
    assert np.allclose(heavy.predict_s(features_of(shapes), Tokens())[[0, 2]], [1.0, 2.0], rtol=0.002)
    plain = fit_check(features_of(shapes), seconds, Tokens(), knots)
    assert np.all(plain.predict_s(features_of(shapes), Tokens())[[0, 2]] > [1.01, 2.02])


def test_a_spoilt_point_bends_the_lines_little():
    shapes = [StepShape((), (Chunk(tokens, 0),)) for tokens in range(20, 140, 10)]
    seconds = np.array([0.01 + 0.001 * shape.features[0] for shape in shapes])
    spoilt = seconds * np.where(np.arange(len(seconds)) == 5, 1.3, 1.0)
    features, knots = features_of(shapes), np.array([20.0, 70.0, 130.0])
    robust = fit_check(features, spoilt, Tokens(), knots)
    squares = fit_check(features, spoilt, Tokens(), knots, detail=Detail.KNOTS)
    worst = [np.max(np.abs(check.predict_s(features, Tokens()) / seconds - 1)) for check in (robust, squares)]
    assert worst[0] < 0.6 * worst[1], worst


def test_it_never_falls_and_is_never_negative(noisy, truth):
    _, samples = noisy
    features = features_of(s.shape for s in samples)
    check = fit_check(features, np.array([s.median_s for s in samples]), Tokens(256, 16))
    assert np.all(np.diff(check.tokens_s(np.arange(0.0, 4000), Tokens(256, 16))) >= 0)
    assert check.values.min() >= 0
    assert check.values[0] > 0


def test_knots_are_measured_and_apart():
    n = np.array([1.0, 2, 3, 4, 16, 17, 33, 64, 500, 2048, 2049, 2176])
    assert token_knots(n).tolist() == [1, 2, 4, 16, 33, 64, 500, 2176]
    many = token_knots(2.0 ** np.arange(20))
    assert len(many) == 12
    assert (many[0], many[-1]) == (1, 2.0**19)
    assert token_knots(np.array([7.0, 7.0])).tolist() == [7.0]


def padded_rows(features):
    """Decode rows beside a chunk each read a whole tile of 128 tokens at least: no line in rows and contexts."""
    return (
        0.004
        + 1e-5 * features.n
        + np.where(features.has_chunk, 3e-7 * np.maximum(features.C, 128 * features.b), 0)
    )


def grid():
    chunks = ((), (Chunk(64, 0),), (Chunk(300, 100),), (Chunk(1000, 0),))
    rows = [((c,) * b, chunk) for b in (1, 2, 8, 32, 64) for c in (16, 64, 200, 1000) for chunk in chunks]
    return [StepShape(contexts, chunk) for contexts, chunk in rows]


def test_a_surface_over_rows_and_contexts_is_found_where_lines_cannot_have_it():
    features = features_of(grid())
    seconds = padded_rows(features)
    errors = {}
    for detail in (Detail.LINES, Detail.SURFACE):
        check = fit_check(features, seconds, Tokens(), detail=detail)
        errors[detail] = np.abs(check.predict_s(features, Tokens()) / seconds - 1).max()
        assert len(check.surface) == (0 if detail is Detail.LINES else 63)
    assert errors[Detail.SURFACE] < 0.5 * errors[Detail.LINES]


def test_a_surface_never_falls():
    features = features_of(grid())
    check = fit_check(features, padded_rows(features), Tokens(), detail=Detail.SURFACE)
    surface = check.surface_s(np.arange(65.0))
    assert surface.shape == (65, 10)
    assert surface.max() > 1e-3
    assert np.all(surface[0] == 0)
    assert np.all(surface[:, 0] == 0)
    assert np.all(np.diff(surface, axis=0) >= 0)
    assert np.all(np.diff(surface, axis=1) >= 0)


def test_many_rows_are_reduced_to_the_same_answer():
    """The triangular factor of a tall matrix has the same least-squares solutions."""
    features = features_of(grid())
    seconds = padded_rows(features) * np.random.default_rng(1).lognormal(0, 0.02, len(features))
    knots = np.array([1.0, 2000.0])
    few = fit_check(features, seconds, Tokens(), knots, detail=Detail.LINES)
    order = np.tile(np.arange(len(features)), 5)
    many = fit_check(features[order], seconds[order], Tokens(), knots, detail=Detail.LINES)
    assert np.allclose(few.predict_s(features, Tokens()), many.predict_s(features, Tokens()), rtol=1e-6)


def test_as_many_knots_as_the_points_allow():
    n = np.tile(np.arange(1.0, 101), 5)
    assert len(token_knots(n)) <= MAX_KNOTS
    assert len(token_knots(n, Detail.KNOTS)) == 50
    assert token_knots(n[:100], Detail.KNOTS).tolist() == token_knots(n[:100]).tolist()
    assert Detail.KNOTS in details_for(500)
    assert Detail.KNOTS not in details_for(80)
