"""Tensor parallel over gloo: two processes are one model, and neither outlives the other.

Two ranks add the same numbers in another order: float32 logits near 1 agree to about 1e-6; 1e-4 is allowed.
"""

import contextlib
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from calibration import measure, pipeline
from calibration.architecture import PRESETS, Architecture
from calibration.document import read_document
from calibration.engine.client import REPOSITORY, EngineClient, EngineError, rank_device
from calibration.engine.process import FORMULA
from calibration.engine.sharding import CannotShard, check_shards
from calibration.engine.shards import Shard
from calibration.experiment import Envelope
from tests.ops.services import PATIENCE_S, wait_for

SCRIPT = Path(__file__).with_name("rank_logits.py")
CLOSE = 1e-4


def models() -> dict[str, Architecture]:
    spec = importlib.util.spec_from_file_location("rank_logits", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MODELS


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What one process alone and each of two say of every model: [size][rank][model]."""
    found = {}
    for size in (1, 2):
        meeting = tmp_path_factory.mktemp("ranks") / "meeting"
        environment = os.environ | {
            "PYTHONPATH": str(REPOSITORY),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        processes = [
            subprocess.Popen([sys.executable, SCRIPT, str(rank), str(size), str(meeting)], env=environment,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(size)
        ]  # fmt: skip
        answers = [process.communicate(timeout=PATIENCE_S) for process in processes]
        for process, (_, errors) in zip(processes, answers, strict=True):
            assert process.returncode == 0, errors[-2000:]
        rows = [[json.loads(line) for line in output.splitlines()] for output, _ in answers]
        found[size] = [{row["model"]: row for row in of_rank} for of_rank in rows]
    return found


@pytest.mark.parametrize("name", sorted(models()))
def test_two_ranks_have_the_logits_of_one_process(ranks, name):
    alone, both = ranks[1][0][name], [of_rank[name] for of_rank in ranks[2]]
    wanted = torch.tensor(alone["logits"])
    for one in both:
        assert float((torch.tensor(one["logits"]) - wanted).abs().max()) < CLOSE
        assert one["picked"] == alone["picked"] == wanted.argmax(dim=1).tolist()
    model = models()[name]
    assert sum(one["kv_elements"] for one in both) == model.kv_bytes_per_token(1, 2)
    assert alone["parameters"] == model.parameters
    assert all(alone["parameters"] / 2 < one["parameters"] < alone["parameters"] for one in both)


TINY = Architecture(
    name="tiny", model_type="llama", layers=2, hidden_size=64, heads=4, kv_heads=2, head_dim=16,
    intermediate_size=96, vocab_size=128, tie_word_embeddings=True,
)  # fmt: skip


def test_an_engine_of_two_ranks_measures_says_what_it_is_and_dies_as_one():
    options = {"dtype": "auto", "kv_tokens": 2_000, "max_positions": 300, "tensor_parallel": 2}
    with EngineClient(TINY, **options) as engine:
        environment = engine.environment()
        assert environment["tensor_parallel"] == 2
        assert "gloo" in environment["ranks"]
        assert environment["representative"] is False
        assert engine.measure([10, 20], [(5, 0, True)], seed=1).seconds > 0
        with pytest.raises(EngineError, match="KV blocks"):
            engine.measure([299] * 20, [], seed=1)
        assert engine.measure([10], [], seed=1).seconds > 0  # a step that all refuse ends nobody
        first, second = engine.pids
        os.kill(second, signal.SIGKILL)
        with pytest.raises(EngineError, match=r"rank 1 of 2 ended \(signal 9"):
            engine.measure([10], [], seed=0)
    for pid in (first, second):
        wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "the ranks to end")


def test_a_model_that_does_not_divide_is_refused_before_anything_starts():
    with pytest.raises(EngineError, match="4 attention heads, which do not divide among 3 ranks"):
        EngineClient(TINY, kv_tokens=64, max_positions=64, dtype="float32", tensor_parallel=3)


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        ("llama-3.1-8b", 8, ""),
        ("llama-3.1-8b", 16, ""),  # 8 KV heads, each on two ranks
        ("llama-3.1-8b", 5, "attention heads"),
        ("llama-3.1-8b", 0, "at least one rank"),
    ],
)
def test_what_divides_among_ranks(name, size, words):
    if not words:
        check_shards(PRESETS[name], size)
        return
    with pytest.raises(CannotShard, match=words):
        check_shards(PRESETS[name], size)


def test_shares_are_the_whole_and_copies_where_heads_are_few():
    model = PRESETS["llama-3.1-8b"]
    assert [Shard(r, 4).kv_heads(model) for r in range(4)] == [slice(2 * r, 2 * r + 2) for r in range(4)]
    assert [Shard(r, 16).kv_heads(model).start for r in range(16)] == [r // 2 for r in range(16)]
    shares = [Shard(r, 3).vocabulary(128_256 + 1) for r in range(3)]
    assert shares[0].start == 0 and shares[-1].stop == 128_257
    assert all(a.stop == b.start for a, b in itertools.pairwise(shares))


def test_ranks_take_the_gpus_from_the_named_one_on():
    assert [rank_device("cuda:2", rank) for rank in range(3)] == ["cuda:2", "cuda:3", "cuda:4"]
    assert rank_device("cuda", 1) == "cuda:1"
    assert rank_device("cpu", 3) == "cpu"


def arguments_for(out):
    given = ["--model", str(REPOSITORY / "scripts" / "dry_run_model.json"), "--out", str(out), "--seed", "5"]
    given += [
        "--max-batch",
        "2",
        "--max-context-tokens",
        "32",
        "--max-step-tokens",
        "16",
        "--kv-tokens",
        "512",
    ]
    return [*given, "--tensor-parallel"]


@pytest.mark.slow
def test_the_command_measures_with_two_ranks_and_says_so(tmp_path, monkeypatch):
    """Steps, said to take what a formula gives, so that they are published; then the pools and transfers of both."""
    monkeypatch.setenv("RIDGELINE_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv(FORMULA, "1")
    out = tmp_path / "out.json"
    larger = [
        "--max-batch",
        "4",
        "--max-context-tokens",
        "128",
        "--max-step-tokens",
        "32",
        "--kv-tokens",
        "2048",
    ]
    assert measure.main([*arguments_for(out), "2", *larger]) == measure.PUBLISHED
    document = read_document(out)
    environment, facts = document.environment, document.facts
    assert environment["tensor_parallel"] == document.ranks == facts.kv_capacity.ranks == 2
    assert environment["representative"] is False
    assert facts.kv_capacity.tokens(32) == 2_048
    assert [table.ranks for table in facts.transfers] == [2, 2, 2, 2]
    assert any("TCP" in remark for remark in environment["not_measured"])


def test_a_calibration_of_ranks_asks_for_what_is_around_them(monkeypatch):
    """Without an engine: the ranks that took the steps are those whose pools and transfers are measured."""
    asked = []
    done = SimpleNamespace(samples=[], published=True, environment={})
    monkeypatch.setattr(pipeline, "EngineClient", lambda *a, **options: contextlib.nullcontext())
    monkeypatch.setattr(pipeline, "calibrate_with", lambda *a, **options: done)
    monkeypatch.setattr(pipeline, "device_report", lambda *a, **options: {})
    monkeypatch.setattr(pipeline.dataclasses, "replace", lambda result, **changes: result)
    monkeypatch.setattr(pipeline, "measure_surroundings", lambda *a, **options: asked.append(options))
    with pytest.raises(pipeline.Stopped):  # which is what an answer of nothing means
        pipeline.calibrate(TINY, Envelope(2, 32, 16), kv_tokens=512, tensor_parallel=2, dtype="float32")
    (options,) = asked
    assert (options["tensor_parallel"], options["device"], options["kv_tokens"]) == (2, "cpu", 512)
    pipeline.calibrate(TINY, Envelope(2, 32, 16), kv_tokens=512, tensor_parallel=2, surroundings=False)
    assert len(asked) == 1


def test_the_command_refuses_what_does_not_divide_and_gpus_that_are_not_there(tmp_path, capsys):
    arguments = arguments_for(tmp_path / "out.json")
    assert measure.main([*arguments, "3"]) == measure.BAD_INPUT
    assert "do not divide among 3 ranks" in capsys.readouterr().err
    assert measure.main([*arguments, "0"]) == measure.BAD_INPUT
    assert measure.main([*arguments, "2", "--device", "cuda:0"]) == measure.BAD_INPUT
    assert "no device 'cuda:0'" in capsys.readouterr().err


def test_memory_is_asked_for_by_rank():
    from calibration.experiment import check_fits

    model, envelope = PRESETS["llama-3.1-70b"], Envelope(16, 4_096, 2_048)
    free_bytes = 80 << 30
    with pytest.raises(ValueError, match="does not fit"):
        check_fits(model, envelope, device="cuda:0", free_bytes=free_bytes)
    two, four = (
        check_fits(model, envelope, device="cuda:0", free_bytes=free_bytes, tensor_parallel=size)
        for size in (2, 4)
    )
    assert two < four  # weights and KV heads are shared out, so the same GPUs hold more
