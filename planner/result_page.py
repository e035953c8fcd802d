"""A stored plan as its page reads it: rows for the tables, the command line to copy, the same question as curl.

Nothing is computed here that the result does not hold; seconds stay seconds until the template shows them as ms.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibration.templatetags.units import ms
from planner.charts.plan import shown_finalist
from planner.knob_columns import (
    hardware_names,
    hardware_text,
    replicas_text,
)
from planner.models import Plan
from planner.objective_columns import is_joint, key_of, label_of, limits_text, unit_of
from planner.recipes.shell import with_flags
from planner.result_closer import closer_context
from planner.result_helps import helps_of
from planner.schedule_forms import asked_again, asked_words
from planner.schedule_page import schedule_context
from planner.search import DEFAULT_HEADROOM, Conditions
from planner.search.periods import Asked
from planner.simulation.cluster.deployment import PREFIX_AWARE, ROUND_ROBIN

Result = Mapping[str, Any]
#: Share of draws in which an objective, or all, must hold to be shown as sure.
SURE = 0.9


@dataclass(frozen=True, slots=True)
class ObjectiveRow:
    """One objective and what was predicted for it; ``holds`` None where there is no latency to judge.

    Of a joint objective the values are shares of its limits (``limits``, in words), which ``attained`` of the requests
    meet and ``percentile`` per cent should. ``limit`` and ``predicted`` are in words.
    """

    label: str
    unit: str
    joint: bool
    limits: str
    percentile: float
    attained: float | None
    limit: str
    predicted: str
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
    probability: float | None = None  # that it holds: share of draws; None where it was not asked in draws

    @property
    def excess(self) -> float:
        """How far beyond its limit, as a share of it; 0 for one that holds."""
        return max(0.0, -(self.margin or 0.0))

    @property
    def sure(self) -> bool:
        """Whether it holds in the draws as well, and its interval stays within the limit; True where nobody asked."""
        if self.probability is None:
            return True
        return self.probability >= SURE and self.high_s is not None and self.high_s <= self.limit_s

    @property
    def words(self) -> str:
        """`holds, P 0.83`: what the badge says."""
        if self.holds is None:
            return "no latency"
        said = ("holds" if self.claimed else "holds, not claimed") if self.holds else "exceeded"
        return said if self.probability is None else f"{said}, P {self.probability:.2f}"

    @property
    def badge(self) -> str:
        """Amber where it holds but the interval crosses the limit."""
        if self.holds is None or (self.holds and not (self.claimed and self.sure)):
            return "interrupted"
        return "done" if self.holds else "failed"


def objective_rows(result: Result, finalist: Result | None) -> list[ObjectiveRow]:
    verdict = result["verdict"]
    rows = []
    for o in finalist["objectives"] if finalist else result["summary"]["objectives"]:
        key, predicted_s = key_of(o), o["predicted"]
        attained = o.get("attained")
        limit = f"{o['percentile']:g} % of the requests" if is_joint(o) else ms(o["limit"])
        predicted = "–" if predicted_s is None else ms(predicted_s)
        if attained is not None:
            predicted = f"{100 * attained:.4g} %"
        rows.append(
            ObjectiveRow(
                label=label_of(o), unit=unit_of(o), joint=is_joint(o), limits=limits_text(o),
                percentile=o["percentile"], attained=attained, limit=limit, predicted=predicted,
                limit_s=o["limit"], predicted_s=predicted_s,
                low_s=o.get("low"), high_s=o.get("high"), margin=o.get("margin"),
                holds=None if predicted_s is None else predicted_s <= o["limit"],
                claimed=bool(o.get("claimed")), samples=o.get("samples") or 0, requests=o.get("requests") or 0,
                binding=key == verdict["binding"], alone_s=(verdict["alone"] or {}).get(key),
                probability=o.get("probability"),
            )
        )  # fmt: skip
    return rows


#: What is set, by the engines' names, and what it does.
KNOBS = (
    ("max_num_batched_tokens", "tokens", "the token budget of a step"),
    ("chunked_prefill_size", "tokens", "of prompts in a step, at most"),
    ("max_num_tokens", "tokens", "the token budget of a step"),
    ("max_num_seqs", "sequences", "run at once, at most"),
    ("max_running_requests", "sequences", "run at once, at most"),
    ("max_batch_size", "sequences", "run at once, at most"),
    ("max_prefill_tokens", "tokens", "of prompts in a step, at most"),
    ("long_prefill_token_threshold", "tokens", "of one prompt in a step, at most"),
    ("max_total_tokens", "tokens", "of KV cache"),
    ("block_size", "tokens", "in a KV block"),
    ("page_size", "tokens", "in a KV page"),
    ("tokens_per_block", "tokens", "in a KV block"),
    ("num_blocks", "blocks", "usable for requests"),
)
SWITCHES = (
    ("async_scheduling", "the next step is scheduled while this one runs", "step by step"),
    ("overlap_schedule", "the next step is scheduled while this one runs", "step by step"),
    ("overlap_scheduler", "the next step is scheduled while this one runs", "step by step"),
    ("enable_mixed_chunk", "decodes join steps with prompts", "decodes wait while prompts are computed"),
    ("enable_chunked_prefill", "prompts are cut to the budget", "prompts are computed whole"),
    ("prefix_caching", "prompts that begin alike share blocks", "nothing is found again"),
)


def knob_rows(knobs: Result) -> list[tuple[str, str, str]]:
    """(name, value with unit, meaning)."""
    rows = []
    for name, unit, meaning in KNOBS:
        value = knobs.get(name)
        if value is None:
            continue
        if name == "long_prefill_token_threshold" and not value:
            rows.append((name, "0", "no cap: chunks as long as the budget allows"))
        else:
            rows.append((name, f"{value:,} {unit}", meaning))
    for name, on, off in SWITCHES:
        if name in knobs:
            rows.append((name, "on" if knobs[name] else "off", on if knobs[name] else off))
    if knobs.get("enable_chunked_prefill") and "context_chunking_policy" in knobs:
        rows.append(("context_chunking_policy", knobs["context_chunking_policy"], "how prompts share a step"))
    return rows


@dataclass(frozen=True, slots=True)
class PoolBlock:
    """One pool of the shown configuration: its knobs, and what to start it with."""

    title: str
    knobs: list[tuple[str, str, str]]
    command: str


def pool_blocks(finalist: Result, engine: str, *, with_command: bool) -> list[PoolBlock]:
    """One for replicas alike; of two pools the prefill pool and the decode pool."""
    split, flags = finalist.get("split"), finalist["flags"]
    if not split:
        said = command_line(flags, engine) if with_command else ""
        return [PoolBlock("", knob_rows(finalist["knobs"]), said)]
    return [
        PoolBlock(
            f"{role.capitalize()} pool: {split[role]:,} replica{'s' if split[role] != 1 else ''}",
            knob_rows(finalist["knobs"][role]),
            command_line(flags[role], engine) if with_command else "",
        )
        for role in ("prefill", "decode")
    ]


def command_line(flags: Sequence[str], engine: str = "vllm") -> str:
    """The server with a flag per line, ready for a shell; for TensorRT-LLM the file that its server reads."""
    if engine == "tensorrt_llm":
        return "# trtllm-serve $MODEL --config config.yaml\n" + "\n".join(flags)
    server = (
        "python -m sglang.launch_server --model-path $MODEL" if engine == "sglang" else "vllm serve $MODEL"
    )
    return with_flags(server, flags)


def question_of(plan: Plan) -> dict[str, Any]:
    """The same question in the words of the API."""
    space = dict(plan.space)
    body: dict[str, Any] = {
        "name": plan.name, "calibration": str(plan.calibration_id), "traffic": str(plan.traffic_id),
        "objectives": plan.objectives, "max_replicas": space.get("max_replicas", 8), "seed": plan.seed,
    }  # fmt: skip
    if "budgets_tokens" in space:
        body |= {key: space[key] for key in ("budgets_tokens", "chunk_caps_tokens", "max_num_seqs")}
        body["scheduling"] = "async" if space.get("async_scheduling", True) else "sync"
    if plan.second_calibration_id:
        body["second_calibration"] = str(plan.second_calibration_id)
    return body | _conditions_asked(plan) | asked_again(Asked(**(plan.schedule or {})))


def as_curl(plan: Plan, url: str) -> str:
    """The same question through the API; the token comes from the environment."""
    body = question_of(plan)
    return " \\\n  ".join((
        f"curl -sS {shlex.quote(url)}", '-H "Authorization: Bearer $RIDGELINE_TOKEN"',
        "-H 'Content-Type: application/json'", f"-d {shlex.quote(json.dumps(body))}",
    ))  # fmt: skip


def _conditions_asked(plan: Plan) -> dict[str, Any]:
    """What differs from the API's defaults, under the form's names."""
    asked = Conditions.from_dict(plan.conditions)
    default = Conditions(headroom=DEFAULT_HEADROOM).to_dict()
    body = {name: value for name, value in asked.to_dict().items() if value != default[name]}
    if (window := body.pop("window_s", None)) is not None:
        body |= {"window_start_s": window[0], "window_end_s": window[1]}
    if "prefix" in body:
        body["prefix_hits"] = body.pop("prefix")
    if body.pop("link", None) and asked.link is not None:
        table = asked.link.table
        body |= {"link": "measured"} if not table.entered else {
            "link_gb_per_s": table.peak_bytes_per_s / 1e9, "link_latency_s": table.latency_s[0],
            "link_uncertainty": table.uncertainty,
        }  # fmt: skip
    space = plan.space
    usual = [ROUND_ROBIN, PREFIX_AWARE] if asked.prefix == "trace" else [ROUND_ROBIN]
    for name, default_values in (
        ("transfer_chunks_tokens", [1]), ("local_prefill_tokens", []), ("routers", usual),
    ):  # fmt: skip
        if space.get(name, default_values) != default_values:
            body[name] = space[name]
    return body


def result_context(plan: Plan) -> dict[str, Any]:
    """What the templates need of a finished (or stopped) search; empty when there is no result."""
    result = plan.result
    if not result:
        return {}
    verdict, shown = result["verdict"], shown_finalist(result)
    rows = objective_rows(result, shown)
    names = hardware_names(result)
    where = hardware_text(shown, names) if shown else ""
    recommended = bool(verdict["choice"]) and not result.get("searching")
    return {
        "result": result, "verdict": verdict, "shown": shown, "objectives": rows,
        "movable": shown is not None,
        "binding": next((row for row in rows if row.binding), None),
        "pools": pool_blocks(shown, result["inputs"]["engine"]["name"], with_command=recommended)
        if shown else [],
        "unsure": shown is not None and shown["holding"] < SURE * shown["refits"],
        "shown_text": replicas_text(shown) + (f" on {where}" if where else "") if shown else "", "where": where,
        "inputs": result["inputs"], "asked_schedule": asked_words(Asked(**(plan.schedule or {}))),
        "helps": helps_of(plan, result), **closer_context(result), **schedule_context(result),
    }  # fmt: skip
