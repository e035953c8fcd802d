"""One product for all experts of a layer (a grouped GEMM): rows sorted by expert, each block of rows with its own
expert's matrix.

How many rows an expert gets is known on the device only; so the grid is as large as the worst case, and a program
finds its expert from the running sum of the experts' blocks, or that there is nothing for it to do. No number comes
back to the host: the whole can be captured in a graph.
With weights in 8 bits (products.py) the rows are quantised as they come, a scale for each; the products of a block are
summed in float32 and scaled once, by row and by column.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from calibration.engine.products import Fp8Matrix, quantised

FEW_ROWS = 2_048  # below, an expert gets few rows, and a small block wastes less of the matrix instruction


@dataclass(frozen=True, slots=True)
class Sorted:
    """Where the rows of each expert lie after sorting."""

    order: torch.Tensor  # int64 [n * per_token]: which (token, pick) is at each sorted place
    offsets: torch.Tensor  # int32 [experts + 1], first sorted place of each expert
    block_ends: torch.Tensor  # int32 [experts], running number of row blocks
    block_rows: int
    blocks: int  # at most


@triton.jit
def _grouped(
    x, weights, out, order, offsets, block_ends, row_scales, column_scales, inputs, outputs,
    EXPERTS: tl.constexpr, BLOCK_EXPERTS: tl.constexpr, DIVISOR: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    number = tl.arange(0, BLOCK_EXPERTS)
    ends = tl.load(block_ends + number, mask=number < EXPERTS, other=2147483647)
    expert = tl.sum((ends <= block).to(tl.int32), axis=0)
    if expert < EXPERTS:
        before = tl.max(tl.where(number < expert, ends, 0), axis=0)
        first = tl.load(offsets + expert) + (block - before) * ROWS
        place = first + tl.arange(0, ROWS)
        owned = place < tl.load(offsets + expert + 1)
        source = place.to(tl.int64)
        if DIVISOR > 0:  # from the tokens, not from sorted rows
            source = tl.load(order + place, mask=owned, other=0) // DIVISOR
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        depth = tl.arange(0, DEPTH)
        matrix = weights + expert.to(tl.int64) * inputs * outputs + column.to(tl.int64)[None, :] * inputs
        sums = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        for begin in range(0, inputs, DEPTH):
            at = begin + depth
            inside = at < inputs
            left = tl.load(
                x + source[:, None] * inputs + at[None, :], mask=owned[:, None] & inside[None, :], other=0.0
            )
            right = tl.load(
                matrix + at[:, None], mask=inside[:, None] & (column < outputs)[None, :], other=0.0
            )
            # Hopper would else add 8-bit products in fewer bits than float32 has.
            sums += tl.dot(left, right, input_precision="ieee", max_num_imprecise_acc=0)
        if SCALED:
            rows_by = tl.load(row_scales + source, mask=owned, other=0.0)
            columns_by = tl.load(
                column_scales + expert.to(tl.int64) * outputs + column, mask=column < outputs, other=0.0
            )
            sums = sums * rows_by[:, None] * columns_by[None, :]
        target = out + place.to(tl.int64)[:, None] * outputs + column[None, :]
        tl.store(target, sums, mask=owned[:, None] & (column < outputs)[None, :])


def sort_by_expert(picked: torch.Tensor, experts: int) -> Sorted:
    """picked [n, per_token] sorted by expert, without a word to the host."""
    flat = picked.flatten()
    block_rows = 16 if len(flat) <= FEW_ROWS else 64
    counts = torch.zeros(experts, dtype=torch.int32, device=flat.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
    offsets = torch.zeros(experts + 1, dtype=torch.int32, device=flat.device)
    offsets[1:] = counts.cumsum(0)
    block_ends = ((counts + block_rows - 1) // block_rows).cumsum(0).to(torch.int32)
    blocks = len(flat) // block_rows + min(experts, len(flat))
    return Sorted(flat.argsort(stable=True), offsets, block_ends, block_rows, blocks)


def grouped_product(
    x: torch.Tensor, weights: torch.Tensor | Fp8Matrix, places: Sorted, tokens_per_row: int
) -> torch.Tensor:
    """Sorted rows times their expert's matrix: [rows, outputs] for weights [experts, outputs, inputs].

    tokens_per_row: picks of a token where x holds tokens [n, inputs]; 0 where x holds sorted rows.
    """
    if isinstance(weights, Fp8Matrix):
        eight = quantised(x)
        scales = eight.scale, weights.scale
        return _multiplied(eight.values, weights.values, scales, x.dtype, places, tokens_per_row)
    return _multiplied(x, weights, None, x.dtype, places, tokens_per_row)


def _multiplied(
    x: torch.Tensor,
    weights: torch.Tensor,
    scales: tuple[torch.Tensor, torch.Tensor] | None,
    dtype: torch.dtype,
    places: Sorted,
    tokens_per_row: int,
) -> torch.Tensor:
    """`scales`: float32 [rows of x, 1] and [experts, outputs, 1] of what both stand for; None: for themselves."""
    experts, outputs, inputs = weights.shape
    out = torch.empty(len(places.order), outputs, dtype=dtype, device=x.device)
    columns = 64 if places.block_rows <= 16 else 128
    by_row, by_column = scales or (x, x)
    _grouped[(places.blocks, triton.cdiv(outputs, columns))](
        x, weights, out, places.order, places.offsets, places.block_ends, by_row, by_column, inputs, outputs,
        EXPERTS=experts, BLOCK_EXPERTS=triton.next_power_of_2(experts), DIVISOR=tokens_per_row,
        ROWS=places.block_rows, COLUMNS=columns, DEPTH=64, SCALED=scales is not None, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out
