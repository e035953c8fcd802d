"""JSON lines, a block of whole lines at a time, decoded by msgspec into exactly the wanted fields.

Everything else in a line is skipped unread. A block that decodes is taken as a whole; only a block that does
not is gone through line by line, and each bad line is read once more, forgivingly, to say what is wrong with
which field. Numbers are JSON numbers: "12" in quotes, 12.0 for a count, true and null are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from planner.traffic.columns import MAX_CLASS_BYTES, MAX_CLASSES, NO_CLASS, Columns
from planner.traffic.json_rows import RowFields
from planner.traffic.json_values import (
    MAX_HASH,
    MAX_TIME,
    at,
    cap_problem,
    count_problem,
    hash_problem,
    loaded,
    priority_problem,
    text_problem,
    time_value_problem,
)
from planner.traffic.layout import Layout
from planner.traffic.model import MAX_TOKENS
from planner.traffic.outcomes import says_failed
from planner.traffic.problems import Problems
from planner.traffic.stamps import WallClock


def read_json_lines(
    blocks: Iterator[tuple[int, bytes]],
    layout: Layout,
    columns: Columns,
    problems: Problems,
    utc_offset: str | None = None,
) -> None:
    """Fill `columns` from the lines; what is wrong goes to `problems`. TooLarge over the caps."""
    fields = RowFields(layout, WallClock(utc_offset) if layout.stamps else None)
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(fields.type)
    for first_line, block in blocks:
        count = block.count(b"\n")
        try:
            rows = decoder.decode_lines(block)
        except (msgspec.MsgspecError, RecursionError):
            rows = []
        if len(rows) == count and _add(rows, range(first_line, first_line + count), fields, columns):
            columns.count_rows(count, first_line + count - 1)
        else:
            _one_by_one(first_line, block, decoder, fields, columns, problems)


def _add(rows: list[Any], lines: range | list[int], fields: RowFields, columns: Columns) -> bool:
    """Add the rows if every value is in range; else add nothing and say False."""
    if not rows:
        return True
    layout = fields.layout
    try:
        prompts = np.array(fields.values("prompt", rows), np.int64)
        outputs = np.array(fields.values("output", rows), np.int64)
        times = _times(fields, rows)
        if times is not None and times.dtype != np.int64:
            times = times.astype(np.float64)
        hashes = [row.hash_ids or () for row in rows]
        flat = np.array(list(chain.from_iterable(hashes)), np.uint64)
        caps = _optional(fields, "max_tokens", rows)
        priorities = _optional(fields, "priority", rows)
    except OverflowError:
        return False
    for lengths in (prompts, outputs):
        if lengths.min() < 0 or lengths.max() > MAX_TOKENS:
            return False
    if times is not None and fields.clock is None and not (times.min() >= 0 and times.max() <= MAX_TIME):
        return False
    if any(row.delay is not None for row in rows):
        return False
    if caps is not None and not (caps.min() >= 0 and caps.max() <= MAX_TOKENS):
        return False
    if priorities is not None and np.abs(priorities).max() > MAX_TOKENS:
        return False
    if layout.request_class is not None and not _add_classes(fields.values("class", rows), columns):
        return False
    if times is not None:
        columns.times.append(times)
    failed = [says_failed(_words(v), layout.status or "") for v in fields.values("status", rows)]
    columns.add_options(caps, priorities, np.array(failed, np.bool_) if layout.status else None)
    columns.add(np.array(lines, np.int64), prompts, outputs)
    columns.add_hashes(flat, np.array([len(ids) for ids in hashes], np.int32))
    return True


def _times(fields: RowFields, rows: list[Any]) -> NDArray[Any] | None:
    """None for a file without them. OverflowError also for stamps of which one is none."""
    if fields.layout.time is None:
        return None
    values = fields.values("time", rows)
    if fields.clock is None:
        return np.array(values)
    stamps, wrong = fields.clock.read_texts(values)
    if wrong:
        raise OverflowError
    return stamps


def _stamp_problem(fields: RowFields, value: object) -> str | None:
    if not isinstance(value, str):
        return (
            "not a date and time in quotes, as the first lines have"
            if value is not None
            else "the time is missing"
        )
    wrong = fields.clock.read_texts([value])[1] if fields.clock is not None else []
    return wrong[0][1] if wrong else None


def _optional(fields: RowFields, role: str, rows: list[Any]) -> NDArray[np.int64] | None:
    """A column of whole numbers that may be null: 0 then, which no cap is. OverflowError beyond 64 bits."""
    if role not in fields.paths:
        return None
    values = [0 if value is None else value for value in fields.values(role, rows)]
    if role == "max_tokens" and any(v == 0 for v in fields.values(role, rows)):
        return np.array([-1])  # an explicit 0 caps the output at nothing: out of range
    return np.array(values, np.int64)


def _add_classes(values: list[Any], columns: Columns) -> bool:
    names = [_words(value) or NO_CLASS for value in values]
    if any(len(name.encode()) > MAX_CLASS_BYTES for name in names):
        return False
    codes = {name: columns.class_code(name) for name in dict.fromkeys(names)}
    if None in codes.values():
        return False
    columns.classes.append(np.array([codes[name] for name in names], np.int16))
    return True


def _words(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value).strip()


def _one_by_one(
    first_line: int,
    block: bytes,
    decoder: msgspec.json.Decoder[Any],
    fields: RowFields,
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
            if _sound(row, fields, columns):
                rows.append(row)
                lines.append(number)
                continue
        except (msgspec.MsgspecError, RecursionError) as error:
            reason = f"the line cannot be read ({error})"
        for column, message in _explain(line, fields, columns) or [(None, reason)]:
            problems.add(number, column, message)
    _add(rows, lines, fields, columns)


def _sound(row: Any, fields: RowFields, columns: Columns) -> bool:
    def value(role: str) -> Any:
        return fields.values(role, [row])[0] if role in fields.paths else None

    cap, priority = value("max_tokens"), value("priority")
    return (
        0 <= value("prompt") <= MAX_TOKENS
        and 0 <= value("output") <= MAX_TOKENS
        and (fields.layout.time is None or _time_is_sound(fields, value("time")))
        and row.delay is None
        and all(0 <= item <= MAX_HASH for item in row.hash_ids or ())
        and (cap is None or 1 <= cap <= MAX_TOKENS)
        and (priority is None or abs(priority) <= MAX_TOKENS)
        and _class_problem(value("class"), columns) is None
    )


def _time_is_sound(fields: RowFields, value: Any) -> bool:
    return _stamp_problem(fields, value) is None if fields.clock is not None else 0 <= value <= MAX_TIME


def _class_problem(value: Any, columns: Columns) -> str | None:
    name = _words(value)
    if len(name.encode()) > MAX_CLASS_BYTES:
        return f"longer than {MAX_CLASS_BYTES} characters"
    if columns.class_code(name or NO_CLASS) is None:
        return f"more than {MAX_CLASSES:,} different values"
    return None


def _explain(line: bytes, fields: RowFields, columns: Columns) -> list[tuple[str | None, str]]:
    """What is wrong with the line, by column. Reads more than JSON allows, to name what is not allowed."""
    try:
        row = loaded(line)
    except (ValueError, RecursionError) as error:
        return [(None, f"not a complete JSON object ({error})")]
    if not isinstance(row, dict):
        return [(None, "not a JSON object")]
    if row.get("delay") is not None:
        message = (
            "this turn waits for another (delay), as none of the first lines did: say that the file has sessions "
            "(format mooncake_sessions)"
        )
        return [("delay", message)]
    problems = {
        "prompt": count_problem,
        "output": count_problem,
        "time": time_value_problem if fields.clock is None else lambda value: _stamp_problem(fields, value),
        "max_tokens": cap_problem,
        "priority": priority_problem,
        "class": lambda value: text_problem(value) or _class_problem(value, columns),
        "status": text_problem,
    }
    found: list[tuple[str | None, str | None]] = [
        (name, problems[role](at(row, fields.paths[role]))) for role, name in fields.layout.used.items()
    ]
    found.append(("hash_ids", hash_problem(row.get("hash_ids"))))
    return [(column, message) for column, message in found if message]
