"""JSON values as they were written, and why one cannot be a count, a time or a list of hashes.

Read forgivingly (NaN, Infinity, 1e400), so that what is not allowed can be named.
"""

from __future__ import annotations

import json
from typing import Any

from planner.traffic.model import MAX_TOKENS
from planner.traffic.numbers import quoted, time_problem

MAX_HASH = 2**64 - 1
MAX_TIME = 1e20


def loaded(line: bytes) -> Any:
    """The line's value; numbers that are not plain integers are `Literal`. ValueError, RecursionError."""
    return json.loads(line, parse_float=Literal, parse_constant=Literal)


class Literal(float):
    """A JSON number with a point or an exponent, or NaN or Infinity, with the text it was written as."""

    text: str

    def __new__(cls, text: str) -> Literal:
        number = super().__new__(cls, text)
        number.text = text
        return number


def at(row: Any, path: tuple[str, ...]) -> Any:
    """The value at the end of the path through objects, None where it ends early."""
    for key in path:
        row = row.get(key) if isinstance(row, dict) else None
    return row


def text_problem(value: object) -> str | None:
    return "neither text nor a number" if isinstance(value, list | dict) else None


def cap_problem(value: object) -> str | None:
    if value is None:
        return None
    return count_problem(value) or ("0 caps the output at nothing" if value == 0 else None)


def priority_problem(value: object) -> str | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_TOKENS
    return None if value is None or whole else "not a whole number of at most 8 digits"


def count_problem(value: object) -> str | None:
    if value is None:
        return "the token count is missing"
    if isinstance(value, bool):
        return f"{str(value).lower()} is a truth value, not a token count"
    if isinstance(value, Literal):
        return f"{value.text} is not a whole number in digits only, as token counts are written"
    if isinstance(value, str):
        return f"{quoted(value)} is text in quotes, not a number"
    if not isinstance(value, int):
        return "the token count is not a number"
    if value < 0:
        return f"{value} is negative"
    return f"{quoted(str(value))} is more than {MAX_TOKENS:,} tokens" if value > MAX_TOKENS else None


def time_value_problem(value: object) -> str | None:
    if value is None:
        return "the time is missing"
    if isinstance(value, bool):
        return f"{str(value).lower()} is a truth value, not a time"
    if isinstance(value, str):
        return f"{quoted(value)} is text in quotes, not a number"
    if not isinstance(value, int | float):
        return "the time is not a number"
    text = value.text if isinstance(value, Literal) else str(value)
    problem = time_problem(float(value) if abs(value) < MAX_TIME * 10 else float("inf"), text)
    return problem if isinstance(problem, str) else None


def hash_problem(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, list):
        return "not a list of block hashes"
    for item in value:
        if type(item) is not int or not 0 <= item <= MAX_HASH:
            shown = item.text if isinstance(item, Literal) else str(item)
            return f"{quoted(shown)} is not a whole number of 64 bits"
    return None
