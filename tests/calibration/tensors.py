"""The tensors of every family's published layout, name by name: a second way to the number of parameters.

Written from the modules of the `transformers` class (or of the code published with the weights), without a look
at how calibration/architecture counts. Shapes as stored; experts' tensors are listed once per expert.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Shape = tuple[int, ...]
Tensors = Iterator[tuple[str, Shape]]


def tensors(c: dict[str, Any]) -> dict[str, Shape]:
    """Name -> shape for a whole model; `c` is the text decoder's config."""
    return dict(_LAYOUTS[c["model_type"]](c))


def _linear(name: str, inputs: int, outputs: int, bias: bool = False) -> Tensors:
    yield f"{name}.weight", (outputs, inputs)
    if bias:
        yield f"{name}.bias", (outputs,)


def _norm(name: str, size: int, bias: bool = False) -> Tensors:
    yield f"{name}.weight", (size,)
    if bias:
        yield f"{name}.bias", (size,)


def _gated(name: str, hidden: int, inner: int) -> Tensors:
    for projection in ("gate_proj", "up_proj"):
        yield from _linear(f"{name}.{projection}", hidden, inner)
    yield from _linear(f"{name}.down_proj", inner, hidden)


def _ends(c: dict[str, Any], tied: bool = False) -> Tensors:
    yield "embed_tokens.weight", (c["vocab_size"], c["hidden_size"])
    yield "norm.weight", (c["hidden_size"],)
    if not tied:
        yield "lm_head.weight", (c["vocab_size"], c["hidden_size"])


def _projections(
    name: str, c: dict[str, Any], qkv: bool = False, out: bool = False, gate: int = 1
) -> Tensors:
    h, d = c["hidden_size"], c["head_dim"]
    yield from _linear(f"{name}.q_proj", h, c["num_attention_heads"] * d * gate, qkv)
    yield from _linear(f"{name}.k_proj", h, c["num_key_value_heads"] * d, qkv)
    yield from _linear(f"{name}.v_proj", h, c["num_key_value_heads"] * d, qkv)
    yield from _linear(f"{name}.o_proj", c["num_attention_heads"] * d, h, out)


def _two_norms(name: str, c: dict[str, Any]) -> Tensors:
    yield from _norm(f"{name}.input_layernorm", c["hidden_size"])
    yield from _norm(f"{name}.post_attention_layernorm", c["hidden_size"])


def _llama(c: dict[str, Any]) -> Tensors:
    kind = c["model_type"]
    yield from _ends(c)
    for i in range(c["num_hidden_layers"]):
        yield from _projections(f"{i}.self_attn", c, qkv=kind == "qwen2")
        yield from _gated(f"{i}.mlp", c["hidden_size"], c["intermediate_size"])
        yield from _two_norms(str(i), c)
        if kind in ("qwen3", "qwen3_vl_text"):
            yield from _norm(f"{i}.q_norm", c["head_dim"])
            yield from _norm(f"{i}.k_norm", c["head_dim"])


def _phi3(c: dict[str, Any]) -> Tensors:
    yield from _ends(c)
    h, d = c["hidden_size"], c["head_dim"]
    for i in range(c["num_hidden_layers"]):
        heads = c["num_attention_heads"] + 2 * c["num_key_value_heads"]
        yield from _linear(f"{i}.self_attn.qkv_proj", h, heads * d)
        yield from _linear(f"{i}.self_attn.o_proj", c["num_attention_heads"] * d, h)
        yield from _linear(f"{i}.mlp.gate_up_proj", h, 2 * c["intermediate_size"])
        yield from _linear(f"{i}.mlp.down_proj", c["intermediate_size"], h)
        yield from _two_norms(str(i), c)


def _baichuan(c: dict[str, Any]) -> Tensors:
    yield from _ends(c)
    width = c["num_attention_heads"] * c["head_dim"]
    for i in range(c["num_hidden_layers"]):
        yield from _linear(f"{i}.W_pack", c["hidden_size"], 3 * width)
        yield from _linear(f"{i}.o_proj", width, c["hidden_size"])
        yield from _gated(f"{i}.mlp", c["hidden_size"], c["intermediate_size"])
        yield from _two_norms(str(i), c)


def _qwen(c: dict[str, Any]) -> Tensors:
    yield from _ends(c)
    h, width, half = (
        c["hidden_size"],
        c["num_attention_heads"] * c["kv_channels"],
        c["intermediate_size"] // 2,
    )
    for i in range(c["num_hidden_layers"]):
        yield from _linear(f"{i}.attn.c_attn", h, 3 * width, True)
        yield from _linear(f"{i}.attn.c_proj", width, h)
        yield from _linear(f"{i}.mlp.w1", h, half)
        yield from _linear(f"{i}.mlp.w2", h, half)
        yield from _linear(f"{i}.mlp.c_proj", half, h)
        yield from _two_norms(str(i), c)


def _chatglm(c: dict[str, Any]) -> Tensors:
    yield from _ends(c | {"vocab_size": c["padded_vocab_size"]})
    h, d = c["hidden_size"], c["kv_channels"]
    for i in range(c["num_layers"]):
        heads = c["num_attention_heads"] + 2 * c["multi_query_group_num"]
        yield from _linear(f"{i}.query_key_value", h, heads * d, c["add_qkv_bias"])
        yield from _linear(f"{i}.dense", c["num_attention_heads"] * d, h)
        yield from _linear(f"{i}.mlp.dense_h_to_4h", h, 2 * c["ffn_hidden_size"])
        yield from _linear(f"{i}.mlp.dense_4h_to_h", c["ffn_hidden_size"], h)
        yield from _two_norms(str(i), c)


def _gpt2(c: dict[str, Any]) -> Tensors:
    h, inner = c["n_embd"], c["n_inner"] or 4 * c["n_embd"]
    yield "wte", (c["vocab_size"], h)
    yield "wpe", (c["n_positions"], h)
    yield from _norm("ln_f", h, True)
    for i in range(c["n_layer"]):
        keys = h // c["n_head"] if c.get("multi_query") else h
        yield from _linear(f"{i}.attn.c_attn", h, h + 2 * keys, True)
        yield from _linear(f"{i}.attn.c_proj", h, h, True)
        yield from _linear(f"{i}.mlp.c_fc", h, inner, True)
        yield from _linear(f"{i}.mlp.c_proj", inner, h, True)
        yield from _norm(f"{i}.ln_1", h, True)
        yield from _norm(f"{i}.ln_2", h, True)


def _opt(c: dict[str, Any]) -> Tensors:
    h, narrow = c["hidden_size"], c["word_embed_proj_dim"]
    yield "embed_tokens", (c["vocab_size"], narrow)
    yield "embed_positions", (c["max_position_embeddings"] + 2, h)
    yield from _norm("final_layer_norm", h, True)
    if narrow != h:
        yield from _linear("project_in", narrow, h)
        yield from _linear("project_out", h, narrow)
    for i in range(c["num_hidden_layers"]):
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from _linear(f"{i}.self_attn.{projection}", h, h, True)
        yield from _linear(f"{i}.fc1", h, c["ffn_dim"], True)
        yield from _linear(f"{i}.fc2", c["ffn_dim"], h, True)
        yield from _norm(f"{i}.self_attn_layer_norm", h, True)
        yield from _norm(f"{i}.final_layer_norm", h, True)


def _gpt_neox(c: dict[str, Any]) -> Tensors:
    h, inner = c["hidden_size"], c["intermediate_size"]
    yield "embed_in", (c["vocab_size"], h)
    yield "embed_out", (c["vocab_size"], h)
    yield from _norm("final_layer_norm", h, True)
    for i in range(c["num_hidden_layers"]):
        yield from _linear(f"{i}.attention.query_key_value", h, 3 * h, True)
        yield from _linear(f"{i}.attention.dense", h, h, True)
        yield from _linear(f"{i}.mlp.dense_h_to_4h", h, inner, True)
        yield from _linear(f"{i}.mlp.dense_4h_to_h", inner, h, True)
        yield from _norm(f"{i}.input_layernorm", h, True)
        yield from _norm(f"{i}.post_attention_layernorm", h, True)


def _mpt(c: dict[str, Any]) -> Tensors:
    h = c["d_model"]
    yield "wte", (c["vocab_size"], h)
    yield from _norm("norm_f", h)
    for i in range(c["n_layers"]):
        yield from _linear(f"{i}.attn.Wqkv", h, 3 * h)
        yield from _linear(f"{i}.attn.out_proj", h, h)
        yield from _linear(f"{i}.ffn.up_proj", h, 4 * h)
        yield from _linear(f"{i}.ffn.down_proj", 4 * h, h)
        yield from _norm(f"{i}.norm_1", h)
        yield from _norm(f"{i}.norm_2", h)


def _falcon(c: dict[str, Any]) -> Tensors:
    h = c["hidden_size"]
    yield "word_embeddings", (c["vocab_size"], h)
    yield from _norm("ln_f", h, True)
    for i in range(c["num_hidden_layers"]):
        wide = (c["num_attention_heads"] + 2 * c["num_kv_heads"]) * (h // c["num_attention_heads"])
        yield from _linear(f"{i}.self_attention.query_key_value", h, wide)
        yield from _linear(f"{i}.self_attention.dense", h, h)
        yield from _linear(f"{i}.mlp.dense_h_to_4h", h, 4 * h)
        yield from _linear(f"{i}.mlp.dense_4h_to_h", 4 * h, h)
        yield from _norm(f"{i}.ln_attn", h, True)
        yield from _norm(f"{i}.ln_mlp", h, True)


def _gemma2(c: dict[str, Any]) -> Tensors:
    yield from _ends(c, tied=True)
    for i in range(c["num_hidden_layers"]):
        yield from _projections(f"{i}.self_attn", c)
        yield from _gated(f"{i}.mlp", c["hidden_size"], c["intermediate_size"])
        yield from _two_norms(str(i), c)
        yield from _norm(f"{i}.pre_feedforward_layernorm", c["hidden_size"])
        yield from _norm(f"{i}.post_feedforward_layernorm", c["hidden_size"])


def _experts(name: str, c: dict[str, Any], number: int, inner: int) -> Tensors:
    for expert in range(number):
        yield from _gated(f"{name}.experts.{expert}", c["hidden_size"], inner)


def _mixtral(c: dict[str, Any]) -> Tensors:
    yield from _ends(c)
    kind, number = c["model_type"], c["num_local_experts"]
    for i in range(c["num_hidden_layers"]):
        yield from _projections(f"{i}.self_attn", c)
        yield from _two_norms(str(i), c)
        yield from _linear(f"{i}.gate", c["hidden_size"], number)
        yield from _experts(str(i), c, number, c["intermediate_size"])
        if kind == "minimax_m2":
            yield f"{i}.e_score_correction_bias", (number,)
            yield from _norm(f"{i}.q_norm", c["num_attention_heads"] * c["head_dim"])
            yield from _norm(f"{i}.k_norm", c["num_key_value_heads"] * c["head_dim"])


def _qwen3_moe(c: dict[str, Any]) -> Tensors:
    yield from _ends(c)
    for i in range(c["num_hidden_layers"]):
        yield from _projections(f"{i}.self_attn", c)
        yield from _norm(f"{i}.q_norm", c["head_dim"])
        yield from _norm(f"{i}.k_norm", c["head_dim"])
        yield from _two_norms(str(i), c)
        if i not in c["mlp_only_layers"] and (i + 1) % c["decoder_sparse_step"] == 0:
            yield from _linear(f"{i}.mlp.gate", c["hidden_size"], c["num_experts"])
            yield from _experts(f"{i}.mlp", c, c["num_experts"], c["moe_intermediate_size"])
        else:
            yield from _gated(f"{i}.mlp", c["hidden_size"], c["intermediate_size"])


def _gpt_oss(c: dict[str, Any]) -> Tensors:
    yield from _ends(c)
    h, inner, number = c["hidden_size"], c["intermediate_size"], c["num_local_experts"]
    for i in range(c["num_hidden_layers"]):
        yield from _projections(f"{i}.self_attn", c, qkv=True, out=True)
        yield f"{i}.self_attn.sinks", (c["num_attention_heads"],)
        yield from _two_norms(str(i), c)
        yield from _linear(f"{i}.mlp.router", h, number, True)
        yield f"{i}.mlp.experts.gate_up_proj", (number, h, 2 * inner)
        yield f"{i}.mlp.experts.gate_up_proj_bias", (number, 2 * inner)
        yield f"{i}.mlp.experts.down_proj", (number, inner, h)
        yield f"{i}.mlp.experts.down_proj_bias", (number, h)


def _llama4(c: dict[str, Any]) -> Tensors:
    yield from _ends(c)
    h, step = c["hidden_size"], c["interleave_moe_layer_step"]
    for i in range(c["num_hidden_layers"]):
        yield from _projections(f"{i}.self_attn", c)
        yield from _two_norms(str(i), c)
        if i in range(step - 1, c["num_hidden_layers"], step):
            yield from _linear(f"{i}.feed_forward.router", h, c["num_local_experts"])
            yield from _experts(f"{i}.feed_forward", c, c["num_local_experts"], c["intermediate_size"])
            yield from _gated(f"{i}.feed_forward.shared_expert", h, c["intermediate_size"])
        else:
            yield from _gated(f"{i}.feed_forward", h, c["intermediate_size_mlp"])


def _deepseek(c: dict[str, Any]) -> Tensors:
    yield from _ends(c)
    h, heads, rank = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    key = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    for i in range(c["num_hidden_layers"]):
        if c["q_lora_rank"]:
            yield from _linear(f"{i}.q_a_proj", h, c["q_lora_rank"])
            yield from _norm(f"{i}.q_a_layernorm", c["q_lora_rank"])
            yield from _linear(f"{i}.q_b_proj", c["q_lora_rank"], heads * key)
        else:
            yield from _linear(f"{i}.q_proj", h, heads * key)
        yield from _linear(f"{i}.kv_a_proj_with_mqa", h, rank + c["qk_rope_head_dim"])
        yield from _norm(f"{i}.kv_a_layernorm", rank)
        yield from _linear(f"{i}.kv_b_proj", rank, heads * (c["qk_nope_head_dim"] + c["v_head_dim"]))
        yield from _linear(f"{i}.o_proj", heads * c["v_head_dim"], h)
        yield from _two_norms(str(i), c)
        if c["model_type"] == "glm_moe_dsa":
            yield from _linear(
                f"{i}.indexer.wq_b", c["q_lora_rank"], c["index_n_heads"] * c["index_head_dim"]
            )
            yield from _linear(f"{i}.indexer.wk", h, c["index_head_dim"])
            yield from _norm(f"{i}.indexer.k_norm", c["index_head_dim"], True)
            yield from _linear(f"{i}.indexer.weights_proj", h, c["index_n_heads"])
        if i < c["first_k_dense_replace"]:
            yield from _gated(f"{i}.mlp", h, c["intermediate_size"])
            continue
        yield from _linear(f"{i}.mlp.gate", h, c["n_routed_experts"])
        yield f"{i}.mlp.gate.e_score_correction_bias", (c["n_routed_experts"],)
        yield from _experts(f"{i}.mlp", c, c["n_routed_experts"], c["moe_intermediate_size"])
        yield from _gated(f"{i}.mlp.shared_experts", h, c["moe_intermediate_size"] * c["n_shared_experts"])


def _qwen3_5(c: dict[str, Any]) -> Tensors:
    yield from _ends(c, tied=True)
    h, kernel = c["hidden_size"], c["linear_conv_kernel_dim"]
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    heads, size = c["linear_num_value_heads"], c["linear_value_head_dim"]
    for i, kind in enumerate(c["layer_types"]):
        yield from _two_norms(str(i), c)
        if kind == "full_attention":
            yield from _projections(f"{i}.self_attn", c, gate=2)
            yield from _norm(f"{i}.q_norm", c["head_dim"])
            yield from _norm(f"{i}.k_norm", c["head_dim"])
        else:
            yield from _linear(f"{i}.linear_attn.in_proj_qkv", h, 2 * keys + heads * size)
            yield from _linear(f"{i}.linear_attn.in_proj_z", h, heads * size)
            yield from _linear(f"{i}.linear_attn.in_proj_b", h, heads)
            yield from _linear(f"{i}.linear_attn.in_proj_a", h, heads)
            yield f"{i}.linear_attn.conv1d.weight", (2 * keys + heads * size, 1, kernel)
            yield f"{i}.linear_attn.dt_bias", (heads,)
            yield f"{i}.linear_attn.A_log", (heads,)
            yield from _norm(f"{i}.linear_attn.norm", size)
            yield from _linear(f"{i}.linear_attn.out_proj", heads * size, h)
        yield from _linear(f"{i}.mlp.gate", h, c["num_experts"])
        yield from _experts(f"{i}.mlp", c, c["num_experts"], c["moe_intermediate_size"])
        yield from _gated(f"{i}.mlp.shared_expert", h, c["shared_expert_intermediate_size"])
        yield from _linear(f"{i}.mlp.shared_expert_gate", h, 1)


def _nemotron_h(c: dict[str, Any]) -> Tensors:
    yield from _ends(c)
    h, heads = c["hidden_size"], c["mamba_num_heads"]
    inner = heads * c["mamba_head_dim"]
    channels = inner + 2 * c["n_groups"] * c["ssm_state_size"]
    for i, kind in enumerate(c["hybrid_override_pattern"]):
        yield from _norm(f"{i}.norm", h)
        if kind == "*":
            yield from _projections(f"{i}.mixer", c | {"head_dim": c["attention_head_dim"]})
        elif kind == "-":
            yield from _linear(f"{i}.mixer.up_proj", h, c["intermediate_size"])
            yield from _linear(f"{i}.mixer.down_proj", c["intermediate_size"], h)
        else:
            yield from _linear(f"{i}.mixer.in_proj", h, inner + channels + heads)
            yield f"{i}.mixer.conv1d.weight", (channels, 1, c["conv_kernel"])
            yield f"{i}.mixer.conv1d.bias", (channels,)
            for scalar in ("A_log", "D", "dt_bias"):
                yield f"{i}.mixer.{scalar}", (heads,)
            yield from _norm(f"{i}.mixer.norm", inner)
            yield from _linear(f"{i}.mixer.out_proj", inner, h)


_LAYOUTS = {
    "llama": _llama, "mistral": _llama, "qwen2": _llama, "qwen3": _llama, "qwen3_vl_text": _llama, "phi3": _phi3,
    "baichuan": _baichuan, "qwen": _qwen, "chatglm": _chatglm, "gpt2": _gpt2, "gpt_bigcode": _gpt2, "opt": _opt,
    "gpt_neox": _gpt_neox, "mpt": _mpt, "falcon": _falcon, "gemma2": _gemma2, "mixtral": _mixtral,
    "minimax_m2": _mixtral, "qwen3_moe": _qwen3_moe, "gpt_oss": _gpt_oss, "llama4_text": _llama4,
    "deepseek_v3": _deepseek, "kimi_k2": _deepseek, "glm_moe_dsa": _deepseek, "qwen3_5_moe_text": _qwen3_5,
    "nemotron_h": _nemotron_h,
}  # fmt: skip
