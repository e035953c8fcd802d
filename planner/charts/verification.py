"""Figures of a verification: what was predicted over what was measured, and where steps were mispriced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from calibration.charts import DASHES, PALETTE, SYMBOLS, axes, packed
from planner.charts.axes import log_axis

Result = Mapping[str, Any]


def verification_figure(name: str, result: Result, title: str = "") -> dict[str, Any]:
    """The named figure of VERIFICATION_FIGURES as JSON-safe objects. Raises KeyError for another name."""
    return VERIFICATION_FIGURES[name](result, title)


def verification_figures(
    result: Result | None, named: Sequence[tuple[str, str, str]]
) -> list[tuple[str, str, str]]:
    """Those of `named` (name, title, what it shows) for which the result has something to draw."""
    if not result:
        return []
    there = {
        "ttft": "curves" in result,
        "itl": "curves" in result,
        "residuals": bool(result.get("residuals")),
    }
    there["mixed"] = bool(result.get("served"))
    return [each for each in named if there.get(each[0])]


def _curves(metric: str) -> Callable[[Result, str], dict[str, Any]]:
    label = metric.upper()

    def drawn(result: Result, title: str) -> dict[str, Any]:
        curves = result["curves"][metric]
        built = go.Figure()
        if not curves["measured_s"]:
            return packed(built, table={"columns": [], "rows": [], "more": 0}, empty=f"No {label} was measured.",
                          title=title)  # fmt: skip
        share = np.linspace(0, 100, len(curves["measured_s"]))
        for i, (name, key) in enumerate((("measured", "measured_s"), ("predicted", "predicted_s"))):
            built.add_scatter(
                x=[value * 1e3 for value in curves[key]], y=share, mode="lines", name=name,
                line={"color": PALETTE[i], "dash": DASHES[i], "shape": "hv"},
                hovertemplate=f"{name}: %{{y:.1f}} % within %{{x:.4g}} ms<extra></extra>",
            )  # fmt: skip
        axes(built, f"{label} [ms]", "share [%]", log_x=None)
        everything = [value * 1e3 for key in curves for value in curves[key] if value > 0]
        log_axis(built.layout.xaxis, min(everything), max(everything))
        rows = [
            [
                f"p{p:g}",
                *(
                    round(float(np.percentile(curves[key], p)) * 1e3, 3)
                    for key in ("measured_s", "predicted_s")
                ),
            ]
            for p in (10, 25, 50, 75, 90, 95, 99)
        ]
        table = {"columns": ["percentile", "measured [ms]", "predicted [ms]"], "rows": rows, "more": 0}
        return packed(built, table=table, note=f"{result['requests']:,} requests.", title=title)

    return drawn


def _residuals(result: Result, title: str) -> dict[str, Any]:
    built = go.Figure()
    kinds = sorted({r["kind"] for r in result["residuals"]})
    for i, kind in enumerate(kinds):
        own = [r for r in result["residuals"] if r["kind"] == kind]
        built.add_scatter(
            x=[(r["tokens_from"] * r["tokens_to"]) ** 0.5 for r in own], y=[100 * r["error"] for r in own],
            mode="lines+markers", name=kind, line={"color": PALETTE[i], "dash": DASHES[i]},
            marker={"symbol": SYMBOLS[i], "size": [8 + 22 * r["busy_share"] ** 0.5 for r in own]},
            customdata=[[r["tokens_from"], r["tokens_to"], r["steps"], 100 * r["busy_share"]] for r in own],
            hovertemplate=f"{kind}, %{{customdata[0]}} to %{{customdata[1]}} tokens: %{{y:+.2g}} %<br>"
            "%{customdata[2]} steps, %{customdata[3]:.3g} % of the time<extra></extra>",
        )  # fmt: skip
    axes(built, "step [tokens]", "measured / predicted - 1 [%]", log_x=None)
    sizes = [r["tokens_from"] for r in result["residuals"]] + [r["tokens_to"] for r in result["residuals"]]
    log_axis(built.layout.xaxis, min(sizes), max(sizes))
    built.add_hline(y=0, line={"width": 1, "dash": "dot"})
    columns = ["kind", "tokens from", "to", "steps", "share of time [%]", "measured / predicted - 1 [%]"]
    rows = [
        [r["kind"], r["tokens_from"], r["tokens_to"], r["steps"], round(100 * r["busy_share"], 2),
         round(100 * r["error"], 2)]
        for r in result["residuals"]
    ]  # fmt: skip
    note = f"Over the whole replay steps were predicted {100 * result['busy_bias']:+.2g} % against what they took."
    return packed(built, table={"columns": columns, "rows": rows, "more": 0}, note=note, title=title)


def _mixed(result: Result, title: str) -> dict[str, Any]:
    """p99 of the gaps by way: of the first case; of the others the table tells."""
    built = go.Figure()
    first = result["served"][0]
    same = ("prompt_tokens", "output_tokens", "streams")
    own = [each for each in result["served"] if all(each[name] == first[name] for name in same)]
    ways = [each["way"] for each in own]
    for i, (name, key) in enumerate((("measured", "measured"), ("predicted", "predicted"))):
        lines = [_line_of(each, "itl", 99.0) for each in own]
        middle = [1e3 * line[f"{key}_s"] for line in lines]
        built.add_scatter(
            x=ways, y=middle, mode="markers", name=name,
            marker={"symbol": ("circle", "circle-open")[i], "size": (9, 15)[i], "color": PALETTE[i]},
            error_y={
                "array": [1e3 * line[f"{key}_high_s"] - at for line, at in zip(lines, middle, strict=True)],
                "arrayminus": [at - 1e3 * line[f"{key}_low_s"] for line, at in zip(lines, middle, strict=True)],
                "color": PALETTE[i],
            },
            hovertemplate=f"{name}, %{{x}}: %{{y:.4g}} ms<extra></extra>",
        )  # fmt: skip
    axes(built, "how the prompt is served", "p99 of gaps [ms]", log_x=None)
    built.layout.yaxis.rangemode = "tozero"
    columns = ["prompt [tokens]", "answers [tokens]", "streams [points]", "served", "p95 measured [ms]",
               "p95 predicted [ms]", "p99 measured [ms]", "p99 predicted [ms]"]  # fmt: skip
    rows = []
    for each in result["served"]:
        told = [_line_of(each, "itl", p) for p in (95.0, 99.0)]
        values = [round(1e3 * line[key], 3) for line in told for key in ("measured_s", "predicted_s")]
        rows.append([each["prompt_tokens"], each["output_tokens"], each["streams"], each["way"], *values])
    note = f"Prompts of {first['prompt_tokens']:,} tokens beside {first['streams']:,} streams."
    return packed(built, table={"columns": columns, "rows": rows, "more": 0}, note=note, title=title)


def _line_of(served: Mapping[str, Any], metric: str, percentile: float) -> Mapping[str, Any]:
    return next(ln for ln in served["lines"] if (ln["metric"], ln["percentile"]) == (metric, percentile))


VERIFICATION_FIGURES: dict[str, Callable[[Result, str], dict[str, Any]]] = {
    "ttft": _curves("ttft"),
    "itl": _curves("itl"),
    "residuals": _residuals,
    "mixed": _mixed,
}
