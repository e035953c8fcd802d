"""Figures of a closer look at a plan: what breaks first as the load grows, and whole distributions with their limits.
They draw the stored result (planner/search/closer.py); seconds become ms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from calibration.charts import DASHES, MAX_ROWS, NEUTRAL, PALETTE, SYMBOLS, axes, packed
from planner.charts.axes import log_axis
from planner.objective_columns import cell_of, column_of, key_of, label_of, text_of

Result = Mapping[str, Any]
LEAST_S = 1e-7


def load_curve(result: Result, title: str) -> dict[str, Any]:
    """Each objective as a share of its limit over the load; below 100 % it holds."""
    breaking = result.get("breaking") or {"points": []}
    points = breaking["points"]
    objectives = result["summary"]["objectives"]
    served = [p for p in points if p["values_s"]]
    built = go.Figure()
    shares: list[float] = []
    for index, o in enumerate(objectives):
        key, label = key_of(o), label_of(o)
        there = [p for p in served if key in p["values_s"]]
        own = [p["values_s"][key] / o["limit"] * 100 for p in there]
        shares += own
        which = index % len(PALETTE)
        words = [
            f"at {p['load']:.4g} times the rate: {label} {text_of(o, p['values_s'][key])}"
            f"<br>limit {text_of(o, o['limit'])}" for p in there
        ]  # fmt: skip
        built.add_scatter(
            x=[p["load"] for p in there], y=own, mode="lines+markers", name=label, legendgroup=key, text=words,
            hovertemplate="%{text}<extra></extra>", line={"color": PALETTE[which], "width": 2, "dash": DASHES[which]},
            marker={"symbol": SYMBOLS[which], "size": 7, "color": PALETTE[which]},
        )  # fmt: skip
    axes(built, "Load [times the traffic's rate]", "Share of its limit [%]", log_x=None)
    line = {"color": NEUTRAL, "width": 1.4, "dash": "dash"}
    built.add_shape(type="line", x0=0, x1=1, xref="paper", y0=100, y1=100, line=line)
    built.add_scatter(x=[None], y=[None], mode="lines", name="the limit: 100 %", line=line)
    saturated = [p["load"] for p in points if not p["values_s"]]
    if saturated:
        built.add_shape(type="rect", x0=min(saturated), x1=max(p["load"] for p in points), y0=0, y1=1, yref="paper",
                        layer="below", fillcolor=NEUTRAL, opacity=0.14, line={"width": 0})  # fmt: skip
        built.add_annotation(x=min(saturated), y=0.5, yref="paper", xanchor="left", xshift=4, text="saturated",
                             showarrow=False)  # fmt: skip
    _mark(built, result, breaking)
    if shares:
        log_axis(built.layout.yaxis, min(*shares, 100.0), max(*shares, 100.0))
    columns = ["Load [times the rate]", *(column_of(o) for o in objectives), "Busy [%]", "Outcome"]
    rows = [
        [f"{p['load']:.4g}", *(cell_of(o, p["values_s"].get(key_of(o))) for o in objectives),
         f"{p['utilisation'] * 100:.1f}", p["status"]]
        for p in points
    ]  # fmt: skip
    return packed(
        built, table={"columns": columns, "rows": rows[:MAX_ROWS], "more": max(0, len(rows) - MAX_ROWS)},
        note="The same requests, arriving faster or slower. Below 100 % an objective holds." if points else "",
        empty="" if points else "The search was stopped before this was computed.", title=title,
    )  # fmt: skip


def _mark(built: go.Figure, result: Result, breaking: Result) -> None:
    """Where the plan stands and where it breaks."""
    conditions = result["inputs"].get("conditions") or {}
    load = conditions.get("rate_multiplier", 1.0) * (1.0 + conditions.get("growth", 0.0))
    marks = [(load * (1.0 + conditions.get("headroom", 0.0)), "planned for", 0.0, "bottom")]
    if breaking.get("breaks_at"):
        marks.append((breaking["breaks_at"], "breaks", 1.0, "top"))
    for x, text, y, anchor in marks:
        built.add_shape(type="line", x0=x, x1=x, y0=0, y1=1, yref="paper", layer="below",
                        line={"color": NEUTRAL, "width": 1, "dash": "dot"})  # fmt: skip
        built.add_annotation(
            x=x, y=y, yref="paper", yanchor=anchor, xanchor="left", xshift=4, text=text, showarrow=False
        )


def distributions(result: Result, title: str) -> dict[str, Any]:
    """The cumulative distribution of every metric that has an objective, with its limit; the other deployment thin."""
    why, other = result.get("why"), result.get("other_why")
    objectives = result["summary"]["objectives"]
    classed = any(o.get("request_class") for o in objectives)
    built = go.Figure()
    values: list[float] = []
    metrics = list(dict.fromkeys(metric for o in objectives for metric in (o.get("limits") or [o["metric"]])))
    for index, metric in enumerate(metrics):
        colour = PALETTE[index % len(PALETTE)]
        for source, name, width, dash in ((why, metric.upper(), 2.2, "solid"),
                                          (other, f"{metric.upper()}, the other deployment", 1.2, "dot")):  # fmt: skip
            if not source or metric not in source["curves_s"]:
                continue
            x = [max(value, LEAST_S) * 1e3 for value in source["curves_s"][metric]]
            values += x
            built.add_scatter(
                x=x, y=source["curve_percentiles"], mode="lines", name=name, legendgroup=name,
                hovertemplate="p%{y:g}: %{x:,.4g} ms<extra>" + name + "</extra>",
                line={"color": colour, "width": width, "dash": dash},
            )  # fmt: skip
        # The curves are of all requests: limits of classes, or on several metrics at once, are no points on them.
        for o in (o for o in objectives if o["metric"] == metric and not classed):
            values.append(o["limit"] * 1e3)
            label = f"{label_of(o)} ≤ {o['limit'] * 1e3:,.4g} ms"
            built.add_scatter(
                x=[o["limit"] * 1e3], y=[o["percentile"]], mode="markers", name=label, hoverinfo="name",
                marker={"symbol": "line-ns-open", "size": 16, "color": colour, "line": {"width": 3, "color": colour}},
            )  # fmt: skip
    axes(built, "Latency [ms]", "Share that is no longer [%]", log_x=None)
    if values:
        log_axis(built.layout.xaxis, min(values), max(values))
    built.update_yaxes(range=[0, 101])
    shown = [p for p in (50.0, 90.0, 95.0, 99.0, 99.9) if why and p in why["curve_percentiles"]]
    rows = [
        [metric.upper(), *(_ms(why["curves_s"][metric][why["curve_percentiles"].index(p)]) for p in shown)]
        for metric in metrics if why and metric in why["curves_s"]
    ]  # fmt: skip
    return packed(
        built, table={"columns": ["Metric", *(f"p{p:g} [ms]" for p in shown)], "rows": rows, "more": 0}, title=title,
        note="A curve that passes left of and above its mark meets the objective." if why else "",
        empty="" if why else "It is saturated, or the search was stopped before this was computed.",
    )  # fmt: skip


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:,.4g}"
