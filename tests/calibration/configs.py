"""Small config.json files of every family, made up here: the keys are the families', the sizes are nobody's."""

from __future__ import annotations

from typing import Any

_USUAL = {
    "num_hidden_layers": 6, "hidden_size": 96, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 160, "vocab_size": 500, "max_position_embeddings": 1024, "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "tie_word_embeddings": False,
}  # fmt: skip
_LATENT = {key: value for key, value in _USUAL.items() if key != "head_dim"} | {
    "num_key_value_heads": 8, "kv_lora_rank": 32, "q_lora_rank": 48, "qk_nope_head_dim": 24, "qk_rope_head_dim": 8,
    "v_head_dim": 20, "n_routed_experts": 10, "n_shared_experts": 1, "num_experts_per_tok": 3,
    "moe_intermediate_size": 40, "first_k_dense_replace": 2, "moe_layer_freq": 1, "num_nextn_predict_layers": 1,
}  # fmt: skip

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _USUAL,
    "mistral": _USUAL | {"sliding_window": 256},
    "qwen2": _USUAL | {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 4},
    "qwen3": _USUAL,
    "phi3": _USUAL | {"sliding_window": 128, "partial_rotary_factor": 0.75},
    "baichuan": _USUAL,
    "qwen": {
        "num_hidden_layers": 6, "hidden_size": 96, "num_attention_heads": 8, "kv_channels": 12, "vocab_size": 500,
        "intermediate_size": 320, "max_position_embeddings": 1024, "no_bias": True,
    },
    "chatglm": {
        "num_layers": 6, "hidden_size": 96, "num_attention_heads": 8, "kv_channels": 12, "padded_vocab_size": 500,
        "ffn_hidden_size": 160, "seq_length": 1024, "multi_query_attention": True, "multi_query_group_num": 2,
        "add_qkv_bias": True, "add_bias_linear": False, "rmsnorm": True, "post_layer_norm": True,
    },
    "qwen3_vl": {"text_config": _USUAL | {"model_type": "qwen3_vl_text"}, "vision_config": {}},
    "gpt2": {"n_layer": 6, "n_embd": 96, "n_head": 8, "n_positions": 1024, "vocab_size": 500, "n_inner": None},
    "gpt_bigcode": {
        "n_layer": 6, "n_embd": 96, "n_head": 8, "n_positions": 1024, "vocab_size": 500, "n_inner": 200,
        "multi_query": True,
    },
    "opt": {
        "num_hidden_layers": 6, "hidden_size": 96, "num_attention_heads": 8, "ffn_dim": 160, "vocab_size": 500,
        "max_position_embeddings": 1024, "word_embed_proj_dim": 48, "do_layer_norm_before": True,
    },
    "gpt_neox": {
        "num_hidden_layers": 6, "hidden_size": 96, "num_attention_heads": 8, "intermediate_size": 160,
        "vocab_size": 500, "max_position_embeddings": 1024, "tie_word_embeddings": False,
    },
    "mpt": {
        "n_layers": 6, "d_model": 96, "n_heads": 8, "expansion_ratio": 4, "vocab_size": 500, "max_seq_len": 1024,
        "no_bias": True, "learned_pos_emb": True, "attn_config": {"alibi": True},
    },
    "falcon": {
        "num_hidden_layers": 6, "hidden_size": 96, "num_attention_heads": 8, "num_kv_heads": 2, "vocab_size": 500,
        "new_decoder_architecture": True, "bias": False, "parallel_attn": True,
    },
    "gemma2": {**_USUAL, "hidden_act": "gelu_pytorch_tanh", "sliding_window": 256, "tie_word_embeddings": None},
    "mixtral": _USUAL | {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen3_moe": _USUAL | {
        "num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "mlp_only_layers": [0],
        "decoder_sparse_step": 2,
    },
    "minimax_m2": _USUAL | {
        "num_local_experts": 12, "num_experts_per_tok": 3, "use_qk_norm": True, "use_mtp": True, "num_mtp_modules": 3,
    },
    "gpt_oss": _USUAL | {
        "num_local_experts": 8, "experts_per_token": 2, "attention_bias": True, "sliding_window": 32,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "quantization_config": {"quant_method": "mxfp4"},
    },
    "llama4": {
        "text_config": _USUAL | {
            "model_type": "llama4_text", "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 320,
            "interleave_moe_layer_step": 2, "attention_chunk_size": 64,
        },
    },
    "deepseek_v3": _LATENT | {"quantization_config": {"quant_method": "fp8"}},
    "kimi_k2": _LATENT | {"q_lora_rank": None, "num_nextn_predict_layers": 0},
    "glm_moe_dsa": _LATENT | {"index_head_dim": 16, "index_n_heads": 4, "index_topk": 64},
    "qwen3_5_moe": {
        "text_config": {k: v for k, v in _USUAL.items() if k not in ("intermediate_size", "tie_word_embeddings")} | {
            "model_type": "qwen3_5_moe_text", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
            "shared_expert_intermediate_size": 24, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 8,
            "linear_num_key_heads": 4, "linear_num_value_heads": 6, "linear_value_head_dim": 10,
            "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
        },
        "tie_word_embeddings": True,
    },
    "nemotron_h": _USUAL | {
        "num_hidden_layers": 7, "hybrid_override_pattern": "M-M*-M-", "attention_head_dim": 16, "mamba_num_heads": 6,
        "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 10, "conv_kernel": 4, "use_conv_bias": True,
    },
}  # fmt: skip
CONFIGS = {family: {"model_type": family, **config} for family, config in CONFIGS.items()}
