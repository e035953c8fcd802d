"""Figures of a traffic's requests: how long prompts and outputs are, how they depend on each other, what kinds there
are, and how much of the prompts a prefix cache of each size would find. Arrays from planner/traffic."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from calibration.charts import MAX_ROWS, NEUTRAL, PALETTE, axes, packed, safe
from planner.charts.axes import log_axis
from planner.traffic import Traffic
from planner.traffic.curves import cdf_points
from planner.traffic.dependence import joint_density, rank_correlation
from planner.traffic.reuse import reuse_curve

SHARES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)
MOST_CLASSES = 12


def lengths(traffic: Traffic, title: str) -> dict[str, Any]:
    built = go.Figure()
    rows: dict[float, list[str]] = {share: [f"p{share:g}" if share < 100 else "largest"] for share in SHARES}
    longest = 1.0
    for label, tokens, colour, dash in (
        ("prompt", traffic.prompt_tokens, PALETTE[0], "solid"),
        ("output", traffic.output_tokens, PALETTE[1], "dot"),
    ):
        x, share = cdf_points(tokens)
        longest = max(longest, float(x[-1]))
        built.add_scatter(
            x=np.concatenate(([x[0]], x)), y=np.concatenate(([0.0], share * 100)), mode="lines", name=label,
            legendgroup=label, line={"color": colour, "width": 2, "dash": dash, "shape": "hv"},
            hovertemplate="%{y:.4g} % of requests: at most %{x:,} tokens<extra>" + label + "</extra>",
        )  # fmt: skip
        for wanted, value in zip(SHARES, np.percentile(tokens, SHARES).tolist(), strict=True):
            rows[wanted].append(f"{value:,.0f}")
    axes(built, "Length [tokens]", "Requests at most this long [%]", log_x=(1.0, longest), binary=False)
    built.update_yaxes(range=[0, 102])
    columns = ["Percentile", "Prompt [tokens]", "Output [tokens]"]
    note = f"{_requests(traffic.requests)}. Percentiles interpolate linearly between requests."
    return packed(
        built, table={"columns": columns, "rows": list(rows.values()), "more": 0}, note=note, title=title
    )


def dependence(traffic: Traffic, title: str) -> dict[str, Any]:
    found = joint_density(traffic.prompt_tokens, traffic.output_tokens)
    middle, outputs = (
        np.sqrt(edges[:-1] * (edges[1:] - 1)) for edges in (found.prompt_edges, found.output_edges)
    )
    column, row = np.nonzero(found.count)
    count = found.count[column, row]
    weight = np.log1p(count) / np.log1p(count.max())
    built = go.Figure()
    # Not a heatmap: plotly sets a style attribute on its image, which the content security policy forbids.
    built.add_scatter(
        x=middle[column], y=outputs[row], mode="markers", name="requests of about these lengths",
        legendgroup="cells", customdata=count, marker={"color": PALETTE[0], "symbol": "circle",
            "size": (2.5 + 7.5 * weight).tolist(), "opacity": (0.25 + 0.65 * weight).tolist(), "line": {"width": 0}},
        hovertemplate="prompt about %{x:,.0f}, output about %{y:,.0f} tokens: %{customdata:,} requests<extra></extra>",
    )  # fmt: skip
    known = np.isfinite(found.median_output)
    built.add_scatter(
        x=middle[known], y=found.median_output[known], mode="lines", legendgroup="median",
        name="median output for prompts of about this length", line={"color": PALETTE[1], "width": 2},
        hovertemplate="prompts of about %{x:,.0f}: median output %{y:,.0f} tokens<extra></extra>",
    )  # fmt: skip
    axes(built, "Prompt [tokens]", "Output [tokens]", log_x=None)
    log_axis(built.layout.xaxis, float(found.prompt_edges[0]), float(found.prompt_edges[-1]))
    log_axis(built.layout.yaxis, float(found.output_edges[0]), float(found.output_edges[-1]))
    coefficient = rank_correlation(traffic.prompt_tokens, traffic.output_tokens)
    words = "does not exist: one of the two never changes" if coefficient is None else f"{coefficient:+.2f}"
    rows = [
        [f"{low:,.0f} to {high - 1:,.0f}", f"{requests:,}", f"{median:,.0f}"]
        for low, high, requests, median in zip(
            found.prompt_edges[:-1].tolist(), found.prompt_edges[1:].tolist(),
            found.count.sum(axis=1).tolist(), found.median_output.tolist(), strict=True)
        if requests
    ]  # fmt: skip
    columns = ["Prompt [tokens]", "Requests [count]", "Median output [tokens]"]
    note = (
        f"{_requests(traffic.requests)}. Rank correlation (Spearman) {words}: 0 is none, ±1 complete. "
        f"The larger and darker a mark, the more requests (most: {int(count.max()):,})."
    )
    return packed(built, table={"columns": columns, "rows": rows, "more": 0}, note=note, title=title)


def reuse(traffic: Traffic, title: str) -> dict[str, Any]:
    hashes = traffic.prefix_hashes
    found = None if hashes is None else reuse_curve(hashes)
    columns = ["Cache [blocks]", "Cache [tokens]", "Blocks found [%]"]
    built = go.Figure()
    if found is None or hashes is None:
        table = {"columns": columns, "rows": [], "more": 0}
        return packed(
            built, table=table, title=title, empty="This traffic says nothing about shared prompts."
        )
    size = hashes.block_tokens
    unit = "blocks" if size is None else "tokens"
    x = found.cache_blocks * (size or 1)
    percent = found.hit_rate * 100
    built.add_scatter(
        x=x, y=percent, mode="lines", name="prefix cache of this size", legendgroup="own",
        line={"color": PALETTE[0], "width": 2},
        hovertemplate="%{x:,} " + unit + ": %{y:.3g} % of blocks found<extra></extra>",
    )  # fmt: skip
    built.add_scatter(
        x=[int(x[0]), int(x[-1])], y=[float(percent[-1])] * 2, mode="lines", name="endless cache",
        legendgroup="endless", line={"color": NEUTRAL, "width": 1.4, "dash": "dash"}, hoverinfo="skip",
    )  # fmt: skip
    axes(built, f"Prefix cache [{unit}]", "Blocks found in the cache [%]", log_x=None)
    log_axis(built.layout.xaxis, float(x[0]), float(max(x[-1], 2 * x[0])))
    built.update_xaxes(ticktext=[_short(tick) for tick in built.layout.xaxis.tickvals])
    built.update_yaxes(range=[0, max(1.0, float(percent[-1]) * 1.08)])
    rows = [
        [f"{blocks:,}", f"{blocks * size:,}" if size else "–", f"{share:.2f}"]
        for blocks, share in zip(found.cache_blocks.tolist(), percent.tolist(), strict=True)
    ]
    part = "" if found.requests == traffic.requests else " (the first ones; the rest is left out here)"
    note = (
        f"{_requests(found.requests)}{part}, {found.blocks:,} blocks, {found.distinct:,} different"
        f"{f', of {size:,} tokens' if size else ''}. One cache for all, least recently used leaves first, empty at "
        "the start; a block counts when all blocks before it in its prompt are there too."
    )
    table = {"columns": columns, "rows": rows[:MAX_ROWS], "more": max(0, len(rows) - MAX_ROWS)}
    return packed(built, table=table, note=note, title=title)


def _short(number: float) -> str:
    """For the marks of an axis: 300, 10 k, 3 M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            return f"{number / (1e3 if letter == 'k' else size):,.4g} {letter}"
    return f"{number:,.4g}"


def classes(traffic: Traffic, title: str) -> dict[str, Any]:
    columns = ["Class", "Requests [count]", "Share [%]", "Prompt p50 [tokens]", "Prompt p99 [tokens]",
               "Output p50 [tokens]", "Output p99 [tokens]"]  # fmt: skip
    built = go.Figure()
    if traffic.request_class is None:
        table = {"columns": columns, "rows": [], "more": 0}
        return packed(built, table=table, title=title, empty="All requests of this traffic are of one kind.")
    counts = np.bincount(traffic.request_class, minlength=len(traffic.class_names))
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] > 0]
    rows, names, quantiles = [], [], []
    for code in order.tolist()[:MAX_ROWS]:
        own = traffic.request_class == code
        prompt = np.percentile(traffic.prompt_tokens[own], [50, 99]).tolist()
        output = np.percentile(traffic.output_tokens[own], [50, 99]).tolist()
        name = traffic.class_names[code]
        rows.append([name, f"{counts[code]:,}", f"{counts[code] / traffic.requests:.1%}".rstrip("%"),
                     *(f"{value:,.0f}" for value in (*prompt, *output))])  # fmt: skip
        names.append(safe(name if len(name) <= 24 else f"{name[:23]}…"))
        quantiles.append((prompt, output))
    shown = slice(0, MOST_CLASSES)
    for part, label, colour, symbol in (
        (0, "prompt", PALETTE[0], "circle"),
        (1, "output", PALETTE[1], "square"),
    ):
        p50 = [q[part][0] for q in quantiles[shown]]
        p99 = [q[part][1] for q in quantiles[shown]]
        built.add_scatter(
            x=p50, y=names[shown], mode="markers", name=f"{label}: median, line to p99", legendgroup=label,
            marker={"color": colour, "symbol": symbol, "size": 8},
            error_x={"type": "data", "symmetric": False, "array": [b - a for a, b in zip(p50, p99, strict=True)],
                     "arrayminus": [0] * len(p50), "thickness": 1.4, "width": 4},
            hovertemplate="%{y}: median " + label + " %{x:,.0f} tokens<extra></extra>",
        )  # fmt: skip
    axes(built, "Length [tokens]", "Class", log_x=None)
    ends = [value for prompt, output in quantiles[shown] for value in (*prompt, *output)]
    log_axis(built.layout.xaxis, min(ends), max(*ends, 2 * min(ends)))
    built.update_xaxes(ticktext=[_short(tick) for tick in built.layout.xaxis.tickvals])
    built.update_yaxes(title=None, type="category", autorange="reversed")
    more = len(order) - MOST_CLASSES
    note = f"{_requests(traffic.requests)} in {len(order):,} classes, largest first"
    note += f"; the {more:,} smallest are in the table only." if more > 0 else "."
    table = {"columns": columns, "rows": rows, "more": max(0, len(order) - MAX_ROWS)}
    return packed(built, table=table, note=note, title=title)


def _requests(count: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'}"
