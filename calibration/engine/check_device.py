"""`python -m calibration.engine.check_device --device cuda:0 --out FILE.json`: is this engine right on this device?

Small models of every kind that runs, their sequences driven through the device's kernels, graphs and pieces, against
plain torch in float64 on the CPU with the same weights (which the tests hold against a forward written for reading).
Pools are NaN but for what the sequences wrote. In float32 logits may differ by 2e-3, in bfloat16 by 0.25, of values
with spread 1; and the token that a step picks must be the reference's likeliest, or within that of it. Experts in 8
bits are checked on their own (check_experts), or the reason why the device has no such products is told.
Then the device's ceilings, the host gap of a decode, and what was captured. Exit status 0: all as it must be; 1: not.
On a CPU the kernels run in Triton's interpreter (TRITON_INTERPRET=1) on fewer models: a dry run, and said to be one.
Needs torch, numpy and, for the kernels, Triton.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibration.architecture import Architecture, parse_config
from calibration.engine.attention import plan
from calibration.engine.batch import StepBatch, blocks_for
from calibration.engine.check_experts import checked_experts
from calibration.engine.decoder import Decoder
from calibration.engine.kv_cache import PagedKVCache
from calibration.engine.runner import EngineSpec, TorchRunner

TOLERANCE = {"float32": 2e-3, "bfloat16": 0.25, "float16": 0.1}
BLOCK_TOKENS = 16
KV_TOKENS, MAX_POSITIONS = 8_192, 2_048
_SIZES = {
    "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
    "intermediate_size": 512, "vocab_size": 512, "max_position_embeddings": 4_096,
}  # fmt: skip
_LATENT = {
    "kv_lora_rank": 64, "q_lora_rank": 48, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
    "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
    "first_k_dense_replace": 1, "num_key_value_heads": 8,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "qwen3": {"model_type": "qwen3", "num_key_value_heads": 1, "num_attention_heads": 7, "head_dim": 32},
    "gemma2": {"model_type": "gemma2", "sliding_window": 50, "attn_logit_softcapping": 5.0},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
    "deepseek": {"model_type": "deepseek_v3", **_LATENT},
}
_DRY_SIZES = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64}
BUDGET_S = 80.0
#: Steps by sequence: how many tokens each one computes; None: it rests. A prompt beside others, decodes, decodes of
#: another number of rows, a mixed step; on a GPU then a step too large for graphs.
_STEPS: tuple[dict[str, int], ...] = (
    {"a": 70, "b": 17, "c": 130, "d": 5},
    {"a": 1, "b": 1, "c": 1},
    {"a": 1, "b": 1, "c": 1, "d": 1},
    {"a": 1, "c": 1, "e": 90, "d": 33},
)
_LARGE = ({"a": 1, "b": 1, "f": 600},)
_DRY = ({"a": 9, "b": 3}, {"a": 1, "b": 1}, {"a": 1, "b": 4})


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", help="where the findings are written, as JSON")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    dry = options.device.startswith("cpu")
    found: dict[str, Any] = {"dry_run": dry, "checks": checks(options.device, dry)}
    found |= device_facts(options.device)
    found["wall_s"] = time.monotonic() - started
    failed = [check for check in found["checks"] if check["right"] is False]
    found["right"] = not failed
    if options.out:
        Path(options.out).write_text(json.dumps(found, indent=1) + "\n")
    for check in found["checks"]:
        verdict = {True: "right", False: "WRONG", None: "-----"}[check["right"]]
        sys.stderr.write(f"{verdict}  {check['name']}: {check['words']}\n")
    sys.stdout.write(
        json.dumps({"right": not failed, "checks": len(found["checks"]), "wrong": len(failed)}) + "\n"
    )
    return 1 if failed else 0


def checks(device: str, dry: bool) -> list[dict[str, Any]]:
    """One entry a model, type and way to attend in mixed steps. What BUDGET_S leaves no time for is listed as not
    run: compiling is most of the time, and machines differ."""
    if importlib.util.find_spec("triton") is None:
        return [
            {"name": "kernels", "right": dry, "words": "Triton is not installed: the kernels were not run"}
        ]
    wanted = [("deepseek", "float32", "unified")] if dry else [
        *((name, "float32", "unified") for name in MODELS),
        *((name, "bfloat16", "unified") for name in ("llama", "gemma2", "deepseek")),
        ("llama", "float32", "split"), ("llama", "bfloat16", "split"),
    ]  # fmt: skip
    started, done = time.monotonic(), []
    for name, dtype, mode in wanted:
        if time.monotonic() - started > BUDGET_S:
            entry = {"name": f"{name} {dtype} {mode}", "right": None, "words": "not run: the time was up"}
        else:
            entry = _checked(name, dtype, mode, device, dry)
        done.append(entry)
    return [*done, checked_experts(device, dry)]


def _checked(name: str, dtype: str, mode: str, device: str, dry: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": f"{name} {dtype} {mode}", "right": False}
    model = parse_config(_SIZES | MODELS[name] | (_DRY_SIZES if dry else {}))
    steps = _DRY if dry else _STEPS + _LARGE
    try:
        worst, behind = compared(model, dtype, mode, device, steps)
    except Exception as error:  # whatever a device does wrong is a finding, not an end
        return entry | {"words": f"{type(error).__name__}: {str(error)[:300]}"}
    tolerance = TOLERANCE[dtype]
    words = f"logits within {worst:.2g}, picked tokens within {behind:.2g} of the likeliest (allowed {tolerance:g})"
    right = worst <= tolerance and behind <= tolerance  # false for NaN too
    return entry | {"words": words, "right": right, "logits": _finite(worst), "picked": _finite(behind)}


def compared(
    model: Architecture, dtype: str, mode: str, device: str, steps: Sequence[dict[str, int]]
) -> tuple[float, float]:
    """(largest difference of logits, how far the picked tokens are below the likeliest) over all steps."""
    spec = EngineSpec(model, device, dtype, KV_TOKENS, MAX_POSITIONS, 5, operations="triton", mixed_mode=mode)
    capture = _run_again if device.startswith("cpu") else None
    runner = TorchRunner(spec, block_tokens=BLOCK_TOKENS, capture=capture)
    reference = in_float64(runner.decoder)
    for decoder in (runner.decoder, reference):
        for layer in decoder.cache.layers:
            layer.fill_(float("nan"))
    sequences = Sequences(model.vocab_size, runner.decoder.cache.blocks)
    worst = behind = 0.0
    for index, step in enumerate(steps):
        batch = sequences.step(step)
        wanted = reference.logits(
            plan(batch, BLOCK_TOKENS, torch.float64, torch.device("cpu"), reference.windows)
        )
        picked = runner.tokens(batch).cpu()
        chosen = wanted.gather(1, picked.unsqueeze(1)).squeeze(1)
        behind = _worse(behind, float((wanted.max(dim=1).values - chosen).max()))
        if (
            index == len(steps) - 1
        ):  # graphs give tokens only; the same step once more, launched, gives logits
            logits = runner.logits(batch).double().cpu()
            worst = _worse(worst, float((logits - wanted).abs().max()))
    return worst, behind


def in_float64(decoder: Decoder) -> Decoder:
    """The same model in plain torch on the CPU, its weights in float64, over a pool of its own."""
    layers = tuple(torch.empty_like(x, dtype=torch.float64, device="cpu") for x in decoder.cache.layers)
    cache = PagedKVCache(layers, decoder.cache.block_tokens)
    return Decoder(decoder.architecture, _moved(decoder.weights), cache, decoder.max_positions)


def _moved(part: Any) -> Any:
    if isinstance(part, torch.Tensor):
        return part.to("cpu", torch.float64)
    if isinstance(part, tuple):
        return tuple(_moved(item) for item in part)
    if is_dataclass(part) and not isinstance(part, type):
        return replace(part, **{f.name: _moved(getattr(part, f.name)) for f in fields(part)})
    return part


class Sequences:
    """Sequences of random tokens with blocks scattered over a pool."""

    def __init__(self, vocab_size: int, blocks: int) -> None:
        self._rng = np.random.default_rng(11)
        self._vocab_size = vocab_size
        self._free = self._rng.permutation(blocks).tolist()
        self._tables: dict[str, list[int]] = {}
        self._cached: dict[str, int] = {}

    def step(self, tokens: dict[str, int]) -> StepBatch:
        """The named sequences each go on by so many tokens."""
        for name, count in tokens.items():
            table = self._tables.setdefault(name, [])
            while len(table) < blocks_for(self._cached.get(name, 0) + count, BLOCK_TOKENS):
                table.append(self._free.pop())
        counts = np.array(list(tokens.values()), dtype=np.int64)
        batch = StepBatch(
            token_ids=self._rng.integers(0, self._vocab_size, size=int(counts.sum()), dtype=np.int64),
            query_tokens=counts,
            cached_tokens=np.array([self._cached.get(name, 0) for name in tokens], dtype=np.int64),
            block_tables=tuple(np.array(self._tables[name], dtype=np.int64) for name in tokens),
            sampled=np.ones(len(tokens), dtype=np.bool_),
        )
        for name, count in tokens.items():
            self._cached[name] = self._cached.get(name, 0) + count
        return batch


def device_facts(device: str) -> dict[str, Any]:
    """Versions, ceilings, and the host gap of a decode: what a reader of the findings asks first."""
    model = parse_config(_SIZES | MODELS["llama"])
    runner = TorchRunner(EngineSpec(model, device, "auto", KV_TOKENS, MAX_POSITIONS, 5))
    timings = [runner.measure([100, 300], [], seed) for seed in range(10)][2:]
    return {
        "ceilings": runner.ceilings(),
        "small_decode_s": float(np.median([timing.seconds for timing in timings])),
        "small_decode_host_gap_s": float(np.median([timing.host_gap_s for timing in timings])),
        "environment": runner.environment(),
        "python": sys.version.split()[0],
        "triton": _triton_version(),
    }


def _triton_version() -> str:
    if importlib.util.find_spec("triton") is None:
        return ""
    import triton

    return str(triton.__version__)


def _run_again(run: Any) -> Any:
    """A graph's stand-in where there is no CUDA: fills the tensors of the first run once more."""
    first = run()

    @torch.inference_mode()
    def replay() -> None:
        result = run()
        pairs = zip(first, result, strict=True) if isinstance(first, tuple) else [(first, result)]
        for kept, new in pairs:
            kept.copy_(new)

    return replay, first


def _worse(one: float, other: float) -> float:
    return other if other != other else max(one, other)  # NaN is the worst


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


if __name__ == "__main__":
    sys.exit(main())
