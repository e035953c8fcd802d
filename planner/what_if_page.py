"""What the what-if's page shows: its sliders, the answer to a move beside the plan's own, and the neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.forms import BoundField

from calibration.templatetags.units import significant
from planner.candidates import STATUS_BADGES
from planner.objective_columns import cell_of, column_of, key_of
from planner.result_page import ObjectiveRow, objective_rows
from planner.search.engines import NAMES
from planner.search.neighbours import Neighbour, Steps, steps_of
from planner.search.what_if import Setting, WhatIf
from planner.what_if import NO_INTERVAL
from planner.what_if_forms import WhatIfForm
from planner.what_if_sketch import HEIGHT, WIDTH, sketches
from planner.what_if_subject import Opened

KNOBS = {
    "budget_tokens": "Token budget", "chunk_cap_tokens": "Chunk cap", "max_num_seqs": "Sequences",
    "replicas": "Replicas", "prefill_replicas": "P : D",
}  # fmt: skip
LIMITS_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Slider:
    """A number to type and, with scripts, a slider over `values` (in the field's own unit)."""

    field: BoundField
    unit: str
    value: str
    start: str
    values: str
    position: int
    last: int
    name: str = ""  # what the engine calls it


def sliders(form: WhatIfForm, there: Opened) -> list[tuple[str, list[Slider]]]:
    """By group: load and limits, knobs, deployment."""
    start, steps = there.subject.start, steps_of(there.subject)
    names = dict(zip(("budget_tokens", "max_num_seqs", "chunk_cap_tokens"),
                     NAMES[there.subject.conditions.engine], strict=True))  # fmt: skip
    limits = [
        _slider(form[part.name], "ms", part.limit_s * 1e3, [value * 1e3 for value in values])
        for part, values in zip(form.limits, steps.limits_s, strict=True)
    ]
    knobs = [
        _slider(form[knob], unit, getattr(start, knob), getattr(steps, knob), names.get(knob, ""))
        for knob, unit in (("budget_tokens", "tokens"), ("chunk_cap_tokens", "tokens"), ("max_num_seqs", "sequences"))
        if getattr(steps, knob)
    ]  # fmt: skip
    return [
        ("Load", [_slider(form["rate_multiplier"], "times", start.rate_multiplier, steps.rate_multiplier)]),
        ("Limits", limits),
        ("Knobs", knobs),
        ("Deployment", _deployment(form, start, steps)),
    ]


def _deployment(form: WhatIfForm, start: Setting, steps: Steps) -> list[Slider]:
    link = start.link_gb_per_s
    return [
        _slider(form["replicas"], "replicas", start.replicas, steps.replicas),
        _slider(form["prefill_replicas"], "replicas", start.prefill_replicas, steps.prefill_replicas),
        _slider(form["link_gb_per_s"], "GB/s", link, steps.link_gb_per_s),
    ]


def _slider(
    field: BoundField, unit: str, start: float | None, values: Sequence[float], name: str = ""
) -> Slider:
    given = field.value()
    shown = plain(start) if given in (None, "") else str(given)
    try:
        at = float(shown) if shown else values[len(values) // 2]
    except ValueError:
        at = float(values[0])
    nearest = min(range(len(values)), key=lambda i: abs(values[i] - at))
    return Slider(
        field, unit, shown, plain(start), " ".join(map(plain, values)), nearest, len(values) - 1, name
    )


def plain(value: float | None) -> str:
    """As a number field takes it: no thousands, no exponent, seven digits."""
    if value is None:
        return ""
    if isinstance(value, int):
        return str(value)
    text = f"{value:.7g}"
    return f"{value:.9f}".rstrip("0").rstrip(".") if "e" in text else text


# The answer ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """An objective here, and what the plan itself predicted for that percentile."""

    here: ObjectiveRow
    own: ObjectiveRow | None


def answer_context(there: Opened, found: WhatIf) -> dict[str, Any]:
    rows = _rows(there, found)
    own, fleet = there.shown.get("behaviour") or {}, there.subject.fleet
    return {
        "found": found, "rows": rows, "badge": STATUS_BADGES[found.status], "sentence": sentence(found),
        "at_start": found.setting == there.subject.start, "limits": found.limits[:LIMITS_SHOWN],
        "own": own, "own_cost": there.shown.get("cost_per_hour"), "own_gpus": there.shown.get("gpus"),
        "sketches": sketches(found.predictions, found.curves_s or {}, there.own_curves_s)
        if found.predictions else [],
        "width": WIDTH, "height": HEIGHT, "no_interval": NO_INTERVAL, "window": there.subject.window,
        "feasible": there.feasible, "columns": columns(found.setting),
        "where": fleet.where(found.candidate) if len(fleet.names) > 1 else "",
    }  # fmt: skip


def _rows(there: Opened, found: WhatIf) -> list[Row]:
    margins = {p.objective.key: p.margin for p in found.predictions if p.margin is not None}
    tightest = min(margins, key=lambda key: margins[key], default=None)
    here = objective_rows(
        {"verdict": {"binding": tightest, "alone": None}},
        {"objectives": [p.to_dict() for p in found.predictions]},
    )
    own_rows = objective_rows({"verdict": {"binding": None, "alone": None}}, there.shown)
    own = {key_of(o): row for o, row in zip(there.shown["objectives"], own_rows, strict=True)}
    return [Row(row, own.get(p.objective.key)) for row, p in zip(here, found.predictions, strict=True)]


def sentence(found: WhatIf) -> str:
    """`Meets all objectives; the tightest, ITL p99, has 12 % of its limit left.`"""
    known = [p for p in found.predictions if p.margin is not None]
    if found.status == "meets" and known:
        tightest = min(known, key=lambda p: p.margin or 0.0)
        left = significant(100 * (tightest.margin or 0.0))
        return (
            f"Meets all objectives; the tightest, {tightest.objective.label}, has {left} % of its limit left."
        )
    if found.status == "fails" and known:
        words = [p.objective.exceeded(p.predicted_s or 0.0) for p in known if (p.margin or 0.0) < 0.0]
        if words:
            return f"Fails: {'; '.join(words)}."
    said = found.reason[:1].upper() + found.reason[1:] if found.reason else found.status.capitalize()
    return f"{said.rstrip('.')}."


def columns(setting: Setting) -> list[str]:
    """Heads of the objectives' columns."""
    return [column_of(o.to_dict()) for o in setting.objectives]


@dataclass(frozen=True, slots=True)
class NeighbourRow:
    knob: str
    before: str
    after: str
    query: str  # of the page with this setting
    found: WhatIf
    badge: str
    cells: tuple[tuple[str, bool], ...]  # in the objective's unit, and whether beyond its limit
    margin: float | None


def neighbour_rows(around: Sequence[tuple[Neighbour, WhatIf]], form: WhatIfForm) -> list[NeighbourRow]:
    sent = {name: form.data[name] for name in form.fields if form.data.get(name) not in (None, "")}
    rows = []
    for neighbour, found in around:
        margins = [p.margin for p in found.predictions if p.margin is not None]
        rows.append(
            NeighbourRow(
                KNOBS[neighbour.knob], _knob(neighbour.setting, neighbour.knob, neighbour.before),
                _knob(neighbour.setting, neighbour.knob, neighbour.after),
                urlencode(sent | {neighbour.knob: neighbour.after}), found, STATUS_BADGES[found.status],
                tuple((cell_of(p.objective.to_dict(), p.predicted_s), (p.margin or 0.0) < 0.0)
                      for p in found.predictions),
                min(margins, default=None),
            )
        )  # fmt: skip
    return rows


def _knob(setting: Setting, knob: str, value: int) -> str:
    if knob == "prefill_replicas":
        return f"{value} : {setting.replicas - value}"
    return "none" if knob == "chunk_cap_tokens" and not value else f"{value:,}"
