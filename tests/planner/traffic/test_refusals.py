"""Files that are refused, with the line, the column and a code."""

from __future__ import annotations

import gzip
import io
import random
from typing import Any

import pytest

from planner.traffic import Limits, TooLarge, TrafficError, read_traffic

CSV = "timestamp,input_length,output_length\n0,10,20\n1,11,21\n"
JSONL = '{"timestamp": 0, "input_length": 10, "output_length": 20}\n'


def refusal(content: bytes | str, **options: Any) -> TrafficError:
    raw = content.encode() if isinstance(content, str) else content
    with pytest.raises(TrafficError) as caught:
        read_traffic(io.BytesIO(raw), **options)
    return caught.value


@pytest.mark.parametrize(
    ("cells", "column", "words"),
    [
        ("NaN,1,2", "timestamp", "NaN"),
        ("inf,1,2", "timestamp", "inf"),
        ("-Infinity,1,2", "timestamp", "Infinity"),
        ("-3.5,1,2", "timestamp", "negative"),
        ("1e400,1,2", "timestamp", "not a finite time"),
        ("1e21,1,2", "timestamp", "not a finite time"),
        (",1,2", "timestamp", "missing"),
        ("1.2.3,1,2", "timestamp", "not a number"),
        ("0x10,1,2", "timestamp", "not a number"),
        ("1_000,1,2", "timestamp", "not a number"),
        ("٣,1,2", "timestamp", "not a number"),
        ("true,1,2", "timestamp", "not a number"),
        ("2023-11-16 18:17:03,1,2", "timestamp", "not a number"),
        ("1,-7,2", "input_length", "negative"),
        ("1,10.5,2", "input_length", "not a whole number"),
        ("1,10.0,2", "input_length", "not a whole number"),
        ("1,1e3,2", "input_length", "not a whole number"),
        ("1,1.200,2", "input_length", "1200 or a fraction"),
        ("1,1 200,2", "input_length", "1200 or a fraction"),
        ("1,1\u00a0200,2", "input_length", "1200 or a fraction"),
        ("1,1'200,2", "input_length", "1200 or a fraction"),
        ("1,nan,2", "input_length", "not a number"),
        ("1,True,2", "input_length", "truth value"),
        ("1,,2", "input_length", "missing"),
        ("1,+5,2", "input_length", "not a whole number"),
        ("1,0x10,2", "input_length", "not a number"),
        ("1,１２,2", "input_length", "not a number"),
        ("1,2,100000001", "output_length", "more than 100,000,000"),
        ("1,2,9223372036854775807", "output_length", "more than 100,000,000"),
        ("1,2," + "9" * 40, "output_length", "more than 100,000,000"),
        ("1,2,abc", "output_length", "not a number"),
        ("1,2,1,200", None, "4 fields where the header has 3"),
        ("1,2", None, "2 fields where the header has 3"),
        ("# comment", None, "1 field where the header has 3"),
    ],
)
@pytest.mark.parametrize("quoted", [False, True])
def test_a_bad_row_of_a_csv_is_named(cells: str, column: str | None, words: str, quoted: bool) -> None:
    first = '"0",10,20' if quoted else "0,10,20"
    error = refusal(f"timestamp,input_length,output_length\n{first}\n{cells}\n5,6,7\n")
    assert error.total == 1
    assert (error.errors[0].line, error.errors[0].column) == (3, column)
    assert words in error.errors[0].message


@pytest.mark.parametrize(
    ("line", "column", "words"),
    [
        ('{"timestamp": NaN, "input_length": 1, "output_length": 2}', "timestamp", "NaN"),
        ('{"timestamp": -Infinity, "input_length": 1, "output_length": 2}', "timestamp", "Infinity"),
        ('{"timestamp": 1e400, "input_length": 1, "output_length": 2}', "timestamp", "1e400"),
        ('{"timestamp": -1, "input_length": 1, "output_length": 2}', "timestamp", "negative"),
        ('{"timestamp": true, "input_length": 1, "output_length": 2}', "timestamp", "truth value"),
        ('{"timestamp": "5", "input_length": 1, "output_length": 2}', "timestamp", "text in quotes"),
        ('{"input_length": 1, "output_length": 2}', "timestamp", "missing"),
        ('{"timestamp": 1, "input_length": null, "output_length": 2}', "input_length", "missing"),
        ('{"timestamp": 1, "input_length": 12.0, "output_length": 2}', "input_length", "not a whole"),
        ('{"timestamp": 1, "input_length": false, "output_length": 2}', "input_length", "truth value"),
        ('{"timestamp": 1, "input_length": [1], "output_length": 2}', "input_length", "not a number"),
        ('{"timestamp": 1, "input_length": 1, "output_length": "2"}', "output_length", "text in quotes"),
        ('{"timestamp": 1, "input_length": 1, "output_length": 1' + "0" * 30 + "}", "output_length", "more than"),
        ('{"timestamp": 1, "input_length": 1, "output_length": 1' + "0" * 5000 + "}", None, "not a complete"),
        ('{"timestamp": 1, "input_length": 1, "output_length": 2, "hash_ids": [-1]}', "hash_ids", "64 bits"),
        ('{"timestamp": 1, "input_length": 1, "output_length": 2, "hash_ids": [18446744073709551616]}',
         "hash_ids", "64 bits"),
        ('{"timestamp": 1, "input_length": 1, "output_length": 2, "hash_ids": [true]}', "hash_ids", "64 bits"),
        ('{"timestamp": 1, "input_length": 1, "output_length": 2, "hash_ids": "x"}', "hash_ids", "not a list"),
        ('{"timestamp": 1, "input_length": 10', None, "not a complete JSON object"),
        ('{"timestamp": 1, "input_length": 1, "output_length": 2} {}', None, "not a complete JSON object"),
        ("[1, 2, 3]", None, "not a JSON object"),
        ("[" * 100_000, None, "not a complete JSON object"),
    ],
)  # fmt: skip
def test_a_bad_line_of_json_is_named(line: str, column: str | None, words: str) -> None:
    error = refusal(f"{JSONL}{line}\n{JSONL}")
    assert error.total == 1
    assert (error.errors[0].line, error.errors[0].column) == (2, column)
    assert words in error.errors[0].message


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (b"\n\n \n", "empty"),
        (b"timestamp,input_length,output_length\n", "no_rows"),
        (b"timestamp,input_length,output_length", "no_rows"),
        (b"0,10,20\n1,11,21\n", "no_header"),
        (b"a,b,c\n1,2,3\n", "unknown_format"),
        (b"timestamp,input_length\n1,2\n", "unknown_format"),
        (b'{"a": 1}\n', "unknown_format"),
        (b"hello\n", "unknown_format"),
        (b"timestamp,input_length,prompt_tokens,output_length\n1,2,3,4\n", "ambiguous_columns"),
        (b"time,arrived_at,input_length,output_length\n1,2,3,4\n", "ambiguous_columns"),
        (b"timestamp,input_length,input_length,output_length\n1,2,3,4\n", "ambiguous_columns"),
        (b"timestamp,input_length,output_length\r0,1,2\r", "line_ends"),
        (b"timestamp,input_length,output_length\n0,1,2\n1,\x00,2\n", "nul_byte"),
        (b"prompt_tokens_le,output_tokens_le,count\n1,2,3\n", "rate_needed"),
        (b'[{"timestamp": 0, "input_length": 1, "output_length": 2},]', "not_json_lines"),
        (b'{\n "timestamp": 0,\n "input_length": 1\n}\n', "not_json_lines"),
        (b"PK\x03\x04rest", "not_text"),
        (b"\x28\xb5\x2f\xfdrest", "bad_archive"),
        (b"BZhrest", "not_text"),
        (b"%PDF-1.7\n", "not_text"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\n", "nul_byte"),
        (b"\x1f\x8b", "bad_archive"),
        (b"\x1f\x8bnonsense that is no deflate", "bad_archive"),
        (gzip.compress(CSV.encode(), mtime=0)[:-9], "bad_archive"),
        (gzip.compress(CSV.encode(), mtime=0) + b"trailing", "bad_archive"),
        (b"\xff\xfea", "encoding"),
        ("timestamp;input_length;output_length\n1,200;1;2\n2,500;1;2\n", "ambiguous_decimal"),
        ('timestamp,input_length,output_length\n0,"1,2\n1,2,3\n', "bad_quotes"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,2\n2023-11-16 18:17:04Z,1,2\n",
         "mixed_zones"),
        ("timestamp,input_length,output_length\n5,1,2\n1700000000,1,2\n", "time_span"),
        ("timestamp,input_length,output_length\n5,1,0\n6,1,0\n", "no_requests"),
    ],
)  # fmt: skip
def test_files_that_are_refused_as_a_whole(content: bytes | str, code: str) -> None:
    error = refusal(content)
    assert [problem.code for problem in error.errors] == [code]
    assert error.errors[0].message


def test_a_missing_rate_is_asked_for_beside_its_field() -> None:
    error = refusal("prompt_tokens,output_tokens,when\n1,2,x\n")
    assert (error.field, error.errors[0].code) == ("rate_per_s", "rate_needed")
    assert "when" in error.errors[0].message


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"format": "excel"}, "format"),
        ({"format": "azure"}, "format"),
        ({"rate_per_s": -1.0}, "rate_per_s"),
        ({"rate_per_s": float("nan")}, "rate_per_s"),
        ({"time_unit": "weeks"}, "time_unit"),
        ({"decimal": ";"}, "decimal"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"zero_outputs": "drop"}, "zero_outputs"),
        ({"seed": -1}, "seed"),
        ({"interarrival_cv": float("nan")}, "interarrival_cv"),
    ],
)
def test_options_that_make_no_sense_name_their_field(options: dict[str, Any], field: str) -> None:
    assert refusal(CSV, **options).field == field


def test_every_bad_row_is_counted_and_fifty_are_listed() -> None:
    rows = "".join(f"{i},x,{'y' if i % 2 else 3}\n" for i in range(200))
    error = refusal("timestamp,input_length,output_length\n" + rows)
    assert (error.total, len(error.errors), error.total_is_at_least) == (300, 50, False)
    answer = error.to_dict()
    assert answer["detail"].startswith('line 2, column input_length: "x" is not a number (299 more')
    assert answer["errors"][0] == {
        "field": "file",
        "message": 'line 2, column input_length: "x" is not a number',
        "code": "bad_value",
        "line": 2,
        "column": "input_length",
    }


def test_reading_stops_where_almost_everything_is_wrong() -> None:
    error = refusal("timestamp,input_length,output_length\n" + "x\n" * 30_000)
    assert error.total_is_at_least
    assert error.total == 10_000
    assert "at least" in error.detail


@pytest.mark.parametrize(
    ("limits", "content", "what"),
    [
        (Limits(file_bytes=40), CSV.encode(), "file_bytes"),
        (Limits(unpacked_bytes=40), gzip.compress(CSV.encode(), mtime=0), "unpacked_bytes"),
        (Limits(rows=1), CSV.encode(), "rows"),
        (Limits(rows=1), (JSONL * 2).encode(), "rows"),
        (Limits(rows=1), CSV.replace("10", '"10"').encode(), "rows"),
        (Limits(line_bytes=30), CSV.encode()[:-1].replace(b"\n", b" "), "line_bytes"),
        (
            Limits(hash_ids=1),
            b'{"timestamp":0,"input_length":1,"output_length":2,"hash_ids":[1,2]}',
            "hash_ids",
        ),
    ],
)
def test_every_cap_is_named_with_its_value(limits: Limits, content: bytes, what: str) -> None:
    error = refusal(content, limits=limits)
    assert isinstance(error, TooLarge)
    assert error.to_dict()["limit"] == {"what": what, "value": getattr(limits, what)}


def test_a_line_of_ten_megabytes_is_refused_with_its_number() -> None:
    error = refusal(CSV.encode() + b"7" * 10_000_000)
    assert isinstance(error, TooLarge)
    assert (error.what, error.errors[0].line) == ("line_bytes", 4)


class Endless:
    """A gzip archive that never stops unpacking, and counts what was taken of it."""

    def __init__(self, line: bytes) -> None:
        self.data = gzip.compress(CSV.encode() + line * 3_000_000, mtime=0)
        self.taken = 0

    def read(self, size: int = -1, /) -> bytes:
        piece = self.data[self.taken : self.taken + 256]
        self.taken += len(piece)
        return piece


@pytest.mark.parametrize("line", [b"\n", b" " * 20, b"5,6,7\n"])
def test_an_archive_that_grows_a_thousandfold_is_stopped_on_the_way(line: bytes) -> None:
    bomb = Endless(line)
    with pytest.raises(TooLarge):
        read_traffic(bomb, limits=Limits(unpacked_bytes=2 << 20, rows=10_000_000))
    assert bomb.taken < len(bomb.data)


def test_random_bytes_are_no_traffic() -> None:
    source = random.Random(1)
    for size in (1, 10, 1_000, 100_000):
        refusal(source.randbytes(size), rate_per_s=1.0)
