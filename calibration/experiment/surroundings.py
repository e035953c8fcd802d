"""KV capacity by token budget and KV transfers of a device: asked of a process, made into tables.

The process (surroundings_process) builds the engine again with the same pool, after the one that timed the steps has
ended: what it measures must not disturb those. Pool and working memory share what the pool that was asked for and the
largest budget's steps take together, so the largest budget has exactly the pool of the calibration and smaller
budgets have what they leave over; on a GPU less, where the device's own memory (GPU_USABLE_SHARE of it) has no more.
Units: tokens, bytes, seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibration.architecture import Architecture
from calibration.capacity import KVCapacity
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
    should_stop: Callable[[], bool] = lambda: False,
) -> Surroundings | None:
    """Measures them; None when told to stop. The caller holds the device's lock. Raises SurroundingsError."""
    request = {
        "architecture": architecture.to_dict(), "envelope": envelope.to_dict(), "device": device, "dtype": dtype,
        "kv_tokens": kv_tokens, "seed": seed, "budgets": budgets_of(envelope),
        "tokens": tokens_of(envelope, architecture.kv_bytes_per_token(2)),
    }  # fmt: skip
    answer = _ask(request, should_stop)
    return None if answer is None else tables(answer, device, kv_tokens)


def _ask(request: dict[str, Any], should_stop: Callable[[], bool]) -> dict[str, Any] | None:
    repository = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(repository), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "calibration.experiment.surroundings_process"]
    process = subprocess.Popen(  # noqa: S603 - our own module, no outside input
        command, cwd=repository, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    ends = time.monotonic() + LONGEST_S
    pending: str | None = json.dumps(request)
    try:
        while True:
            try:
                out, errors = process.communicate(pending, timeout=POLL_S)
                break
            except subprocess.TimeoutExpired:
                pending = None
                if should_stop():
                    return None
                if time.monotonic() > ends:
                    raise SurroundingsError(f"did not end within {LONGEST_S:.0f} s") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if process.returncode:
        raise SurroundingsError(
            (errors.strip().splitlines() or [f"exit status {process.returncode}"])[-1][:500]
        )
    found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return found


def tables(answer: dict[str, Any], device: str, kv_tokens: int) -> Surroundings:
    """The process's answer as tables."""
    token_bytes = int(answer["kv_bytes_per_token"])
    working = {int(budget): int(size) for budget, size in answer["working_bytes"].items()}
    available = kv_tokens * token_bytes + max(working.values())
    how = "resident set"
    if "total_bytes" in answer:
        most = int(answer["total_bytes"] * GPU_USABLE_SHARE) - int(answer["other_bytes"])
        available, how = min(available, most), f"allocator, {GPU_USABLE_SHARE:.0%} of the device"
    capacity = KVCapacity.measured(
        working, available_bytes=available, kv_bytes_per_token=token_bytes, block_tokens=BLOCK_TOKENS,
        label=f"measured on {device}: peak of each budget's largest steps ({how})",
    )  # fmt: skip
    transfers = tuple(_table(label, sizes, seconds) for label, sizes, seconds in answer["paths"])
    return Surroundings(capacity, transfers, tuple(answer["remarks"]), float(answer["cpu_s"]))


def _table(label: str, sizes: Sequence[int], seconds: Sequence[Sequence[float]]) -> TransferTable:
    """Medians, never falling with the size; the widest of the medians' 95 % intervals is the table's doubt."""
    medians = np.maximum.accumulate([float(np.median(repeats)) for repeats in seconds])
    widest = max(_half_width(repeats) for repeats in seconds)
    return TransferTable.measured(
        tuple(map(float, sizes)),
        tuple(medians.tolist()),
        label=label,
        uncertainty=min(widest, MAX_UNCERTAINTY),
    )


def _half_width(repeats: Sequence[float]) -> float:
    rng = np.random.default_rng(len(repeats))
    drawn = np.median(rng.choice(np.asarray(repeats), (_RESAMPLES, len(repeats))), axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float((high - low) / 2 / np.median(repeats))
