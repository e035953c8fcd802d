"""How old is a calibration, and may it still be believed? Shown wherever a calibration is.

drifted     its last drift check called for measuring anew
superseded  a later calibration of the same subject is published
fresh       measured, or found unchanged by a drift check, within CALIBRATION_FRESH_DAYS
ageing      neither
unknown     imported without a date of measurement

Ages in seconds.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone

from calibration.lineage import newest_of, subject_of, when
from calibration.models import Calibration, DriftCheck

LABELS = {"drifted": "drifted", "superseded": "superseded", "fresh": "fresh", "ageing": "ageing",
          "unknown": "age unknown"}  # fmt: skip
#: The badge's look.
LOOKS = {"drifted": "failed", "superseded": "cancelled", "fresh": "done", "ageing": "interrupted",
         "unknown": "cancelled"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Freshness:
    """`measured_at`, `checked_at` None: not known, never. `newer`: what supersedes it."""

    state: str
    measured_at: datetime | None
    age_s: float | None
    checked_at: datetime | None
    drifted: bool | None
    newer: uuid.UUID | None
    sentence: str

    @property
    def label(self) -> str:
        return LABELS[self.state]

    @property
    def look(self) -> str:
        return LOOKS[self.state]

    @property
    def words(self) -> str:
        """`measured 3 days ago`."""
        return "not dated" if self.age_s is None else f"{age_text(self.age_s)} old"

    def to_dict(self) -> dict[str, Any]:
        return {"state": self.state, "measured_at": self.measured_at, "age_s": self.age_s,
                "checked_at": self.checked_at, "drifted": self.drifted, "newer": self.newer,
                "sentence": self.sentence}  # fmt: skip


def age_text(age_s: float) -> str:
    """`40 minutes`, `3 days`: of two units the larger one."""
    for size_s, name in ((86_400.0, "day"), (3_600.0, "hour"), (60.0, "minute")):
        if age_s >= size_s:
            count = int(age_s // size_s)
            return f"{count:,} {name}{'s' if count > 1 else ''}"
    return "less than a minute"


def measured_at(row: Calibration) -> datetime | None:
    """When its steps were timed: as its environment says, which an import brings along; of a run of ours its end."""
    stamp = (row.environment or {}).get("started_at")
    try:
        found = datetime.fromisoformat(str(stamp)) if stamp else None
    except ValueError:
        found = None
    if found is not None:
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    return when(row) if row.source == Calibration.MEASURED else None


def freshness_of(row: Calibration, now: datetime | None = None) -> Freshness | None:
    """None of one that did not end well: there is nothing to be believed."""
    return freshness_by_id([row], now).get(row.pk)


def freshness_by_id(rows: Sequence[Calibration], now: datetime | None = None) -> dict[uuid.UUID, Freshness]:
    """Of those that are done, in two queries however many there are."""
    now = now or timezone.now()
    done = [row for row in rows if row.status == Calibration.DONE]
    if not done:
        return {}
    newest = newest_of({row.project_id for row in done})
    latest: dict[Any, DriftCheck] = {}
    checks = DriftCheck.objects.filter(status=DriftCheck.DONE, calibration__in=[row.pk for row in done])
    for check in checks.only("calibration", "drifted", "finished_at", "statistic").order_by("finished_at"):
        latest[check.calibration_id] = check
    return {row.pk: _judged(row, latest.get(row.pk), newest.get(subject_of(row)), now) for row in done}


def _judged(
    row: Calibration, check: DriftCheck | None, newest: Calibration | None, now: datetime
) -> Freshness:
    at = measured_at(row)
    checked = check.finished_at if check else None
    quiet = checked if check and not check.drifted else None
    later = newest if newest is not None and newest.pk != row.pk and when(newest) > when(row) else None
    seen = max((moment for moment in (at, quiet) if moment), default=None)
    days = settings.CALIBRATION_FRESH_DAYS
    age = None if at is None else max(0.0, (now - at).total_seconds())
    aged = "imported without a date" if age is None else f"measured {age_text(age)} ago"
    if later is not None:
        # One that was measured anew has the same name.
        ended = when(later).astimezone(UTC)
        state, more = "superseded", f"a later one is published: {later.name}, of {ended:%Y-%m-%d %H:%M} UTC"
    elif check is not None and check.drifted:
        state, more = "drifted", "its last drift check calls for measuring anew"
    elif seen is None:
        state, more = "unknown", "nothing says when its steps were timed"
    elif now - seen <= timedelta(days=days):
        state = "fresh"
        more = (
            f"found unchanged {age_text((now - quiet).total_seconds())} ago" if quiet else "not checked since"
        )
    else:
        state, more = "ageing", f"neither measured nor checked within {days} days"
    return Freshness(state, at, age, checked, None if check is None else check.drifted,
                     later.pk if later else None, f"{aged}; {more}")  # fmt: skip
