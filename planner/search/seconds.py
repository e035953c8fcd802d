"""Seconds and shares as people read them."""

from __future__ import annotations

import math


def seconds_text(seconds: float) -> str:
    """`1.61 s`, `71 ms`, `450 µs`: three digits, the unit people use at that size; below a nanosecond it is 0."""
    if abs(seconds) < 1e-9:
        return "0 s"
    if seconds >= 1.0:
        return f"{three_digits(seconds)} s"
    if seconds >= 1e-3:
        return f"{three_digits(seconds * 1e3)} ms"
    return f"{three_digits(seconds * 1e6)} µs"


def three_digits(value: float) -> str:
    if value == 0.0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent_text(share: float, *, signed: bool = False) -> str:
    """A share as `0.42 %`, `3.4 %`, `12 %`, `216 %`: two digits, and whole per cents in full; signed `+12 %`."""
    percent = 100 * share
    decimals = max(0, 1 - math.floor(math.log10(abs(percent)))) if abs(percent) >= 0.01 else 0
    return f"{percent:{'+' if signed else ''},.{decimals}f} %"
