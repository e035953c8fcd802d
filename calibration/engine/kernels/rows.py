"""Kernels over the rows of a step, one program a row: RMSNorm, with or without the residual's sum, and the gates of
feed-forwards. They read each value once: what they cost is memory traffic."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _norm(
    x, y, weight, total, normed, width, x_stride, eps,
    ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(y + row * width + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + row * width + at, value, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / width + eps)
    factor = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row * width + at, value * scale * factor, mask=inside)


@triton.jit
def tanh(x):
    """From exp alone, so that no device library is needed; exact at both ends."""
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _gate(gate_up, out, width, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(gate_up + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        gate = 0.5 * gate * (1.0 + tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)))
    else:
        gate = gate * tl.sigmoid(gate)
    tl.store(out + row * width + at, gate * up, mask=inside)


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm of x [n, width], whose rows may lie apart."""
    width = x.shape[-1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if len(x):
        block = triton.next_power_of_2(width)
        _norm[(len(x),)](x, x, weight, out, out, width, x.stride(0), eps, ADD=False, BLOCK=block)
    return out


def add_norm(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(x + y, norm(x + y)) for contiguous x and y [n, width]."""
    width = x.shape[-1]
    total, normed = torch.empty_like(x), torch.empty_like(x)
    block = triton.next_power_of_2(width)
    _norm[(len(x),)](x, y, weight, total, normed, width, x.stride(0), eps, ADD=True, BLOCK=block)
    return total, normed


def gate(gate_up: torch.Tensor, gelu: bool) -> torch.Tensor:
    """activation(gate) * up: [n, width] of [n, 2 width]."""
    n, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(n, width, dtype=gate_up.dtype, device=gate_up.device)
    block = min(1024, triton.next_power_of_2(width))
    _gate[(n, triton.cdiv(width, block))](gate_up, out, width, GELU=gelu, BLOCK=block)
    return out
