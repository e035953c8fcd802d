"""How right have we been? Every verification here, and the reference results that come with the code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from django.conf import settings

from planner.models import Verification
from planner.reference_checks import Reference, read_results


@dataclass(frozen=True, slots=True)
class Line:
    """One percentile of a replay: seconds predicted and measured, and the relative error. `spread`: of repeated runs,
    the largest minus the smallest over the median; None of one run."""

    label: str
    predicted_s: float
    measured_s: float
    error: float
    bar: float | None
    holds: bool | None
    spread: float | None = None


def lines_of(row: Verification) -> list[Line]:
    """Those that were both predicted and measured: a run that broke off may lack some. Of long prompts beside short
    answers the tails of the first case and what missed its bar, by how the prompts were served."""
    result = row.result or {}
    named = [(line["label"], line) for line in result.get("lines", [])] + _tails(result.get("served") or [])
    return [
        Line(
            label, line["predicted_s"], line["measured_s"], line["error"], line.get("bar"), line.get("holds"),
            line.get("spread"),
        )
        for label, line in named
        if None not in (line["predicted_s"], line["measured_s"], line["error"])
    ]  # fmt: skip


def _tails(served: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    case = ("prompt_tokens", "output_tokens", "streams")
    first = [each for each in served if all(each[name] == served[0][name] for name in case)]
    return [
        (f"{line['label']}, {each['way']}", line)
        for each in first
        for line in each["lines"]
        if line.get("holds") is False
        or (line["metric"], line["percentile"]) in (("itl", 95.0), ("itl", 99.0))
    ]


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


def counts(rows: Any, user: Any) -> dict[str, int]:
    """How many there are, were judged, and were as predicted; `cut_short`: that ended without being done."""
    ended = (Verification.FAILED, Verification.CANCELLED, Verification.INTERRUPTED)
    return {
        "cut_short": Verification.objects.visible_to(user).filter(status__in=ended).count(),
        "all": rows.count(), "judged": rows.filter(holds__isnull=False).count(),
        "holding": rows.filter(holds=True).count(),
    }  # fmt: skip
