"""Starting a job once: two clicks, two tabs or a client that posts again get the job that is already at it."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from accounts.models import Project
from calibration import jobs
from calibration.jobs import AnyJob

MAX_NAME = 120
#: What may be large and says nothing of what was asked.
_HEAVY = ("result", "log", "traceback", "steps", "report")


def start_once(
    row: AnyJob,
    same: Sequence[str],
    task: Any,
    *,
    default_named: bool = False,
    alike: Callable[[AnyJob], bool] = lambda other: True,
    saved: Callable[[AnyJob], None] = lambda row: None,
) -> AnyJob:
    """Writes the row and sends its job; while one of the same owner and project is active that agrees in the fields
    `same` (and, by `alike`, in what else counts), that one instead. `saved(row)`: what else is written with it.
    `default_named`: nobody chose its name, which is then made distinct, and says nothing of what was asked.

    One that was asked to stop is on its way out: it answers nothing.
    """
    with transaction.atomic():
        one_at_a_time(row.project_id)
        names = {each.name for each in row._meta.concrete_fields}
        asked = [name for name in same if not (default_named and name == "name")]
        active = type(row)._default_manager.filter(
            status__in=row.ACTIVE, project=row.project_id, owner=row.owner_id, cancel_requested=False
        )
        for other in active.defer(*(name for name in _HEAVY if name in names)).order_by("created_at"):
            if all(_plain(getattr(other, name)) == _plain(getattr(row, name)) for name in asked) and alike(
                other
            ):
                return other
        save_named(row, default_named=default_named)
        saved(row)
        jobs.send_after_commit(row, task)
    return row


def one_at_a_time(project: int) -> None:
    """What a transaction of this project has looked up stays so until it has written: of two that come at once the
    second finds what the first has made. SQLite's transactions are one at a time anyhow."""
    Project.objects.select_for_update().get(pk=project)


def save_named(row: Any, *, default_named: bool) -> None:
    """Writes a new row that has a project and an owner. `default_named`: nobody chose its name; it gets one that
    nothing of its kind has that its owner sees, also where two are written at once."""
    with transaction.atomic():
        if default_named:
            one_at_a_time(row.project_id)
            row.name = distinct_name(type(row)._default_manager.visible_to(row.owner), row.name)
        row.save(force_insert=True)


def written_once(rows: QuerySet[Any], pk: uuid.UUID | None, write: Callable[[], Any]) -> Any:
    """What `write` makes, in a transaction. `pk`: of a form (config/once.py); where one of `rows` has it already, that
    one. Raises IntegrityError for any other reason."""
    try:
        with transaction.atomic():
            return write()
    except IntegrityError:
        there = rows.filter(pk=pk).first() if pk else None
        if there is None:
            raise
        return there


def distinct_name(rows: QuerySet[Any], name: str) -> str:
    """A name nobody chose, with a number behind it where one of `rows` has it: commands know things by their names. At
    most MAX_NAME characters."""
    taken = set(rows.filter(name__startswith=name[: MAX_NAME - 12]).values_list("name", flat=True))
    endings = itertools.chain([""], (f" ({number})" for number in itertools.count(2)))
    tried = (name[: MAX_NAME - len(ending)] + ending for ending in endings)
    return next(each for each in tried if each not in taken)


def _plain(value: Any) -> Any:
    """As a JSON column gives it back: lists for tuples."""
    return json.loads(json.dumps(value)) if isinstance(value, dict | list | tuple) else value
