"""manage.py model CONFIG_OR_PRESET --json: what an architecture is made of, by counting."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from calibration.architecture import UnsupportedArchitecture, load_architecture
from calibration.describe import described
from config import commandline as cli


class Command(BaseCommand):
    help = "Parameters, weight bytes and KV bytes per token of a preset or a config.json."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model", help="a preset's name or the path of a config.json")
        cli.add_json_argument(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        try:
            architecture = load_architecture(options["model"])
        except UnsupportedArchitecture as error:
            errors = [{"field": error.field, "message": error.message}]
            raise cli.BadInput(str(error), errors) from error
        figures = described(architecture)
        if options["json"]:
            cli.print_json(self, figures)
            return
        for name, value in figures.items():
            shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
            self.stdout.write(f"{name:32} {shown}")
