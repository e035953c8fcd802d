"""Operations of the decoder as Triton kernels: what a GPU runs (on a CPU only in tests, by Triton's interpreter)."""

from __future__ import annotations

import torch

from calibration.architecture import Experts, Latent
from calibration.engine.kernels import rows
from calibration.engine.kernels.chunks import attend_chunks
from calibration.engine.kernels.decode import attend_decodes
from calibration.engine.kernels.experts import grouped_product, sort_by_expert
from calibration.engine.kernels.plan import PagedPlan
from calibration.engine.kernels.store import store, store_latent
from calibration.engine.kv_cache import PagedKVCache
from calibration.engine.latent import absorb, multiplied_out
from calibration.engine.mixture import route
from calibration.engine.model_weights import GroupedWeights, LatentWeights, MixtureWeights
from calibration.engine.operations import Tokens


class TritonOperations:
    """operations.Operations over a pool, with plans from kernels/plan.py. Of latent attention, chunks are absorbed
    as decodes are: right, but more work than keys and values made first (3.4 times in DeepSeek-V3's prefill)."""

    def __init__(self, cache: PagedKVCache) -> None:
        self._cache = cache
        device = cache.layers[0].device
        cuda = device.type == "cuda"
        self._processors = torch.cuda.get_device_properties(device).multi_processor_count if cuda else 2

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return rows.norm(x, weight, eps)

    def add_norm(
        self, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return rows.add_norm(x, y, weight, eps)

    def gate(self, gate_up: torch.Tensor, gelu: bool) -> torch.Tensor:
        return rows.gate(gate_up, gelu)

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
        norms = None
        if weights.query_norm is not None and weights.key_norm is not None:
            norms = weights.query_norm, weights.key_norm
        return store(qkv, self._cache.layers[index], cos, sin, tokens.positions, tokens.slots, norms, eps)

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
        pool, places = self._cache.layers[index], (tokens.positions, tokens.slots)
        return store_latent(queries, entry, pool, cos, sin, *places, weights.latent_norm, eps)

    def attend(
        self,
        index: int,
        queries: torch.Tensor,
        plan: PagedPlan,
        window: int | None,
        scale: float,
        cap: float,
    ) -> torch.Tensor:
        out = torch.empty_like(queries)
        self._attend(index, queries, plan, out, window, scale, cap, 0)
        return out

    def attend_latent(
        self, index: int, queries: torch.Tensor, plan: PagedPlan, weights: LatentWeights, latent: Latent
    ) -> torch.Tensor:
        absorbed = absorb(queries, weights, latent).contiguous()
        out = absorbed.new_empty(*absorbed.shape[:2], latent.rank)
        self._attend(index, absorbed, plan, out, None, queries.shape[-1] ** -0.5, 0.0, latent.rank)
        return multiplied_out(out, weights)

    def experts(self, x: torch.Tensor, weights: MixtureWeights, experts: Experts) -> torch.Tensor:
        picked, shares = route(x, weights, experts)
        places = sort_by_expert(picked, experts.experts)
        inner = rows.gate(grouped_product(x, weights.gate_up, places, experts.per_token), gelu=False)
        sorted_rows = grouped_product(inner, weights.down, places, 0)
        result = torch.empty_like(sorted_rows)
        result[places.order] = sorted_rows
        return torch.bmm(shares.unsqueeze(1), result.view(len(x), experts.per_token, -1)).squeeze(1)

    def _attend(
        self,
        index: int,
        queries: torch.Tensor,
        plan: PagedPlan,
        out: torch.Tensor,
        window: int | None,
        scale: float,
        cap: float,
        rank: int,
    ) -> None:
        pool, b = self._cache.layers[index], plan.decodes
        if b:
            attend_decodes(
                queries[:b], pool, plan.tables[:b], plan.lengths[:b], out[:b],
                scale=scale, window=window, cap=cap, rank=rank, processors=self._processors,
            )  # fmt: skip
        if len(plan.tiles[0]):
            attend_chunks(
                queries, pool, plan.tables, plan.lengths, plan.starts, plan.tiles, out,
                scale=scale, window=window, cap=cap, rank=rank,
            )  # fmt: skip
