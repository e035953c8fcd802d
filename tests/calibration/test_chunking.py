"""The arithmetic of chunks: by hand, and by laws that are known."""

import numpy as np
import pytest

from calibration.chunking import chunk_costs, chunk_sizes, chunks_of
from calibration.steptime import Chunk, StepSample, StepShape, fit


def law(shape: StepShape) -> float:
    """10 ms for the weights of every pass, 0.1 ms a token, 1 µs for each token of a prefix."""
    return (
        0.010
        + sum(1e-4 * c.query_tokens + 1e-6 * c.cached_tokens for c in shape.chunks)
        + 1e-3 * len(shape.decode_contexts)
    )


@pytest.fixture(scope="module")
def fitted():
    grid = [(q, p) for q in (1, 16, 64, 128, 256, 512, 1000) for p in (0, 128, 500, 1000) if q + p <= 1100]
    shapes = [StepShape((), (Chunk(q, p),)) for q, p in grid]
    samples = [StepSample(shape, (law(shape),) * 3) for shape in shapes]
    return fit(samples, bootstrap=0), samples


def test_the_chunks_of_a_prompt() -> None:
    assert chunks_of(1000, 400) == [Chunk(400, 0, False), Chunk(400, 400, False), Chunk(200, 800, True)]
    assert chunks_of(5, 9) == [Chunk(5, 0, True)]
    assert chunk_sizes(512) == [16, 32, 64, 128, 256, 512]
    assert chunk_sizes(8) == [8]
    with pytest.raises(ValueError):
        chunks_of(0, 4)


def test_by_hand(fitted) -> None:
    """1,000 tokens in 256s: four passes, three weight re-reads, prefixes of 256 + 512 + 768 tokens, 232 left over."""
    model, samples = fitted
    rows = chunk_costs(
        model, samples, prompt_tokens=1000, sizes=[256], weight_bytes=10**9, kv_bytes_per_token=100
    )
    cut, whole = rows
    assert (cut.passes, cut.weight_rereads, cut.weight_bytes) == (4, 3, 4 * 10**9)
    assert (cut.prefix_reread_tokens, cut.prefix_reread_bytes, cut.last_chunk_tokens) == (1536, 153_600, 232)
    true = 4 * 0.010 + 0.1 + 1536e-6
    assert cut.fitted_s == pytest.approx(true, rel=0.05)
    assert cut.against_one_pass == pytest.approx(true / 0.110, rel=0.05)
    assert cut.measured_s is None  # 256 after 256 was not timed
    assert (whole.chunk_tokens, whole.passes, whole.against_one_pass) == (1000, 1, 1.0)
    assert whole.measured_s == pytest.approx(0.110)


def test_a_total_is_measured_where_every_chunk_was(fitted) -> None:
    model, samples = fitted
    extra = [StepSample(StepShape((), (Chunk(128, p),)), (0.03, 0.04, 0.05)) for p in (0, 128)]
    (row, *_) = chunk_costs(
        model, [*samples[-1:], *extra], prompt_tokens=256, sizes=[128], weight_bytes=1, kv_bytes_per_token=1
    )
    assert row.measured_s == pytest.approx(0.08)


def test_smaller_chunks_never_cost_less(fitted) -> None:
    model, samples = fitted
    rows = chunk_costs(
        model, samples, prompt_tokens=1000, sizes=chunk_sizes(512), weight_bytes=1, kv_bytes_per_token=1
    )
    assert np.all(np.diff([row.fitted_s for row in rows]) < 0)
    assert [row.passes for row in rows] == [63, 32, 16, 8, 4, 2, 1]


def test_a_prompt_longer_than_what_was_measured_has_no_single_pass(fitted) -> None:
    model, samples = fitted
    rows = chunk_costs(model, samples, prompt_tokens=5000, sizes=[512], weight_bytes=1, kv_bytes_per_token=1)
    assert [row.chunk_tokens for row in rows] == [512]
    assert rows[0].against_one_pass is None
    assert not rows[0].covered
