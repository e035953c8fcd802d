"""manage.py generate MODEL --requests N --seed S --json: traffic from a model (JSON, a file of it, or a preset)."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from config import commandline as cli
from planner import services
from planner.generate_forms import GenerateForm
from planner.traffic import PRESETS


class Command(BaseCommand):
    help = "Make traffic from a model: arrivals, lengths and sessions. It is stored."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model", help=f"JSON, a file that holds it, or a preset: {', '.join(PRESETS)}")
        parser.add_argument("--requests", type=int, help="so many")
        parser.add_argument("--duration-s", type=float, help="or all that come within these seconds")
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--name", default="", help="default: after the kinds chosen")
        cli.add_json_argument(parser)
        cli.add_owner_arguments(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        owner, project = cli.owner_and_project(options)
        sent = {
            key: options[key]
            for key in ("requests", "duration_s", "seed", "name")
            if options[key] is not None
        }
        form = GenerateForm({**sent, "model": _model(options["model"])}, project=project, user=owner)
        cli.refuse_invalid(form)
        made = services.create_traffic(
            project, owner, form.cleaned_data["name"], form.traffic(),
            default_named=form.cleaned_data["default_named"],
        )  # fmt: skip
        self.stdout.write(f"{made.name}: {made.statistics['requests']:,} requests ({made.pk})")
        if options["json"]:
            cli.print_json(self, {"traffic": str(made.pk), "name": made.name, "statistics": made.statistics,
                                  "recipe": made.recipe})  # fmt: skip


def _model(given: str) -> Any:
    if given in PRESETS:
        return PRESETS[given].model().to_dict()
    if given.lstrip()[:1] == "{":
        return given
    return cli.text_of(given, "model")
