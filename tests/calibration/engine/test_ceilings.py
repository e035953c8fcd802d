"""Ceilings from a clock that says how long things took, and kinds of work by their names."""

import pytest
import torch

from calibration.architecture import Architecture
from calibration.engine.breakdown import KINDS, kind_of
from calibration.engine.ceilings import measure_ceilings
from calibration.engine.interface import StepTiming
from calibration.engine.runner import EngineSpec, TorchRunner


class Stopwatch:
    """Runs the work and calls it half a second."""

    def __init__(self):
        self.runs = 0

    def time(self, prepare):
        self.runs += 1
        prepare()()
        return StepTiming(0.5, 0.0, False)


def test_rates_are_what_was_moved_and_done_over_the_median_time():
    clock = Stopwatch()
    found = measure_ceilings(torch.device("cpu"), torch.float32, clock, (4_000, 32))
    assert found == {
        "copy_bytes_per_s": 2 * 4_000 / 0.5,
        "copy_bytes": 4_000,
        "matmul_flops_per_s": 2 * 32**3 / 0.5,
        "matmul_side": 32,
    }
    assert clock.runs == 14
    eight = measure_ceilings(torch.device("cpu"), torch.bfloat16, clock, (4_000, 32), eight_bits=True)
    assert eight == found


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT", "matmul"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "matmul"),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16>", "matmul"),
        ("_grouped", "matmul"),
        ("aten::addmm", "matmul"),
        ("_decode", "attention"),
        ("_chunks", "attention"),
        ("_combine", "attention"),
        ("flash_fwd_splitkv_kernel", "attention"),
        ("_norm", "memory"),
        ("_store", "memory"),
        ("_gate", "memory"),
        ("Memcpy DtoD (Device -> Device)", "memory"),
        ("aten::index_select", "memory"),
    ],
)
def test_kernels_are_sorted_by_name(name, kind):
    assert kind_of(name) == kind


def test_a_profiled_step_says_that_a_prompt_is_products():
    """Wide and shallow: on any processor most of a prompt of 300 tokens goes into its matrix products."""
    model = Architecture(
        name="wide", model_type="llama", layers=1, hidden_size=512, heads=4, kv_heads=1, head_dim=64,
        intermediate_size=2_048, vocab_size=64,
    )  # fmt: skip
    runner = TorchRunner(EngineSpec(model, "cpu", "float32", 2_048, 1_024, seed=1))
    prefill = runner.breakdown([], [(300, 0, True)], seed=1)
    assert sum(prefill[kind] for kind in KINDS) == pytest.approx(1)
    assert prefill["matmul"] > 0.5
    decode = runner.breakdown([1_000], [], seed=1)
    assert decode["attention"] > 0
    assert runner.decoder.attention_range() is not None  # back to what times steps: no range
    assert type(runner.decoder.attention_range()).__name__ == "nullcontext"
