"""Is a mixture's feed-forward in 8 bits right on this device? A part of check_device.

Its kernel multiplies what the 8 bits of weights and activations stand for; so does a forward in float64 that rounds the
activations to 8 bits in the same places and nothing else. What a device rounds in between puts a value in some tens on
the next 8-bit step, a sixteenth of itself away, in sums of a hundred: a fiftieth of the results' spread. A tenth of it
is allowed in bfloat16, a fiftieth in float32; a wrong expert, row or scale is off by the spread itself.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from calibration.architecture import Experts
from calibration.engine.kv_cache import PagedKVCache
from calibration.engine.mixture import route
from calibration.engine.model_weights import MixtureWeights
from calibration.engine.products import Fp8Matrix, quantised, why_no_eight_bits

TOKENS, DRY_TOKENS, HIDDEN = (1, 70, 1_300), (1, 17), 256
SHAPE = Experts(experts=8, per_token=2, intermediate_size=128, layers=1)
ALLOWED = {torch.float32: 0.02, torch.bfloat16: 0.1}


def checked_experts(device: str, dry: bool) -> dict[str, Any]:
    """An entry for check_device: `right` None where the device has no such products, with the reason. A dry run is in
    float32, because Triton's interpreter does not multiply bfloat16, and of fewer tokens."""
    dtype, entry = torch.float32 if dry else torch.bfloat16, {"name": "experts float8", "right": None}
    if reason := why_no_eight_bits(torch.device(device)):
        return entry | {"words": f"not run: {reason}"}
    try:
        worst = max(off_by(device, dtype, tokens) for tokens in (DRY_TOKENS if dry else TOKENS))
    except Exception as error:  # whatever a device does wrong is a finding, not an end
        return entry | {"right": False, "words": f"{type(error).__name__}: {str(error)[:300]}"}
    words = f"results within {worst:.2g} of their spread (allowed {ALLOWED[dtype]:g})"
    return entry | {"right": worst <= ALLOWED[dtype], "words": words}  # false for NaN too


def off_by(device: str, dtype: torch.dtype, tokens: int) -> float:
    """The largest error of a mixture over so many tokens, in the results' spread."""
    from calibration.engine.kernels.operations import TritonOperations

    generator = torch.Generator().manual_seed(tokens)

    def drawn(*shape: int, inputs: int = 1) -> torch.Tensor:
        values = torch.randn(shape, generator=generator) / math.sqrt(inputs)
        return values.to(device, dtype)

    inner = SHAPE.intermediate_size
    weights = MixtureWeights(
        drawn(SHAPE.experts, HIDDEN, inputs=HIDDEN),
        quantised(drawn(SHAPE.experts, 2 * inner, HIDDEN, inputs=HIDDEN)),
        quantised(drawn(SHAPE.experts, HIDDEN, inner, inputs=inner)),
    )
    x = drawn(tokens, HIDDEN)
    cache = PagedKVCache((torch.zeros(1, 16, 2, 1, 16, dtype=dtype, device=device),), 16)
    ours = TritonOperations(cache).experts(x, weights, SHAPE).double().cpu()
    picked, shares = (part.cpu() for part in route(x, weights, SHAPE))
    wanted = in_float64(x.cpu(), picked, shares, weights)
    return float((ours - wanted).abs().max() / wanted.std())


def in_float64(
    x: torch.Tensor, picked: torch.Tensor, shares: torch.Tensor, weights: MixtureWeights
) -> torch.Tensor:
    """The mixture token by token, activations rounded to 8 bits before each product."""
    assert isinstance(weights.gate_up, Fp8Matrix) and isinstance(weights.down, Fp8Matrix)  # noqa: S101
    up, down = (matrix.restored().double().cpu() for matrix in (weights.gate_up, weights.down))

    def rounded(row: torch.Tensor) -> torch.Tensor:
        return quantised(row[None]).restored()[0].double()

    result = torch.zeros(x.shape, dtype=torch.float64)
    for row in range(len(x)):
        for expert, share in zip(picked[row].tolist(), shares[row].double(), strict=True):
            gate, value = (up[expert] @ rounded(x[row])).chunk(2)
            inner = (gate / (1 + torch.exp(-gate)) * value).to(x.dtype)
            result[row] += share * (down[expert] @ rounded(inner))
    return result
