"""CSV and its relatives taken apart: blocks of whole lines -> where the wanted fields are.

Where no quotes stand, a delimiter is a delimiter, and three comparisons over a block find all its fields at once.
Quotes as the standard has them (quotes.py) cost two comparisons more: those delimiters and line ends count that
stand outside of them. From the first block on where quotes stand in any other way, or within a wanted field,
Python's csv module takes the lines apart, and its fields are laid out the same way.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from planner.traffic.columns import Columns
from planner.traffic.layout import Layout
from planner.traffic.model import Integers
from planner.traffic.numbers import Bytes, Positions, trimmed
from planner.traffic.problems import Problems
from planner.traffic.quotes import QUOTE, Quotes, find_quotes, without
from planner.traffic.stream import decoded

_BATCH_ROWS = 20_000
Field = tuple[Positions, Positions]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows with as many fields as the header: their line numbers, int64[K], and for each wanted column the
    starts and ends of its fields in `data`."""

    data: Bytes
    lines: Integers
    fields: tuple[Field, ...]


def batches(
    blocks: Iterator[tuple[int, bytes]],
    layout: Layout,
    places: tuple[int, ...],
    columns: Columns,
    problems: Problems,
) -> Iterator[Batch]:
    """The rows after the header, with the fields at `places`. Counts rows and blank lines in `columns`;
    rows of another width go to `problems`. TooLarge over the cap on rows."""
    rest: tuple[int, bytes] | None = None  # a row whose quotes have not been closed yet
    for here in blocks:
        line, block = here if rest is None else (rest[0], rest[1] + here[1])
        rest = None
        quotes = None
        if b'"' in block:
            quotes = find_quotes(np.frombuffer(block, np.uint8), ord(layout.delimiter))
            if quotes is not None and quotes.open_at_end:
                whole = _last_end(block, quotes)
                if len(block) - whole > columns.limits.line_bytes:
                    quotes = None
                else:
                    rest = (line + block.count(b"\n", 0, whole), block[whole:])
                    block, quotes = block[:whole], _cut(quotes, whole)
            if quotes is None:
                yield from _quoted(line, chain([(line, block)], blocks), layout, places, columns, problems)
                return
        if not block:
            continue
        rows = _rows(line, block, quotes, layout, problems)
        batch = _fields(rows, layout, places, quotes)
        if batch is None:
            unread = chain([(line, block)], [] if rest is None else [rest], blocks)
            yield from _quoted(line, unread, layout, places, columns, problems)
            return
        _count(rows, layout, columns, problems)
        yield batch
    if rest is not None:
        yield from _quoted(rest[0], iter([rest]), layout, places, columns, problems)


def _last_end(block: bytes, quotes: Quotes) -> int:
    """Where the last row that is whole ends."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 10)
    outside = ends[~quotes.inside[ends]]
    return int(outside[-1]) + 1 if len(outside) else 0


def _cut(quotes: Quotes, length: int) -> Quotes:
    return Quotes(quotes.at[: int(np.searchsorted(quotes.at, length))], quotes.inside[:length])


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a block with their delimiters: starts, ends (without blanks around), first line of each and how
    many lines it takes, and the place of its first delimiter. `blank` are lines without anything."""

    data: Bytes
    delimiters: Positions
    starts: Positions
    ends: Positions
    lines: Integers
    spans: Integers
    first: Positions
    width: Integers
    blank: Integers


def _rows(first_line: int, block: bytes, quotes: Quotes | None, layout: Layout, problems: Problems) -> _Rows:
    data = np.frombuffer(block, np.uint8)
    delimiters = np.flatnonzero(data == ord(layout.delimiter))
    newlines = np.flatnonzero(data == 10)
    number = np.arange(len(newlines))  # of the line that ends there, from 0
    if quotes is not None:
        delimiters = delimiters[~quotes.inside[delimiters]]
        number = np.flatnonzero(~quotes.inside[newlines])
    ends = newlines[number]
    starts = np.concatenate((np.zeros(1, np.intp), ends[:-1] + 1))
    before = np.concatenate((np.full(1, -1), number[:-1]))
    lines, spans = first_line + before + 1, number - before
    ends = ends - ((ends > starts) & (data[ends - 1] == 13))
    if block.count(b"\r") != block.count(b"\r\n"):
        _stray_returns(data, ends, lines, quotes, problems)
    starts, ends = trimmed(data, starts, ends)
    filled = ends > starts
    blank = lines[~filled]
    starts, ends, lines, spans = starts[filled], ends[filled], lines[filled], spans[filled]
    first = np.searchsorted(delimiters, starts)
    width = np.searchsorted(delimiters, ends) - first + 1
    return _Rows(data, delimiters, starts, ends, lines, spans, first, width, blank)


def _count(rows: _Rows, layout: Layout, columns: Columns, problems: Problems) -> None:
    """Tells `columns` and `problems` what there is of rows."""
    if len(rows.blank):
        columns.skip_blank(rows.blank)
    if len(rows.lines):
        columns.count_rows(len(rows.lines), int(rows.lines[-1] + rows.spans[-1]) - 1)
    columns.multi_line.add(rows.lines[rows.spans > 1])
    for index in np.flatnonzero(rows.width != len(layout.header)).tolist():
        _wrong_width(problems, int(rows.lines[index]), int(rows.width[index]), layout)


def _fields(rows: _Rows, layout: Layout, places: tuple[int, ...], quotes: Quotes | None) -> Batch | None:
    """The wanted fields of the rows as wide as the header; None where one of them has a quote or a line end in it."""
    whole = rows.width == len(layout.header)
    starts, ends, first = rows.starts[whole], rows.ends[whole], rows.first[whole]
    last = len(layout.header) - 1
    fields = tuple(
        _bare(
            rows.data,
            rows.delimiters[first + place - 1] + 1 if place else starts,
            rows.delimiters[first + place] if place < last else ends,
        )
        for place in places
    )
    if quotes is not None:
        broken = [quotes.at]
        if (rows.spans > 1).any():
            broken.append(np.flatnonzero(((rows.data == 10) | (rows.data == 13)) & quotes.inside))
        if not all(without(positions, *field) for field in fields for positions in broken):
            return None
    return Batch(rows.data, rows.lines[whole], fields)


def _bare(data: Bytes, starts: Positions, ends: Positions) -> Field:
    """The fields without the quotes and the spaces around them."""
    quoted = (ends > starts) & (data[np.minimum(starts, len(data) - 1)] == QUOTE)
    return trimmed(data, starts + quoted, ends - quoted)


def _quoted(
    first_line: int,
    blocks: Iterator[tuple[int, bytes]],
    layout: Layout,
    places: tuple[int, ...],
    columns: Columns,
    problems: Problems,
) -> Iterator[Batch]:
    rows = _records(first_line, blocks, layout, columns, problems)
    while batch := list(islice(rows, _BATCH_ROWS)):
        parts: list[bytes] = []
        fields: list[Field] = []
        offset = 0
        for place in places:
            # A line end inside a field becomes a blank: no number holds one, so none is changed by it.
            cells = [row[place].replace("\n", " ").replace("\r", " ").encode() for _, row in batch]
            ends = offset - 1 + np.cumsum([len(cell) + 1 for cell in cells])
            fields.append((np.concatenate(([offset], ends[:-1] + 1)), ends))
            parts.extend(cells)
            offset = int(ends[-1]) + 1
        data = np.frombuffer(b"\n".join(parts) + b"\n", np.uint8)
        lines = np.array([line for line, _ in batch], np.int64)
        yield Batch(data, lines, tuple(trimmed(data, *field) for field in fields))


def _records(
    first_line: int,
    blocks: Iterator[tuple[int, bytes]],
    layout: Layout,
    columns: Columns,
    problems: Problems,
) -> Iterator[tuple[int, list[str]]]:
    """(line, fields) of every row as wide as the header."""
    reader = csv.reader(_text_lines(blocks), delimiter=layout.delimiter, strict=True)
    consumed = 0
    while True:
        line = first_line + consumed
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problems.add(line, None, f"the quoting is broken ({error})", "bad_quotes")
            problems.stop()
        if reader.line_num - consumed > 1:
            columns.multi_line.add(np.array([line]))
        consumed = reader.line_num
        if len(row) < 2 and not "".join(row).strip(" "):
            columns.skip_blank(np.array([line]))
            continue
        columns.count_rows(1, first_line + consumed - 1)
        if len(row) != len(layout.header):
            _wrong_width(problems, line, len(row), layout)
            continue
        yield line, row


def _text_lines(blocks: Iterator[tuple[int, bytes]]) -> Iterator[str]:
    for _, block in blocks:
        for line in block.split(b"\n")[:-1]:
            yield decoded(line) + "\n"


def _stray_returns(
    data: Bytes, ends: Positions, lines: Integers, quotes: Quotes | None, problems: Problems
) -> None:
    """A carriage return within a line may have been a line end: two rows must not pass for one."""
    returns = np.flatnonzero(data == 13)
    stray = returns[data[np.minimum(returns + 1, len(data) - 1)] != 10]
    if quotes is not None:
        stray = stray[~quotes.inside[stray]]
    for index in np.unique(np.searchsorted(ends, stray)).tolist():
        problems.add(int(lines[index]), None, "there is a carriage return within the line", "line_ends")


def _wrong_width(problems: Problems, line: int, found: int, layout: Layout) -> None:
    fields = "field" if found == 1 else "fields"
    problems.add(line, None, f"{found} {fields} where the header has {len(layout.header)}", "wrong_width")
