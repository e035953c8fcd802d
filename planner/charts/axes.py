"""Logarithmic axes that are marked at round numbers, however wide or narrow their range is."""

from __future__ import annotations

from typing import Any

import numpy as np


def log_axis(axis: Any, low: float, high: float) -> None:
    """A logarithmic axis over a range of any width, marked at round numbers."""
    few = high / low > 30
    steps = [m * 10.0**k for k in range(-6, 12) for m in ((1, 3) if few else (1, 1.5, 2, 3, 5, 7))]
    ticks = [step for step in steps if low / 1.15 <= step <= high * 1.15]
    if len(ticks) < 3:
        ticks = [float(f"{value:.2g}") for value in np.geomspace(low, high, 4)]
    ticks = ticks[:: max(1, -(-len(ticks) // 9))]
    axis.update(type="log", range=[float(np.log10(low / 1.12)), float(np.log10(high * 1.12))], tickvals=ticks,
                ticktext=[f"{tick:,.10g}" for tick in ticks])  # fmt: skip
