"""KV pools by budget and transfers: the tables made of what a process measured, and that process for real."""

import dataclasses
import json
import subprocess

import pytest

from calibration.architecture import Architecture
from calibration.experiment import Envelope
from calibration.experiment.surroundings import (
    SurroundingsError,
    budgets_of,
    measure_surroundings,
    tables,
    tokens_of,
)
from calibration.pipeline import _with_surroundings

TINY = Architecture(
    name="tiny", model_type="llama", layers=2, hidden_size=64, heads=4, kv_heads=2, head_dim=16,
    intermediate_size=96, vocab_size=128, tie_word_embeddings=True,
)  # fmt: skip
GIB = 1 << 30


def answer(**changes):
    steady = [[1e-3] * 9, [4e-3] * 9]
    return {
        "kv_bytes_per_token": 1024, "working_bytes": {"64": 1 << 20, "256": 3 << 20}, "remarks": [], "cpu_s": 1.0,
        "paths": [["a path", [1_000_000, 4_000_000], steady]],
    } | changes  # fmt: skip


def test_the_largest_budget_has_the_pool_that_was_asked_for() -> None:
    found = tables([answer()], "cpu", 10_000 // 16 * 16)
    assert found.kv_capacity.tokens(256) == 10_000
    assert found.kv_capacity.tokens(64) == 10_000 + 2048  # 2 MiB more, at 1 KiB a token
    (table,) = found.transfers
    assert [table.seconds(size) for size in (1e6, 4e6)] == pytest.approx([1e-3, 4e-3])
    assert (table.label, table.uncertainty) == ("a path", 0.0)


def test_a_gpu_has_no_more_than_its_memory() -> None:
    """A tenth of 1 GiB is kept free, 800 MiB are weights and others: 121 MiB for pool and work."""
    device = {"total_bytes": GIB, "other_bytes": 800 << 20}
    found = tables([answer(**device)], "cuda:0", 1_000_000)
    assert found.kv_capacity.tokens(256) == (int(GIB * 0.9) - (800 << 20) - (3 << 20)) // 1024 // 16 * 16
    assert "90% of the device" in found.kv_capacity.label


def test_the_smallest_of_ranks_counts_and_the_slowest() -> None:
    """The second GPU has 100 MiB less left, and every other repeat is slower on it; bytes of both move at once."""
    device = {"total_bytes": GIB, "other_bytes": 700 << 20}
    small = device | {"other_bytes": 800 << 20, "working_bytes": {"64": 1 << 20, "256": 5 << 20}}
    slow = [[1e-3, 3e-3] * 5, [4e-3, 6e-3] * 5]
    quick = [[2e-3] * 10, [5e-3] * 10]
    pair = [
        answer(**device, paths=[["a path", [1_000_000, 4_000_000], quick]]),
        answer(**small, paths=[["a path", [1_000_000, 4_000_000], slow]]),
    ]
    found = tables(pair, "cuda:0", 1_000_000)
    assert found.kv_capacity == tables(pair[::-1], "cuda:0", 1_000_000).kv_capacity
    alone = tables([answer(**small)], "cuda:1", 1_000_000).kv_capacity
    assert found.kv_capacity.kv_tokens == alone.kv_tokens
    assert found.kv_capacity.working_bytes == (1 << 20, 5 << 20)
    assert "the smallest of 2 ranks (a GPU each)" in found.kv_capacity.label
    (table,) = found.transfers
    assert (table.size_bytes, table.ranks, found.kv_capacity.ranks) == ((2e6, 8e6), 2, 2)
    assert [table.seconds(size) for size in table.size_bytes] == pytest.approx(
        [2.5e-3, 5.5e-3]
    )  # of 2 and 3 ms
    assert "2 ranks at once (a GPU each), the slowest counts" in table.label
    assert found.cpu_s == 2.0


def test_unsteady_repeats_widen_the_doubt_and_times_never_fall() -> None:
    repeats = [[2e-3, 1e-3, 3e-3, 2e-3, 1e-3, 3e-3, 2e-3], [1.5e-3] * 7]
    (table,) = tables([answer(paths=[["p", [10, 20], repeats]])], "cpu", 1024).transfers
    assert table.uncertainty > 0.2
    assert table.seconds(20) >= table.seconds(10)


def test_which_budgets_and_sizes() -> None:
    assert budgets_of(Envelope(16, 1_024, 512)) == [32, 64, 128, 256, 512]
    assert budgets_of(Envelope(2, 32, 8)) == [8]
    assert tokens_of(Envelope(16, 1_024, 512), 4096) == [16, 64, 256, 1_024]
    assert tokens_of(Envelope(16, 100_000, 512), 1 << 20) == [16, 64, 256]


def test_a_process_that_fails_says_so(monkeypatch) -> None:
    monkeypatch.setattr("calibration.experiment.surroundings.sys.executable", "/bin/false")
    with pytest.raises(SurroundingsError, match="exit status 1"):
        measure_surroundings(TINY, Envelope(2, 32, 16), device="cpu", dtype="float32", kv_tokens=512)


def test_step_times_stand_where_the_rest_could_not_be_measured(monkeypatch) -> None:
    def fails(*arguments, **options):
        raise SurroundingsError("no memory left")

    monkeypatch.setattr("calibration.pipeline.measure_surroundings", fails)
    lines, result = [], object()
    assert _with_surroundings(result, TINY, Envelope(2, 32, 16), {}, lines.append, lambda: False) is result
    assert lines == ["KV pools by budget and transfers were not measured: no memory left"]


def test_this_machine_for_real() -> None:
    """Names, sizes and order; how fast depends on the machine."""
    found = measure_surroundings(TINY, Envelope(4, 64, 32), device="cpu", dtype="float32", kv_tokens=1_024)
    assert found.kv_capacity.budget_tokens == (16, 32)
    assert found.kv_capacity.tokens(32) == 1_024 <= found.kv_capacity.tokens(16)
    labels = [table.label for table in found.transfers]
    assert len(labels) == 5
    assert all("software path, one host" in label for label in labels)
    assert sum("while decoding" in label for label in labels) == 2
    assert any("TCP" in label for label in labels)
    assert all(
        table.size_bytes == (16 * 512, 64 * 512) for table in found.transfers
    )  # 4 bytes x 2 x 2 x 2 x 16
    assert any("NIXL" in remark for remark in found.remarks)
    assert 0 < found.cpu_s < 100


def test_two_ranks_for_real() -> None:
    """Two gloo processes on this machine: shares of every size move at once, pools are the model's, and what is not
    measured with ranks is named. Of one KV head both keep a copy, and both are moved."""
    asked = {"device": "cpu", "dtype": "auto", "kv_tokens": 1_024, "tensor_parallel": 2}
    one_head = dataclasses.replace(TINY, kv_heads=1)
    found = measure_surroundings(one_head, Envelope(4, 64, 32), **asked)
    assert (found.kv_capacity.ranks, found.kv_capacity.budget_tokens) == (2, (16, 32))
    assert found.kv_capacity.tokens(32) == 1_024 <= found.kv_capacity.tokens(16)
    assert found.kv_capacity.working_bytes[0] > 0
    assert [table.label.split(",")[0] for table in found.transfers] == [
        "copy within main memory (software path", "copy within main memory (software path",
        "pages gathered in main memory (software path", "pages gathered in main memory (software path",
    ]  # fmt: skip
    for table in found.transfers:
        assert "2 ranks at once (processes on one CPU, for testing)" in table.label
        assert (table.ranks, table.size_bytes) == (2, (16 * 512, 64 * 512))  # 4 bytes x 2 x 2 x 2 copies x 16
    assert sum("while decoding" in table.label for table in found.transfers) == 2
    assert any("TCP between two processes was not measured" in remark for remark in found.remarks)


def test_a_rank_that_fails_is_named() -> None:
    """Its pool is smaller than one block."""
    asked = {"device": "cpu", "dtype": "float32", "kv_tokens": 8, "tensor_parallel": 2}
    with pytest.raises(
        SurroundingsError, match=r"rank [01] of 2: ValueError: a KV pool needs at least 16 tokens"
    ):
        measure_surroundings(TINY, Envelope(2, 32, 16), **asked)


def test_a_rank_that_dies_alone_ends_the_one_that_waits_for_it(monkeypatch) -> None:
    """The second rank is killed where it would have begun; the first waits to meet it."""
    started = subprocess.Popen

    def second_is_killed(command, **options):
        process = started(command, **options)
        if json.loads(options["stdin"].read())["rank"] == 1:
            process.kill()
        return process

    monkeypatch.setattr("calibration.experiment.surroundings.subprocess.Popen", second_is_killed)
    asked = {"device": "cpu", "dtype": "float32", "kv_tokens": 512, "tensor_parallel": 2}
    with pytest.raises(SurroundingsError, match="rank 1 of 2: exit status -9"):
        measure_surroundings(TINY, Envelope(2, 32, 16), **asked)


def test_being_told_to_stop_ends_the_process() -> None:
    stopped = measure_surroundings(
        TINY, Envelope(4, 64, 32), device="cpu", dtype="float32", kv_tokens=1_024, should_stop=lambda: True
    )
    assert stopped is None
