"""Products with weights in 8 bits against float64.

e4m3 keeps 3 bits of mantissa: a rounded value is off by at most 1/16 of itself, in the mean 1/36 or so. A sum of 256
products of two rounded factors is then off by about 0.04 of its own spread; five times that never happened.
"""

import torch

from calibration.engine.products import FP8_MAX, linear, quantised


def test_eight_bits_are_near_the_exact_product_and_scaled_by_row():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(17, 256, generator=generator, dtype=torch.float64)
    weight = torch.randn(48, 256, generator=generator, dtype=torch.float64)
    weight[7] *= 1_000  # a row of large weights must not cost the others their bits
    x[3] *= 100
    bias = torch.randn(48, generator=generator, dtype=torch.float64)
    stored = quantised(weight.bfloat16())
    assert stored.values.float().abs().amax(dim=-1).eq(FP8_MAX).all()
    assert ((stored.restored() - weight).abs() <= weight.abs() / 14 + stored.scale * 2**-9).all()
    ours = linear(x.bfloat16(), stored, bias.bfloat16())
    exact = x @ weight.T + bias
    spread = x.norm(dim=-1, keepdim=True) * weight.norm(dim=-1) / 16
    assert ours.dtype is torch.bfloat16
    assert float(((ours.double() - exact).abs() / spread).max()) < 0.2
    unquantised = linear(x, weight, bias)
    assert torch.allclose(unquantised, exact)
