"""How long does it take to move the KV cache of some tokens from one place to another?

A transfer first waits (set-up, descriptors, the first byte's way), then moves its bytes. One latency and one
bandwidth for all sizes were wrong by up to 90 %: small transfers are bound by messages, large ones by the wire. So a
table holds both for several sizes, and between two sizes

    latency is linear in log(size),      bandwidth is a power of the size (linear in log-log)
    seconds(size) = latency(size) + size / bandwidth(size)

Below the smallest and above the largest size the nearest row's values hold: a transfer of 0 bytes takes the smallest
row's latency. A single row is the classical line. The latency does not load the link and the bandwidth is the most
one transfer gets alone; what several at once do to each other is the simulation's part (planner.simulation.links).
A table says what it was measured over (`label`) and how far its seconds may be off (`uncertainty`, relative): half the
interval of the repeats, the worst error of a fitted line, or what a person says of a link between hosts.
Units: bytes, seconds, bytes per second, decimal (1 GB/s = 1e9).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MAX_LABEL = 200
MAX_ROWS = 4096
MAX_UNCERTAINTY = 100.0
MAX_RANKS = 1024


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


#: No link is outside of these; beyond them lie mistakes of unit, and numbers that no page can show.
MAX_LATENCY_S = 3600.0
MIN_BYTES_PER_S, MAX_BYTES_PER_S = 1.0, 1e18


@dataclass(frozen=True, slots=True)
class TransferTable:
    """Rows by increasing size: size_bytes, latency_s >= 0 and bytes_per_s > 0 there; `label` says what was measured.

    `uncertainty`: seconds may be longer or shorter by a factor of 1 + this share; 0 where nothing is known of it.
    `entered`: a person's words about a link, not a measurement. `ranks`: of a model that they share, moving their
    shares at once: a size is that of all ranks together, and its seconds are those of the slowest.
    Raises ValueError for an empty table, unequal lengths, sizes that do not increase, or values out of range.
    """

    size_bytes: tuple[float, ...]
    latency_s: tuple[float, ...]
    bytes_per_s: tuple[float, ...]
    label: str = ""
    uncertainty: float = 0.0
    entered: bool = False
    ranks: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= MAX_RANKS:
            raise ValueError(f"ranks must be 1 to {MAX_RANKS}")
        if len(self.label) > MAX_LABEL or not (self.label.isprintable() or not self.label):
            raise ValueError(f"label must be at most {MAX_LABEL} printable characters")
        if not 0 <= self.uncertainty <= MAX_UNCERTAINTY:
            raise ValueError(f"uncertainty must be a share from 0 to {MAX_UNCERTAINTY:g}")
        if not 0 < len(self.size_bytes) == len(self.latency_s) == len(self.bytes_per_s):
            raise ValueError("a transfer table needs as many latencies and bandwidths as sizes, at least one")
        increasing = all(a < b for a, b in zip(self.size_bytes, self.size_bytes[1:], strict=False))
        if not increasing or self.size_bytes[0] <= 0 or not math.isfinite(self.size_bytes[-1]):
            raise ValueError("size_bytes must be positive and increase")
        if not all(0 <= value <= MAX_LATENCY_S for value in self.latency_s):
            raise ValueError(f"latency_s must be from 0 to {MAX_LATENCY_S:g}")
        if not all(MIN_BYTES_PER_S <= value <= MAX_BYTES_PER_S for value in self.bytes_per_s):
            raise ValueError(f"bytes_per_s must be from {MIN_BYTES_PER_S:g} to {MAX_BYTES_PER_S:g}")

    @classmethod
    def line(cls, latency_s: float, bytes_per_s: float, label: str = "") -> TransferTable:
        """One latency and one bandwidth for all sizes: what a user enters who has measured nothing."""
        return cls((1.0,), (latency_s,), (bytes_per_s,), label)

    @classmethod
    def link(
        cls,
        gigabytes_per_s: float,
        latency_s: float,
        uncertainty: float,
        label: str = "between hosts, entered",
    ) -> TransferTable:
        """A link that a person describes: decimal GB/s, seconds, and how far (a share) either may be off."""
        return cls((1.0,), (latency_s,), (gigabytes_per_s * 1e9,), label, uncertainty, entered=True)

    @classmethod
    def fitted_line(
        cls, size_bytes: Sequence[float], seconds: Sequence[float], label: str = ""
    ) -> TransferTable:
        """The line with the least squares of relative errors, and its largest error as `uncertainty`.

        What to make of few published times, where one line is asked for; a table of all of them is better.
        Raises ValueError for less than two sizes or times that no growing line comes near.
        """
        from scipy.optimize import nnls  # here: whoever only reads what was fitted loads no scipy

        sizes, times = np.asarray(size_bytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
        if len(sizes) < 2 or len(sizes) != len(times) or not np.all((sizes > 0) & (times > 0)):
            raise ValueError("a line needs two sizes or more, each with a time above 0")
        matrix = np.column_stack([1.0 / times, sizes / times])
        (latency_s, per_byte_s), _ = nnls(matrix, np.ones(len(times)))
        if per_byte_s <= 0:
            raise ValueError("the times do not grow with the sizes")
        worst = float(np.max(np.abs((latency_s + sizes * per_byte_s) / times - 1.0)))
        return cls(
            (1.0,), (float(latency_s),), (float(1.0 / per_byte_s),), label, min(worst, MAX_UNCERTAINTY)
        )

    @classmethod
    def measured(
        cls,
        size_bytes: tuple[float, ...],
        seconds: tuple[float, ...],
        latency_s: float | None = None,
        label: str = "",
        uncertainty: float = 0.0,
        ranks: int = 1,
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
        return cls(tuple(size_bytes), (waits,) * len(rates), rates, label, uncertainty, ranks=ranks)

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
            "uncertainty": self.uncertainty,
            "entered": self.entered,
            "ranks": self.ranks,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TransferTable:
        """Inverse of `to_dict`; raises ValueError (or KeyError for a missing list) for anything else."""
        rows = [values[name] for name in ("size_bytes", "latency_s", "bytes_per_s")]
        if not all(isinstance(row, list | tuple) and 0 < len(row) <= MAX_ROWS for row in rows):
            raise ValueError(f"sizes, latencies and bandwidths must be lists of 1 to {MAX_ROWS} numbers")
        if not all(isinstance(v, int | float) and not isinstance(v, bool) for row in rows for v in row):
            raise ValueError("sizes, latencies and bandwidths must be numbers")
        label, off, entered = (
            values.get(k, d) for k, d in (("label", ""), ("uncertainty", 0.0), ("entered", False))
        )
        if not isinstance(label, str) or isinstance(off, bool) or not isinstance(off, int | float):
            raise ValueError("label must be a text and uncertainty a number")
        ranks = values.get("ranks", 1)
        if not isinstance(ranks, int) or isinstance(ranks, bool):
            raise ValueError("ranks must be a whole number")
        sizes, latencies, rates = (tuple(map(float, row)) for row in rows)
        return cls(sizes, latencies, rates, label, float(off), entered is True, ranks)


def _intercept_s(size_bytes: tuple[float, ...], seconds: tuple[float, ...]) -> float:
    if len(seconds) == 1:
        return 0.0
    slope = (seconds[1] - seconds[0]) / (size_bytes[1] - size_bytes[0])
    return seconds[0] - slope * size_bytes[0]
