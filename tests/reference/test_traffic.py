"""Whole public traces against figures that others printed, and every file that comes with them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import independent_statistics as independent

from planner.traffic import BenchmarkResult, TrafficError, load_traffic, read_traffic, statistics

FIGURES = {
    "azure-2023-code.csv.gz": {
        "format": "azure",
        "rows": 8_819,
        "duration_s": "3435.9",
        "rate_per_s": "2.566",
        "interarrival_cv": "13.15",
        "prompt_tokens": {"p50": "1469", "mean": "2047.8", "p99": "7436", "max": "7437"},
        "output_tokens": {"p50": "13", "mean": "27.9", "p99": "251", "max": "1899"},
    },
    # The published figure for the mean prompt is 15326; 61,194,628 tokens in 3,993 rows are 15,325.48.
    "mooncake-synthetic.jsonl.gz": {
        "format": "mooncake",
        "rows": 3_993,
        "duration_s": "1022.0",
        "rate_per_s": "3.906",
        "interarrival_cv": "1.011",
        "prompt_tokens": {"p50": "11587", "mean": "15325", "p99": "66456", "max": "191378"},
        "output_tokens": {"p50": "69", "mean": "149", "p99": "768", "max": "893"},
        "prefix_hit_rate": "0.640",
    },
}


def rounded_like(value: float, printed: str) -> str:
    return f"{value:.{len(printed.partition('.')[2])}f}"


@pytest.mark.parametrize("name", FIGURES)
def test_statistics_of_whole_traces(reference_data: Path, name: str) -> None:
    traffic = load_traffic(str(reference_data / "traces" / name))
    figures = statistics(traffic)
    expected: dict[str, Any] = dict(FIGURES[name])
    assert traffic.format == expected.pop("format")
    assert figures["rows"] == figures["requests"] == expected.pop("rows")
    for key, printed in expected.items():
        if isinstance(printed, str):
            assert rounded_like(figures[key], printed) == printed, key
        else:
            for statistic, text in printed.items():
                assert rounded_like(figures[key][statistic], text) == text, (key, statistic)


@pytest.mark.parametrize(
    ("name", "format", "rows", "duration_s"),
    [
        ("aiperf_example_trace.jsonl", "mooncake", 3, 27.482),
        ("dynamo_mooncake_tiny.jsonl", "mooncake", 16, 3.052),
        ("llmservingsim_example_trace.jsonl", "llmservingsim", 10, 0.980043269),
        ("splitwise_sim_test_trace.csv", "splitwise", 3, 3.0),
        ("vidur_splitwise_code_first500.csv", "vidur", 500, 232.801087),
    ],
)
def test_traces_of_other_tools(
    reference_data: Path, name: str, format: str, rows: int, duration_s: float
) -> None:
    traffic = read_traffic(reference_data / "traces" / name)
    assert (traffic.format, traffic.requests) == (format, rows)
    assert traffic.duration_s == pytest.approx(duration_s, abs=1e-9)
    if traffic.prefix_hashes is not None:
        assert traffic.prefix_hashes.block_tokens == 512


def test_lengths_only_asks_for_a_rate_and_takes_it(reference_data: Path) -> None:
    path = reference_data / "traces" / "vidur_arxiv_lengths_first500.csv"
    with pytest.raises(TrafficError) as caught:
        read_traffic(path)
    assert caught.value.field == "rate_per_s"
    traffic = read_traffic(path, rate_per_s=0.5)
    assert (traffic.format, traffic.requests) == ("lengths", 500)
    assert traffic.prompt_tokens[0] == 3_772


@pytest.mark.parametrize("name", sorted(independent.READERS))
def test_every_trace_has_the_statistics_of_an_independent_script(reference_data: Path, name: str) -> None:
    path = reference_data / "traces" / name
    expected = independent.statistics(path)
    figures = statistics(read_traffic(path, rate_per_s=2.0))
    for key, value in expected.items():
        assert figures.get(key) == (pytest.approx(value, rel=1e-9) if value is not None else None), key


def test_every_trace_is_among_them(reference_data: Path) -> None:
    assert {path.name for path in (reference_data / "traces").iterdir()} == set(independent.READERS)


TOOLS = {
    "aiperf_profile": "AIPerf", "profile_export_aiperf": "AIPerf", "guidellm": "GuideLLM", "LMBench": "LMBench",
    "llmperf": "LLMPerf", "minimax": "vLLM", "stage_": "inference-perf", "summary_": "inference-perf",
}  # fmt: skip


# What each file shows: per run, how the two identities come out. inference-perf states half of the true TPOT.
TIME, LITTLE = "mean(E2E - TTFT) = mean TPOT x (mean output - 1)", "concurrency = throughput x E2E"
VERDICTS = {
    "LMBench": [("holds", "holds")],
    "aiperf_profile": [("holds", "cannot be checked")],
    "profile_export_aiperf.csv": [("holds", "cannot be checked")],
    "profile_export_aiperf.json": [("holds", "holds")],
    "guidellm_report_v2": [("holds", "holds")] * 2,
    "guidellm": [("holds", "holds")],
    "stage_": [("fails", "cannot be checked")],
    "summary_": [("fails", "cannot be checked")],
    "llmperf_individual": [("holds", "cannot be checked")],
    "llmperf_summary": [("holds", "holds")],
    "minimax_m25_vllm_tep8_isl8192_osl128_conc32": [("holds", "warns")],
    "minimax": [("holds", "holds")],
}


def test_results_of_benchmarks_are_refused_by_the_name_of_their_tool_and_checked(
    reference_data: Path,
) -> None:
    files = [path for path in sorted((reference_data / "benchmarks").rglob("*")) if path.is_file()]
    assert len(files) >= 20
    for path in files:
        tool = next(tool for start, tool in TOOLS.items() if path.name.startswith(start))
        with pytest.raises(BenchmarkResult) as caught:
            read_traffic(path, rate_per_s=1.0)
        assert caught.value.errors[0].code == "benchmark_result", path.name
        assert tool in caught.value.detail, path.name
        found = [
            tuple(check.verdict for name in (TIME, LITTLE) for check in checks if check.name == name)
            for checks in caught.value.checks
        ]
        assert found == next(v for start, v in VERDICTS.items() if path.name.startswith(start)), path.name


def test_inference_perf_states_half_of_its_tpot(reference_data: Path) -> None:
    for path in (reference_data / "benchmarks" / "inference_perf_llama3-8b_h100").iterdir():
        with pytest.raises(BenchmarkResult) as caught:
            read_traffic(path)
        (check,) = [check for check in caught.value.checks[0] if check.name == TIME]
        assert check.ratio == pytest.approx(2.1, abs=0.05)
