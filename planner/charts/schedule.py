"""Replicas by time of day as steps, over the rate of requests; the constant number that would do as a line."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go

from calibration.charts import MAX_ROWS, NEUTRAL, PALETTE, axes, packed
from planner.schedule_page import clock, need_text

Result = Mapping[str, Any]


def step_chart(result: Result, title: str) -> dict[str, Any]:
    schedule = result.get("schedule")
    columns = ["Period", "Requests [requests]", "Rate [requests/s]", "Replicas [replicas]", "Outcome"]
    if not schedule:
        return packed(go.Figure(), table={"columns": columns, "rows": [], "more": 0}, title=title,
                      empty="The traffic is short, or no schedule was asked for.")  # fmt: skip
    needs, hours = schedule["needs"], schedule["periods"]["by"] == "hours"
    unit, scale = ("h", 3600.0) if hours or needs[-1]["end_s"] > 7200 else ("min", 60.0)
    edges = [each["start_s"] / scale for each in needs] + [needs[-1]["end_s"] / scale]
    built = go.Figure()
    _add_rate(built, needs, edges, unit)
    _add_steps(built, needs, edges, hours)
    if schedule["constant_replicas"] is not None:
        built.add_scatter(
            x=[edges[0], edges[-1]], y=[schedule["constant_replicas"]] * 2, mode="lines",
            name=f"all day: {schedule['constant_replicas']:,}", hoverinfo="name",
            line={"color": NEUTRAL, "width": 1.4, "dash": "dash"},
        )  # fmt: skip
    axes(
        built,
        f"{'Time of day' if hours else 'Since the first request'} [{unit}]",
        "Replicas [replicas]",
        log_x=None,
    )
    most = max([need["need"]["replicas"] or schedule["most_replicas"] for need in needs])
    built.update_yaxes(range=[0, most * 1.18 + 0.2], dtick=1 if most <= 12 else None)
    built.update_layout(
        yaxis2={"overlaying": "y", "side": "right", "rangemode": "tozero", "showgrid": False, "automargin": True,
                "tickmode": "auto", "nticks": 6,
                "title": {"text": "Rate [requests/s]"}}
    )  # fmt: skip
    if hours:
        built.update_xaxes(range=[min(edges[0], 0), 24], dtick=3)
    rows = [
        [clock(each, hours), f"{each['requests']:,}", f"{each['rate_per_s']:,.3g}", need_text(each["need"]),
         each["need"]["reason"] or each["need"]["status"]]
        for each in needs
    ]  # fmt: skip
    note = (
        "Each period simulated by itself, with the ten minutes before it in front; drain and start-up are not in it. "
        "The rate is the traffic's own."
    )
    return packed(
        built, table={"columns": columns, "rows": rows[:MAX_ROWS], "more": max(0, len(rows) - MAX_ROWS)}, note=note,
        title=title,
    )  # fmt: skip


def _add_rate(built: go.Figure, needs: Any, edges: list[float], unit: str) -> None:
    built.add_scatter(
        x=[(a + b) / 2 for a, b in pairwise(edges)], y=[each["rate_per_s"] for each in needs],
        mode="lines+markers", name="rate of requests", yaxis="y2",
        line={"color": PALETTE[1], "width": 1.4, "dash": "dot"},
        marker={"color": PALETTE[1], "size": 4}, hovertemplate="%{y:.3g} requests/s<extra>rate</extra>",
    )  # fmt: skip


def _add_steps(built: go.Figure, needs: Any, edges: list[float], hours: bool) -> None:
    """A gap where no number holds, with a band that says so."""
    counts = [each["need"]["replicas"] for each in needs]
    words = [f"{clock(each, hours)}: {need_text(each['need'])}" for each in needs]
    built.add_scatter(
        x=edges, y=[*counts, counts[-1]], mode="lines", name="replicas",
        line={"color": PALETTE[0], "width": 2.4, "shape": "hv"},
        text=[*words, words[-1]], hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip
    for start, end, count in zip(edges[:-1], edges[1:], counts, strict=True):
        if count is None:
            built.add_shape(type="rect", x0=start, x1=end, y0=0, y1=1, yref="paper", layer="below",
                            fillcolor=NEUTRAL, opacity=0.14, line={"width": 0})  # fmt: skip
            built.add_annotation(x=(start + end) / 2, y=0.5, yref="paper", text="none holds", showarrow=False,
                                 textangle=-90)  # fmt: skip
