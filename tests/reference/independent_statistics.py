"""Statistics of the public traces, worked out a second time: the standard library, no code of the project.

Run by itself it prints them: `python tests/reference/independent_statistics.py FOLDER`. A list of requests is
(arrival in seconds, prompt, output, block hashes); Fractions keep stamps and milliseconds exact.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from datetime import datetime
from fractions import Fraction
from itertools import pairwise
from math import floor, sqrt
from pathlib import Path
from typing import Any

FIRST_TOKEN_S, TOKEN_S = Fraction(1, 2), Fraction(2, 100)  # what a turn that others wait for is taken to run
Request = tuple[Fraction, int, int, list[int]]


def text_of(path: Path) -> str:
    raw = path.read_bytes()
    return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text_of(path), newline="")))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line, parse_float=Fraction) for line in text_of(path).splitlines() if line.strip()]


def ran_s(output: int) -> Fraction:
    return FIRST_TOKEN_S + TOKEN_S * output


def azure(path: Path) -> list[Request]:
    found = []
    for row in table(path):
        whole, _, fraction = row["TIMESTAMP"].partition(".")
        seconds = (datetime.fromisoformat(whole) - datetime(2000, 1, 1)).total_seconds()
        at_s = Fraction(int(seconds)) + Fraction(int(fraction or 0), 10 ** len(fraction or "0"))
        found.append((at_s, int(row["ContextTokens"]), int(row["GeneratedTokens"]), []))
    return found


def columns(path: Path, time: str, prompt: str, output: str) -> list[Request]:
    return [(Fraction(row[time]), int(row[prompt]), int(row[output]), []) for row in table(path)]


def mooncake(path: Path) -> list[Request]:
    return [
        (
            Fraction(row["timestamp"]) / 1000,
            row["input_length"],
            row["output_length"],
            row.get("hash_ids", []),
        )
        for row in lines(path)
    ]


def delta(path: Path) -> list[Request]:
    """Every turn has a time of its own; a later one's prompt is what it adds to the conversation."""
    found, before = [], {}
    for row in lines(path):
        prompt = row["input_length"] + before.get(row["session_id"], 0)
        before[row["session_id"]] = prompt + row["output_length"]
        found.append((Fraction(row["timestamp"]) / 1000, prompt, row["output_length"], None))
    return found


def agentic(path: Path) -> list[Request]:
    """The rows are in an order in which every request stands after those it waits for."""
    at_s: dict[str, Fraction] = {}
    ends_s: dict[str, Fraction] = {}
    found = []
    for row in lines(path)[1:]:
        times = [Fraction(row["not_before_ms"]) / 1000]
        for wait in row["dependencies"]:
            start = (ends_s if wait["trigger"] == "completion" else at_s)[wait["request_id"]]
            times.append(start + Fraction(wait["delay_ms"]) / 1000)
        name = row["request_id"]
        at_s[name] = max(times)
        ends_s[name] = at_s[name] + ran_s(row["output_length"])
        found.append((at_s[name], row["input_length"], row["output_length"], row["hash_ids"]))
    return found


def dynamo(path: Path) -> list[Request]:
    found = []
    for row in lines(path):
        if row["event_type"] == "request_end":
            request = row["request"]
            replay = request["replay"]
            at_s = Fraction(request["request_received_ms"]) / 1000
            hashes = replay["input_sequence_hashes"]
            found.append((at_s, replay["input_length"], request["output_tokens"], hashes))
    return found


def applied_compute(path: Path) -> list[Request]:
    (row,) = lines(path)  # one session: it starts the trace
    at_s, prompt, found = Fraction(0), row["input_prompt_length"], []
    steps = zip(
        row["assistant_response_length"],
        row["tool_call_output_length"],
        row["tool_call_latency"],
        strict=True,
    )
    for output, tool, latency_s in steps:
        found.append((at_s, prompt, output, []))
        at_s += ran_s(output) + Fraction(latency_s)
        prompt += output + tool
    return [*found, (at_s, prompt, row["final_assistant_response_length"], [])]


def llmservingsim(path: Path) -> list[Request]:
    return [
        (Fraction(row["arrival_time_ns"], 10**9), row["input_toks"], row["output_toks"], [])
        for row in lines(path)
    ]


def lengths(path: Path) -> list[Request]:
    return [(Fraction(0), int(r["num_prefill_tokens"]), int(r["num_decode_tokens"]), []) for r in table(path)]


READERS: dict[str, Any] = {
    "agentic-mooncake.jsonl": agentic,
    "aiperf_example_trace.jsonl": mooncake,
    "applied-compute-agentic.jsonl": applied_compute,
    "azure-2023-code.csv.gz": azure,
    "dynamo-agentic.jsonl": dynamo,
    "dynamo-standard.jsonl": dynamo,
    "dynamo_mooncake_tiny.jsonl": mooncake,
    "llmservingsim_example_trace.jsonl": llmservingsim,
    "mooncake-delta.jsonl": delta,
    "mooncake-synthetic.jsonl.gz": mooncake,
    "splitwise_sim_test_trace.csv": lambda path: columns(
        path, "arrival_timestamp", "prompt_size", "token_size"
    ),
    "vidur_arxiv_lengths_first500.csv": lengths,
    "vidur_splitwise_code_first500.csv": lambda path: columns(
        path, "arrived_at", "num_prefill_tokens", "num_decode_tokens"
    ),
}
UNTIMED = {"vidur_arxiv_lengths_first500.csv"}


def percentile(values: list[int], share: float) -> float:
    """Linear between the sorted values around the place (n - 1) x share."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    low = floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def of_lengths(values: list[int]) -> dict[str, float]:
    return {
        "p50": percentile(values, 0.5),
        "mean": float(Fraction(sum(values), len(values))),
        "p99": percentile(values, 0.99),
        "max": max(values),
    }


def hit_rate(requests: list[Request]) -> float | None:
    """Leading blocks that an earlier request had / all blocks."""
    seen: set[int] = set()
    hits = blocks = 0
    for _, _, _, hashes in requests:
        blocks += len(hashes)
        for block in hashes:
            if block not in seen:
                break
            hits += 1
        seen.update(hashes)
    return hits / blocks if blocks else None


def statistics(path: Path) -> dict[str, Any]:
    requests = sorted(READERS[path.name](path), key=lambda request: request[0])
    result: dict[str, Any] = {
        "requests": len(requests),
        "prompt_tokens": of_lengths([request[1] for request in requests]),
        "output_tokens": of_lengths([request[2] for request in requests]),
        "tpot_requests": sum(request[2] >= 2 for request in requests),
        "max_context_tokens": max(request[1] + request[2] for request in requests),
    }
    if all(request[3] is not None for request in requests):
        result["prefix_hit_rate"] = hit_rate(requests)
    if path.name not in UNTIMED:
        times = [request[0] for request in requests]
        duration_s = times[-1] - times[0]
        gaps = [b - a for a, b in pairwise(times)]
        mean = sum(gaps) / len(gaps)
        variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
        result |= {
            "duration_s": float(duration_s),
            "rate_per_s": float((len(times) - 1) / duration_s),
            "interarrival_cv": sqrt(variance) / float(mean),
        }
    return result


if __name__ == "__main__":
    for file in sorted(Path(sys.argv[1]).iterdir()):
        print(file.name, json.dumps(statistics(file)))
