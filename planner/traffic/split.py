"""CSV and its relatives taken apart: blocks of whole lines -> where the wanted fields are.

Most files hold no quotes. Then a delimiter is a delimiter wherever it stands, and three comparisons over a
block find all its fields at once. Quotes around whole fields cost one comparison more: those delimiters
count that have an even number of quotes before them. From the first block on where a quote stands anywhere
else, or a line ends inside quotes, Python's csv module takes the lines apart, and its fields are laid out the
same way.
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
from planner.traffic.stream import decoded

QUOTE = ord('"')
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
    for line, block in blocks:
        data = np.frombuffer(block, np.uint8)
        delimiters = _delimiters(data, ord(layout.delimiter), quotes=b'"' in block)
        if delimiters is None:
            yield from _quoted(line, chain([(line, block)], blocks), layout, places, columns, problems)
            return
        yield _plain(line, block, delimiters, layout, places, columns, problems)


def _delimiters(data: Bytes, delimiter: int, *, quotes: bool) -> Positions | None:
    """Where fields are divided; None where quotes stand otherwise than in pairs around whole fields."""
    found = data == delimiter
    if not quotes:
        return np.flatnonzero(found)
    is_quote = data == QUOTE
    quote = np.flatnonzero(is_quote)
    opening, closing = quote[0::2], quote[1::2]
    before = data[np.maximum(opening - 1, 0)]
    opens = (opening == 0) | (before == delimiter) | (before == 10)
    after = data[np.minimum(closing + 1, len(data) - 1)]
    closes = (after == delimiter) | (after == 10) | (after == 13)
    if len(opening) != len(closing) or not opens.all() or not closes.all():
        return None
    inside = np.cumsum(is_quote, dtype=np.uint8) & 1  # the count may wrap: only its last bit matters
    if (inside & ((data == 10) | (data == 13))).any():
        return None
    return np.flatnonzero(found & (inside == 0))


def _plain(
    first_line: int,
    block: bytes,
    delimiters: Positions,
    layout: Layout,
    places: tuple[int, ...],
    columns: Columns,
    problems: Problems,
) -> Batch:
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == 10)
    starts = np.concatenate((np.zeros(1, np.intp), ends[:-1] + 1))
    ends = ends - ((ends > starts) & (data[ends - 1] == 13))
    lines = np.arange(first_line, first_line + len(ends))
    if block.count(b"\r") != block.count(b"\r\n"):
        _stray_returns(data, ends, lines, problems)
    starts, ends = trimmed(data, starts, ends)
    filled = ends > starts
    if not filled.all():
        columns.skip_blank(lines[~filled])
        starts, ends, lines = starts[filled], ends[filled], lines[filled]
    if len(lines):
        columns.count_rows(len(lines), int(lines[-1]))
    first = np.searchsorted(delimiters, starts)
    width = np.searchsorted(delimiters, ends) - first + 1
    whole = width == len(layout.header)
    if not whole.all():
        for index in np.flatnonzero(~whole).tolist():
            _wrong_width(problems, int(lines[index]), int(width[index]), layout)
        starts, ends, lines, first = starts[whole], ends[whole], lines[whole], first[whole]
    last = len(layout.header) - 1
    fields = tuple(
        _bare(
            data,
            delimiters[first + place - 1] + 1 if place else starts,
            delimiters[first + place] if place < last else ends,
        )
        for place in places
    )
    return Batch(data, lines, fields)


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


def _stray_returns(data: Bytes, ends: Positions, lines: Integers, problems: Problems) -> None:
    """A carriage return within a line may have been a line end: two rows must not pass for one."""
    returns = np.flatnonzero(data == 13)
    stray = returns[data[np.minimum(returns + 1, len(data) - 1)] != 10]
    for index in np.unique(np.searchsorted(ends, stray)).tolist():
        problems.add(int(lines[index]), None, "there is a carriage return within the line", "line_ends")


def _wrong_width(problems: Problems, line: int, found: int, layout: Layout) -> None:
    fields = "field" if found == 1 else "fields"
    problems.add(line, None, f"{found} {fields} where the header has {len(layout.header)}", "wrong_width")
