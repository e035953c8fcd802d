"""Decoders before Llama's layout became usual, and Gemma 2: LayerNorm, learned positions, plain feed-forwards.

GPT-2 and BigCode (one KV head), OPT, GPT-NeoX, MPT, Falcon. What differs is what is stored beside the matrices:
norms with or without biases, tables of positions, a tied head.
"""

from __future__ import annotations

from calibration.architecture.families.reading import (
    Config,
    Reader,
    all_or_given,
    common,
    head_width,
    only,
    shared,
    sizes,
    windows,
)
from calibration.architecture.model import Architecture
from calibration.architecture.parts import Capping
from calibration.architecture.values import (
    UnsupportedArchitecture,
    flag,
    integer,
    optional_mapping,
    positive,
)
from calibration.architecture.weights import (
    Weights,
    attention,
    counts,
    gated,
    layer_norm,
    linear,
    plain,
    rms_norm,
)

_FALCON_POSITIONS = 2_048  # of the first Falcons, whose files do not say; it is the class's default


def _gpt2(config: Config, name: str) -> Architecture:
    layers, hidden, heads = integer(config, "n_layer"), integer(config, "n_embd"), integer(config, "n_head")
    # BigCode shares one key and one value among all heads unless told otherwise; GPT-2 has no such key.
    one = config.get("model_type") == "gpt_bigcode" and flag(config, "multi_query", True)
    only(config, "add_cross_attention", (False,), "only decoders are described")
    kv_heads, head_dim = 1 if one else heads, shared(hidden, heads)
    inner = integer(config, "n_inner", default=4 * hidden)
    fields = common(config, name, tied=True, positions="n_positions")
    layer = attention(hidden, hidden, kv_heads * head_dim, qkv_bias=True, output_bias=True)
    layer += plain(hidden, inner, bias=True) + layer_norm(hidden) * 2
    around = layer_norm(hidden) + Weights(other=integer(config, "n_positions") * hidden)
    return Architecture(
        **fields, layers=layers, hidden_size=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        intermediate_size=inner, qkv_bias=True, output_bias=True, mlp_bias=True,
        counts=counts(layer * layers + around, hidden, fields["vocab_size"], tied=fields["tie_word_embeddings"]),
    )  # fmt: skip


def _opt(config: Config, name: str) -> Architecture:
    layers, hidden, heads = sizes(config)
    inner, bias = integer(config, "ffn_dim"), flag(config, "enable_bias", True)
    affine = flag(config, "layer_norm_elementwise_affine", True)
    norm = layer_norm(hidden) if affine else Weights()
    fields = common(config, name, tied=True)
    layer = attention(hidden, hidden, hidden, qkv_bias=bias, output_bias=bias)
    layer += plain(hidden, inner, bias) + norm * 2
    before = flag(config, "do_layer_norm_before", True) and not flag(config, "_remove_final_layer_norm")
    width = integer(config, "word_embed_proj_dim", default=hidden)
    # Two rows of the position table are never used; the 350M model's embedding is narrower than its layers.
    around = Weights(other=(fields["max_position_tokens"] + 2) * hidden) + (norm if before else Weights())
    around += linear(width, hidden) * 2 if width != hidden else Weights()
    return Architecture(
        **fields, layers=layers, hidden_size=hidden, heads=heads, kv_heads=heads, head_dim=shared(hidden, heads),
        intermediate_size=inner, qkv_bias=bias, output_bias=bias, mlp_bias=bias,
        counts=counts(layer * layers + around, width, fields["vocab_size"], tied=fields["tie_word_embeddings"]),
    )  # fmt: skip


def _gpt_neox(config: Config, name: str) -> Architecture:
    layers, hidden, heads = sizes(config)
    inner, bias = integer(config, "intermediate_size"), flag(config, "attention_bias", True)
    fields = common(config, name)
    layer = attention(hidden, hidden, hidden, qkv_bias=bias, output_bias=bias)
    layer += plain(hidden, inner, bias=True) + layer_norm(hidden) * 2
    return Architecture(
        **fields, layers=layers, hidden_size=hidden, heads=heads, kv_heads=heads, head_dim=shared(hidden, heads),
        intermediate_size=inner, qkv_bias=bias, output_bias=bias, mlp_bias=True,
        counts=counts(layer * layers + layer_norm(hidden), hidden, fields["vocab_size"],
                      tied=fields["tie_word_embeddings"]),
    )  # fmt: skip


def _mpt(config: Config, name: str) -> Architecture:
    layers, hidden, heads = (
        integer(config, "n_layers"),
        integer(config, "d_model"),
        integer(config, "n_heads"),
    )
    inner = hidden * integer(config, "expansion_ratio", default=4)
    options = optional_mapping(config, "attn_config") or {}
    kinds = ("multihead_attention", "multiquery_attention", "grouped_query_attention")
    only(
        options, "attn_type", kinds, "only multi-head, multi-query and grouped-query attention are described"
    )
    kind = options.get("attn_type", "multihead_attention")
    kv_heads = 1 if kind == "multiquery_attention" else heads
    if kind == "grouped_query_attention":
        kv_heads = integer(options, "kv_n_heads")
    head_dim = shared(hidden, heads)
    bias = not flag(config, "no_bias", True)
    learned = (
        flag(config, "learned_pos_emb", True) and not flag(options, "alibi") and not flag(options, "rope")
    )
    fields = common(config, name, tied=True, positions="max_seq_len")
    layer = attention(hidden, hidden, kv_heads * head_dim, qkv_bias=bias, output_bias=bias)
    layer += plain(hidden, inner, bias) + layer_norm(hidden, bias) * 2
    around = layer_norm(hidden, bias)
    around += Weights(other=fields["max_position_tokens"] * hidden) if learned else Weights()
    return Architecture(
        **fields, layers=layers, hidden_size=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        intermediate_size=inner, qkv_bias=bias, output_bias=bias, mlp_bias=bias,
        # Norms of queries and keys come in two widths, which the file does not tell apart.
        counts=counts(layer * layers + around, hidden, fields["vocab_size"], tied=fields["tie_word_embeddings"],
                      exact=not flag(options, "qk_ln") and not flag(options, "qk_gn")),
    )  # fmt: skip


def _falcon(config: Config, name: str) -> Architecture:
    named = {
        **config,
        "num_hidden_layers": config.get("num_hidden_layers", config.get("n_layer")),
        "num_attention_heads": config.get("num_attention_heads", config.get("n_head")),
        "max_position_embeddings": _FALCON_POSITIONS,
    }
    if config.get("max_position_embeddings") is not None:
        named["max_position_embeddings"] = config["max_position_embeddings"]
    layers, hidden, heads = sizes(named)
    new = flag(config, "new_decoder_architecture")
    kv_heads = heads
    if new:
        kv_heads = all_or_given(config, "num_kv_heads" if "num_kv_heads" in config else "n_head_kv", heads)
    elif flag(config, "multi_query", True):
        kv_heads = 1
    head_dim, bias = shared(hidden, heads), flag(config, "bias")
    inner = integer(config, "ffn_hidden_size", default=4 * hidden)
    parallel = flag(config, "parallel_attn", True)
    norms = integer(config, "num_ln_in_parallel_attn", default=2 if new else 1) if parallel else 2
    fields = common(named, name, tied=True)
    layer = attention(hidden, hidden, kv_heads * head_dim, qkv_bias=bias, output_bias=bias)
    layer += plain(hidden, inner, bias) + layer_norm(hidden) * min(norms, 2)
    return Architecture(
        **fields, layers=layers, hidden_size=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        intermediate_size=inner, qkv_bias=bias, output_bias=bias, mlp_bias=bias,
        counts=counts(layer * layers + layer_norm(hidden), hidden, fields["vocab_size"],
                      tied=fields["tie_word_embeddings"]),
    )  # fmt: skip


def _gemma2(config: Config, name: str) -> Architecture:
    """Every other layer has a window, from the first on: files say so only since layer_types exists."""
    layers, hidden, heads = sizes(config)
    kv_heads, head_dim = integer(config, "num_key_value_heads"), head_width(config, hidden, heads, 256)
    inner, bias = integer(config, "intermediate_size"), flag(config, "attention_bias")
    fields = common(config, name, tied=True)
    layer = attention(hidden, heads * head_dim, kv_heads * head_dim, qkv_bias=bias, output_bias=bias)
    layer += gated(hidden, inner) + rms_norm(hidden) * 4
    return Architecture(
        **fields, layers=layers, hidden_size=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        intermediate_size=inner, qkv_bias=bias, output_bias=bias, capping=_capping(config),
        **windows(config, layers, 4_096, -(-layers // 2), range(0, layers, 2)),
        counts=counts(layer * layers + rms_norm(hidden), hidden, fields["vocab_size"],
                      tied=fields["tie_word_embeddings"]),
    )  # fmt: skip


def _capping(config: Config) -> Capping:
    """A null cap would mean none; no published file has one, and the class's own code cannot run it eagerly."""
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if key in config and config[key] is None:
            raise UnsupportedArchitecture(key, "must be a number: only capped logits are described")
    return Capping(
        query_scalar=positive(config, "query_pre_attn_scalar", 256.0),
        attention_cap=positive(config, "attn_logit_softcapping", 50.0),
        logit_cap=positive(config, "final_logit_softcapping", 30.0),
    )


FAMILIES: dict[str, Reader] = {
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt2,
    "opt": _opt,
    "gpt_neox": _gpt_neox,
    "mpt": _mpt,
    "falcon": _falcon,
    "gemma2": _gemma2,
}
