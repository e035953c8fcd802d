"""JSON lines, a block of whole lines at a time, decoded by msgspec into exactly the wanted fields.

Everything else in a line is skipped unread. A block that decodes is taken as a whole; only a block that does
not is gone through line by line, and each bad line is read once more, forgivingly, to say what is wrong with
which field. Numbers are JSON numbers: "12" in quotes, 12.0 for a count, true and null are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from planner.traffic.columns import Columns
from planner.traffic.layout import Layout
from planner.traffic.model import MAX_TOKENS
from planner.traffic.numbers import quoted, time_problem
from planner.traffic.problems import Problems

_MAX_HASH = 2**64 - 1
_MAX_TIME = 1e20


def read_json_lines(
    blocks: Iterator[tuple[int, bytes]], layout: Layout, columns: Columns, problems: Problems
) -> None:
    """Fill `columns` from the lines; what is wrong goes to `problems`. TooLarge over the caps."""
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_row_type(layout))
    for first_line, block in blocks:
        count = block.count(b"\n")
        try:
            rows = decoder.decode_lines(block)
        except (msgspec.MsgspecError, RecursionError):
            rows = []
        if len(rows) == count and _add(rows, range(first_line, first_line + count), layout, columns):
            columns.count_rows(count, first_line + count - 1)
        else:
            _one_by_one(first_line, block, decoder, layout, columns, problems)


def _row_type(layout: Layout) -> type[msgspec.Struct]:
    fields: list[Any] = [("prompt", int), ("output", int)]
    rename = {"prompt": layout.prompt, "output": layout.output}
    if layout.time is not None:
        fields.append(("time", int | float))
        rename["time"] = layout.time
    fields += [("hash_ids", list[int] | None, None), ("delay", int | float | None, None)]
    return msgspec.defstruct("Row", fields, rename=rename, gc=False)


def _add(rows: list[Any], lines: range | list[int], layout: Layout, columns: Columns) -> bool:
    """Add the rows if every value is in range; else add nothing and say False."""
    if not rows:
        return True
    try:
        prompts = np.array([row.prompt for row in rows], np.int64)
        outputs = np.array([row.output for row in rows], np.int64)
        times = np.array([row.time for row in rows]) if layout.time is not None else None
        if times is not None and times.dtype != np.int64:
            times = times.astype(np.float64)
        hashes = [row.hash_ids or () for row in rows]
        flat = np.array(list(chain.from_iterable(hashes)), np.uint64)
    except OverflowError:
        return False
    for lengths in (prompts, outputs):
        if lengths.min() < 0 or lengths.max() > MAX_TOKENS:
            return False
    if times is not None and not (times.min() >= 0 and times.max() <= _MAX_TIME):
        return False
    if any(row.delay is not None for row in rows):
        return False
    if times is not None:
        columns.times.append(times)
    columns.add(np.array(lines, np.int64), prompts, outputs)
    columns.add_hashes(flat, np.array([len(ids) for ids in hashes], np.int32))
    return True


def _one_by_one(
    first_line: int,
    block: bytes,
    decoder: msgspec.json.Decoder[Any],
    layout: Layout,
    columns: Columns,
    problems: Problems,
) -> None:
    rows, lines = [], []
    for number, line in enumerate(block.split(b"\n")[:-1], first_line):
        if not line.strip():
            columns.skip_blank(np.array([number]))
            continue
        columns.count_rows(1, number)
        reason = "a value is out of range"
        try:
            row = decoder.decode(line)
            if _sound(row, layout):
                rows.append(row)
                lines.append(number)
                continue
        except (msgspec.MsgspecError, RecursionError) as error:
            reason = f"the line cannot be read ({error})"
        for column, message in _explain(line, layout) or [(None, reason)]:
            problems.add(number, column, message)
    _add(rows, lines, layout, columns)


def _sound(row: Any, layout: Layout) -> bool:
    return (
        0 <= row.prompt <= MAX_TOKENS
        and 0 <= row.output <= MAX_TOKENS
        and (layout.time is None or 0 <= row.time <= _MAX_TIME)
        and row.delay is None
        and all(0 <= item <= _MAX_HASH for item in row.hash_ids or ())
    )


class _Literal(float):
    """A JSON number with a point or an exponent, or NaN or Infinity, with the text it was written as."""

    text: str

    def __new__(cls, text: str) -> _Literal:
        number = super().__new__(cls, text)
        number.text = text
        return number


def _explain(line: bytes, layout: Layout) -> list[tuple[str | None, str]]:
    """What is wrong with the line, by column. Reads more than JSON allows, to name what is not allowed."""
    try:
        row = json.loads(line, parse_float=_Literal, parse_constant=_Literal)
    except (ValueError, RecursionError) as error:
        return [(None, f"not a complete JSON object ({error})")]
    if not isinstance(row, dict):
        return [(None, "not a JSON object")]
    if row.get("delay") is not None:
        return [("delay", "turns that wait for one another (delay) are not read yet")]
    found: list[tuple[str | None, str | None]] = [
        (layout.prompt, _count_problem(row.get(layout.prompt))),
        (layout.output, _count_problem(row.get(layout.output))),
        ("hash_ids", _hash_problem(row.get("hash_ids"))),
    ]
    if layout.time is not None:
        found.insert(0, (layout.time, _time_problem(row.get(layout.time))))
    return [(column, message) for column, message in found if message]


def _count_problem(value: object) -> str | None:
    if value is None:
        return "the token count is missing"
    if isinstance(value, bool):
        return f"{str(value).lower()} is a truth value, not a token count"
    if isinstance(value, _Literal):
        return f"{value.text} is not a whole number in digits only, as token counts are written"
    if isinstance(value, str):
        return f"{quoted(value)} is text in quotes, not a number"
    if not isinstance(value, int):
        return "the token count is not a number"
    if value < 0:
        return f"{value} is negative"
    return f"{quoted(str(value))} is more than {MAX_TOKENS:,} tokens" if value > MAX_TOKENS else None


def _time_problem(value: object) -> str | None:
    if value is None:
        return "the time is missing"
    if isinstance(value, bool):
        return f"{str(value).lower()} is a truth value, not a time"
    if isinstance(value, str):
        return f"{quoted(value)} is text in quotes, not a number"
    if not isinstance(value, int | float):
        return "the time is not a number"
    text = value.text if isinstance(value, _Literal) else str(value)
    problem = time_problem(float(value) if abs(value) < _MAX_TIME * 10 else float("inf"), text)
    return problem if isinstance(problem, str) else None


def _hash_problem(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, list):
        return "not a list of block hashes"
    for item in value:
        if type(item) is not int or not 0 <= item <= _MAX_HASH:
            shown = item.text if isinstance(item, _Literal) else str(item)
            return f"{quoted(shown)} is not a whole number of 64 bits"
    return None
