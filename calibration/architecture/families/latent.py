"""Multi-head latent attention: DeepSeek-V3 and R1, Kimi K2, GLM-5.

Queries and keys have a part without position (`qk_nope`) and one with (`qk_rope`); keys and values of all heads
are made from one latent of `kv_lora_rank`, which is what is cached, beside the `qk_rope` part. The file's
num_key_value_heads is not cached. GLM-5 adds an indexer that picks the tokens to attend to.
"""

from __future__ import annotations

from calibration.architecture.families.reading import (
    Config,
    Reader,
    all_or_given,
    common,
    not_counted,
    only,
    sizes,
)
from calibration.architecture.model import Architecture
from calibration.architecture.parts import Experts, Latent
from calibration.architecture.values import UnsupportedArchitecture, flag, integer, positive
from calibration.architecture.weights import Weights, counts, gated, layer_norm, linear, rms_norm, routed


def _deepseek(config: Config, name: str) -> Architecture:
    only(config, "hidden_act", ("silu",), "only silu is described")
    layers, hidden, heads = sizes(config)
    inner, latent = integer(config, "intermediate_size"), _latent(config)
    experts = _experts(config, layers)
    usual = common(config, name)
    each = _attention(config, hidden, heads, latent) + rms_norm(hidden) * 2
    mixture = routed(gated(hidden, experts.intermediate_size), experts.experts, experts.per_token)
    mixture += linear(hidden, experts.experts) + Weights(other=experts.experts)  # router and its correction
    if experts.shared_intermediate_size:
        mixture += gated(hidden, experts.shared_intermediate_size)
    total = each * layers + mixture * experts.layers + gated(hidden, inner) * (layers - experts.layers)
    predicting = integer(config, "num_nextn_predict_layers", minimum=0, default=0)
    shares = config.get("model_type") == "glm_moe_dsa" and any(
        config.get(key) not in (None, 1) for key in ("index_topk_pattern", "index_topk_freq", "indexer_types")
    )  # some layers then have no indexer of their own
    return Architecture(
        **usual, layers=layers, hidden_size=hidden, heads=heads,
        kv_heads=all_or_given(config, "num_key_value_heads", heads),
        head_dim=latent.nope_size + latent.rotary_size, intermediate_size=inner, experts=experts, latent=latent,
        qkv_bias=flag(config, "attention_bias"), output_bias=flag(config, "attention_bias"),
        counts=counts(total + rms_norm(hidden), hidden, usual["vocab_size"], tied=usual["tie_word_embeddings"],
                      exact=not shares),
        notes=tuple(not_counted(predicting, "prediction layers")),
    )  # fmt: skip


def _latent(config: Config) -> Latent:
    sparse = config.get("model_type") == "glm_moe_dsa"
    return Latent(
        rank=integer(config, "kv_lora_rank"),
        rotary_size=integer(config, "qk_rope_head_dim"),
        nope_size=integer(config, "qk_nope_head_dim"),
        value_size=integer(config, "v_head_dim"),
        query_rank=integer(config, "q_lora_rank", default=0),
        index_key_size=integer(config, "index_head_dim") if sparse else 0,
    )


def _experts(config: Config, layers: int) -> Experts:
    first = integer(config, "first_k_dense_replace", minimum=0, default=0)
    every = integer(config, "moe_layer_freq", default=1)
    mixed = sum(1 for index in range(first, layers) if index % every == 0)
    if not mixed:
        raise UnsupportedArchitecture("first_k_dense_replace", "leaves no layer with experts")
    inner = integer(config, "moe_intermediate_size")
    number = integer(config, "n_shared_experts", minimum=0, default=0)
    bare = tuple(index for index in range(layers) if index < first or index % every)
    # How experts are picked: where a file does not say, in the plainest way; no size depends on it.
    only(config, "scoring_func", ("sigmoid", "softmax"), "only sigmoid and softmax scores are described")
    groups = integer(config, "n_group", default=1)
    return Experts(
        integer(config, "n_routed_experts"),
        integer(config, "num_experts_per_tok"),
        inner,
        mixed,
        number * inner,
        dense_at=() if bare == tuple(range(len(bare))) else bare,
        sigmoid=config.get("scoring_func") != "softmax",
        normalised=flag(config, "norm_topk_prob", True),
        groups=groups,
        top_groups=integer(config, "topk_group", default=groups),
        scale=positive(config, "routed_scaling_factor", 1.0),
    )


def _attention(config: Config, hidden: int, heads: int, latent: Latent) -> Weights:
    bias = flag(config, "attention_bias")
    queries = heads * (latent.nope_size + latent.rotary_size)
    weights = linear(hidden, latent.elements, bias) + rms_norm(latent.rank)
    weights += linear(latent.rank, heads * (latent.nope_size + latent.value_size))
    weights += linear(heads * latent.value_size, hidden, bias)
    if latent.query_rank:
        weights += linear(hidden, latent.query_rank, bias) + rms_norm(latent.query_rank)
        weights += linear(latent.query_rank, queries)
    else:
        weights += linear(hidden, queries)
    if latent.index_key_size:
        index_heads = integer(config, "index_n_heads")
        weights += linear(latent.query_rank or hidden, index_heads * latent.index_key_size)
        weights += linear(hidden, latent.index_key_size) + layer_norm(latent.index_key_size)
        weights += linear(hidden, index_heads)
    return weights


FAMILIES: dict[str, Reader] = {"deepseek_v3": _deepseek, "kimi_k2": _deepseek, "glm_moe_dsa": _deepseek}
