"""Counting from dimensions, reading config.json, and refusing what cannot be counted."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.architecture import (
    PRESETS,
    Architecture,
    UnsupportedArchitecture,
    load_architecture,
    parse_config,
    parse_config_text,
)

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
}


def test_published_parameter_counts():
    """The number of elements in the published checkpoints."""
    assert PRESETS["llama-3.1-8b"].parameters == 8_030_261_248
    assert PRESETS["llama-3.1-70b"].parameters == 70_553_706_496
    assert PRESETS["qwen3-0.6b"].parameters == 596_049_920
    assert PRESETS["qwen3-8b"].parameters == 8_190_735_360
    assert PRESETS["qwen3-32b"].parameters == 32_762_123_264
    assert PRESETS["mistral-7b"].parameters == 7_248_023_552
    qwen2_7b = dict(LLAMA, model_type="qwen2", num_hidden_layers=28, hidden_size=3584, num_attention_heads=28)
    qwen2_7b.update(num_key_value_heads=4, intermediate_size=18944, vocab_size=152064)
    assert parse_config(qwen2_7b).parameters == 7_615_616_512


def test_demo_model_is_what_the_demo_promises():
    demo = PRESETS["demo"]
    assert 20e6 <= demo.parameters <= 50e6
    assert demo.head_dim == 64
    assert demo.kv_heads < demo.heads
    assert demo.runnable


def test_llama_2_7b_holds_2_15_gb_for_4096_tokens():
    config = dict(LLAMA, intermediate_size=11008, vocab_size=32000)
    del config["num_key_value_heads"]
    llama_2 = parse_config(config)
    assert llama_2.kv_bytes_per_token() == 524_288
    assert llama_2.kv_bytes_per_token() * 4096 == 2_147_483_648


def test_more_ranks_than_kv_heads_means_copies():
    """36 layers x 8 heads on 8 ranks has no copies; 94 layers x 4 heads has on 8 ranks, not on 4."""
    assert PRESETS["qwen3-8b"].kv_bytes_per_token(tensor_parallel=8) * 32_768 == 4_831_838_208
    wide = parse_config(
        dict(LLAMA, num_hidden_layers=94, num_attention_heads=64, num_key_value_heads=4, head_dim=128)
    )
    assert wide.kv_bytes_per_token(tensor_parallel=4) * 1_024 == 197_132_288
    assert wide.kv_bytes_per_token(tensor_parallel=8) * 1_024 == 394_264_576


def test_windows_are_counted_apart():
    mistral = parse_config(dict(LLAMA, model_type="mistral", sliding_window=4096))
    assert mistral.kv_bytes_per_token_growing() == 0
    assert mistral.kv_bytes_per_token_windowed() == mistral.kv_bytes_per_token() == 131_072
    switched_off = parse_config(
        dict(LLAMA, model_type="qwen2", sliding_window=4096, use_sliding_window=False)
    )
    assert switched_off.kv_bytes_per_token_windowed() == 0
    upper = dict(
        LLAMA, model_type="qwen3", sliding_window=4096, use_sliding_window=True, max_window_layers=24
    )
    assert parse_config(upper).windowed_layers == 8
    named = dict(upper, layer_types=["full_attention"] * 30 + ["sliding_attention"] * 2)
    assert (
        parse_config(named).kv_bytes_per_token_windowed() * 30
        == parse_config(named).kv_bytes_per_token_growing() * 2
    )


def test_weight_and_kv_bytes_follow_the_stored_type():
    model = PRESETS["llama-3.1-8b"]
    assert model.weight_bytes() == 2 * model.parameters
    assert model.weight_bytes(0.5) == math.ceil(model.parameters / 2)
    assert model.kv_bytes_per_token(bytes_per_element=1) * 2 == model.kv_bytes_per_token()


def test_step_flops_of_one_token_without_context_is_twice_the_used_weights():
    model = PRESETS["llama-3.1-8b"]
    one = SimpleNamespace(
        **{key: np.array([value]) for key, value in {"n": 1.0, "b": 0.0, "S": 1.0, "C": 0.0}.items()}
    )
    one.P = np.array([0.0])
    weights = (
        model.parameters - model.vocab_size * model.hidden_size - (2 * model.layers + 1) * model.hidden_size
    )
    assert model.step_flops(one)[0] == 2 * weights
    one.P = np.array([10.0])
    assert model.step_flops(one)[0] - 2 * weights == 10 * 4 * model.layers * model.heads * model.head_dim


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_dict_round_trip(preset):
    architecture = load_architecture(preset)
    assert Architecture.from_dict(json.loads(json.dumps(architecture.to_dict()))) == architecture


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"hidden_size": -4096}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": 4096.0}, "hidden_size"),
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": [4096]}, "hidden_size"),
        ({"vocab_size": 10**400}, "vocab_size"),
        ({"vocab_size": float("nan")}, "vocab_size"),
        ({"num_attention_heads": 31}, "num_attention_heads"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_parameters": []}, "rope_parameters"),
        ({"quantization_config": 8}, "quantization_config"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"model_type": "mamba"}, "model_type"),
        ({"model_type": {"a": 1}}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"model_type": "mistral", "num_key_value_heads": None, "sliding_window": -1}, "sliding_window"),
        ({"model_type": "mistral", "sliding_window": 64, "layer_types": "full"}, "layer_types"),
        ({"model_type": "mistral", "sliding_window": 64, "layer_types": [{}] * 32}, "layer_types"),
    ],
)
def test_bad_values_are_refused_by_key(change, field):
    with pytest.raises(UnsupportedArchitecture) as refusal:
        parse_config(LLAMA | change)
    assert refusal.value.field == field
    assert 0 < len(refusal.value.message) < 400


def test_missing_kv_heads_is_believed_of_llama_only():
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert parse_config(config).kv_heads == 32
    with pytest.raises(UnsupportedArchitecture, match="num_key_value_heads: is missing"):
        parse_config(config | {"model_type": "mistral"})


@pytest.mark.parametrize(
    "content",
    [
        "",
        "nonsense",
        "[]",
        "null",
        "3",
        b"\xff\xfe\x00",
        "[" * 100_000,
        '{"a": ' + "9" * 5_000 + "}",
        " " * (10 << 20),
    ],
    ids=["empty", "word", "list", "null", "number", "bytes", "deep", "digits", "10 MiB"],
)
def test_text_that_is_no_config(content):
    with pytest.raises(UnsupportedArchitecture) as refusal:
        parse_config_text(content)
    assert refusal.value.field == "config"


def test_load_from_file_and_folder(tmp_path):
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert load_architecture(str(folder)).name == "My-Llama"
    assert load_architecture(str(folder / "config.json")).parameters == PRESETS["llama-3.1-8b"].parameters
    (folder / "config.json").write_bytes(b"x" * (2 << 20))
    with pytest.raises(UnsupportedArchitecture, match="longer"):
        load_architecture(str(folder))


@pytest.mark.parametrize("name", ["", "no-such-model", "\0", "x" * 5_000, "/", "~"])
def test_neither_file_nor_preset(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsupportedArchitecture) as refusal:
        load_architecture(name)
    assert refusal.value.field == "model"


def test_names_are_short_and_printable():
    assert parse_config(LLAMA, name="a\x00b\n" + "c" * 500).name == "ab" + "c" * 196


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**4_000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
KEYS = [
    *LLAMA,
    "head_dim",
    "sliding_window",
    "use_sliding_window",
    "layer_types",
    "max_window_layers",
    "hidden_act",
]
KEYS += [
    "rope_scaling",
    "rope_parameters",
    "quantization_config",
    "attention_bias",
    "mlp_bias",
    "_name_or_path",
]
KEYS += ["tie_word_embeddings", "num_experts"]


@settings(max_examples=300, deadline=None)
@given(
    family=st.sampled_from(["llama", "mistral", "qwen2", "qwen3"]),
    changes=st.dictionaries(st.sampled_from(KEYS), JUNK, max_size=4),
    dropped=st.sets(st.sampled_from(KEYS), max_size=2),
)
def test_any_config_is_either_counted_or_refused(family, changes, dropped):
    config = {
        key: value for key, value in (LLAMA | {"model_type": family} | changes).items() if key not in dropped
    }
    try:
        architecture = parse_config(config)
    except UnsupportedArchitecture as refusal:
        assert refusal.field
        assert refusal.message
        return
    assert architecture.parameters > 0
    assert (
        Architecture.from_dict(json.loads(json.dumps(architecture.to_dict(), allow_nan=False)))
        == architecture
    )


@settings(max_examples=200, deadline=None)
@given(JUNK, st.dictionaries(st.sampled_from([*PRESETS["demo"].to_dict(), "other"]), JUNK, max_size=4))
def test_any_stored_architecture_is_either_read_or_refused(junk, changes):
    for mapping in (junk, PRESETS["demo"].to_dict() | changes):
        try:
            assert Architecture.from_dict(mapping).parameters > 0
        except UnsupportedArchitecture as refusal:
            assert refusal.field
        try:
            parse_config(mapping)
        except UnsupportedArchitecture as refusal:
            assert refusal.message
