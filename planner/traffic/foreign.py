"""Files that people will upload and that are no traces: known by their keys.

The result of a benchmark tells how one server did under one load. It is evidence, not a trace: mostly it
holds no arrival times, and where it does they are those of a client that may have waited for answers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from planner.traffic.benchmarks import BenchmarkResult

_BENCHMARKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("SGLang's bench_serving", ("total_output_tokens_retokenized",)),
    ("vLLM's benchmark_serving", ("request_throughput", "total_input_tokens")),
    ("GuideLLM", ("guidellm_version",)),
    ("GuideLLM", ("benchmarks",)),
    ("inference-perf", ("load_summary",)),
    ("LLMPerf", ("end_to_end_latency_s", "number_output_tokens")),
    ("LLMPerf", ("num_concurrent_requests", "mean_input_tokens")),
    ("AIPerf", ("records", "input_config")),
    ("AIPerf", ("aiperf_version",)),
    ("AIPerf", ("metadata", "metrics")),
    ("AIPerf", ("metric", "avg", "min", "max", "std")),
    ("GenAI-Perf", ("metric", "avg", "min", "max")),
    ("GenAI-Perf", ("input_sequence_length", "inter_token_latency")),
    ("AIPerf", ("input_sequence_length",)),
    ("LMBench", ("ttft", "generation_time")),
)
_MEASURED = ("ttft", "tpot", "itl", "time_to_first_token", "inter_token_latency", "request_latency")


def benchmark_name(keys: Collection[str]) -> str | None:
    """The tool whose results have these keys, "a benchmark" where only the kind is clear, else None."""
    for name, markers in _BENCHMARKS:
        if all(marker in keys for marker in markers):
            return name
    if any(word in key for key in keys for word in _MEASURED) or {"requested_rate", "achieved_rate"} <= set(
        keys
    ):
        return "a benchmark"
    return None


def foreign_csv(keys: Collection[str]) -> BenchmarkResult | None:
    """A refusal by name for column names (normalised) of a benchmark's results; read.py adds what they show."""
    return _benchmark(keys)


def foreign_json(first: Mapping[str, Any]) -> BenchmarkResult | None:
    """The same for the keys of the first JSON object."""
    return _benchmark(first)


def foreign_json_text(keys: Collection[str]) -> BenchmarkResult | None:
    """The same for all keys, at any depth, of the first part of a document over many lines."""
    return _benchmark(keys)


def _benchmark(keys: Collection[str]) -> BenchmarkResult | None:
    name = benchmark_name(keys)
    return None if name is None else BenchmarkResult(name, ())
