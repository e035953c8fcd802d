"""The GPU's way through a step, on the CPU by Triton's interpreter: kernels, padded buffers, replayed pieces.

What CUDA would capture is run again by `again`; everything else is what runs on a GPU. The plain engine, checked
against float64 in test_decoder.py, has the same weights: both must pick the same tokens, and logits agree within
2e-4 of values near 1, as float32 does there.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from calibration.architecture import Architecture, parse_config
from calibration.engine.batch import random_batch
from calibration.engine.client import REPOSITORY
from calibration.engine.graphs import padded, sizes_up_to
from calibration.engine.runner import EngineSpec, TorchRunner
from calibration.engine.weights import random_weights

pytest.importorskip("triton")
TINY = {
    "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "intermediate_size": 48, "vocab_size": 64, "max_position_embeddings": 256,
}  # fmt: skip
MODELS = {
    "gemma2": {"model_type": "gemma2", "sliding_window": 19, "attn_logit_softcapping": 2.0},
    "deepseek": {
        "model_type": "deepseek_v3", "kv_lora_rank": 16, "q_lora_rank": 12, "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8, "v_head_dim": 10, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "first_k_dense_replace": 1, "num_key_value_heads": 2,
    },
}  # fmt: skip


def again(run):
    """Stands in for a captured graph: fills the tensors of the first run once more."""
    first = run()

    @torch.inference_mode()
    def replay():
        again.replays += 1
        result = run()
        pairs = zip(first, result, strict=True) if isinstance(first, tuple) else [(first, result)]
        for kept, new in pairs:
            kept.copy_(new)

    return replay, first


def engine(model: Architecture, operations: str, **options) -> TorchRunner:
    spec = EngineSpec(model, "cpu", "float32", 1_024, 200, seed=3, operations=operations, **options)
    return TorchRunner(spec, capture=again if operations == "triton" else None)


def steps(model):
    """A first batch of decodes, the same size again, a smaller one, and a mixed step, over fresh blocks each."""
    shapes = [([5, 40, 21], []), ([90, 3, 17], []), ([33], []), ([20, 7], [(6, 18, True), (4, 0, False)])]
    return [random_batch(decodes, chunks, vocab_size=model.vocab_size, blocks=64, block_tokens=16,
                         rng=np.random.default_rng(seed)) for seed, (decodes, chunks) in enumerate(shapes)]  # fmt: skip


@pytest.mark.parametrize("name", sorted(MODELS))
def test_graphs_and_pieces_pick_the_plain_engine_s_tokens(name):
    model = parse_config(TINY | MODELS[name])
    plain, kernels = engine(model, "torch"), engine(model, "triton")
    again.replays = 0
    for batch in steps(model):
        assert torch.equal(kernels.tokens(batch), plain.tokens(batch))
        for ours, theirs in zip(kernels.decoder.cache.layers, plain.decoder.cache.layers, strict=True):
            assert float((ours - theirs).abs().max()) < 2e-4
    # 3 and 3 decodes share the graph of 4, one decode has its own; the mixed step of 12 tokens is three pieces of 16.
    facts = kernels.environment()
    assert facts["captured_decode_batches"] == [1, 4]
    assert facts["captured_step_tokens"] == [16]
    assert again.replays == 3 + 3
    assert facts["operations"] == "triton"
    assert facts["representative"] is False  # nothing has shown what share of a device it reaches


def test_a_split_step_without_graphs_has_the_plain_engine_s_logits():
    model = parse_config(TINY | {"model_type": "qwen3"})
    plain, kernels = engine(model, "torch"), engine(model, "triton", mixed_mode="split")
    batch = steps(model)[-1]
    from calibration.engine.attention import plan
    from calibration.engine.kernels.plan import paged_plan

    ours = kernels.decoder.logits(paged_plan(batch, 16, torch.device("cpu"), 32, unified=False))
    theirs = plain.decoder.logits(plan(batch, 16, torch.float32, torch.device("cpu")))
    assert ours.shape == theirs.shape == (3, 64)
    assert float((ours - theirs).abs().max()) < 2e-4
    assert kernels.environment()["mixed_mode"] == "split"


def test_padding_goes_to_vllm_s_sizes():
    sizes = sizes_up_to(512)
    assert sizes[:5] == (1, 2, 4, 8, 16)
    assert {240, 248, 256, 272, 288, 512} <= set(sizes)
    assert 264 not in sizes
    assert [padded(count, sizes) for count in (1, 3, 9, 249, 257, 512)] == [1, 4, 16, 256, 272, 512]
    assert padded(513, sizes) is None
    assert sizes_up_to(100)[-1] == 96


def test_positions_beyond_the_tables_are_an_error_before_anything_runs():
    model = parse_config(TINY | {"model_type": "llama"})
    kernels = engine(model, "triton")
    batch = random_batch([200], [], vocab_size=64, blocks=64, block_tokens=16, rng=np.random.default_rng(0))
    with pytest.raises(IndexError, match="position 200"):
        kernels.tokens(batch)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"mixed_mode": "both"}, "mixed_mode must be"), ({"operations": "c"}, "operations must be")],
)
def test_what_is_not_known_is_refused(options, words):
    spec = {"operations": "triton"} | options
    with pytest.raises(ValueError, match=words):
        TorchRunner(
            EngineSpec(parse_config(TINY | {"model_type": "llama"}), "cpu", "float32", 64, 64, 0, **spec)
        )


EIGHT_BITS = {
    "llama": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 80},
    "deepseek_v3": {**MODELS["deepseek"], "moe_intermediate_size": 80},
}


def wide(family):
    sizes = {"model_type": family, "hidden_size": 64, "intermediate_size": 128}
    return parse_config(TINY | sizes | EIGHT_BITS[family])


@pytest.mark.parametrize("family", sorted(EIGHT_BITS))
def test_experts_and_projections_in_eight_bits_by_kernels_are_those_of_plain_torch(family):
    """The same 8 bits in both, everything else in float32 (the interpreter does not multiply bfloat16). Logits differ
    by how sums round, and where that puts a value on the next 8-bit step, by a sixteenth of one of 64 addends; a wrong
    expert, row or scale would differ by the values' spread, 1."""
    model = wide(family)
    plain, kernels = engine(model, "torch"), engine(model, "triton")
    for runner in (plain, kernels):
        runner.decoder.weights = random_weights(
            model, dtype=torch.float32, device=torch.device("cpu"), seed=3, eight_bits=True
        )
    for batch in steps(model):
        theirs, ours = plain.logits(batch), kernels.logits(batch)
        assert torch.isfinite(ours).all()
        assert float((ours - theirs).abs().max()) < 0.05
    layers = kernels.decoder.weights.layers
    assert all(layer.mlp.gate_up.values.dtype is torch.float8_e4m3fn for layer in layers)
    assert kernels.decoder.weights.parameters == model.parameters


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_weights_in_eight_bits_are_near_those_in_sixteen(family):
    model = parse_config(
        TINY | {"model_type": family, "hidden_size": 64, "intermediate_size": 128} | EIGHT_BITS[family]
    )
    batch = steps(model)[-1]

    def logits(dtype):
        from calibration.engine.attention import plan

        runner = TorchRunner(EngineSpec(model, "cpu", dtype, 1_024, 200, seed=3))
        made = plan(batch, 16, runner.dtype, torch.device("cpu"))
        return runner.decoder.logits(made).float(), runner

    (ours, eight), (theirs, sixteen) = logits("float8"), logits("bfloat16")
    assert eight.decoder.weights.parameters == sixteen.decoder.weights.parameters == model.parameters
    assert "float8" in eight.environment()["weights"]
    assert 0 < float((ours - theirs).abs().max()) < 0.6  # of values with spread 1, through two layers


@pytest.mark.parametrize(
    ("capability", "wanted"),
    [
        (90, ["decode llama-8b", "chunks llama-8b", "experts few in 8 bits"]),
        pytest.param(80, [], marks=pytest.mark.slow),
        pytest.param(90, [], marks=pytest.mark.slow),
    ],
)
def test_they_compile_for_gpus(capability, wanted, tmp_path):
    """For H100, with a real model's sizes: the interpreter accepts what the compiler refuses. Slow: all, and A100."""
    script = Path(__file__).with_name("compile_kernels.py")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    answer = subprocess.run(
        [sys.executable, script, str(capability), *wanted], env=environment, capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    assert len(answer.stdout.splitlines()) == (len(wanted) or (15 if capability >= 89 else 13))
