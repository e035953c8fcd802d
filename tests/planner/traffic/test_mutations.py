"""Damaged files: a correct import or a clear refusal, never another exception and never a silent change.

Each example damages a sound file in a few random ways. If it is still read, an independent and naive reader
(csv.reader or json.loads, int, one row at a time) must find the very same requests in it, and every row
that did not become a request must be in the report.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.traffic import Limits, Traffic, TrafficError, read_traffic, statistics

CSV = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:17:03.9799600,4808,10\r\n"
    "2023-11-16 18:17:04.0319600,3180,8\r\n"
    "2023-11-16 18:17:04.0781490,110,27\r\n"
    "2023-11-16 18:17:04.1206440,7433,14\r\n"
)
BURST = (
    "Timestamp,Model,Request tokens,Response tokens,Log Type\n"
    '5,ChatGPT,472,18,"API log"\n45,ChatGPT,1087,0,API log\n118,GPT-4,417,276,"a ""b"", c"\n200,Größe,360,1,x\n'
)
EURO = "timestamp;input_length;output_length;note\n0,25;512;128;a\n1,5;1024;64;b\n22,75;1200;32;c\n"
QUOTED = '"time","input_tokens","x","output_tokens"\n"0.5","10","a,b","20"\n"1.5","11","","21"\n"2.5","12","c","22"\n'
LENGTHS = "prompt_tokens\toutput_tokens\n10\t5\n20\t6\n30\t7\n"
JSONL = "".join(
    f'{{"timestamp": {1000 * i}, "input_length": {600 + i}, "output_length": {20 + i}, "hash_ids": [{i}, 7]}}\n'
    for i in range(4)
)
CELLS = [
    "NaN", "inf", "-1", "1e400", "true", "null", "12.5", "12.0", "1,200", "1.200", "1 200", "", " ", "0", '"7"',
    "1e3", "9" * 30, "0007", "+4", "''", '"', "\x00", "\r", "\n", "\ufeff", "é", "[]", "{}", "-0", "1_000",
]  # fmt: skip
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252", "latin-1"]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    text = draw(st.sampled_from([CSV, BURST, EURO, QUOTED, LENGTHS, JSONL]))
    for _ in range(draw(st.integers(1, 3))):
        text = draw(st.sampled_from([cell, line, header, dialect]))(draw, text)
    content = text.encode(draw(st.sampled_from(ENCODINGS) | st.just("utf-8")), errors="replace")
    for _ in range(draw(st.integers(0, 2))):
        content = byte(draw, content)
    if draw(st.integers(0, 4)) == 0:
        content = gzip.compress(content, mtime=0)
        content = byte(draw, content) if draw(st.booleans()) else content
    return content


def cell(draw: st.DrawFn, text: str) -> str:
    """One field, or a piece of one, becomes something else."""
    start = draw(st.integers(0, len(text)))
    size = draw(st.integers(0, 6))
    return text[:start] + draw(st.sampled_from(CELLS)) + text[start + size :]


def line(draw: st.DrawFn, text: str) -> str:
    lines = text.splitlines(keepends=True) or [""]
    place = draw(st.integers(0, len(lines) - 1))
    other = draw(st.integers(0, len(lines) - 1))
    kind = draw(st.sampled_from(["drop", "repeat", "swap", "blank", "cut"]))
    if kind == "drop":
        del lines[place]
    elif kind == "repeat":
        lines.insert(other, lines[place])
    elif kind == "swap":
        lines[place], lines[other] = lines[other], lines[place]
    elif kind == "blank":
        lines.insert(place, draw(st.sampled_from(["\n", "\r\n", "  \n", ",,\n"])))
    else:
        lines[place] = lines[place][: draw(st.integers(0, len(lines[place])))]
    return "".join(lines)


def header(draw: st.DrawFn, text: str) -> str:
    names = [
        "TIMESTAMP",
        "ContextTokens",
        "Response tokens",
        "input_length",
        "output_length",
        "timestamp",
        "hash_ids",
    ]
    return text.replace(
        draw(st.sampled_from(names)), draw(st.sampled_from([*names, "x", "", "delay", "ttft"]))
    )


def dialect(draw: st.DrawFn, text: str) -> str:
    changes = [(",", ";"), (";", ","), (",", "\t"), ("\r\n", "\n"), ("\n", "\r\n"), ("\n", "\r"), ("\t", "|")]
    old, new = draw(st.sampled_from([*changes, (".", ","), ('"', ""), ("\n", ",\n")]))
    return text.replace(old, new) if draw(st.booleans()) else text.replace(old, new, 1)


def byte(draw: st.DrawFn, content: bytes) -> bytes:
    start = draw(st.integers(0, len(content)))
    return content[:start] + draw(st.binary(max_size=3)) + content[start + draw(st.integers(0, 3)) :]


OPTIONS: list[dict[str, Any]] = [{}, {"rate_per_s": 2.0}, {"max_model_len": 1_500, "rate_per_s": 1.0}]


@settings(max_examples=2_000, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(damaged(), st.sampled_from(OPTIONS))
def test_damage_is_refused_or_changes_nothing(content: bytes, options: dict[str, Any]) -> None:
    try:
        traffic = read_traffic(io.BytesIO(content), limits=Limits(rows=1_000), **options)
    except TrafficError as error:
        assert error.errors
        assert all(problem.message and problem.code and problem.field for problem in error.errors)
        json.dumps(error.to_dict(), allow_nan=False)
        return
    json.dumps(statistics(traffic), allow_nan=False)
    rows = naive_rows(content, traffic)
    assert traffic.rows_read == len(rows)
    left_out = [f for f in traffic.warnings if f.code in ("zero_output", "zero_prompt", "longer_than_model")]
    assert traffic.requests == len(rows) - sum(finding.count for finding in left_out)
    limit = options.get("max_model_len", 10**9)
    kept = [row for row in rows if row[1] > 0 and row[2] > 0 and row[1] + row[2] <= limit]
    found = zip(traffic.prompt_tokens.tolist(), traffic.output_tokens.tolist(), strict=True)
    assert Counter(found) == Counter((prompt, output) for _, prompt, output in kept)
    times_s = sorted(time for time, _, _ in kept if time is not None)
    if times_s:
        expected_s = [time - times_s[0] for time in times_s]
        assert traffic.arrival_s.tolist() == pytest.approx(expected_s, rel=1e-12, abs=1e-6)


def naive_rows(content: bytes, traffic: Traffic) -> list[tuple[float | None, int, int]]:
    """Time in seconds (None for lengths only), prompt and output of every data row, read the slow way by
    the names and the unit that the import says it used."""
    recipe = traffic.recipe
    if recipe["compression"] == "gzip":
        content = gzip.decompress(content)
    encoding = recipe["encoding"]
    if encoding == "utf-16" and content[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "utf-16-be" if content[0] == 0 else "utf-16-le"
    if encoding == "windows-1252":
        content = content.removeprefix(b"\xef\xbb\xbf")
    text = content.decode(encoding, errors="replace")
    layout = recipe["layout"]
    columns = (layout["time"], layout["prompt"], layout["output"])
    if layout["json"]:
        objects = [json.loads(row) for row in text.split("\n") if row.strip()]
        cells = [[row[name] if name else None for name in columns] for row in objects]
    else:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=layout["delimiter"])
        table = [row for row in reader if row and (len(row) > 1 or row[0].strip(" "))]
        names = [name.strip() for name in table[0]]
        cells = [[row[names.index(name)] if name else None for name in columns] for row in table[1:]]
    return [(naive_time_s(time, recipe), int(prompt), int(output)) for time, prompt, output in cells]


def naive_time_s(cell: Any, recipe: Any) -> float | None:
    if cell is None:
        return None
    if recipe["time_unit"] == "stamp":
        whole, _, fraction = str(cell).strip().partition(".")
        assert not fraction.endswith("Z")
        return datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp() + float(f"0.{fraction or 0}")
    return (
        float(str(cell).replace(recipe.get("decimal", "."), ".")) / {"s": 1, "ms": 1e3}[recipe["time_unit"]]
    )


@pytest.mark.parametrize("text", [CSV, BURST, EURO, QUOTED, JSONL])
def test_the_undamaged_files_are_read(text: str) -> None:
    traffic = read_traffic(io.BytesIO(text.encode()))
    assert traffic.requests == len(naive_rows(text.encode(), traffic)) - (text == BURST)
