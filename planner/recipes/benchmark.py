"""The plan's own traffic, replayed against what was deployed: the check that needs no trust in the plan.

The trace is written in Mooncake's JSON lines (timestamp in ms, lengths in tokens), which AIPerf replays on schedule
with `--fixed-schedule`: arrivals do not wait for answers, as in the plan. Goodput limits are the objectives on
TTFT, ITL and E2E latency in ms, for each request by itself; percentiles are in AIPerf's own table. `ignore_eos` makes
the server write as many tokens as the trace says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np

from planner.recipes.engines import PORT
from planner.recipes.service import Service
from planner.recipes.shell import script, shell_text
from planner.search.objectives import Objective
from planner.traffic import Traffic

TRACE_FILE = "trace.jsonl"
AIPERF_NAMES = {"ttft": "time_to_first_token", "itl": "inter_token_latency", "e2e": "request_latency"}


def trace_lines(traffic: Traffic, requests: slice = slice(None)) -> Iterator[str]:
    """One JSON object a line. Arrivals are rounded to a microsecond; prefix hashes are kept where there are any."""
    hashes = traffic.prefix_hashes
    stamps = np.round(traffic.arrival_s * 1e3, 3)
    for i in range(traffic.requests)[requests]:
        line: dict[str, object] = {
            "timestamp": float(stamps[i]),
            "input_length": int(traffic.prompt_tokens[i]),
            "output_length": int(traffic.output_tokens[i]),
        }
        if hashes is not None:
            line["hash_ids"] = hashes.flat[hashes.offsets[i] : hashes.offsets[i + 1]].tolist()
        yield json.dumps(line) + "\n"


def benchmark_script(service: Service, objectives: Sequence[Objective]) -> str:
    asked = [limit for o in objectives for limit in (o.limits or ((o.metric, o.limit_s),))]
    limits = dict(sorted(asked, key=lambda limit: -limit[1]))  # the tightest stays
    goodput = " ".join(
        f"{AIPERF_NAMES[metric]}:{limit_s * 1e3:g}"
        for metric, limit_s in limits.items()
        if metric in AIPERF_NAMES
    )
    arguments = ["--url", f"http://localhost:{PORT}", "--endpoint-type", "chat", "--streaming"]
    arguments += ["--input-file", TRACE_FILE, "--custom-dataset-type", "mooncake_trace", "--fixed-schedule"]
    arguments += ["--extra-inputs", "ignore_eos:true"]
    if goodput:
        arguments += ["--goodput", goodput]
    about = (
        "# Replays the plan's traffic on schedule (pip install aiperf); percentiles are in its closing table."
    )
    return script(about + "\n" + shell_text(["aiperf", "profile", "--model", service.model], arguments))
