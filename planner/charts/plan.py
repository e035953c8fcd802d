"""Figures of a plan: what each combination of knobs trades between TTFT and ITL, what other budgets and other
numbers of replicas would do, and where the time to the first token goes. They draw the stored result
(planner/search/result.py), whose times are seconds; here they become ms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from calibration.charts import DASHES, MAX_ROWS, NEUTRAL, PALETTE, SYMBOLS, axes, packed
from planner.charts.axes import log_axis
from planner.charts.plan_closer import distributions, load_curve
from planner.charts.schedule import step_chart
from planner.knob_columns import (
    budget_of,
    cap_of,
    knob_words,
    names_of,
    same_candidate,
    seqs_of,
    variant_words,
)
from planner.objective_columns import cell_of, column_of, key_of, label_of, limit_of, text_of
from planner.search import label_of_key

Result = Mapping[str, Any]

# status: symbol and colour; what the calibration does not cover is hollow.
STATUS_MARKS = {
    "meets": ("circle", PALETTE[2]),
    "fails": ("cross", PALETTE[1]),
    "not covered": ("square-open", NEUTRAL),
}
CHOSEN = ("star", PALETTE[0])
SPLIT = (
    ("front_end", "front end and network", NEUTRAL, "-"),
    ("queue", "queue", PALETTE[1], "/"),
    ("prefill", "prefill", PALETTE[0], ""),
    ("wait_between_chunks", "wait between chunks", PALETTE[3], "x"),
    ("transfer", "transfer", PALETTE[3], "+"),
    ("first_decode", "first decode", PALETTE[2], "."),
)
KNOB_COLUMNS = ["Token budget [tokens]", "Sequences", "Chunk cap [tokens]"]


def plan_figure(name: str, result: Result, title: str = "") -> dict[str, Any]:
    """The named figure of PLAN_FIGURES as JSON-safe objects. Raises KeyError for another name."""
    return PLAN_FIGURES[name](result, title)


def shown_finalist(result: Result) -> dict[str, Any] | None:
    """The choice, or the closest where nothing meets the objectives."""
    verdict = result["verdict"]
    found: dict[str, Any] | None = verdict["choice"] or verdict["closest"]
    return found


# The trade ---------------------------------------------------------------------------------------------------


def _trade(result: Result, title: str) -> dict[str, Any]:
    axis = result["trade"]
    names = _axis_names(axis)
    points = [c for c in result["candidates"] if c["trade"] and c["trade"]["ttft_s"] and c["trade"]["itl_s"]]
    saturated = sum(1 for c in result["candidates"] if c["trade"] and c["trade"]["status"] == "saturated")
    limits_ms = [_limit_ms(result, metric) for metric in ("ttft", "itl")]
    shown = shown_finalist(result)
    built = go.Figure()
    for status, (symbol, colour) in STATUS_MARKS.items():
        _add_candidates(
            built, [c for c in points if c["trade"]["status"] == status], status, symbol, colour, names
        )
    if shown:
        own = [c for c in points if same_candidate(c, shown) and axis["replicas"] == shown["replicas"]]
        role = "chosen" if result["verdict"]["choice"] else "closest"
        _add_candidates(built, own, role, *CHOSEN, names, size=15)
    x_ms, y_ms = ([c["trade"][key] * 1e3 for c in points] for key in ("ttft_s", "itl_s"))
    axes(built, f"{names[0]} [ms]", f"{names[1]} [ms]", log_x=None)
    log_axis(built.layout.xaxis, *_span(x_ms, limits_ms[0]))
    log_axis(built.layout.yaxis, *_span(y_ms, limits_ms[1]))
    _add_limits(built, limits_ms, names)
    columns = [*KNOB_COLUMNS, *(f"{name} [ms]" for name in names), "At this replica count"]
    rows = [
        [*_knob_cells(c), _ms(c["trade"]["ttft_s"]), _ms(c["trade"]["itl_s"]), c["trade"]["status"]]
        for c in points
    ]
    note = f"Every combination of knobs on {_replicas(axis['replicas'])}. Lower left is better."
    if saturated:
        note += f" {saturated} more {'is' if saturated == 1 else 'are'} saturated there, without latencies to show."
    return packed(
        built, table={"columns": columns, "rows": rows[:MAX_ROWS], "more": max(0, len(rows) - MAX_ROWS)},
        note=note if points else "", empty="" if points else "No combination has latencies to compare.", title=title,
    )  # fmt: skip


def _axis_key(axis: Result, metric: str) -> str:
    """The percentile on the axis of a metric."""
    return str(axis.get(f"{metric}_key") or f"{metric}:p{axis[f'{metric}_percentile']:g}")


def _axis_names(axis: Result) -> list[str]:
    return [label_of_key(_axis_key(axis, metric)) for metric in ("ttft", "itl")]


def _limit_ms(result: Result, metric: str) -> float | None:
    """The limit of the axis of a metric, None where none was asked for."""
    limit_s = limit_of(result["summary"]["objectives"], _axis_key(result["trade"], metric))
    return None if limit_s is None else limit_s * 1e3


def _add_candidates(
    built: go.Figure, candidates: Sequence[Result], label: str, symbol: str, colour: str, names: Sequence[str],
    size: int = 9,
) -> None:  # fmt: skip
    """One mark per place: combinations that behave alike are named together."""
    alike: dict[tuple[float, float], list[Result]] = defaultdict(list)
    for candidate in candidates:
        trade = candidate["trade"]
        alike[trade["ttft_s"] * 1e3, trade["itl_s"] * 1e3].append(candidate)
    if not alike:
        return
    words = [
        f"{knob_words(group[0])}{f'<br>and {len(group) - 1} more that behave alike' if len(group) > 1 else ''}"
        f"<br>{names[0]} {x:,.4g} ms, {names[1]} {y:,.4g} ms<br>{label}"
        for (x, y), group in alike.items()
    ]
    hollow = "open" in symbol
    built.add_scatter(
        x=[x for x, _ in alike], y=[y for _, y in alike], mode="markers", name=label, legendgroup=label,
        text=words, hovertemplate="%{text}<extra></extra>",
        marker={"symbol": symbol, "color": colour, "size": size, "opacity": 1 if hollow or size > 9 else 0.75,
                "line": {"width": 1.6 if hollow else 0, "color": colour}},
    )  # fmt: skip


def _add_limits(built: go.Figure, limits_ms: Sequence[float | None], names: Sequence[str]) -> None:
    line = {"color": NEUTRAL, "width": 1.4, "dash": "dash"}
    x_ms, y_ms = limits_ms
    if x_ms is not None and y_ms is not None:  # where both hold
        (left, _), (bottom, _) = built.layout.xaxis.range, built.layout.yaxis.range
        built.add_shape(type="rect", x0=10**left, x1=x_ms, y0=10**bottom, y1=y_ms, layer="below",
                        fillcolor=PALETTE[2], opacity=0.08, line={"width": 0})  # fmt: skip
    if x_ms is not None:
        built.add_shape(type="line", x0=x_ms, x1=x_ms, y0=0, y1=1, yref="paper", line=line)
    if y_ms is not None:
        built.add_shape(type="line", y0=y_ms, y1=y_ms, x0=0, x1=1, xref="paper", line=line)
    words = [
        f"{name} ≤ {limit:,.4g} ms" for name, limit in zip(names, limits_ms, strict=True) if limit is not None
    ]
    if words:
        built.add_scatter(x=[None], y=[None], mode="lines", name=f"limits: {', '.join(words)}", line=line)


def _span(values: Sequence[float], limit: float | None) -> tuple[float, float]:
    """A range that shows the values and the limit, but not a few far outliers at the expense of all others."""
    known = sorted(values)
    if not known:
        return (1.0, 10.0) if limit is None else (limit / 3, limit * 3)
    ends = [known[0], known[-1], *([limit] if limit is not None else [])]
    return min(ends), max(max(ends), min(ends) * 1.5)


# Replicas ------------------------------------------------------------------------------------------------------


def _by_replicas(result: Result, title: str) -> dict[str, Any]:
    points = result.get("by_replicas") or []
    objectives = result["summary"]["objectives"]
    built = go.Figure()
    served = [p for p in points if p["values_s"]]
    for index, o in enumerate(objectives):
        key, label = key_of(o), label_of(o)
        there = [p for p in served if key in p["values_s"]]
        words = [
            f"{_replicas(p['replicas'])}: {label} {text_of(o, p['values_s'][key])}"
            f"<br>limit {text_of(o, o['limit'])}" for p in there
        ]  # fmt: skip
        which = index % len(PALETTE)
        built.add_scatter(
            x=[p["replicas"] for p in there], y=[p["values_s"][key] / o["limit"] * 100 for p in there],
            mode="lines+markers", name=label, legendgroup=key, text=words, hovertemplate="%{text}<extra></extra>",
            line={"color": PALETTE[which], "width": 2, "dash": DASHES[which]},
            marker={"symbol": SYMBOLS[which], "size": 8, "color": PALETTE[which]},
        )  # fmt: skip
    axes(built, "Deployment [replicas]", "Share of its limit [%]", log_x=None)
    built.update_xaxes(dtick=1 if len(points) <= 12 and points and points[-1]["replicas"] <= 16 else None)
    if points:
        built.update_xaxes(range=[0.5, points[-1]["replicas"] + 0.5])
    line = {"color": NEUTRAL, "width": 1.4, "dash": "dash"}
    built.add_shape(type="line", x0=0, x1=1, xref="paper", y0=100, y1=100, line=line)
    built.add_scatter(x=[None], y=[None], mode="lines", name="the limit: 100 %", line=line)
    _mark_saturated(built, [p["replicas"] for p in points if not p["values_s"]])
    _mark_shown(built, result)
    shares = [p["values_s"][k] / o["limit"] * 100 for p in served for o in objectives
              if (k := key_of(o)) in p["values_s"]]  # fmt: skip
    log_axis(built.layout.yaxis, *_span(shares, 100.0))
    columns = ["Replicas", *(column_of(o) for o in objectives), "Busy [%]", "Outcome"]
    rows = [
        [f"{p['replicas']:,}",
         *(cell_of(o, p["values_s"].get(key_of(o))) for o in objectives),
         f"{p['utilisation'] * 100:.1f}", p["status"]]
        for p in points
    ]  # fmt: skip
    note = "The same knobs on other numbers of replicas, whole trace each. Below 100 % an objective holds."
    return packed(built, table={"columns": columns, "rows": rows, "more": 0}, note=note if points else "",
                  empty="" if points else "The search was stopped before this was computed.", title=title)  # fmt: skip


def _mark_saturated(built: go.Figure, counts: Sequence[int]) -> None:
    """Where there is no latency to draw: a band that says so."""
    for count in counts:
        built.add_shape(type="rect", x0=count - 0.5, x1=count + 0.5, y0=0, y1=1, yref="paper", layer="below",
                        fillcolor=NEUTRAL, opacity=0.14, line={"width": 0})  # fmt: skip
    if counts:
        built.add_annotation(x=(counts[0] + counts[-1]) / 2, y=0.5, yref="paper", text="saturated", showarrow=False,
                             textangle=-90 if len(counts) < 3 else 0)  # fmt: skip


def _mark_shown(built: go.Figure, result: Result) -> None:
    """A line at the replica count of the answer."""
    shown = shown_finalist(result)
    if shown is None:
        return
    words = "chosen" if result["verdict"]["choice"] else "closest"
    built.add_shape(type="line", x0=shown["replicas"], x1=shown["replicas"], y0=0, y1=1, yref="paper", layer="below",
                    line={"color": NEUTRAL, "width": 1, "dash": "dot"})  # fmt: skip
    # Beside the line and inside the plot; at the end where the limit's line is not.
    most = max((p["replicas"] for p in result.get("by_replicas") or ()), default=shown["replicas"])
    low, left = words == "chosen", 2 * shown["replicas"] > most + 1
    built.add_annotation(
        x=shown["replicas"], y=0 if low else 1, yref="paper", yanchor="bottom" if low else "top",
        xanchor="right" if left else "left", xshift=-4 if left else 4, text=words, showarrow=False,
    )  # fmt: skip


# What the budget does ------------------------------------------------------------------------------------------


def _budget(result: Result, title: str) -> dict[str, Any]:
    """The shown configuration with other token budgets, at the plan's replica count."""
    axis, shown = result["trade"], shown_finalist(result)
    built = go.Figure()
    points = []
    if shown is not None:
        points = [c for c in result["candidates"] if c["trade"] and c["trade"]["ttft_s"] is not None
                  and _but_for_budget(c) == _but_for_budget(shown)]  # fmt: skip
        points.sort(key=budget_of)
    budgets = [budget_of(c) for c in points]
    name = f"{names_of(shown)[0] if shown else 'max_num_batched_tokens'} [tokens]"
    values: list[float] = []
    for index, metric in enumerate(("ttft", "itl")):
        label, limit_ms = label_of_key(_axis_key(axis, metric)), _limit_ms(result, metric)
        own = [(b, c["trade"][f"{metric}_s"] * 1e3) for b, c in zip(budgets, points, strict=True)
               if c["trade"][f"{metric}_s"] is not None]  # fmt: skip
        values += [value for _, value in own] + ([limit_ms] if limit_ms is not None else [])
        colour = PALETTE[index]
        built.add_scatter(
            x=[b for b, _ in own], y=[value for _, value in own], mode="lines+markers", name=label,
            legendgroup=metric, hovertemplate="budget %{x:,}: %{y:,.4g} ms<extra>" + label + "</extra>",
            line={"color": colour, "width": 2, "dash": DASHES[index]},
            marker={"symbol": SYMBOLS[index], "size": 8, "color": colour},
        )  # fmt: skip
        if limit_ms is not None and budgets:
            built.add_scatter(
                x=[budgets[0], budgets[-1]], y=[limit_ms, limit_ms], mode="lines",
                name=f"its limit, {limit_ms:,.4g} ms", legendgroup=metric,
                line={"color": colour, "width": 1.4, "dash": "dot"}, hoverinfo="skip",
            )  # fmt: skip
    axes(built, name, "Latency [ms]", log_x=None)
    if budgets:
        log_axis(built.layout.xaxis, budgets[0], budgets[-1])
        built.update_xaxes(tickvals=budgets, ticktext=[f"{b:,}" for b in budgets])
        log_axis(built.layout.yaxis, *_span(values, None))
    names = _axis_names(axis)
    rows = [[f"{b:,}", _ms(c["trade"]["ttft_s"]), _ms(c["trade"]["itl_s"]), c["trade"]["status"]]
            for b, c in zip(budgets, points, strict=True)]  # fmt: skip
    columns = [
        name,
        *(f"{label} [ms]" for label in names),
        "At this replica count",
    ]
    many = len(budgets) > 1
    note = f"On {_replicas(axis['replicas'])}. A large budget prefills sooner and makes decodes wait longer."
    return packed(built, table={"columns": columns, "rows": rows, "more": 0}, note=note if many else "",
                  empty="" if many else "No other budget has latencies to compare.", title=title)  # fmt: skip


def _but_for_budget(candidate: Result) -> object:
    split = dict(candidate.get("split") or {})
    return seqs_of(candidate), cap_of(candidate), variant_words(candidate), split


# Where the time to the first token goes ------------------------------------------------------------------------


def _ttft_split(result: Result, title: str) -> dict[str, Any]:
    """Means over requests, for the shown configuration on each number of replicas near its own."""
    shown = shown_finalist(result)
    near: list[Result] = []
    if shown is not None and shown["status"] != "saturated":
        known = [p for p in result.get("by_replicas") or [] if p["split_s"]]
        near = [p for p in known if p["replicas"] >= shown["replicas"] - 1]
        near = near or [{"replicas": shown["replicas"], "split_s": shown["behaviour"]["split_s"]}]
    built = go.Figure()
    parts = [part for part in SPLIT if any(_parts(p).get(part[0], 0.0) > 1e-6 for p in near)]
    for key, label, colour, pattern in parts:
        built.add_bar(
            y=[_replicas(p["replicas"]) for p in near], x=[_parts(p).get(key, 0.0) * 1e3 for p in near],
            orientation="h",
            name=label, legendgroup=key, hovertemplate="%{y}: " + label + " %{x:,.4g} ms<extra></extra>",
            marker={"color": colour, "pattern": {"shape": pattern, "fillmode": "overlay", "fgcolor": "#ffffff",
                                                 "fgopacity": 0.55, "size": 7, "solidity": 0.25}},
        )  # fmt: skip
    axes(built, "Mean time to the first token [ms]", "", log_x=None)
    built.update_layout(barmode="stack", bargap=0.35)
    built.update_yaxes(autorange="reversed", title=None)
    columns = ["On", *(f"{label.capitalize()} [ms]" for _, label, _, _ in parts), "Mean TTFT [ms]"]
    rows = [
        [
            _replicas(p["replicas"]),
            *(_ms(_parts(p).get(part[0], 0.0)) for part in parts),
            _ms(sum(_parts(p).values())),
        ]
        for p in near
    ]
    return packed(
        built, table={"columns": columns, "rows": rows, "more": 0}, title=title,
        note="Queue: arrival to the first step. Prefill: the steps that process the prompt." if near else "",
        empty="" if near else "It is saturated: the time to the first token grows without end.",
    )  # fmt: skip


def _parts(point: Result) -> dict[str, float]:
    """Parts that add up: the waits between chunks are part of prefill in the result."""
    split = dict(point["split_s"])
    split["prefill"] -= split["wait_between_chunks"]
    return split


# Words ---------------------------------------------------------------------------------------------------------


def _knob_cells(candidate: Result) -> list[str]:
    cap = cap_of(candidate)
    return [f"{budget_of(candidate):,}", f"{seqs_of(candidate):,}", f"{cap:,}" if cap else "none"]


def _replicas(count: int) -> str:
    return f"{count:,} replica{'s' if count != 1 else ''}"


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:,.4g}"


PLAN_FIGURES: dict[str, Callable[[Result, str], dict[str, Any]]] = {
    "trade": _trade,
    "budget": _budget,
    "replicas": _by_replicas,
    "ttft": _ttft_split,
    "load": load_curve,
    "curves": distributions,
    "schedule": step_chart,
}


def drawable(result: Result) -> list[str]:
    """The figures that have something to show."""
    shown = shown_finalist(result)
    points = sum(1 for c in result["candidates"] if c["trade"] and c["trade"]["ttft_s"] is not None)
    there = {
        "trade": points > 0,
        "budget": points > 1
        and len(result["inputs"]["space"]["budgets_tokens"]) > 1
        and not (shown or {}).get("split"),
        "replicas": any(p["values_s"] for p in result.get("by_replicas") or []),
        "ttft": shown is not None and shown["status"] != "saturated",
        "load": any(p["values_s"] for p in (result.get("breaking") or {"points": []})["points"]),
        "curves": bool(result.get("why")),
        "schedule": bool(result.get("schedule")),
    }
    return [name for name, something in there.items() if something]
