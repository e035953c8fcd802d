"""manage.py shape TRAFFIC --operations JSON --json: a new traffic of a stored one; or an old recipe played again."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from config import commandline as cli
from planner import services
from planner.commands import TRAFFIC_HELP, add_reading_arguments, stored_traffic, traffic_row
from planner.models import TrafficSet
from planner.shape_forms import ShapeForm
from planner.traffic import TrafficError
from planner.traffic.identity import arrays_sha256


class Command(BaseCommand):
    help = (
        "Make a new traffic of a stored one by operations in order, or make a shaped one again and compare."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("traffic", help=f"{TRAFFIC_HELP}. What is not stored yet is stored first")
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument(
            "--operations", metavar="JSON_OR_FILE",
            help='a list such as [{"op": "thin", "share": 0.5}], or a file that holds one',
        )  # fmt: skip
        what.add_argument(
            "--check",
            action="store_true",
            help="make this shaped traffic again; exit 1 unless every bit is the same",
        )
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--name", default="", help="default: after the traffic it is made of")
        add_reading_arguments(parser)
        cli.add_json_argument(parser)
        cli.add_owner_arguments(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        owner, project = cli.owner_and_project(options)
        if options["check"]:
            self._check(stored_traffic(options["traffic"], owner), owner, options)
            return
        row = traffic_row(options["traffic"], owner, project, {**options, "seed": None})
        _, project = cli.owner_and_project({**options, "project": row.project.slug})
        sent = {
            "name": options["name"],
            "seed": options["seed"],
            "operations": _operations(options["operations"]),
        }
        form = ShapeForm(sent, traffic=row, user=owner)
        cli.refuse_invalid(form)
        made = services.create_traffic(
            project, owner, form.cleaned_data["name"], form.traffic(),
            default_named=form.cleaned_data["default_named"],
        )  # fmt: skip
        for number, operation in enumerate(form.done, 1):
            self.stdout.write(f"{number}. {operation.sentence()}")
        self.stdout.write(f"{made.name}: {made.statistics['requests']:,} requests ({made.pk})")
        if options["json"]:
            cli.print_json(self, {"traffic": str(made.pk), "name": made.name, "statistics": made.statistics,
                                  "warnings": made.warnings, "recipe": made.recipe})  # fmt: skip

    def _check(self, row: TrafficSet, owner: Any, options: dict[str, Any]) -> None:
        if "shape" not in row.recipe:
            message = "this traffic was not shaped: it has no recipe to play again"
            raise cli.BadInput(message, [{"field": "traffic", "message": message}])
        try:
            again = services.remade(row, owner)
        except TrafficError as error:
            raise CommandError(error.detail, returncode=cli.BELOW) from error
        same = arrays_sha256(again) == arrays_sha256(services.traffic_of(row))
        self.stdout.write("the same, bit for bit" if same else "something else than what is stored")
        if options["json"]:
            cli.print_json(self, {"same": same, "arrays_sha256": arrays_sha256(again)})
        cli.leave(cli.OK if same else cli.BELOW)


def _operations(given: str) -> Any:
    """The JSON itself, or that of a file."""
    if given.lstrip()[:1] in ("[", "{"):
        return given
    return cli.text_of(given, "operations")
