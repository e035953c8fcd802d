"""How a step is run on this device: which of several ways, and when it is ready to be timed.

  plain      plain torch, row by row: a CPU core, where that is how one computes
  kernels    Triton kernels: pure decode steps whole from a graph, steps of up to 512 tokens in pieces, larger ones
             launched kernel by kernel (the host is ahead of the device there)
Mixed steps attend `unified` (one kernel for decodes and chunks, as vLLM's kernels do: decodes in it cost more) or
`split` (each by its own kernel). A step whose like has not run yet is run once unseen, so that compiling and capturing
are not timed. On a CPU torch compiles its products for every number of rows: mixed steps took 19 % longer the first
time than later (half of them; a tenth 51 %), and a server that has run for an hour has met them all. There the step is
run whole, because behind one layer of it many still took longer, and then its first token alone, because right behind
itself a step takes less than behind another (`python -m benchmarks.fresh_steps`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from calibration.engine.attention import StepPlan, plan
from calibration.engine.batch import StepBatch, blocks_for, first_token, leading_decodes
from calibration.engine.decoder import Decoder
from calibration.engine.kernels.plan import PagedPlan, paged_plan

MIXED_MODES = ("unified", "split")
Run = Callable[[], torch.Tensor]


class Stepper(Protocol):
    def ready(self, batch: StepBatch) -> None:
        """Does what must not be timed; the step may run."""

    def prepare(self, batch: StepBatch) -> Run:
        """Host work of one step; what it returns runs it: the likeliest tokens, int64 [S]."""

    def plan(self, batch: StepBatch) -> StepPlan | PagedPlan:
        """Index tensors of one step, for a forward without graphs."""

    def facts(self) -> dict[str, object]:
        """What ran how, for the record."""


class PlainStepper:
    def __init__(self, decoder: Decoder, dtype: torch.dtype, device: torch.device) -> None:
        self._decoder, self._dtype, self._device = decoder, dtype, device
        self._seen: set[tuple[str, int, int]] = set()

    def ready(self, batch: StepBatch) -> None:
        if not self._seen.issuperset(sizes := _sizes(batch)):
            for rehearsed in (batch, first_token(batch)):
                self.prepare(rehearsed)()
            self._seen |= sizes

    def prepare(self, batch: StepBatch) -> Run:
        decoder, prepared = self._decoder, self.plan(batch)
        return lambda: decoder.step(prepared)

    def plan(self, batch: StepBatch) -> StepPlan:
        decoder = self._decoder
        return plan(batch, decoder.cache.block_tokens, self._dtype, self._device, decoder.windows)

    def facts(self) -> dict[str, object]:
        # Rows attend one by one, each by the same call: decodes in a mixed step cost what they cost alone.
        return {"operations": "torch", "mixed_mode": "unified"} | latent_facts(self._decoder, made=True)


def _sizes(batch: StepBatch) -> set[tuple[str, int, int]]:
    """What plain torch compiles for: how many rows the products and the head have, and each chunk's attention. That of
    decodes is not compiled."""
    query, cached = batch.query_tokens, batch.cached_tokens
    sizes = {("rows", len(batch.token_ids), 0), ("sampled", int(batch.sampled.sum()), 0)}
    chunks = zip(query[query > 1].tolist(), cached[query > 1].tolist(), strict=True)
    return sizes | {("chunk", tokens, before) for tokens, before in chunks}


def latent_facts(decoder: Decoder, made: bool) -> dict[str, object]:
    """Of latent attention, which of its two forms chunks are timed in (engine/latent.py); engines make keys and values
    first. Empty for other models."""
    if decoder.architecture.latent is None:
        return {}
    form = "keys and values made first" if made else "absorbed, which is more work than engines do"
    return {"latent_prefill": form}


class KernelStepper:
    """Raises IndexError for positions beyond the decoder's tables, ValueError for an unknown mixed_mode."""

    def __init__(
        self, decoder: Decoder, device: torch.device, *, mixed_mode: str = "unified", capture: object = None
    ) -> None:
        from calibration.engine import graphs
        from calibration.engine.kernels.chunks import queries_of_tile

        if mixed_mode not in MIXED_MODES:
            raise ValueError(f"mixed_mode must be one of {', '.join(MIXED_MODES)}, got {mixed_mode!r}")
        a, block_tokens = decoder.architecture, decoder.cache.block_tokens
        heads = decoder.shard.heads(a)
        own = decoder.shard.kv_heads(a)
        self._tile_queries = queries_of_tile(heads, 1 if a.latent else own.stop - own.start)
        self._decoder, self._device, self._unified = decoder, device, mixed_mode == "unified"
        self._sizes = graphs.sizes_up_to(graphs.MOST_TOKENS)
        self._captures = device.type == "cuda" or capture is not None
        self._seen: set[tuple[str, int, int]] = set()
        if self._captures:
            made: graphs.Capture = capture or graphs.cuda_capture(device)  # type: ignore[assignment]
            blocks = blocks_for(decoder.max_positions, block_tokens)
            buffers = graphs.StepBuffers(self._sizes[-1], blocks, block_tokens, device)
            self._decodes = graphs.DecodeGraphs(decoder, buffers, made)
            self._pieces = graphs.PiecewiseGraphs(decoder, buffers, made)

    def ready(self, batch: StepBatch) -> None:
        like = (*self._kind(batch), leading_decodes(batch))  # kernels are compiled for numbers of splits
        if like not in self._seen:
            self.prepare(batch)()
            self._seen.add(like)

    def prepare(self, batch: StepBatch) -> Run:
        longest = int((batch.cached_tokens + batch.query_tokens).max())
        if longest > self._decoder.max_positions:
            raise IndexError(
                f"position {longest - 1} is beyond the {self._decoder.max_positions} of this engine"
            )
        way, size = self._kind(batch)
        if way == "graph":
            return self._decodes.prepare(batch, size)
        decoder, made = self._decoder, self.plan(batch)
        if way == "pieces":
            return self._pieces.prepare(batch, made, size)
        return lambda: decoder.step(made)

    def plan(self, batch: StepBatch) -> PagedPlan:
        block_tokens = self._decoder.cache.block_tokens
        return paged_plan(batch, block_tokens, self._device, self._tile_queries, unified=self._unified)

    def facts(self) -> dict[str, object]:
        found: dict[str, object] = {"operations": "triton"} | latent_facts(self._decoder, made=False)
        found["mixed_mode"] = "unified" if self._unified else "split"
        if self._captures:
            found["captured_decode_batches"] = list(self._decodes.captured)
            found["captured_step_tokens"] = list(self._pieces.captured)
        return found

    def _kind(self, batch: StepBatch) -> tuple[str, int]:
        from calibration.engine.graphs import padded

        n = len(batch.token_ids)
        size = padded(n, self._sizes) if self._captures else None
        if size is None:
            return "launched", n
        decodes = n == len(batch.block_tables) and bool(batch.sampled.all())
        return ("graph" if decodes else "pieces"), size
