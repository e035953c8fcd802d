"""Reading values out of a mapping that somebody uploaded: typed, bounded, refused by key and reason."""

from __future__ import annotations

from collections.abc import Mapping

# Largest value believed for each dimension. They bound memory and arithmetic, not taste: every published
# model is at least four times smaller.
LIMITS = {
    "layers": 1 << 10,
    "heads": 1 << 10,
    "kv_heads": 1 << 10,
    "head_dim": 1 << 10,
    "hidden_size": 1 << 17,
    "intermediate_size": 1 << 20,
    "vocab_size": 1 << 22,
    "max_position_tokens": 1 << 30,
    "sliding_window_tokens": 1 << 30,
    "windowed_layers": 1 << 10,
}
# What config.json calls the same quantities.
CONFIG_KEYS = {
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "max_position_tokens": "max_position_embeddings",
    "sliding_window_tokens": "sliding_window",
    "windowed_layers": "max_window_layers",
}
_LIMIT_OF_KEY = {**LIMITS, **{key: LIMITS[ours] for ours, key in CONFIG_KEYS.items()}}


class UnsupportedArchitecture(ValueError):
    """A config.json that we cannot describe exactly: `.field` names the key, `.message` says why."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


def integer(values: Mapping[str, object], key: str, *, minimum: int = 1, default: int | None = None) -> int:
    """A whole number between `minimum` and the key's limit; `default` when absent or null."""
    value = values.get(key)
    if value is None:
        if default is None:
            raise UnsupportedArchitecture(key, "is missing")
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnsupportedArchitecture(key, f"must be a whole number, got {shown(value)}")
    limit = _LIMIT_OF_KEY[key]
    if not minimum <= value <= limit:
        raise UnsupportedArchitecture(key, f"must be from {minimum:,} to {limit:,}, got {shown(value)}")
    return value


def optional_integer(values: Mapping[str, object], key: str) -> int | None:
    """A whole number of at least 1, or None when absent or null."""
    return None if values.get(key) is None else integer(values, key)


def positive(values: Mapping[str, object], key: str, default: float) -> float:
    """A positive finite number; `default` when absent or null."""
    value = values.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnsupportedArchitecture(key, f"must be a number, got {shown(value)}")
    if not 0 < value <= 1e15:  # NaN fails too
        raise UnsupportedArchitecture(key, f"must be positive and finite, got {shown(value)}")
    return float(value)


def flag(values: Mapping[str, object], key: str) -> bool:
    """A boolean; False when absent or null."""
    value = values.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise UnsupportedArchitecture(key, f"must be true or false, got {shown(value)}")
    return value


def text(values: Mapping[str, object], key: str, *, required: bool = True) -> str:
    """Printable text of at most 200 characters; empty when absent or null and not required."""
    value = values.get(key)
    if value is None:
        if required:
            raise UnsupportedArchitecture(key, "is missing")
        return ""
    if not isinstance(value, str):
        raise UnsupportedArchitecture(key, f"must be text, got {shown(value)}")
    return printable(value)


def optional_mapping(values: Mapping[str, object], key: str) -> Mapping[str, object] | None:
    """A nested object, or None when absent or null."""
    value = values.get(key)
    if value is None or isinstance(value, Mapping):
        return value
    raise UnsupportedArchitecture(key, f"must be an object or null, got {shown(value)}")


def printable(value: str) -> str:
    """The first 200 characters without control characters: names end up on pages and in logs."""
    return "".join(letter for letter in value[:200] if letter.isprintable())


def shown(value: object) -> str:
    """A value for a message: short, printable, and never an error itself."""
    if isinstance(value, Mapping | list | tuple):
        return f"a {'list' if isinstance(value, list | tuple) else 'nested object'} of {len(value)}"
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return "a number beyond 64 bits"
    return repr(printable(value) if isinstance(value, str) else value)[:80]
