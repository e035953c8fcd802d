"""The simulators against recordings of vLLM 0.33.0's own scheduler, and against cases worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration.steptime.scalar import linear_model
from planner.simulation import kernel, reference
from planner.simulation.cases import as_recorded, replay, run_cases
from planner.simulation.knobs import VllmKnobs

SIMULATORS = ["reference", "kernel"]
SIMULATE = {"reference": reference.simulate, "kernel": kernel.simulate}
MS = 1e-3


@pytest.mark.parametrize("by", SIMULATORS)
def test_every_recorded_vllm_case_is_identical(reference_data: Path, by: str) -> None:
    report = run_cases(reference_data / "schedulers" / "vllm-0.33.0.jsonl.gz", by)
    assert report.differences == ()
    assert report.sentence == f"{by}: 400 cases, 400 identical"


def knobs(
    budget: int, seqs: int = 1_000, block: int = 4, blocks: int = 10_000, **others: Any
) -> dict[str, Any]:
    return {
        "max_num_batched_tokens": budget,
        "max_num_seqs": seqs,
        "block_size": block,
        "num_blocks": blocks,
        "async_scheduling": False,
        **others,
    }


# The knobs of small-cases.json are given in words; here they are transcribed by hand.
SMALL_CASES = {
    ("T01_mixing_basics", "vllm_v1"): knobs(8, 4),
    ("T02_decode_tokens_eat_budget", "vllm_v1"): knobs(4, 4),
    ("T03_fair_share", "vllm_v1 cap off"): knobs(16),
    ("T03_fair_share", "vllm_v1 cap=4"): knobs(16, long_prefill_token_threshold=4),
    ("T03_fair_share", "vllm_v1 cap=4 adaptive"): knobs(
        16, long_prefill_token_threshold=4, long_prefill_token_threshold_adaptive=True
    ),
    ("T04_head_of_line_kv", "vllm_v1"): knobs(32, 4, block=2, blocks=10),
    ("T05_preempt_recompute", "vllm_v1"): knobs(16, block=2, blocks=8),
    ("T05_preempt_recompute", "vllm_v1 watermark"): knobs(16, block=2, blocks=8, watermark=0.34),
    ("T07_prefill_cadence", "vllm_v1 interval=1"): knobs(4, block=2),
    ("T07_prefill_cadence", "vllm_v1 interval=3"): knobs(4, block=2, prefill_schedule_interval=3),
    ("T08_async_lag", "vllm_v1 sync"): knobs(8, 2),
    ("T08_async_lag", "vllm_v1 async"): knobs(8, 2, async_scheduling=True),
    ("T09_alignment", "vllm_v1"): knobs(8),
    ("T10_max_seqs", "vllm_v1"): knobs(16, 2),
    ("T11_priority", "vllm_v1 priority"): knobs(16, 2, block=2, blocks=7, policy="priority"),
}
TIMED_CASES = {
    "vllm_v1 sync T=8": knobs(8),
    "vllm_v1 async T=8": knobs(8, async_scheduling=True),
    "vllm_v1 sync T=64": knobs(64),
}


def small_case(data: Path, name: str, profile: str) -> tuple[dict[str, Any], dict[str, Any]]:
    for case in json.loads((data / "schedulers" / "small-cases.json").read_text()):
        for profiled in case.get("cases", []):
            if (case["name"], profiled["profile"]) == (name, profile):
                return case, profiled
    raise AssertionError(f"{name} has no {profile}")


def test_every_small_vllm_case_is_transcribed(reference_data: Path) -> None:
    cases = json.loads((reference_data / "schedulers" / "small-cases.json").read_text())
    named = {
        (c["name"], p["profile"]) for c in cases for p in c.get("cases", []) if "vllm_v1" in p["profile"]
    }
    assert named == set(SMALL_CASES) | {("T12_timed", profile) for profile in TIMED_CASES}


@pytest.mark.parametrize("by", SIMULATORS)
@pytest.mark.parametrize(("name", "profile"), SMALL_CASES)
def test_small_case(reference_data: Path, name: str, profile: str, by: str) -> None:
    case, expected = small_case(reference_data, name, profile)
    replayed = replay({"knobs": SMALL_CASES[name, profile], "requests": case["requests"]}, by)
    simulated = as_recorded(replayed)
    steps = expected["steps"]
    if len(simulated["steps"]) == len(steps) + 1:  # most small cases leave out the trailing empty schedule
        assert simulated["steps"].pop() == []
        for what in ("free_blocks", "preempted"):
            simulated[what].pop()
    assert simulated["steps"] == [step["batch"] for step in steps]
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
    recorded = {**TIMED_CASES[profile]}
    outcome = SIMULATE[by](
        np.array([request["arrive"] * MS for request in requests]),
        np.array([request["prompt"] for request in requests]),
        np.array([request["out"] for request in requests]),
        None,
        VllmKnobs(**recorded),
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
    assert batches == [row["batch"] for row in rows]
    metrics = [expected["metrics"][name] for name in names]
    np.testing.assert_allclose(outcome.ttft_s(), [metric["ttft"] * MS for metric in metrics], atol=1e-12)
    np.testing.assert_allclose(outcome.e2e_s(), [metric["e2e"] * MS for metric in metrics], atol=1e-12)
    np.testing.assert_allclose(outcome.max_gap_s, [max(metric["itl"]) * MS for metric in metrics], atol=1e-12)
    means = [sum(metric["itl"]) / len(metric["itl"]) * MS for metric in metrics]
    np.testing.assert_allclose(outcome.tpot_s(), means, atol=1e-12)
    assert outcome.gap_counts.sum() == sum(len(metric["itl"]) for metric in metrics)
