"""Operations of the decoder in plain torch: what a CPU runs."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from calibration.architecture import Experts, Latent
from calibration.engine.attention import StepPlan, attend
from calibration.engine.kv_cache import PagedKVCache
from calibration.engine.latent import attend_latent
from calibration.engine.mixture import route, run_experts
from calibration.engine.model_weights import GroupedWeights, LatentWeights, MixtureWeights
from calibration.engine.operations import Tokens


class TorchOperations:
    """operations.Operations over a pool, with plans from attention.plan."""

    def __init__(self, cache: PagedKVCache) -> None:
        self._cache = cache

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, eps)

    def add_norm(
        self, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = x + y
        return x, self.norm(x, weight, eps)

    def gate(self, gate_up: torch.Tensor, gelu: bool) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return (F.gelu(gate, approximate="tanh") if gelu else F.silu(gate)) * up

    def store(
        self,
        index: int,
        qkv: torch.Tensor,
        head_dim: int,
        weights: GroupedWeights,
        cos: torch.Tensor,
        sin: torch.Tensor,
        tokens: Tokens,
        eps: float,
    ) -> torch.Tensor:
        kv_heads = self._cache.layers[index].shape[3]
        qkv = qkv.view(len(qkv), -1, head_dim)
        heads = qkv.shape[1] - 2 * kv_heads
        turned, values = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if weights.query_norm is not None and weights.key_norm is not None:
            queries = self.norm(turned[:, :heads], weights.query_norm, eps)
            turned = torch.cat((queries, self.norm(turned[:, heads:], weights.key_norm, eps)), dim=1)
        turned = rotate(turned, cos[tokens.positions], sin[tokens.positions])
        self._cache.write(index, tokens.slots, torch.stack((turned[:, heads:], values), dim=1))
        return turned[:, :heads].contiguous()

    def store_latent(
        self,
        index: int,
        queries: torch.Tensor,
        entry: torch.Tensor,
        weights: LatentWeights,
        cos: torch.Tensor,
        sin: torch.Tensor,
        tokens: Tokens,
        eps: float,
    ) -> torch.Tensor:
        rank = weights.latent_norm.shape[0]
        rotary = entry.shape[1] - rank
        cos, sin = cos[tokens.positions], sin[tokens.positions]
        key = rotate(entry[:, rank:].unsqueeze(1), cos, sin).squeeze(1)
        vector = self.norm(entry[:, :rank], weights.latent_norm, eps)
        self._cache.write(index, tokens.slots, torch.cat((vector, key), dim=1))
        nope, turned = queries.split([queries.shape[-1] - rotary, rotary], dim=-1)
        return torch.cat((nope, rotate(turned, cos, sin)), dim=-1)

    def attend(
        self, index: int, queries: torch.Tensor, plan: StepPlan, window: int | None, scale: float, cap: float
    ) -> torch.Tensor:
        view = plan.views[window]
        return attend(queries, self._cache.gather(index, view.pages), view.rows, scale, cap)

    def attend_latent(
        self, index: int, queries: torch.Tensor, plan: StepPlan, weights: LatentWeights, latent: Latent
    ) -> torch.Tensor:
        view = plan.views[None]
        return attend_latent(queries, self._cache.gather(index, view.pages), view.rows, weights, latent)

    def experts(self, x: torch.Tensor, weights: MixtureWeights, experts: Experts) -> torch.Tensor:
        picked, shares = route(x, weights, experts)
        return run_experts(x, picked, shares, weights, lambda inner: self.gate(inner, gelu=False))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turns the pairs (i, i + width/2) of x [n, heads, width] by the angles of their positions."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
