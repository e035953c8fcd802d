"""Files that people will upload and that are no traces, or not ones that are read: known by their keys.

The result of a benchmark tells how one server did under one load. It is evidence, not a trace: mostly it
holds no arrival times, and where it does they are those of a client that may have waited for answers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from planner.traffic.errors import TrafficError, refuse

_BENCHMARKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("SGLang's bench_serving", ("total_output_tokens_retokenized",)),
    ("vLLM's benchmark_serving", ("request_throughput", "total_input_tokens")),
    ("GuideLLM", ("guidellm_version",)),
    ("GuideLLM", ("benchmarks",)),
    ("inference-perf", ("load_summary",)),
    ("LLMPerf", ("end_to_end_latency_s", "number_output_tokens")),
    ("LLMPerf", ("num_concurrent_requests", "mean_input_tokens")),
    ("AIPerf", ("records", "input_config")),
    ("AIPerf", ("input_sequence_length",)),
    ("AIPerf", ("metadata", "metrics")),
    ("AIPerf", ("metric", "avg", "min", "max")),
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


def foreign_csv(keys: Collection[str]) -> TrafficError | None:
    """A refusal by name for column names (normalised) of something else than a trace."""
    if {"prompt_tokens_le", "output_tokens_le"} <= set(keys):
        return _not_yet("a distribution of lengths (joint histogram)")
    return _benchmark(keys)


def foreign_json(first: Mapping[str, Any]) -> TrafficError | None:
    """The same for the keys of the first JSON object."""
    schema = first.get("schema")
    if isinstance(schema, str) and schema.startswith("dynamo.agentic"):
        return _not_yet("a Dynamo agentic Mooncake trace (turns that wait for one another)")
    if (isinstance(schema, str) and schema.startswith("dynamo.request")) or "event_type" in first:
        return _not_yet("a Dynamo request trace (events)")
    if "input_prompt_length" in first and "num_turns" in first:
        return _not_yet("an Applied Compute agentic workload (turns that wait for one another)")
    if "delay" in first:
        return _not_yet("a Mooncake trace with delays (turns that wait for one another)")
    return _benchmark(first)


def foreign_json_text(keys: Collection[str]) -> TrafficError | None:
    """The same for all keys, at any depth, of the first part of a document over many lines."""
    return _benchmark(keys)


def _benchmark(keys: Collection[str]) -> TrafficError | None:
    name = benchmark_name(keys)
    if name is None:
        return None
    message = (
        f"This is a result of {name}, not a trace: it says how a server answered, not what was asked of it and "
        "when. Give the trace that the benchmark sent, or its lengths with a rate."
    )
    return refuse(message, code="benchmark_result")


def _not_yet(name: str) -> TrafficError:
    return refuse(f"This is {name}, which is not read yet.", code="format_not_read")
