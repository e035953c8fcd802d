"""Weights of an Architecture, laid out for few, large matrix products (weights.py draws them).

Q, K and V are one matrix, gate and up are one matrix, the experts of a layer are one tensor: what serving engines
do. Matrices are [outputs, inputs], as torch.nn.functional.linear wants them. Under tensor parallelism each rank
holds its share of heads, columns, experts' columns and vocabulary (shards.py), and every norm whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from calibration.engine.products import Fp8Matrix, quantised

Matrix = torch.Tensor | Fp8Matrix


@dataclass(frozen=True, slots=True)
class GroupedWeights:
    """Attention whose query heads share KV heads."""

    qkv: Matrix  # [(heads + 2 kv_heads) head_dim, hidden]
    output: Matrix  # [hidden, heads head_dim]
    qkv_bias: torch.Tensor | None = None
    output_bias: torch.Tensor | None = None
    query_norm: torch.Tensor | None = None  # [head_dim]
    key_norm: torch.Tensor | None = None  # [head_dim]


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """Multi-head latent attention. `down` makes the queries' latent (where there is one), the keys' latent and
    the rotary key; `key_up` and `value_up` are the two halves of DeepSeek's kv_b, apart: absorbed decoding
    multiplies queries with the first and results with the second."""

    down: Matrix  # [query_rank + rank + rotary, hidden]
    query_up: Matrix  # [heads (nope + rotary), query_rank or hidden]
    key_up: torch.Tensor  # [heads, nope, rank]
    value_up: torch.Tensor  # [heads, value, rank]
    output: Matrix  # [hidden, heads value]
    latent_norm: torch.Tensor  # [rank]
    query_norm: torch.Tensor | None = None  # [query_rank]
    down_bias: torch.Tensor | None = None
    output_bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class GatedWeights:
    """A feed-forward: down(activation(gate(x)) * up(x))."""

    gate_up: Matrix  # [2 intermediate, hidden]
    down: Matrix  # [hidden, intermediate]
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class MixtureWeights:
    """Experts and their router; `correction` is added to scores when experts are picked (DeepSeek-V3)."""

    router: torch.Tensor  # [experts, hidden]
    gate_up: Matrix  # [experts, 2 intermediate, hidden]
    down: Matrix  # [experts, hidden, intermediate]
    correction: torch.Tensor | None = None  # [experts]
    shared: GatedWeights | None = None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. The norms after attention and feed-forward are Gemma 2's."""

    attention_norm: torch.Tensor  # [hidden]
    attention: GroupedWeights | LatentWeights
    mlp_norm: torch.Tensor  # [hidden]
    mlp: GatedWeights | MixtureWeights
    attention_post_norm: torch.Tensor | None = None  # [hidden]
    mlp_post_norm: torch.Tensor | None = None  # [hidden]


@dataclass(frozen=True, slots=True)
class ModelWeights:
    embedding: torch.Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor  # [hidden]
    head: torch.Tensor  # [vocab (a rank's share), hidden]; the embedding itself when tied and not shared out
    tied: bool = False  # the head's values are the embedding's

    def tensors(self) -> Iterator[torch.Tensor]:
        """Every stored tensor once: a tied head is the embedding and is not counted again."""
        yield self.embedding
        yield self.final_norm
        if not self.tied:
            yield self.head
        for layer in self.layers:
            yield from _tensors(layer)

    @property
    def parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors())


def in_eight_bits(layer: LayerWeights) -> LayerWeights:
    """The same layer with projections and experts in 8 bits (products.py); norms and the router stay as they are."""

    def stored(part: Any) -> Any:
        names = {"qkv", "output", "down", "query_up", "gate_up"}
        eight = {f.name: quantised(getattr(part, f.name)) for f in fields(part) if f.name in names}
        if isinstance(part, MixtureWeights) and part.shared is not None:
            eight["shared"] = stored(part.shared)
        return replace(part, **eight)

    return replace(layer, attention=stored(layer.attention), mlp=stored(layer.mlp))


def _tensors(part: object) -> Iterator[torch.Tensor]:
    for field in fields(part):  # type: ignore[arg-type]
        value = getattr(part, field.name)
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, Fp8Matrix):
            yield value.values
        elif value is not None:
            yield from _tensors(value)
