"""config.json, as published beside the weights, to Architecture: families by name, defaults, windows, biases.

Defaults are those of the `transformers` class of the same family where published files rely on them; anything
else that is missing is refused, because a guess would be wrong by a factor and nobody would see it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from calibration.architecture.dense import SUPPORTED_MODEL_TYPES, Architecture
from calibration.architecture.presets import PRESETS
from calibration.architecture.values import (
    UnsupportedArchitecture,
    flag,
    integer,
    optional_integer,
    optional_mapping,
    positive,
    printable,
    shown,
    text,
)

MAX_CONFIG_BYTES = 1 << 20
_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size")


def parse_config(mapping: Mapping[str, object], name: str = "") -> Architecture:
    """A decoded config.json as an Architecture.

    Raises UnsupportedArchitecture, and nothing else, for a family we do not know and for values no model has.
    """
    if not isinstance(mapping, Mapping):
        raise UnsupportedArchitecture("config", f"must be a JSON object, got {shown(mapping)}")
    model_type = text(mapping, "model_type")
    if model_type not in SUPPORTED_MODEL_TYPES:
        known = ", ".join(SUPPORTED_MODEL_TYPES)
        raise UnsupportedArchitecture(
            "model_type", f"{shown(model_type)} is not supported (supported: {known})"
        )
    _refuse_other_layers(mapping, model_type)
    layers = integer(mapping, "num_hidden_layers")
    hidden_size = integer(mapping, "hidden_size")
    heads = integer(mapping, "num_attention_heads")
    window, windowed_layers = _windows(mapping, model_type, layers)
    # Qwen2 always has q/k/v biases and never an output bias; Llama and Qwen3 have all four or none.
    attention_bias = flag(mapping, "attention_bias") and model_type in ("llama", "qwen3")
    quantization = optional_mapping(mapping, "quantization_config") or {}
    return Architecture(
        name=printable(name) or text(mapping, "_name_or_path", required=False) or model_type,
        model_type=model_type,
        layers=layers,
        hidden_size=hidden_size,
        heads=heads,
        kv_heads=_kv_heads(mapping, model_type, heads),
        head_dim=_head_dim(mapping, model_type, hidden_size, heads),
        intermediate_size=integer(mapping, "intermediate_size"),
        vocab_size=integer(mapping, "vocab_size"),
        tie_word_embeddings=flag(mapping, "tie_word_embeddings"),
        qkv_bias=model_type == "qwen2" or attention_bias,
        output_bias=attention_bias,
        mlp_bias=flag(mapping, "mlp_bias") and model_type == "llama",
        qk_norm=model_type == "qwen3",
        rope_theta=_rope_theta(mapping),
        rms_norm_eps=positive(mapping, "rms_norm_eps", 1e-6),
        max_position_tokens=integer(mapping, "max_position_embeddings"),
        sliding_window_tokens=window,
        windowed_layers=windowed_layers,
        quantization=text(quantization, "quant_method", required=False),
    )


def parse_config_text(content: str | bytes, name: str = "") -> Architecture:
    """The text of a config.json (at most 1 MiB) as an Architecture; raises UnsupportedArchitecture."""
    if len(content) > MAX_CONFIG_BYTES:
        raise UnsupportedArchitecture("config", f"is longer than {MAX_CONFIG_BYTES:,} bytes")
    try:
        config = json.loads(content)
    except RecursionError:
        raise UnsupportedArchitecture("config", "is nested too deeply") from None
    except ValueError as error:  # bad JSON, bad UTF-8, an integer of thousands of digits
        raise UnsupportedArchitecture("config", f"is not JSON: {str(error)[:200]}") from None
    return parse_config(config, name)


def load_architecture(config_path_or_preset: str) -> Architecture:
    """A preset by its name, or a config.json by its path (a folder means the config.json in it).

    Raises UnsupportedArchitecture: field "model" when it is neither, else as parse_config.
    """
    preset = PRESETS.get(config_path_or_preset.strip().lower())
    if preset is not None:
        return preset
    try:
        path = Path(config_path_or_preset)
        if path.is_dir():
            path = path / "config.json"
        with path.open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except (OSError, ValueError):
        presets = ", ".join(PRESETS)
        message = f"{shown(config_path_or_preset)} is neither a readable config.json nor one of {presets}"
        raise UnsupportedArchitecture("model", message) from None
    return parse_config_text(content, path.parent.name if path.name == "config.json" else path.stem)


def _refuse_other_layers(mapping: Mapping[str, object], model_type: str) -> None:
    """Keys that would give a dense family's name layers of another kind."""
    for key in _EXPERT_KEYS:
        if mapping.get(key) not in (None, 0, 1):
            raise UnsupportedArchitecture(key, f"a mixture of experts is not a dense {model_type} model")
    activation = mapping.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedArchitecture("hidden_act", f"only silu is supported, got {shown(activation)}")


def _kv_heads(mapping: Mapping[str, object], model_type: str, heads: int) -> int:
    # Old Llama files have no such key (every head has its own K and V); null means the same everywhere.
    absent_means_all = model_type == "llama" or "num_key_value_heads" in mapping
    return integer(mapping, "num_key_value_heads", default=heads if absent_means_all else None)


def _head_dim(mapping: Mapping[str, object], model_type: str, hidden_size: int, heads: int) -> int:
    # Qwen3's class default is 128: its heads are not hidden_size / heads wide.
    if mapping.get("head_dim") is not None or model_type == "qwen3":
        return integer(mapping, "head_dim", default=128)
    if hidden_size % heads:
        message = f"hidden_size {hidden_size} is not divisible by {heads} heads and head_dim is not given"
        raise UnsupportedArchitecture("num_attention_heads", message)
    return hidden_size // heads


def _windows(mapping: Mapping[str, object], model_type: str, layers: int) -> tuple[int | None, int]:
    """(window in tokens, layers that have one): none in Llama, all in Mistral, in Qwen when switched on."""
    if model_type == "llama" or (model_type != "mistral" and not flag(mapping, "use_sliding_window")):
        return None, 0
    window = optional_integer(mapping, "sliding_window")
    if window is None:
        return None, 0
    kinds = mapping.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise UnsupportedArchitecture("layer_types", f"must be a list of {layers} names, one a layer")
        if any(kind not in ("full_attention", "sliding_attention") for kind in kinds):
            raise UnsupportedArchitecture("layer_types", "may hold full_attention and sliding_attention only")
        windowed = kinds.count("sliding_attention")
    elif model_type == "mistral":
        windowed = layers
    else:  # the first max_window_layers layers see everything
        windowed = max(0, layers - integer(mapping, "max_window_layers", minimum=0, default=layers))
    return (window, windowed) if windowed else (None, 0)


def _rope_theta(mapping: Mapping[str, object]) -> float:
    """The rotary base: on top, or inside rope_parameters as newer files have it."""
    optional_mapping(mapping, "rope_scaling")
    nested = optional_mapping(mapping, "rope_parameters")
    holder = nested if nested is not None and "rope_theta" not in mapping else mapping
    return positive(holder, "rope_theta", 10_000.0)
