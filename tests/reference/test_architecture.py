"""The 40 published config.json files: KV bytes exact for all, parameters against published names and counts."""

import csv
import io
import json

import pytest
from django.core.management import call_command

from calibration.architecture import Architecture, load_architecture, parse_config

COLUMNS = {
    "kv_bytes_per_token_bf16_all_layers": "kv_bytes_per_token",
    "growing_part": "kv_bytes_per_token_growing",
    "window_bounded_part": "kv_bytes_per_token_windowed",
}
# Parameters as names and model cards give them, in billions, with the rounding they have there. The 109 of
# Llama 4 Scout holds its image part; makers count the embedding table as active or do not.
PUBLISHED: dict[str, tuple[float, float, float | None, float]] = {  # total, within, active, within
    "aiconfigurator_MiniMaxAI--MiniMax-M2.5": (230, 1.5, 10, 0.5),
    "aiconfigurator_Qwen--Qwen3-0.6B": (0.6, 0.05, None, 0),
    "aiconfigurator_Qwen--Qwen3-235B-A22B-FP8": (235, 0.5, 22, 0.5),
    "aiconfigurator_Qwen--Qwen3-30B-A3B": (30.5, 0.05, 3.3, 0.06),
    "aiconfigurator_Qwen--Qwen3-32B": (32.8, 0.05, None, 0),
    "aiconfigurator_Qwen--Qwen3-VL-8B-Instruct": (8.2, 0.05, None, 0),
    "aiconfigurator_Qwen--Qwen3.5-35B-A3B": (35, 0.5, 3, 0.5),
    "aiconfigurator_deepseek-ai--DeepSeek-R1": (671, 0.5, 37, 0.5),
    "aiconfigurator_deepseek-ai--DeepSeek-V3": (671, 0.5, 37, 0.5),
    "aiconfigurator_meta-llama--Llama-4-Scout-17B-16E-Instruct": (109, 1.5, 17, 0.5),
    "aiconfigurator_meta-llama--Meta-Llama-3.1-405B": (405, 1, None, 0),
    "aiconfigurator_meta-llama--Meta-Llama-3.1-70B": (70.6, 0.05, None, 0),
    "aiconfigurator_meta-llama--Meta-Llama-3.1-8B": (8.03, 0.005, None, 0),
    "aiconfigurator_mistralai--Mixtral-8x7B-v0.1": (46.7, 0.05, 12.9, 0.05),
    "aiconfigurator_moonshotai--Kimi-K2-Instruct": (1000, 50, 32, 0.5),
    "aiconfigurator_nvidia--Nemotron-H-56B-Base-8K": (56, 0.5, None, 0),
    "aiconfigurator_openai--gpt-oss-120b": (116.8, 0.05, 5.1, 0.05),
    "aiconfigurator_zai-org--GLM-5": (744, 0.5, 40, 1),
    "blis_codellama-34b-instruct-hf": (33.7, 0.05, None, 0),
    "blis_llama-2-7b-hf": (6.74, 0.005, None, 0),
    "blis_mistral-nemo-instruct-2407": (12.2, 0.05, None, 0),
    "blis_qwen2.5-7b-instruct": (7.61, 0.01, None, 0),
    "blis_yi-34b": (34.4, 0.05, None, 0),
    "ipex_mosaicml_mpt-7b": (6.65, 0.005, None, 0),
    "llm-tpu_Baichuan2-7B": (7.5, 0.05, None, 0),
    "llm-tpu_Llama3": (3.21, 0.005, None, 0),
    "llm-tpu_Mistral-7B-Instruct-v0.2": (7.24, 0.005, None, 0),
    "llm-tpu_Qwen-7B-Chat": (7.72, 0.005, None, 0),
    "llm-tpu_Qwen2-7B-Instruct": (7.62, 0.005, None, 0),
    "llm-tpu_Yi-6B-Chat": (6.06, 0.005, None, 0),
    "llm-tpu_llama-2-13b-chat-hf": (13.0, 0.05, None, 0),
    "read_file_gemma-2-9b-it": (9.24, 0.005, None, 0),
    "read_file_gpt2": (0.124, 0.0005, None, 0),
}


@pytest.fixture(scope="module")
def rows(reference_data):
    with (reference_data / "configs" / "EXPECTED_KV.tsv").open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_kv_bytes_of_all(reference_data, rows):
    assert len(rows) == 40
    for row in rows:
        architecture = load_architecture(str(reference_data / "configs" / row["file"]))
        assert architecture.model_type == row["model_type"]
        for column, method in COLUMNS.items():
            assert getattr(architecture, method)() == int(row[column]), (row["file"], column)
        assert architecture.sliding_window_tokens == (int(row["window"]) if row["window"] else None)
        for ours, theirs in (("layers", "layers"), ("heads", "heads"), ("kv_heads", "kv_heads")):
            assert getattr(architecture, ours) == int(row[theirs]), (row["file"], ours)
        assert architecture.head_dim == int(row["head_dim"]) or architecture.latent is not None
        assert ("quant:" + architecture.quantization in row["quirks"]) == bool(architecture.quantization)
        assert Architecture.from_dict(json.loads(json.dumps(architecture.to_dict()))) == architecture


def test_the_command_describes_all(reference_data, rows):
    for row in rows:
        out = io.StringIO()
        call_command("model", str(reference_data / "configs" / row["file"]), "--json", stdout=out)
        figures = json.loads(out.getvalue().splitlines()[-1])
        assert figures["kv_bytes_per_token"] == int(row["kv_bytes_per_token_bf16_all_layers"])
        assert figures["runnable"] == (not figures["not_runnable_reason"])
        assert figures["parameters_exact"]


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_names_within_their_rounding(reference_data, name):
    total, within, active, active_within = PUBLISHED[name]
    architecture = load_architecture(str(reference_data / "configs" / f"{name}.json"))
    assert architecture.parameters / 1e9 == pytest.approx(total, abs=within)
    if active is None:
        assert architecture.active_parameters == architecture.parameters
    else:
        table = architecture.vocab_size * architecture.hidden_size
        counted = (architecture.active_parameters, architecture.active_parameters - table)
        assert min(abs(weights / 1e9 - active) for weights in counted) <= active_within


def test_notes_of_the_table_are_told(reference_data, rows):
    """What the table remarks on beside the columns: the indexer's keys, the layers without KV."""
    by_file = {row["file"]: row["note"] for row in rows if row["note"]}
    assert len(by_file) == 3
    for file, note in by_file.items():
        architecture = load_architecture(str(reference_data / "configs" / file))
        if "indexer" in note:
            assert f"={architecture.kv_layers * architecture.latent.index_key_size} elements" in note
        elif "linear-attention" in note:
            assert note.startswith(f"{architecture.state.layers} ")
        else:
            assert note.startswith(f"{architecture.kv_layers} attention of {architecture.layers} layers")


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
        architecture = parse_config(config)
        per_token = architecture.kv_bytes_per_token(tensor_parallel=case["tp"])
        assert per_token * case["tokens"] == case["bytes"]
        assert architecture.kv_bytes_of_sequence(case["tokens"], tensor_parallel=case["tp"]) == case["bytes"]
