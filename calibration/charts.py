"""Pictures of calibrations as plotly figures, in JSON: the only module of this app that knows plotly.

A figure is what ``static/js/figure.js`` fetches: plotly's ``data`` and ``layout``, a ``table`` with the same
numbers for those who do not look at pictures, and a ``note``. Colours are those of the light theme; the script
exchanges them for their dark partners. Every curve differs from its neighbours in colour and in dash, every
point in colour and in shape: fitted points are filled, held-out ones are hollow diamonds whose bar ends at the
prediction. A line is dashed where nothing was measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from calibration.curves import LEVEL, Curve, Point, View, all_points, mean_context, view
from calibration.roofline import Floor
from calibration.steptime import StepSample, StepTimeModel

# Okabe and Ito's colours, distinct under colour blindness; figure.js has the dark theme's partners.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#9b5fa8")
NEUTRAL = "#6b7680"
SYMBOLS = ("circle", "square", "triangle-up", "cross")
HELD_OUT, OFF_CURVE = "diamond-open", "x-thin-open"
DASHES = ("solid", "longdash", "dashdot", "longdashdot")
VERSION = 2  # of the drawing: browsers keep figures under it
FIGURES = ("decode", "prefill", "mixed", "accuracy")
MAX_ROWS = 200  # of a table
MAX_DRAWN = 300  # points of one kind and use in the accuracy figure

TITLES = {
    "decode": ("Active sequences [sequences]", "Time between tokens, ITL [ms]"),
    "prefill": ("Prompt tokens in the step [tokens]", "Step time [ms]"),
    "mixed": ("Chunk beside the decodes [tokens]", "Step time [ms]"),
    "accuracy": ("Measured step time [ms]", "Prediction against measurement [%]"),
}


def figure(
    name: str,
    samples: Sequence[StepSample],
    model: StepTimeModel | None,
    heldout: Sequence[Mapping[str, Any]] = (),
    title: str = "",
    floor: Floor | None = None,
) -> dict[str, Any]:
    """The named figure of FIGURES as JSON-safe objects. `floor`: the least seconds that the device's ceilings allow
    (roofline.floor_of), drawn under each curve. Raises KeyError for another name."""
    if name not in FIGURES:
        raise KeyError(name)
    by_error = name == "accuracy"
    drawn = (
        accuracy_figure(samples, model, heldout)
        if by_error
        else curve_figure(view(name, samples, model), floor)
    )
    return drawn | {"title": safe(title)}


def packed(
    built: go.Figure, *, table: dict[str, Any], note: str = "", empty: str = "", title: str = ""
) -> dict[str, Any]:
    """A figure with its table, its note, what to say when there is nothing to draw, and the title of a picture
    saved of it. No NaN leaves here."""
    plain = json.loads(built.to_json())
    return {"data": plain["data"], "layout": plain["layout"], "table": table, "note": note, "empty": empty,
            "title": safe(title)}  # fmt: skip


def safe(text: str) -> str:
    """Text for a label: plotly reads markup in labels, and names come from people."""
    return escape(text, quote=False)


def axes(
    built: go.Figure, x_title: str, y_title: str, *, log_x: tuple[float, float] | None, binary: bool = True
) -> None:
    """Titles with units; ``log_x`` gives the range of a logarithmic x axis, marked at powers of two (counts) or
    at 1, 2, 5 of each decade."""
    built.update_layout(
        template=None, hovermode="closest", margin={"l": 62, "r": 12, "t": 8, "b": 52},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        xaxis={"title": {"text": x_title}}, yaxis={"title": {"text": y_title}},
    )  # fmt: skip
    if log_x is not None:
        low, high = log_x
        steps = (
            [2.0**k for k in range(-20, 64)]
            if binary
            else [m * 10.0**k for k in range(-6, 12) for m in (1, 2, 5)]
        )
        ticks = [step for step in steps if low / 1.1 <= step <= high * 1.1]
        ticks = ticks[:: max(1, -(-len(ticks) // 9))]
        built.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{tick:,.10g}" for tick in ticks])
        built.update_xaxes(range=[float(np.log10(low / 1.12)), float(np.log10(high * 1.12))])


# Curves with points --------------------------------------------------------------------------------------------


def curve_figure(shown: View, floor: Floor | None = None) -> dict[str, Any]:
    built = go.Figure()
    for index, curve in enumerate(shown.curves):
        _add_curve(built, curve, index)
        if floor is not None:
            _add_floor(built, curve, index, floor)
    for index, label in enumerate(shown.labels):
        for held_out in (False, True):
            own = [p for p in shown.points if p.group == index and p.held_out == held_out]
            _add_points(built, [p for p in own if p.on_curve], index, label, off=False)
            _add_points(built, [p for p in own if not p.on_curve], index, label, off=True)
    _add_legend(built, shown)
    x = [p.x for p in shown.points] or [1.0, 2.0]
    axes(built, *TITLES[shown.kind], log_x=(min(x), max(x)))
    built.update_layout(legend={"title": {"text": shown.meaning}})
    built.update_yaxes(rangemode="tozero")
    note = _note(shown)
    if floor is not None and shown.curves:
        note += " Thin dashes: the least that the device's measured ceilings allow."
    return packed(
        built, table=_table(shown), note=note, empty="" if shown.points else "No point measured yet."
    )


def _add_curve(built: go.Figure, curve: Curve, index: int) -> None:
    colour, group = PALETTE[index], f"curve{index}"
    inside = curve.covered
    if inside.any():
        band_x = np.concatenate([curve.x[inside], curve.x[inside][::-1]])
        band = np.concatenate([curve.high_s[inside], curve.low_s[inside][::-1]]) * 1e3
        built.add_scatter(
            x=band_x.tolist(), y=band.tolist(), fill="toself", fillcolor=colour, opacity=0.13, mode="lines",
            line={"width": 0}, hoverinfo="skip", showlegend=False, legendgroup=group,
        )  # fmt: skip
    built.add_scatter(
        x=curve.x.tolist(), y=_only(curve.seconds * 1e3, inside), mode="lines", name=safe(curve.label),
        legendgroup=group, line={"color": colour, "width": 2, "dash": DASHES[index]},
        hovertemplate="%{x:,} → %{y:.4g} ms<extra>fit, " + safe(curve.label) + "</extra>",
    )  # fmt: skip
    outside = ~inside | np.append(~inside[1:], False) | np.insert(~inside[:-1], 0, False)
    if (~inside).any():
        built.add_scatter(
            x=curve.x.tolist(), y=_only(curve.seconds * 1e3, outside), mode="lines", showlegend=False,
            legendgroup=group, line={"color": colour, "width": 1.2, "dash": "dot"},
            hovertemplate="%{x:,} → %{y:.4g} ms<extra>not measured here</extra>",
        )  # fmt: skip


def _add_floor(built: go.Figure, curve: Curve, index: int, floor: Floor) -> None:
    least = floor(curve.features) * 1e3
    built.add_scatter(
        x=curve.x.tolist(), y=least.tolist(), mode="lines", showlegend=False, legendgroup=f"curve{index}", opacity=0.6,
        line={"color": PALETTE[index], "width": 1, "dash": "5px,5px"},
        hovertemplate="%{x:,} → %{y:.4g} ms<extra>the device's ceilings, " + safe(curve.label) + "</extra>",
    )  # fmt: skip


def _only(values: np.ndarray, keep: np.ndarray) -> list[float | None]:
    return [float(v) if k else None for v, k in zip(values, keep, strict=True)]


def _add_points(built: go.Figure, points: list[Point], index: int, label: str, *, off: bool) -> None:
    """Points of one reference and use. Those off the curve's conditions and held-out ones show their prediction."""
    if not points:
        return
    symbol = HELD_OUT if points[0].held_out else OFF_CURVE if off else SYMBOLS[index]
    built.add_scatter(
        x=[p.x for p in points], y=[p.sample.median_s * 1e3 for p in points], mode="markers", name=safe(label),
        legendgroup=f"curve{index}", showlegend=False, marker=_marker(symbol, PALETTE[index]),
        error_y=_stems(points) if off or points[0].held_out else None,
        text=[_words(p) for p in points], hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip


def _marker(symbol: str, colour: str) -> dict[str, Any]:
    is_open = "open" in symbol
    return {"color": colour, "symbol": symbol, "size": 9 if symbol == HELD_OUT else 7,
            "line": {"width": 1.6 if is_open else 0, "color": colour}}  # fmt: skip


def _add_legend(built: go.Figure, shown: View) -> None:
    """What the shapes mean, in a neutral colour; and the references, while there is no curve to stand for them."""
    off = any(not p.on_curve and not p.held_out for p in shown.points)
    shapes = [
        (HELD_OUT, "held out", any(p.held_out for p in shown.points)),
        (OFF_CURVE, "other conditions", off),
    ]
    entries = [(SYMBOLS[i], PALETTE[i], label) for i, label in enumerate(shown.labels) if not shown.curves]
    entries += [(symbol, NEUTRAL, words) for symbol, words, there in shapes if there]
    for symbol, colour, words in entries:
        built.add_scatter(
            x=[None], y=[None], mode="markers", name=safe(words), marker=_marker(symbol, colour)
        )


def _stems(points: list[Point]) -> dict[str, Any] | None:
    """A bar from the measured point to its own prediction."""
    off_ms = [((p.predicted_s or p.sample.median_s) - p.sample.median_s) * 1e3 for p in points]
    if not any(off_ms):
        return None
    up, down = [max(0.0, o) for o in off_ms], [max(0.0, -o) for o in off_ms]
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1.2, "width": 3}


def _words(point: Point) -> str:
    sample = point.sample
    lines = [shape_words(sample), f"measured {sample.median_s * 1e3:.4g} ms, {len(sample.seconds)} repeats"]
    if point.predicted_s is not None and point.error is not None:
        lines.append(f"predicted {point.predicted_s * 1e3:.4g} ms ({point.error * 100:+.1f} %)")
    lines.append("held out: not fitted" if point.held_out else "fitted")
    return "<br>".join(lines)


def shape_words(sample: StepSample) -> str:
    """A step in words: 8 decodes × 1,024 tokens + chunk 256 after 512 cached."""
    parts = []
    if rows := len(sample.shape.decode_contexts):
        parts.append(f"{rows:,} decode{'s' if rows > 1 else ''} × {mean_context(sample):,.0f} tokens")
    for chunk in sample.shape.chunks[:3]:
        after = f" after {chunk.cached_tokens:,} cached" if chunk.cached_tokens else ""
        parts.append(f"chunk {chunk.query_tokens:,}{after}")
    return " + ".join(parts)


def _note(shown: View) -> str:
    words = [shown.conditions] if shown.conditions and shown.curves else []
    if shown.curves:
        words.append(f"Shaded: {LEVEL:.0%} prediction interval.".replace("%", " %"))
        words.append("Dotted: outside of what was measured. Bars end at the point's own prediction.")
    if any(p.held_out for p in shown.points):
        words.append("Hollow diamonds were held out of the fit.")
    if shown.left_out:
        words.append(
            f"{shown.left_out:,} points under other conditions are not drawn: see Accuracy, and the CSV."
        )
    return " ".join(words)


def _table(shown: View) -> dict[str, Any]:
    columns = ["Step", "Use", "Measured [ms]", "± 95 % of median [%]", "Fit [ms]", "Fit against measured [%]"]
    points = sorted(shown.points, key=lambda p: (p.group, not p.on_curve, p.x))[:MAX_ROWS]
    rows = []
    for p in points:
        spread = p.sample.ci_half_width
        rows.append([
            shape_words(p.sample), "held out" if p.held_out else "fit", _n(p.sample.median_s * 1e3),
            _n(spread * 100), _n(p.predicted_s * 1e3) if p.predicted_s else "–",
            f"{p.error * 100:+.1f}" if p.error is not None else "–",
        ])  # fmt: skip
    return {"columns": columns, "rows": rows, "more": len(shown.points) - len(rows)}


def _n(value: float) -> str:
    return f"{value:.4g}" if np.isfinite(value) else "–"


# Accuracy ------------------------------------------------------------------------------------------------------


def accuracy_figure(
    samples: Sequence[StepSample], model: StepTimeModel | None, heldout: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Error of every point over its measured time. The table counts all; at most MAX_DRAWN of each are drawn.

    A refused calibration keeps no model, but the held-out steps it was refused for: ``heldout``, its rows.
    """
    built = go.Figure()
    rows: list[list[str]] = []
    x_ms: list[float] = []
    for index, kind in enumerate(("decode", "prefill", "mixed")):
        errors = _errors(samples, kind, model) if model is not None else _stored(heldout, kind)
        for held_out in (False, True):
            own = [error for error in errors if error.held_out == held_out]
            if not own:
                continue
            ratios = np.array([error.ratio for error in own])
            name = f"{kind}, {'held out' if held_out else 'fit'}"
            rows.append([
                kind, "held out" if held_out else "fit", f"{len(own):,}", f"{np.median(np.abs(ratios)) * 100:.1f}",
                f"{np.quantile(np.abs(ratios), 0.9) * 100:.1f}", f"{ratios.mean() * 100:+.1f}",
            ])  # fmt: skip
            drawn = own[:: max(1, -(-len(own) // MAX_DRAWN))]
            x_ms += [error.measured_s * 1e3 for error in drawn]
            built.add_scatter(
                x=[error.measured_s * 1e3 for error in drawn], y=[error.ratio * 100 for error in drawn],
                mode="markers", name=name, text=[error.words for error in drawn],
                hovertemplate="%{text}<extra></extra>",
                marker={"color": PALETTE[index], "symbol": SYMBOLS[index] + ("" if held_out else "-open"),
                        "size": 8 if held_out else 6, "opacity": 0.9 if held_out else 0.6},
            )  # fmt: skip
    axes(built, *TITLES["accuracy"], log_x=(min(x_ms, default=1.0), max(x_ms, default=10.0)), binary=False)
    built.update_yaxes(zeroline=True)
    columns = ["Kind of step", "Use", "Points", "Median error [%]", "p90 error [%]", "Mean signed error [%]"]
    note = "Filled: held out of the fit, which is what counts. Above zero: predicted slower than it was."
    return packed(built, table={"columns": columns, "rows": rows, "more": 0}, note=note if rows else "",
                  empty="" if rows else "No errors to show: nothing has been fitted.")  # fmt: skip


class _Error(NamedTuple):
    held_out: bool
    measured_s: float
    ratio: float
    words: str


def _errors(samples: Sequence[StepSample], kind: str, model: StepTimeModel) -> list[_Error]:
    points = all_points(samples, kind, model)
    return [_Error(p.held_out, p.sample.median_s, p.error or 0.0, _words(p)) for p in points]


def _stored(heldout: Sequence[Mapping[str, Any]], kind: str) -> list[_Error]:
    return [
        _Error(True, row["measured_s"], row["error"], f"measured {row['measured_s'] * 1e3:.4g} ms<br>"
               f"predicted {row['predicted_s'] * 1e3:.4g} ms ({row['error'] * 100:+.1f} %)<br>held out: not fitted")
        for row in heldout if row["kind"] == kind
    ]  # fmt: skip
