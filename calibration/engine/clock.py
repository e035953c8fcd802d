"""How long a step took, on the clock the device deserves.

CPU: one intra-op thread and that thread's CPU time (`time.thread_time`). On a shared machine wall time was 1x
to 5x CPU time while CPU time stayed within 5 %; a step whose wall time exceeds its CPU time by more than
10 % was contended. Threads that other processes run still share caches and memory with us: repeats spread
over minutes and their median answer for that.
GPU: events on the stream around the step. THIS PATH HAS NEVER RUN ON A GPU; nothing here can, so nothing
here claims to have.
Host time around preparation and step, beyond the device's, is the host gap. Units: seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

from calibration.engine.interface import StepTiming

CONTENDED_ABOVE = 1.10


class Clock(Protocol):
    def time(self, prepare: Callable[[], Callable[[], object]]) -> StepTiming:
        """Times the function that `prepare` returns; preparing counts as host work."""


class CpuClock:
    """CPU seconds of the calling thread; meaningful only with torch.set_num_threads(1)."""

    def time(self, prepare: Callable[[], Callable[[], object]]) -> StepTiming:
        before = time.thread_time()
        step = prepare()
        wall_start, start = time.perf_counter(), time.thread_time()
        step()
        seconds = time.thread_time() - start
        wall = time.perf_counter() - wall_start
        return StepTiming(seconds, start - before, wall > CONTENDED_ABOVE * seconds)


class CudaClock:
    """CUDA events around the step; the host gap is what the host took beyond them. Never run on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def time(self, prepare: Callable[[], Callable[[], object]]) -> StepTiming:
        first = torch.cuda.Event(enable_timing=True)
        last = torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(self._device)
        start = time.perf_counter()
        step = prepare()
        first.record()
        step()
        last.record()
        torch.cuda.synchronize(self._device)
        host_s = time.perf_counter() - start
        seconds = first.elapsed_time(last) / 1e3
        return StepTiming(seconds, max(0.0, host_s - seconds), False)


def clock_for(device: torch.device) -> Clock:
    return CudaClock(device) if device.type == "cuda" else CpuClock()
