"""Folders with a recorded run: what is read, and what is said about those that are wrong."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.simulation.recorded_run import RecordedRunError, read_recorded_run

META = {
    "vllm_version": "0.33.0",
    "engine_kwargs": {"max_num_seqs": 8, "max_num_batched_tokens": 64},
    "kv_cache": {"block_size": 4, "num_gpu_blocks": 101},
}
STEPS = "prefill_tokens,prefill_context,decode_seqs,decode_context,step_ms\n0,0,1,16,5\n16,0,0,0,7\n"


def request(name: str = "a", **others: Any) -> dict[str, Any]:
    line = {"request_id": name, "input_toks": 9, "output_toks": 3}
    return line | {"queued_ts": 10.0, "first_token_ts": 10.5, "last_token_ts": 11.5} | others


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "meta.json").write_text(json.dumps(META))
    (tmp_path / "steps.csv.gz").write_bytes(gzip.compress(STEPS.encode(), mtime=0))
    write(tmp_path, "requests.jsonl", [request("late", queued_ts=10.25), request("early")])
    return tmp_path


def write(folder: Path, name: str, lines: list[Any]) -> None:
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def change_meta(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    meta = json.loads(json.dumps(META))
    change(meta)
    (folder / "meta.json").write_text(json.dumps(meta))


def test_requests_come_by_arrival_on_a_clock_of_their_own(folder: Path) -> None:
    run = read_recorded_run(folder)
    assert run.arrival_s.tolist() == [0.0, 0.25]
    assert run.measured_s("ttft").tolist() == [0.5, 0.25]
    assert run.measured_s("e2e").tolist() == [1.5, 1.25]
    assert run.measured_s("tpot").tolist() == [0.5, 0.5]
    assert (run.knobs.max_num_batched_tokens, run.knobs.max_num_seqs) == (64, 8)
    assert (run.knobs.num_blocks, run.kv_tokens) == (100, 400)  # one block is vLLM's own
    assert run.knobs.prefix_caching
    assert run.asynchronous is None
    assert run.prefix is None
    assert len(run.samples) == 2


def test_what_need_not_be_there_is_used_when_it_is(folder: Path) -> None:
    def change(meta: dict[str, Any]) -> None:
        meta["engine_kwargs"]["async_scheduling"] = True
        meta["kv_cache"] = {"block_size": 4, "num_kv_tokens": 403, "enable_prefix_caching": False}

    change_meta(folder, change)
    (folder / "steps.csv.gz").rename(folder / "steps.gz")
    (folder / "steps.csv").write_text(STEPS)
    lines = [{"request_id": "early", "hash_ids": [7, 8]}, {"request_id": "late", "hash_ids": [7, 9, 1]}]
    write(folder, "prefix_blocks.jsonl", lines)
    run = read_recorded_run(folder)
    assert run.asynchronous is True
    assert not run.knobs.prefix_caching
    assert run.knobs.num_blocks == 99
    assert run.prefix is not None
    np.testing.assert_array_equal(run.prefix.offsets, [0, 1, 2])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (request(input_toks=0), "line 2: input_toks must be a whole number from 1"),
        (request(output_toks=True), "line 2: output_toks must be a whole number"),
        (request(queued_ts="soon"), "line 2: queued_ts must be a finite number of seconds, is 'soon'"),
        (request(first_token_ts=9.0), "line 2: queued_ts, first_token_ts and last_token_ts must follow"),
        ({"request_id": "b"}, "line 2: input_toks is missing"),
        (request("first"), "line 2: request_id 'first' appears more than once"),
        ([1], "line 2: must be a JSON object"),
    ],
)
def test_a_wrong_request_is_named_by_its_line(folder: Path, line: Any, message: str) -> None:
    write(folder, "requests.jsonl", [request("first"), line])
    assert message in problem(folder)
    assert problem(folder).startswith("requests.jsonl: ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            {"request_id": "early", "hash_ids": [1]},
            "line 1: hash_ids has 1 entries, a prompt of 9 tokens has 2",
        ),
        ({"request_id": "early", "hash_ids": [1, -1]}, "line 1: hash_ids must be a list of whole numbers"),
        ({"request_id": "early", "hash_ids": [1, 2**64]}, "line 1: hash_ids must be a list of whole numbers"),
        (
            {"request_id": "other", "hash_ids": [1, 2]},
            "line 1: there is no request 'other' in requests.jsonl",
        ),
        ({"request_id": "early", "hash_ids": [1, 2]}, "has no line for request 'late' (1 missing in all)"),
        ({"request_id": "early"}, "line 1: hash_ids is missing"),
    ],
)
def test_wrong_hashes_are_named_by_their_line(folder: Path, line: Any, message: str) -> None:
    write(folder, "prefix_blocks.jsonl", [line])
    assert message in problem(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda meta: meta.pop("kv_cache"), "kv_cache.block_size: is missing"),
        (lambda meta: meta["kv_cache"].pop("num_gpu_blocks"), "kv_cache.num_kv_tokens: is missing"),
        (lambda meta: meta["engine_kwargs"].pop("max_num_seqs"), "engine_kwargs.max_num_seqs: is missing"),
        (
            lambda meta: meta["engine_kwargs"].update(max_num_seqs="8"),
            "engine_kwargs.max_num_seqs: must be of",
        ),
        (
            lambda meta: meta["engine_kwargs"].update(max_num_seqs=0),
            "engine_kwargs.max_num_seqs: must be from 1",
        ),
        (lambda meta: meta["kv_cache"].update(num_gpu_blocks=1), "kv_cache: has no block beside"),
        (lambda meta: meta["kv_cache"].update(enable_prefix_caching=1), "must be of type bool"),
    ],
)
def test_a_wrong_field_of_the_meta_data_is_named(folder: Path, change: Any, message: str) -> None:
    change_meta(folder, change)
    assert message in problem(folder)


@pytest.mark.parametrize("name", ["meta.json", "requests.jsonl", "steps.csv.gz"])
def test_a_file_that_is_not_there_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert problem(folder) == f"{name}: is missing"


def test_other_damage_is_told_too(folder: Path, tmp_path: Path) -> None:
    assert "is not a folder" in problem(tmp_path / "nowhere")
    (folder / "meta.json").write_bytes(b"\xff\xfe{")
    assert problem(folder) == "meta.json: is not UTF-8 text"
    (folder / "meta.json").write_text("{,")
    assert problem(folder).startswith("meta.json: is not JSON")
    (folder / "meta.json").write_text(json.dumps(META))
    (folder / "requests.jsonl").write_text("\n\n")
    assert problem(folder) == "requests.jsonl: there is no request in it"
    write(folder, "requests.jsonl", [request()])
    (folder / "steps.csv.gz").write_text(STEPS + "0,0,1,16,slow\n")
    assert problem(folder).startswith("steps.csv.gz: line 4, column step_ms: must be a number above 0")


def problem(folder: Path) -> str:
    with pytest.raises(RecordedRunError) as caught:
        read_recorded_run(folder)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "is nested too deeply"),
        ('{"request_id": NaN}', "holds NaN, which is no number of JSON"),
        ('{"request_id": 1e999}', "holds 1e999, which is not finite"),
        (
            json.dumps(request()).replace("10.5", "9" * 400),
            "first_token_ts must be at most 1e+11 seconds from 0",
        ),
        (json.dumps(request()).replace("10.5", "9" * 5000), "is not JSON: Exceeds the limit"),
        (
            json.dumps(request(queued_ts=-1e308)),
            "queued_ts must be at most 1e+11",
        ),
        (json.dumps(request(last_token_ts=1e308)), "last_token_ts must be at most"),
    ],
    ids=["deep", "NaN", "too large", "400 digits", "5000 digits", "long ago", "far ahead"],
)
def test_lines_that_json_or_time_do_not_have(folder: Path, text: str, message: str) -> None:
    (folder / "requests.jsonl").write_text(json.dumps(request("first")) + "\n" + text)
    with pytest.raises(RecordedRunError, match=r"requests.jsonl: line 2: ") as caught:
        read_recorded_run(folder)
    assert message in str(caught.value)
