"""Mixtures of experts with keys and values in the cache: Mixtral, Qwen3-MoE, MiniMax-M2, gpt-oss, Llama 4.

A router picks some experts for each token; all are stored. Files name the same things differently, and say
with which layers the mixture alternates in ways of their own.
"""

from __future__ import annotations

from typing import Any

from calibration.architecture.families.reading import (
    CHUNKED,
    FULL,
    Config,
    Reader,
    all_or_given,
    common,
    head_width,
    not_counted,
    only,
    sizes,
    windows,
)
from calibration.architecture.model import Architecture
from calibration.architecture.parts import Experts
from calibration.architecture.values import UnsupportedArchitecture, flag, indices, integer, names
from calibration.architecture.weights import Weights, attention, counts, gated, linear, rms_norm, routed


def _mixtral(config: Config, name: str) -> Architecture:
    layers, inner = integer(config, "num_hidden_layers"), integer(config, "intermediate_size")
    experts = Experts(
        integer(config, "num_local_experts"), integer(config, "num_experts_per_tok"), inner, layers
    )
    return _mixture(config, name, experts, inner, **windows(config, layers, None, layers))


def _qwen3_moe(config: Config, name: str) -> Architecture:
    layers = integer(config, "num_hidden_layers")
    dense = indices(config, "mlp_only_layers", layers)
    step = integer(config, "decoder_sparse_step", default=1)
    mixed = sum(1 for index in range(layers) if index not in dense and (index + 1) % step == 0)
    if not mixed:
        raise UnsupportedArchitecture("mlp_only_layers", "leaves no layer with experts")
    inner = integer(config, "moe_intermediate_size")
    bare = tuple(index for index in range(layers) if index in dense or (index + 1) % step)
    experts = Experts(
        integer(config, "num_experts"), integer(config, "num_experts_per_tok"), inner, mixed,
        dense_at=() if bare == tuple(range(len(bare))) else bare,
        normalised=flag(config, "norm_topk_prob"),
    )  # fmt: skip
    # The dense width is in every file, and used only where some layer is dense.
    width = integer(config, "intermediate_size") if mixed < layers else inner
    fields: dict[str, Any] = {}
    if flag(config, "use_sliding_window"):
        full = integer(config, "max_window_layers", minimum=0, default=28)
        fields = windows(config, layers, 4_096, max(0, layers - full))
    return _mixture(config, name, experts, width, bias=flag(config, "attention_bias"), qk_norm=True, **fields)


def _minimax_m2(config: Config, name: str) -> Architecture:
    layers, hidden, heads = sizes(config)
    inner = integer(config, "intermediate_size")
    only(config, "shared_intermediate_size", (0,), "only layers without a shared expert are described")
    experts = Experts(
        integer(config, "num_local_experts"), integer(config, "num_experts_per_tok"), inner, layers
    )
    extra = Weights(other=experts.experts)  # a correction per expert
    if flag(config, "use_qk_norm", True):  # one scale for each element of all heads
        kv_heads = integer(config, "num_key_value_heads")
        extra += rms_norm((heads + kv_heads) * head_width(config, hidden, heads))
    modules = integer(config, "num_mtp_modules", minimum=0, default=0) if flag(config, "use_mtp") else 0
    notes = tuple(not_counted(modules, "prediction modules"))
    return _mixture(config, name, experts, inner, layer=extra, notes=notes)


def _gpt_oss(config: Config, name: str) -> Architecture:
    layers, _, heads = sizes(config)
    inner = integer(config, "intermediate_size")
    per_token = (
        "num_experts_per_tok" if config.get("num_experts_per_tok") is not None else "experts_per_token"
    )
    experts = Experts(integer(config, "num_local_experts"), integer(config, per_token), inner, layers)
    extra = Weights(other=heads + experts.experts)  # a sink per head, a bias per expert in the router
    bias = flag(config, "attention_bias", True)
    window = windows(config, layers, 128, -(-layers // 2))
    return _mixture(config, name, experts, inner, bias=bias, expert_bias=True, layer=extra, **window)


def _llama4_text(config: Config, name: str) -> Architecture:
    layers = integer(config, "num_hidden_layers")
    inner = integer(config, "intermediate_size")
    step = integer(config, "interleave_moe_layer_step", default=1)
    named = indices(config, "moe_layers", layers)
    mixed = len(named) or layers // step
    if not mixed:
        raise UnsupportedArchitecture("interleave_moe_layer_step", "leaves no layer with experts")
    number, per_token = integer(config, "num_local_experts"), integer(config, "num_experts_per_tok")
    experts = Experts(number, per_token, inner, mixed, shared_intermediate_size=inner)
    width = integer(config, "intermediate_size_mlp") if mixed < layers else inner
    fields: dict[str, Any] = {}
    chunked = _chunked_layers(config, layers)
    if chunked and not ("attention_chunk_size" in config and config["attention_chunk_size"] is None):
        window = integer(config, "attention_chunk_size", default=8_192)
        fields = {"sliding_window_tokens": window, "windowed_layers": chunked, "chunked": True}
    return _mixture(config, name, experts, width, bias=flag(config, "attention_bias"), **fields)


def _chunked_layers(config: Config, layers: int) -> int:
    """Layers that see their chunk only: those that turn their heads, three of four unless the file says else."""
    kinds = names(config, "layer_types", layers, (CHUNKED, FULL))
    if kinds is not None:
        return kinds.count(CHUNKED)
    turned = config.get("no_rope_layers")  # despite its name: 1 where a layer does turn its heads
    if turned:
        if (
            not isinstance(turned, list)
            or len(turned) != layers
            or any(value not in (0, 1) for value in turned)
        ):
            raise UnsupportedArchitecture("no_rope_layers", f"must be a list of {layers} zeros and ones")
        return sum(1 for value in turned if value)
    return layers - layers // integer(config, "no_rope_layer_interval", default=4)


def _mixture(
    config: Config,
    name: str,
    experts: Experts,
    width: int,
    *,
    bias: bool = False,
    qk_norm: bool = False,
    expert_bias: bool = False,
    layer: Weights | None = None,
    **fields: Any,
) -> Architecture:
    """Grouped-query attention, and experts in `experts.layers` of the layers; the others are `width` wide.

    `bias`: of the four projections; `layer`: what every layer has besides.
    """
    only(config, "hidden_act", ("silu",), "only silu is described")
    layers, hidden, heads = sizes(config)
    kv_heads, head_dim = all_or_given(config, "num_key_value_heads", heads), head_width(config, hidden, heads)
    usual = common(config, name)
    each = attention(hidden, heads * head_dim, kv_heads * head_dim, qkv_bias=bias, output_bias=bias)
    each += rms_norm(hidden) * 2 + (layer or Weights()) + rms_norm(head_dim) * (2 * qk_norm)
    mixture = routed(
        gated(hidden, experts.intermediate_size, expert_bias), experts.experts, experts.per_token
    )
    mixture += linear(hidden, experts.experts)
    if experts.shared_intermediate_size:
        mixture += gated(hidden, experts.shared_intermediate_size)
    total = each * layers + mixture * experts.layers + gated(hidden, width) * (layers - experts.layers)
    return Architecture(
        **usual, layers=layers, hidden_size=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        intermediate_size=width, qkv_bias=bias, output_bias=bias, qk_norm=qk_norm, experts=experts, **fields,
        counts=counts(total + rms_norm(hidden), hidden, usual["vocab_size"], tied=usual["tie_word_embeddings"]),
    )  # fmt: skip


FAMILIES: dict[str, Reader] = {
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "minimax_m2": _minimax_m2,
    "gpt_oss": _gpt_oss,
    "llama4_text": _llama4_text,
}
