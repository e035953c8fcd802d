"""The families by `model_type`, and why the engine does not run some of them.

DENSE ones have the layers of Llama (RMSNorm, rotary embedding, grouped-query attention, SwiGLU), so that their
weights follow from the dimensions; those of COUNTED ones are counted part by part when the file is read.
"""

from __future__ import annotations

DENSE = ("llama", "mistral", "qwen2", "qwen3", "phi3", "baichuan", "qwen", "chatglm", "qwen3_vl_text")

COUNTED = (
    "gpt2", "gpt_bigcode", "opt", "gpt_neox", "falcon", "mpt", "gemma2", "mixtral", "qwen3_moe", "minimax_m2",
    "gpt_oss", "llama4_text", "deepseek_v3", "kimi_k2", "glm_moe_dsa", "qwen3_5_moe_text", "nemotron_h",
)  # fmt: skip

_OTHER_LAYERS = "the engine runs RMSNorm, rotary embedding and gated feed-forwards only, and it has"

#: Why a family can be described and planned for from imported step times, but not measured here.
NOT_RUN: dict[str, str] = {
    "baichuan": "its output head is normalised, which the engine does not do",
    "qwen": "it scales attention with the length of the context, which the engine does not do",
    "chatglm": "it turns half of each head only, which the engine does not do",
    "qwen3_vl_text": "it is the text half of a model for images, with positions on three axes",
    "gpt2": f"{_OTHER_LAYERS} LayerNorm, learned positions and a plain feed-forward",
    "gpt_bigcode": f"{_OTHER_LAYERS} LayerNorm, learned positions and a plain feed-forward",
    "opt": f"{_OTHER_LAYERS} LayerNorm, learned positions and a plain feed-forward",
    "gpt_neox": f"{_OTHER_LAYERS} LayerNorm, partly turned heads and a plain feed-forward",
    "falcon": f"{_OTHER_LAYERS} LayerNorm and a plain feed-forward beside its attention",
    "mpt": f"{_OTHER_LAYERS} LayerNorm, position biases and a plain feed-forward",
    "minimax_m2": "its norms of queries and keys span all heads, which the engine does not do",
    "gpt_oss": "its attention has sinks and its experts a clamped gate, which the engine does not have",
    "llama4_text": "its attention starts afresh in every chunk, which the engine does not do",
    "glm_moe_dsa": "its attention picks tokens by an indexer, which the engine does not have",
    "qwen3_5_moe_text": "the engine has no recurrent layers",
    "nemotron_h": "the engine has no recurrent layers",
}

SUPPORTED_MODEL_TYPES = (*DENSE, *COUNTED)

#: Models for text and images: `model_type` of the file, and that of its `text_config`, which is what we describe.
WRAPPERS: dict[str, str] = {
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "llama4": "llama4_text",
}
