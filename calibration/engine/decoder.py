"""One forward of a decoder over all tokens of a step: decode rows and prefill chunks together.

Every matrix product sees all n tokens at once, whatever rows they belong to: that is what makes a mixed step
cheaper than its parts (weights are read once) and dearer for the decodes in it (they wait for the chunk).
Logits are computed for sampled rows only. Layout of a layer: x += W_o attention(norm(x)), x += MLP(norm(x)),
with RMSNorm, rotary positions in the half-split form of Llama's published code, and a gated feed-forward or
experts. Gemma 2 norms each half's result too, scales its embedding and caps its logits; its norms multiply by
1 + weight, which the stored scale includes.
A layer is cut in three, before, in and after attention, because on a GPU what lies between two attentions is
replayed as one graph (graphs.py). What is computed how: an `Operations` (torch_operations.py, kernels/).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F

from calibration.architecture import Architecture
from calibration.engine.kv_cache import PagedKVCache
from calibration.engine.model_weights import GatedWeights, GroupedWeights, LatentWeights, ModelWeights
from calibration.engine.operations import Operations, Tokens
from calibration.engine.products import linear
from calibration.engine.shards import WHOLE, Shard
from calibration.engine.torch_operations import TorchOperations


class Decoder:
    """An architecture with its weights and its KV pool, on one device: one rank of `shard.size`."""

    def __init__(
        self,
        architecture: Architecture,
        weights: ModelWeights,
        cache: PagedKVCache,
        max_positions: int,
        *,
        operations: Operations | None = None,
        shard: Shard = WHOLE,
    ) -> None:
        """`max_positions`: how many positions the rotary table covers; a step beyond them raises IndexError."""
        self.architecture = a = architecture
        self.weights = weights
        self.cache = cache
        self.shard = shard
        self.operations = operations or TorchOperations(cache)
        self.max_positions = max_positions
        self._cos, self._sin = _rotary_tables(a, max_positions, weights.embedding)
        self.attention_range: Callable[[], AbstractContextManager[object]] = nullcontext  # profiling names it
        self._gelu = a.model_type == "gemma2"
        self._embedding_scale = a.hidden_size**0.5 if a.model_type == "gemma2" else 1.0
        self._scale = (a.capping.query_scalar if a.capping else float(a.head_dim)) ** -0.5
        self._cap = a.capping.attention_cap if a.capping else 0.0

    @property
    def windows(self) -> frozenset[int | None]:
        """The kinds of window that layers have: what a plan must prepare for."""
        return frozenset(self.architecture.window_at(index) for index in range(self.architecture.layers))

    @property
    def attended_width(self) -> int:
        """Width of attention's result on this rank: heads * value size."""
        a = self.architecture
        return self.shard.heads(a) * (a.latent.value_size if a.latent else a.head_dim)

    @torch.inference_mode()
    def logits(self, plan: Any) -> torch.Tensor:
        """Runs a step: writes the K and V of its tokens and returns logits [S, vocab] of its sampled rows."""
        return self.shard.gathered(self.head(self.layers(plan), plan.sampled), self.architecture.vocab_size)

    @torch.inference_mode()
    def step(self, plan: Any) -> torch.Tensor:
        """Runs a step and picks the likeliest token of each sampled row: int64 [S]."""
        return self.sample(self.layers(plan), plan.sampled)

    def sample(self, x: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
        return self.shard.likeliest(self.head(x, sampled), self.architecture.vocab_size)

    def layers(self, plan: Any) -> torch.Tensor:
        """All layers over a step's tokens: [n, hidden]."""
        tokens = Tokens(plan.token_ids, plan.positions, plan.slots)
        x, normed = self.begin(tokens.ids)
        for index in range(len(self.weights.layers)):
            queries = self.project(index, normed, tokens)
            x, normed = self.finish(index, x, self.attend(index, queries, plan))
        return x

    def begin(self, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The embedded tokens, and the same normed for the first layer."""
        x = F.embedding(token_ids, self.weights.embedding)
        if self._embedding_scale != 1.0:
            x = x * self._embedding_scale
        return x, self._norm(x, self.weights.layers[0].attention_norm)

    def project(self, index: int, normed: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """Queries [n, heads, head_dim] with their positions; keys and values go into the pool."""
        a, weights = self.architecture, self.weights.layers[index].attention
        cos, sin = self._cos, self._sin
        if isinstance(weights, GroupedWeights):
            qkv = linear(normed, weights.qkv, weights.qkv_bias)
            return self.operations.store(index, qkv, a.head_dim, weights, cos, sin, tokens, a.rms_norm_eps)
        latent = a.latent
        assert latent is not None  # noqa: S101 - LatentWeights are drawn for no other model
        query_latent, entry = linear(normed, weights.down, weights.down_bias).split(
            [latent.query_rank, latent.elements], dim=-1
        )
        source = normed if weights.query_norm is None else self._norm(query_latent, weights.query_norm)
        queries = linear(source, weights.query_up, None).view(len(normed), -1, a.head_dim)
        return self.operations.store_latent(index, queries, entry, weights, cos, sin, tokens, a.rms_norm_eps)

    def attend(self, index: int, queries: torch.Tensor, plan: Any) -> torch.Tensor:
        """Attention over the pool: [n, heads * value size]."""
        a, weights = self.architecture, self.weights.layers[index].attention
        window = a.window_at(index)
        with self.attention_range():
            return self._attended(queries, plan, index, weights, window)

    def _attended(
        self,
        queries: torch.Tensor,
        plan: Any,
        index: int,
        weights: GroupedWeights | LatentWeights,
        window: int | None,
    ) -> torch.Tensor:
        a = self.architecture
        if isinstance(weights, LatentWeights):
            assert a.latent is not None  # noqa: S101
            attended = self.operations.attend_latent(index, queries, plan, weights, a.latent)
        else:
            attended = self.operations.attend(index, queries, plan, window, self._scale, self._cap)
        return attended.flatten(1)

    def finish(
        self, index: int, x: torch.Tensor, attended: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The rest of a layer: (its output, the same normed for the next layer's attention)."""
        layers, eps = self.weights.layers, self.architecture.rms_norm_eps
        layer = layers[index]
        y = self.shard.total(linear(attended, layer.attention.output, layer.attention.output_bias))
        if layer.attention_post_norm is not None:
            y = self._norm(y, layer.attention_post_norm)
        x, normed = self.operations.add_norm(x, y, layer.mlp_norm, eps)
        y = self.shard.total(self._feed_forward(index, normed))
        if layer.mlp_post_norm is not None:
            y = self._norm(y, layer.mlp_post_norm)
        last = index + 1 == len(layers)
        following = self.weights.final_norm if last else layers[index + 1].attention_norm
        if last:  # only sampled rows are normed
            return x + y, y
        return self.operations.add_norm(x, y, following, eps)

    def head(self, x: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
        """Logits of the sampled rows, of this rank's share of the vocabulary."""
        normed = self._norm(x.index_select(0, sampled), self.weights.final_norm)
        logits = linear(normed, self.weights.head, None)
        if self.architecture.capping is not None:
            cap = self.architecture.capping.logit_cap
            logits = (logits / cap).tanh_().mul_(cap)
        return logits

    def _feed_forward(self, index: int, x: torch.Tensor) -> torch.Tensor:
        weights, experts = self.weights.layers[index].mlp, self.architecture.experts_at(index)
        if isinstance(weights, GatedWeights):
            return self._gated(x, weights)
        assert experts is not None  # noqa: S101 - MixtureWeights are drawn for no other layer
        result = self.operations.experts(x, weights, experts)
        return result if weights.shared is None else result + self._gated(x, weights.shared)

    def _gated(self, x: torch.Tensor, weights: GatedWeights) -> torch.Tensor:
        inner = self.operations.gate(linear(x, weights.gate_up, weights.gate_up_bias), self._gelu)
        return linear(inner, weights.down, weights.down_bias)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.operations.norm(x, weight, self.architecture.rms_norm_eps)


def _rotary_tables(
    architecture: Architecture, positions: int, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [positions, 1, width / 2], computed in float64 and stored in the model's type; `width` is the
    head's, or of latent attention its rotary part's."""
    a = architecture
    half = (a.latent.rotary_size if a.latent else a.head_dim) // 2
    frequencies = a.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies).unsqueeze(1)
    return angles.cos().to(like), angles.sin().to(like)
