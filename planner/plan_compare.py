"""Two to four finished plans beside each other: what was asked differently, what was answered differently.

Everything is read from the stored results (planner/search/result.py); nothing is computed anew. A line has one value
for each plan, in the order they were chosen, and says whether the values differ: those come first. Seconds, tokens,
shares of 1; how a number is shown is the template's business, so a line names its `kind`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from planner.charts.plan import shown_finalist
from planner.knob_columns import budget_of, cap_of, knob_words, names_of, replicas_text, seqs_of
from planner.models import Plan
from planner.objective_columns import is_joint, key_of, label_of, limits_text
from planner.schedule_forms import asked_words
from planner.search import TITLES, Conditions, parse_objective
from planner.search.objectives import label_of_key
from planner.search.periods import Asked

LEAST, MOST = 2, 4
Result = Mapping[str, Any]


class NotComparable(Exception):
    """A plan that cannot be compared; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Line:
    """`key` is the API's name, `label` the page's; `kind`: text, count, ms, percent, decimal, money."""

    key: str
    label: str
    kind: str
    values: tuple[Any, ...]

    @property
    def differs(self) -> bool:
        return any(value != self.values[0] for value in self.values[1:])


@dataclass(frozen=True, slots=True)
class Percentile:
    """One plan's limit and prediction for a percentile; of a joint objective shares of its limits (`limits`, in
    words) instead of seconds."""

    limit_s: float
    limits: str
    predicted_s: float | None
    low_s: float | None
    high_s: float | None
    margin: float | None
    probability: float | None
    claimed: bool


@dataclass(frozen=True, slots=True)
class PercentileLine:
    """`joint`: of goodput, whose values are shares of its limits instead of seconds."""

    key: str
    label: str
    joint: bool
    values: tuple[Percentile | None, ...]

    @property
    def differs(self) -> bool:
        return any(value != self.values[0] for value in self.values[1:])


@dataclass(frozen=True, slots=True)
class Compared:
    """`percentiles`: of the shown configuration (the choice, or the closest where nothing meets)."""

    plans: tuple[Plan, ...]
    inputs: tuple[Line, ...]
    answers: tuple[Line, ...]
    percentiles: tuple[PercentileLine, ...]


def compared(plans: Sequence[Plan]) -> Compared:
    """Raises NotComparable for one that has no whole answer."""
    for plan in plans:
        if plan.is_active or not plan.result:
            raise NotComparable(f"{plan.name} has no answer: it is {plan.status}.")
    return Compared(tuple(plans), _inputs(plans), _answers(plans), _percentiles(plans))


# What was asked --------------------------------------------------------------------------------------------------


def _inputs(plans: Sequence[Plan]) -> tuple[Line, ...]:
    terms = [Conditions.from_dict(_result(plan)["inputs"].get("conditions") or {}) for plan in plans]

    def line(key: str, label: str, kind: str, of: Callable[[Plan], Any]) -> Line:
        return Line(key, label, kind, tuple(of(plan) for plan in plans))

    def term(key: str, label: str, kind: str, of: Callable[[Conditions], Any] | None = None) -> Line:
        return Line(key, label, kind, tuple(of(t) if of else getattr(t, key) for t in terms))

    return (
        line("calibration", "Calibration", "text", lambda plan: plan.calibration.name),
        line("device", "Device", "text", lambda plan: plan.calibration.device_label),
        line("second_calibration", "Second kind of hardware", "text",
             lambda plan: plan.second_calibration.name if plan.second_calibration else "none"),
        line("model", "Model", "text", lambda plan: _result(plan)["inputs"]["architecture"]["name"]),
        line("traffic", "Traffic", "text", lambda plan: plan.traffic.name),
        line("requests", "Requests", "count", lambda plan: _result(plan)["inputs"]["traffic"]["requests"]),
        line("engine", "Engine", "text", _engine),
        line("objectives", "Objectives", "text", _objectives),
        term("rate_multiplier", "Rate multiplier", "decimal"),
        term("growth", "Growth [%]", "percent"),
        term("headroom", "Headroom [%]", "percent"),
        term("window", "Window [s]", "text", _window),
        term("link", "Link between pools", "text", lambda t: t.link.table.label if t.link else "none"),
        term("price_per_gpu_hour", "Price [per GPU-hour]", "money"),
        term("gpus_per_replica", "GPUs per replica", "count"),
        term("front_end_s", "Front end [ms]", "ms"),
        term("front_end_s_per_token", "Front end per token [ms]", "ms"),
        term("network_s", "Network [ms]", "ms"),
        term("prefix", "Prefix cache", "text", lambda t: f"{t.prefix} {t.hit_share:.3g}" if t.hit_share else t.prefix),
        term("assumed_max_tokens", "Assumed max_tokens [tokens]", "count"),
        line("max_replicas", "Most replicas", "count", _space("max_replicas")),
        line("budgets_tokens", "Budgets tried [tokens]", "text", _space("budgets_tokens")),
        line("chunk_caps_tokens", "Chunk caps tried [tokens]", "text", _space("chunk_caps_tokens")),
        line("max_num_seqs", "Sequences tried", "text", _space("max_num_seqs")),
        line("kv_tokens", "KV pool [tokens]", "count", lambda plan: _result(plan)["inputs"]["kv_tokens"]),
        line("max_model_len", "Longest request [tokens]", "count",
             lambda plan: _result(plan)["inputs"]["max_model_len"]),
        line("schedule", "By time of day", "text", lambda plan: asked_words(Asked(**(plan.schedule or {})))),
        line("seed", "Seed", "count", lambda plan: plan.seed),
    )  # fmt: skip


def _engine(plan: Plan) -> str:
    engine = _result(plan)["inputs"]["engine"]
    return f"{TITLES.get(engine['name'], engine['name'])} {engine['version']}"


def _objectives(plan: Plan) -> str:
    return "; ".join(parse_objective(text).goal for text in _result(plan)["inputs"]["objectives"])


def _window(terms: Conditions) -> str:
    return "whole" if terms.window_s is None else f"{terms.window_s[0]:,.6g} to {terms.window_s[1]:,.6g}"


def _space(name: str) -> Callable[[Plan], Any]:
    def of(plan: Plan) -> Any:
        value = _result(plan)["inputs"]["space"].get(name)
        return " ".join(f"{v:,}" for v in value) if isinstance(value, list) else value

    return of


# What was answered -----------------------------------------------------------------------------------------------

_ANSWERS: Final[tuple[tuple[str, str, str, Callable[[Result, Result], Any]], ...]] = (
    ("deployment", "Deployment", "text", lambda result, shown: replicas_text(shown)),
    ("gpus", "GPUs", "count", lambda result, shown: shown.get("gpus") or shown["replicas"]),
    ("cost_per_hour", "Cost [per hour]", "money", lambda result, shown: shown.get("cost_per_hour")),
    ("knobs", "Knobs", "text", lambda result, shown: knob_words(shown)),
    ("budget_tokens", "Token budget [tokens]", "count", lambda result, shown: budget_of(shown)),
    ("chunk_cap_tokens", "Chunk cap [tokens]", "count", lambda result, shown: cap_of(shown)),
    ("max_num_seqs", "Sequences", "count", lambda result, shown: seqs_of(shown)),
    ("binding", "Tightest objective", "text", lambda result, shown: _binding(result)),
    ("worst_margin", "Its margin [%]", "signed", lambda result, shown: _worst_margin(shown)),
    ("draws", "Draws that hold everything [%]", "percent", lambda result, shown: _holding(shown)),
    ("breaks_at", "Breaks at [times the rate]", "decimal",
     lambda result, shown: (result.get("breaking") or {}).get("breaks_at")),
    ("replica_hours", "Replica-hours of its schedule", "decimal",
     lambda result, shown: (result.get("schedule") or {}).get("replica_hours")),
    ("utilisation", "Busy [%]", "percent", lambda result, shown: shown["behaviour"]["utilisation"]),
    ("generated_tokens_per_s", "Generated [tokens/s]", "decimal",
     lambda result, shown: shown["behaviour"]["generated_tokens_per_s"]),
    ("preemptions", "Preempted [times]", "count", lambda result, shown: shown["behaviour"]["preemptions"]),
)  # fmt: skip


def _answers(plans: Sequence[Plan]) -> tuple[Line, ...]:
    results = [_result(plan) for plan in plans]
    shown = [shown_finalist(result) for result in results]
    meets = Line(
        "feasible", "Meets its objectives", "text", tuple("yes" if plan.feasible else "no" for plan in plans)
    )
    return meets, *(
        Line(key, label, kind, tuple(of(r, s) if s else None for r, s in zip(results, shown, strict=True)))
        for key, label, kind, of in _ANSWERS
        if key not in ("budget_tokens", "chunk_cap_tokens", "max_num_seqs") or _same_names(shown)
    )


def _same_names(shown: Sequence[Result | None]) -> bool:
    """Whether knobs can be told one by one: the engines call them the same."""
    return len({names_of(each) for each in shown if each}) == 1


def _binding(result: Result) -> str | None:
    key = result["verdict"]["binding"]
    return label_of_key(key) if key else None


def _worst_margin(shown: Result) -> float | None:
    return min((o["margin"] for o in shown["objectives"] if o["margin"] is not None), default=None)


def _holding(shown: Result) -> float | None:
    return shown["holding"] / shown["refits"] if shown["refits"] else None


def _percentiles(plans: Sequence[Plan]) -> tuple[PercentileLine, ...]:
    """Every percentile that any of them has an objective for, in the order in which they come up."""
    asked: list[dict[str, Result]] = []
    for plan in plans:
        result = _result(plan)
        asked.append({key_of(o): o for o in (shown_finalist(result) or result["summary"])["objectives"]})
    first = {key: o for one in reversed(asked) for key, o in one.items()}
    keys = dict.fromkeys(key for one in asked for key in one)
    return tuple(
        PercentileLine(
            key, label_of(first[key]), is_joint(first[key]), tuple(_percentile(one.get(key)) for one in asked)
        )
        for key in keys
    )


def _percentile(o: Result | None) -> Percentile | None:
    if o is None:
        return None
    return Percentile(
        o["limit"], limits_text(o), o["predicted"], o.get("low"), o.get("high"), o.get("margin"), o.get("probability"),
        bool(o.get("claimed")),
    )  # fmt: skip


def _result(plan: Plan) -> dict[str, Any]:
    result: dict[str, Any] = plan.result or {}
    return result
