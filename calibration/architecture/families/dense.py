"""Llama and what is built like it: RMSNorm, rotary embedding, grouped-query attention, SwiGLU.

Their weights follow from the dimensions. Fused projections (Phi-3, Baichuan, Qwen, ChatGLM) are the same
weights in fewer tensors. Qwen's intermediate_size counts gate and up together.
"""

from __future__ import annotations

from typing import Any

from calibration.architecture.families.reading import (
    Config,
    Reader,
    all_or_given,
    common,
    head_width,
    only,
    sizes,
    windows,
)
from calibration.architecture.model import Architecture
from calibration.architecture.values import UnsupportedArchitecture, flag, integer, positive, shown

_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size")
_QWEN_WINDOW, _QWEN_FULL_LAYERS = 4_096, 28  # where files switch windows on and say no more


def _llama(config: Config, name: str) -> Architecture:
    # Old files have no num_key_value_heads (every head has its own K and V). All four biases or none.
    bias = flag(config, "attention_bias")
    kv_heads = all_or_given(config, "num_key_value_heads", integer(config, "num_attention_heads"))
    mlp_bias = flag(config, "mlp_bias")
    return _usual(config, name, kv_heads=kv_heads, qkv_bias=bias, output_bias=bias, mlp_bias=mlp_bias)


def _mistral(config: Config, name: str) -> Architecture:
    layers = integer(config, "num_hidden_layers")
    return _usual(config, name, **windows(config, layers, 4_096, layers))


def _qwen2(config: Config, name: str) -> Architecture:
    return _usual(config, name, qkv_bias=True, **_switched_windows(config))


def _qwen3(config: Config, name: str) -> Architecture:
    # The class's default is 128: its heads are not hidden_size / heads wide.
    bias = flag(config, "attention_bias")
    window = _switched_windows(config)
    return _usual(config, name, 128, qk_norm=True, qkv_bias=bias, output_bias=bias, **window)


def _qwen3_vl_text(config: Config, name: str) -> Architecture:
    bias = flag(config, "attention_bias")
    return _usual(config, name, 128, qk_norm=True, qkv_bias=bias, output_bias=bias)


def _phi3(config: Config, name: str) -> Architecture:
    layers = integer(config, "num_hidden_layers")
    share = positive(config, "partial_rotary_factor", 1.0)
    if share > 1:
        raise UnsupportedArchitecture("partial_rotary_factor", f"must be at most 1, got {share:g}")
    notes = [f"It turns {share:.0%} of each head; the engine turns all of it."] if share != 1 else []
    kv_heads = all_or_given(config, "num_key_value_heads", integer(config, "num_attention_heads"))
    return _usual(
        config, name, kv_heads=kv_heads, notes=tuple(notes), **windows(config, layers, None, layers)
    )


def _baichuan(config: Config, name: str) -> Architecture:
    # The 13B model has ALiBi and names its longest context otherwise; the counts are the same.
    positions = "" if config.get("max_position_embeddings") is not None else "model_max_length"
    return _usual(config, name, kv_heads=integer(config, "num_attention_heads"), positions=positions)


def _qwen(config: Config, name: str) -> Architecture:
    _refuse_other_layers(config)
    layers, hidden_size, heads = sizes(config)
    only(config, "no_bias", (True,), "only no_bias is described")
    both = integer(config, "intermediate_size")
    if both % 2:
        raise UnsupportedArchitecture("intermediate_size", f"must be even, got {both}")
    positions = "" if config.get("max_position_embeddings") is not None else "seq_length"
    return Architecture(
        **common(config, name, positions=positions), layers=layers, hidden_size=hidden_size, heads=heads,
        kv_heads=heads, head_dim=integer(config, "kv_channels"), intermediate_size=both // 2, qkv_bias=True,
    )  # fmt: skip


def _chatglm(config: Config, name: str) -> Architecture:
    """ChatGLM2, ChatGLM3, GLM-4 of the same type; the first ChatGLM has other keys and is refused by them."""
    only(config, "rmsnorm", (True,), "only RMSNorm is described")
    only(config, "post_layer_norm", (True,), "only a norm after the last layer is described")
    heads = integer(config, "num_attention_heads")
    grouped = flag(config, "multi_query_attention")
    named = {**config, "vocab_size": config.get("padded_vocab_size", config.get("vocab_size"))}
    bias = flag(config, "add_bias_linear")
    return Architecture(
        **common(named, name, positions="seq_length"), layers=integer(config, "num_layers"), heads=heads,
        hidden_size=integer(config, "hidden_size"), head_dim=integer(config, "kv_channels"),
        kv_heads=integer(config, "multi_query_group_num") if grouped else heads,
        intermediate_size=integer(config, "ffn_hidden_size"), output_bias=bias, mlp_bias=bias,
        qkv_bias=flag(config, "add_qkv_bias") or bias,
    )  # fmt: skip


def _usual(
    config: Config, name: str, head_dim: int | None = None, *, positions: str = "", **fields: Any
) -> Architecture:
    """The names most files use, with what the family's reader already knows in `fields`."""
    _refuse_other_layers(config)
    layers, hidden_size, heads = sizes(config)
    if "kv_heads" not in fields:  # null means as many as query heads; absent is refused
        default = heads if "num_key_value_heads" in config else None
        fields["kv_heads"] = integer(config, "num_key_value_heads", default=default)
    return Architecture(
        **common(config, name, positions=positions), layers=layers, hidden_size=hidden_size, heads=heads,
        head_dim=head_width(config, hidden_size, heads, head_dim),
        intermediate_size=integer(config, "intermediate_size"), **fields,
    )  # fmt: skip


def _refuse_other_layers(config: Config) -> None:
    """Keys that would give a dense family's name layers of another kind."""
    for key in _EXPERT_KEYS:
        if config.get(key) not in (None, 0, 1):
            raise UnsupportedArchitecture(key, f"a mixture of experts is not dense, got {shown(config[key])}")
    only(config, "hidden_act", ("silu",), "only silu is supported")


def _switched_windows(config: Config) -> dict[str, Any]:
    """Qwen's windows: off unless switched on, and then on the layers after the first max_window_layers."""
    if not flag(config, "use_sliding_window"):
        return {}
    layers = integer(config, "num_hidden_layers")
    full = integer(config, "max_window_layers", minimum=0, default=_QWEN_FULL_LAYERS)
    return windows(config, layers, _QWEN_WINDOW, max(0, layers - full))


FAMILIES: dict[str, Reader] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_vl_text": _qwen3_vl_text,
    "phi3": _phi3,
    "baichuan": _baichuan,
    "qwen": _qwen,
    "chatglm": _chatglm,
}
