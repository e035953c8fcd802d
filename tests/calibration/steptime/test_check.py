import numpy as np

from calibration.steptime import StepShape, features_of
from calibration.steptime.check import fit_check, token_knots
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
    seconds, knots = np.array([1.0, 3.0, 2.0, 6.0]), np.array([4.0, 8.0])
    heavy = fit_check(features_of(shapes), seconds, Tokens(), knots, np.array([100.0, 1.0, 100.0, 1.0]))
    assert np.allclose(heavy.predict_s(features_of(shapes), Tokens())[[0, 2]], [1.0, 2.0], rtol=0.01)
    plain = fit_check(features_of(shapes), seconds, Tokens(), knots)
    assert np.all(plain.predict_s(features_of(shapes), Tokens())[[0, 2]] > [1.1, 2.2])


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
