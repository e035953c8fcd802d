"""The rows of a small CSV as texts, for files that are tables of a distribution and not requests."""

from __future__ import annotations

import csv
from collections.abc import Iterator

from planner.traffic.errors import TooLarge
from planner.traffic.formats.special import Blocks
from planner.traffic.layout import Layout
from planner.traffic.problems import Problems
from planner.traffic.stream import decoded

MOST_ROWS = 200_000


def table_rows(blocks: Blocks, layout: Layout, problems: Problems) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of every row as wide as the header. TooLarge above MOST_ROWS."""
    found = 0
    for first_line, block in blocks:
        for line, text in enumerate(block.split(b"\n")[:-1], first_line):
            if not text.strip():
                continue
            found += 1
            if found > MOST_ROWS:
                message = f"The table has more than {MOST_ROWS:,} rows, the most that are read."
                raise TooLarge("rows", MOST_ROWS, message, line)
            try:
                cells = next(
                    csv.reader([decoded(text).rstrip("\r")], delimiter=layout.delimiter, strict=True)
                )
            except csv.Error as error:
                problems.add(line, None, f"the quoting is broken ({error})", "bad_quotes")
                continue
            if len(cells) != len(layout.header):
                problems.add(
                    line,
                    None,
                    f"{len(cells)} fields where the header has {len(layout.header)}",
                    "wrong_width",
                )
                continue
            yield line, [cell.strip() for cell in cells]
