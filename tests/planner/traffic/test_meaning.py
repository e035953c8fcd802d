"""Figures of a benchmark that mean something else than they seem to: as kinds, whichever tool wrote them."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.traffic import BenchmarkResult, read_traffic

SERVING = {
    "backend": "vllm", "request_rate": 4.0, "num_prompts": 200, "completed": 200, "duration": 50.0,
    "total_input_tokens": 200_000, "total_output_tokens": 20_200, "request_throughput": 4.0, "max_concurrency": 8,
    "mean_ttft_ms": 100.0, "mean_tpot_ms": 19.0, "mean_itl_ms": 19.0, "mean_e2el_ms": 2_000.0,
}  # fmt: skip
"""TTFT 0.1 s and 100 gaps of 19 ms are 2 s; 4/s x 2 s are 8 in flight."""


def evidence(document: Any) -> BenchmarkResult:
    with pytest.raises(BenchmarkResult) as caught:
        read_traffic(io.BytesIO(json.dumps(document).encode()))
    return caught.value


def said(document: Any) -> str:
    return " ".join(check.message for checks in evidence(document).checks for check in checks)


def nested(key: str, value: Any, depth: int) -> dict[str, Any]:
    return {key: value} if depth == 0 else {f"level_{depth}": nested(key, value, depth - 1)}


def test_a_sound_result_is_told_nothing() -> None:
    found = evidence(SERVING)
    assert [check.verdict for check in found.checks[0]] == ["holds", "holds"]
    assert [error.code for error in found.errors] == ["benchmark_result"]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(["speculative_config", "spec_decode_acceptance_rate", "accept_length", "acceptance-length",
                     "Speculative Model", "draft_tokens", "speculativeNumSteps"]),
    st.sampled_from([2.7, "ngram", {"method": "eagle"}, True]), st.integers(0, 4),
)  # fmt: skip
def test_guessed_tokens_are_said_wherever_they_stand(key: str, value: Any, depth: int) -> None:
    assert "guessed tokens ahead" in said({**SERVING, **nested(key, value, depth)})


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
def test_an_engine_that_could_have_guessed_and_did_not_is_not_accused(value: Any) -> None:
    assert "guessed" not in said({**SERVING, "speculative_config": value, "accept_length": None})


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from(["num_replicas", "replicas", "dp_size", "data_parallel_size", "Replica Count", "instances"]),
    st.integers(2, 64), st.integers(0, 4),
)  # fmt: skip
def test_figures_of_a_cluster_are_not_those_of_one_engine(key: str, count: int, depth: int) -> None:
    assert f"of {count} replicas together" in said({**SERVING, **nested(key, count, depth)})
    assert "replicas together" not in said({**SERVING, **nested(key, 1, depth)})


@pytest.mark.parametrize("replicas", [2, 4, 8, 16])
def test_the_concurrency_of_one_beside_the_throughput_of_all_is_recognised(replicas: int) -> None:
    """And the other way round: the identity fails by a whole factor."""
    of_all = {key: SERVING[key] * replicas for key in ("completed", "num_prompts", "request_throughput",
              "total_input_tokens", "total_output_tokens", "request_rate")}  # fmt: skip
    found = evidence({**SERVING, **of_all})
    assert f"a factor of {replicas}" in said({**SERVING, **of_all})
    assert {error.code for error in found.errors} >= {"identity_fails"}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.floats(1.2, 8.0))
def test_chunks_of_several_tokens_are_no_itl(tokens: float) -> None:
    words = said({**SERVING, "mean_itl_ms": 19.0 * tokens})
    assert f"{tokens:.2f} times the time a token takes" in words and "It is no ITL" in words


def test_one_mean_a_request_gives_no_percentile_of_gaps() -> None:
    metric = {"unit": "ms", "avg": 19.0, "p99": 31.0}
    found = evidence({
        "input_sequence_length": {"unit": "tokens", "avg": 500.0}, "time_to_first_token": {"unit": "ms", "avg": 100.0},
        "output_sequence_length": {"unit": "tokens", "avg": 101.0}, "request_latency": {"unit": "ms", "avg": 2_000.0},
        "inter_token_latency": metric, "request_count": {"unit": "requests", "avg": 50.0},
    })  # fmt: skip
    (check,) = [check for check in found.checks[0] if check.name == "ITL"]
    assert check.verdict == "warns" and "cannot give an ITL p99" in check.message
    assert "benchmark_remark" in {error.code for error in found.errors}, "page, API and command list it too"
