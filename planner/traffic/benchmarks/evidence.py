"""A benchmark's file -> the refusal that says what it shows: its runs, the two identities, what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.traffic.benchmarks import (
    aiperf,
    generic,
    guidellm,
    inference_perf,
    llmperf,
    lmbench,
    serving,
    setting,
)
from planner.traffic.benchmarks.checks import Check, check_run, implied_tpot_s
from planner.traffic.benchmarks.run import Run
from planner.traffic.errors import TrafficError, TrafficFileError

MOST_RUNS = 50
_NOT_A_TRACE = (
    "This is a result of {tool}, not a trace: it says how a server answered, not what was asked of it and when. "
    "Give the trace that the benchmark sent, or its lengths with a rate."
)


class BenchmarkResult(TrafficError):
    """A file that is evidence. `runs` may be empty where the file is cut or too large to read whole; `checks`
    are those of each run. `errors` are the refusal and then what is wrong with the figures."""

    def __init__(self, tool: str, runs: Sequence[Run]) -> None:
        self.tool = tool
        self.runs = tuple(runs[:MOST_RUNS])
        self.checks: tuple[tuple[Check, ...], ...] = tuple(tuple(check_run(run)) for run in self.runs)
        problems = [TrafficFileError(None, None, _NOT_A_TRACE.format(tool=tool), code="benchmark_result")]
        for run, checks in zip(self.runs, self.checks, strict=True):
            where = f"{run.label}: " if run.label and len(self.runs) > 1 else ""
            problems += [
                TrafficFileError(None, None, where + check.message, code=_code(check))
                for check in checks
                if check.verdict in ("fails", "warns")
            ]
        super().__init__(problems)

    @property
    def detail(self) -> str:
        return str(self.errors[0])

    def evidence(self) -> dict[str, Any]:
        """JSON-safe: the tool, and for each run its figures, its checks and the TPOT that they imply."""
        return {
            "tool": self.tool,
            "runs": [
                {
                    **run.to_dict(),
                    "implied_tpot_s": implied_tpot_s(run),
                    "checks": [check.to_dict() for check in checks],
                }
                for run, checks in zip(self.runs, self.checks, strict=True)
            ],
        }

    def to_dict(self) -> dict[str, Any]:
        return {**TrafficError.to_dict(self), "evidence": self.evidence()}


def benchmark_result(tool: str, content: bytes, *, whole: bool = True) -> BenchmarkResult:
    """The refusal for `content`, UTF-8 or nearly so, of a file that `tool` wrote. Never another exception:
    what cannot be read has no runs."""
    text = content.decode("utf-8-sig", errors="replace")
    try:
        runs = _runs(text) if whole else []
    except (ValueError, RecursionError, ArithmeticError, TypeError, AttributeError, LookupError):
        runs = []  # not what the tool writes: somebody edited it
    return BenchmarkResult(tool, runs)


def _runs(text: str) -> list[Run]:
    if text.lstrip()[:1] not in ("{", "["):
        first = text.lstrip().partition("\n")[0]
        return aiperf.table(text) if first.startswith("Metric,") else lmbench.rows(text)
    document = _document(text)
    if document is None:
        return aiperf.lines(text)
    if isinstance(document, list):
        return llmperf.individual(document)
    if not isinstance(document, Mapping):
        return []
    said = setting.remarks(document)
    return [replace(run, remarks=(*run.remarks, *said)) for run in _reader(document)(document)]


def _document(text: str) -> Any:
    """The JSON document (Infinity and NaN are read: tools write them); None for JSON lines."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    is_line = isinstance(document, dict) and {"metadata", "metrics"} <= set(document)
    return None if is_line else document


def _reader(document: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], list[Run]]:
    if "benchmarks" in document:
        return guidellm.report
    if "load_summary" in document:
        return inference_perf.lifecycle
    if "results_ttft_s_mean" in document or "num_concurrent_requests" in document:
        return llmperf.summary
    if "records" in document or "input_sequence_length" in document or "request_latency" in document:
        return aiperf.summary
    if "total_input_tokens" in document and "completed" in document:
        return serving.serving
    return generic.generic


def _code(check: Check) -> str:
    if check.verdict == "warns":
        return "benchmark_remark"
    return {"zeros": "nothing_measured", "offered load": "closed_loop"}.get(check.name, "identity_fails")
