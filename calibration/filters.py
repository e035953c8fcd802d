"""The filters of a list, held in its address: what a chip shows is a link that others can be sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import Q
from django.http import QueryDict

from calibration.jobs import Job
from calibration.models import Calibration, CalibrationQuerySet

STATUSES = {
    "active": ("queued or running", Q(status__in=Job.ACTIVE)),
    "published": ("published", Q(status=Job.DONE, published=True)),
    "refused": ("refused by the gate", Q(status=Job.DONE, published=False)),
    "failed": ("failed", Q(status=Job.FAILED)),
    "cancelled": ("cancelled", Q(status=Job.CANCELLED)),
    "interrupted": ("interrupted", Q(status=Job.INTERRUPTED)),
}
MODEL = "architecture__name"
MAX_MODELS = 12


@dataclass(frozen=True, slots=True)
class Chip:
    label: str
    query: str  # of the address it leads to
    current: bool


@dataclass(frozen=True, slots=True)
class ChipGroup:
    label: str
    chips: tuple[Chip, ...]


def filtered(rows: CalibrationQuerySet, query: QueryDict) -> CalibrationQuerySet:
    """The rows that the address asks for; a word it does not know filters nothing."""
    if (status := query.get("status", "")) in STATUSES:
        rows = rows.filter(STATUSES[status][1])
    if (source := query.get("source", "")) in dict(Calibration.SOURCES):
        rows = rows.filter(source=source)
    if (model := clean(query.get("model", ""))) and rows.filter(**{MODEL: model}).exists():
        rows = rows.filter(**{MODEL: model})
    return rows


def clean(text: str) -> str:
    """Without NUL, which no database compares with."""
    return text.replace("\x00", "")[:200]


def chips(rows: CalibrationQuerySet, query: QueryDict) -> list[ChipGroup]:
    """Chip groups over what there is; one of a single choice is left away."""
    models = [
        str(name) for name in rows.order_by(MODEL).values_list(MODEL, flat=True).distinct()[:MAX_MODELS]
    ]
    groups = [
        chip_group("Status", "status", [(key, label) for key, (label, _) in STATUSES.items()], query),
        chip_group("Source", "source", Calibration.SOURCES, query),
        chip_group("Model", "model", [(name, name) for name in models], query),
    ]
    return [group for group in groups if len(group.chips) > 2]


def chip_group(label: str, key: str, choices: Any, query: QueryDict) -> ChipGroup:
    """One chip for all and one per choice; each keeps the other filters of the address."""
    current = query.get(key, "")
    known = [value for value, _ in choices]
    made = [Chip("all", _with(query, key, ""), current not in known)]
    made += [Chip(text, _with(query, key, value), current == value) for value, text in choices]
    return ChipGroup(label, tuple(made))


def _with(query: QueryDict, key: str, value: str) -> str:
    changed = query.copy()
    changed.pop("page", None)
    changed.pop(key, None)
    if value:
        changed[key] = value
    return changed.urlencode()
