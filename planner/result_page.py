"""A stored plan as its page reads it: rows for the tables, the command line to copy, the same question as curl.

Nothing is computed here that the result does not hold; seconds stay seconds until the template shows them as ms.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.charts.plan import label_of, shown_finalist
from planner.models import Plan

Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ObjectiveRow:
    """One objective and what was predicted for it; ``holds`` None where there is no latency to judge."""

    label: str
    limit_s: float
    predicted_s: float | None
    low_s: float | None
    high_s: float | None
    margin: float | None
    holds: bool | None
    claimed: bool
    samples: int
    requests: int
    binding: bool
    alone_s: float | None  # of a request that has a replica to itself, where nothing meets the objectives

    @property
    def excess(self) -> float:
        """How far beyond its limit, as a share of it; 0 for one that holds."""
        return max(0.0, -(self.margin or 0.0))


def objective_rows(result: Result, finalist: Result | None) -> list[ObjectiveRow]:
    verdict = result["verdict"]
    rows = []
    for o in finalist["objectives"] if finalist else result["summary"]["objectives"]:
        key, predicted_s = f"{o['metric']}:p{o['percentile']:g}", o["predicted"]
        rows.append(
            ObjectiveRow(
                label=label_of(o["metric"], o["percentile"]), limit_s=o["limit"], predicted_s=predicted_s,
                low_s=o.get("low"), high_s=o.get("high"), margin=o.get("margin"),
                holds=None if predicted_s is None else predicted_s <= o["limit"],
                claimed=bool(o.get("claimed")), samples=o.get("samples") or 0, requests=o.get("requests") or 0,
                binding=key == verdict["binding"], alone_s=(verdict["alone"] or {}).get(key),
            )
        )  # fmt: skip
    return rows


# What is set, by vLLM's names, and what it does.
KNOBS = (
    ("max_num_batched_tokens", "tokens", "the token budget of a step"),
    ("max_num_seqs", "sequences", "run at once, at most"),
    ("long_prefill_token_threshold", "tokens", "of one prompt in a step, at most"),
    ("block_size", "tokens", "in a KV block"),
    ("num_blocks", "blocks", "usable for requests"),
)


def knob_rows(finalist: Result) -> list[tuple[str, str, str]]:
    """(name, value with unit, meaning)."""
    knobs = finalist["knobs"]
    rows = []
    for name, unit, meaning in KNOBS:
        value = knobs[name]
        if name == "long_prefill_token_threshold" and not value:
            rows.append((name, "0", "no cap: chunks as long as the budget allows"))
        else:
            rows.append((name, f"{value:,} {unit}", meaning))
    asynchronous = knobs["async_scheduling"]
    rows.append(("async_scheduling", "on" if asynchronous else "off",
                 "the next step is scheduled while this one runs" if asynchronous else "step by step"))  # fmt: skip
    return rows


def command_line(flags: Sequence[str]) -> str:
    """``vllm serve`` with a flag per line, ready for a shell."""
    lines = ["vllm serve $MODEL"]
    for word in flags:
        if word.startswith("--"):
            lines.append(f"  {shlex.quote(word)}")
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n".join(lines)


def as_curl(plan: Plan, url: str) -> str:
    """The same question through the API; the token comes from the environment."""
    space = dict(plan.space)
    body: dict[str, Any] = {
        "name": plan.name, "calibration": str(plan.calibration_id), "traffic": str(plan.traffic_id),
        "objectives": plan.objectives, "max_replicas": space.get("max_replicas", 8), "seed": plan.seed,
    }  # fmt: skip
    if "budgets_tokens" in space:
        body |= {key: space[key] for key in ("budgets_tokens", "chunk_caps_tokens", "max_num_seqs")}
        body["scheduling"] = "async" if space.get("async_scheduling", True) else "sync"
    return " \\\n  ".join((
        f"curl -sS {shlex.quote(url)}", '-H "Authorization: Bearer $RIDGELINE_TOKEN"',
        "-H 'Content-Type: application/json'", f"-d {shlex.quote(json.dumps(body))}",
    ))  # fmt: skip


def result_context(plan: Plan) -> dict[str, Any]:
    """What the templates need of a finished (or stopped) search; empty when there is no result."""
    result = plan.result
    if not result:
        return {}
    verdict, shown = result["verdict"], shown_finalist(result)
    rows = objective_rows(result, shown)
    return {
        "result": result, "verdict": verdict, "shown": shown, "objectives": rows,
        "binding": next((row for row in rows if row.binding), None),
        "knobs": knob_rows(shown) if shown else [],
        "command": command_line(verdict["choice"]["flags"]) if verdict["choice"] else "",
        "runner_up": verdict["runner_up"],
        "runner_up_objectives": objective_rows(result, verdict["runner_up"]) if verdict["runner_up"] else [],
        "inputs": result["inputs"],
    }  # fmt: skip
