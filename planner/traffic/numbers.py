"""Numbers in columns of bytes, many rows at a time, by a grammar that has no second reading.

A file's bytes are one uint8 array; a column is two arrays with the start and end of its fields. A pass over
the digit positions (a dozen numpy operations per position) reads ten thousand fields at once and marks those
that are not what they should be. Only the marked ones are looked at singly, to say what is wrong.

Token counts are digits and nothing else: "1200.0", "1,200", "1.200" and "1e3" have been seen to mean
different things in different files, so none is guessed at. Times are plain decimals or exponents; a fraction
is read exactly as Python reads it (two exact doubles divided round once).
"""

from __future__ import annotations

import math
import re

import numpy as np
from numpy.typing import NDArray

from planner.traffic.model import MAX_TOKENS, Floats, Integers

Bytes = NDArray[np.uint8]
Positions = NDArray[np.intp]
Mask = NDArray[np.bool_]

MAX_SPACES = 32
_POWERS = 10.0 ** np.arange(23)
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
THOUSANDS = re.compile(r"\d{1,3}([.,'’ \u00a0\u2009\u202f]\d{3})+", re.ASCII)


def trimmed(data: Bytes, starts: Positions, ends: Positions) -> tuple[Positions, Positions]:
    """The fields without spaces around them (a few: more are left, and make no number)."""
    last = len(data) - 1
    for _ in range(MAX_SPACES):
        blank = (starts < ends) & (data[np.minimum(starts, last)] == 32)
        if not blank.any():
            break
        starts = starts + blank
    for _ in range(MAX_SPACES):
        blank = (starts < ends) & (data[ends - 1] == 32)
        if not blank.any():
            break
        ends = ends - blank
    return starts, ends


def read_counts(data: Bytes, starts: Positions, ends: Positions) -> tuple[Integers, Mask]:
    """Token counts: int64 values and where they are 0..MAX_TOKENS in digits only."""
    widths = ends - starts
    good = (widths > 0) & (widths <= 18)
    value = np.zeros(len(starts), np.int64)
    last = len(data) - 1
    for position in range(int(widths[good].max(initial=0))):
        digit = data[np.minimum(starts + position, last)] - np.uint8(48)
        inside = position < widths
        good &= (digit <= 9) | ~inside
        value = np.where(inside, value * 10 + digit, value)
    return value, good & (value <= MAX_TOKENS)


def read_decimals(data: Bytes, starts: Positions, ends: Positions, point: int = 46) -> tuple[Floats, Mask]:
    """Unsigned plain decimals of up to 15 digits, the usual case: float64 values and where they are that.

    The rest (exponents, more digits, nonsense) is for `scalar_decimal`. `point` is the byte of the mark."""
    widths = ends - starts
    good = (widths > 0) & (widths <= 18)
    mantissa = np.zeros(len(starts), np.int64)
    after_point = np.zeros(len(starts), np.int64)
    seen_point = np.zeros(len(starts), np.bool_)
    last = len(data) - 1
    for position in range(int(widths[good].max(initial=0))):
        byte = data[np.minimum(starts + position, last)]
        digit = byte - np.uint8(48)
        inside = position < widths
        is_digit = digit <= 9
        is_point = (byte == point) & ~seen_point
        good &= is_digit | is_point | ~inside
        mantissa = np.where(inside & is_digit, mantissa * 10 + digit, mantissa)
        after_point += inside & seen_point & is_digit
        seen_point |= inside & is_point
    good &= (mantissa < 2**53) & (widths > seen_point)
    return mantissa / _POWERS[np.minimum(after_point, 22)], good


def scalar_decimal(text: str, point: str = ".") -> float | str:
    """One time as a float >= 0, or the sentence that says why it is not one."""
    plain = text.replace(point, ".") if point != "." and "." not in text else text
    if _DECIMAL.fullmatch(plain) and (point == "." or "." not in text):
        return time_problem(float(plain), text)
    if not text:
        return "the time is missing"
    if "," in text:
        return f"{quoted(text)} is not a time: give seconds with a decimal point and no separators"
    return f"{quoted(text)} is not a number"


def time_problem(value: float, text: str) -> float | str:
    """`value` where it can be a time, else what is wrong with it."""
    if not math.isfinite(value) or value > 1e20:
        return f"{quoted(text)} is not a finite time"
    if value < 0:
        return f"{quoted(text)} is negative: times count from the start of the trace, at 0 or later"
    return value + 0.0  # no negative zero


def count_problem(text: str) -> str:
    """Why `text` is not a token count (read_counts did not accept it)."""
    bare = text.strip()
    if not bare:
        return "the token count is missing"
    if re.fullmatch(r"\d+", bare, re.ASCII):
        return f"{quoted(text)} is more than {MAX_TOKENS:,} tokens"
    if bare.lower() in ("true", "false"):
        return f"{quoted(text)} is a truth value, not a token count"
    if THOUSANDS.fullmatch(bare):
        digits = re.sub(r"\D", "", bare)
        return (
            f"{quoted(text)} may mean {digits} or a fraction: write token counts in digits only, or say what "
            "separates thousands (thousands)"
        )
    if re.fullmatch(r"-\d.*", bare, re.ASCII):
        return f"{quoted(text)} is negative"
    if _DECIMAL.fullmatch(bare.replace(",", ".")):
        return f"{quoted(text)} is not a whole number in digits only, as token counts are written"
    return f"{quoted(text)} is not a number"


def separated_count(text: str, separator: str) -> int | None:
    """A token count whose thousands are set apart by `separator` (1.200), as the user said; None for another.
    A blank stands for all the spaces that are used so, an apostrophe for both of its signs."""
    signs = {" ": " \u00a0\u2009\u202f", "'": "'’"}.get(separator, separator)
    sign = next((sign for sign in signs if sign in text), "")
    if not sign or not re.fullmatch(rf"\d{{1,3}}({re.escape(sign)}\d{{3}})+", text, re.ASCII):
        return None
    value = int(text.replace(sign, ""))
    return value if value <= MAX_TOKENS else None


def quoted(text: str, limit: int = 40) -> str:
    """The text as it can be shown: short, and with unprintable characters escaped."""
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in short) + '"'
