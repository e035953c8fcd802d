"""Matrix products with weights: as torch has them, or with weights in 8 bits.

8 bits are float8_e4m3fn with one scale per output row; activations are quantised as they come, one scale per token
(what serving engines call dynamic per-token fp8). Products accumulate in float32 and come out in the activations'
type. Only projections are stored so: embedding, head, norms and the router stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """values / scale rounded to 8 bits: weight[i] = values[i] * scale[i]."""

    values: torch.Tensor  # [outputs, inputs], float8_e4m3fn
    scale: torch.Tensor  # [outputs, 1], float32

    def restored(self) -> torch.Tensor:
        """The weights it stands for, float32."""
        return self.values.float() * self.scale


def linear(
    x: torch.Tensor, weight: torch.Tensor | Fp8Matrix, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x [n, inputs] times the weight's transpose, plus the bias: [n, outputs]."""
    if isinstance(weight, torch.Tensor):
        return F.linear(x, weight, bias)
    scale = row_scales(x)
    product = torch._scaled_mm(
        (x.float() / scale).to(FP8), weight.values.t(), scale, weight.scale.t(), out_dtype=x.dtype
    )
    return product if bias is None else product + bias


def quantised(weight: torch.Tensor) -> Fp8Matrix:
    scale = row_scales(weight)
    return Fp8Matrix((weight.float() / scale).to(FP8), scale)


def row_scales(x: torch.Tensor) -> torch.Tensor:
    """What makes each row's largest value the largest of the type: float32 [rows, 1]."""
    return (x.abs().amax(dim=-1, keepdim=True).float() / FP8_MAX).clamp_min(1e-12)
