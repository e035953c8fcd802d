"""What the planner's management commands share: which traffic, calibration or plan a word means.

One rule for all of them. A word with a slash is a file. Otherwise it is an id, the exact name of something stored, a
file of the working directory or, for traffic, a preset ("preset:chat" says so). A plan is never a file. A word that
means several things is refused with the list of them.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser
from django.utils.timezone import localtime

from accounts.access import OwnedQuerySet
from accounts.models import Project
from calibration import jobs
from calibration import services as calibration_services
from calibration import work as calibration_work
from calibration.forms import ImportDocumentForm
from calibration.models import Calibration
from config.commandline import BadInput, refuse_invalid, uploads
from planner import traffic_rows
from planner.forms import SynthesiseForm, UploadTrafficForm
from planner.models import Plan, TrafficSet
from planner.traffic import PRESETS, Traffic

TRAFFIC_HELP = f"a file, or the id or exact name of a stored traffic, or a preset: {', '.join(PRESETS)}"
PLAN_HELP = "the id or exact name of a plan"
CALIBRATION_HELP = "the id or exact name of a calibration, or its file"
_PRESET = "preset:"


@dataclass(frozen=True, slots=True)
class Meaning:
    """One of: a stored row, a file's path, a preset."""

    row: Any = None
    path: str = ""
    preset: str = ""

    def __str__(self) -> str:
        """How to say just this one, and what it is."""
        if self.row is not None:
            return f"{self.row.pk} (stored {localtime(self.row.created_at):%Y-%m-%d %H:%M})"
        return f"./{self.path} (a file)" if self.path else f"{_PRESET}{self.preset} (a preset)"


def meaning(
    word: str, rows: OwnedQuerySet[Any], field: str, *, presets: bool = False, files: bool = True
) -> Meaning:
    """What `word` means among the rows that its user sees; `files`: whether such a thing can be a file. BadInput for
    nothing, and for several things."""
    if is_uuid(word):
        if (row := rows.filter(pk=word).first()) is not None:
            return Meaning(row=row)
        raise _refused(field, f"no {field} has the id {word}")
    if presets and word.startswith(_PRESET):
        if (name := word.removeprefix(_PRESET)) in PRESETS:
            return Meaning(preset=name)
        raise _refused(field, f"there is no preset {name!r}: there are {', '.join(PRESETS)}")
    if files and os.sep in word:
        return Meaning(path=word)
    found = [Meaning(row=row) for row in rows.filter(name=word).order_by("-created_at")[:10]]
    if files and Path(word).exists():
        found.append(Meaning(path=word))
    if presets and word in PRESETS:
        found.append(Meaning(preset=word))
    if not found:
        others = f", nor a preset ({', '.join(PRESETS)})" if presets else ""
        nothing = "is no file, nor" if files else "is not"
        raise _refused(field, f"{word!r} {nothing} the id or exact name of a {field}{others}")
    if len(found) > 1:
        raise _refused(field, f"{word!r} is several things, say which: {'; '.join(map(str, found))}")
    return found[0]


def _refused(field: str, message: str) -> BadInput:
    return BadInput(message, [{"field": field, "message": message}])


def add_reading_arguments(parser: CommandParser) -> None:
    """How to read a file, for commands that take a stored traffic as well."""
    parser.add_argument("--rate-per-s", type=float, help="requests/s, for a file without times, or a preset")
    parser.add_argument("--map", dest="mapping", metavar="ROLE=COLUMN,...", help="as of the command traffic")


def traffic_meaning(word: str, owner: Any) -> Meaning:
    """What the word means; BadInput for nothing, and for several things."""
    return meaning(word, _traffics(owner), "traffic", presets=True)


def traffic_row(word: str, owner: Any, project: Project, options: dict[str, Any]) -> TrafficSet:
    """The stored traffic that is meant; a file or a preset is read, with the options, and stored in the project."""
    meant = traffic_meaning(word, owner)
    _refuse_unused(meant, {**options, "seed": None})  # which has other uses where traffic is stored
    if meant.row is not None:
        row: TrafficSet = meant.row
        return row
    form = _traffic_form(meant, options)
    return traffic_rows.create_traffic(
        project, owner, form.cleaned_data["name"], form.traffic(),
        default_named=form.cleaned_data["default_named"],
    )  # fmt: skip


#: Options of commands that say how to read a file, or how to make a preset.
READING = ("mapping", "rate_per_s", "interarrival_cv", "requests", "max_model_len", "time_unit", "decimal",
           "zero_outputs", "spread_grid", "seed")  # fmt: skip


def unused_reading(meant: Meaning, options: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first option that was given and has nothing to act on in such a traffic, and why."""
    takes: Iterable[str] = ()
    why = "belongs to reading a file: a stored traffic has been read"
    if meant.path:
        return None
    if meant.preset:
        takes, why = SynthesiseForm.base_fields, "belongs to reading a file: a preset is made"
    given = [name for name in READING if options.get(name) is not None and options[name] is not False]
    found = next((name for name in given if name not in takes), None)
    return None if found is None else (found, why)


def _refuse_unused(meant: Meaning, options: Mapping[str, Any]) -> None:
    if (unused := unused_reading(meant, options)) is not None:
        name, why = unused
        option = "--map" if name == "mapping" else f"--{name.replace('_', '-')}"
        raise BadInput(f"{option} {why}", [{"field": name, "message": why[0].upper() + why[1:] + "."}])


def stored_traffic(word: str, owner: Any) -> TrafficSet:
    """The stored traffic that is meant; BadInput for what is not stored."""
    meant = traffic_meaning(word, owner)
    if meant.row is None:
        raise _refused("traffic", f"{word!r} is not stored")
    row: TrafficSet = meant.row
    return row


def traffic_arrays(word: str, owner: Any, options: dict[str, Any]) -> Traffic:
    """As `traffic_row`, and nothing is stored."""
    meant = traffic_meaning(word, owner)
    _refuse_unused(meant, options)
    if meant.row is not None:
        return traffic_rows.traffic_of(meant.row)
    return _traffic_form(meant, options).traffic()


def _traffics(owner: Any) -> OwnedQuerySet[TrafficSet]:
    if owner is None:  # nobody was named: there are files and presets
        return TrafficSet.objects.none()
    return TrafficSet.objects.visible_to(owner).select_related("project")


def _traffic_form(meant: Meaning, options: dict[str, Any]) -> UploadTrafficForm | SynthesiseForm:
    """The valid form of a file or a preset; BadInput where it refuses."""
    keys = (*UploadTrafficForm.base_fields, *SynthesiseForm.base_fields)
    data = {key: options[key] for key in keys if options.get(key) is not None and key != "name"}
    form: UploadTrafficForm | SynthesiseForm
    if meant.preset:
        form = SynthesiseForm({**data, "preset": meant.preset})
    else:
        form = UploadTrafficForm(data, uploads(file=meant.path))
    refuse_invalid(form)
    return form


def plan_of(word: str, owner: Any) -> Plan:
    """The plan that is meant, by id or exact name; BadInput for none, and for several."""
    rows = Plan.objects.visible_to(owner).select_related("calibration", "project", "traffic")
    plan: Plan = meaning(word, rows, "plan", files=False).row
    return plan


def calibration_of(word: str, owner: Any, project: Project) -> Calibration:
    """The calibration that is meant; its file is imported into the project."""
    meant = meaning(word, Calibration.objects.visible_to(owner), "calibration")
    if meant.row is not None:
        found: Calibration = meant.row
        return found
    form = ImportDocumentForm({}, uploads(file=meant.path))
    refuse_invalid(form)
    row = calibration_services.create_import(project, owner, form.request())
    jobs.run(Calibration, str(row.pk), calibration_work.fit_imported)
    row.refresh_from_db()
    return row


def is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
