"""manage.py replan PLAN.json --json: an exported plan asked again, here, and whether the same comes out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from accounts.models import Project
from calibration import strict_json
from calibration.models import Calibration
from config import commandline as cli
from planner import asked_again, services, work
from planner.commands import CALIBRATION_HELP, TRAFFIC_HELP, add_reading_arguments, traffic_row
from planner.models import Plan, TrafficSet
from planner.plan_commands import answer_here, as_json, published, told

MOST_BYTES = 64_000_000


class Command(BaseCommand):
    help = "Ask an exported plan again and compare; exit 1 unless the answer is the same to the last digit."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", help="a plan's result as its page and the API give it (Result, JSON)")
        found = "Default: what is stored here and is, by its digest, what the plan was asked of"
        parser.add_argument("--calibration", help=f"{CALIBRATION_HELP}. {found}")
        parser.add_argument(
            "--second-calibration", help="of a plan on two kinds of hardware, as --calibration"
        )
        parser.add_argument("--traffic", help=f"{TRAFFIC_HELP}. {found}")
        add_reading_arguments(parser)
        cli.add_json_argument(parser)
        cli.add_owner_arguments(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        owner, project = cli.owner_and_project(options)
        try:
            result = strict_json.read(cli.text_of(options["file"], "file", MOST_BYTES))
            plan = self._asked(asked_again.inputs_of(result), owner, project, options)
        except (asked_again.NotAPlan, strict_json.JsonError) as error:
            raise _refused("file", f"{options['file']}: {error}") from error
        answer_here(plan)
        again: Mapping[str, Any] = plan.result or {}
        same = asked_again.same_answer(result, again)
        told(self, plan)
        self.stdout.write("The same answer, to the last digit." if same else _otherwise(result, again))
        if options["json"]:
            cli.print_json(self, {"same": same, **as_json(plan)})
        cli.leave(cli.OK if same else cli.BELOW)

    @transaction.atomic  # what is refused leaves no rows behind
    def _asked(
        self, inputs: Mapping[str, Any], owner: Any, project: Project, options: dict[str, Any]
    ) -> Plan:
        calibrations = self._calibrations(inputs, owner, project, options)
        _, project = cli.owner_and_project({**options, "project": calibrations[0].project.slug})
        traffic: TrafficSet | None
        if options["traffic"]:
            traffic = traffic_row(options["traffic"], owner, project, options)
        else:
            traffic = asked_again.traffic_with(inputs, owner)
        if traffic is None:
            raise _refused(
                "traffic", "no traffic here has the plan's requests: bring its file with --traffic"
            )
        name = Path(options["file"]).stem
        second = calibrations[1] if len(calibrations) > 1 else None
        request = asked_again.request_of(inputs, name, calibrations[0], second, traffic)
        plan = services.create_plan(project, owner, request)
        unlike = asked_again.differences(inputs, work.prepared(plan, calibrations[0], lambda: False).inputs)
        if unlike:
            raise _refused("file", f"that would be another question: not the same are {', '.join(unlike)}")
        return plan

    def _calibrations(
        self, inputs: Mapping[str, Any], owner: Any, project: Project, options: dict[str, Any]
    ) -> list[Calibration]:
        """Of each kind of hardware."""
        found = []
        for field, law in zip(
            ("calibration", "second_calibration"), asked_again.laws_of(inputs), strict=False
        ):
            if options[field]:
                row: Calibration | None = published(options[field], owner, project)
            else:
                row = asked_again.calibration_with(law, owner)
            if row is None:
                option = field.replace("_", "-")
                raise _refused(
                    field, f"no calibration here has the plan's step times: bring its file with --{option}"
                )
            found.append(row)
        return found


def _refused(field: str, message: str) -> cli.BadInput:
    return cli.BadInput(message, [{"field": field, "message": message}])


def _otherwise(result: Mapping[str, Any], again: Mapping[str, Any]) -> str:
    """What made the two, where something else came out."""
    made = [each.get("made_with") or {} for each in (result, again)]
    if made[0] == made[1]:
        return "Another answer, made with the same versions."
    words = [
        f"{key} {made[0].get(key, 'unknown')}, here {made[1].get(key, 'unknown')}"
        for key in sorted({*made[0], *made[1]})
        if made[0].get(key) != made[1].get(key)
    ]
    return f"Another answer. It was made with other versions: {'; '.join(words)}."
