"""KV capacity by token budget and KV transfers of a device: asked of a process, made into tables.

The process (surroundings_process) builds the engine again with the same pool, after the one that timed the steps has
ended: what it measures must not disturb those. Pool and working memory share what the pool that was asked for and the
largest budget's steps take together, so the largest budget has exactly the pool of the calibration and smaller
budgets have what they leave over; on a GPU less, where the device's own memory (GPU_USABLE_SHARE of it) has no more.

Ranks of one model are as many processes, as they were when the steps were timed. Each has a pool and working memory of
its own and the model has the tokens of the smallest pool. A sequence's KV is moved by all at once, each its share: a
table's sizes are those of the whole, as a plan counts them, and its seconds those of the slowest rank. Units: tokens,
bytes, seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from calibration.architecture import Architecture
from calibration.capacity import KVCapacity
from calibration.engine.client import rank_device
from calibration.experiment.envelope import Envelope
from calibration.experiment.fits import BLOCK_TOKENS, GPU_USABLE_SHARE
from calibration.transfer import MAX_UNCERTAINTY, TransferTable

LONGEST_S = 600.0
POLL_S = 0.1
OCTAVES = 5
MAX_SIZE_BYTES = 256 << 20
_RESAMPLES = 400


class SurroundingsError(RuntimeError):
    """The process failed; its own last words."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What was found; `remarks` say what was not measured and why."""

    kv_capacity: KVCapacity
    transfers: tuple[TransferTable, ...]
    remarks: tuple[str, ...]
    cpu_s: float


def budgets_of(envelope: Envelope) -> list[int]:
    """The largest step and its halves, OCTAVES of them, down to 16 tokens."""
    return sorted({max(1, envelope.max_step_tokens >> k) for k in range(OCTAVES)} - set(range(1, 16))) or [
        envelope.max_step_tokens
    ]


def tokens_of(envelope: Envelope, kv_bytes_per_token: int) -> list[int]:
    """Contexts whose KV is moved: a block, and powers of four up to the longest, none above MAX_SIZE_BYTES."""
    longest = max(BLOCK_TOKENS, min(envelope.max_context_tokens, MAX_SIZE_BYTES // kv_bytes_per_token))
    sizes = [BLOCK_TOKENS << (2 * k) for k in range(12)]
    return [size for size in sizes if size < longest] + [longest]


def measure_surroundings(
    architecture: Architecture,
    envelope: Envelope,
    *,
    device: str,
    dtype: str,
    kv_tokens: int,
    seed: int = 0,
    tensor_parallel: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
) -> Surroundings | None:
    """Measures them; None when told to stop. The caller holds the locks of the devices, `tensor_parallel` from `device`
    on. kv_tokens: of the whole model. Raises SurroundingsError."""
    rank_bytes = architecture.kv_bytes_per_token(2, tensor_parallel) // tensor_parallel
    request: dict[str, Any] = {
        "architecture": architecture.to_dict(), "envelope": envelope.to_dict(), "dtype": dtype,
        "kv_tokens": kv_tokens, "seed": seed, "budgets": budgets_of(envelope),
        "tokens": tokens_of(envelope, rank_bytes), "ranks": tensor_parallel,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="ridgeline-ranks-") as folder:
        request["meeting"] = str(Path(folder) / "meeting")
        each = [request | {"rank": r, "device": rank_device(device, r)} for r in range(request["ranks"])]
        answers = _ask(each, should_stop)
    return None if answers is None else tables(answers, device, kv_tokens)


@dataclass(frozen=True, slots=True)
class _Asked:
    """One process, and the files that it writes to."""

    process: subprocess.Popen[bytes]
    out: IO[bytes]
    errors: IO[bytes]

    def lines(self, file: IO[bytes]) -> list[str]:
        file.seek(0)
        return file.read().decode(errors="replace").strip().splitlines()


def _ask(requests: Sequence[dict[str, Any]], should_stop: Callable[[], bool]) -> list[dict[str, Any]] | None:
    """Each rank's answer. When one fails the others, which would wait for it, are killed."""
    ends = time.monotonic() + LONGEST_S
    with contextlib.ExitStack() as stack:
        asked = [stack.enter_context(_started(request)) for request in requests]
        while True:
            states = [one.process.poll() for one in asked]
            for rank, state in enumerate(states):
                if state:
                    raise SurroundingsError(_last_words(asked, rank, state))
            if None not in states:
                return [json.loads(one.lines(one.out)[-1]) for one in asked]
            if should_stop():
                return None
            if time.monotonic() > ends:
                raise SurroundingsError(f"did not end within {LONGEST_S:.0f} s")
            time.sleep(POLL_S)


@contextlib.contextmanager
def _started(request: dict[str, Any]) -> Iterator[_Asked]:
    repository = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if request["ranks"] > 1:
        environment |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(repository), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "calibration.experiment.surroundings_process", str(os.getpid())]
    with (
        tempfile.TemporaryFile() as told,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as errors,
    ):
        told.write(json.dumps(request).encode())
        told.seek(0)
        process = subprocess.Popen(  # noqa: S603 - our own module, no outside input
            command, cwd=repository, env=environment, stdin=told, stdout=out, stderr=errors
        )
        try:
            yield _Asked(process, out, errors)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def _last_words(asked: Sequence[_Asked], rank: int, state: int) -> str:
    said = (asked[rank].lines(asked[rank].errors) or [f"exit status {state}"])[-1][:500]
    return said if len(asked) == 1 else f"rank {rank} of {len(asked)}: {said}"


def tables(answers: Sequence[dict[str, Any]], device: str, kv_tokens: int) -> Surroundings:
    """The answers of all ranks, or of the one process, as tables."""
    ranks = len(answers)
    each = [_capacity(answer, device, kv_tokens) for answer in answers]
    capacity, together = each[0], ""
    if ranks > 1:
        where = "a GPU each" if "total_bytes" in answers[0] else "processes on one CPU, for testing"
        together = f", {ranks} ranks at once ({where}), the slowest counts"
        smallest = f"; the smallest of {ranks} ranks ({where}), bytes of one"
        capacity = KVCapacity.of_ranks(each, each[0].label + smallest)
    of_each_path = zip(*(answer["paths"] for answer in answers), strict=True)
    transfers = tuple(
        _table(
            paths[0][0] + together,
            [sum(sizes) for sizes in zip(*(path[1] for path in paths), strict=True)],
            _slowest([path[2] for path in paths]),
            ranks,
        )
        for paths in of_each_path
    )
    cpu_s = sum(float(answer["cpu_s"]) for answer in answers)
    return Surroundings(capacity, transfers, tuple(answers[0]["remarks"]), cpu_s)


def _capacity(answer: dict[str, Any], device: str, kv_tokens: int) -> KVCapacity:
    """Of one process: in what is its own."""
    token_bytes = int(answer["kv_bytes_per_token"])
    working = {int(budget): int(size) for budget, size in answer["working_bytes"].items()}
    available = kv_tokens * token_bytes + max(working.values())
    how = "resident set"
    if "total_bytes" in answer:
        most = int(answer["total_bytes"] * GPU_USABLE_SHARE) - int(answer["other_bytes"])
        available, how = min(available, most), f"allocator, {GPU_USABLE_SHARE:.0%} of the device"
    return KVCapacity.measured(
        working, available_bytes=available, kv_bytes_per_token=token_bytes, block_tokens=BLOCK_TOKENS,
        label=f"measured on {device}: peak of each budget's largest steps ({how})",
    )  # fmt: skip


def _slowest(ranks: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """Seconds [sizes][repeats] of ranks that began each repeat together: what the last of them took."""
    by_size = zip(*ranks, strict=True)
    return [[max(times) for times in zip(*repeats, strict=True)] for repeats in by_size]


def _table(
    label: str, sizes: Sequence[int], seconds: Sequence[Sequence[float]], ranks: int = 1
) -> TransferTable:
    """Medians, never falling with the size; the widest of the medians' 95 % intervals is the table's doubt."""
    medians = np.maximum.accumulate([float(np.median(repeats)) for repeats in seconds])
    widest = max(_half_width(repeats) for repeats in seconds)
    return TransferTable.measured(
        tuple(map(float, sizes)),
        tuple(medians.tolist()),
        label=label,
        uncertainty=min(widest, MAX_UNCERTAINTY),
        ranks=ranks,
    )


def _half_width(repeats: Sequence[float]) -> float:
    rng = np.random.default_rng(len(repeats))
    drawn = np.median(rng.choice(np.asarray(repeats), (_RESAMPLES, len(repeats))), axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float((high - low) / 2 / np.median(repeats))
