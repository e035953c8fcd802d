"""What a decoder asks of its device beside matrix products: plain torch (torch_operations.py) on a CPU, Triton
kernels (kernels/) on a GPU. `index` is a layer's; tensors are [n tokens, ...] unless said otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from calibration.architecture import Experts, Latent
from calibration.engine.model_weights import GroupedWeights, LatentWeights, MixtureWeights


@dataclass(frozen=True, slots=True)
class Tokens:
    """A step's tokens: ids, positions in their sequences, slots in the pool; int64 [n] each."""

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor


class Operations(Protocol):
    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """RMSNorm over the last dimension."""

    def add_norm(
        self, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(x + y, norm(x + y))"""

    def gate(self, gate_up: torch.Tensor, gelu: bool) -> torch.Tensor:
        """activation(gate) * up of [n, 2 width], where gate is the first half; SiLU or tanh-GELU."""

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
        """Norms (where the model does) and turns queries and keys, stores keys and values in their slots, returns
        the queries [n, heads, head_dim]. Raises IndexError for positions beyond the tables, where it can tell."""

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
        """Norms the latent and turns the rotary key of `entry` [n, rank + rotary], stores both, and returns the
        queries [n, heads, nope + rotary] with their rotary part turned."""

    def attend(
        self, index: int, queries: torch.Tensor, plan: Any, window: int | None, scale: float, cap: float
    ) -> torch.Tensor:
        """Attention of the step's rows over the layer's pool: [n, heads, head_dim]."""

    def attend_latent(
        self, index: int, queries: torch.Tensor, plan: Any, weights: LatentWeights, latent: Latent
    ) -> torch.Tensor:
        """The same over a latent pool: [n, heads, value_size]."""

    def experts(self, x: torch.Tensor, weights: MixtureWeights, experts: Experts) -> torch.Tensor:
        """Routes the tokens and runs their experts: [n, hidden]."""
