"""The simulators against recordings of the engines' own schedulers, and against cases worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration.steptime.scalar import linear_model
from planner.simulation import kernel, reference
from planner.simulation.cases import ORDERED, as_recorded, knobs_of, replay, run_cases

SIMULATORS = ["reference", "kernel"]
SIMULATE = {"reference": reference.simulate, "kernel": kernel.simulate}
MS = 1e-3

RECORDINGS = {
    "vllm-0.33.0": 400,
    "sglang-0.5.23": 565,
    "sarathi-96f99117": 187,
    "orca-96f99117": 200,
    "prefill-first-96f99117": 197,
}


@pytest.mark.parametrize("by", SIMULATORS)
@pytest.mark.parametrize("name", RECORDINGS)
def test_every_recorded_case_is_identical(reference_data: Path, name: str, by: str) -> None:
    report = run_cases(reference_data / "schedulers" / f"{name}.jsonl.gz", by)
    assert report.differences == ()
    assert report.sentence == f"{by}: {RECORDINGS[name]} cases, {RECORDINGS[name]} identical"


# The knobs of small-cases.json are given in words; here they are transcribed by hand.


def vllm(budget: int, seqs: int = 1_000, block: int = 4, blocks: int = 10_000, **others: Any) -> Any:
    return "vllm", {
        "max_num_batched_tokens": budget,
        "max_num_seqs": seqs,
        "block_size": block,
        "num_blocks": blocks,
        "async_scheduling": False,
        **others,
    }


def sglang(chunk: int, seqs: int = 1_000, page: int = 1, pages: int = 10_000, **others: Any) -> Any:
    return "sglang", {
        "chunked_prefill_size": chunk,
        "max_running_requests": seqs,
        "page_size": page,
        "max_total_tokens": pages * page,
        **others,
    }


def trtllm(budget: int, seqs: int = 1_000, block: int = 4, blocks: int = 10_000, **others: Any) -> Any:
    return "trtllm", {
        "max_num_tokens": budget,
        "max_batch_size": seqs,
        "tokens_per_block": block,
        "num_blocks": blocks,
        "enable_chunked_prefill": True,
        **others,
    }


def vllm_v0(budget: int, seqs: int = 1_000, block: int = 4, blocks: int = 10_000) -> Any:
    return "vllm_v0", {
        "max_num_batched_tokens": budget,
        "max_num_seqs": seqs,
        "block_size": block,
        "num_blocks": blocks,
    }


SARATHI = "sarathi", {"chunk_size": 8, "max_num_seqs": 4, "block_size": 4, "num_blocks": 10_000}
ORCA = "orca", {"max_num_seqs": 4, "max_model_len": 40_000, "block_size": 4}

SMALL_CASES = {
    ("T01_mixing_basics", "vllm_v1"): vllm(8, 4),
    ("T01_mixing_basics", "sarathi"): SARATHI,
    ("T01_mixing_basics", "trtllm"): trtllm(8, 4),
    ("T01_mixing_basics", "orca"): ORCA,
    ("T01_mixing_basics", "vllm_v0"): vllm_v0(32, 4),
    ("T01_mixing_basics", "sglang"): sglang(8, 4),
    ("T01_mixing_basics", "sglang_mixed"): sglang(8, 4, enable_mixed_chunk=True),
    ("T02_decode_tokens_eat_budget", "vllm_v1"): vllm(4, 4),
    ("T02_decode_tokens_eat_budget", "sglang"): sglang(4, 4),
    ("T02_decode_tokens_eat_budget", "sglang_mixed"): sglang(4, 4, enable_mixed_chunk=True),
    ("T03_fair_share", "vllm_v1 cap off"): vllm(16),
    ("T03_fair_share", "vllm_v1 cap=4"): vllm(16, long_prefill_token_threshold=4),
    ("T03_fair_share", "vllm_v1 cap=4 adaptive"): vllm(
        16, long_prefill_token_threshold=4, long_prefill_token_threshold_adaptive=True
    ),
    ("T03_fair_share", "trtllm EQUAL_PROGRESS"): trtllm(
        16, block=2, context_chunking_policy="EQUAL_PROGRESS"
    ),
    ("T03_fair_share", "trtllm FCFS"): trtllm(16, block=2),
    ("T04_head_of_line_kv", "vllm_v1"): vllm(32, 4, block=2, blocks=10),
    ("T04_head_of_line_kv", "trtllm GNE"): trtllm(32, 4, block=2, blocks=10),
    ("T04_head_of_line_kv", "sglang"): sglang(32, page=2, pages=12, init_new_token_ratio=0.7),
    ("T05_preempt_recompute", "vllm_v1"): vllm(16, block=2, blocks=8),
    ("T05_preempt_recompute", "vllm_v1 watermark"): vllm(16, block=2, blocks=8, watermark=0.34),
    ("T05_preempt_recompute", "vllm_v0"): vllm_v0(16, block=2, blocks=8),
    ("T05_preempt_recompute", "trtllm GNE"): trtllm(16, block=2, blocks=8),
    ("T06_sglang_retract", "sglang ratio=0.1"): sglang(16, pages=22, init_new_token_ratio=0.1),
    ("T06_sglang_retract", "sglang ratio=0.7"): sglang(16, pages=22, init_new_token_ratio=0.7),
    ("T07_prefill_cadence", "vllm_v1 interval=1"): vllm(4, block=2),
    ("T07_prefill_cadence", "vllm_v1 interval=3"): vllm(4, block=2, prefill_schedule_interval=3),
    ("T07_prefill_cadence", "sglang gap=2"): sglang(4, prefill_decode_interval=2),
    ("T08_async_lag", "vllm_v1 sync"): vllm(8, 2),
    ("T08_async_lag", "vllm_v1 async"): vllm(8, 2, async_scheduling=True),
    ("T09_alignment", "sglang page=4"): sglang(8, page=4),
    ("T09_alignment", "trtllm unit=4"): trtllm(8),
    ("T09_alignment", "vllm_v1"): vllm(8),
    ("T10_max_seqs", "vllm_v1"): vllm(16, 2),
    ("T10_max_seqs", "sglang"): sglang(16, 2),
    ("T11_priority", "vllm_v1 priority"): vllm(16, 2, block=2, blocks=7, policy="priority"),
}
TIMED_CASES = {
    "vllm_v1 sync T=8": vllm(8),
    "vllm_v1 async T=8": vllm(8, async_scheduling=True),
    "vllm_v1 sync T=64": vllm(64),
    "sglang chunk=8": sglang(8),
    "sglang_mixed chunk=8": sglang(8, enable_mixed_chunk=True),
    "vllm_v0 T=64": vllm_v0(64),
}
LEFT_OUT = {("T01_mixing_basics", "nano_vllm"), ("T10_max_seqs", "nano_vllm")}  # not simulated


def small_case(data: Path, name: str, profile: str) -> tuple[dict[str, Any], dict[str, Any]]:
    for case in json.loads((data / "schedulers" / "small-cases.json").read_text()):
        for profiled in case.get("cases", []):
            if (case["name"], profiled["profile"]) == (name, profile):
                return case, profiled
    raise AssertionError(f"{name} has no {profile}")


def test_every_small_case_is_transcribed_or_left_out_by_name(reference_data: Path) -> None:
    cases = json.loads((reference_data / "schedulers" / "small-cases.json").read_text())
    named = {(case["name"], profiled["profile"]) for case in cases for profiled in case.get("cases", [])}
    assert named == set(SMALL_CASES) | {("T12_timed", profile) for profile in TIMED_CASES} | LEFT_OUT
    # the one with two pools
    assert [case["name"] for case in cases if "cases" not in case] == ["T13_disagg_vllm_nixl_pull"]


@pytest.mark.parametrize("by", SIMULATORS)
@pytest.mark.parametrize(("name", "profile"), SMALL_CASES)
def test_small_case(reference_data: Path, name: str, profile: str, by: str) -> None:
    case, expected = small_case(reference_data, name, profile)
    engine, knobs = SMALL_CASES[name, profile]
    replayed = replay({"engine": engine, "knobs": knobs, "requests": case["requests"]}, by)
    simulated = as_recorded(replayed)
    steps = expected["steps"]
    in_order = list if engine in ORDERED else sorted
    if len(simulated["steps"]) == len(steps) + 1:  # most small cases leave out the trailing empty schedule
        assert simulated["steps"].pop() == []
        for what in ("free_blocks", "preempted"):
            simulated[what].pop()
    assert [in_order(step) for step in simulated["steps"]] == [in_order(step["batch"]) for step in steps]
    if engine != "orca":  # not recorded
        assert simulated["free_blocks"] == [step["free_blocks"] for step in steps]
    assert simulated["preempted"] == [sorted(step.get("preempted", [])) for step in steps]
    assert simulated["first_token_step"] == expected["first_token_step"]
    assert simulated["done_step"] == expected["done_step"]


@pytest.mark.parametrize("by", SIMULATORS)
@pytest.mark.parametrize("profile", TIMED_CASES)
def test_timed_case(reference_data: Path, profile: str, by: str) -> None:
    """T12: a step lasts 10 ms + 1 ms per prompt token + 2 ms per decode row."""
    case, expected = small_case(reference_data, "T12_timed", profile)
    requests = case["requests"]
    outcome = SIMULATE[by](
        np.array([request["arrive"] * MS for request in requests]),
        np.array([request["prompt"] for request in requests]),
        np.array([request["out"] for request in requests]),
        None,
        knobs_of(*TIMED_CASES[profile]),
        linear_model(10 * MS, token_s=1 * MS, row_s=1 * MS),
        record_steps=True,
    )
    record = outcome.record
    assert record is not None
    busy = np.flatnonzero(np.diff(record.offsets))
    rows = expected["rows"]
    for what in ("sched", "start", "end"):
        times = {"sched": record.scheduled_s, "start": record.start_s, "end": record.end_s}[what]
        np.testing.assert_allclose(times[busy], [row[what] * MS for row in rows], atol=1e-12)
    names = [request["id"] for request in requests]
    batches = [
        [
            [names[record.request[r]], "D" if record.decode[r] else "P", record.tokens[r]]
            for r in range(record.offsets[k], record.offsets[k + 1])
        ]
        for k in busy
    ]
    in_order = list if TIMED_CASES[profile][0] in ORDERED else sorted
    assert [in_order(batch) for batch in batches] == [in_order(row["batch"]) for row in rows]
    metrics = [expected["metrics"][name] for name in names]
    np.testing.assert_allclose(outcome.ttft_s(), [metric["ttft"] * MS for metric in metrics], atol=1e-12)
    np.testing.assert_allclose(outcome.e2e_s(), [metric["e2e"] * MS for metric in metrics], atol=1e-12)
    np.testing.assert_allclose(outcome.max_gap_s, [max(metric["itl"]) * MS for metric in metrics], atol=1e-12)
    means = [sum(metric["itl"]) / len(metric["itl"]) * MS for metric in metrics]
    np.testing.assert_allclose(outcome.tpot_s(), means, atol=1e-12)
    assert outcome.gap_counts.sum() == sum(len(metric["itl"]) for metric in metrics)
