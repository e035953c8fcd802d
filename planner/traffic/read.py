"""A file -> Traffic. The order of the steps is the story:

open_text unpacks and cuts into lines; recognise names the columns; a reader fills them and notes every bad
row (one bad row refuses the file, with all of them listed: nothing is dropped on the quiet); rows that cannot
be requests are left out and listed; times become seconds from the first request; what is left is sorted and
looked over. Memory: about 60 bytes a row at the peak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Literal

from planner.traffic.assemble import assemble
from planner.traffic.columns import Columns
from planner.traffic.errors import refuse
from planner.traffic.json_lines import read_json_lines
from planner.traffic.layout import FORMATS, Layout
from planner.traffic.model import Traffic
from planner.traffic.options import ImportOptions
from planner.traffic.problems import Problems
from planner.traffic.recognise import recognise
from planner.traffic.split import batches
from planner.traffic.stream import LIMITS, BinaryReader, Limits, Text, open_text
from planner.traffic.synthesis import PRESETS, synthesise
from planner.traffic.values import ValueReader

Progress = Callable[[int, int], None]


def read_traffic(
    file: str | PathLike[str] | BinaryReader,
    *,
    name: str | None = None,
    format: str | None = None,
    rate_per_s: float | None = None,
    interarrival_cv: float = 1.0,
    seed: int = 0,
    time_unit: Literal["s", "ms", "us", "ns"] | None = None,
    decimal: Literal[".", ","] | None = None,
    max_model_len: int | None = None,
    zero_outputs: Literal["exclude", "keep_arrival"] = "exclude",
    spread_grid: bool = False,
    limits: Limits = LIMITS,
    on_progress: Progress | None = None,
) -> Traffic:
    """Read a path or anything with read(); the options are explained at `ImportOptions`.

    `name` is what the traffic is called (the file's name where there is one). `on_progress(bytes, rows)`
    hears how far reading is, about once per mebibyte of the file; what it raises stops the import.
    Raises TrafficError with every bad row or the option that is missing, TooLarge over the limits.
    """
    options = ImportOptions(
        format,
        rate_per_s,
        interarrival_cv,
        seed,
        time_unit,
        decimal,
        max_model_len,
        zero_outputs,
        spread_grid,
    )
    options.check()
    if isinstance(file, str | PathLike):
        path = Path(file)
        try:
            with path.open("rb") as opened:
                return _read(opened, name or path.name, options, limits, on_progress)
        except OSError as error:
            raise refuse(f"The file cannot be read: {error.strerror}.", code="unreadable") from error
    source = name or Path(str(getattr(file, "name", "") or "upload")).name
    return _read(file, source, options, limits, on_progress)


def _read(
    file: BinaryReader, source: str, options: ImportOptions, limits: Limits, on_progress: Progress | None
) -> Traffic:
    columns, problems = Columns(limits), Problems()

    def on_bytes(count: int) -> None:
        if on_progress:
            on_progress(count, columns.rows)

    text = open_text(file, limits, on_bytes)
    layout = _recognised(text, options)
    stamps, mark = _fill(text, layout, columns, problems, options)
    problems.check()
    if not columns.lines:
        raise refuse("The file has a header but no rows.", code="no_rows", line=layout.header_line)
    return assemble(columns, layout, options, text, source=source, stamps=stamps, decimal=mark)


def load_traffic(file_or_preset: str) -> Traffic:
    """The preset of that name, else the file. A file called like a preset is reached as ./chat."""
    if file_or_preset in PRESETS:
        return synthesise(file_or_preset)
    if not Path(file_or_preset).is_file():
        known = ", ".join(PRESETS)
        message = f"{file_or_preset!r} is neither a file nor a preset ({known})."
        raise refuse(message, code="not_found", field="traffic")
    return read_traffic(file_or_preset)


def _recognised(text: Text, options: ImportOptions) -> Layout:
    """Look at the first block; leave the rows after the header in text.blocks."""
    blocks = text.blocks
    first_line, block = next(blocks, (1, b""))
    layout = recognise(first_line, block)
    if options.format and options.format != layout.format:
        message = f"This is not {FORMATS[options.format]}; it looks like {FORMATS[layout.format]}."
        raise refuse(message, code="other_format", field="format")
    if layout.time is None and options.rate_per_s is None:
        unread = f" (not used: {', '.join(layout.unread[:12])})" if layout.unread else ""
        message = f"The file has lengths but no times{unread}: give a rate in requests per second."
        raise refuse(message, code="rate_needed", field="rate_per_s")
    text.blocks = chain(
        [(first_line, block)] if layout.json else _after_header(first_line, block, layout), blocks
    )
    return layout


def _after_header(first_line: int, block: bytes, layout: Layout) -> Iterator[tuple[int, bytes]]:
    position = 0
    for _ in range(layout.header_line - first_line + 1):
        position = block.index(b"\n", position) + 1
    if position < len(block):
        yield layout.header_line + 1, block[position:]


def _fill(
    text: Text, layout: Layout, columns: Columns, problems: Problems, options: ImportOptions
) -> tuple[bool, str | None]:
    """Read all rows; whether times are wall-clock stamps, and the decimal mark found."""
    if layout.json:
        read_json_lines(text.blocks, layout, columns, problems)
        return False, None
    reader = ValueReader(layout, columns, problems, options.decimal, proven=options.decimal is not None)
    for batch in batches(text.blocks, layout, reader.places, columns, problems):
        reader.read(batch)
    reader.finish()
    return bool(reader.stamps), reader.point
