"""A joint histogram of lengths: prompt_tokens_le, output_tokens_le, count. Lengths are drawn from its cells.

`le` is the upper end of a bin, which belongs to it; its lower end is the next smaller `le` of the column in the
file, or 0. Every whole length of a bin is equally likely. As many requests are drawn from each cell as it
counts, or, where another number is asked for, its share of them (largest remainders), in random order.
"""

from __future__ import annotations

import re

import numpy as np

from planner.traffic.columns import Columns
from planner.traffic.errors import refuse
from planner.traffic.formats.special import Blocks, Special
from planner.traffic.formats.tables import table_rows
from planner.traffic.layout import Layout
from planner.traffic.model import MAX_TOKENS, Finding, Integers
from planner.traffic.names import normal
from planner.traffic.numbers import count_problem, quoted
from planner.traffic.options import ImportOptions
from planner.traffic.problems import Problems

_WHOLE = re.compile(r"\d{1,15}(\.0+)?", re.ASCII)
_ENDLESS = frozenset({"inf", "+inf", "infinity", "+infinity"})
_KEYS = ("prompt_tokens_le", "output_tokens_le", "count")


def read_histogram(
    blocks: Blocks, layout: Layout, columns: Columns, problems: Problems, options: ImportOptions
) -> Special:
    lines, cells = _cells(blocks, layout, problems)
    problems.check()
    if not len(cells) or not cells[:, 2].sum():
        raise refuse("The histogram counts nothing.", code="no_rows", line=layout.header_line)
    counts = cells[:, 2]
    total = int(counts.sum())
    wanted = options.requests or total
    if wanted > columns.limits.rows:
        message = (
            f"The histogram counts {total:,} requests; say how many to draw, at most {columns.limits.rows:,}."
        )
        raise refuse(message, code="too_many_requests", field="requests")
    drawn = counts if wanted == total else shares(counts, wanted)
    rng = np.random.default_rng((options.seed, 1))
    order = rng.permutation(wanted)
    cell = np.repeat(np.arange(len(cells)), drawn)[order]
    columns.rows = wanted
    columns.add(lines[cell], _inside(cells[:, 0], cell, rng), _inside(cells[:, 1], cell, rng))
    message = (
        f"{wanted:,} requests were drawn from {int((counts > 0).sum()):,} cells that count {total:,}. Inside a cell "
        "every length from the next smaller `le` (or 0) + 1 to its own is equally likely; which lengths go together "
        "is known to the cell only. Arrivals are drawn."
    )
    found = [Finding("distribution", message, wanted)]
    if _looks_cumulative(cells):
        message = (
            "The counts never fall along either axis, as those of cumulative buckets (Prometheus) do not: they were "
            "taken to be of each cell alone."
        )
        found.append(Finding("cumulative_counts", message, len(cells)))
    kind = Layout("histogram", *_KEYS[:2], header=layout.header, delimiter=layout.delimiter,
                  header_line=layout.header_line)  # fmt: skip
    recipe = {"drawn_requests": wanted, "interpolation": "uniform inside each cell"}
    return Special(kind, tuple(found), recipe)


def _cells(blocks: Blocks, layout: Layout, problems: Problems) -> tuple[Integers, Integers]:
    """int64[K] lines and int64[K, 3] upper ends and counts."""
    names = [normal(name) for name in layout.header]
    places = [names.index(key) for key in _KEYS]
    lines: list[int] = []
    cells: list[tuple[int, int, int]] = []
    seen: dict[tuple[int, int], int] = {}
    for line, row in table_rows(blocks, layout, problems):
        texts = [row[place] for place in places]
        empty = _WHOLE.fullmatch(texts[2]) is not None and float(texts[2]) == 0
        if empty and any(text.lower() in _ENDLESS for text in texts[:2]):
            continue
        values = [_whole(text, name, line, problems) for text, name in zip(texts, _KEYS, strict=True)]
        if None in values:
            continue
        prompt, output, count = (int(value or 0) for value in values)
        if (prompt, output) in seen:
            problems.add(
                line, None, f"this cell stands on line {seen[prompt, output]} already", "duplicate_cell"
            )
        seen[prompt, output] = line
        lines.append(line)
        cells.append((prompt, output, count))
    return np.array(lines, np.int64), np.array(cells, np.int64).reshape(-1, 3)


def _whole(text: str, name: str, line: int, problems: Problems) -> int | None:
    if text.lower() in _ENDLESS and name != "count":
        message = (
            f"{quoted(text)}: a bin that counts requests needs an upper end; give the longest there can be"
        )
        problems.add(line, name, message, "endless_bin")
        return None
    if not _WHOLE.fullmatch(text):
        message = count_problem(text) if name != "count" else f"{quoted(text)} is not a whole number"
        problems.add(line, name, message)
        return None
    value = int(float(text))
    if name == "count":
        return value
    if not 1 <= value <= MAX_TOKENS:
        problems.add(line, name, f"{quoted(text)} is not 1 to {MAX_TOKENS:,}")
        return None
    return value


def _inside(upper: Integers, cell: Integers, rng: np.random.Generator) -> Integers:
    """A length of each request's bin."""
    edges = np.unique(upper)
    lower: Integers = np.concatenate(([0], edges))[np.searchsorted(edges, upper)]
    drawn: Integers = rng.integers(lower[cell] + 1, upper[cell] + 1, dtype=np.int64)
    return drawn


def shares(counts: Integers, wanted: int) -> Integers:
    """`wanted` split in proportion to `counts`, whole, by largest remainders (the first wins a tie)."""
    exact = counts * (wanted / counts.sum())
    whole: Integers = np.floor(exact).astype(np.int64)
    short = wanted - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:short]] += 1
    return whole


def _looks_cumulative(cells: Integers) -> bool:
    prompts, outputs = np.unique(cells[:, 0]), np.unique(cells[:, 1])
    if len(prompts) < 2 or len(outputs) < 2 or len(prompts) * len(outputs) != len(cells):
        return False
    grid = np.zeros((len(prompts), len(outputs)), np.int64)
    grid[np.searchsorted(prompts, cells[:, 0]), np.searchsorted(outputs, cells[:, 1])] = cells[:, 2]
    return bool(
        (np.diff(grid, axis=0) >= 0).all() and (np.diff(grid, axis=1) >= 0).all() and grid.max() > grid.min()
    )
