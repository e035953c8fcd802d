"""The offline run: its file is a calibration document, and bad input ends before anything starts."""

import json

import pytest

from calibration import measure
from calibration.architecture import parse_config
from calibration.document import read_document
from calibration.engine import client

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
    arguments += ["--max-step-tokens", "16", "--kv-tokens", "512", "--dtype", "float32", "--seed", "5"]
    status = measure.main(arguments)
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert status == (measure.PUBLISHED if summary["published"] else measure.REFUSED)
    document = read_document(out)
    assert document.architecture == parse_config(TINY, "tiny")
    assert document.kv_tokens == 512
    assert document.seed == 5
    assert document.environment["dtype"] == "float32"
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
def test_bad_input_ends_with_words_and_status_2(arguments, words, capsys, monkeypatch):
    monkeypatch.setattr(measure, "_free_bytes", _free_bytes_here(measure._free_bytes))
    assert measure.main(arguments) == measure.BAD_INPUT
    assert words in capsys.readouterr().err


def _free_bytes_here(asked):
    """8 GiB for the CPU, whatever this machine has; the real question for any other device."""
    return lambda device: 8 << 30 if device == "cpu" else asked(device)


def test_a_run_that_is_interrupted_says_so(monkeypatch, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "calibrate", interrupted)
    assert measure.main(["--model", "demo", "--kv-tokens", "20000"]) == measure.STOPPED
    assert "stopped" in capsys.readouterr().err


def test_an_engine_that_dies_is_not_a_traceback(monkeypatch, capsys):
    def dies(*arguments, **options):
        raise client.EngineError("the engine process ended (signal 9)")

    monkeypatch.setattr(measure, "calibrate", dies)
    assert measure.main(["--model", "demo", "--kv-tokens", "20000"]) == measure.BAD_INPUT
    assert "signal 9" in capsys.readouterr().err
