"""Matrix products with weights: as torch has them, or with weights in 8 bits.

8 bits are float8_e4m3fn with one scale per output row; activations are quantised as they come, one scale per token
(what serving engines call dynamic per-token fp8). Products accumulate in float32 and come out in the activations'
type. Projections and experts are stored so; embedding, head, norms and the router stay as they are. A device without
instructions for it is refused when the engine starts (`why_no_eight_bits`), not in the middle of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
LEAST_CAPABILITY = (8, 9)  # of a CUDA device: Ada, Hopper


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """values / scale rounded to 8 bits: weight[i] = values[i] * scale[i]. Of all experts of a layer at once both have
    one more dimension before: [experts, outputs, ...]."""

    values: torch.Tensor  # [outputs, inputs], float8_e4m3fn
    scale: torch.Tensor  # [outputs, 1], float32

    def __getitem__(self, expert: int) -> Fp8Matrix:
        """One expert's matrix."""
        return Fp8Matrix(self.values[expert], self.scale[expert])

    def restored(self) -> torch.Tensor:
        """The weights it stands for, float32."""
        return self.values.float() * self.scale


def linear(
    x: torch.Tensor, weight: torch.Tensor | Fp8Matrix, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x [n, inputs] times the weight's transpose, plus the bias: [n, outputs]."""
    if isinstance(weight, torch.Tensor):
        return F.linear(x, weight, bias)
    product = multiplied(quantised(x), weight, x.dtype)
    return product if bias is None else product + bias


def multiplied(rows: Fp8Matrix, weight: Fp8Matrix, dtype: torch.dtype) -> torch.Tensor:
    """Rows times the weight's transpose, in `dtype`: [rows, outputs]."""
    return torch._scaled_mm(rows.values, weight.values.t(), rows.scale, weight.scale.t(), out_dtype=dtype)


def quantised(weight: torch.Tensor) -> Fp8Matrix:
    """Of a matrix, of several behind each other, or of activations: a scale for every row."""
    if weight.dim() == 2:
        scale = row_scales(weight)
        return Fp8Matrix((weight.float() / scale).to(FP8), scale)
    stored = Fp8Matrix(
        torch.empty(weight.shape, dtype=FP8, device=weight.device),
        torch.empty(*weight.shape[:-1], 1, dtype=torch.float32, device=weight.device),
    )
    for one, values, scale in zip(
        weight, stored.values, stored.scale, strict=True
    ):  # or all are float32 on the way
        eight = quantised(one)
        values.copy_(eight.values)
        scale.copy_(eight.scale)
    return stored


def why_no_eight_bits(device: torch.device) -> str:
    """Why products with 8-bit weights cannot be run on this device; empty where they can. torch's own is tried, on
    sizes that every device that has it takes."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) < LEAST_CAPABILITY:
            return (
                f"{torch.cuda.get_device_name(device)} has compute capability {major}.{minor}, and products in float8 "
                f"need {LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]} or newer"
            )
    try:
        ones = torch.ones(16, 64, dtype=torch.bfloat16, device=device)
        linear(ones, quantised(ones))
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        return f"torch {torch.__version__} has no product in float8 on {device.type}: {str(error)[:200]}"
    return ""


def row_scales(x: torch.Tensor) -> torch.Tensor:
    """What makes each row's largest value the largest of the type: float32 [rows, 1]."""
    return (x.abs().amax(dim=-1, keepdim=True).float() / FP8_MAX).clamp_min(1e-12)
