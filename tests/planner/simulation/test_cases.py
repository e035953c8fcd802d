"""Comparing with recordings: what is identical, what the first difference is, what is no case file."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from planner.simulation.cases import CaseFileError, as_recorded, compare, replay, run_cases

# Worked out by hand: budget 4, block 2. A's prompt of 5 takes two steps; B (2 tokens) starts beside the second.
CASE: dict[str, Any] = {
    "engine": "vllm",
    "version": "by hand",
    "seed": 7,
    "knobs": {
        "max_num_batched_tokens": 4,
        "max_num_seqs": 2,
        "block_size": 2,
        "num_blocks": 10,
        "async_scheduling": False,
    },
    "requests": [
        {"id": "B", "arrive": 1, "prompt": 2, "out": 1},
        {"id": "A", "arrive": 0, "prompt": 5, "out": 2},
    ],
    "steps": [[["A", "P", 4]], [["A", "P", 1], ["B", "P", 2]], [["A", "D", 1]]],
    "preempted": [[], [], []],
    "free_blocks": [8, 6, 7],
    "first_token_step": {"A": 1, "B": 1},
    "done_step": {"A": 2, "B": 1},
}


def write(folder: Path, *cases: dict[str, Any]) -> Path:
    path = folder / "cases.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(case) + "\n" for case in cases)
    return path


def changed(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(CASE), **changes}


@pytest.mark.parametrize("by", ["reference", "kernel"])
def test_a_case_worked_out_by_hand(tmp_path: Path, by: str) -> None:
    report = run_cases(write(tmp_path, CASE), by)
    assert report.differences == ()
    assert report.sentence == f"{by}: 1 cases, 1 identical"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"steps": [[["A", "P", 4]], [["B", "P", 2], ["A", "P", 1]], [["A", "D", 1]]]},
            "case 7: steps at step 1: recorded [['B', 'P', 2], ['A', 'P', 1]],"
            " simulated [['A', 'P', 1], ['B', 'P', 2]]",
        ),
        ({"preempted": [[], ["A"], []]}, "case 7: preempted at step 1: recorded ['A'], simulated []"),
        ({"free_blocks": [8, 6, 6]}, "case 7: free_blocks at step 2: recorded 6, simulated 7"),
        ({"free_blocks": [8, 6, 7, 10]}, "case 7: number of free_blocks: recorded 4, simulated 3"),
        ({"first_token_step": {"A": 1}}, "case 7: first_token_step of B: recorded None, simulated 1"),
        ({"done_step": {"A": 3, "B": 1}}, "case 7: done_step of A: recorded 3, simulated 2"),
    ],
)
def test_the_first_difference_is_told(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    report = run_cases(write(tmp_path, CASE, changed(**change)), "kernel")
    assert report.sentence == "kernel: 2 cases, 1 identical"
    assert [str(difference) for difference in report.differences] == [said]


def test_preempted_requests_are_compared_as_sets() -> None:
    knobs = {
        **CASE["knobs"],
        "max_num_seqs": 9,
        "block_size": 1,
        "num_blocks": 15,
        "long_prefill_token_threshold": 3,
    }
    lengths = {"x": (7, 7), "y": (5, 6), "z": (1, 7)}
    requests = [
        {"id": name, "arrive": 0, "prompt": prompt, "out": out} for name, (prompt, out) in lengths.items()
    ]
    case = changed(knobs=knobs, requests=requests)
    replayed = replay(case, "reference")
    recorded = {**case, **as_recorded(replayed)}
    assert recorded["preempted"][4] == ["y", "z"]  # x takes 3 blocks, and two victims have to give them
    recorded["preempted"][4] = ["z", "y"]
    assert compare(recorded, replayed) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"nonsense\n", "line 1: not a scheduler case"),
        (b"[1, 2]\n", "line 1: not a scheduler case"),
        (b'{"engine": "nano_vllm"}\n', "line 1: engine 'nano_vllm' is not simulated"),
        (b"\xff\xfe\n", "cannot read"),
        (b'{"engine": "vllm", "knobs": {}}\n', "line 1: not a scheduler case"),
    ],
)
def test_no_case_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_bytes(content)
    with pytest.raises(CaseFileError, match=message):
        run_cases(path, "reference")


def test_broken_files_are_refused(tmp_path: Path) -> None:
    whole = write(tmp_path, CASE).read_bytes()
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(whole[:-20])
    with pytest.raises(CaseFileError, match=r"cannot read cut\.jsonl\.gz"):
        run_cases(cut, "reference")
    with pytest.raises(CaseFileError, match="cannot read absent"):
        run_cases(tmp_path / "absent.jsonl.gz", "reference")
    with pytest.raises(ValueError, match="by must be one of"):
        run_cases(whole, "both")  # type: ignore[arg-type]
