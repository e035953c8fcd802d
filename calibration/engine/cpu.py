"""What the system says about the processor."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_model() -> str:
    """The processor's name, or its architecture where the system does not say."""
    return _cpuinfo("model name") or platform.machine() or "unknown processor"


def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 itself (x86: AVX-512 BF16 or AMX; Arm: bf16)."""
    flags = f"{_cpuinfo('flags')} {_cpuinfo('Features')}".split()
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", "bf16"))


def clock_mhz() -> float | None:
    """The first processor's clock now, where the system says so (virtual machines often give a constant)."""
    try:
        return float(_cpuinfo("cpu MHz"))
    except ValueError:
        return None


def _cpuinfo(field: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next(
        (line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == field), ""
    )
