"""What kind of file is this? Decided by its content: the header of a CSV, the keys of the first JSON objects.

Names of columns are compared without case, spaces and signs. What the user has mapped goes before what the
names say. A file of a known kind that is not a trace (the result of a benchmark) is refused by its name:
"unknown format" helps nobody.
"""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from typing import Any

from planner.traffic.errors import TrafficError, refuse
from planner.traffic.foreign import foreign_csv, foreign_json, foreign_json_text
from planner.traffic.formats.known import json_format, table_format
from planner.traffic.json_values import at
from planner.traffic.layout import FORMATS, Layout, Unit
from planner.traffic.names import (
    CLASSES,
    KNOWN,
    MAX_TOKENS,
    OUTPUTS,
    PRIORITIES,
    PROMPTS,
    STATUSES,
    TIMES,
    UNITS,
    counted_unit,
    normal,
)
from planner.traffic.numbers import quoted
from planner.traffic.options import DELIMITERS, ImportOptions
from planner.traffic.stamps import looks_like_stamp
from planner.traffic.stream import decoded

_LOOKED_AT = 20
#: Where whoever is asked can say it: the API's field, the commands' option, the page.
HOW = (
    "mapping in the API, --map of the commands (prompt=COLUMN,output=COLUMN,time=COLUMN), Columns on the page"
)
_VALUES = re.compile(r"[\d.,:TZ+\- ]*")


def recognise(first_line: int, block: bytes, options: ImportOptions | None = None) -> Layout:
    """The layout of a file that begins with `block` (whole lines). TrafficError says what it is instead."""
    options = options or ImportOptions()
    lines = block.split(b"\n")
    index = next((i for i, line in enumerate(lines) if line.strip()), None)
    if index is None:
        raise refuse("The file holds nothing but blank lines.", code="empty")
    line = lines[index].strip(b"\r\n")
    if re.fullmatch(rb"sep=[,;|\t]", line.strip(b'" ')):  # Excel's own word for its delimiter
        return _after_sep(line.strip(b'" ')[4:].decode(), lines[index + 1 :], first_line + index + 1, options)
    if b"\r" in line:
        message = "Lines end with a carriage return alone; save the file with ordinary line ends."
        raise refuse(message, code="line_ends", line=first_line + index)
    if line.lstrip()[:1] in (b"{", b"["):
        return _json_layout(lines[index:], first_line + index, options)
    return _csv_layout(decoded(line), first_line + index, options)


def _after_sep(delimiter: str, lines: list[bytes], number: int, options: ImportOptions) -> Layout:
    if not lines or not lines[0].strip():
        raise refuse("After its first line the file holds no header.", code="no_rows", line=number)
    chosen = options if options.delimiter else replace(options, delimiter=delimiter)
    return _csv_layout(decoded(lines[0].strip(b"\r\n")), number, chosen)


def csv_columns(line: str, options: ImportOptions) -> tuple[str, list[str]]:
    """The delimiter and the fields of a CSV's first line, as the names or their number tell it."""
    best: tuple[str, list[str]] = (options.delimiter or ",", [])
    wanted = {normal(name) for name in options.columns.values() if name}
    for delimiter in [options.delimiter] if options.delimiter else DELIMITERS:
        try:
            names = [name.strip() for name in next(csv.reader([line], delimiter=delimiter, strict=True))]
        except csv.Error:
            continue
        found = {normal(name) for name in names}
        if (found & PROMPTS and found & OUTPUTS) or (wanted and wanted <= found):
            return delimiter, names
        if len(names) > len(best[1]):
            best = (delimiter, names)
    return best


def _csv_layout(line: str, number: int, options: ImportOptions) -> Layout:
    delimiter, names = csv_columns(line, options)
    if options.header is False:
        names = [f"column {place}" for place in range(1, len(names) + 1)]
        return _layout_of(names, number - 1, options, delimiter=delimiter)
    try:
        return _layout_of(names, number, options, delimiter=delimiter)
    except TrafficError:
        if names and not options.columns and all(_VALUES.fullmatch(name) for name in names):
            message = "The first line must name the columns; it holds values."
            raise refuse(message, code="no_header", line=number) from None
        raise


def _json_layout(lines: list[bytes], number: int, options: ImportOptions) -> Layout:
    names: dict[str, None] = {}
    rows: list[dict[str, Any]] = []
    for line in lines[:_LOOKED_AT]:  # more than one: a key missing in one line is an error of that line
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
            if not names and not options.columns:
                special = json_format(row)
                if special:
                    return Layout(special, "", "", header_line=number, json=True)
                foreign = foreign_json(row)
                if foreign:
                    raise foreign
            names |= dict.fromkeys(row)
            if options.columns:
                names |= dict.fromkeys(_paths(row))
    if names:
        if ("delay" in names or options.format == "mooncake_sessions") and not options.columns:
            return Layout("mooncake_sessions", "", "", header_line=number, json=True)
        return _layout_of_rows(list(names), rows, number, options)
    text = b"\n".join(lines)
    foreign = foreign_json_text({key.decode() for key in re.findall(rb'"([A-Za-z0-9_.]{1,60})"\s*:', text)})
    if foreign:
        raise foreign
    if lines[0].lstrip().startswith(b"["):
        message = "This is one JSON array; write one object per line (JSON lines)."
    else:
        message = "No line is a complete JSON object; write one object per line (JSON lines)."
    raise refuse(message, code="not_json_lines", line=number)


def _layout_of_rows(
    names: list[str], rows: list[dict[str, Any]], number: int, options: ImportOptions
) -> Layout:
    """Of JSON lines: by their own keys or, where those say nothing of lengths, by keys of objects inside of them
    (usage.prompt_tokens); with stamps where their times are such."""
    try:
        layout = _layout_of(names, number, options, json_lines=True)
    except TrafficError as error:
        if error.errors[0].code != "unknown_format" or options.columns:
            raise
        inside = dict.fromkeys([*names, *(path for row in rows for path in _paths(row))])
        if len(inside) == len(names):
            raise
        try:
            layout = _layout_of(list(inside), number, options, json_lines=True, inside=True)
        except TrafficError:
            raise error from None
    if layout.time is not None:
        path = tuple(layout.time.split(".")) if layout.time not in rows[0] else (layout.time,)
        value = next((value for row in rows if (value := at(row, path)) is not None), None)
        if isinstance(value, str) and looks_like_stamp(value):
            return replace(layout, stamps=True)
    return layout


def json_columns(rows: list[dict[str, Any]]) -> list[str]:
    """What a column can be called in these objects: their keys, and paths into objects inside of them."""
    names: dict[str, None] = {}
    for row in rows[:_LOOKED_AT]:
        names |= dict.fromkeys(key for key, value in row.items() if not isinstance(value, dict | list))
        names |= dict.fromkeys(_paths(row))
    return list(names)


def _paths(row: dict[str, Any], before: str = "", depth: int = 0) -> list[str]:
    """Paths to the values inside of objects: {"usage": {"prompt_tokens": 1}} -> usage.prompt_tokens."""
    found = []
    for key, value in list(row.items())[:100]:
        if isinstance(value, dict) and depth < 4:
            found += _paths(value, f"{before}{key}.", depth + 1)
        elif before:
            found.append(f"{before}{key}")
    return found


def _layout_of(
    names: list[str],
    number: int,
    options: ImportOptions,
    *,
    delimiter: str = ",",
    json_lines: bool = False,
    inside: bool = False,
) -> Layout:
    """`inside`: paths go by their last key, and a key of the object itself goes before one inside of it."""
    found: dict[str, list[str]] = {}
    for name in names:
        key = normal(name.rpartition(".")[2] if inside else name)
        if not (inside and "." in name and any("." not in other for other in found.get(key, ()))):
            found.setdefault(key, []).append(name)
    mapped = _mapped(options, found, names, number)
    if not mapped:
        foreign = foreign_csv(list(found))
        if foreign:
            raise foreign
        special = None if json_lines else table_format(list(found))
        if special:
            return Layout(special, "", "", header=tuple(names), delimiter=delimiter, header_line=number)
    time, prompt, output, kind_name, unit = _columns(found, names, number, mapped)
    length_unit = "tokens"
    for role, name in (("prompt", prompt), ("output", output)):
        counted = counted_unit(normal(name))
        if counted and role not in mapped:
            length_unit = counted[1]
    if json_lines and kind_name == "columns":
        mooncake = (time, prompt, output) == ("timestamp", "input_length", "output_length")
        kind_name = "mooncake" if mooncake else "json_lines"
    taken = {time, prompt, output}
    return Layout(
        format=kind_name,
        prompt=prompt,
        output=output,
        time=time,
        unit=unit,
        request_class=mapped.get("class", _first(found, CLASSES, taken)) or None,
        max_tokens=mapped.get("max_tokens", _first(found, MAX_TOKENS, taken)) or None,
        priority=mapped.get("priority", _first(found, PRIORITIES, taken)) or None,
        status=mapped.get("status", _first(found, STATUSES, taken)) or None,
        header=tuple(names),
        delimiter=delimiter,
        header_line=number,
        json=json_lines,
        mapped=bool(mapped),
        length_unit=options.length_unit or length_unit,
    )


def _first(found: dict[str, list[str]], keys: Any, taken: set[str | None]) -> str | None:
    """The one column called like one of `keys`; none where two share a name, which then cannot be told apart."""
    for key in keys:
        names = found.get(key, [])
        if len(names) == 1 and names[0] not in taken:
            return names[0]
    return None


def _mapped(
    options: ImportOptions, found: dict[str, list[str]], names: list[str], number: int
) -> dict[str, str]:
    """The user's choice as the file spells it; "" stays "" (there is none)."""
    mapped = {}
    for role, wanted in options.columns.items():
        if not wanted:
            mapped[role] = ""
        elif names.count(wanted) == 1:
            mapped[role] = wanted
        elif len(found.get(normal(wanted), [])) == 1:
            mapped[role] = found[normal(wanted)][0]
        else:
            shown = ", ".join(quoted(name) for name in names[:20]) + (" ..." if len(names) > 20 else "")
            many = "more than one column" if wanted in names else "no column"
            message = f"There is {many} {quoted(wanted)} for {role}; the file has {shown}."
            raise refuse(message, code="no_such_column", line=number, field="columns")
    return mapped


def _columns(
    found: dict[str, list[str]], names: list[str], number: int, mapped: dict[str, str]
) -> tuple[str | None, str, str, str, Unit | None]:
    if not mapped:
        for kind, time_key, prompt_key, output_key, unit in KNOWN:
            if time_key in found and prompt_key in found and output_key in found:
                keys = (time_key, prompt_key, output_key)
                time, prompt, output = (_only(found[key], number) for key in keys)
                return time, prompt, output, kind, unit
    rest = {key: [name for name in found[key] if name not in mapped.values()] for key in found}
    times = [name for key in rest if _is_time(key) for name in rest[key]]
    prompts = [name for key in rest if key in PROMPTS for name in rest[key]]
    outputs = [name for key in rest if key in OUTPUTS for name in rest[key]]
    if not prompts and not outputs:
        prompts = [name for key in rest if _counts(key, "prompt") for name in rest[key]]
        outputs = [name for key in rest if _counts(key, "output") for name in rest[key]]
    if not (mapped.get("prompt") or prompts) or not (mapped.get("output") or outputs):
        raise _unknown(names, number)
    prompt = mapped.get("prompt") or _only(prompts, number)
    output = mapped.get("output") or _only(outputs, number)
    chosen = mapped.get("time")
    if chosen == "" or (chosen is None and not times):
        return None, prompt, output, "lengths", None
    time = chosen or _only(times, number)
    return time, prompt, output, "columns", UNITS.get(normal(time).rpartition("_")[2])


def _counts(key: str, side: str) -> bool:
    counted = counted_unit(key)
    return counted is not None and counted[0] == side


def _is_time(key: str) -> bool:
    """A name for arrival times, with or without its unit behind it (arrival_time_ms)."""
    stem, _, unit = key.rpartition("_")
    return key in TIMES or (unit in UNITS and stem in TIMES)


def _only(names: list[str], number: int) -> str:
    if len(names) > 1:
        listed = " and ".join(quoted(name) for name in names)
        message = f"The columns {listed} could be meant; leave one, or say which: {HOW}."
        raise refuse(message, code="ambiguous_columns", line=number)
    return names[0]


def _unknown(names: list[str], number: int) -> TrafficError:
    shown = ", ".join(quoted(name) for name in names[:12]) + (" ..." if len(names) > 12 else "")
    known = "; ".join(FORMATS.values())
    message = (
        f"No columns for prompt and output tokens among {shown or 'none'}: say which they are: {HOW}. "
        f"Read without being told are: {known}."
    )
    return refuse(message, code="unknown_format", line=number)
