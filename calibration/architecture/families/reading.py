"""What readers of several families share: names, heads, windows, rotary base.

Defaults are those of the `transformers` class of the same family where published files rely on them; anything
else that is missing is refused, because a guess would be wrong by a factor and nobody would see it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from calibration.architecture.model import Architecture
from calibration.architecture.values import (
    UnsupportedArchitecture,
    flag,
    integer,
    names,
    optional_integer,
    optional_mapping,
    positive,
    printable,
    shown,
    text,
)

Config = Mapping[str, object]
Reader = Callable[[Config, str], Architecture]

FULL, SLIDING, CHUNKED, LINEAR = (
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "linear_attention",
)


def common(config: Config, name: str, *, tied: bool = False, positions: str = "") -> dict[str, Any]:
    """Fields that every family has under the same names. `tied`: whether the head is the embedding where the
    file does not say; `positions`: the family's name for the longest context."""
    model_type = text(config, "model_type")
    quantization = optional_mapping(config, "quantization_config") or {}
    own_name = text(config, "_name_or_path", required=False) or text(config, "name_or_path", required=False)
    return {
        "name": printable(name) or own_name or model_type,
        "model_type": model_type,
        "vocab_size": integer(config, "vocab_size"),
        "tie_word_embeddings": flag(config, "tie_word_embeddings", tied),
        "rope_theta": _rope_theta(config),
        "rms_norm_eps": positive(config, "rms_norm_eps", 1e-6),
        "max_position_tokens": integer(config, positions or "max_position_embeddings"),
        "quantization": text(quantization, "quant_method", required=False),
    }


def sizes(config: Config) -> tuple[int, int, int]:
    """(layers, hidden size, query heads) under their usual names."""
    return (
        integer(config, "num_hidden_layers"),
        integer(config, "hidden_size"),
        integer(config, "num_attention_heads"),
    )


def head_width(config: Config, hidden_size: int, heads: int, default: int | None = None) -> int:
    """`head_dim` as given, or `default`, or the hidden size shared among the heads."""
    if default is not None or config.get("head_dim") is not None:
        return integer(config, "head_dim", default=default)
    return shared(hidden_size, heads)


def shared(hidden_size: int, heads: int) -> int:
    """The hidden size divided among the heads; refused when it does not divide."""
    if hidden_size % heads:
        message = f"the hidden size {hidden_size} is not divisible by {heads} heads and head_dim is not given"
        raise UnsupportedArchitecture("num_attention_heads", message)
    return hidden_size // heads


def all_or_given(config: Config, key: str, heads: int) -> int:
    """KV heads as given; a file without the key, or with null, has one for every query head."""
    return integer(config, key, default=heads)


def windows(
    config: Config, layers: int, default: int | None, windowed: int, usual: range | None = None
) -> dict[str, Any]:
    """Fields of a sliding window: `sliding_window` (absent: the class's `default`; null: none) on the layers
    that `layer_types` names, or else on `windowed` of them: the `usual` ones, by default the last."""
    window = optional_integer(config, "sliding_window") if "sliding_window" in config else default
    kinds = names(config, "layer_types", layers, (FULL, SLIDING))
    if kinds is not None:
        windowed = kinds.count(SLIDING)
    if window is None or not windowed:
        return {}
    fields: dict[str, Any] = {"sliding_window_tokens": window, "windowed_layers": windowed}
    if kinds is not None:
        at = tuple(index for index, kind in enumerate(kinds) if kind == SLIDING)
        if at != (tuple(usual) if usual is not None else tuple(range(layers - windowed, layers))):
            fields["windowed_at"] = at
    return fields


def only(config: Config, key: str, allowed: tuple[object, ...], why: str) -> None:
    """Refuses a key whose value would change the layers in a way that is not described."""
    value = config.get(key)
    if value is not None and not any(type(value) is type(known) and value == known for known in allowed):
        raise UnsupportedArchitecture(key, f"{why}, got {shown(value)}")


def not_counted(number: int, what: str) -> list[str]:
    """A note on prediction layers that come with the weights and that only speculative decoding loads."""
    if not number:
        return []
    return [f"Not counted: the published weights' {what} ({number}), which only speculative decoding uses."]


def _rope_theta(config: Config) -> float:
    """The rotary base: on top, or inside rope_parameters as newer files have it."""
    optional_mapping(config, "rope_scaling")
    nested = optional_mapping(config, "rope_parameters")
    holder = nested if nested is not None and "rope_theta" not in config else config
    return positive(holder, "rope_theta", 10_000.0)
