"""The filters of the planner's lists, held in their addresses (as calibration/filters.py does for its own)."""

from __future__ import annotations

from django.db.models import Q
from django.http import QueryDict

from accounts.access import OwnedQuerySet
from calibration.filters import ChipGroup, chip_group, clean
from calibration.jobs import Job, JobQuerySet
from planner.models import FORMAT_NAMES, Plan, TrafficSet
from planner.unjudged import UNJUDGED

UNKNOWN = Q(sentence__startswith=UNJUDGED)
#: Plans that ended without knowing whether anything meets (`Plan.unjudged`).
NOT_JUDGED = Q(feasible=False) & UNKNOWN
STATUSES = {
    "active": ("queued or running", Q(status__in=Job.ACTIVE)),
    "meets": ("meets the objectives", Q(status=Job.DONE, feasible=True)),
    "nothing": ("nothing meets them", Q(status=Job.DONE, feasible=False) & ~UNKNOWN),
    "unjudged": ("not judged", Q(status=Job.DONE) & NOT_JUDGED),
    "failed": ("failed", Q(status=Job.FAILED)),
    "cancelled": ("cancelled", Q(status=Job.CANCELLED)),
    "interrupted": ("interrupted", Q(status=Job.INTERRUPTED)),
}
BY_NAME = {"calibration": "calibration__name", "traffic": "traffic__name"}
MAX_NAMES = 12


def filtered_plans(rows: JobQuerySet[Plan], query: QueryDict) -> JobQuerySet[Plan]:
    """The plans that the address asks for; a word it does not know filters nothing."""
    if (status := query.get("status", "")) in STATUSES:
        rows = rows.filter(STATUSES[status][1])
    for key, column in BY_NAME.items():
        if (name := clean(query.get(key, ""))) and rows.filter(**{column: name}).exists():
            rows = rows.filter(**{column: name})
    return rows


def plan_chips(rows: JobQuerySet[Plan], query: QueryDict) -> list[ChipGroup]:
    groups = [chip_group("Status", "status", [(key, label) for key, (label, _) in STATUSES.items()], query)]
    for key, column in BY_NAME.items():
        names = rows.order_by(column).values_list(column, flat=True).distinct()[:MAX_NAMES]
        groups.append(chip_group(key.capitalize(), key, [(name, _short(name)) for name in names], query))
    return [group for group in groups if len(group.chips) > 2]


def _short(name: str, limit: int = 32) -> str:
    return name if len(name) <= limit else f"{name[: limit - 1]}…"


def filtered_traffic(rows: OwnedQuerySet[TrafficSet], query: QueryDict) -> OwnedQuerySet[TrafficSet]:
    if (kind := query.get("format", "")) in FORMAT_NAMES:
        rows = rows.filter(format=kind)
    if query.get("warnings") in ("yes", "no"):
        rows = rows.filter(warnings=[]) if query["warnings"] == "no" else rows.exclude(warnings=[])
    return rows


def traffic_chips(rows: OwnedQuerySet[TrafficSet], query: QueryDict) -> list[ChipGroup]:
    there = rows.order_by("format").values_list("format", flat=True).distinct()
    formats = [(kind, FORMAT_NAMES.get(kind, kind)) for kind in there]
    groups = [
        chip_group("Format", "format", formats, query),
        chip_group("Warnings", "warnings", [("yes", "with"), ("no", "without")], query),
    ]
    return [group for group in groups if len(group.chips) > 2]
