"""Products with weights in 8 bits against float64.

e4m3 keeps 3 bits of mantissa: a rounded value is off by at most 1/16 of itself, in the mean 1/36 or so. A sum of 256
products of two rounded factors is then off by about 0.04 of its own spread; five times that never happened.
"""

from dataclasses import fields, is_dataclass

import pytest
import torch

from calibration.engine import products
from calibration.engine.products import FP8_MAX, linear, quantised, why_no_eight_bits
from calibration.engine.runner import EngineSpec, TorchRunner
from calibration.engine.weights import random_weights
from calibration.experiment.fits import eight_bit_weight_bytes
from tests.calibration.engine.conftest import VARIANTS


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


def test_a_device_without_such_products_is_refused_before_anything_is_built(monkeypatch):
    device = torch.device("cpu")
    assert why_no_eight_bits(device) == ""

    def absent(*arguments, **options):
        raise NotImplementedError("Could not run 'aten::_scaled_mm'")

    monkeypatch.setattr(products.torch, "_scaled_mm", absent)
    assert "has no product in float8 on cpu: Could not run" in why_no_eight_bits(device)
    monkeypatch.setattr("calibration.engine.runner.random_weights", lambda *a, **o: pytest.fail("drawn"))
    with pytest.raises(ValueError, match=r"8-bit weights are refused: torch .* has no product in float8"):
        TorchRunner(EngineSpec(VARIANTS["mixtral"], "cpu", "float8", 256, 64, 0))


@pytest.mark.parametrize(
    ("capability", "refused"), [((8, 0), True), ((8, 6), True), ((8, 9), False), ((9, 0), False)]
)
def test_a_gpu_before_ada_is_refused_by_its_name(monkeypatch, capability, refused):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    monkeypatch.setattr(products, "linear", lambda x, weight: x)
    monkeypatch.setattr(torch, "ones", lambda *shape, **options: torch.zeros(*shape))
    reason = why_no_eight_bits(torch.device("cuda:0"))
    assert ("NVIDIA A100 has compute capability 8." in reason) == refused
    assert bool(reason) == refused


@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen3-moe", "deepseek"])
def test_what_is_counted_before_holds_what_is_built(name):
    """Bytes that stay, of every tensor and scale; the count has one drawn layer on top."""
    model = VARIANTS[name]
    built = random_weights(model, dtype=torch.bfloat16, device=torch.device("cpu"), seed=1, eight_bits=True)

    def held(part):
        if isinstance(part, torch.Tensor):
            return part.numel() * part.element_size()
        if isinstance(part, tuple):
            return sum(map(held, part))
        return sum(held(getattr(part, f.name)) for f in fields(part)) if is_dataclass(part) else 0

    head = held(built.head) if built.tied else 0  # the embedding itself
    kept = held(built) - head
    assert model.parameters < kept < eight_bit_weight_bytes(model)
    assert kept < 2 * model.parameters


def test_experts_are_stored_one_by_one_as_all_at_once():
    weight = torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(1))
    stored = quantised(weight)
    assert stored.values.shape == (3, 5, 32) and stored.scale.shape == (3, 5, 1)
    for expert in range(3):
        alone = quantised(weight[expert])
        assert torch.equal(stored[expert].values.float(), alone.values.float())
        assert torch.equal(stored[expert].scale, alone.scale)
