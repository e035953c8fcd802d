"""Steps that were not measured: by what they are outside, and how much of their time."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.steptime import Chunk, StepShape, StepTimeArrays, features_of, linear_model
from calibration.steptime.beyond import beyond

LINEAR = linear_model(0.010, token_s=1e-4)


def bounded(**high: float) -> StepTimeArrays:
    names = ("n", "b", "S", "C", "cmax", "P", "kvm")
    return LINEAR._replace(high=np.array([high.get(name, np.inf) for name in names]))


def decodes(count: int, context: int) -> StepShape:
    return StepShape((context,) * count)


def said(model: StepTimeArrays, *shapes: StepShape) -> str:
    found = beyond(model, features_of(shapes))
    return found.text if found else ""


@pytest.mark.parametrize(
    ("high", "shape", "words"),
    [
        ({"n": 512}, StepShape((), (Chunk(612, 0),)), "steps of up to 612 tokens; measured up to 512"),
        ({"b": 8}, decodes(20, 10), "batches of up to 20 decodes; measured up to 8"),
        ({"C": 1000}, decodes(4, 300), "decode contexts of up to 1,200 tokens in all; measured up to 1,000"),
        ({"cmax": 100}, decodes(4, 300), "contexts of up to 300 tokens; measured up to 100"),
        ({"n": 5, "cmax": 100}, decodes(6, 300), "contexts of up to 300 tokens; measured up to 100"),
    ],
)
def test_the_axis_that_is_exceeded_most_is_named(high, shape, words) -> None:
    assert said(bounded(**high), decodes(1, 5), shape) == words


def test_what_was_measured_is_beyond_nothing() -> None:
    assert beyond(bounded(n=512), features_of([decodes(4, 100)])) is None
    assert beyond(bounded(n=512), features_of([])) is None


def test_the_axis_of_most_of_the_time_is_told_with_its_share() -> None:
    long, wide = StepShape((), (Chunk(600, 0),)), decodes(20, 5)
    found = beyond(bounded(n=512, b=8), features_of([long, wide, wide, decodes(1, 5)]))
    assert found is not None
    assert found.text.startswith("steps of up to 600 tokens")
    assert found.own_s == pytest.approx(0.010 + 512e-4)
    assert found.seconds == pytest.approx(found.own_s + 2 * (0.010 + 20e-4))


def test_inside_the_box_the_face_and_the_facets_are_named() -> None:
    count = 8
    face = LINEAR._replace(
        decode_context_low=np.zeros(count), decode_context_high=np.full(count, 500.0),
        log_tokens=np.log1p(np.arange(count)),
        **{name: np.repeat(getattr(LINEAR, name), count) for name in (
            "decode_tokens_s", "chunk_tokens_s", "check_decode_s", "check_chunk_s")},
    )  # fmt: skip
    assert said(face, decodes(4, 300)) == (
        "batches of 4 decodes with contexts of 1,200 tokens in all; measured there up to 500"
    )
    cut = face._replace(facets=np.array([[0.0, 1.0, 1.0, -5.0]]))
    mixed = StepShape((100, 100), (Chunk(4, 0),))
    assert "each was measured, but not together" in said(cut, mixed)
