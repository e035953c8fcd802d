"""Optional columns, columns chosen by hand, and what a file may be told about its dialect."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from planner.traffic import Traffic, TrafficError, read_traffic


def read(content: bytes | str, **options: Any) -> Traffic:
    return read_traffic(io.BytesIO(content.encode() if isinstance(content, str) else content), **options)


def refusal(content: bytes | str, **options: Any) -> TrafficError:
    with pytest.raises(TrafficError) as caught:
        read(content, **options)
    return caught.value


def message(traffic: Traffic, code: str) -> str:
    return next(finding.message for finding in traffic.warnings if finding.code == code)


CSV = (
    "time,prompt_tokens,output_tokens,max_tokens,priority,tenant,note\n"
    '0,10,5,100,-1,blue,"a, b"\n1,11,6,,,red,x\n2,12,7,3,2,,y\n'
)
JSONL = (
    '{"time": 0.5, "prompt_tokens": 10, "output_tokens": 5, "max_tokens": 100, "priority": -1, "tenant": "blue"}\n'
    '{"time": 1.5, "prompt_tokens": 11, "output_tokens": 6, "max_tokens": null, "tenant": "red"}\n'
    '{"time": 2.5, "prompt_tokens": 12, "output_tokens": 7, "max_tokens": 3, "priority": 2, "tenant": null}\n'
)


@pytest.mark.parametrize("content", [CSV, JSONL])
def test_caps_priorities_and_classes_are_kept(content: str) -> None:
    traffic = read(content)
    assert traffic.max_tokens is not None
    assert traffic.priority is not None
    assert traffic.request_class is not None
    assert traffic.max_tokens.tolist() == [100, 6, 7]
    assert traffic.priority.tolist() == [-1, 0, 2]
    assert [traffic.class_names[code] for code in traffic.request_class] == ["blue", "red", "(none)"]
    assert "1 rows give no max_tokens" in message(traffic, "max_tokens_missing")
    assert "1 rows have more output" in message(traffic, "max_tokens_below_output")


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [("max_tokens", "0", "nothing"), ("max_tokens", "-1", "negative"), ("max_tokens", "1.5", "whole number"),
     ("priority", "x", "whole number"), ("priority", "1.5", "whole number"), ("priority", "999999999", "8 digits"),
     ("priority", "-", "whole number"), ("tenant", "y" * 129, "longer than 128")],
)  # fmt: skip
def test_optional_values_that_make_no_sense_are_named(column: str, value: str, words: str) -> None:
    error = refusal(f"time,prompt_tokens,output_tokens,{column}\n0,1,2,{value}\n")
    assert (error.errors[0].line, error.errors[0].column) == (2, column)
    assert words in error.errors[0].message
    plain = value.lstrip("-").replace(".", "").isdigit()
    row = f'{{"time": 0, "prompt_tokens": 1, "output_tokens": 2, "{column}": {value if plain else json.dumps(value)}}}'
    error = refusal(row)
    assert (error.errors[0].line, error.errors[0].column) == (1, column)


STRANGE = "when|sent|got|who\n0,5|10|20|a\n1,5|11|21|b\n"


def test_columns_chosen_by_hand_are_read_and_said() -> None:
    assert refusal(STRANGE).errors[0].code == "unknown_format"
    traffic = read(STRANGE, columns={"time": "when", "prompt": "sent", "output": "got", "class": "who"})
    assert traffic.arrival_s.tolist() == [0.0, 1.0]
    assert traffic.prompt_tokens.tolist() == [10, 11]
    assert traffic.class_names == ("a", "b")
    assert "time = when" in message(traffic, "mapped")
    assert traffic.recipe["options"]["columns"]["prompt"] == "sent"


def test_some_may_be_chosen_and_the_rest_recognised() -> None:
    two = "time,prompt_tokens,input_tokens,output_tokens\n0,1,2,3\n5,4,5,6\n"
    assert refusal(two).errors[0].code == "ambiguous_columns"
    assert read(two, columns={"prompt": "input_tokens"}).prompt_tokens.tolist() == [2, 5]
    assert read(two, columns={"prompt": "input_tokens", "time": ""}, rate_per_s=1.0).format == "lengths"


def test_a_file_without_a_header_has_numbered_columns() -> None:
    content = "0,10,20\n1.5,11,21\n"
    assert refusal(content).errors[0].code == "no_header"
    chosen = {"time": "column 1", "prompt": "column 2", "output": "column 3"}
    traffic = read(content, header=False, columns=chosen)
    assert (traffic.requests, traffic.duration_s) == (2, 1.5)


def test_json_is_reached_into_by_a_point() -> None:
    rows = [
        {"at": i, "usage": {"prompt_tokens": 5 + i, "completion": {"n": 7}}, "meta": {"model": "m"}}
        for i in range(3)
    ]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    chosen = {
        "time": "at",
        "prompt": "usage.prompt_tokens",
        "output": "usage.completion.n",
        "class": "meta.model",
    }
    traffic = read(content, columns=chosen, time_unit="s")
    assert traffic.prompt_tokens.tolist() == [5, 6, 7]
    assert traffic.class_names == ("m",)
    broken = content + '{"at": 9, "usage": {"prompt_tokens": "x"}}\n{"at": 10, "usage": 5}\n'
    error = refusal(broken, columns=chosen, time_unit="s")
    assert [(p.line, p.column) for p in error.errors[:2]] == [
        (4, "usage.prompt_tokens"),
        (4, "usage.completion.n"),
    ]


@pytest.mark.parametrize(
    ("columns", "field"),
    [({"prompt": "nope"}, "columns"), ({"colour": "when"}, "columns"),
     ({"prompt": "sent", "output": "sent"}, "columns"),
     ({"prompt": ""}, "columns")],
)  # fmt: skip
def test_choices_that_make_no_sense_name_their_field(columns: dict[str, str], field: str) -> None:
    assert refusal(STRANGE, columns=columns).field == field


def test_a_benchmarks_rows_are_read_when_its_columns_are_chosen() -> None:
    content = "prompt_tokens,generation_tokens,ttft,generation_time,launch_time\n5,6,0.1,0.2,100.5\n7,8,0.1,0.2,101\n"
    assert refusal(content).errors[0].code == "benchmark_result"
    assert read(content, columns={"time": "launch_time"}).arrival_s.tolist() == [0.0, 0.5]


# Dialect -----------------------------------------------------------------------------------------------------------


def test_thousands_are_read_when_their_separator_is_named() -> None:
    content = "timestamp;input_length;output_length\n0,0;512;128\n2,25;1.200;32\n"
    assert "thousands" in refusal(content).errors[0].message
    traffic = read(content, thousands=".")
    assert traffic.prompt_tokens.tolist() == [512, 1200]
    assert refusal(content.replace("1.200", "1.20"), thousands=".").errors[0].line == 3
    spaces = "timestamp\tinput_length\toutput_length\n0\t1 200\t128\n1\t3\u202f400\t32\n"
    assert read(spaces, thousands=" ").prompt_tokens.tolist() == [1200, 3400]


def test_the_encoding_can_be_said() -> None:
    content = "time,prompt_tokens,output_tokens,model\n0,1,2,Größe\n1,1,2,x\n"
    assert read(content.encode("cp1252"), encoding="windows-1252").class_names == ("Größe", "x")
    assert read(content.encode("utf-16-be"), encoding="utf-16-be").class_names == ("Größe", "x")
    assert refusal(content.encode("cp1252"), encoding="utf-8").errors[0].code == "encoding"


def test_stamps_without_a_zone_beside_others_need_one() -> None:
    content = "time,prompt_tokens,output_tokens\n2024-01-01 10:00:00,1,2\n2024-01-01T09:00:05Z,1,2\n"
    assert refusal(content).errors[0].code == "mixed_zones"
    assert read(content, utc_offset="+01:00").arrival_s.tolist() == [0.0, 5.0]


def test_runs_that_start_again_are_said_and_can_be_put_one_after_the_other() -> None:
    times = [0, 1, 2, 3, 0, 1, 2, 3]
    content = "time,prompt_tokens,output_tokens\n" + "".join(f"{t},{i + 1},2\n" for i, t in enumerate(times))
    overlapping = read(content)
    assert overlapping.duration_s == 3
    assert "start again 1 times" in message(overlapping, "times_start_again")
    joined = read(content, time_origin="each_run")
    assert joined.arrival_s.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert joined.prompt_tokens.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(("unit", "gap_s"), [("min", 30.0), ("h", 1800.0), ("d", 43200.0)])
def test_longer_units_of_time(unit: Any, gap_s: float) -> None:
    assert read("time,prompt_tokens,output_tokens\n0,1,2\n0.5,1,2\n", time_unit=unit).duration_s == gap_s


def test_words_and_characters_are_no_tokens() -> None:
    content = "time,prompt_words,output_words\n0,100,10\n1,200,1\n"
    error = refusal(content)
    assert (error.field, error.errors[0].code) == ("length_unit", "length_unit_needed")
    assert refusal(content, length_unit="words").field == "tokens_per_unit"
    traffic = read(content, length_unit="words", tokens_per_unit=1.3)
    assert traffic.prompt_tokens.tolist() == [130, 260]
    assert traffic.output_tokens.tolist() == [13, 1]
    assert "1.3 tokens" in message(traffic, "length_unit")


# What rows say of themselves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "good", "bad"),
    [("status", "200", "503"), ("status", "ok", "error"), ("success", "true", "false"),
     ("error", "", "boom: " + "x" * 99),
     ("status_code", "201", "429")],
)  # fmt: skip
def test_rows_that_say_they_failed_are_left_out_and_listed(column: str, good: str, bad: str) -> None:
    content = (
        f"time,prompt_tokens,output_tokens,{column}\n0,1,2,{good}\n1,1,2,{bad}\n2,1,,{bad}\n3,1,2,{good}\n"
    )
    traffic = read(content)
    assert traffic.requests == 2
    assert "1 left out (row 2)" in message(traffic, "failed")
    assert "boom" not in json.dumps(dict(traffic.recipe)) + str(traffic.warnings)


def test_only_survivors_are_asked_about() -> None:
    content = "time,prompt_tokens,output_tokens,status\n0,1,2,ok\n1,1,2,ok\n2,1,2,ok\n"
    assert "attempted_requests" in message(read(content), "survivors_only")
    assert "offered rate was about 2/s" in message(read(content, attempted_requests=6), "survivors_only")
    assert refusal(content, attempted_requests=2).field == "attempted_requests"


def test_one_pause_that_is_nearly_everything_is_questioned() -> None:
    times = [0, 1, 2, 3, 1_700_000, 1_700_001, 1_700_002, 1_700_003]
    content = "time,prompt_tokens,output_tokens\n" + "".join(f"{t},1,2\n" for t in times)
    assert "of one origin" in message(read(content), "one_gap")
