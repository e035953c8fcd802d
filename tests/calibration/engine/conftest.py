"""Tiny models: small enough for a forward of a millisecond, with every feature that changes the arithmetic."""

import os

import numpy as np
import pytest
import torch

from calibration.architecture import Architecture, parse_config
from calibration.engine.attention import plan
from calibration.engine.batch import StepBatch, blocks_for
from calibration.engine.decoder import Decoder
from calibration.engine.kv_cache import allocate
from calibration.engine.weights import random_weights

BLOCK_TOKENS = 16
os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported: kernels then run on the CPU


def tiny(**changes) -> Architecture:
    fields = {
        "name": "tiny",
        "model_type": "llama",
        "layers": 2,
        "hidden_size": 64,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "vocab_size": 128,
        "tie_word_embeddings": True,
    }
    return Architecture(**(fields | changes))


LATENT = {
    "kv_lora_rank": 24, "q_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
    "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 28,
    "first_k_dense_replace": 1, "num_key_value_heads": 4,
}  # fmt: skip


def parsed(family, **changes) -> Architecture:
    """A tiny model of the family, by way of its config.json."""
    usual = {
        "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "intermediate_size": 96, "vocab_size": 128, "max_position_embeddings": 512,
    }  # fmt: skip
    return parse_config({"model_type": family, **usual, **changes})


VARIANTS = {
    "llama": tiny(),
    "llama-biases": tiny(qkv_bias=True, output_bias=True, mlp_bias=True),
    "qwen2": tiny(model_type="qwen2", qkv_bias=True, tie_word_embeddings=False),
    "qwen3": tiny(model_type="qwen3", qk_norm=True, head_dim=32),
    "mistral": tiny(model_type="mistral", tie_word_embeddings=False, kv_heads=1, rope_theta=1e6),
    "all-kv-heads": tiny(kv_heads=4),
    "mistral-window": tiny(model_type="mistral", sliding_window_tokens=17, windowed_layers=2),
    "qwen2-window": tiny(model_type="qwen2", qkv_bias=True, sliding_window_tokens=9, windowed_layers=1),
    "gemma2": parsed(
        "gemma2",
        num_hidden_layers=3,
        sliding_window=13,
        query_pre_attn_scalar=24,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=1.5,
    ),
    "mixtral": parsed("mixtral", num_local_experts=6, num_experts_per_tok=2),
    "qwen3-moe": parsed(
        "qwen3_moe",
        num_experts=7,
        num_experts_per_tok=3,
        moe_intermediate_size=40,
        mlp_only_layers=[0],
        num_hidden_layers=3,
    ),
    "qwen3-moe-normed": parsed(
        "qwen3_moe", num_experts=7, num_experts_per_tok=3, moe_intermediate_size=40, norm_topk_prob=True
    ),
    "deepseek": parsed("deepseek_v3", **LATENT, n_group=4, topk_group=2, routed_scaling_factor=2.5),
    "kimi": parsed("kimi_k2", **LATENT | {"q_lora_rank": None}, attention_bias=True, num_hidden_layers=3),
}


@pytest.fixture(params=sorted(VARIANTS))
def architecture(request) -> Architecture:
    return VARIANTS[request.param]


class Engine:
    """A decoder over a pool of its own, driven by sequences instead of slots. Poisons what it hands out not."""

    def __init__(self, architecture, dtype=torch.float32, blocks=64, shuffle=None, poison=False):
        device = torch.device("cpu")
        weights = random_weights(architecture, dtype=dtype, device=device, seed=7)
        self.cache = allocate(architecture, blocks * BLOCK_TOKENS, dtype=dtype, device=device, seed=8)
        if poison:
            for layer in self.cache.layers:
                layer.fill_(float("nan"))
        self.decoder = Decoder(architecture, weights, self.cache, max_positions=512)
        self._dtype = dtype
        order = np.arange(blocks, dtype=np.int64)
        self._free = list(order if shuffle is None else np.random.default_rng(shuffle).permutation(order))
        self._tables: dict[str, list[int]] = {}
        self._cached: dict[str, int] = {}

    def step(self, rows, sampled=None) -> torch.Tensor:
        """rows: (sequence name, new token ids) each; logits of the last token of each sampled row."""
        for name, tokens in rows:
            table = self._tables.setdefault(name, [])
            needed = blocks_for(self._cached.get(name, 0) + len(tokens), BLOCK_TOKENS)
            while len(table) < needed:
                table.append(self._free.pop(0))
        batch = StepBatch(
            token_ids=np.concatenate([np.asarray(tokens, dtype=np.int64) for _, tokens in rows]),
            query_tokens=np.array([len(tokens) for _, tokens in rows], dtype=np.int64),
            cached_tokens=np.array([self._cached.get(name, 0) for name, _ in rows], dtype=np.int64),
            block_tables=tuple(np.array(self._tables[name], dtype=np.int64) for name, _ in rows),
            sampled=np.ones(len(rows), dtype=np.bool_) if sampled is None else np.array(sampled),
        )
        for name, tokens in rows:
            self._cached[name] = self._cached.get(name, 0) + len(tokens)
        windows = self.decoder.windows
        return self.decoder.logits(plan(batch, BLOCK_TOKENS, self._dtype, torch.device("cpu"), windows))


@pytest.fixture
def make_engine():
    return Engine


@pytest.fixture
def tokens():
    """tokens(count, seed) -> token ids of the tiny vocabulary."""
    return lambda count, seed=0: np.random.default_rng(seed).integers(0, 128, size=count)
