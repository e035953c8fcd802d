"""Numbers for readers: every one leaves with its unit. Seconds, bytes and tokens come in; ms, GiB and words go
out, here and nowhere else. Anything that is not a finite number shows as a dash."""

from __future__ import annotations

import math
import re
from typing import Any

from django import template

register = template.Library()
SPELLINGS = {
    "sha256": "SHA-256",
    "cpu": "CPU",
    "gpu": "GPU",
    "kv": "KV",
    "cv": "CV",
    "tpot": "TPOT",
    "dtype": "number format",
    "numpy": "NumPy",
}
UNITS = {"_per_s": "1/s", "_bytes": "bytes", "_tokens": "tokens", "_ms": "ms", "_mhz": "MHz", "_s": "s"}
# Keys whose words or unit a reader could not guess.
LABELS = {
    "max_batch": "Max batch [sequences]",
    "observed contended_share": "Repeats other programs disturbed [share of 1]",
    "observed sentinel_drift": "Drift of the check steps, last third against first [ln of the ratio]",
    "intra_op_threads": "Threads of an operation",
    "mixed_mode": "Prefill and decode in a step",
    "latent_prefill": "Latent attention of chunks",
    "representative": "Representative of a serving engine",
}
DASH = "–"
MINUS = "−"
_HYPHEN = re.compile(r"(?<![\w.)-])-(?=\d)")  # of a negative number, not of a range or a name
NBSP = "\u00a0"  # a number stays on the line of its unit


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def significant(number: float, digits: int = 3) -> str:
    """``digits`` significant digits without exponent, thousands separated: 1,230  12.3  0.0123."""
    if abs(number) < 0.5e-9:  # of which nine decimals would show only noughts
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(number))))
    return f"{number:,.{min(decimals, 9)}f}"


@register.filter
def count(value: Any) -> str:
    """A whole number with thousands separated."""
    number = _number(value)
    return DASH if number is None else f"{number:,.0f}"


@register.filter
def ms(value_s: Any) -> str:
    """Seconds as milliseconds."""
    number = _number(value_s)
    return DASH if number is None else f"{significant(number * 1e3)}{NBSP}ms"


@register.filter
def duration(value_s: Any) -> str:
    """Seconds as people say them: 0.4 s, 12 s, 3 min 05 s, 2 h 10 min."""
    number = _number(value_s)
    if number is None:
        return DASH
    if number < 10:
        return f"{number:.1f}{NBSP}s"
    whole = round(number)
    if whole < 60:
        return f"{whole}{NBSP}s"
    if whole < 3600:
        return f"{whole // 60}{NBSP}min{NBSP}{whole % 60:02d}{NBSP}s"
    return f"{whole // 3600:,}{NBSP}h{NBSP}{whole % 3600 // 60:02d}{NBSP}min"


@register.filter
def binary(value_bytes: Any) -> str:
    """Bytes of memory in binary units: 1.53 GiB, 96.0 KiB, 512 B."""
    number = _number(value_bytes)
    if number is None:
        return DASH
    for unit, size in (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if abs(number) >= size:
            return f"{significant(number / size)}{NBSP}{unit}"
    return f"{number:,.0f}{NBSP}B"


@register.filter
def big(value: Any) -> str:
    """A large count in words: 33.0 million, 8.03 billion."""
    number = _number(value)
    if number is None:
        return DASH
    for word, size in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if abs(number) >= size:
            return f"{significant(number / size)}{NBSP}{word}"
    return f"{number:,.0f}"


@register.filter
def percent(ratio: Any) -> str:
    """A ratio as a percentage: 0.0312 is 3.1 %."""
    number = _number(ratio)
    return DASH if number is None else f"{number * 100:.1f}{NBSP}%"


@register.filter
def signed_percent(ratio: Any) -> str:
    """As ``percent``, with the sign always shown: +1.2 %."""
    number = _number(ratio)
    return DASH if number is None else f"{number * 100:+,.1f}{NBSP}%".replace("-", MINUS)


@register.filter
def readable(key: Any) -> str:
    """A key of a JSON object as a label; the unit at its end in brackets: free_bytes is "free [bytes]"."""
    if str(key) in LABELS:
        return LABELS[str(key)]
    text, unit = str(key), ""
    for suffix, shown in UNITS.items():
        if text.endswith(suffix) and len(text) > len(suffix):
            text, unit = text[: -len(suffix)], f" [{shown}]"
            break
    words = " ".join(SPELLINGS.get(word, word) for word in text.replace("_", " ").split())
    return (words[:1].upper() + words[1:] if words else text) + unit


@register.filter
def bare_percent(ratio: Any) -> str:
    """As ``percent`` for a column whose header carries the unit."""
    return percent(ratio).removesuffix(f"{NBSP}%")


@register.filter
def bare_signed_percent(ratio: Any) -> str:
    """As ``signed_percent`` for a column whose header carries the unit."""
    return signed_percent(ratio).removesuffix(f"{NBSP}%")


@register.filter
def bare_ms(value_s: Any) -> str:
    """As ``ms`` for a column whose header carries the unit."""
    return ms(value_s).removesuffix(f"{NBSP}ms")


@register.filter
def rate(value_per_s: Any) -> str:
    """Events per second: 2.57 /s."""
    number = _number(value_per_s)
    return DASH if number is None else f"{significant(number)}{NBSP}/s"


@register.filter
def gigabytes(value_bytes_per_s: Any) -> str:
    """Bytes per second as decimal GB/s, the number alone."""
    number = _number(value_bytes_per_s)
    return "–" if number is None else significant(number / 1e9)


@register.filter
def megabytes(value_bytes: Any) -> str:
    """Bytes as decimal MB, the number alone."""
    number = _number(value_bytes)
    return "–" if number is None else significant(number / 1e6)


@register.filter
def decimal(value: Any) -> str:
    """A number of three significant digits without a unit: 13.2."""
    number = _number(value)
    return DASH if number is None else significant(number)


@register.filter
def signs(text: Any) -> str:
    """A sentence with the signs that print has and a terminal may not: ≤ for <=, a minus before a number."""
    return _HYPHEN.sub(MINUS, str(text).replace("<=", "≤"))


@register.filter
def log_ratio(value: Any) -> str:
    """The logarithm of a ratio as signed percent, without the sign of percent: +4.88."""
    number = _number(value)
    if number is None:
        return DASH
    share = 100 * math.expm1(number)
    return f"{MINUS if share < 0 else '+'}{abs(share):.2f}"
