"""Shapes in, seconds out: the engine in this process (interface.Runner says what an experiment needs)."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from calibration.architecture import Architecture
from calibration.engine.attention import plan
from calibration.engine.batch import StepBatch, blocks_for, random_batch
from calibration.engine.clock import clock_for
from calibration.engine.decoder import Decoder
from calibration.engine.interface import ChunkTuple, StepTiming
from calibration.engine.kv_cache import BLOCK_TOKENS, allocate
from calibration.engine.weights import random_weights

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What an engine is started with. dtype "auto": bfloat16 on a GPU, measured on a CPU."""

    architecture: Architecture
    device: str
    dtype: str
    kv_tokens: int
    max_positions: int
    seed: int


class TorchRunner:
    """The engine in this process. On a CPU it sets torch to one intra-op thread, which the clock needs."""

    def __init__(self, spec: EngineSpec, *, block_tokens: int = BLOCK_TOKENS) -> None:
        self.spec = spec
        self.device = torch.device(spec.device)
        if self.device.type == "cpu":
            torch.set_num_threads(1)
        self.dtype = choose_dtype(spec.dtype, self.device)
        started = time.perf_counter()
        cache = allocate(
            spec.architecture,
            spec.kv_tokens,
            dtype=self.dtype,
            device=self.device,
            seed=spec.seed,
            block_tokens=block_tokens,
        )
        weights = random_weights(spec.architecture, dtype=self.dtype, device=self.device, seed=spec.seed)
        self.decoder = Decoder(spec.architecture, weights, cache, spec.max_positions)
        self._built_s = time.perf_counter() - started
        self._clock = clock_for(self.device)

    def environment(self) -> dict[str, object]:
        cuda = self.device.type == "cuda"
        return {
            "torch": torch.__version__,
            "numpy": np.__version__,
            "device": self.spec.device,
            "device_name": torch.cuda.get_device_name(self.device) if cuda else "",
            "dtype": str(self.dtype).removeprefix("torch."),
            "intra_op_threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "clock": "CUDA events" if cuda else "CPU time of one thread",
            "mixed_mode": "unified",
            # Rows attend one by one: fair on a CPU core, slower than a paged kernel on a GPU.
            "representative": not cuda,
            "kv_tokens": self.decoder.cache.tokens,
            "block_tokens": self.decoder.cache.block_tokens,
            "parameters": self.decoder.weights.parameters,
            "build_s": self._built_s,
        }

    def measure(self, decode_contexts: Sequence[int], chunks: Sequence[ChunkTuple], seed: int) -> StepTiming:
        batch = random_batch(
            decode_contexts,
            chunks,
            vocab_size=self.spec.architecture.vocab_size,
            blocks=self.decoder.cache.blocks,
            block_tokens=self.decoder.cache.block_tokens,
            rng=np.random.default_rng(seed),
        )
        return self.run(batch)

    def usage(self) -> dict[str, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {"cpu_s": used.ru_utime + used.ru_stime, "peak_bytes": used.ru_maxrss * 1024.0}

    def run(self, batch: StepBatch) -> StepTiming:
        """Runs and times one step. Preparing its index tensors is host work, outside the device's time."""
        decoder, block_tokens = self.decoder, self.decoder.cache.block_tokens

        def prepare() -> Callable[[], object]:
            prepared = plan(batch, block_tokens, self.dtype, self.device)
            return lambda: decoder.step(prepared)

        return self._clock.time(prepare)

    def fits(self, decode_contexts: Sequence[int], chunks: Sequence[ChunkTuple]) -> bool:
        """Whether the KV pool can hold the step's rows."""
        block_tokens = self.decoder.cache.block_tokens
        needed = sum(blocks_for(context + 1, block_tokens) for context in decode_contexts)
        needed += sum(blocks_for(query + cached, block_tokens) for query, cached, _ in chunks)
        return needed <= self.decoder.cache.blocks


def choose_dtype(requested: str, device: torch.device) -> torch.dtype:
    """The type to compute in. On a CPU "auto" times one 64-row product in bfloat16 and in float32.

    Measured here on a Zen 4 core: bfloat16 1.6x (one row) to 2.4x (64 rows) faster, times smooth in the number
    of rows and repeatable within 2 %, where float32 is not monotone from 1 to 4 rows. Cores without bfloat16
    instructions emulate it many times slower: there float32 is the sane one. Raises ValueError.
    """
    if requested != "auto":
        if requested not in DTYPES:
            raise ValueError(f"dtype must be auto or one of {', '.join(DTYPES)}, got {requested!r}")
        return DTYPES[requested]
    if device.type != "cpu":
        return torch.bfloat16
    fast = _product_seconds(torch.bfloat16) < _product_seconds(torch.float32)
    return torch.bfloat16 if fast else torch.float32


def _product_seconds(dtype: torch.dtype) -> float:
    rows, matrix = torch.ones(64, 512, dtype=dtype), torch.ones(2048, 512, dtype=dtype)
    times = []
    for _ in range(4):
        start = time.thread_time()
        F.linear(rows, matrix)
        times.append(time.thread_time() - start)
    return min(times)
