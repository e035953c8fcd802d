import numpy as np
import pytest

from calibration.steptime import Chunk, StepShape, features_of
from calibration.steptime.hull import build_hull


def inside(hull, shapes):
    """Whether each shape is in the box and the hull, spelt out without the tables of the kernel."""
    features = features_of(shapes)
    matrix = features.matrix()
    boxed = np.all((matrix >= hull.low) & (matrix <= hull.high), axis=1)
    points = np.log1p(matrix[:, [0, 3, 5]])
    facets = np.all(points @ hull.facets[:, :3].T + hull.facets[:, 3] <= 0, axis=1)
    low, high = hull.decode_interval(features.n)
    face = (low <= features.C) & (high >= features.C)
    return (boxed & np.where(features.has_chunk, facets, face)).tolist()


def hull_of(shapes, share=1.0):
    features = features_of(shapes)
    return build_hull(features, np.full(len(features), share))


MIXED = [
    StepShape((c,) * b, (Chunk(q, p),) if q else ())
    for b in (1, 16)
    for c in (64, 1024)
    for q in (0, 16, 512)
    for p in (0, 1024)
] + [StepShape((), (Chunk(q, p),)) for q in (16, 512) for p in (0, 1024)]


def test_measured_points_are_inside_and_what_lies_between_them():
    hull = hull_of(MIXED)
    assert all(inside(hull, MIXED))
    assert inside(hull, [StepShape((300,) * 4), StepShape((300,) * 4, (Chunk(100, 200),))]) == [True, True]


@pytest.mark.parametrize(
    "shape",
    [
        StepShape((2048,)),  # a longer context
        StepShape((512,) * 17),  # a larger batch
        StepShape((30,)),  # a shorter context, of which nothing is known
        StepShape((), (Chunk(600, 0),)),
        StepShape((), (Chunk(512, 3000),)),
        StepShape((), tuple(Chunk(32, 0) for _ in range(15))),  # far fewer pairs than one chunk of its n
    ],
)
def test_beyond_the_points_is_outside(shape):
    assert inside(hull_of(MIXED), [shape]) == [False]


def test_steps_with_little_attention_stand_for_those_with_less():
    hull = hull_of(MIXED, share=0.05)
    cheaper = [
        StepShape((30,)),
        StepShape((), tuple(Chunk(32, 0) for _ in range(15))),
        StepShape((), (Chunk(3, 0),)),
    ]
    assert inside(hull, cheaper) == [True, True, True]
    assert inside(hull, [StepShape((2048,)), StepShape((512,) * 17)]) == [False, False]


def test_prompts_between_measured_lengths_are_inside_whatever_attention_costs():
    measured = [StepShape((), (Chunk(q, 0),)) for q in (16, 128, 2048)]
    between = [StepShape((), (Chunk(q, 0),)) for q in range(16, 2049, 16)]
    assert all(inside(hull_of(measured, share=0.9), between))


def test_a_step_without_logits_is_inside():
    assert inside(hull_of(MIXED), [StepShape((), (Chunk(100, 100, samples=False),))]) == [True]


@pytest.mark.parametrize(
    ("shapes", "within", "without"),
    [
        ([StepShape((c,) * 4) for c in (10, 100)], StepShape((50,) * 4), StepShape((50,) * 3)),
        (
            [StepShape((c,) * b) for b in (1, 8) for c in (10, 100)],
            StepShape((50,) * 4),
            StepShape((150,) * 4),
        ),
        ([StepShape((50,))] * 3, StepShape((50,)), StepShape((51,))),
        (
            [StepShape((), (Chunk(64, p),)) for p in (0, 10, 100)],
            StepShape((), (Chunk(64, 50),)),
            StepShape((), (Chunk(65, 50),)),
        ),
        ([StepShape((), (Chunk(64, 8),))], StepShape((), (Chunk(64, 8),)), StepShape((), (Chunk(64, 9),))),
        (
            [StepShape((), (Chunk(q, 8),)) for q in (16, 64, 256)],
            StepShape((), (Chunk(128, 8),)),
            StepShape((), (Chunk(128, 2000),)),
        ),
    ],
    ids=["one batch size", "decode only", "one decode", "one chunk size", "one chunk", "no decode"],
)
def test_flat_sets_of_points(shapes, within, without):
    hull = hull_of(shapes)
    assert all(inside(hull, shapes))
    assert inside(hull, [within, without]) == [True, False]


def test_facets_stay_few_and_the_interval_is_exact_in_whole_tokens():
    rng = np.random.default_rng(0)
    drawn = ((rng.integers(1, 2000, rng.integers(1, 64)), rng.integers(1, 2000)) for _ in range(800))
    shapes = [StepShape(tuple(contexts.tolist()), (Chunk(int(q), 5),)) for contexts, q in drawn]
    assert len(hull_of(shapes).facets) < 150
    low, high = hull_of(MIXED).decode_interval(np.array([1.0, 16.0, 17.0]))
    assert np.ceil(low[:2]).tolist() == [58, 922]  # a tenth less than the shortest contexts measured
    assert np.floor(high[:2]).tolist() == [1024, 16 * 1024]
    assert low[2] > high[2]
