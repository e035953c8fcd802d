"""Which calibrations are of the same subject, and which of them is the newest.

The subject is what was measured, where and with whose engine: model, device, region, ranks, engine, types asked for.
A later published calibration of the same subject in the same project supersedes the earlier ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from calibration.models import Calibration, CalibrationQuerySet

Subject = tuple[Any, ...]
_COLUMNS = ("project", "architecture", "device", "tensor_parallel", "envelope", "source", "facts", "provenance",
            "created_at", "finished_at", "name", "status", "published")  # fmt: skip


def subject_of(row: Calibration) -> Subject:
    known = (row.facts or {}).get("engine") or {}
    engine = known.get("name") or (row.provenance or {}).get("engine", "")
    model, envelope = (json.dumps(value, sort_keys=True) for value in (row.architecture, row.envelope))
    asked = [
        (row.provenance or {}).get(key, usual)
        for key, usual in (("dtype", "auto"), ("mixed_mode", "unified"))
    ]
    return row.project_id, row.source, row.device, row.tensor_parallel, engine, *asked, model, envelope


def when(row: Calibration) -> datetime:
    return row.finished_at or row.created_at


def newest_of(projects: Iterable[int]) -> dict[Subject, Calibration]:
    """The newest published calibration of each subject in these projects, with the columns that say which."""
    found: dict[Subject, Calibration] = {}
    rows = Calibration.objects.usable().filter(project__in=set(projects)).only(*_COLUMNS)
    for row in sorted(rows, key=lambda row: (when(row), row.created_at)):
        found[subject_of(row)] = row
    return found


def newer_than(row: Calibration) -> Calibration | None:
    """The newest published one of the same subject, where that is a later one than `row`."""
    newest = newest_of([row.project_id]).get(subject_of(row))
    later = newest is not None and newest.pk != row.pk and when(newest) > when(row)
    return newest if later else None


def same_subject(row: Calibration, rows: CalibrationQuerySet) -> list[Calibration]:
    """Those of `rows` that are of `row`'s subject, `row` itself included, oldest first."""
    near = rows.filter(project=row.project_id, device=row.device, source=row.source).only(*_COLUMNS)
    return sorted((each for each in near if subject_of(each) == subject_of(row)), key=when)
