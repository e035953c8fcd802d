"""Random weights of an Architecture, laid out for few, large matrix products.

Timing needs shapes and types, not values; but never zeros, which some devices multiply faster (13 % on an
H200, spec/step-time). Each projection is normal with variance 1/fan_in, so that activations stay near 1
through any number of layers and two ways to compute the same logits can be compared.
Q, K and V are one matrix, gate and up are one matrix: what serving engines do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch

from calibration.architecture import Architecture


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; matrices are [outputs, inputs] as torch.nn.functional.linear wants them."""

    attention_norm: torch.Tensor  # [hidden]
    qkv: torch.Tensor  # [(heads + 2 kv_heads) head_dim, hidden]
    output: torch.Tensor  # [hidden, heads head_dim]
    mlp_norm: torch.Tensor  # [hidden]
    gate_up: torch.Tensor  # [2 intermediate, hidden]
    down: torch.Tensor  # [hidden, intermediate]
    qkv_bias: torch.Tensor | None
    output_bias: torch.Tensor | None
    gate_up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None
    query_norm: torch.Tensor | None  # [head_dim]
    key_norm: torch.Tensor | None  # [head_dim]


@dataclass(frozen=True, slots=True)
class ModelWeights:
    embedding: torch.Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor  # [hidden]
    head: torch.Tensor  # [vocab, hidden]; the embedding itself when tied

    def tensors(self) -> Iterator[torch.Tensor]:
        """Every stored tensor once: a tied head is the embedding and is not counted again."""
        yield self.embedding
        yield self.final_norm
        if self.head is not self.embedding:
            yield self.head
        for layer in self.layers:
            for field in fields(layer):
                tensor = getattr(layer, field.name)
                if tensor is not None:
                    yield tensor

    @property
    def parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors())


def random_weights(
    architecture: Architecture, *, dtype: torch.dtype, device: torch.device, seed: int
) -> ModelWeights:
    """Weights for the architecture, the same for the same seed, device kind and dtype."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*shape: int, spread: float, mean: float = 0.0) -> torch.Tensor:
        values = torch.empty(shape, dtype=dtype, device=device)
        return values.normal_(mean, spread, generator=generator)

    def matrix(outputs: int, inputs: int) -> torch.Tensor:
        return normal(outputs, inputs, spread=inputs**-0.5)

    def scale(size: int) -> torch.Tensor:
        return normal(size, spread=0.05, mean=1.0)

    def bias(size: int, wanted: bool) -> torch.Tensor | None:
        return normal(size, spread=0.05) if wanted else None

    a = architecture
    layers = tuple(
        LayerWeights(
            attention_norm=scale(a.hidden_size),
            qkv=matrix(a.query_size + 2 * a.kv_size, a.hidden_size),
            output=matrix(a.hidden_size, a.query_size),
            mlp_norm=scale(a.hidden_size),
            gate_up=matrix(2 * a.intermediate_size, a.hidden_size),
            down=matrix(a.hidden_size, a.intermediate_size),
            qkv_bias=bias(a.query_size + 2 * a.kv_size, a.qkv_bias),
            output_bias=bias(a.hidden_size, a.output_bias),
            gate_up_bias=bias(2 * a.intermediate_size, a.mlp_bias),
            down_bias=bias(a.hidden_size, a.mlp_bias),
            query_norm=scale(a.head_dim) if a.qk_norm else None,
            key_norm=scale(a.head_dim) if a.qk_norm else None,
        )
        for _ in range(a.layers)
    )
    embedding = normal(
        a.vocab_size, a.hidden_size, spread=1.0 if not a.tie_word_embeddings else a.hidden_size**-0.5
    )
    head = embedding if a.tie_word_embeddings else matrix(a.vocab_size, a.hidden_size)
    return ModelWeights(embedding, layers, scale(a.hidden_size), head)
