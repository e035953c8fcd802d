"""One forward of a dense decoder over all tokens of a step: decode rows and prefill chunks together.

Every matrix product sees all n tokens at once, whatever rows they belong to: that is what makes a mixed step
cheaper than its parts (weights are read once) and dearer for the decodes in it (they wait for the chunk).
Logits are computed for sampled rows only. Layout of a layer: x += W_o attention(norm(x)), x += MLP(norm(x)),
with RMSNorm, rotary positions in the half-split form of Llama's published code, and SwiGLU.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from calibration.architecture import Architecture
from calibration.engine.attention import StepPlan, attend
from calibration.engine.kv_cache import PagedKVCache
from calibration.engine.weights import LayerWeights, ModelWeights


class Decoder:
    """An architecture with its weights and its KV pool, on one device."""

    def __init__(
        self, architecture: Architecture, weights: ModelWeights, cache: PagedKVCache, max_positions: int
    ) -> None:
        """`max_positions`: how many positions the rotary table covers; a step beyond them raises IndexError."""
        self.architecture = architecture
        self.weights = weights
        self.cache = cache
        reference = weights.embedding
        self._cos, self._sin = _rotary_tables(architecture, max_positions, reference)

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> torch.Tensor:
        """Runs a step: writes the K and V of its tokens and returns logits [S, vocab] of its sampled rows."""
        weights = self.weights
        x = F.embedding(plan.token_ids, weights.embedding)
        cos, sin = self._cos[plan.positions], self._sin[plan.positions]
        eps = self.architecture.rms_norm_eps
        for index, layer in enumerate(weights.layers):
            x = x + self._attention(index, layer, _norm(x, layer.attention_norm, eps), plan, cos, sin)
            x = x + _mlp(layer, _norm(x, layer.mlp_norm, eps))
        sampled = x.index_select(0, plan.sampled)
        return F.linear(_norm(sampled, weights.final_norm, eps), weights.head)

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> torch.Tensor:
        """Runs a step and picks the likeliest token of each sampled row: int64 [S]."""
        return self.logits(plan).argmax(dim=-1)

    def _attention(
        self,
        index: int,
        layer: LayerWeights,
        x: torch.Tensor,
        plan: StepPlan,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> torch.Tensor:
        a = self.architecture
        qkv = F.linear(x, layer.qkv, layer.qkv_bias).view(x.shape[0], a.heads + 2 * a.kv_heads, a.head_dim)
        turned, values = qkv[:, : a.heads + a.kv_heads], qkv[:, a.heads + a.kv_heads :]
        if layer.query_norm is not None and layer.key_norm is not None:
            queries = _norm(turned[:, : a.heads], layer.query_norm, a.rms_norm_eps)
            turned = torch.cat((queries, _norm(turned[:, a.heads :], layer.key_norm, a.rms_norm_eps)), dim=1)
        turned = _rotate(turned, cos, sin)
        self.cache.write(index, plan.slots, turned[:, a.heads :], values)
        pages = self.cache.gather(index, plan.blocks)
        attended = attend(turned[:, : a.heads].contiguous(), pages, plan.rows)
        return F.linear(attended.view(x.shape[0], a.query_size), layer.output, layer.output_bias)


def _mlp(layer: LayerWeights, x: torch.Tensor) -> torch.Tensor:
    gate, up = F.linear(x, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, layer.down, layer.down_bias)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turns the pairs (i, i + head_dim/2) of x [n, heads, head_dim] by the angles of their positions."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def _rotary_tables(
    architecture: Architecture, positions: int, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [positions, 1, head_dim / 2], computed in float64 and stored in the model's type."""
    half = architecture.head_dim // 2
    frequencies = architecture.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies).unsqueeze(1)
    return angles.cos().to(like), angles.sin().to(like)
