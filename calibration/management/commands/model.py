"""manage.py model CONFIG_OR_PRESET --json: what an architecture is made of, by counting."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from calibration.architecture import UnsupportedArchitecture, load_architecture
from calibration.describe import described
from config.commandline import BAD_INPUT, print_json


class Command(BaseCommand):
    help = "Parameters, weight bytes and KV bytes per token of a preset or a config.json."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model", help="a preset's name or the path of a config.json")
        parser.add_argument("--json", action="store_true", help="one JSON object on the last line")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            architecture = load_architecture(options["model"])
        except UnsupportedArchitecture as error:
            if options["json"]:
                print_json(
                    self, {"detail": str(error), "errors": [{"field": error.field, "message": error.message}]}
                )
            raise CommandError(str(error), returncode=BAD_INPUT) from error
        figures = described(architecture)
        if options["json"]:
            print_json(self, figures)
            return
        for name, value in figures.items():
            shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
            self.stdout.write(f"{name:32} {shown}")
