"""The families by `model_type`, and why the engine does not run some of them.

DENSE ones have the layers of Llama (RMSNorm, rotary embedding, grouped-query attention, SwiGLU), so that their
weights follow from the dimensions; those of COUNTED ones are counted part by part when the file is read.
"""

from __future__ import annotations

DENSE = ("llama", "mistral", "qwen2", "qwen3", "phi3", "baichuan", "qwen", "chatglm", "qwen3_vl_text")

_EXPERTS = "the engine runs dense layers only, and its layers are mixtures of experts"
_OTHER_LAYERS = "the engine runs RMSNorm, rotary embedding and SwiGLU only, and it has"

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
    "gemma2": "it has four norms a layer, a GELU gate and capped logits, which the engine does not have",
    "mixtral": _EXPERTS,
    "qwen3_moe": _EXPERTS,
    "minimax_m2": _EXPERTS,
    "gpt_oss": _EXPERTS,
    "llama4_text": _EXPERTS,
    "deepseek_v3": "the engine caches keys and values, and it caches a latent (and has mixtures of experts)",
    "kimi_k2": "the engine caches keys and values, and it caches a latent (and has mixtures of experts)",
    "glm_moe_dsa": "the engine caches keys and values, and it caches a latent (and has mixtures of experts)",
    "qwen3_5_moe_text": "the engine has no recurrent layers and no mixtures of experts",
    "nemotron_h": "the engine has no recurrent layers",
}

COUNTED = tuple(kind for kind in NOT_RUN if kind not in DENSE)
SUPPORTED_MODEL_TYPES = (*DENSE, *COUNTED)

#: Models for text and images: `model_type` of the file, and that of its `text_config`, which is what we describe.
WRAPPERS: dict[str, str] = {
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "llama4": "llama4_text",
}
