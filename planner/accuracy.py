"""How right have we been? Every verification here, and the reference results that come with the code."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from django.conf import settings

from planner.models import Verification
from planner.reference_checks import Reference, read_results


@dataclass(frozen=True, slots=True)
class Line:
    """One percentile of a replay: seconds predicted and measured, and the relative error."""

    label: str
    predicted_s: float
    measured_s: float
    error: float
    bar: float | None
    holds: bool | None


def lines_of(row: Verification) -> list[Line]:
    """Those that were both predicted and measured: a run that broke off may lack some."""
    return [
        Line(line["label"], line["predicted_s"], line["measured_s"], line["error"], line.get("bar"), line.get("holds"))
        for line in (row.result or {}).get("lines", [])
        if None not in (line["predicted_s"], line["measured_s"], line["error"])
    ]  # fmt: skip


def verified(user: Any) -> Any:
    """The verifications that are done, newest first: all that `user` may see."""
    rows = Verification.objects.visible_to(user).filter(status=Verification.DONE, result__isnull=False)
    return rows.select_related(
        "plan", "plan__calibration", "plan__second_calibration", "owner", "project"
    ).defer(
        "steps", "log", "plan__result", "plan__log", "plan__calibration__result", "plan__calibration__log"
    )


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    checks: list[Reference]


def reference_groups() -> list[Group]:
    """The reference results by what they are about."""
    rows = read_results(settings.REFERENCE_RESULTS)
    return [Group(title, list(checks)) for title, checks in groupby(rows, key=lambda row: row.group)]


def counts(rows: Any) -> dict[str, int]:
    """How many there are, were judged, and were as predicted."""
    return {
        "all": rows.count(), "judged": rows.filter(holds__isnull=False).count(),
        "holding": rows.filter(holds=True).count(),
    }  # fmt: skip
