"""Files that are read, and what they become."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.traffic import Traffic, from_npz_bytes, load_traffic, read_traffic, statistics, to_npz_bytes

AZURE = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    b"2023-11-16 18:17:03.9799600,4808,10\r\n"
    b"2023-11-16 18:17:04.0319601,3180,8\r\n"
    b"2023-11-16 18:17:04.0781490,110,27\r\n"
)
MOONCAKE = (
    b'{"timestamp": 0, "input_length": 600, "output_length": 20, "hash_ids": [0, 1]}\n'
    b'{"timestamp": 1500, "input_length": 1100, "output_length": 21, "hash_ids": [0, 2, 3]}\n'
    b'{"timestamp": 1750, "input_length": 5, "output_length": 2, "hash_ids": [18446744073709551615]}\n'
)


def read(content: bytes | str, **options: Any) -> Traffic:
    return read_traffic(io.BytesIO(content.encode() if isinstance(content, str) else content), **options)


def codes(traffic: Traffic) -> list[str]:
    return [finding.code for finding in traffic.warnings]


def test_azure_keeps_all_seven_digits() -> None:
    traffic = read(AZURE)
    assert traffic.format == "azure"
    assert traffic.arrival_s.tolist() == [0.0, 0.0520001, 0.098189]
    assert traffic.prompt_tokens.tolist() == [4808, 3180, 110]
    assert traffic.output_tokens.tolist() == [10, 8, 27]
    assert traffic.recipe["first_time"] == "2023-11-16T18:17:03.979960000"
    assert traffic.warnings == ()


def test_the_form_of_azures_2024_trace_with_zones_and_whole_seconds() -> None:
    traffic = read(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-12 00:00:00.003163+00:00,100,5\n"
        "2024-05-12 00:00:01+00:00,100,5\n"
        "2024-05-12 02:00:02+02:00,100,5\n"
    )
    assert traffic.arrival_s.tolist() == [0.0, 0.996837, 1.996837]


def test_mooncake_is_read_in_milliseconds_with_its_hashes() -> None:
    traffic = read(MOONCAKE)
    assert traffic.format == "mooncake"
    assert traffic.arrival_s.tolist() == [0.0, 1.5, 1.75]
    hashes = traffic.prefix_hashes
    assert hashes is not None
    assert hashes.block_tokens == 512
    assert hashes.offsets.tolist() == [0, 2, 5, 6]
    assert int(hashes.flat[-1]) == 2**64 - 1
    assert codes(traffic) == ["time_unit"]
    assert statistics(traffic)["prefix_hit_rate"] == pytest.approx(1 / 6)


def test_splitwise_vidur_and_llmservingsim() -> None:
    splitwise = read(
        "request_id,arrival_timestamp,batch_size,prompt_size,token_size\n0,1,1,4096,32\n1,3,1,2,8\n"
    )
    assert (splitwise.format, splitwise.arrival_s.tolist()) == ("splitwise", [0.0, 2.0])
    vidur = read("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,4808,10\n0.052,3180,8\n")
    assert (vidur.format, vidur.arrival_s.tolist()) == ("vidur", [0.0, 0.052])
    servingsim = read(
        '{"input_toks":1,"output_toks":7,"arrival_time_ns":46926808,"input_tok_ids":[1]}\n'
        '{"input_toks":2,"output_toks":8,"arrival_time_ns":347938952,"input_tok_ids":[1,2]}\n'
    )
    assert (servingsim.format, servingsim.arrival_s.tolist()) == ("llmservingsim", [0.0, 0.301012144])


def test_burstgpt_keeps_its_models_as_classes() -> None:
    traffic = read(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,API log\n9,GPT-4,10,20,30,API log\n11,Größe,1,2,3,API log\n"
    )
    assert traffic.format == "burstgpt"
    assert traffic.prompt_tokens.tolist() == [472, 10, 1]
    assert traffic.class_names == ("ChatGPT", "GPT-4", "Größe")
    assert traffic.request_class is not None
    assert traffic.request_class.tolist() == [0, 1, 2]
    assert statistics(traffic)["classes"] == {"ChatGPT": 1, "GPT-4": 1, "Größe": 1}
    assert codes(traffic) == ["several_models"]


def test_classes_that_are_no_models_are_not_called_models() -> None:
    traffic = read("time_s,prompt_tokens,output_tokens,class\n0,5,3,chat\n1,9,2,batch\n")
    [found] = [finding for finding in traffic.warnings if finding.code.startswith("several")]
    assert found.code == "several_classes" and "model" not in found.message
    assert found.count == 0, "the page would call the two classes 2 rows"


@pytest.mark.parametrize(
    ("header", "first", "second", "gap_s"),
    [
        ("arrival_time_ms", "10", "260", 0.25),
        ("Arrival Time (us)", "10", "260", 0.00025),
        ("timestamp_ns", "1000000000000000001", "1000000000000000999", 9.98e-7),
        ("time", "0.5", "1e1", 9.5),
        ("created_at", "2024-02-29T23:59:59.5Z", "2024-03-01T00:00:00Z", 0.5),
        ("timestamp", "1700000000.25", "1700000001.75", 1.5),
        ("timestamp", "1700000000250", "1700000001750", 1.5),
        ("timestamp", "1700000000250000", "1700000001750000", 1.5),
    ],
)
def test_times_of_many_kinds(header: str, first: str, second: str, gap_s: float) -> None:
    traffic = read(f"{header},input_tokens,output_tokens\n{first},1,2\n{second},3,4\n")
    tolerance = 1e-6 if header == "timestamp_ns" else 1e-12  # beyond 2^53 a float holds 128 ns
    assert traffic.arrival_s[1] == pytest.approx(gap_s, rel=tolerance, abs=3e-7 if "ns" in header else 0)


def test_the_user_has_the_last_word_on_the_unit() -> None:
    traffic = read(MOONCAKE, time_unit="s")
    assert traffic.duration_s == 1750
    assert codes(traffic) == []
    assert traffic.recipe["options"] == {"time_unit": "s"}


def test_fractions_in_json_lines_are_seconds_and_that_is_said() -> None:
    traffic = read('{"timestamp": 0.0, "input_length": 1, "output_length": 2}\n' * 2 + '{"timestamp": 1.5, '
                   '"input_length": 1, "output_length": 2}')  # fmt: skip
    assert traffic.duration_s == 1.5
    assert "seconds" in next(f.message for f in traffic.warnings if f.code == "time_unit")


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("final", [True, False])
def test_dialects(delimiter: str, line_end: str, final: bool) -> None:
    rows = ["time,Prompt Tokens,x,output_tokens", "0.5,10,a,20", "1.75,30,b,40"]
    content = line_end.join(row.replace(",", delimiter) for row in rows) + (line_end if final else "")
    traffic = read(content)
    assert traffic.arrival_s.tolist() == [0.0, 1.25]
    assert traffic.prompt_tokens.tolist() == [10, 30]
    assert traffic.output_tokens.tolist() == [20, 40]


def test_a_decimal_comma_is_understood_where_it_is_certain() -> None:
    traffic = read("timestamp;input_length;output_length\n0,0;1;2\n1,5;3;4\n1,625;3;4\n")
    assert traffic.arrival_s.tolist() == [0.0, 1.5, 1.625]
    assert traffic.recipe["decimal"] == ","


def test_the_user_can_settle_an_uncertain_decimal() -> None:
    content = "timestamp;input_length;output_length\n1,200;1;2\n2,500;3;4\n"
    assert read(content, decimal=",").arrival_s[1] == pytest.approx(1.3)


def test_quotes_and_line_ends_inside_them() -> None:
    traffic = read(
        'arrived_at,"num_prefill_tokens",num_decode_tokens,text\n'
        '"0.5","10","20","said ""hi"", and\nleft"\n'
        '1.5,30,40,"a,b"\n'
    )
    assert traffic.arrival_s.tolist() == [0.0, 1.0]
    assert traffic.output_tokens.tolist() == [20, 40]
    assert [(f.code, f.lines) for f in traffic.warnings] == [("multi_line_fields", (2,))]


@pytest.mark.parametrize(
    ("encode", "name"),
    [
        (lambda text: b"\xef\xbb\xbf" + text.encode(), "utf-8-sig"),
        (lambda text: text.encode("utf-16"), "utf-16"),
        (lambda text: text.encode("utf-16-be"), "utf-16"),
        (lambda text: text.encode("utf-16-le"), "utf-16"),
        (lambda text: text.encode("cp1252"), "windows-1252"),
        (lambda text: text.encode(), "utf-8"),
    ],
)
def test_encodings(encode: Any, name: str) -> None:
    text = "timestamp,Model,Request tokens,Response tokens\n5,Größe,472,18\n6,Größe,473,19\n"
    traffic = read(encode(text))
    assert traffic.recipe["encoding"] == name
    assert traffic.class_names == ("Größe",)
    assert traffic.prompt_tokens.tolist() == [472, 473]
    assert ("encoding" in codes(traffic)) == (name in ("utf-16", "windows-1252"))


def test_lengths_only_get_arrivals_at_the_given_rate() -> None:
    content = "prompt_tokens,output_tokens\n" + "".join(f"{i},{i + 1}\n" for i in range(1, 5_001))
    traffic = read(content, rate_per_s=2.0, interarrival_cv=2.0, seed=7)
    again = read(content, rate_per_s=2.0, interarrival_cv=2.0, seed=7)
    assert traffic.format == "lengths"
    assert traffic.prompt_tokens.tolist() == list(range(1, 5_001))
    assert traffic.rate_per_s == pytest.approx(2.0, rel=0.1)
    assert statistics(traffic)["interarrival_cv"] == pytest.approx(2.0, rel=0.1)
    assert np.array_equal(traffic.arrival_s, again.arrival_s)
    assert traffic.recipe["options"] == {"rate_per_s": 2.0, "interarrival_cv": 2.0, "seed": 7}


def test_lengths_as_json_lines() -> None:
    traffic = read('{"prompt_tokens": 3, "output_tokens": 4}\n' * 3, rate_per_s=1.0)
    assert (traffic.format, traffic.requests) == ("lengths", 3)


def test_one_row_is_a_traffic() -> None:
    traffic = read(AZURE.split(b"\r\n2023-11-16 18:17:04")[0])
    assert traffic.requests == 1
    assert statistics(traffic)["rate_per_s"] is None


def test_what_was_read_survives_storage() -> None:
    traffic = read(MOONCAKE)
    stored = from_npz_bytes(to_npz_bytes(traffic))
    assert statistics(stored) == statistics(traffic)
    assert stored.recipe["layout"]["prompt"] == "input_length"


def test_a_rate_for_a_file_with_times_is_not_silently_ignored() -> None:
    assert "rate_not_used" in codes(read(AZURE, rate_per_s=5.0))


def test_progress_is_told_and_can_stop_the_import() -> None:
    heard: list[tuple[int, int]] = []
    read(AZURE, on_progress=lambda size, rows: heard.append((size, rows)))
    assert heard[-1][0] == len(AZURE)

    class Stop(Exception):
        pass

    def stop(size: int, rows: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        read(AZURE, on_progress=stop)


def test_load_traffic_takes_a_preset_or_a_path(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(AZURE)
    assert load_traffic("chat").source == "chat"
    assert load_traffic(str(path)).source == "trace.csv"
    with pytest.raises(ValueError, match="neither a file nor a preset"):
        load_traffic(str(tmp_path / "absent.csv"))
    with pytest.raises(ValueError, match="cannot be read"):
        read_traffic(tmp_path)
