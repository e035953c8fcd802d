"""The same requests, as different programs write them down: one traffic, or a refusal that says why."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.traffic import ImportOptions, Traffic, TrafficError, preview, read_traffic

Row = tuple[int, int, int]  # microseconds since the beginning, prompt, output
ROWS = st.lists(
    st.tuples(st.integers(0, 10**10), st.integers(1, 99_999), st.integers(2, 9_999)), min_size=2, max_size=20
)
BEGINNING = datetime(
    2024, 3, 30, 22, 30, tzinfo=UTC
)  # the clocks of Europe change within the hours that follow
NAMES = st.sampled_from([
    ("timestamp", "prompt_tokens", "completion_tokens"), ("startTime", "promptTokens", "completionTokens"),
    ("created_at", "input_tokens", "output_tokens"), ("Arrival Time", "Input Length", "Output Length"),
    ("request_time", "num_prompt_tokens", "Num Output Tokens"),
])  # fmt: skip


def of(rows: list[Row]) -> list[tuple[float, int, int]]:
    first = min(row[0] for row in rows)
    return sorted(
        (((at - first) * 1_000 / 1e9, prompt, output) for at, prompt, output in rows), key=lambda row: row[0]
    )


def read(content: str | bytes, **options: Any) -> Traffic:
    return read_traffic(io.BytesIO(content.encode() if isinstance(content, str) else content), **options)


def same(traffic: Traffic, rows: list[Row]) -> None:
    expected = of(rows)
    assert traffic.arrival_s == pytest.approx([row[0] for row in expected], abs=1e-9)
    assert list(zip(traffic.prompt_tokens, traffic.output_tokens, strict=True)) == [
        row[1:] for row in expected
    ]


def stamp(at_us: int, zone: timezone, form: Callable[[datetime], str]) -> str:
    return form((BEGINNING + timedelta(microseconds=at_us)).astimezone(zone))


def iso(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")


def zulu(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%fZ")


WRAPPED: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "lines": lambda rows: "".join(json.dumps(row) + "\n" for row in rows),
    "array": json.dumps,
    "indented": lambda rows: json.dumps(rows, indent=2),
    "returns": lambda rows: json.dumps(rows, indent=1).replace("\n", "\r\n"),
    "inside": lambda rows: json.dumps({"object": "list", "data": rows}),
    "compact": lambda rows: json.dumps(rows, separators=(",", ":")),
}


@settings(max_examples=120, deadline=None, derandomize=True)
@given(ROWS, NAMES, st.sampled_from(sorted(WRAPPED)), st.booleans(), st.booleans(),
       st.lists(st.sampled_from([-8, -5, 0, 1, 2, 9]), min_size=1, max_size=3))  # fmt: skip
def test_json_of_any_wrapping_with_stamps_of_any_zone(
    rows: list[Row], names: tuple[str, str, str], wrapping: str, nested: bool, packed: bool, hours: list[int]
) -> None:
    """Zones may change from row to row, as over a change of the clocks: an instant is an instant."""
    time, prompt, output = names
    objects = []
    for index, (at, p, o) in enumerate(rows):
        zone = timezone(timedelta(hours=hours[index % len(hours)]))
        lengths = {prompt: p, output: o}
        objects.append({time: stamp(at, zone, iso if index % 2 else zulu), "text": "a\n[{secret}]",
                        **({"usage": {**lengths, "details": {"cached": 1}}} if nested else lengths)})  # fmt: skip
    content = WRAPPED[wrapping](objects).encode()
    traffic = read(gzip.compress(content, mtime=0) if packed else content)
    same(traffic, rows)
    assert traffic.recipe["time_unit"] == "stamp"
    assert ("json_array" in {one.code for one in traffic.warnings}) == (wrapping != "lines")


@settings(max_examples=100, deadline=None, derandomize=True)
@given(ROWS, st.sampled_from([("s", 10**6), ("ms", 10**3), ("us", 1)]), st.sampled_from([",", ";", "\t", "|"]),
       st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"]), st.sampled_from(["\n", "\r\n"]),
       st.booleans())  # fmt: skip
def test_tables_of_any_dialect_with_epoch_stamps(
    rows: list[Row], unit: tuple[str, int], delimiter: str, encoding: str, line_end: str, excel: bool
) -> None:
    """Times since 1970 give their unit away by their size."""
    epoch_us = int(BEGINNING.timestamp()) * 10**6
    rows = [(at // unit[1] * unit[1], prompt, output) for at, prompt, output in rows]
    lines = [delimiter.join(("timestamp", "prompt_tokens", "completion_tokens", "Modèle"))]
    lines += [
        delimiter.join((str((epoch_us + at) // unit[1]), str(prompt), str(output), "é"))
        for at, prompt, output in rows
    ]
    if excel and delimiter != "|" and encoding != "utf-16":
        lines.insert(0, f"sep={delimiter}")
    traffic = read(line_end.join([*lines, ""]).encode(encoding))
    same(traffic, rows)
    assert traffic.recipe["time_unit"] == unit[0]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(ROWS, st.sampled_from([".", " ", "'"]))
def test_what_excel_makes_of_it_where_commas_are_decimal(rows: list[Row], thousands: str) -> None:
    """Semicolons, decimal commas and a separator of thousands: read when the separator is named, and refused by
    line otherwise. Never is 1.200 taken for 1.2."""

    def grouped(count: int) -> str:
        return f"{count:,}".replace(",", thousands)

    lines = ["Zeit;Prompt Tokens;Completion Tokens"]
    lines += [f"{at / 10**6:.6f};{grouped(p)};{grouped(o)}".replace(".", ",", 1) for at, p, o in rows]
    content = "\r\n".join([*lines, ""]).encode("utf-8-sig")
    options: dict[str, Any] = {"columns": {"time": "Zeit"}, "decimal": ",", "time_unit": "s"}
    same(read(content, thousands=thousands, **options), rows)
    if any(p >= 1_000 or o >= 1_000 for _, p, o in rows):
        with pytest.raises(TrafficError) as caught:
            read(content, **options)
        large = {line for line, (_, p, o) in enumerate(rows, 2) if p >= 1_000 or o >= 1_000}
        assert {error.line for error in caught.value.errors} == large


@settings(max_examples=80, deadline=None, derandomize=True)
@given(ROWS, st.integers(0, 10_000))
def test_an_array_that_is_cut_off_is_refused_and_looked_at(rows: list[Row], at: int) -> None:
    """Not one of its requests is taken silently; a look at the first part of a large one is what it is for."""
    objects = [{"timestamp": at_us, "prompt_tokens": p, "completion_tokens": o} for at_us, p, o in rows]
    content = json.dumps(objects, indent=1).encode()
    cut = content[: at % (len(content) - 1)]
    with pytest.raises(TrafficError):
        read(cut)
    assert preview(io.BytesIO(cut), ImportOptions()).problem is not None


def test_a_large_array_is_read_whole_and_its_first_part_is_looked_at() -> None:
    """On one line of six megabytes, which as a line of JSON lines would be too long."""
    objects = [
        {"ts": index, "prompt_tokens": 5 + index % 7, "completion_tokens": 3, "t": "x" * 50}
        for index in range(60_000)
    ]
    content = json.dumps(objects).encode()
    assert len(content) > 6_000_000
    traffic = read(content, time_unit="s")
    assert (traffic.requests, traffic.duration_s) == (60_000, 59_999)
    assert np.array_equal(traffic.prompt_tokens, 5 + np.arange(60_000) % 7)
    seen = preview(io.BytesIO(content), ImportOptions(time_unit="s"))
    assert seen.problem is None and seen.traffic is not None and not seen.whole
    assert 5_000 < seen.traffic.requests < 60_000
    assert seen.columns[:3] == ["ts", "prompt_tokens", "completion_tokens"] and seen.rows[0][:3] == [
        "0",
        "5",
        "3",
    ]


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [({"prompt_tokens": -1}, 3, "negative"), ({"prompt_tokens": 1.5}, 3, "whole number"),
     ({"created": "soon"}, 3, "date"),
     ({"created": None}, 3, "missing"), ({"created": "2024-03-31 02:30:00"}, 3, "zone")],
)  # fmt: skip
@pytest.mark.parametrize("wrapping", ["lines", "indented"])
def test_what_is_wrong_is_said_by_line_or_element(
    change: dict[str, Any], line: int, words: str, wrapping: str
) -> None:
    rows = [
        {"created": f"2024-03-31T02:3{i}:00+02:00", "prompt_tokens": 5, "completion_tokens": 6}
        for i in range(5)
    ]
    rows[2] |= change
    with pytest.raises(TrafficError) as caught:
        read(WRAPPED[wrapping](rows))
    error = caught.value.errors[0]
    assert (error.line, error.column) == (line, next(iter(change)))
    assert words in error.message


def test_the_zone_of_stamps_without_one_can_be_said() -> None:
    rows = [{"created": text, "prompt_tokens": 5, "completion_tokens": 6}
            for text in ("2024-03-31T00:30:00Z", "2024-03-31T02:31:00")]  # fmt: skip
    assert read(WRAPPED["array"](rows), utc_offset="+02:00").duration_s == 60
