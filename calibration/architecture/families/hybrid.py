"""Hybrids: most layers keep a recurrent state of fixed size, few keep keys and values.

Qwen3.5: three gated delta-rule layers (arXiv 2412.06464), then one of attention, experts in all. Nemotron-H: a
pattern of letters, M for Mamba-2 (arXiv 2405.21060), * for attention, - for a feed-forward; each a layer of its
own. The state of a layer is its recurrent matrix and the last inputs of its short convolution.
"""

from __future__ import annotations

from calibration.architecture.families.reading import (
    FULL,
    LINEAR,
    Config,
    Reader,
    common,
    head_width,
    not_counted,
    only,
    sizes,
)
from calibration.architecture.model import Architecture
from calibration.architecture.parts import Experts, RecurrentState
from calibration.architecture.values import UnsupportedArchitecture, flag, integer, names, text
from calibration.architecture.weights import (
    Weights,
    attention,
    counts,
    gated,
    linear,
    plain,
    rms_norm,
    routed,
)


def _qwen3_5_moe(config: Config, name: str) -> Architecture:
    only(config, "hidden_act", ("silu",), "only silu is described")
    layers, hidden, heads = sizes(config)
    kv_heads, head_dim = integer(config, "num_key_value_heads"), head_width(config, hidden, heads, 256)
    kinds = names(config, "layer_types", layers, (FULL, LINEAR))
    every = integer(config, "full_attention_interval", default=4)
    cached = kinds.count(FULL) if kinds is not None else layers // every
    linear_layer, elements = _delta_rule(config, hidden)
    bias = flag(config, "attention_bias")
    full_layer = attention(hidden, heads * head_dim, kv_heads * head_dim, qkv_bias=bias, output_bias=bias)
    full_layer += rms_norm(head_dim) * 2
    if flag(config, "attn_output_gate", True):  # made beside the queries, as wide as they are
        full_layer += linear(hidden, heads * head_dim, bias)
    inner, width = (
        integer(config, "moe_intermediate_size"),
        integer(config, "shared_expert_intermediate_size"),
    )
    experts = Experts(
        integer(config, "num_experts"), integer(config, "num_experts_per_tok"), inner, layers, width
    )
    each = routed(gated(hidden, inner), experts.experts, experts.per_token) + linear(hidden, experts.experts)
    each += gated(hidden, width) + linear(hidden, 1) + rms_norm(hidden) * 2  # a shared expert behind a gate
    total = each * layers + full_layer * cached + linear_layer * (layers - cached) + rms_norm(hidden)
    predicting = integer(config, "mtp_num_hidden_layers", minimum=0, default=0)
    usual = common(config, name)
    return Architecture(
        **usual, layers=layers, hidden_size=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        intermediate_size=inner, qk_norm=True, qkv_bias=bias, output_bias=bias, cached_layers=cached, experts=experts,
        state=_state(layers - cached, elements),
        counts=counts(total, hidden, usual["vocab_size"], tied=usual["tie_word_embeddings"]),
        notes=tuple(not_counted(predicting, "prediction layers")),
    )  # fmt: skip


def _delta_rule(config: Config, hidden: int) -> tuple[Weights, int]:
    """Weights of a gated delta-rule layer, and the elements of its state."""
    key_heads, key_size = integer(config, "linear_num_key_heads"), integer(config, "linear_key_head_dim")
    heads, size = integer(config, "linear_num_value_heads"), integer(config, "linear_value_head_dim")
    kernel = integer(config, "linear_conv_kernel_dim", default=4)
    values = heads * size
    mixed = 2 * key_heads * key_size + values  # queries, keys and values pass the convolution
    weights = linear(hidden, mixed + values + 2 * heads) + linear(values, hidden)
    weights += Weights(other=mixed * kernel + 2 * heads) + rms_norm(size)
    return weights, heads * key_size * size + mixed * (kernel - 1)


def _nemotron_h(config: Config, name: str) -> Architecture:
    layers, hidden, heads = sizes(config)
    pattern = text(config, "hybrid_override_pattern")
    if len(pattern) != layers:
        message = f"must have {layers} letters, one a layer, not {len(pattern)}"
        raise UnsupportedArchitecture("hybrid_override_pattern", message)
    other = set(pattern) - set("M*-")
    if other:
        message = f"only M, * and - are described, got {', '.join(sorted(other))}"
        raise UnsupportedArchitecture("hybrid_override_pattern", message)
    kv_heads = integer(config, "num_key_value_heads")
    head_dim = integer(config, "attention_head_dim" if "attention_head_dim" in config else "head_dim")
    inner, bias = integer(config, "intermediate_size"), flag(config, "attention_bias")
    mamba, elements = _mamba2(config, hidden)
    cached = pattern.count("*")
    total = mamba * pattern.count("M") + plain(hidden, inner, flag(config, "mlp_bias")) * pattern.count("-")
    total += (
        attention(hidden, heads * head_dim, kv_heads * head_dim, qkv_bias=bias, output_bias=bias) * cached
    )
    total += rms_norm(hidden) * (layers + 1)
    usual = common(config, name)
    return Architecture(
        **usual, layers=layers, hidden_size=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        intermediate_size=inner, qkv_bias=bias, output_bias=bias, cached_layers=cached,
        state=_state(pattern.count("M"), elements),
        counts=counts(total, hidden, usual["vocab_size"], tied=usual["tie_word_embeddings"]),
    )  # fmt: skip


def _mamba2(config: Config, hidden: int) -> tuple[Weights, int]:
    """Weights of a Mamba-2 layer, and the elements of its state."""
    heads, size = integer(config, "mamba_num_heads"), integer(config, "mamba_head_dim")
    groups, state = integer(config, "n_groups"), integer(config, "ssm_state_size")
    kernel, bias = integer(config, "conv_kernel", default=4), flag(config, "use_bias")
    inner = heads * size
    mixed = inner + 2 * groups * state  # what passes the convolution
    weights = linear(hidden, inner + mixed + heads, bias) + linear(inner, hidden, bias) + rms_norm(inner)
    weights += Weights(other=mixed * (kernel + flag(config, "use_conv_bias", True)) + 3 * heads)
    return weights, inner * state + mixed * (kernel - 1)


def _state(layers: int, elements: int) -> RecurrentState | None:
    return RecurrentState(layers, layers * elements) if layers else None


FAMILIES: dict[str, Reader] = {"qwen3_5_moe_text": _qwen3_5_moe, "nemotron_h": _nemotron_h}
