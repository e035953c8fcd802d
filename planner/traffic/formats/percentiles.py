"""Tables of percentiles of prompts and outputs. Lengths are drawn from the curve through them.

Either a row a percentile (percentile, prompt_tokens, output_tokens) or a row a length (metric, p50, p90, p99).
Between two percentiles the length grows linearly; below the first and above the last it is the first's and the
last's, so a table without p100 has no tail. The N draws are the curve at (i + 1/2) / N, in random order, prompt
and output each in its own: a table does not say which go together.
"""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np

from planner.traffic.columns import Columns
from planner.traffic.errors import refuse
from planner.traffic.formats.known import PERCENTILE_KEYS
from planner.traffic.formats.special import Blocks, Special
from planner.traffic.formats.tables import table_rows
from planner.traffic.layout import Layout
from planner.traffic.model import MAX_TOKENS, Finding, Integers
from planner.traffic.names import OUTPUTS, PROMPTS, normal
from planner.traffic.numbers import quoted, scalar_decimal
from planner.traffic.options import ImportOptions
from planner.traffic.problems import Problems

DRAWN = 10_000
Curve = list[tuple[float, float, int]]
"""(percentile 0..100, length, line)"""


def read_percentiles(
    blocks: Blocks, layout: Layout, columns: Columns, problems: Problems, options: ImportOptions
) -> Special:
    names = [normal(name) for name in layout.header]
    rows = list(table_rows(blocks, layout, problems))
    key = next((key for key in PERCENTILE_KEYS if key in names), None)
    curves = _tall(rows, names, key, layout, problems) if key else _wide(rows, names, layout, problems)
    problems.check()
    for side in ("prompt", "output"):
        if len(curves.get(side, ())) < 2:
            message = f"The table has no two percentiles of {side} tokens."
            raise refuse(message, code="unknown_format", line=layout.header_line)
        _check(curves[side], side, problems)
    problems.check()
    wanted = options.requests or DRAWN
    if wanted > columns.limits.rows:
        raise refuse(f"requests must be at most {columns.limits.rows:,}.", code="option", field="requests")
    rng = np.random.default_rng((options.seed, 1))
    drawn = {side: _drawn(curves[side], wanted, rng) for side in ("prompt", "output")}
    columns.rows = wanted
    columns.add(np.full(wanted, layout.header_line, np.int64), drawn["prompt"], drawn["output"])
    findings = [_finding(wanted, options)]
    for side in ("prompt", "output"):
        top, longest, line = curves[side][-1]
        if top < 100:
            message = f"The longest {side} is that of p{top:g}, {longest:g} tokens: the table says nothing beyond it."
            findings.append(Finding("no_tail", message, 1, (line,)))
    kind = Layout("percentiles", "prompt_tokens", "output_tokens", header=layout.header,
                  delimiter=layout.delimiter, header_line=layout.header_line)  # fmt: skip
    recipe = {"drawn_requests": wanted, "interpolation": "linear between percentiles, independent lengths"}
    return Special(kind, tuple(findings), recipe)


def _tall(
    rows: list[tuple[int, list[str]]], names: list[str], key: str, layout: Layout, problems: Problems
) -> dict[str, Curve]:
    place = names.index(key)
    sides = {"prompt": _column(names, PROMPTS, layout), "output": _column(names, OUTPUTS, layout)}
    curves: dict[str, Curve] = {"prompt": [], "output": []}
    for line, row in rows:
        percentile = _percentile(row[place], key, line, problems)
        for side, column in sides.items():
            length = _length(row[column], layout.header[column], line, problems)
            if percentile is not None and length is not None:
                curves[side].append((percentile, length, line))
    return curves


def _wide(
    rows: list[tuple[int, list[str]]], names: list[str], layout: Layout, problems: Problems
) -> dict[str, Curve]:
    places = [
        (place, float(name[1:].replace("_", ".")))
        for place, name in enumerate(names)
        if re.fullmatch(r"p\d{1,3}(_\d+)?", name)
    ]
    curves: dict[str, Curve] = {}
    for line, row in rows:
        name = normal(row[0])
        side = "prompt" if _means(name, PROMPTS) else "output" if _means(name, OUTPUTS) else None
        if side is None:
            continue
        if side in curves:
            problems.add(line, layout.header[0], f"a second row of {side} tokens")
            continue
        curves[side] = []
        for place, percentile in sorted(places, key=lambda item: item[1]):
            length = _length(row[place], layout.header[place], line, problems)
            if length is not None:
                curves[side].append((percentile, length, line))
    return curves


def _means(name: str, names: frozenset[str]) -> bool:
    stem = name.removesuffix("_tokens")
    return name in names or f"{stem}_tokens" in names


def _column(names: list[str], known: frozenset[str], layout: Layout) -> int:
    found = [place for place, name in enumerate(names) if _means(name, known)]
    if len(found) != 1:
        message = "A table of percentiles needs one column of prompt and one of output tokens."
        raise refuse(message, code="unknown_format", line=layout.header_line)
    return found[0]


def _percentile(text: str, key: str, line: int, problems: Problems) -> float | None:
    value = scalar_decimal(text.lower().removeprefix("p").removesuffix("%").strip())
    scale = 100.0 if key == "quantile" else 1.0
    if isinstance(value, str) or value * scale > 100:
        problems.add(line, key, f"{quoted(text)} is not a {key} of 0 to {100 / scale:g}")
        return None
    return value * scale


def _length(text: str, name: str, line: int, problems: Problems) -> float | None:
    value = scalar_decimal(text)
    if isinstance(value, str) or value > MAX_TOKENS:
        problems.add(line, name, f"{quoted(text)} is not a length of 0 to {MAX_TOKENS:,} tokens")
        return None
    return value


def _check(curve: Curve, side: str, problems: Problems) -> None:
    curve.sort(key=lambda point: point[0])
    for (low, shorter, _), (high, longer, line) in pairwise(curve):
        if high == low:
            problems.add(line, side, f"p{high:g} stands twice")
        elif longer < shorter:
            problems.add(line, side, f"p{high:g} is {longer:g}, less than {shorter:g} at p{low:g}")


def _drawn(curve: Curve, wanted: int, rng: np.random.Generator) -> Integers:
    share = (np.arange(wanted) + 0.5) * (100 / wanted)
    lengths = np.interp(share, [p for p, _, _ in curve], [length for _, length, _ in curve])
    return rng.permutation(np.maximum(np.rint(lengths), 1)).astype(np.int64)


def _finding(wanted: int, options: ImportOptions) -> Finding:
    chosen = "asked for" if options.requests else "nothing in the table says how many"
    message = (
        f"{wanted:,} requests were drawn ({chosen}). Between two percentiles lengths grow linearly, outside of them "
        "they stay; prompt and output are drawn independently, because the table does not say which go together. "
        "Arrivals are drawn."
    )
    return Finding("distribution", message, wanted)
