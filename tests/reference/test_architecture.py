"""The 40 published config.json files: counted exactly, or refused by name."""

import csv
import json

import pytest

from calibration.architecture import (
    SUPPORTED_MODEL_TYPES,
    UnsupportedArchitecture,
    load_architecture,
    parse_config,
)

COLUMNS = {
    "kv_bytes_per_token_bf16_all_layers": "kv_bytes_per_token",
    "growing_part": "kv_bytes_per_token_growing",
    "window_bounded_part": "kv_bytes_per_token_windowed",
}


def test_published_configs(reference_data):
    folder = reference_data / "configs"
    with (folder / "EXPECTED_KV.tsv").open() as file:
        expected = list(csv.DictReader(file, delimiter="\t"))
    assert len(expected) == 40
    counted = 0
    for row in expected:
        path = folder / row["file"]
        if row["model_type"] in SUPPORTED_MODEL_TYPES:
            architecture = load_architecture(str(path))
            for column, method in COLUMNS.items():
                assert getattr(architecture, method)() == int(row[column]), (row["file"], column)
            assert architecture.sliding_window_tokens == (int(row["window"]) if row["window"] else None)
            counted += 1
        else:
            with pytest.raises(UnsupportedArchitecture) as refusal:
                load_architecture(str(path))
            assert refusal.value.field == "model_type"
            assert json.loads(path.read_text())["model_type"] in refusal.value.message
    assert counted == 16


def test_kv_bytes_under_tensor_parallel(reference_data):
    cases = json.loads((reference_data / "faults" / "d11_kv_bytes.json").read_text())
    for case in cases:
        layers, kv_heads = (int(case["model"].split()[index]) for index in (0, 2))
        config = {
            "model_type": "llama",
            "num_hidden_layers": layers,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": kv_heads,
            "head_dim": 128,
            "intermediate_size": 8192,
            "vocab_size": 1000,
            "max_position_embeddings": 65536,
        }
        per_token = parse_config(config).kv_bytes_per_token(tensor_parallel=case["tp"])
        assert per_token * case["tokens"] == case["bytes"]
