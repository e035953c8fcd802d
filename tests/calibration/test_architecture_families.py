"""Every family: its cache, its weights counted a second time, and no config that is neither counted nor refused."""

import copy
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.architecture import (
    SUPPORTED_MODEL_TYPES,
    Architecture,
    UnsupportedArchitecture,
    parse_config,
    remarks,
)
from calibration.architecture.families import FAMILIES
from calibration.architecture.kinds import COUNTED, DENSE, NOT_RUN, WRAPPERS
from tests.calibration.configs import CONFIGS
from tests.calibration.tensors import tensors

ALL = sorted(CONFIGS)


def text_part(config):
    """The decoder's own config, with the outer level's tied head."""
    inner = config.get("text_config", config)
    return {"tie_word_embeddings": config.get("tie_word_embeddings")} | inner


def changed(family, **changes):
    """The family's config with keys changed, in the text part where there is one."""
    config = copy.deepcopy(CONFIGS[family])
    config.get("text_config", config).update(changes)
    return parse_config(config)


def test_every_family_is_here():
    parsed = {parse_config(config).model_type for config in CONFIGS.values()}
    assert parsed == set(FAMILIES) == set(SUPPORTED_MODEL_TYPES)
    assert not set(DENSE) & set(COUNTED)
    assert set(WRAPPERS.values()) <= set(FAMILIES)


@pytest.mark.parametrize("family", ALL)
def test_weights_are_those_of_the_published_tensors(family):
    architecture = parse_config(CONFIGS[family])
    listed = tensors(text_part(CONFIGS[family]))
    assert architecture.parameters == sum(math.prod(shape) for shape in listed.values())
    assert architecture.parameters_exact
    assert architecture.weight_bytes() == 2 * architecture.parameters


@pytest.mark.parametrize("family", ALL)
def test_active_weights_are_all_but_the_experts_left_out(family):
    architecture = parse_config(CONFIGS[family])
    listed = tensors(text_part(CONFIGS[family]))
    stored = sum(math.prod(shape) for name, shape in listed.items() if ".experts" in name)
    experts = architecture.experts
    if experts is None:
        assert stored == 0
        assert architecture.active_parameters == architecture.parameters
        return
    unused = stored * (experts.experts - experts.per_token) // experts.experts
    assert architecture.active_parameters == architecture.parameters - unused < architecture.parameters


@pytest.mark.parametrize("family", ALL)
def test_operations_follow_from_the_active_matrices(family):
    """2 for every weight of a matrix that a token passes, its head included, whether or not that is tied."""
    architecture = parse_config(CONFIGS[family])
    inner = text_part(CONFIGS[family])
    matrices = tables = 0
    for name, shape in tensors(inner).items():
        routed = ".experts" in name
        if "bias" in name or "conv1d" in name or len(shape) < 2:
            continue
        if any(table in name for table in ("embed", "wte", "wpe", "lm_head")):
            tables += 1
            continue
        share = architecture.experts.per_token / architecture.experts.experts if routed else 1
        matrices += math.prod(shape) * share
    head = architecture.vocab_size * architecture.hidden_size
    assert tables
    assert architecture.flops_per_token == pytest.approx(2 * (matrices + head), rel=1e-12)


# What is cached, by hand for the configs of configs.py: (all layers, growing, window-bounded, window in tokens)
CACHED = {
    "llama": (6 * 128, 6 * 128, 0, None),
    "mistral": (6 * 128, 0, 6 * 128, 256),
    "qwen2": (6 * 128, 4 * 128, 2 * 128, 64),
    "qwen3": (6 * 128, 6 * 128, 0, None),
    "phi3": (6 * 128, 0, 6 * 128, 128),
    "baichuan": (6 * 512, 6 * 512, 0, None),
    "qwen": (6 * 384, 6 * 384, 0, None),
    "chatglm": (6 * 96, 6 * 96, 0, None),
    "qwen3_vl": (6 * 128, 6 * 128, 0, None),
    "gpt2": (6 * 384, 6 * 384, 0, None),
    "gpt_bigcode": (6 * 48, 6 * 48, 0, None),
    "opt": (6 * 384, 6 * 384, 0, None),
    "gpt_neox": (6 * 384, 6 * 384, 0, None),
    "mpt": (6 * 384, 6 * 384, 0, None),
    "falcon": (6 * 96, 6 * 96, 0, None),
    "gemma2": (6 * 128, 3 * 128, 3 * 128, 256),
    "mixtral": (6 * 128, 6 * 128, 0, None),
    "qwen3_moe": (6 * 128, 6 * 128, 0, None),
    "minimax_m2": (6 * 128, 6 * 128, 0, None),
    "gpt_oss": (6 * 128, 3 * 128, 3 * 128, 32),
    "llama4": (6 * 128, 1 * 128, 5 * 128, 64),
    "deepseek_v3": (6 * 80, 6 * 80, 0, None),
    "kimi_k2": (6 * 80, 6 * 80, 0, None),
    "glm_moe_dsa": (6 * 80, 6 * 80, 0, None),
    "qwen3_5_moe": (2 * 128, 2 * 128, 0, None),
    "nemotron_h": (1 * 128, 1 * 128, 0, None),
}


@pytest.mark.parametrize("family", ALL)
def test_cache(family):
    a = parse_config(CONFIGS[family])
    assert (
        a.kv_bytes_per_token(),
        a.kv_bytes_per_token_growing(),
        a.kv_bytes_per_token_windowed(),
        a.sliding_window_tokens,
    ) == CACHED[family]
    assert a.kv_bytes_per_token(bytes_per_element=1) * 2 == a.kv_bytes_per_token()


@pytest.mark.parametrize("family", ALL)
def test_cache_of_ranks(family):
    """More ranks than KV heads copy heads; a latent is copied to every rank."""
    a = parse_config(CONFIGS[family])
    heads = 1 if a.latent else a.kv_heads
    for ranks in (1, 2, 4, 8, 16):
        total = a.kv_bytes_per_token(tensor_parallel=ranks)
        assert total * heads == a.kv_bytes_per_token() * max(heads, ranks)
        parts = a.kv_bytes_per_token_growing(2, ranks), a.kv_bytes_per_token_windowed(2, ranks)
        assert sum(parts) == total


def test_a_sequence_takes_whole_blocks():
    a = parse_config(CONFIGS["llama"])
    per_block = 16 * a.kv_bytes_per_token()
    assert [a.kv_bytes_of_sequence(tokens) // per_block for tokens in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]
    assert a.kv_bytes_of_sequence(33, block_tokens=32) == 64 * a.kv_bytes_per_token()
    on_four = a.kv_bytes_of_sequence(33, bytes_per_element=1, tensor_parallel=4)
    assert on_four == 48 * a.kv_bytes_per_token(1, 4)


@pytest.mark.parametrize("family", ["gpt_oss", "llama4"])
@given(tokens=st.integers(1, 2_000), block_tokens=st.sampled_from([1, 4, 16, 48]))
def test_a_full_window_holds_the_blocks_it_touches(family, tokens, block_tokens):
    a = parse_config(CONFIGS[family])
    window = a.sliding_window_tokens
    start = (tokens - 1) // window * window if a.chunked else max(0, tokens - window)
    touched = {position // block_tokens for position in range(start, tokens)}
    blocks = {position // block_tokens for position in range(tokens)}
    expected = len(blocks) * a.kv_bytes_per_token_growing() + len(touched) * a.kv_bytes_per_token_windowed()
    assert a.kv_bytes_of_sequence(tokens, block_tokens=block_tokens) == block_tokens * expected


def test_recurrent_state_is_fixed_and_apart():
    """Per layer: the recurrent matrix, and kernel - 1 inputs of the convolution."""
    delta = parse_config(CONFIGS["qwen3_5_moe"]).state
    assert (delta.layers, delta.elements) == (4, 4 * (6 * 8 * 10 + (2 * 4 * 8 + 60) * 3))
    mamba = parse_config(CONFIGS["nemotron_h"]).state
    assert (mamba.layers, mamba.elements) == (3, 3 * (48 * 10 + (48 + 2 * 2 * 10) * 3))


@pytest.mark.parametrize(
    ("family", "changes", "windowed", "window"),
    [
        ("mistral", {"sliding_window": None}, 0, None),
        ("qwen2", {"use_sliding_window": False}, 0, None),
        ("qwen2", {"max_window_layers": 6}, 0, None),
        ("qwen3_moe", {"use_sliding_window": True, "max_window_layers": 2}, 4, 4096),
        ("gemma2", {"layer_types": ["full_attention"] * 5 + ["sliding_attention"]}, 1, 256),
        ("gemma2", {"num_hidden_layers": 5}, 3, 256),
        ("llama4", {"attention_chunk_size": None}, 0, None),
        ("llama4", {"no_rope_layers": [1, 0, 1, 0, 1, 0]}, 3, 64),
        ("llama4", {"no_rope_layer_interval": 2}, 3, 64),
        ("llama4", {"layer_types": ["chunked_attention"] * 2 + ["full_attention"] * 4}, 2, 64),
    ],
)
def test_which_layers_have_a_window(family, changes, windowed, window):
    a = changed(family, **changes)
    assert (a.windowed_layers, a.sliding_window_tokens) == (windowed, window)


def test_a_mistral_file_without_a_window_means_the_default_of_its_class():
    config = {key: value for key, value in CONFIGS["mistral"].items() if key != "sliding_window"}
    assert parse_config(config).sliding_window_tokens == 4096


@pytest.mark.parametrize(
    ("family", "changes", "kv_heads", "more"),
    [
        ("falcon", {"new_decoder_architecture": False, "multi_query": True}, 1, None),
        ("falcon", {"new_decoder_architecture": False, "multi_query": False}, 8, None),
        ("gpt_bigcode", {"multi_query": False}, 8, None),
        ("mpt", {"attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 4, "alibi": True}}, 4, None),
        ("mpt", {"attn_config": {"attn_type": "multiquery_attention", "alibi": True}}, 1, None),
        ("mpt", {"attn_config": {}}, 8, 1024 * 96),
        ("opt", {"word_embed_proj_dim": 96}, 8, 500 * 48 - 2 * 96 * 48),
        ("opt", {"do_layer_norm_before": False}, 8, -2 * 96),
        ("opt", {"enable_bias": False}, 8, -6 * (4 * 96 + 160 + 96)),
        ("gpt2", {"tie_word_embeddings": False}, 8, 500 * 96),
        ("gpt_neox", {"attention_bias": False}, 8, -6 * 4 * 96),
        ("chatglm", {"add_bias_linear": True}, 2, 6 * (96 + 2 * 160 + 96)),
        ("chatglm", {"multi_query_attention": False}, 8, 6 * 2 * 6 * 12 * 97),
        ("minimax_m2", {"use_qk_norm": False}, 2, -6 * (8 + 2) * 16),
        ("deepseek_v3", {"n_shared_experts": 2}, 8, 4 * 3 * 96 * 40),
        ("deepseek_v3", {"attention_bias": True}, 8, 6 * (48 + 40 + 96)),
        ("qwen3_5_moe", {"attn_output_gate": False}, 2, -2 * 96 * 128),
        ("nemotron_h", {"use_bias": True}, 2, 3 * (2 * 48 + 40 + 6 + 96)),
    ],
)  # fmt: skip
def test_options_of_a_family(family, changes, kv_heads, more):
    a, plain = changed(family, **changes), parse_config(CONFIGS[family])
    assert a.kv_heads == kv_heads
    if more is not None:
        assert a.parameters - plain.parameters == more


def test_what_cannot_be_sized_is_not_called_exact():
    a = changed("mpt", attn_config={"alibi": True, "qk_ln": True})
    assert not a.parameters_exact
    assert any("approximate" in remark for remark in remarks(a))
    assert not changed("glm_moe_dsa", index_topk_freq=4).parameters_exact
    assert a.kv_bytes_per_token() == parse_config(CONFIGS["mpt"]).kv_bytes_per_token()


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("gpt_oss", ["mxfp4", "bf16", "last 32 tokens", "2 of 8 experts"]),
        ("deepseek_v3", ["fp8", "40 elements", "every rank", "prediction layers (1)", "beside a shared one"]),
        ("glm_moe_dsa", ["96 more elements"]),
        ("llama4", ["chunk of 64 tokens", "text decoder"]),
        ("qwen3_5_moe", ["4 layers keep a state", "2 of 6 layers have a KV cache"]),
        ("minimax_m2", ["prediction modules (3)"]),
        ("phi3", ["75%"]),
    ],
)
def test_remarks_say_what_the_figures_leave_out(family, words):
    said = " ".join(remarks(parse_config(CONFIGS[family])))
    for word in words:
        assert word in said


def test_what_is_not_run_says_why():
    for config in CONFIGS.values():
        a = parse_config(config)
        assert a.runnable == (a.model_type not in NOT_RUN) == (a.not_run_reason == "")
        assert a.runnable or a.not_run_reason in remarks(a)[0]
    assert {family for family in ALL if parse_config(CONFIGS[family]).runnable} == {
        "llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "mixtral", "qwen3_moe", "deepseek_v3", "kimi_k2",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("family", "changes", "field"),
    [
        ("mixtral", {"num_local_experts": None}, "num_local_experts"),
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ("mixtral", {"hidden_act": "gelu"}, "hidden_act"),
        ("qwen3_moe", {"mlp_only_layers": [6]}, "mlp_only_layers"),
        ("qwen3_moe", {"mlp_only_layers": [1, 3, 5]}, "mlp_only_layers"),
        ("qwen3_moe", {"mlp_only_layers": [True]}, "mlp_only_layers"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ("llama4", {"no_rope_layers": [1]}, "no_rope_layers"),
        ("llama4", {"interleave_moe_layer_step": 7}, "interleave_moe_layer_step"),
        ("llama4", {"model_type": "llama"}, "text_config"),
        ("deepseek_v3", {"kv_lora_rank": None}, "kv_lora_rank"),
        ("deepseek_v3", {"first_k_dense_replace": 6}, "first_k_dense_replace"),
        ("minimax_m2", {"shared_intermediate_size": 64}, "shared_intermediate_size"),
        ("nemotron_h", {"hybrid_override_pattern": "M-M*-M"}, "hybrid_override_pattern"),
        ("nemotron_h", {"hybrid_override_pattern": "M-M*-ME"}, "hybrid_override_pattern"),
        ("nemotron_h", {"hybrid_override_pattern": "M-M--M-"}, "cached_layers"),
        ("nemotron_h", {"hybrid_override_pattern": ["M"] * 7}, "hybrid_override_pattern"),
        ("qwen3_5_moe", {"layer_types": ["linear_attention"]}, "layer_types"),
        ("qwen3_5_moe", {"layer_types": ["mamba"] * 6}, "layer_types"),
        ("mpt", {"attn_config": []}, "attn_config"),
        ("mpt", {"attn_config": {"attn_type": "linear"}}, "attn_type"),
        ("mpt", {"expansion_ratio": 4_000, "d_model": 1 << 16, "n_heads": 128}, "intermediate_size"),
        ("qwen", {"intermediate_size": 321}, "intermediate_size"),
        ("qwen", {"no_bias": False}, "no_bias"),
        ("chatglm", {"rmsnorm": False}, "rmsnorm"),
        ("phi3", {"partial_rotary_factor": 2}, "partial_rotary_factor"),
        ("falcon", {"max_position_embeddings": 0}, "max_position_embeddings"),
        ("gpt2", {"n_head": 7}, "num_attention_heads"),
    ],
)  # fmt: skip
def test_bad_values_are_refused_by_key(family, changes, field):
    with pytest.raises(UnsupportedArchitecture) as refusal:
        changed(family, **changes)
    assert refusal.value.field == field
    assert 0 < len(refusal.value.message) < 400


@pytest.mark.parametrize("model_type", ["mamba", "llava", "qwen3_5_moe_vision", "LLAMA", ""])
def test_other_families_are_refused_by_name(model_type):
    config = CONFIGS["qwen3_vl"] | {"model_type": model_type}
    with pytest.raises(UnsupportedArchitecture, match=f"model_type: '{model_type}' is not supported"):
        parse_config(config)
    with pytest.raises(UnsupportedArchitecture, match="text_config: is missing"):
        parse_config({"model_type": "llama4"})


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**4_000)
    | st.integers(0, 64),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=7,
)  # fmt: skip


# Keys that some family reads and that the configs of configs.py leave out.
OTHER_KEYS = [
    "layer_types", "no_rope_layers", "no_rope_layer_interval", "moe_layers", "index_topk_freq", "attention_bias",
    "use_sliding_window", "max_window_layers", "full_attention_interval", "enable_bias", "num_ln_in_parallel_attn",
    "ffn_hidden_size", "attn_output_gate", "shared_intermediate_size", "rope_scaling", "rope_parameters", "text_config",
    "_name_or_path", "name_or_path", "quantization_config", "use_bias", "mlp_bias", "n_head_kv", "vision_config",
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(data=st.data(), family=st.sampled_from(ALL), nested=st.booleans())
def test_any_config_is_either_counted_or_refused(data, family, nested):
    config = copy.deepcopy(CONFIGS[family])
    target = config.get("text_config", config) if nested else config
    keys = [key for key in target if key != "model_type"] + OTHER_KEYS
    for key in data.draw(st.lists(st.sampled_from(keys), max_size=3)):
        target[key] = data.draw(JUNK)
    for key in data.draw(st.lists(st.sampled_from(keys), max_size=1)):
        target.pop(key, None)
    try:
        a = parse_config(config)
    except UnsupportedArchitecture as refusal:
        assert refusal.field
        assert 0 < len(refusal.message) < 1_000
        return
    assert 0 < a.active_parameters <= a.parameters
    assert 0 < a.kv_bytes_per_token() == a.kv_bytes_per_token_growing() + a.kv_bytes_per_token_windowed()
    assert Architecture.from_dict(json.loads(json.dumps(a.to_dict(), allow_nan=False))) == a
    assert all(isinstance(remark, str) for remark in remarks(a))


@settings(max_examples=300, deadline=None)
@given(data=st.data(), family=st.sampled_from(ALL))
def test_any_stored_architecture_is_either_read_or_refused(data, family):
    stored = copy.deepcopy(parse_config(CONFIGS[family]).to_dict())
    parts = [stored, *(part for part in stored.values() if isinstance(part, dict))]
    for _ in range(data.draw(st.integers(1, 3))):
        part = data.draw(st.sampled_from(parts))
        part[data.draw(st.sampled_from(sorted(part)))] = data.draw(JUNK)
    try:
        a = Architecture.from_dict(stored)
    except UnsupportedArchitecture as refusal:
        assert refusal.field
        return
    assert 0 < a.active_parameters <= a.parameters
    assert a.kv_bytes_per_token() > 0


def test_what_was_stored_before_the_other_families_were_described_reads_the_same():
    """The fields of then, no more; and a dense model is still written so, which keeps hashes made of it."""
    fields = {
        "name": "old", "model_type": "llama", "layers": 2, "hidden_size": 64, "heads": 4, "kv_heads": 2,
        "head_dim": 16, "intermediate_size": 128, "vocab_size": 100, "tie_word_embeddings": True, "qkv_bias": False,
        "output_bias": False, "mlp_bias": False, "qk_norm": False, "rope_theta": 10000.0, "rms_norm_eps": 1e-06,
        "max_position_tokens": 4096, "sliding_window_tokens": None, "windowed_layers": 0, "quantization": "",
    }  # fmt: skip
    old = Architecture.from_dict(fields)
    assert json.dumps(old.to_dict()) == json.dumps(fields)
    assert old.runnable
    assert old.parameters == 2 * (64 * (2 * 64 + 2 * 32) + 3 * 64 * 128 + 2 * 64) + 100 * 64 + 64


@pytest.mark.parametrize(
    "changes", [{"counts": None}, {"model_type": "llama"}, {"layers": 1}, {"cached_layers": 7}]
)
def test_a_stored_description_that_contradicts_itself_is_refused(changes):
    stored = parse_config(CONFIGS["qwen3_5_moe"]).to_dict()
    with pytest.raises(UnsupportedArchitecture):
        Architecture.from_dict(stored | changes)
