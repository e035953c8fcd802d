"""One rank of several: `rank_logits.py RANK RANKS MEETING`. Runs each of MODELS over a prompt, chunks and decodes and
prints one JSON line a model: logits of the sampled rows, tokens picked, parameters and cache bytes held."""

import json
import sys

import numpy as np
import torch

from calibration.architecture import Architecture, parse_config
from calibration.engine.attention import plan
from calibration.engine.batch import random_batch
from calibration.engine.decoder import Decoder
from calibration.engine.kv_cache import allocate
from calibration.engine.ranks import join, leave
from calibration.engine.weights import random_weights

SIZES = {
    "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 96, "vocab_size": 129, "max_position_embeddings": 512,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 24, "q_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
    "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 28,
    "first_k_dense_replace": 1, "num_key_value_heads": 4,
}  # fmt: skip
MODELS: dict[str, Architecture] = {
    name: parse_config(SIZES | config)
    for name, config in {
        "biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
        "one kv head": {"model_type": "qwen3", "num_key_value_heads": 1, "tie_word_embeddings": True},
        "gemma2": {"model_type": "gemma2", "sliding_window": 13},
        "mixtral": {"model_type": "mixtral", "num_local_experts": 6, "num_experts_per_tok": 2},
        "deepseek": {"model_type": "deepseek_v3", **LATENT},
    }.items()
}


def main(rank: int, ranks: int, meeting: str) -> None:
    cpu = torch.device("cpu")
    torch.set_num_threads(1)
    shard = None
    for name, model in MODELS.items():
        shard = shard or join(model, rank, ranks, "cpu", meeting)
        options = {"dtype": torch.float32, "device": cpu, "seed": 4, "shard": shard}
        cache = allocate(model, 1_024, **options)
        decoder = Decoder(model, random_weights(model, **options), cache, 256, shard=shard)
        for (
            layer
        ) in cache.layers:  # every rank's cache is its part of one cache: the same numbers for the same head
            layer.fill_(0.25)
        logits, picked = [], []
        for seed, (decodes, chunks) in enumerate([([], [(40, 0, True)]), ([30, 9, 70], [(20, 15, True)])]):
            batch = random_batch(decodes, chunks, vocab_size=129, blocks=64, block_tokens=16,
                                 rng=np.random.default_rng(seed))  # fmt: skip
            made = plan(batch, 16, torch.float32, cpu, decoder.windows)
            logits += decoder.logits(made).tolist()
            picked += decoder.step(made).tolist()
        held = sum(layer.numel() for layer in cache.layers) // cache.tokens
        print(json.dumps({"model": name, "logits": logits, "picked": picked, "kv_elements": held,
                          "parameters": decoder.weights.parameters}), flush=True)  # fmt: skip
    leave()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
