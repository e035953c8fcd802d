"""Reading values out of a mapping that somebody uploaded: typed, bounded, refused by key and reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping

# Largest value believed for each quantity. They bound memory and arithmetic, not taste: every published
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
    "experts": 1 << 12,
    "rank": 1 << 14,
    "state": 1 << 12,
    "state_elements": 1 << 40,
    "parameters": 1 << 62,
}
_LIMIT_OF_KEY = {name: name for name in LIMITS} | {
    key: name
    for name, keys in {
        "layers": "num_hidden_layers n_layer n_layers num_layers windowed_layers cached_layers max_window_layers "
        "first_k_dense_replace moe_layer_freq decoder_sparse_step interleave_moe_layer_step "
        "full_attention_interval no_rope_layer_interval num_nextn_predict_layers num_mtp_modules "
        "mtp_num_hidden_layers",
        "heads": "num_attention_heads n_head n_heads index_n_heads",
        "kv_heads": "num_key_value_heads num_kv_heads n_head_kv kv_n_heads multi_query_group_num",
        "head_dim": "kv_channels attention_head_dim rotary_size nope_size value_size index_key_size "
        "qk_rope_head_dim qk_nope_head_dim v_head_dim index_head_dim",
        "hidden_size": "n_embd d_model word_embed_proj_dim",
        "intermediate_size": "n_inner ffn_dim ffn_hidden_size moe_intermediate_size intermediate_size_mlp "
        "shared_intermediate_size shared_expert_intermediate_size",
        "vocab_size": "padded_vocab_size",
        "max_position_tokens": "max_position_embeddings n_positions seq_length max_seq_len model_max_length",
        "sliding_window_tokens": "sliding_window attention_chunk_size",
        "experts": "num_experts num_local_experts n_routed_experts n_shared_experts per_token num_experts_per_tok "
        "experts_per_token groups top_groups n_group topk_group",
        "rank": "kv_lora_rank q_lora_rank query_rank",
        "state": "linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads linear_num_value_heads "
        "linear_value_head_dim conv_kernel mamba_head_dim mamba_num_heads n_groups ssm_state_size "
        "expansion_ratio num_ln_in_parallel_attn",
        "state_elements": "elements",
        "parameters": "total active products",
    }.items()
    for key in keys.split()
}


class UnsupportedArchitecture(ValueError):
    """A config.json that we cannot describe: `.field` names the key, `.message` says why."""

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
    limit = LIMITS[_LIMIT_OF_KEY[key]]
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


def flag(values: Mapping[str, object], key: str, default: bool = False) -> bool:
    """A boolean; `default` when absent or null."""
    value = values.get(key)
    if value is None:
        return default
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


def names(values: Mapping[str, object], key: str, length: int, allowed: Collection[str]) -> list[str] | None:
    """A list of `length` words, one a layer, each of `allowed`; None when absent or null."""
    value = values.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != length:
        raise UnsupportedArchitecture(key, f"must be a list of {length} names, one a layer")
    for word in value:
        if not isinstance(word, str) or word not in allowed:
            message = f"may hold {' and '.join(allowed)} only, got {shown(word)}"
            raise UnsupportedArchitecture(key, message)
    return value


def indices(values: Mapping[str, object], key: str, below: int) -> frozenset[int]:
    """A list of layer numbers from 0 to `below` - 1; empty when absent or null."""
    value = values.get(key)
    if value is None:
        return frozenset()
    if not isinstance(value, list | tuple) or not all(type(i) is int and 0 <= i < below for i in value):
        raise UnsupportedArchitecture(key, f"must be a list of layer numbers below {below}")
    return frozenset(value)


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
