"""Steps over real sequences: token ids and block tables come in, sampled tokens go out, KV blocks can be handed on.

A measured step has random tokens and scattered blocks, because timing needs no content. Serving needs it: what a decode
reads must be what a prefill wrote, here or in another process. Blocks are handed over through memory that two engine
processes share (a descriptor that only they have): one gathers its pages there, the other puts them into blocks of its
own. The time of each half is this device's alone: CPU time of the one thread on a CPU, wall time with the device
synchronised on a GPU. Seconds.
"""

from __future__ import annotations

import mmap
import time
from typing import Any

import numpy as np
import torch

from calibration.engine.batch import StepBatch
from calibration.engine.runner import TorchRunner


class Serving:
    """What `process` answers the serving requests with. `memory`: shared with the other engine, once it is attached."""

    def __init__(self, runner: TorchRunner) -> None:
        self._runner = runner
        self._memory: mmap.mmap | None = None

    def answer(self, operation: str, request: dict[str, Any]) -> dict[str, object]:
        """To one of OPERATIONS. Raises ValueError for a request that does not belong together."""
        if operation == "attach":
            self._memory = mmap.mmap(int(request["descriptor"]), int(request["bytes"]))
            return {}
        if operation == "serve":
            timing, tokens = self._runner.serve(batch_of(request))
            answer: dict[str, object] = {"seconds": timing.seconds, "host_gap_s": timing.host_gap_s}
            return answer | {"contended": timing.contended, "tokens": tokens}
        if operation == "logits":
            return {"logits": self._runner.logits(batch_of(request)).float().tolist()}
        blocks = torch.tensor(request["blocks"], dtype=torch.int64, device=self._runner.device)
        move = self._gather if operation == "export" else self._scatter
        return {"seconds": self._timed(lambda: move(blocks)), "bytes": len(blocks) * self.block_bytes}

    @property
    def block_bytes(self) -> int:
        """Of one block in all layers."""
        layers = self._runner.decoder.cache.layers
        return sum(layer[0].numel() * layer.element_size() for layer in layers)

    def _gather(self, blocks: torch.Tensor) -> None:
        place = self._places(len(blocks))
        for layer, part in zip(self._runner.decoder.cache.layers, place, strict=True):
            pages = layer.index_select(0, blocks).contiguous()
            part.copy_(pages.view(torch.uint8).view(-1))

    def _scatter(self, blocks: torch.Tensor) -> None:
        place = self._places(len(blocks))
        for layer, part in zip(self._runner.decoder.cache.layers, place, strict=True):
            pages = part.to(layer.device).view(layer.dtype).view(len(blocks), *layer.shape[1:])
            layer.index_copy_(0, blocks, pages)

    def _places(self, blocks: int) -> list[torch.Tensor]:
        """Where each layer's pages lie in the shared memory, as bytes."""
        if self._memory is None:
            raise ValueError("no shared memory has been attached")
        layers = self._runner.decoder.cache.layers
        sizes = [blocks * layer[0].numel() * layer.element_size() for layer in layers]
        if sum(sizes) > len(self._memory):
            raise ValueError(f"{sum(sizes):,} bytes do not fit the {len(self._memory):,} that are shared")
        whole = torch.frombuffer(self._memory, dtype=torch.uint8, count=sum(sizes))
        return list(whole.split(sizes))

    def _timed(self, move: Any) -> float:
        cuda = self._runner.device.type == "cuda"
        clock = time.perf_counter if cuda else time.thread_time
        if cuda:
            torch.cuda.synchronize(self._runner.device)
        start = clock()
        move()
        if cuda:
            torch.cuda.synchronize(self._runner.device)
        return clock() - start


OPERATIONS = ("attach", "serve", "logits", "export", "import")


def batch_of(request: dict[str, Any]) -> StepBatch:
    """The step that a request describes; see StepBatch. Raises ValueError."""
    return StepBatch(
        token_ids=np.array(request["token_ids"], dtype=np.int64),
        query_tokens=np.array(request["query_tokens"], dtype=np.int64),
        cached_tokens=np.array(request["cached_tokens"], dtype=np.int64),
        block_tables=tuple(np.array(table, dtype=np.int64) for table in request["block_tables"]),
        sampled=np.array(request["sampled"], dtype=np.bool_),
    )
