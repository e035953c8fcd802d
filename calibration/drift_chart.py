"""The drift chart of a model on a device: each check's mean and kinds against the calibration it checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from calibration.charts import NEUTRAL, PALETTE, SYMBOLS, axes, packed
from calibration.experiment.drift import KIND_BAR, MEAN_BARS
from calibration.models import Calibration, DriftCheck
from calibration.pipeline import device_kind

KINDS = ("decode", "prefill", "mixed")
ROOM = 0.08  # above the highest and below the lowest point or bar, as a share of what lies between them


def drift_figure(
    checks: Sequence[DriftCheck], calibrations: Sequence[Calibration], title: str
) -> dict[str, Any]:
    """`checks`: done, oldest first; `calibrations`: of the same subject, drawn where they begin to count."""
    built = go.Figure()
    columns = ["Checked", "Calibration", "Steps now against then [%]", "95 % interval [%]",
               *(f"{kind} [%]" for kind in KINDS), "Verdict"]  # fmt: skip
    if not checks:
        return packed(
            built, table={"columns": columns, "rows": [], "more": 0}, empty="Not checked yet.", title=title
        )
    at = [check.finished_at.isoformat() if check.finished_at else None for check in checks]
    mean = [_percent(check.statistic) for check in checks]
    low, high = ([_percent(getattr(check, end)) for check in checks] for end in ("low", "high"))
    built.add_scatter(
        x=at, y=mean, mode="lines+markers", name="all kinds, with 95 % interval",
        line={"color": PALETTE[0], "width": 2}, marker={"size": 7, "symbol": SYMBOLS[0]},
        error_y={"type": "data", "symmetric": False, "array": [h - m for h, m in zip(high, mean, strict=True)],
                 "arrayminus": [m - v for m, v in zip(mean, low, strict=True)], "thickness": 1.2, "width": 3},
        hovertemplate="%{x}: %{y:+.2f} %<extra></extra>",
    )  # fmt: skip
    if any(check.drifted for check in checks):
        drifted = [index for index, check in enumerate(checks) if check.drifted]
        built.add_scatter(
            x=[at[index] for index in drifted], y=[mean[index] for index in drifted], mode="markers", name="drifted",
            marker={"color": NEUTRAL, "symbol": "diamond-open", "size": 16, "line": {"width": 2}},
            hovertemplate="drifted: %{y:+.2f} %<extra></extra>",
        )  # fmt: skip
    for index, kind in enumerate(KINDS, 1):
        moved = [_of_kind(check, kind) for check in checks]
        if any(value is not None for value in moved):
            built.add_scatter(
                x=at, y=moved, mode="markers", name=kind,
                marker={"color": PALETTE[index], "symbol": f"{SYMBOLS[index]}-open", "size": 7},
                hovertemplate=f"{kind}: %{{y:+.2f}} %<extra></extra>",
            )  # fmt: skip
    bar = 100 * MEAN_BARS[device_kind(checks[-1].calibration.device)]
    of_kinds = [_of_kind(check, kind) for kind in KINDS for check in checks]
    ends = [-bar, bar, *low, *high, *(value for value in of_kinds if value is not None)]
    room = ROOM * (max(ends) - min(ends))
    built.update_yaxes(range=[min(ends) - room, max(ends) + room])
    for edge in (bar, -bar):
        built.add_hline(y=edge, line={"color": NEUTRAL, "width": 1, "dash": "dash"})
    for row in calibrations:
        if row.finished_at:
            built.add_vline(x=row.finished_at.isoformat(), line={"color": NEUTRAL, "width": 1, "dash": "dot"})
    axes(built, "When", "Steps now against then [%]", log_x=None)
    built.update_xaxes(type="date")
    rows = [_row(check) for check in reversed(checks)]
    note = (
        f"Dashed: ±{bar:.0f} %, beyond which the mean calls for measuring anew if its interval leaves out 0; one kind "
        f"alone does beyond ±{100 * KIND_BAR:.0f} %. Dotted: a calibration was published, and later "
        "checks compare with it."
    )
    return packed(built, table={"columns": columns, "rows": rows, "more": 0}, note=note, title=title)


def _percent(log_ratio: float | None) -> float:
    return 0.0 if log_ratio is None else round(100 * float(np.expm1(log_ratio)), 4)


def _of_kind(check: DriftCheck, kind: str) -> float | None:
    moved = ((check.report or {}).get("by_kind") or {}).get(kind)
    return None if moved is None else _percent(moved["log_ratio"])


def _row(check: DriftCheck) -> list[str]:
    kinds = [_of_kind(check, kind) for kind in KINDS]
    when = f"{check.finished_at:%Y-%m-%d %H:%M} UTC" if check.finished_at else "–"
    return [
        when, check.calibration.name, f"{_percent(check.statistic):+.2f}",
        f"{_percent(check.low):+.2f} … {_percent(check.high):+.2f}",
        *("–" if value is None else f"{value:+.2f}" for value in kinds), "drifted" if check.drifted else "no drift",
    ]  # fmt: skip
