"""Shapes in, seconds out: the engine in this process (interface.Runner says what an experiment needs)."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch.profiler import record_function

from calibration.architecture import Architecture
from calibration.engine.batch import StepBatch, blocks_for, random_batch
from calibration.engine.breakdown import PHASE, profiled
from calibration.engine.ceilings import measure_ceilings
from calibration.engine.clock import clock_for
from calibration.engine.decoder import Decoder
from calibration.engine.interface import ChunkTuple, StepTiming
from calibration.engine.kv_cache import BLOCK_TOKENS, allocate
from calibration.engine.products import why_no_eight_bits
from calibration.engine.ranks import facts as rank_facts
from calibration.engine.shards import WHOLE, Shard
from calibration.engine.stepping import KernelStepper, PlainStepper, Stepper
from calibration.engine.weights import random_weights

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}
EIGHT_BITS = "float8"
OPERATIONS = ("auto", "torch", "triton")


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What an engine is started with. dtype "auto": bfloat16 on a GPU, measured on a CPU; "float8": projections and
    experts in 8 bits, the rest in bfloat16. operations "auto": Triton kernels on a GPU, plain torch on a CPU."""

    architecture: Architecture
    device: str
    dtype: str
    kv_tokens: int
    max_positions: int
    seed: int
    operations: str = "auto"
    mixed_mode: str = "unified"
    shard: Shard = WHOLE


class TorchRunner:
    """The engine in this process. On a CPU it sets torch to one intra-op thread, which the clock needs."""

    def __init__(self, spec: EngineSpec, *, block_tokens: int = BLOCK_TOKENS, capture: object = None) -> None:
        """`capture`: how graphs are captured (graphs.Capture); default: by CUDA on a GPU, not at all on a CPU."""
        self.spec = spec
        self.device = torch.device(spec.device)
        if self.device.type == "cpu":
            torch.set_num_threads(1)
        else:
            torch.cuda.set_device(self.device)
        if spec.operations not in OPERATIONS:
            raise ValueError(f"operations must be one of {', '.join(OPERATIONS)}, got {spec.operations!r}")
        self.dtype = choose_dtype(spec.dtype, self.device)
        if spec.dtype == EIGHT_BITS and (reason := why_no_eight_bits(self.device)):
            raise ValueError(f"8-bit weights are refused: {reason}")
        started = time.perf_counter()
        cache = allocate(
            spec.architecture,
            spec.kv_tokens,
            dtype=self.dtype,
            device=self.device,
            seed=spec.seed,
            block_tokens=block_tokens,
            shard=spec.shard,
        )
        weights = random_weights(
            spec.architecture, dtype=self.dtype, device=self.device, seed=spec.seed, shard=spec.shard,
            eight_bits=spec.dtype == EIGHT_BITS,
        )  # fmt: skip
        self.decoder = Decoder(spec.architecture, weights, cache, spec.max_positions, shard=spec.shard)
        self._stepper = self._make_stepper(capture)
        self._built_s = time.perf_counter() - started
        self._clock = clock_for(self.device)

    def _make_stepper(self, capture: object) -> Stepper:
        spec = self.spec
        cuda = self.device.type == "cuda"
        if spec.operations == "torch" or (spec.operations == "auto" and not cuda):
            return PlainStepper(self.decoder, self.dtype, self.device)
        from calibration.engine.kernels.operations import TritonOperations

        self.decoder.operations = TritonOperations(self.decoder.cache)
        return KernelStepper(self.decoder, self.device, mixed_mode=spec.mixed_mode, capture=capture)

    def environment(self) -> dict[str, object]:
        cuda = self.device.type == "cuda"
        plain = isinstance(self._stepper, PlainStepper)
        found: dict[str, object] = {
            "torch": torch.__version__,
            "numpy": np.__version__,
            "device": self.spec.device,
            "device_name": torch.cuda.get_device_name(self.device) if cuda else "",
            "dtype": str(self.dtype).removeprefix("torch."),
            "weights": "float8_e4m3fn, a scale per row" if self.spec.dtype == EIGHT_BITS else "as dtype",
            "intra_op_threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "clock": "CUDA events" if cuda else "CPU time of one thread",
            # Rows attend one by one in plain torch: fair on a CPU core, not on a GPU. Kernels must first show what
            # share of the device they reach (calibration/roofline.py).
            "representative": plain and not cuda,
            "kv_tokens": self.decoder.cache.tokens,
            "block_tokens": self.decoder.cache.block_tokens,
            "parameters": self.decoder.weights.parameters,
            "build_s": self._built_s,
        }
        return found | self._stepper.facts() | rank_facts(self.spec.shard, self.device)

    def measure(
        self,
        decode_contexts: Sequence[int],
        chunks: Sequence[ChunkTuple],
        seed: int,
        *,
        lead_in: Sequence[int] = (),
    ) -> StepTiming:
        if lead_in:
            self.measure(lead_in, (), seed + 1)
        return self.run(self._batch(decode_contexts, chunks, seed))

    def _batch(self, decode_contexts: Sequence[int], chunks: Sequence[ChunkTuple], seed: int) -> StepBatch:
        return random_batch(
            decode_contexts,
            chunks,
            vocab_size=self.spec.architecture.vocab_size,
            blocks=self.decoder.cache.blocks,
            block_tokens=self.decoder.cache.block_tokens,
            rng=np.random.default_rng(seed),
        )

    def usage(self) -> dict[str, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {"cpu_s": used.ru_utime + used.ru_stime, "peak_bytes": used.ru_maxrss * 1024.0}

    def ceilings(self) -> dict[str, float]:
        """The device's copy and matmul rates (ceilings.py), on the clock and in the type of the steps."""
        eight_bits = self.spec.dtype == EIGHT_BITS
        return measure_ceilings(self.device, self.dtype, self._clock, eight_bits=eight_bits)

    def breakdown(
        self, decode_contexts: Sequence[int], chunks: Sequence[ChunkTuple], seed: int
    ) -> dict[str, float]:
        """Shares of one profiled step of the shape by kind of work (breakdown.py)."""
        batch = self._batch(decode_contexts, chunks, seed)
        self._stepper.ready(batch)
        step = self._stepper.prepare(batch)
        if self.device.type != "cuda":
            step()  # warm
            self.decoder.attention_range = lambda: record_function(PHASE)
        try:
            return profiled(step, self.device)
        finally:
            self.decoder.attention_range = nullcontext

    def run(self, batch: StepBatch) -> StepTiming:
        """Runs and times one step. Preparing its index tensors is host work, outside the device's time."""
        self._stepper.ready(batch)
        return self._clock.time(lambda: self._stepper.prepare(batch))

    def serve(self, batch: StepBatch) -> tuple[StepTiming, list[int]]:
        """Runs and times one step: how long it took, and the likeliest token of each sampled row."""
        self._stepper.ready(batch)
        found: list[torch.Tensor] = []

        def prepare() -> Callable[[], object]:
            step = self._stepper.prepare(batch)
            return lambda: found.append(step())

        timing = self._clock.time(prepare)
        return timing, found[-1].tolist()

    def tokens(self, batch: StepBatch) -> torch.Tensor:
        """Runs one step untimed: the likeliest token of each sampled row, int64 [S]."""
        return self._stepper.prepare(batch)().clone()

    def logits(self, batch: StepBatch) -> torch.Tensor:
        """Runs one step untimed and without graphs: logits of the sampled rows [S, vocab]."""
        return self.decoder.logits(self._stepper.plan(batch))

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
    if requested == EIGHT_BITS:
        return torch.bfloat16
    if requested != "auto":
        if requested not in DTYPES:
            known = ", ".join((*DTYPES, EIGHT_BITS))
            raise ValueError(f"dtype must be auto or one of {known}, got {requested!r}")
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
