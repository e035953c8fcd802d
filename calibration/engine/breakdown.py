"""Where a step's time goes: one profiled pass of each phase, its kernels sorted into a few kinds.

  matmul     matrix products: what grows with tokens in prefill, and reads all weights in decode
  attention  queries against the cached keys and values, with what gathers or expands them
  memory     everything else: norms, gates, rotary turns, copies, indices, sampling
  gaps       the device waiting for the host between kernels (on a CPU: time in no operation at all)
A profiled step is slower than a timed one; its shares say what kind of work it is, not how long it takes. On a CPU the
time of an operation is the thread's own in it (self CPU time).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

KINDS = ("matmul", "attention", "memory", "gaps")
PHASE = "ridgeline::attention"  # a range that the CPU's attention is run in
_MATMUL = (
    "gemm", "gemv", "matmul", "cutlass", "cublas", "nvjet", "aten::mm", "aten::addmm", "aten::linear", "aten::bmm",
    "mkldnn", "_grouped", "scaled_mm", "splitk", "xmma",
)  # fmt: skip
_ATTENTION = ("_decode", "_chunks", "_combine", "attention", "flash", "softmax")


def profiled(run: Callable[[], object], device: torch.device) -> dict[str, float]:
    """Shares of KINDS, which sum to 1, and wall_s of the profiled pass. `run` must be warm."""
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])
    with profile(activities=activities) as recorded:
        if cuda:
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        run()
        if cuda:
            torch.cuda.synchronize(device)
        wall_s = time.perf_counter() - started
    events: Any = recorded.events()
    spent = _device_seconds(events) if cuda else _host_seconds(events)
    busy_s = sum(spent.values())
    spent["gaps"] = max(0.0, (_span_seconds(events) if cuda else wall_s) - busy_s)
    total = sum(spent.values()) or 1.0
    return {kind: spent[kind] / total for kind in KINDS} | {"wall_s": wall_s}


def kind_of(name: str) -> str:
    """The kind of a kernel or operation by its name: attention's own kernels before products."""
    lowered = name.lower()
    if any(part in lowered for part in _ATTENTION):
        return "attention"
    return "matmul" if any(part in lowered for part in _MATMUL) else "memory"


def _device_seconds(events: Any) -> dict[str, float]:
    spent = dict.fromkeys(KINDS, 0.0)
    for event in events:
        if event.device_type != DeviceType.CPU and not event.is_user_annotation:
            spent[kind_of(event.name)] += event.device_time_total / 1e6
    return spent


def _span_seconds(events: Any) -> float:
    """From the first kernel's start to the last one's end."""
    ranges = [e.time_range for e in events if e.device_type != DeviceType.CPU]
    return (max(r.end for r in ranges) - min(r.start for r in ranges)) / 1e6 if ranges else 0.0


def _host_seconds(events: Any) -> dict[str, float]:
    spent = dict.fromkeys(KINDS, 0.0)
    for event in events:
        inside = event
        while inside is not None and inside.name != PHASE:
            inside = inside.cpu_parent
        kind = "attention" if inside is not None else kind_of(event.name)
        spent[kind] += event.self_cpu_time_total / 1e6
    return spent
