"""manage.py traffic FILE_OR_PRESET --json: what a trace says, by the statistics' stated definitions."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from calibration.templatetags.units import decimal, readable
from config import commandline as cli
from planner.commands import TRAFFIC_HELP, traffic_arrays
from planner.traffic import statistics
from planner.traffic.layout import UNIT_NAMES

#: Why a figure is not there.
UNDEFINED = {
    "interarrival_cv": "undefined: too few gaps between arrivals",
    "dispersion": "undefined: too short for windows of one length",
    "rank_correlation": "undefined: all prompts, or all outputs, are of one length",
}


class Command(BaseCommand):
    help = "Read a trace (or a preset), report what was found, print its statistics."

    requires_system_checks: list[str] = []  # they load every page, which takes longer than a trace

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("traffic", help=TRAFFIC_HELP)
        parser.add_argument(
            "--rate-per-s", type=float, help="requests/s, for files without arrival times, and presets"
        )
        parser.add_argument("--max-model-len", type=int, help="list and leave out longer requests [tokens]")
        parser.add_argument(
            "--interarrival-cv", type=float, help="burstiness for files without arrival times"
        )
        parser.add_argument(
            "--map",
            dest="mapping",
            metavar="ROLE=COLUMN,...",
            help="which column is time, prompt, output, max_tokens, priority, class, status; also options by name "
            "(thousands=.,delimiter=;); or the same as a JSON object",
        )
        parser.add_argument("--time-unit", choices=[*UNIT_NAMES], help="of a numeric time column")
        parser.add_argument("--decimal", choices=[".", ","], help="the decimal mark in times")
        parser.add_argument("--zero-outputs", choices=["exclude", "keep_arrival"], help="(exclude)")
        parser.add_argument("--spread-grid", action="store_true", help="spread requests that share a stamp")
        parser.add_argument("--seed", type=int, help="of a preset, or of what a file leaves to chance (0)")
        cli.add_json_argument(parser)
        cli.add_owner_arguments(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        known = settings.SINGLE_USER or options["user"]
        owner = cli.owner_and_project(options)[0] if known else None
        figures = statistics(traffic_arrays(options["traffic"], owner, options))
        if options["json"]:
            cli.print_json(self, figures)
            return
        for name, value in figures.items():
            if name != "warnings":
                shown = UNDEFINED.get(name, "undefined") if value in (None, []) else _words(value)
                self.stdout.write(f"{readable(name):26} {shown}")
        for warning in figures["warnings"]:
            rows = f", {warning['count']:,} row{'s' * (warning['count'] != 1)}" if warning["count"] else ""
            self.stdout.write(f"warning ({warning['code']}{rows}): {warning['message']}")


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(part)}" for key, part in value.items())
    if isinstance(value, list):
        return "; ".join(_words(part) for part in value)
    if isinstance(value, float) and not value.is_integer():
        return decimal(value) if value < 1000 else f"{value:,.0f}"
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)
