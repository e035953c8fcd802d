"""Figures of a traffic: when requests arrive, on two time scales; how bursty they are on every time scale; how
long the gaps are. Those of lengths, classes and shared prompts: traffic_lengths.py. The arrays come from
planner/traffic/curves.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import plotly.graph_objects as go

from calibration.charts import MAX_ROWS, NEUTRAL, PALETTE, axes, packed
from planner.charts import traffic_lengths
from planner.charts.axes import log_axis
from planner.traffic import Traffic
from planner.traffic.curves import (
    CountsOverTime,
    arrivals_per_bin,
    burst_counts,
    burst_width_s,
    dispersion_curve,
    interarrival_cv,
)

MAX_BARS = 600
BURST_BARS = 300
BURST_PEAK = 20  # requests in the busiest bar: with fewer, chance alone shapes the picture
SHORT_S = 600.0  # a trace below this is counted in bins finer than a minute
SHARES = traffic_lengths.SHARES


def traffic_figure(name: str, traffic: Traffic, title: str = "") -> dict[str, Any]:
    """The named figure of TRAFFIC_FIGURES as JSON-safe objects. Raises KeyError for another name."""
    return TRAFFIC_FIGURES[name](traffic, title)


def _arrivals(traffic: Traffic, title: str) -> dict[str, Any]:
    width_s = 60.0 if traffic.duration_s >= SHORT_S else 10.0 if traffic.duration_s >= 60 else 1.0
    counts = arrivals_per_bin(traffic.arrival_s, width_s)
    if len(counts.count) > MAX_BARS:
        counts = arrivals_per_bin(traffic.arrival_s, width_s * -(-len(counts.count) // MAX_BARS))
    return _counts(counts, title, f"The last bar may cover less than {_seconds(counts.width_s)}.")


def _bursts(traffic: Traffic, title: str) -> dict[str, Any]:
    widest_s = burst_width_s(traffic.arrival_s)
    for width_s in (widest_s / 100, widest_s / 10, widest_s):
        counts = burst_counts(traffic.arrival_s, BURST_BARS, width_s)
        if counts.count.max() >= BURST_PEAK:
            break
    return _counts(counts, title, "The stretch around the busiest moment.")


def _counts(counts: CountsOverTime, title: str, note: str) -> dict[str, Any]:
    built = go.Figure()
    by_minutes = counts.start_s[-1] >= 1200
    unit, scale = ("min", 60.0) if by_minutes else ("s", 1.0)
    built.add_bar(
        x=(counts.start_s + counts.width_s / 2) / scale, y=counts.count, width=counts.width_s / scale,
        marker={"color": PALETTE[0], "line": {"width": 0}}, customdata=counts.start_s / scale,
        hovertemplate="from %{customdata:,.4g} " + unit + ": %{y:,} requests<extra></extra>", showlegend=False,
    )  # fmt: skip
    per = _seconds(counts.width_s)
    axes(built, f"Since the first request [{unit}]", f"Arrivals [requests per {per}]", log_x=None)
    built.update_layout(bargap=0)
    built.update_yaxes(rangemode="tozero")
    mean, most = float(counts.count.mean()), int(counts.count.max())
    busiest = float(counts.start_s[int(counts.count.argmax())] / scale)
    rows = [[f"{start:,.4f}".rstrip("0").rstrip("."), f"{count:,}"] for start, count in
            zip((counts.start_s / scale).tolist(), counts.count.tolist(), strict=True)]  # fmt: skip
    table = {"columns": [f"From [{unit}]", "Arrivals [requests]"], "rows": rows[:MAX_ROWS],
             "more": max(0, len(rows) - MAX_ROWS)}  # fmt: skip
    shown = int(counts.count.sum())
    words = f"{shown:,} requests, {per} a bar. Mean {mean:,.3g}, most {most:,} (from {busiest:,.4g} {unit}). {note}"
    return packed(built, table=table, note=words, title=title)


def _gaps(traffic: Traffic, title: str) -> dict[str, Any]:
    columns = ["Percentile", "Gap [s]", "Poisson gap [s]"]
    gaps_s = np.diff(traffic.arrival_s)
    positive_s = np.sort(gaps_s[gaps_s > 0])
    built = go.Figure()
    if len(positive_s) < 2:
        return packed(built, table={"columns": columns, "rows": [], "more": 0}, title=title,
                      empty="Too few different arrival times to compare their gaps.")  # fmt: skip
    mean_s, together = float(gaps_s.mean()), len(gaps_s) - len(positive_s)
    at = np.unique(np.rint(np.linspace(0, len(positive_s) - 1, 400)).astype(np.int64))
    x, share = positive_s[at], (together + at + 1) / len(gaps_s)
    low, high = float(max(x[0], mean_s * 1e-6)), float(max(x[-1], 5 * mean_s))
    built.add_scatter(
        x=x, y=share * 100, mode="lines", name="this traffic", legendgroup="own",
        line={"color": PALETTE[0], "width": 2, "shape": "hv"},
        hovertemplate="%{y:.4g} % of gaps: at most %{x:.3g} s<extra></extra>",
    )  # fmt: skip
    law_s = np.geomspace(low, high, 200)
    built.add_scatter(
        x=law_s, y=-np.expm1(-law_s / mean_s) * 100, mode="lines", name="Poisson at the same rate",
        legendgroup="poisson", line={"color": NEUTRAL, "width": 1.4, "dash": "dash"}, hoverinfo="skip",
    )  # fmt: skip
    axes(built, "Gap between two requests [s]", "Gaps at most this long [%]", log_x=None)
    log_axis(built.layout.xaxis, low, high)
    built.update_yaxes(range=[0, 102])
    rows = [
        [f"p{p:g}" if p < 100 else "largest", f"{own:,.4g}", f"{-mean_s * np.log1p(-p / 100):,.4g}" if p < 100 else "–"]
        for p, own in zip(SHARES, np.percentile(gaps_s, SHARES).tolist(), strict=True)
    ]  # fmt: skip
    cv = round(interarrival_cv(traffic.arrival_s) or 0.0, 9)
    note = (
        f"{len(gaps_s):,} gaps, mean {mean_s:,.3g} s, CV {cv:,.3g} (Poisson: 1); "
        f"{together / len(gaps_s) * 100:.1f} % are 0: requests on one stamp."
    )
    return packed(built, table={"columns": columns, "rows": rows, "more": 0}, note=note, title=title)


def _burstiness(traffic: Traffic, title: str) -> dict[str, Any]:
    widths_s, index = dispersion_curve(traffic.arrival_s)
    known = np.isfinite(index) & (index > 0)
    widths_s, index = widths_s[known], index[known]
    columns = ["Window [s]", "Index of dispersion [variance / mean]"]
    built = go.Figure()
    if not len(index):
        return packed(built, table={"columns": columns, "rows": [], "more": 0}, title=title,
                      empty="Too few requests to say how bursty they are.")  # fmt: skip
    built.add_scatter(
        x=widths_s, y=index, mode="lines+markers", name="this traffic", legendgroup="own",
        line={"color": PALETTE[0], "width": 2}, marker={"color": PALETTE[0], "size": 6},
        hovertemplate="windows of %{x:.3g} s: %{y:.3g}<extra></extra>",
    )  # fmt: skip
    built.add_scatter(
        x=[widths_s[0], widths_s[-1]], y=[1.0, 1.0], mode="lines", name="Poisson: 1 on every scale",
        legendgroup="poisson", line={"color": NEUTRAL, "width": 1.4, "dash": "dash"}, hoverinfo="skip",
    )  # fmt: skip
    low, high = float(widths_s[0]), float(widths_s[-1])
    axes(
        built,
        "Length of the window [s]",
        "Index of dispersion [variance / mean]",
        log_x=(low, high),
        binary=False,
    )
    log_axis(built.layout.yaxis, float(min(index.min(), 1.0)), float(max(index.max(), 1.0)))
    rows = [[f"{w:,.3g}", f"{i:,.3g}"] for w, i in zip(widths_s.tolist(), index.tolist(), strict=True)]
    note = "Counts of arrivals in windows: above 1 they swing more than chance alone would make them."
    note = f"{traffic.requests:,} requests. {note}"
    return packed(built, table={"columns": columns, "rows": rows, "more": 0}, note=note, title=title)


def _seconds(width_s: float) -> str:
    return f"{width_s / 60:g} min" if width_s >= 60 else f"{width_s:g} s"


TRAFFIC_FIGURES: dict[str, Callable[[Traffic, str], dict[str, Any]]] = {
    "arrivals": _arrivals,
    "bursts": _bursts,
    "lengths": traffic_lengths.lengths,
    "burstiness": _burstiness,
    "gaps": _gaps,
    "dependence": traffic_lengths.dependence,
    "reuse": traffic_lengths.reuse,
    "classes": traffic_lengths.classes,
}
