"""Random weights for an Architecture: timing needs shapes and types, not values.

But never zeros, which some devices multiply faster (13 % on an H200). Each projection is normal
with variance 1/fan_in, so that activations stay near 1 through any number of layers and two ways to compute the
same logits can be compared. A rank of several draws every tensor whole and keeps its share: the ranks' shares are
together the model that one process would have drawn.
"""

from __future__ import annotations

import torch

from calibration.architecture import Architecture, Experts, Latent
from calibration.engine.model_weights import (
    GatedWeights,
    GroupedWeights,
    LatentWeights,
    LayerWeights,
    MixtureWeights,
    ModelWeights,
    in_eight_bits,
)
from calibration.engine.shards import WHOLE, Shard


class _Drawer:
    """Draws tensors in a fixed order and keeps this rank's share of them."""

    def __init__(self, dtype: torch.dtype, device: torch.device, seed: int, shard: Shard) -> None:
        self._dtype, self._device, self.shard = dtype, device, shard
        self._generator = torch.Generator(device=device).manual_seed(seed)

    def normal(self, *shape: int, spread: float, mean: float = 0.0) -> torch.Tensor:
        values = torch.empty(shape, dtype=self._dtype, device=self._device)
        return values.normal_(mean, spread, generator=self._generator)

    def matrix(self, outputs: int, inputs: int) -> torch.Tensor:
        return self.normal(outputs, inputs, spread=inputs**-0.5)

    def scale(self, size: int) -> torch.Tensor:
        return self.normal(size, spread=0.05, mean=1.0)

    def bias(self, size: int, wanted: bool) -> torch.Tensor | None:
        return self.normal(size, spread=0.05) if wanted else None

    def halves(self, whole: torch.Tensor, width: int, dim: int = 0) -> torch.Tensor:
        """This rank's share of gate and of up, which lie one after the other along `dim`."""
        if self.shard.size == 1:
            return whole
        own = self.shard.part(width)
        kept = [half.narrow(dim, own.start, own.stop - own.start) for half in whole.split(width, dim)]
        return torch.cat(kept, dim=dim)

    def columns(self, whole: torch.Tensor, count: int, dim: int) -> torch.Tensor:
        if self.shard.size == 1:
            return whole
        own = self.shard.part(count)
        return whole.narrow(dim, own.start, own.stop - own.start).contiguous()

    def once(self, bias: torch.Tensor | None) -> torch.Tensor | None:
        """A bias after a sum over ranks is added by the first one alone; all draw it."""
        return bias if self.shard.rank == 0 else None


def random_weights(
    architecture: Architecture,
    *,
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
    shard: Shard = WHOLE,
    eight_bits: bool = False,
) -> ModelWeights:
    """Weights for the architecture, the same for the same seed, device kind and dtype. `eight_bits`: projections and
    experts, stored so layer by layer: never more than one is there in `dtype`."""
    a, draw = architecture, _Drawer(dtype, device, seed, shard)
    drawn = (_layer(a, index, draw) for index in range(a.layers))
    layers = tuple(in_eight_bits(layer) if eight_bits else layer for layer in drawn)
    embedding = draw.normal(
        a.vocab_size, a.hidden_size, spread=1.0 if not a.tie_word_embeddings else a.hidden_size**-0.5
    )
    head = embedding if a.tie_word_embeddings else draw.matrix(a.vocab_size, a.hidden_size)
    if shard.size > 1:
        own = shard.vocabulary(a.vocab_size)
        head = head[own.start : own.stop].contiguous()
    return ModelWeights(embedding, layers, draw.scale(a.hidden_size), head, a.tie_word_embeddings)


def _layer(a: Architecture, index: int, draw: _Drawer) -> LayerWeights:
    experts = a.experts_at(index)
    sandwich = a.model_type == "gemma2"
    return LayerWeights(
        attention_norm=draw.scale(a.hidden_size),
        attention=_latent(a, a.latent, draw) if a.latent else _grouped(a, draw),
        mlp_norm=draw.scale(a.hidden_size),
        mlp=_mixture(a, experts, draw)
        if experts
        else _gated(a.hidden_size, a.intermediate_size, draw, a.mlp_bias),
        attention_post_norm=draw.scale(a.hidden_size) if sandwich else None,
        mlp_post_norm=draw.scale(a.hidden_size) if sandwich else None,
    )


def _grouped(a: Architecture, draw: _Drawer) -> GroupedWeights:
    qkv = draw.matrix(a.query_size + 2 * a.kv_size, a.hidden_size)
    output = draw.matrix(a.hidden_size, a.query_size)
    qkv_bias = draw.bias(a.query_size + 2 * a.kv_size, a.qkv_bias)
    return GroupedWeights(
        qkv=_own_heads(a, qkv, draw.shard),
        output=draw.columns(output, a.query_size, 1),
        qkv_bias=None if qkv_bias is None else _own_heads(a, qkv_bias, draw.shard),
        output_bias=draw.once(draw.bias(a.hidden_size, a.output_bias)),
        query_norm=draw.scale(a.head_dim) if a.qk_norm else None,
        key_norm=draw.scale(a.head_dim) if a.qk_norm else None,
    )


def _own_heads(a: Architecture, qkv: torch.Tensor, shard: Shard) -> torch.Tensor:
    """A rank's heads of the fused projection or its bias."""
    if shard.size == 1:
        return qkv
    queries, keys, values = qkv.split([a.query_size, a.kv_size, a.kv_size])
    own, shared = shard.part(a.query_size), shard.kv_heads(a)
    kept = slice(shared.start * a.head_dim, shared.stop * a.head_dim)
    return torch.cat([queries[own], keys[kept], values[kept]])


def _latent(a: Architecture, latent: Latent, draw: _Drawer) -> LatentWeights:
    query_inputs = latent.query_rank or a.hidden_size
    query_size = a.heads * (latent.nope_size + latent.rotary_size)
    down_size = latent.query_rank + latent.rank + latent.rotary_size
    own = draw.shard.part(a.heads)
    return LatentWeights(
        down=draw.matrix(down_size, a.hidden_size),
        query_up=draw.columns(draw.matrix(query_size, query_inputs), query_size, 0),
        key_up=draw.normal(a.heads, latent.nope_size, latent.rank, spread=latent.rank**-0.5)[
            own
        ].contiguous(),
        value_up=draw.normal(a.heads, latent.value_size, latent.rank, spread=latent.rank**-0.5)[
            own
        ].contiguous(),
        output=draw.columns(
            draw.matrix(a.hidden_size, a.heads * latent.value_size), a.heads * latent.value_size, 1
        ),
        latent_norm=draw.scale(latent.rank),
        query_norm=draw.scale(latent.query_rank) if latent.query_rank else None,
        down_bias=draw.bias(down_size, a.qkv_bias),
        output_bias=draw.once(draw.bias(a.hidden_size, a.output_bias)),
    )


def _gated(hidden: int, inner: int, draw: _Drawer, bias: bool = False) -> GatedWeights:
    gate_up, down = draw.matrix(2 * inner, hidden), draw.matrix(hidden, inner)
    gate_up_bias = draw.bias(2 * inner, bias)
    return GatedWeights(
        gate_up=draw.halves(gate_up, inner),
        down=draw.columns(down, inner, 1),
        gate_up_bias=None if gate_up_bias is None else draw.halves(gate_up_bias, inner),
        down_bias=draw.once(draw.bias(hidden, bias)),
    )


def _mixture(a: Architecture, experts: Experts, draw: _Drawer) -> MixtureWeights:
    hidden, inner = a.hidden_size, experts.intermediate_size
    gate_up = draw.normal(experts.experts, 2 * inner, hidden, spread=hidden**-0.5)
    down = draw.normal(experts.experts, hidden, inner, spread=inner**-0.5)
    shared = experts.shared_intermediate_size
    return MixtureWeights(
        router=draw.matrix(experts.experts, hidden),
        gate_up=draw.halves(gate_up, inner, 1),
        down=draw.columns(down, inner, 2),
        # The families with a latent cache have one; no other that is run here does.
        correction=draw.normal(experts.experts, spread=0.05) if a.latent is not None else None,
        shared=_gated(hidden, shared, draw) if shared else None,
    )
