import itertools

import numpy as np
import pytest

from calibration.sources.choosing import choose_points, chosen_rows, in_domain
from calibration.steptime import Chunk, StepSample, StepShape

GRID = [
    StepShape((c,) * b, (Chunk(q, p),) if q else ())
    for q, p, b, c in itertools.product((0, 16, 64, 256, 1024), (0, 256, 4096), (0, 1, 8, 64), (128, 1024))
    if (q or b) and (q or not p)
]


def samples(seconds=0.01):
    return [StepSample(shape, (seconds * (1 + i % 7),)) for i, shape in enumerate(dict.fromkeys(GRID))]


def test_roles_are_given_and_nothing_else_changes():
    table = samples()
    chosen = choose_points(table, 40, seed=1)
    assert [s.shape for s in chosen] == [s.shape for s in table]
    assert [s.seconds for s in chosen] == [s.seconds for s in table]
    assert sum(s.role == "fit" for s in chosen) == 40
    assert {s.role for s in chosen} == {"fit", "heldout"}


def test_times_do_not_matter_and_the_seed_does():
    table, slower = samples(), samples(0.5)
    roles = [
        [s.role for s in choose_points(t, 30, seed=k)] for t, k in ((table, 1), (slower[::1], 1), (table, 2))
    ]
    assert roles[0] == roles[1]
    assert roles[0] != roles[2]


def test_kinds_get_their_shares_and_a_third_of_each_is_left():
    table = samples()
    chosen = choose_points(table, 1000, seed=0)
    for kind in ("decode", "prefill", "mixed"):
        fitted = sum(s.role == "fit" for s in chosen if s.kind == kind)
        assert fitted == int(np.ceil(2 / 3 * sum(s.kind == kind for s in chosen)))
    few = choose_points(table, 20, seed=0)
    counts = [sum(s.role == "fit" for s in few if s.kind == k) for k in ("decode", "prefill", "mixed")]
    assert counts == [4, 4, 12]  # decode has no more to give: its share goes to the others


def test_corners_and_every_chunk_size_are_among_the_points():
    shapes = [s.shape for s in samples()]
    picked = [shapes[i] for i in chosen_rows(shapes, 40, seed=3)]
    assert StepShape((1024,) * 64) in picked
    assert {c.query_tokens for s in picked for c in s.chunks} == {16, 64, 256, 1024}


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_small_counts(count):
    shapes = [s.shape for s in samples()]
    assert len(chosen_rows(shapes, count)) == count
    assert len(chosen_rows([], count)) == 0


def test_domain_counts_all_tokens_of_a_step():
    shape = StepShape((100, 50), (Chunk(30, 20),))
    assert in_domain(shape, 200)
    assert not in_domain(shape, 199)
