"""The engines of a verification job: started under the device's lock, warmed up, gone afterwards; and the times they
took, kept in the job's row as they come, so that a job that is cut short goes on where it was."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from calibration.architecture import Architecture
from calibration.drift import asked_dtype
from calibration.engine.client import EngineClient, EngineError, rank_device
from calibration.engine.device_lock import DeviceBusy, device_lock
from calibration.engine.memory import cpu_memory_bytes
from calibration.experiment import DoesNotFit, Envelope, Region, check_fits, run_step, warm_up
from calibration.jobs import JobBroken, JobCancelled, JobRefused, JobRun
from calibration.models import Calibration
from calibration.patience import patiently
from calibration.pipeline import LOCK_WAIT_S, device_kind
from planner.models import Verification

SAVE_EVERY_S = 2.0
SAVE_SHARE = 0.02  # of the time: saving many steps takes longer, so it comes more rarely


@dataclass(frozen=True, slots=True)
class EngineWish:
    """What the engines have to hold: `kv_tokens` each (None: as calibrated), sequences of up to `longest_tokens`.
    `count` of them, which share `shared_bytes` of memory to hand KV over."""

    architecture: Architecture
    longest_tokens: int
    seed: int
    count: int = 1
    kv_tokens: int | None = None
    shared_bytes: int = 0


@contextlib.contextmanager
def engines(calibration: Calibration, run: JobRun, wish: EngineWish) -> Iterator[list[EngineClient]]:
    """Warm engines such as the calibration timed (its types, its way to mix a step), on its device, which is locked
    meanwhile. Raises JobRefused where they cannot be had or end, JobCancelled."""
    envelope = Envelope.from_dict(calibration.envelope or {})
    environment = calibration.environment or {}
    kv_tokens = wish.kv_tokens or int(calibration.kv_tokens or 0)
    _refuse_too_many(calibration, wish, envelope, kv_tokens)
    run.progress(0, 1, f"Waiting for {calibration.device}, which measures one thing at a time")
    ranks = calibration.tensor_parallel
    try:
        with contextlib.ExitStack() as stack:
            names = dict.fromkeys(rank_device(calibration.device, rank) for rank in range(ranks))
            kept = [
                stack.enter_context(device_lock(name, wait_s=LOCK_WAIT_S, should_stop=run.should_stop))
                for name in names
            ]
            if wish.shared_bytes:
                kept.append(stack.enter_context(_shared_memory(wish.shared_bytes)))
            run.progress(0, 1, "Starting the engine" if wish.count == 1 else f"Starting {wish.count} engines")
            found = [
                stack.enter_context(
                    EngineClient(
                        wish.architecture, device=calibration.device, dtype=asked_dtype(environment),
                        mixed_mode=str(environment.get("mixed_mode") or "unified"), kv_tokens=kv_tokens,
                        max_positions=max(envelope.max_context_tokens + 1, wish.longest_tokens), seed=wish.seed,
                        lock_descriptors=kept, tensor_parallel=ranks,
                    )
                )
                for _ in range(wish.count)
            ]  # fmt: skip
            for engine in found:
                if wish.shared_bytes:
                    engine.attach(kept[-1], wish.shared_bytes)
                _warm(engine, Region(envelope, kv_tokens), wish.seed)
            yield found
    except DeviceBusy as busy:
        if run.should_stop():
            raise JobCancelled from None
        raise JobRefused(str(busy)) from busy
    except EngineError as error:
        raise JobBroken(str(error)) from error


def _refuse_too_many(calibration: Calibration, wish: EngineWish, envelope: Envelope, kv_tokens: int) -> None:
    """Several engines need several times the memory of one. (Of a GPU the engine itself says so.)"""
    if wish.count == 1 or device_kind(calibration.device) != "cpu":
        return
    try:
        check_fits(
            wish.architecture, envelope, device=calibration.device, kv_tokens=kv_tokens,
            free_bytes=cpu_memory_bytes()[1] // wish.count,
        )  # fmt: skip
    except DoesNotFit as problem:
        raise JobRefused(f"{wish.count} engines beside each other do not fit: {problem}") from problem


@contextlib.contextmanager
def _shared_memory(size_bytes: int) -> Iterator[int]:
    """A descriptor of memory that has no name: whoever was not given it cannot open it."""
    descriptor = os.memfd_create("ridgeline-kv") if hasattr(os, "memfd_create") else _unlinked_file()
    try:
        os.ftruncate(descriptor, size_bytes)
        yield descriptor
    finally:
        os.close(descriptor)


def _unlinked_file() -> int:
    """Where there is no memfd (macOS)."""
    descriptor, path = tempfile.mkstemp(prefix="ridgeline-kv-")
    Path(path).unlink()
    return descriptor


def _warm(engine: EngineClient, region: Region, seed: int) -> None:
    for shape in warm_up(region):
        run_step(engine, shape, seed)


@dataclass(slots=True)
class KeptTimes:
    """Times of all replays so far (steps and, between pools, hand-offs), written to the row each SAVE_EVERY_S (more
    rarely where that takes long), and the job's progress by them. `total`: tokens of one replay. `known`: steps of the
    current one that an earlier job timed; they come at once and say nothing of the pace."""

    row: Verification
    run: JobRun
    total: int
    of: list[list[float]] = field(default_factory=list)
    known: int = 0
    given_tokens: int = 0
    saved_s: float = field(default_factory=time.monotonic)
    save_took_s: float = 0.0
    began_s: float = field(default_factory=time.monotonic)

    def begin(self) -> list[float]:
        """Another replay; what an interrupted job measured of it."""
        kept = kept_steps(self.row)
        self.of.append([])
        found = kept[len(self.of) - 1] if len(self.of) <= len(kept) else []
        self.known = len(found)
        return found

    @property
    def is_known(self) -> bool:
        """Whether the last step was timed by an earlier job."""
        return len(self.of[-1]) <= self.known

    def told(self, tokens: int, seconds: float) -> None:
        self.of[-1].append(seconds)
        done, everything = (len(self.of) - 1) * self.total + tokens, self.row.replays * self.total
        if self.is_known:
            self.given_tokens = done
        timed = done - self.given_tokens
        left_s = max(0, everything - done) * (time.monotonic() - self.began_s) / timed if timed else None
        self.run.progress(done, everything, f"Serving, replay {len(self.of)}", left_s)
        if time.monotonic() - self.saved_s >= max(SAVE_EVERY_S, self.save_took_s / SAVE_SHARE):
            self.save()

    def save(self) -> None:
        began_s = time.monotonic()
        rows = Verification.objects.filter(pk=self.row.pk, status=Verification.RUNNING)
        values: dict[str, Any] = {
            "steps": np.concatenate([np.array(part) for part in self.of] or [np.empty(0)]).tobytes(),
            "steps_of": [len(part) for part in self.of],
        }
        patiently(lambda: rows.update(**values))
        self.saved_s = time.monotonic()
        self.save_took_s = self.saved_s - began_s


def kept_steps(row: Verification) -> list[list[float]]:
    """The times that the row holds, replay by replay."""
    seconds = np.frombuffer(bytes(row.steps), dtype=np.float64)
    return [part.tolist() for part in np.split(seconds, np.cumsum(row.steps_of)[:-1])] if row.steps_of else []
