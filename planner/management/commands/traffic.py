"""manage.py traffic FILE_OR_PRESET --json: what a trace says, by the statistics' stated definitions."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from config import commandline as cli
from planner.commands import traffic_form
from planner.traffic import statistics


class Command(BaseCommand):
    help = "Read a trace (or a preset), report what was found, print its statistics."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("traffic", help="a file, or a preset: chat, code, summary, demo")
        parser.add_argument("--rate-per-s", type=float, help="for files without arrival times")
        parser.add_argument("--max-model-len", type=int, help="list and leave out longer requests")
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
                self.stdout.write(f"{name:20} {value}")
        for warning in figures["warnings"]:
            self.stdout.write(f"warning ({warning['code']}, {warning['count']}): {warning['message']}")
