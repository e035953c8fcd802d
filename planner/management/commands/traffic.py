"""manage.py traffic FILE_OR_PRESET --json: what a trace says, by the statistics' stated definitions."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from calibration.templatetags.units import decimal, readable
from config import commandline as cli
from planner.commands import traffic_form
from planner.traffic import statistics


class Command(BaseCommand):
    help = "Read a trace (or a preset), report what was found, print its statistics."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("traffic", help="a file, or a preset: chat, code, summary, demo")
        parser.add_argument(
            "--rate-per-s", type=float, help="requests/s, for files without arrival times, and presets"
        )
        parser.add_argument("--max-model-len", type=int, help="list and leave out longer requests [tokens]")
        parser.add_argument(
            "--interarrival-cv", type=float, help="burstiness for files without arrival times"
        )
        parser.add_argument("--time-unit", choices=["s", "ms", "us", "ns"], help="of a numeric time column")
        parser.add_argument("--decimal", choices=[".", ","], help="the decimal mark in times")
        parser.add_argument("--zero-outputs", choices=["exclude", "keep_arrival"], default="exclude")
        parser.add_argument("--spread-grid", action="store_true", help="spread requests that share a stamp")
        parser.add_argument("--seed", type=int, default=0)
        cli.add_json_argument(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        form = traffic_form(options["traffic"], options)
        cli.refuse_invalid(form)
        figures = statistics(form.traffic())
        if options["json"]:
            cli.print_json(self, figures)
            return
        for name, value in figures.items():
            if name != "warnings":
                self.stdout.write(f"{readable(name):26} {_words(value)}")
        for warning in figures["warnings"]:
            self.stdout.write(f"warning ({warning['code']}, {warning['count']}): {warning['message']}")


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(part)}" for key, part in value.items())
    if isinstance(value, float) and not value.is_integer():
        return decimal(value) if value < 1000 else f"{value:,.0f}"
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)
