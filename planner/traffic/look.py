"""What a file would become, looked at before it is imported: its first part read with the options given.

The dialect found, the first rows as they stand in the file, and the consequences of reading it so: how long the
traffic is, how many requests a second, the peak minute, the first requests. At most HEAD_BYTES of text are read,
so that every change on a page is answered at once; a file that is longer says so.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from planner.traffic.benchmarks import BenchmarkResult
from planner.traffic.columns import Columns
from planner.traffic.curves import arrivals_per_bin
from planner.traffic.errors import TrafficError
from planner.traffic.formats.known import json_format
from planner.traffic.json_array import array_lines
from planner.traffic.json_values import at
from planner.traffic.layout import FORMATS
from planner.traffic.model import Traffic
from planner.traffic.numbers import quoted
from planner.traffic.options import ImportOptions
from planner.traffic.read import read_text
from planner.traffic.recognise import csv_columns, json_columns
from planner.traffic.stream import LIMITS, BinaryReader, Limits, Text, decoded, open_text
from planner.traffic.summary import length_statistics

HEAD_BYTES = 2 << 20
ROWS = 8
REQUESTS = 6
MOST_COLUMNS = 60


@dataclass(slots=True)
class Preview:
    """`columns` and `rows` are the file's own words, shortened; `traffic` is of the part that was read, None
    where `problem` says why there is none. `whole`: the part is the file."""

    encoding: str = ""
    compression: str = ""
    delimiter: str = ""
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    json: bool = False
    traffic: Traffic | None = None
    problem: TrafficError | None = None
    whole: bool = True

    @property
    def evidence(self) -> dict[str, Any] | None:
        return self.problem.evidence() if isinstance(self.problem, BenchmarkResult) else None

    @property
    def used(self) -> dict[str, str]:
        """Column by role, as the file was read."""
        layout = self.traffic.recipe["layout"] if self.traffic else {}
        roles = {"class": "request_class"}
        names = ("time", "prompt", "output", "max_tokens", "priority", "class", "status")
        return {role: name for role in names if (name := layout.get(roles.get(role, role)))}

    def consequences(self) -> dict[str, Any] | None:
        """JSON-safe: what reading it so makes of the part that was read."""
        traffic = self.traffic
        if traffic is None:
            return None
        minutes = arrivals_per_bin(traffic.arrival_s)
        peak = int(minutes.count.argmax())
        last = min(REQUESTS, traffic.requests)
        return {
            "requests": traffic.requests,
            "rows": traffic.rows_read,
            "whole_file": self.whole,
            "duration_s": traffic.duration_s,
            "rate_per_s": traffic.rate_per_s,
            "peak_minute": {"start_s": float(minutes.start_s[peak]), "requests": int(minutes.count[peak]),
                            "width_s": minutes.width_s},
            "time_unit": traffic.recipe.get("time_unit"),
            "first_time": traffic.recipe.get("first_time"),
            "prompt_tokens": length_statistics(traffic.prompt_tokens),
            "output_tokens": length_statistics(traffic.output_tokens),
            "first_requests": [
                {
                    "arrival_s": float(traffic.arrival_s[i]),
                    "prompt_tokens": int(traffic.prompt_tokens[i]),
                    "output_tokens": int(traffic.output_tokens[i]),
                }
                for i in range(last)
            ],
        }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        format_key = self.traffic.format if self.traffic else None
        problem = self.problem
        return {
            "format": format_key,
            "format_name": FORMATS.get(format_key or "", ""),
            "dialect": {"encoding": self.encoding, "compression": self.compression, "delimiter": self.delimiter,
                        "decimal": self.traffic.recipe.get("decimal") if self.traffic else None,
                        "json_lines": self.json},
            "columns": self.columns,
            "used": self.used,
            "rows": self.rows,
            "consequences": self.consequences(),
            "findings": [finding.to_dict() for finding in self.traffic.warnings] if self.traffic else [],
            "problems": [error.to_dict() for error in problem.errors] if problem else [],
            "evidence": self.evidence,
        }  # fmt: skip


def preview(
    file: BinaryReader, options: ImportOptions, limits: Limits = LIMITS, name: str = "upload"
) -> Preview:
    """Reads the first part of `file`. What is wrong with it, or with the options, is in `problem`."""
    found = Preview()
    try:
        options.check()
        text = open_text(file, limits, None, options.encoding)
        found.encoding, found.compression = text.encoding, text.compression
        first = next(text.blocks, None)
        if first is not None:
            _sample(found, first[1], options)
            text.blocks = _head(chain([first], text.blocks), found, text)
        found.traffic = read_text(text, name, options, Columns(limits))
        found.encoding = text.encoding
    except TrafficError as error:
        found.problem = error
    return found


def columns_of(file: BinaryReader, options: ImportOptions, limits: Limits = LIMITS) -> list[str]:
    """The file's columns in the dialect of `options`, empty where it has none that can be named."""
    found = Preview()
    try:
        text = open_text(file, limits, None, options.encoding)
        first = next(text.blocks, None)
        if first is not None:
            _sample(found, first[1], options)
    except TrafficError:
        return []
    return found.columns


def _head(blocks: Iterator[tuple[int, bytes]], found: Preview, text: Text) -> Iterator[tuple[int, bytes]]:
    left = HEAD_BYTES
    for line, block in blocks:
        if len(block) > left:
            end = block.rfind(b"\n", 0, max(left, 0)) + 1
            found.whole, text.cut = False, True
            if end or line == 1:
                yield line, block[: end or left]
            return
        left -= len(block)
        yield line, block


def _sample(found: Preview, block: bytes, options: ImportOptions) -> None:
    """The first rows as they are."""
    start = block[:HEAD_BYTES]
    if start.lstrip()[:1] in (b"[", b"{") and not _object(start.lstrip().split(b"\n", 1)[0]):
        start = array_lines(start, cut=True) or start
    elif start.lstrip()[:1] == b"{" and start.count(b"\n") <= 1:
        start = array_lines(start, cut=False) or start
    lines = [line for line in start.split(b"\n")[: 4 * ROWS + 1] if line.strip()]
    if not lines:
        return
    if lines[0].lstrip()[:1] in (b"{", b"["):
        found.json = True
        rows = [row for row in map(_object, lines) if row]
        found.columns = json_columns(rows)[:MOST_COLUMNS]
        special = bool(rows) and json_format(rows[0]) is not None
        shown = [] if special and not found.columns else rows[:ROWS]
        found.rows = [[_cell(at(row, _path(name, row))) for name in found.columns] for row in shown]
        return
    first = decoded(lines[0]).strip("\r")
    found.delimiter, names = csv_columns(first, options)
    body = lines[1:]
    if options.header is False:
        names, body = [f"column {place}" for place in range(1, len(names) + 1)], lines
    found.columns = [name[:200] for name in names[:MOST_COLUMNS]]
    for line in body[:ROWS]:
        try:
            cells = next(csv.reader([decoded(line).strip("\r")], delimiter=found.delimiter))
        except (csv.Error, StopIteration):
            cells = [decoded(line)]
        found.rows.append([_short(cell) for cell in cells[:MOST_COLUMNS]])


def _object(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _path(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    return (name,) if name in row else tuple(name.split("."))


def _cell(value: Any) -> str:
    return _short(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _short(text: str) -> str:
    return quoted(text, 40)[1:-1]
