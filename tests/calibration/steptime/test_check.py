import itertools

import numpy as np

from calibration.steptime import features_of
from calibration.steptime.check import fit_check, token_knots
from calibration.steptime.law import Tokens


def test_a_piecewise_linear_law_is_found(truth):
    features = features_of(truth.corners() + truth.shapes(60, 2))
    chunk = features.has_chunk
    attention = np.where(chunk, 1e-3 + 3e-7 * features.C, 1e-7 * features.C)
    seconds = 0.004 + 1e-5 * features.n + 2e-5 * features.S + attention
    check = fit_check(features, seconds, Tokens())
    assert np.max(np.abs(check.predict_s(features, Tokens()) / seconds - 1)) < 1e-3


def test_it_never_falls_and_is_never_negative(noisy, truth):
    _, samples = noisy
    features = features_of(s.shape for s in samples)
    check = fit_check(features, np.array([s.median_s for s in samples]), Tokens(256, 16))
    assert np.all(np.diff(check.tokens_s(np.arange(0.0, 4000), Tokens(256, 16))) >= 0)
    assert min(check.prices) >= 0
    assert check.knot_s[0] > 0


def test_knots_hold_points_between_them():
    n = np.array([1.0, 2, 3, 4, 16, 33, 64, 500, 2048])
    knots = token_knots(n)
    assert (knots[0], knots[-1]) == (1, 2048)
    assert np.all(np.diff(knots) > 0)
    assert all(np.any((n > low) & (n <= high)) for low, high in itertools.pairwise(knots))
    assert token_knots(np.array([7.0, 7.0])).tolist() == [7.0]
