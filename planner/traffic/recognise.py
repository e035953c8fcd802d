"""What kind of file is this? Decided by its content: the header of a CSV, the keys of the first JSON object.

Names of columns are compared without case, spaces and signs. A file of a known kind that is not a trace (the
result of a benchmark) or is not read yet is refused by its name: "unknown format" helps nobody.
"""

from __future__ import annotations

import csv
import json
import re

from planner.traffic.errors import TrafficError, refuse
from planner.traffic.foreign import foreign_csv, foreign_json, foreign_json_text
from planner.traffic.layout import FORMATS, Layout, Unit
from planner.traffic.names import KNOWN, OUTPUTS, PROMPTS, TIMES, UNITS, normal
from planner.traffic.numbers import quoted
from planner.traffic.stream import decoded


def recognise(first_line: int, block: bytes) -> Layout:
    """The layout of a file that begins with `block` (whole lines). TrafficError says what it is instead."""
    lines = block.split(b"\n")
    index = next((i for i, line in enumerate(lines) if line.strip()), None)
    if index is None:
        raise refuse("The file holds nothing but blank lines.", code="empty")
    line = lines[index].strip(b"\r\n")
    if b"\r" in line:
        message = "Lines end with a carriage return alone; save the file with ordinary line ends."
        raise refuse(message, code="line_ends", line=first_line + index)
    if line.lstrip()[:1] in (b"{", b"["):
        return _json_layout(lines[index:], first_line + index)
    return _csv_layout(decoded(line), first_line + index)


def _csv_layout(line: str, number: int) -> Layout:
    best: tuple[str, list[str]] = (",", [])
    for delimiter in (",", ";", "\t", "|"):
        try:
            names = [name.strip() for name in next(csv.reader([line], delimiter=delimiter, strict=True))]
        except csv.Error:
            continue
        found = {normal(name) for name in names}
        if found & PROMPTS and found & OUTPUTS:
            return _layout_of(names, number, delimiter=delimiter)
        if len(names) > len(best[1]):
            best = (delimiter, names)
    names = best[1]
    foreign = foreign_csv([normal(name) for name in names])
    if foreign:
        raise foreign
    if names and all(re.fullmatch(r"[\d.,:TZ+\- ]*", name) for name in names):
        message = "The first line must name the columns; it holds values."
        raise refuse(message, code="no_header", line=number)
    raise _unknown(names, number)


def _json_layout(lines: list[bytes], number: int) -> Layout:
    names: dict[str, None] = {}
    for line in lines[:20]:  # more than one: a key missing in one line is an error of that line
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            foreign = foreign_json(row) if not names else None
            if foreign:
                raise foreign
            names |= dict.fromkeys(row)
    if names:
        return _layout_of(list(names), number, json_lines=True)
    text = b"\n".join(lines)
    foreign = foreign_json_text({key.decode() for key in re.findall(rb'"([A-Za-z0-9_.]{1,60})"\s*:', text)})
    if foreign:
        raise foreign
    if lines[0].lstrip().startswith(b"["):
        message = "This is one JSON array; write one object per line (JSON lines)."
    else:
        message = "No line is a complete JSON object; write one object per line (JSON lines)."
    raise refuse(message, code="not_json_lines", line=number)


def _layout_of(names: list[str], number: int, *, delimiter: str = ",", json_lines: bool = False) -> Layout:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(normal(name), []).append(name)
    foreign = foreign_csv(list(found))
    if foreign:
        raise foreign
    time, prompt, output, kind, unit = _columns(found, names, number)
    if json_lines and kind == "columns":
        mooncake = (time, prompt, output) == ("timestamp", "input_length", "output_length")
        kind = "mooncake" if mooncake else "json_lines"
    model = found.get("model", [None])[0] if kind == "burstgpt" else None
    return Layout(
        format=kind,
        prompt=prompt,
        output=output,
        time=time,
        unit=unit,
        request_class=model,
        header=tuple(names),
        delimiter=delimiter,
        header_line=number,
        json=json_lines,
    )


def _columns(
    found: dict[str, list[str]], names: list[str], number: int
) -> tuple[str | None, str, str, str, Unit | None]:
    for kind, time_key, prompt_key, output_key, unit in KNOWN:
        if time_key in found and prompt_key in found and output_key in found:
            keys = (time_key, prompt_key, output_key)
            time, prompt, output = (_only(found[key], number) for key in keys)
            return time, prompt, output, kind, unit
    times = [name for key in found if _is_time(key) for name in found[key]]
    prompts = [name for key in found if key in PROMPTS for name in found[key]]
    outputs = [name for key in found if key in OUTPUTS for name in found[key]]
    if not prompts or not outputs:
        raise _unknown(names, number)
    prompt, output = _only(prompts, number), _only(outputs, number)
    if not times:
        return None, prompt, output, "lengths", None
    time = _only(times, number)
    return time, prompt, output, "columns", UNITS.get(normal(time).rpartition("_")[2])


def _is_time(key: str) -> bool:
    """A name for arrival times, with or without its unit behind it (arrival_time_ms)."""
    stem, _, unit = key.rpartition("_")
    return key in TIMES or (unit in UNITS and stem in TIMES)


def _only(names: list[str], number: int) -> str:
    if len(names) > 1:
        listed = " and ".join(quoted(name) for name in names)
        message = f"The columns {listed} could be meant; leave one."
        raise refuse(message, code="ambiguous_columns", line=number)
    return names[0]


def _unknown(names: list[str], number: int) -> TrafficError:
    shown = ", ".join(quoted(name) for name in names[:12]) + (" ..." if len(names) > 12 else "")
    known = "; ".join(FORMATS.values())
    message = f"No columns for prompt and output tokens among {shown or 'none'}. Read are: {known}."
    return refuse(message, code="unknown_format", line=number)
