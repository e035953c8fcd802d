"""Two to four plans over each other: the distributions of their shown configurations, a figure a metric, every plan
in a colour and a dash of its own, its limits as marks on its own curve's colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from calibration.charts import DASHES, PALETTE, SYMBOLS, axes, packed, safe
from planner.charts.axes import log_axis
from planner.objective_columns import label_of
from planner.search.objectives import METRICS

Result = Mapping[str, Any]
Named = tuple[str, Result]
LEAST_S = 1e-6
TABLED = (50.0, 90.0, 95.0, 99.0, 99.9)


def overlaid(metric: str, plans: Sequence[Named], title: str = "") -> dict[str, Any]:
    """The figure of one of METRICS. Raises KeyError for another name."""
    if metric not in METRICS:
        raise KeyError(metric)
    built = go.Figure()
    values: list[float] = []
    rows: list[list[str]] = []
    for index, (name, result) in enumerate(plans):
        label = f"{index + 1}: {_short(name)}"
        why = result.get("why") or {}
        curve = why.get("curves_s", {}).get(metric)
        if curve:
            values += _add_curve(built, index, label, curve, why["curve_percentiles"])
            at = dict(zip(why["curve_percentiles"], curve, strict=True))
            rows.append([label, *(f"{at[p] * 1e3:,.4g}" for p in TABLED)])
        else:
            rows.append([label, *("–" for _ in TABLED)])
        values += _add_limits(built, index, label, metric, result)
    axes(built, f"{metric.upper()} [ms]", "Share that is no longer [%]", log_x=None)
    if values:
        log_axis(built.layout.xaxis, min(values), max(*values, 1.5 * min(values)))
    built.update_yaxes(range=[0, 101])
    drawn = any(row[1] != "–" for row in rows)
    columns = ["Plan", *(f"p{p:g} [ms]" for p in TABLED)]
    note = "Of each plan's shown configuration at the load it must carry. A curve left of and above its mark meets it."
    return packed(
        built, table={"columns": columns, "rows": rows, "more": 0}, note=note if drawn else "", title=title,
        empty="" if drawn else "None of them has a distribution to show: saturated, or stopped before.",
    )  # fmt: skip


def metrics_of(results: Sequence[Result]) -> list[str]:
    """Those that have an objective in any of them."""
    asked = {
        m for r in results for o in r["summary"]["objectives"] for m in (o.get("limits") or [o["metric"]])
    }
    return [metric for metric in METRICS if metric in asked]


def _add_curve(
    built: go.Figure, index: int, label: str, curve: Sequence[float], percentiles: Sequence[float]
) -> list[float]:
    x = [max(value, LEAST_S) * 1e3 for value in curve]
    built.add_scatter(
        x=x, y=list(percentiles), mode="lines", name=label, legendgroup=f"p{index}",
        line={"color": PALETTE[index], "width": 2, "dash": DASHES[index]},
        hovertemplate="p%{y:g}: %{x:,.4g} ms<extra>" + label + "</extra>",
    )  # fmt: skip
    return x


def _add_limits(built: go.Figure, index: int, label: str, metric: str, result: Result) -> list[float]:
    limits: list[float] = []
    for o in result["summary"]["objectives"]:
        # The curves are of all requests: limits of classes, or on several metrics at once, are no points on them.
        if o["metric"] != metric or o.get("request_class"):
            continue
        limit_ms = o["limit"] * 1e3
        limits.append(limit_ms)
        said = f"{index + 1}: {label_of(o)} ≤ {limit_ms:,.4g} ms"
        colour = PALETTE[index]
        built.add_scatter(
            x=[limit_ms, limit_ms], y=[0, o["percentile"]], mode="lines", legendgroup=f"p{index}", showlegend=False,
            line={"color": colour, "width": 1.2, "dash": "dot"}, hoverinfo="skip", name=said,
        )  # fmt: skip
        built.add_scatter(
            x=[limit_ms], y=[o["percentile"]], mode="markers", name=said, hoverinfo="name", legendgroup=f"p{index}",
            marker={"symbol": f"{SYMBOLS[index]}-open", "size": 11, "color": colour,
                    "line": {"width": 2.4, "color": colour}},
        )  # fmt: skip
    return limits


def _short(name: str, limit: int = 28) -> str:
    return safe(name if len(name) <= limit else f"{name[: limit - 1]}…")
