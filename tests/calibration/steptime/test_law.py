import numpy as np
import pytest

from calibration.steptime import features_of
from calibration.steptime.law import PARAMETERS, Tokens, attention_s, roofline_s, seconds_and_slopes

THETA = np.array(
    [2e-3, 14e-3, 9e-5, 3e-5, 0.8, 1e-6, 1e-5, 1e-4, 1.5e-7, 1e-7, 1e-4, 3e-5, 1e-6, 2.5e-7, 3.5e-9]
)


@pytest.mark.parametrize(
    "tokens", [Tokens(), Tokens(256, 16), Tokens(128, 1), Tokens(padded_sizes=(1, 8, 64))]
)
def test_slopes_are_the_derivatives(truth, tokens):
    features = features_of(truth.shapes(60, 3))
    seconds, slopes = seconds_and_slopes(THETA, tokens, features)
    for j, name in enumerate(PARAMETERS):
        step = np.exp(1e-6 * (np.arange(len(THETA)) == j))
        above, _ = seconds_and_slopes(THETA * step, tokens, features)
        below, _ = seconds_and_slopes(THETA / step, tokens, features)
        assert np.max(np.abs((above - below) / 2e-6 - slopes[:, j]) / seconds) < 1e-7, name


def test_stairs_rise_past_each_multiple_of_the_tile_and_never_fall():
    steep, ramped = Tokens(256, 1), Tokens(256, 16)
    n = np.array([1.0, 256, 257, 512, 513, 1024])
    assert steep.stairs(n).tolist() == [0, 0, 256, 256, 512, 768]
    assert ramped.stairs(np.array([256.0, 264, 272, 300])).tolist() == [0, 128, 256, 256]
    every = np.arange(1.0, 3000)
    assert np.all(np.diff(ramped.stairs(every)) >= 0)
    assert not Tokens().stairs(every).any()


def test_padding_rounds_decode_batches_up_and_leaves_chunks_alone(truth):
    tokens = Tokens(padded_sizes=(1, 2, 4, 8))
    assert tokens.pad(np.array([1.0, 3, 8, 9])).tolist() == [1, 4, 8, 9]
    features = features_of(truth.shapes(60, 3))
    chunk = features.has_chunk
    assert np.array_equal(tokens.padded(features)[chunk], features.n[chunk])
    assert np.all(tokens.padded(features)[~chunk] >= features.n[~chunk])


def test_roofline_has_its_two_limits():
    few, many = roofline_s(THETA, Tokens(), np.array([1.0, 1e6]))
    assert few == pytest.approx(14e-3, rel=0.01)
    assert many == pytest.approx(9e-5 * 1e6, rel=0.01)


def test_attention_is_part_of_the_step(truth):
    features = features_of(truth.shapes(60, 3))
    share = attention_s(THETA, features) / seconds_and_slopes(THETA, Tokens(), features)[0]
    assert np.all((share >= 0) & (share < 1))
