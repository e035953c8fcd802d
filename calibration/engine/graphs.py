"""Steps replayed from captured graphs: what a GPU saves by not being told each kernel anew.

A graph reads and writes fixed addresses. So there is one set of buffers; a step is copied into them, padded up to
the next captured size, and replayed. Padded rows have length 0 and slots below 0: kernels read and store nothing for
them, but they cost, which is why decode time is a staircase.
  decode     a whole step, sampling included, for each size of batch
  piecewise  a step with chunks of few tokens: what lies between two attentions is a graph for each number of tokens,
             attention itself is launched with the step's own tiles (its grid depends on them)
Sizes are vLLM's. Captured when first met, largest or not: an experiment meets few. `capture` makes the replayable
thing: CUDA's, or in tests one that runs the function again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calibration.engine.attention import token_places
from calibration.engine.batch import StepBatch, blocks_for
from calibration.engine.decoder import Decoder
from calibration.engine.kernels.plan import PagedPlan
from calibration.engine.operations import Tokens

MOST_TOKENS = 512

#: Runs a function once for good: (what repeats it, the tensors it fills each time).
Capture = Callable[[Callable[[], Any]], tuple[Callable[[], None], Any]]


def sizes_up_to(most: int) -> tuple[int, ...]:
    """Captured sizes: 1, 2, 4, then every 8 to 256, then every 16 (vLLM's list)."""
    listed = [1, 2, 4, *range(8, 256, 8), *range(256, MOST_TOKENS + 1, 16)]
    return tuple(size for size in listed if size <= most)


def padded(count: int, sizes: tuple[int, ...]) -> int | None:
    """The smallest captured size that holds `count`; None above the largest."""
    return next((size for size in sizes if size >= count), None)


class StepBuffers:
    """The addresses that graphs read, large enough for the largest size."""

    def __init__(self, most: int, blocks_per_row: int, block_tokens: int, device: torch.device) -> None:
        self.block_tokens = block_tokens
        self._ids, self._positions, self._slots = (
            torch.zeros(most, dtype=torch.int64, device=device) for _ in range(3)
        )
        self._tables = torch.zeros(most, blocks_per_row, dtype=torch.int32, device=device)
        self._lengths = torch.zeros(most, dtype=torch.int32, device=device)
        self._starts = torch.arange(most + 1, dtype=torch.int32, device=device)
        self._rows = torch.arange(most, dtype=torch.int64, device=device)
        self._no_tiles = torch.zeros(0, dtype=torch.int32, device=device)
        self._blocks_per_row = blocks_per_row

    def load_tokens(self, batch: StepBatch, size: int) -> None:
        """Copies a step's tokens and pads them to `size`."""
        positions, slots = token_places(batch, self.block_tokens)
        for target, source, filler in (
            (self._ids, batch.token_ids, 0),
            (self._positions, positions, 0),
            (self._slots, slots, -1),
        ):
            _copy(target[:size], source, filler)

    def load_decodes(self, batch: StepBatch, size: int) -> None:
        """Copies a step of decodes, one token a row, and pads it to `size` rows."""
        self.load_tokens(batch, size)
        tables = np.zeros((len(batch.block_tables), self._blocks_per_row), dtype=np.int32)
        for row, table, cached in zip(tables, batch.block_tables, batch.cached_tokens.tolist(), strict=True):
            used = blocks_for(cached + 1, self.block_tokens)
            row[:used] = table[:used]
        self._tables[: len(tables)].copy_(torch.from_numpy(tables), non_blocking=True)
        _copy(self._lengths[:size], batch.cached_tokens + 1, 0)

    def tokens(self, size: int) -> Tokens:
        return Tokens(self._ids[:size], self._positions[:size], self._slots[:size])

    def decodes(self, size: int) -> PagedPlan:
        """The plan of `size` decode rows, as views."""
        tokens = self.tokens(size)
        return PagedPlan(
            tokens.ids, tokens.positions, tokens.slots, self._rows[:size], self._tables[:size],
            self._lengths[:size], self._starts[: size + 1], (self._no_tiles, self._no_tiles), size,
        )  # fmt: skip


def _copy(target: torch.Tensor, source: np.ndarray, filler: int) -> None:
    full = np.full(len(target), filler, dtype=np.int64)
    full[: len(source)] = source
    target.copy_(torch.from_numpy(full), non_blocking=True)


class DecodeGraphs:
    """Whole decode steps, one graph a padded batch."""

    def __init__(self, decoder: Decoder, buffers: StepBuffers, capture: Capture) -> None:
        self._decoder, self._buffers, self._capture = decoder, buffers, capture
        self._graphs: dict[int, tuple[Callable[[], None], torch.Tensor]] = {}

    @property
    def captured(self) -> tuple[int, ...]:
        return tuple(sorted(self._graphs))

    def prepare(self, batch: StepBatch, size: int) -> Callable[[], torch.Tensor]:
        """Loads the step and gives what runs it: the likeliest token of each row, int64 [rows]."""
        self._buffers.load_decodes(batch, size)
        if size not in self._graphs:
            plan = self._buffers.decodes(size)
            self._graphs[size] = self._capture(lambda: self._decoder.step(plan))
        replay, picked = self._graphs[size]

        def run() -> torch.Tensor:
            replay()
            return picked[: len(batch.block_tables)]

        return run


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Graphs of one padded number of tokens: one before each attention, and one after the last."""

    replays: tuple[Callable[[], None], ...]
    queries: tuple[torch.Tensor, ...]
    attended: torch.Tensor  # attention's result, read by the piece after it
    result: torch.Tensor


class PiecewiseGraphs:
    """Steps with chunks: graphs between attentions, one set a padded number of tokens."""

    def __init__(self, decoder: Decoder, buffers: StepBuffers, capture: Capture) -> None:
        self._decoder, self._buffers, self._capture = decoder, buffers, capture
        self._pieces: dict[int, _Pieces] = {}

    @property
    def captured(self) -> tuple[int, ...]:
        return tuple(sorted(self._pieces))

    def prepare(self, batch: StepBatch, plan: PagedPlan, size: int) -> Callable[[], torch.Tensor]:
        """Loads the step and gives what runs it: the likeliest token of each sampled row, int64 [S]."""
        self._buffers.load_tokens(batch, size)
        if size not in self._pieces:
            self._pieces[size] = self._capture_pieces(size)
        pieces, count = self._pieces[size], len(plan.token_ids)

        @torch.inference_mode()
        def run() -> torch.Tensor:
            pieces.replays[0]()
            for index, queries in enumerate(pieces.queries):
                pieces.attended[:count] = self._decoder.attend(index, queries[:count], plan)
                pieces.replays[index + 1]()
            return self._decoder.sample(pieces.result, plan.sampled)

        return run

    @torch.inference_mode()
    def _capture_pieces(self, size: int) -> _Pieces:
        decoder, tokens = self._decoder, self._buffers.tokens(size)
        layers = len(decoder.weights.layers)
        attended = decoder.weights.embedding.new_zeros(size, decoder.attended_width)

        def first() -> tuple[torch.Tensor, torch.Tensor]:
            x, normed = decoder.begin(tokens.ids)
            return x, decoder.project(0, normed, tokens)

        def after(index: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, normed = decoder.finish(index, x, attended)
            return x, normed if index + 1 == layers else decoder.project(index + 1, normed, tokens)

        replay, (x, queries) = self._capture(torch.inference_mode()(first))
        replays, asked = [replay], [queries]
        for index in range(layers):
            before = x
            replay, (x, queries) = self._capture(
                torch.inference_mode()(lambda index=index, before=before: after(index, before))
            )
            replays.append(replay)
            asked.append(queries)
        return _Pieces(tuple(replays), tuple(asked[:layers]), attended, x)


def cuda_capture(device: torch.device) -> Capture:
    """Captures into CUDA graphs that share one memory pool. Never run on a GPU yet."""
    pool = torch.cuda.graph_pool_handle()

    def capture(run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(2):  # kernels compile and libraries load outside of the capture
                run()
        torch.cuda.current_stream(device).wait_stream(stream)
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = run()
        return graph.replay, result

    return capture
