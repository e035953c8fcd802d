"""The offline run: its file is a calibration document, and bad input ends before anything starts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from calibration import measure
from calibration.architecture import parse_config
from calibration.document import read_document
from calibration.engine import client
from calibration.pipeline import CalibrationResult
from calibration.steptime import Gate, StepSample, StepShape

ROOT = Path(__file__).parents[2]
TINY = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}


@pytest.fixture(autouse=True)
def own_lock(tmp_path, monkeypatch):
    monkeypatch.setenv("RIDGELINE_LOCK_DIR", str(tmp_path / "locks"))


def test_measures_a_config_file_and_writes_a_document(tmp_path, capsys):
    config, out = tmp_path / "tiny.json", tmp_path / "out.json"
    config.write_text(json.dumps(TINY))
    arguments = ["--model", str(config), "--out", str(out), "--max-batch", "2", "--max-context-tokens", "32"]
    arguments += [
        "--max-step-tokens",
        "16",
        "--kv-tokens",
        "512",
        "--dtype",
        "float32",
        "--seed",
        "5",
        "--steps-only",
    ]
    status = measure.main(arguments)
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert status == (measure.PUBLISHED if summary["published"] else measure.REFUSED)
    document = read_document(out)
    assert document.architecture == parse_config(TINY, "tiny")
    assert document.kv_tokens == 512
    assert document.seed == 5
    assert document.environment["dtype"] == "float32"
    assert document.environment["ceilings"]["copy_bytes_per_s"] > 1e8
    assert document.environment["ceilings"]["matmul_flops_per_s"] > 1e8
    for shares in document.environment["breakdown"].values():
        assert shares["matmul"] > 0
        assert shares["attention"] > 0
        assert sum(shares[kind] for kind in ("matmul", "attention", "memory", "gaps")) == pytest.approx(1)
    assert document.environment["roofline"]["decode"]["bound_by"] == "memory"
    assert document.environment["roofline"]["reasons"] == []  # the floors judge GPUs
    assert (document.model is not None) == summary["published"]
    assert {sample.role for sample in document.samples} >= {"fit", "heldout", "sentinel"}
    assert summary["heldout"] is None or summary["heldout"]["median"] >= 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "no-such-model"], "neither a readable config.json nor"),
        (["--model", "demo", "--max-batch", "0"], "max_batch"),
        (["--model", "demo", "--max-context-tokens", "100000"], "4,096 positions"),
        (["--model", "llama-3.1-70b", "--kv-tokens", "10000000000"], "does not fit"),
        (["--model", "demo", "--kv-tokens", "16"], "too small"),
        (["--model", "demo", "--kv-tokens", "20000", "--out", "/nonexistent/folder/x.json"], "No such file"),
        (["--model", "demo", "--device", "cuda:7"], "no device 'cuda:7'"),
        (["--model", "demo", "--kv-tokens", "20000", "--dtype", "int4"], "dtype must be"),
    ],
)
def test_bad_input_ends_with_words_and_status_2(arguments, words, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "_free_bytes", _free_bytes_here(measure._free_bytes))
    arguments = ["--out", str(tmp_path / "out.json"), *arguments]
    assert measure.main(arguments) == measure.BAD_INPUT
    assert words in capsys.readouterr().err


def test_a_run_without_a_place_for_its_result_is_not_begun(capsys, monkeypatch):
    monkeypatch.setattr(measure, "calibrate", lambda *a, **o: pytest.fail("it was begun"))
    with pytest.raises(SystemExit) as left:
        measure.main(["--model", "demo"])
    assert left.value.code == measure.BAD_INPUT
    assert "--out" in capsys.readouterr().err


def test_a_run_that_was_disturbed_says_so_in_its_last_line_and_writes_no_terminal_codes_to_a_file(
    tmp_path, capsys, monkeypatch
):
    def disturbed(architecture, envelope, *, on_progress, on_log, kv_tokens, **options):
        for step in range(500):
            on_progress(step, 500, "Measuring", 1.0)
        on_log("Fitted")
        sample = StepSample(StepShape((10,)), (0.01, 0.011))
        record = {"cpu_s": 1.0, "observed": {"sentinel_drift": [0.301, 0.02]}}
        return CalibrationResult(
            [sample], record, None, None, Gate(True, "published: for the test"), kv_tokens
        )

    monkeypatch.setattr(measure, "calibrate", disturbed)
    out = str(tmp_path / "out.json")
    assert measure.main(["--model", "demo", "--kv-tokens", "20000", "--out", out]) == measure.PUBLISHED
    printed = capsys.readouterr()
    (remark,) = json.loads(printed.out.splitlines()[-1])["remarks"]
    assert "35.1% longer" in remark
    assert "\r" not in printed.err
    assert printed.err.splitlines()[-1] == "Fitted"
    assert len(printed.err.splitlines()) < 5


def _free_bytes_here(asked):
    """8 GiB for the CPU, whatever this machine has; the real question for any other device."""
    return lambda device: 8 << 30 if device == "cpu" else asked(device)


def test_a_run_that_is_interrupted_says_so(tmp_path, monkeypatch, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "calibrate", interrupted)
    out = str(tmp_path / "out.json")
    assert measure.main(["--model", "demo", "--kv-tokens", "20000", "--out", out]) == measure.STOPPED
    assert "stopped" in capsys.readouterr().err


def test_an_engine_that_dies_is_not_a_traceback(tmp_path, monkeypatch, capsys):
    def dies(*arguments, **options):
        raise client.EngineError("the engine process ended (signal 9)")

    monkeypatch.setattr(measure, "calibrate", dies)
    out = str(tmp_path / "out.json")
    assert measure.main(["--model", "demo", "--kv-tokens", "20000", "--out", out]) == measure.BAD_INPUT
    assert "signal 9" in capsys.readouterr().err


def test_an_interrupted_run_is_gone_on_with_and_its_file_is_whole_at_any_time(tmp_path, monkeypatch, capsys):
    """Stopped twice after some steps; the third run ends with every sample, and takes the partial file away."""
    out = tmp_path / "out.json"
    partial = tmp_path / "out.json.partial"
    arguments = ["--model", "demo", "--out", str(out), "--steps-only"]
    monkeypatch.setattr(measure, "_free_bytes", lambda device: 8 << 30)
    monkeypatch.setattr("calibration.partial.EVERY_S", 0.0)
    samples = [StepSample(StepShape((10 * (i + 1),)), (0.01, 0.011)) for i in range(4)]
    seen = []

    def calibrate(architecture, envelope, *, earlier, on_sample, kv_tokens, **options):
        seen.append((dict(earlier), kv_tokens))
        for ordinal in range(len(earlier), min(4, len(earlier) + 2)):
            on_sample(ordinal, samples[ordinal])
            assert json.loads(partial.read_text())["samples"][str(ordinal)]["seconds"] == [0.01, 0.011]
        if len(seen) < 3:
            raise KeyboardInterrupt
        verdict = Gate(False, "refused: for the test")
        return CalibrationResult(samples, {"cpu_s": 1.0}, None, None, verdict, kv_tokens)

    monkeypatch.setattr(measure, "calibrate", calibrate)
    assert measure.main(arguments) == measure.STOPPED
    assert "2 steps are kept" in capsys.readouterr().err
    monkeypatch.setattr(
        measure, "_free_bytes", lambda device: 4 << 30
    )  # the default pool would be another one
    assert measure.main(arguments) == measure.STOPPED
    assert measure.main([*arguments, "--seed", "1"]) == measure.BAD_INPUT
    assert "of another run (seed differ)" in capsys.readouterr().err
    assert not out.exists()
    assert measure.main(arguments) == measure.REFUSED
    assert [len(earlier) for earlier, _ in seen] == [0, 2, 4]
    assert len({kv_tokens for _, kv_tokens in seen}) == 1
    assert not partial.exists()
    assert read_document(out).samples == samples
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json"]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format": "ridgeline-partial-run", "samples": {"x": 1}}'])
def test_a_partial_file_that_is_none_is_refused_until_one_says_fresh(content, tmp_path, monkeypatch, capsys):
    (tmp_path / "out.json.partial").write_bytes(content)
    arguments = ["--model", "demo", "--out", str(tmp_path / "out.json"), "--kv-tokens", "20000"]
    monkeypatch.setattr(measure, "_free_bytes", lambda device: 8 << 30)
    assert measure.main(arguments) == measure.BAD_INPUT
    assert "--fresh" in capsys.readouterr().err
    assert (tmp_path / "out.json.partial").read_bytes() == content

    def stopped(*arguments, **options):
        assert options["earlier"] == {}
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "calibrate", stopped)
    assert measure.main([*arguments, "--fresh"]) == measure.STOPPED


def test_the_offline_run_needs_torch_numpy_and_scipy_alone():
    """And the process that starts it not even torch: every other import is refused here."""
    script = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused}:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import calibration.measure, calibration.drift, calibration.experiment.surroundings
"""
    web = {"django", "celery", "ninja", "plotly", "numba", "msgspec", "redis", "torch"}
    command = [sys.executable, "-c", script.replace("{refused}", repr(web))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
