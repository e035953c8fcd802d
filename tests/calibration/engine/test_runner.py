"""Shapes in, seconds out: batches, clocks, types."""

import numpy as np
import pytest
import torch

from calibration.architecture import Architecture
from calibration.engine.batch import StepBatch, random_batch
from calibration.engine.clock import CpuClock
from calibration.engine.runner import EngineSpec, TorchRunner, choose_dtype

TINY = Architecture(
    name="tiny", model_type="llama", layers=2, hidden_size=64, heads=4, kv_heads=2, head_dim=16,
    intermediate_size=96, vocab_size=128, tie_word_embeddings=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def runner():
    return TorchRunner(EngineSpec(TINY, "cpu", "float32", kv_tokens=4_000, max_positions=300, seed=1))


def batch_of(decode_contexts, chunks, blocks=100, seed=0):
    return random_batch(
        decode_contexts,
        chunks,
        vocab_size=128,
        blocks=blocks,
        block_tokens=16,
        rng=np.random.default_rng(seed),
    )


def test_a_random_batch_has_the_shape_asked_for():
    batch = batch_of([15, 16], [(20, 0, True), (5, 64, False)])
    assert batch.query_tokens.tolist() == [1, 1, 20, 5]
    assert batch.cached_tokens.tolist() == [15, 16, 0, 64]
    assert batch.sampled.tolist() == [True, True, True, False]
    assert [len(table) for table in batch.block_tables] == [1, 2, 2, 5]
    used = np.concatenate(batch.block_tables)
    assert len(set(used.tolist())) == len(used)
    assert not np.array_equal(used, np.sort(used))


def test_inputs_are_fresh_for_each_seed_and_the_same_for_one():
    assert np.array_equal(batch_of([9], [], seed=4).token_ids, batch_of([9], [], seed=4).token_ids)
    assert not np.array_equal(
        batch_of([], [(50, 0, True)]).token_ids, batch_of([], [(50, 0, True)], seed=1).token_ids
    )


def test_a_step_that_the_pool_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="needs 4 KV blocks, the pool has 3"):
        batch_of([31, 31], [], blocks=3)


@pytest.mark.parametrize(("query", "cached"), [([0], [0]), ([2], [-1]), ([3], [0]), ([], [])])
def test_arrays_that_do_not_belong_together_are_refused(query, cached):
    tables = tuple(np.zeros(1, dtype=np.int64) for _ in query)
    with pytest.raises(ValueError, match="row"):
        StepBatch(
            np.zeros(2, dtype=np.int64),
            np.array(query, dtype=np.int64),
            np.array(cached, dtype=np.int64),
            tables,
            np.ones(len(query), dtype=np.bool_),
        )


def test_measure_times_a_mixed_step(runner):
    timing = runner.measure([100, 7], [(30, 50, True)], seed=2)
    assert timing.seconds > 0
    assert timing.host_gap_s > 0


def test_fits_says_what_measure_would_refuse(runner):
    assert runner.decoder.cache.tokens == 4_000
    assert runner.fits([255] * 15, [])
    assert not runner.fits([255] * 15, [(200, 0, True)])
    with pytest.raises(ValueError, match="KV blocks"):
        runner.measure([255] * 15, [(200, 0, True)], seed=0)


def test_the_pool_is_allocated_and_nowhere_zero(runner):
    for layer in runner.decoder.cache.layers:
        assert layer.shape == (250, 16, 2, 2, 16)
        assert float((layer == 0).double().mean()) < 1e-3
        assert 0.9 < float(layer.std()) < 1.1


def test_environment_says_what_was_measured_with(runner):
    environment = runner.environment()
    assert environment["dtype"] == "float32"
    assert environment["intra_op_threads"] == 1
    assert environment["parameters"] == TINY.parameters
    assert environment["torch"] == torch.__version__


def test_weights_depend_on_the_seed_only():
    def first(seed):
        runner = TorchRunner(EngineSpec(TINY, "cpu", "float32", kv_tokens=64, max_positions=64, seed=seed))
        return runner.decoder.weights.embedding

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))


def test_cpu_clock_counts_work_not_waiting():
    import time

    clock = CpuClock()
    waited = clock.time(lambda: lambda: time.sleep(0.05))
    assert waited.seconds < 0.04
    assert waited.contended
    assert clock.time(lambda: lambda: sum(range(200_000))).seconds > 0


def test_dtype_by_name_or_by_measuring():
    cpu = torch.device("cpu")
    assert choose_dtype("float32", cpu) is torch.float32
    assert choose_dtype("auto", cpu) in (torch.float32, torch.bfloat16)
    with pytest.raises(ValueError, match="dtype"):
        choose_dtype("int4", cpu)
