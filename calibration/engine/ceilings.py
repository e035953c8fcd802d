"""What the device can do at most, measured in the same run as the steps: the two ceilings of a roofline.

  copy     bytes read and written per second by a copy much larger than any cache
  matmul   operations per second of a large square product in the engine's own type, or in the 8 bits of its weights
On random numbers, never zeros (13 % faster on an H200), as the median of several after warming up, on the clock that
times the steps. They are what this device gave here, not what its maker promises.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from calibration.engine.clock import Clock
from calibration.engine.memory import cpu_memory_bytes
from calibration.engine.products import multiplied, quantised

REPEATS = 7
WARM_UPS = 2
#: (bytes of the copied tensor, side of the matrices): past the caches, and short.
SIZES = {"cuda": (2 << 30, 8_192), "cpu": (128 << 20, 1_024)}


def measure_ceilings(
    device: torch.device,
    dtype: torch.dtype,
    clock: Clock,
    sizes: tuple[int, int] | None = None,
    *,
    eight_bits: bool = False,
) -> dict[str, float]:
    """copy_bytes_per_s, matmul_flops_per_s and the sizes they were measured with, JSON-safe."""
    copied_bytes, side = sizes or SIZES.get(device.type, SIZES["cpu"])
    copied_bytes = min(copied_bytes, _free_bytes(device) // 8)  # what is nearly full still has a bandwidth
    copied_bytes, copy_s = _copy(copied_bytes, device, clock)
    return {
        "copy_bytes_per_s": 2.0 * copied_bytes / copy_s,
        "copy_bytes": float(copied_bytes),
        "matmul_flops_per_s": 2.0 * side**3 / _matmul(side, dtype, device, clock, eight_bits=eight_bits),
        "matmul_side": float(side),
    }


def _copy(wanted_bytes: int, device: torch.device, clock: Clock) -> tuple[int, float]:
    """(bytes of the tensor, seconds of one copy)"""
    source = torch.empty(max(1, wanted_bytes // 4), dtype=torch.float32, device=device)
    pattern = torch.randn(min(source.numel(), 1 << 22), device=device)
    for part in source.split(pattern.numel()):
        part.copy_(pattern[: part.numel()])
    target = torch.empty_like(source)
    return source.numel() * source.element_size(), _median_s(lambda: target.copy_(source), clock)


def _matmul(side: int, dtype: torch.dtype, device: torch.device, clock: Clock, *, eight_bits: bool) -> float:
    generator = torch.Generator(device=device).manual_seed(1)
    left, right, out = (torch.empty(side, side, dtype=dtype, device=device) for _ in range(3))
    for matrix in (left, right):
        matrix.normal_(generator=generator)
    if not eight_bits:
        return _median_s(lambda: torch.mm(left, right, out=out), clock)
    rows, columns = quantised(left), quantised(right)
    return _median_s(lambda: multiplied(rows, columns, dtype), clock)


@torch.inference_mode()
def _median_s(work: Callable[[], object], clock: Clock) -> float:
    for _ in range(WARM_UPS):
        work()
    return statistics.median(clock.time(lambda: work).seconds for _ in range(REPEATS))


def _free_bytes(device: torch.device) -> int:
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else cpu_memory_bytes()[1]
