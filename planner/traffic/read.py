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
from typing import Any

from planner.traffic.assemble import Reading, assemble
from planner.traffic.benchmarks import BenchmarkResult, benchmark_result
from planner.traffic.columns import Columns
from planner.traffic.errors import TrafficError, refuse
from planner.traffic.formats.readers import READERS
from planner.traffic.json_array import array_lines, whole
from planner.traffic.json_lines import read_json_lines
from planner.traffic.layout import FORMATS, UNTIMED, Layout
from planner.traffic.model import Traffic
from planner.traffic.options import ImportOptions
from planner.traffic.problems import Problems
from planner.traffic.recognise import recognise
from planner.traffic.split import batches
from planner.traffic.stream import LIMITS, MIB, BinaryReader, Limits, Text, open_text
from planner.traffic.synthesis import PRESETS, synthesise
from planner.traffic.values import ValueReader

Progress = Callable[[int, int], None]
BENCHMARK_BYTES = 64 * MIB
"""A benchmark's result larger than this is refused by name alone."""


def read_traffic(
    file: str | PathLike[str] | BinaryReader,
    options: ImportOptions | None = None,
    *,
    name: str | None = None,
    limits: Limits = LIMITS,
    on_progress: Progress | None = None,
    **chosen: Any,
) -> Traffic:
    """Read a path or anything with read(). The options of `ImportOptions` may be given one by one instead.

    `name` is what the traffic is called (the file's name where there is one). `on_progress(bytes, rows)`
    hears how far reading is, about once per mebibyte of the file; what it raises stops the import.
    Raises TrafficError with every bad row or the option that is missing, BenchmarkResult for a file that is
    one, TooLarge over the limits.
    """
    options = options or ImportOptions(**chosen)
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
    columns = Columns(limits)

    def on_bytes(count: int) -> None:
        if on_progress:
            on_progress(count, columns.rows)

    text = open_text(file, limits, on_bytes, options.encoding)
    return read_text(text, source, options, columns)


def read_text(text: Text, source: str, options: ImportOptions, columns: Columns) -> Traffic:
    """The traffic of an opened file; `columns` are empty and hold what was read, also after an error."""
    problems = Problems()
    layout = _recognised(text, options)
    reading = _fill(text, layout, columns, problems, options)
    problems.check()
    if not columns.lines:
        raise refuse("The file has a header but no rows.", code="no_rows", line=layout.header_line)
    return assemble(columns, reading, options, text, source=source)


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
    try:
        layout, block = _layout(text, first_line, block, options)
    except BenchmarkResult as found:
        raise _evidence(found.tool, chain([block], (more for _, more in blocks))) from None
    if options.format and options.format != layout.format:
        message = f"This is not {FORMATS[options.format]}; it looks like {FORMATS[layout.format]}."
        raise refuse(message, code="other_format", field="format")
    if layout.format in UNTIMED and options.rate_per_s is None:
        raise refuse(_rate_needed(layout), code="rate_needed", field="rate_per_s")
    if layout.length_unit != "tokens":
        _check_length_unit(layout, options)
    text.blocks = chain(
        [(first_line, block)] if layout.json else _after_header(first_line, block, layout), blocks
    )
    return layout


def _layout(text: Text, first_line: int, block: bytes, options: ImportOptions) -> tuple[Layout, bytes]:
    """The layout, and the block that it is of: an array's elements as lines, where the file is one."""
    try:
        return recognise(first_line, block, options), block
    except TrafficError as error:
        if error.errors[0].code not in ("not_json_lines", "unknown_format") or block.lstrip()[:1] not in (
            b"[",
            b"{",
        ):
            raise
        if error.errors[0].code == "unknown_format" and block.count(b"\n") > 1:
            raise  # lines of objects that say nothing of lengths
        content = whole(chain([block], (more for _, more in text.blocks)))
        lines = array_lines(content, cut=text.cut)
        if lines is None:
            raise
        text.array = True
        return recognise(1, lines, options), lines


def _evidence(tool: str, blocks: Iterator[bytes]) -> BenchmarkResult:
    content = bytearray()
    for block in blocks:
        content += block
        if len(content) > BENCHMARK_BYTES:
            return benchmark_result(tool, bytes(content[:MIB]), whole=False)
    return benchmark_result(tool, bytes(content))


def _rate_needed(layout: Layout) -> str:
    if layout.format == "applied_compute":
        return "The file does not say when its sessions start: give a rate in sessions per second."
    if layout.format != "lengths":
        return "A distribution of lengths has no times: give a rate in requests per second."
    unread = f" (not used: {', '.join(layout.unread[:12])})" if layout.unread else ""
    return f"The file has lengths but no times{unread}: give a rate in requests per second."


def _check_length_unit(layout: Layout, options: ImportOptions) -> None:
    if options.length_unit is None:
        message = (
            f"The columns {layout.prompt} and {layout.output} count {layout.length_unit}, not tokens: say so "
            "(length_unit) and how many tokens one is (tokens_per_unit; English: about 1.3 a word, 0.25 a character)."
        )
        raise refuse(message, code="length_unit_needed", field="length_unit")
    if options.tokens_per_unit is None:
        message = f"Say how many tokens one of the {layout.length_unit} is."
        raise refuse(message, code="tokens_per_unit_needed", field="tokens_per_unit")


def _after_header(first_line: int, block: bytes, layout: Layout) -> Iterator[tuple[int, bytes]]:
    position = 0
    for _ in range(layout.header_line - first_line + 1):
        position = block.index(b"\n", position) + 1
    if position < len(block):
        yield layout.header_line + 1, block[position:]


def _fill(
    text: Text, layout: Layout, columns: Columns, problems: Problems, options: ImportOptions
) -> Reading:
    """Read all rows, and say how."""
    special = READERS.get(layout.format)
    if special:
        found = special(text.blocks, layout, columns, problems, options)
        return Reading(
            found.layout, findings=found.findings, recipe=found.recipe, block_tokens=found.block_tokens
        )
    if layout.json:
        read_json_lines(text.blocks, layout, columns, problems, options.utc_offset)
        return Reading(layout, stamps=layout.stamps)
    reader = ValueReader(
        layout, columns, problems, options, options.decimal, proven=options.decimal is not None
    )
    for batch in batches(text.blocks, layout, reader.places, columns, problems):
        reader.read(batch)
    reader.finish()
    return Reading(layout, stamps=bool(reader.stamps), decimal=reader.point)
