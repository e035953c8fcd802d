"""Figures of two traffics over each other: arrivals, gaps, burstiness, lengths. The first is blue and solid, the second
orange and dashed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import plotly.graph_objects as go

from calibration.charts import MAX_ROWS, NEUTRAL, PALETTE, axes, packed, safe
from planner.charts.axes import log_axis
from planner.charts.traffic_lengths import SHARES
from planner.traffic import Traffic
from planner.traffic.curves import arrivals_per_bin, cdf_points, dispersion_curve

Named = tuple[str, Traffic]
LOOKS = ((PALETTE[0], "solid"), (PALETTE[1], "dash"))
BINS = 150


def comparison_figure(name: str, first: Named, second: Named, title: str = "") -> dict[str, Any]:
    """The named figure of COMPARISON_FIGURES. Raises KeyError for another name."""
    return COMPARISON_FIGURES[name](first, second, title)


def _label(name: str, limit: int = 32) -> str:
    return safe(name if len(name) <= limit else f"{name[: limit - 1]}…")


def _counts_note(first: Named, second: Named) -> str:
    return f"{first[1].requests:,} and {second[1].requests:,} requests."


def _arrivals(first: Named, second: Named, title: str) -> dict[str, Any]:
    longest_s = max(first[1].duration_s, second[1].duration_s)
    width_s = _round_width(longest_s / BINS) if longest_s > 0 else 1.0
    unit, scale = ("min", 60.0) if longest_s >= 1200 else ("s", 1.0)
    built = go.Figure()
    columns = [f"From [{unit}]", "First [requests/s]", "Second [requests/s]"]
    rows: dict[float, list[str]] = {}
    for index, (name, traffic) in enumerate((first, second)):
        counts = arrivals_per_bin(traffic.arrival_s, width_s)
        # The last bin is usually a part of one and would look like a drop.
        whole = slice(0, max(1, len(counts.count) - 1))
        start, rate = counts.start_s[whole] / scale, counts.count[whole] / counts.width_s
        colour, dash = LOOKS[index]
        built.add_scatter(
            x=start, y=rate, mode="lines", name=_label(name), legendgroup=f"t{index}",
            line={"color": colour, "width": 2, "dash": dash, "shape": "hv"},
            hovertemplate="from %{x:,.4g} " + unit + ": %{y:,.4g} requests/s<extra>" + _label(name) + "</extra>",
        )  # fmt: skip
        for at, value in zip(start.tolist(), rate.tolist(), strict=True):
            rows.setdefault(at, ["–", "–"])[index] = f"{value:,.4g}"
    axes(built, f"Since the first request [{unit}]", "Arrivals [requests/s]", log_x=None)
    built.update_yaxes(rangemode="tozero")
    listed = [[f"{at:,.6g}", *values] for at, values in sorted(rows.items())]
    table = {"columns": columns, "rows": listed[:MAX_ROWS], "more": max(0, len(listed) - MAX_ROWS)}
    note = f"{_counts_note(first, second)} Means over {width_s:,.4g} s each; a last part of that is left out."
    return packed(built, table=table, note=note, title=title)


def _round_width(width_s: float) -> float:
    """At least this, of 1, 2, 5 x a power of ten."""
    power = 10.0 ** np.floor(np.log10(width_s))
    return float(next(power * m for m in (1, 2, 5, 10) if power * m >= width_s * 0.999))


def _lengths(kind: str) -> Callable[[Named, Named, str], dict[str, Any]]:
    def drawn(first: Named, second: Named, title: str) -> dict[str, Any]:
        tokens = [getattr(traffic, f"{kind}_tokens") for _, traffic in (first, second)]
        built = _cdfs(first, second, [cdf_points(one) for one in tokens], "tokens")
        ends = [float(one.min()) for one in tokens], [float(one.max()) for one in tokens]
        axes(built, f"{kind.capitalize()} [tokens]", "Requests at most this long [%]", log_x=None)
        log_axis(built.layout.xaxis, min(ends[0]), max(*ends[1], 2 * min(ends[0])))
        built.update_yaxes(range=[0, 102])
        rows = _percentiles(tokens, ",.0f")
        columns = ["Percentile", "First [tokens]", "Second [tokens]"]
        note = _counts_note(first, second)
        return packed(built, table={"columns": columns, "rows": rows, "more": 0}, note=note, title=title)

    return drawn


def _gaps(first: Named, second: Named, title: str) -> dict[str, Any]:
    columns = ["Percentile", "First [s]", "Second [s]"]
    gaps = [np.diff(traffic.arrival_s) for _, traffic in (first, second)]
    shown = [np.sort(one[one > 0]) for one in gaps]
    if min(map(len, shown)) < 2:
        return packed(go.Figure(), table={"columns": columns, "rows": [], "more": 0}, title=title,
                      empty="Too few different arrival times to compare their gaps.")  # fmt: skip
    curves = []
    for all_s, positive_s in zip(gaps, shown, strict=True):
        at = np.unique(np.rint(np.linspace(0, len(positive_s) - 1, 400)).astype(np.int64))
        curves.append((positive_s[at], (len(all_s) - len(positive_s) + at + 1) / len(all_s)))
    built = _cdfs(first, second, curves, "s")
    axes(built, "Gap between two requests [s]", "Gaps at most this long [%]", log_x=None)
    least = max(min(float(x[0]) for x, _ in curves), min(float(one.mean()) for one in gaps) * 1e-5)
    log_axis(built.layout.xaxis, least, max(float(x[-1]) for x, _ in curves))
    built.update_yaxes(range=[0, 102])
    note = f"{len(gaps[0]):,} and {len(gaps[1]):,} gaps."
    table = {"columns": columns, "rows": _percentiles(gaps, ",.4g"), "more": 0}
    return packed(built, table=table, note=note, title=title)


def _cdfs(first: Named, second: Named, curves: list[Any], unit: str) -> go.Figure:
    built = go.Figure()
    for index, ((name, _), (x, share)) in enumerate(zip((first, second), curves, strict=True)):
        colour, dash = LOOKS[index]
        built.add_scatter(
            x=np.concatenate(([x[0]], x)), y=np.concatenate(([0.0], share * 100)), mode="lines", name=_label(name),
            legendgroup=f"t{index}", line={"color": colour, "width": 2, "dash": dash, "shape": "hv"},
            hovertemplate="%{y:.4g} %: at most %{x:,.4g} " + unit + "<extra>" + _label(name) + "</extra>",
        )  # fmt: skip
    return built


def _percentiles(samples: list[Any], form: str) -> list[list[str]]:
    values = [np.percentile(one, SHARES).tolist() for one in samples]
    return [
        [f"p{share:g}" if share < 100 else "largest", format(a, form), format(b, form)]
        for share, a, b in zip(SHARES, *values, strict=True)
    ]


def _burstiness(first: Named, second: Named, title: str) -> dict[str, Any]:
    columns = ["Traffic", "Window [s]", "Index of dispersion [variance / mean]"]
    built = go.Figure()
    rows: list[list[str]] = []
    ends: list[float] = []
    height = [1.0]
    for index, (name, traffic) in enumerate((first, second)):
        widths_s, values = dispersion_curve(traffic.arrival_s)
        known = np.isfinite(values) & (values > 0)
        widths_s, values = widths_s[known], values[known]
        if not len(values):
            continue
        colour, dash = LOOKS[index]
        built.add_scatter(
            x=widths_s, y=values, mode="lines+markers", name=_label(name), legendgroup=f"t{index}",
            line={"color": colour, "width": 2, "dash": dash},
            marker={"color": colour, "size": 6, "symbol": ("circle", "square")[index]},
            hovertemplate="windows of %{x:.3g} s: %{y:.3g}<extra>" + _label(name) + "</extra>",
        )  # fmt: skip
        ends += [float(widths_s[0]), float(widths_s[-1])]
        height += [float(values.min()), float(values.max())]
        rows += [[("first", "second")[index], f"{w:,.3g}", f"{v:,.3g}"]
                 for w, v in zip(widths_s.tolist(), values.tolist(), strict=True)]  # fmt: skip
    table = {"columns": columns, "rows": rows, "more": 0}
    if not rows:
        return packed(built, table=table, title=title, empty="Too few requests to say how bursty they are.")
    built.add_scatter(
        x=[min(ends), max(ends)], y=[1.0, 1.0], mode="lines", name="Poisson: 1 on every scale", legendgroup="poisson",
        line={"color": NEUTRAL, "width": 1.4, "dash": "dot"}, hoverinfo="skip",
    )  # fmt: skip
    axes(built, "Length of the window [s]", "Index of dispersion [variance / mean]", log_x=None)
    log_axis(built.layout.xaxis, min(ends), max(ends))
    log_axis(built.layout.yaxis, min(height), max(*height, 1.5 * min(height)))
    return packed(built, table=table, note=_counts_note(first, second), title=title)


COMPARISON_FIGURES: dict[str, Callable[[Named, Named, str], dict[str, Any]]] = {
    "arrivals": _arrivals,
    "gaps": _gaps,
    "burstiness": _burstiness,
    "prompts": _lengths("prompt"),
    "outputs": _lengths("output"),
}
