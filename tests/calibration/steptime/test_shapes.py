import math

import numpy as np
import pytest

from calibration.steptime import Chunk, StepFeatures, StepSample, StepShape, features_of, kind_of, kinds_of


def test_features_of_a_mixed_step_counted_by_hand():
    shape = StepShape((100, 300), (Chunk(3, 10), Chunk(2, 500, samples=False)))
    pairs = (11 + 12 + 13) + (501 + 502)  # each query token sees the cached ones, its forerunners and itself
    assert shape.features == (7, 2, 3, 400, 300, pairs, 502)


@pytest.mark.parametrize(
    ("shape", "kind", "kvm"),
    [
        (StepShape((5, 9)), "decode", 0),
        (StepShape((), (Chunk(4, 0),)), "prefill", 4),
        (StepShape((50,), (Chunk(4, 0),)), "mixed", 50),
    ],
)
def test_kind_and_longest_kv(shape, kind, kvm):
    assert kind_of(shape) == kind
    features = features_of([shape])
    assert kinds_of(features) == [kind]
    assert features.kvm[0] == kvm


def test_features_survive_the_matrix_and_selection():
    shapes = [StepShape((7,)), StepShape((), (Chunk(16, 3),)), StepShape((1, 2), (Chunk(1, 1),))]
    features = features_of(shapes)
    again = StepFeatures.from_matrix(features.matrix())
    assert list(again) == list(features) == [s.features for s in shapes]
    assert list(features[features.has_chunk]) == [s.features for s in shapes[1:]]
    assert len(features_of([])) == 0


@pytest.mark.parametrize(
    ("build", "given"), [(StepShape, ()), (Chunk, (0, 3)), (Chunk, (3, -1)), (StepShape, ((-1,),))]
)
def test_impossible_shapes_are_refused(build, given):
    with pytest.raises(ValueError):
        build(*given)


def test_sample_median_interval_and_round_trip():
    shape = StepShape((64,), (Chunk(8, 8, samples=False),))
    sample = StepSample(shape, (1.0, 1.1, 0.9, 1.0, 5.0), "heldout", 0.2, 1e-4)
    assert sample.median_s == 1.0
    assert 0.05 <= sample.ci_half_width < 3
    assert StepSample.from_dict(sample.to_dict()) == sample


def test_interval_narrows_with_repeats_and_one_repeat_says_nothing():
    draws = np.random.default_rng(1).lognormal(0, 0.05, 15)
    few, many = (StepSample(StepShape((1,)), tuple(draws[:k])) for k in (5, 15))
    assert many.ci_half_width < few.ci_half_width
    assert StepSample(StepShape((1,)), (2.0, 2.0)).ci_half_width == 0
    assert math.isinf(StepSample(StepShape((1,)), (2.0,)).ci_half_width)


@pytest.mark.parametrize("seconds", [(), (0.0,), (1.0, math.nan), (math.inf,), (-1.0,)])
def test_samples_need_real_seconds(seconds):
    with pytest.raises(ValueError):
        StepSample(StepShape((1,)), seconds)
