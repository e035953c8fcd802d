"""The clock of what is measured, in MHz, asked between steps: a device that slowed down explains its times."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from calibration.engine.cpu import clock_mhz

ASK_S = 5.0
CPU_FREQUENCY = Path("/sys/devices/system/cpu/cpu0/cpufreq")
#: What nvidia-smi calls it, and what a record does.
GPU_SETTINGS = {
    "driver_version": "driver",
    "clocks.max.sm": "max_clock_mhz",
    "clocks.applications.graphics": "application_clock_mhz",
    "power.limit": "power_limit_w",
}


def device_settings(device: str) -> dict[str, object]:
    """What somebody sets, as against what a clock happens to show: driver, clock limits, power limit of a GPU; clock
    limit and governor of a CPU. What the system does not say is absent."""
    if device.startswith("cpu"):
        return cpu_settings(CPU_FREQUENCY)
    query = ",".join(GPU_SETTINGS)
    answer = _ask(device.partition(":")[2] or "0", query)
    values = [value.strip() for value in (answer.splitlines() or [""])[0].split(",")]
    if len(values) != len(GPU_SETTINGS):
        return {}
    told = dict(zip(GPU_SETTINGS.values(), values, strict=True))
    return {
        name: value if name == "driver" else float(value)
        for name, value in told.items()
        if _is_told(name, value)
    }


def _is_told(name: str, value: str) -> bool:
    """nvidia-smi says [N/A] and [Not Supported] where it cannot say."""
    return (
        bool(value)
        and (name == "driver" or value.replace(".", "", 1).isdecimal())
        and not value.startswith("[")
    )


def cpu_settings(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    try:
        found["governor"] = (folder / "scaling_governor").read_text().strip()
        found["max_clock_mhz"] = int((folder / "scaling_max_freq").read_text()) / 1e3
    except (OSError, ValueError):
        return found
    return found


def clock_of(device: str) -> Callable[[], float | None]:
    """A function that reads the device's clock now; None where it cannot be read."""
    if device.startswith("cpu"):
        return clock_mhz
    return lambda: _gpu_mhz(device.partition(":")[2] or "0")


def _gpu_mhz(index: str) -> float | None:
    try:
        return float(_ask(index, "clocks.sm").splitlines()[0])
    except (ValueError, IndexError):
        return None


def _ask(index: str, query: str) -> str:
    """nvidia-smi's line about one GPU; empty where it does not answer."""
    command = ["nvidia-smi", f"--id={index}", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()
