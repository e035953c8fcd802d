"""How long does it take to move the KV cache of some tokens from one place to another?

A transfer first waits (set-up, descriptors, the first byte's way), then moves its bytes. One latency and one
bandwidth for all sizes were wrong by up to 90 %: small transfers are bound by messages, large ones by the wire. So a
table holds both for several sizes, and between two sizes

    latency is linear in log(size),      bandwidth is a power of the size (linear in log-log)
    seconds(size) = latency(size) + size / bandwidth(size)

Below the smallest and above the largest size the nearest row's values hold: a transfer of 0 bytes takes the smallest
row's latency. A single row is the classical line. The latency does not load the link and the bandwidth is the most
one transfer gets alone; what several at once do to each other is the simulation's part (planner.simulation.links).
Units: bytes, seconds, bytes per second, decimal (1 GB/s = 1e9). Source: spec/step-time.md "KV transfer".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class TransferArrays(NamedTuple):
    """A table in the form that compiled code reads; one entry per row."""

    log_size: Floats
    latency_s: Floats
    bytes_per_s: Floats
    log_bytes_per_s: Floats


def transfer_parts(m: TransferArrays, size_bytes: float) -> tuple[float, float]:
    """Latency in seconds and bandwidth in bytes per second of one transfer alone. Compiles under numba.njit."""
    last = m.log_size.shape[0] - 1
    if last == 0 or size_bytes <= 0.0:
        return m.latency_s[0], m.bytes_per_s[0]
    log_size = math.log(size_bytes)
    if log_size <= m.log_size[0]:
        return m.latency_s[0], m.bytes_per_s[0]
    if log_size >= m.log_size[last]:
        return m.latency_s[last], m.bytes_per_s[last]
    row = 1
    while m.log_size[row] < log_size:
        row += 1
    share = (log_size - m.log_size[row - 1]) / (m.log_size[row] - m.log_size[row - 1])
    latency_s = m.latency_s[row - 1] + share * (m.latency_s[row] - m.latency_s[row - 1])
    log_rate = m.log_bytes_per_s[row - 1] + share * (m.log_bytes_per_s[row] - m.log_bytes_per_s[row - 1])
    return latency_s, math.exp(log_rate)


@dataclass(frozen=True, slots=True)
class TransferTable:
    """Rows by increasing size: size_bytes, latency_s >= 0 and bytes_per_s > 0 there; `label` says what was measured.

    Raises ValueError for an empty table, unequal lengths, sizes that do not increase, or values out of range.
    """

    size_bytes: tuple[float, ...]
    latency_s: tuple[float, ...]
    bytes_per_s: tuple[float, ...]
    label: str = ""

    def __post_init__(self) -> None:
        if not 0 < len(self.size_bytes) == len(self.latency_s) == len(self.bytes_per_s):
            raise ValueError("a transfer table needs as many latencies and bandwidths as sizes, at least one")
        increasing = all(a < b for a, b in zip(self.size_bytes, self.size_bytes[1:], strict=False))
        if not increasing or self.size_bytes[0] <= 0 or not math.isfinite(self.size_bytes[-1]):
            raise ValueError("size_bytes must be positive and increase")
        if not all(0 <= value < math.inf for value in self.latency_s):
            raise ValueError("latency_s must be finite and not negative")
        if not all(0 < value < math.inf for value in self.bytes_per_s):
            raise ValueError("bytes_per_s must be positive and finite")

    @classmethod
    def line(cls, latency_s: float, bytes_per_s: float, label: str = "") -> TransferTable:
        """One latency and one bandwidth for all sizes: what a user enters who has measured nothing."""
        return cls((1.0,), (latency_s,), (bytes_per_s,), label)

    @classmethod
    def measured(
        cls,
        size_bytes: tuple[float, ...],
        seconds: tuple[float, ...],
        latency_s: float | None = None,
        label: str = "",
    ) -> TransferTable:
        """The table that gives back the measured `seconds` at each size.

        How much of a time is latency was not measured, and matters only where transfers share a link: unless
        given, it is where the line through the two smallest sizes meets size 0, at most nine tenths of the
        shortest time. ValueError as for the table, or when a time is not positive.
        """
        if not 0 < len(size_bytes) == len(seconds):
            raise ValueError("a transfer table needs as many seconds as sizes, at least one")
        if not all(0 < value < math.inf for value in seconds):
            raise ValueError("seconds must be positive and finite")
        if latency_s is None:
            latency_s = _intercept_s(size_bytes, seconds)
        waits = min(max(latency_s, 0.0), 0.9 * min(seconds))
        rates = tuple(size / (total - waits) for size, total in zip(size_bytes, seconds, strict=True))
        return cls(tuple(size_bytes), (waits,) * len(rates), rates, label)

    @property
    def peak_bytes_per_s(self) -> float:
        """The most that any size reaches: what a link is taken to carry unless it is said."""
        return max(self.bytes_per_s)

    def arrays(self) -> TransferArrays:
        bytes_per_s = np.array(self.bytes_per_s, dtype=np.float64)
        return TransferArrays(
            np.log(np.array(self.size_bytes, dtype=np.float64)),
            np.array(self.latency_s, dtype=np.float64),
            bytes_per_s,
            np.log(bytes_per_s),
        )

    def seconds(self, size_bytes: float) -> float:
        """How long a transfer of this size takes alone."""
        latency_s, bytes_per_s = transfer_parts(self.arrays(), float(size_bytes))
        return float(latency_s + size_bytes / bytes_per_s)

    def to_dict(self) -> dict[str, Any]:
        return {
            "size_bytes": list(self.size_bytes),
            "latency_s": list(self.latency_s),
            "bytes_per_s": list(self.bytes_per_s),
            "label": self.label,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TransferTable:
        return cls(
            tuple(map(float, values["size_bytes"])),
            tuple(map(float, values["latency_s"])),
            tuple(map(float, values["bytes_per_s"])),
            str(values.get("label", "")),
        )


def _intercept_s(size_bytes: tuple[float, ...], seconds: tuple[float, ...]) -> float:
    if len(seconds) == 1:
        return 0.0
    slope = (seconds[1] - seconds[0]) / (size_bytes[1] - size_bytes[0])
    return seconds[0] - slope * size_bytes[0]
