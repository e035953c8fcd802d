"""manage.py fit TRAFFIC --json: a model of a stored traffic, judged on the half that was held out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from config import commandline as cli
from planner.commands import TRAFFIC_HELP, add_reading_arguments, traffic_meaning, traffic_row
from planner.fit_forms import FitForm
from planner.traffic.fitting import CRITERION, FIT_PARTS, SESSION_KINDS, Candidate
from planner.traffic.generating import ARRIVALS, LENGTHS


class Command(BaseCommand):
    help = "Fit a synthetic model to a stored traffic; its JSON is what `generate` takes."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("traffic", help=f"{TRAFFIC_HELP}. What is not stored yet is stored first")
        parser.add_argument("--arrivals", choices=list(ARRIVALS), default="", help="default: what holds best")
        parser.add_argument("--lengths", choices=list(LENGTHS), default="", help="default: what holds best")
        parser.add_argument(
            "--sessions",
            choices=list(SESSION_KINDS),
            default="",
            help="default: what holds best; needs prefix hashes",
        )
        add_reading_arguments(parser)
        cli.add_json_argument(parser)
        cli.add_owner_arguments(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        owner, project = cli.owner_and_project(options)
        known = traffic_meaning(options["traffic"], owner).row is not None
        row = traffic_row(options["traffic"], owner, project, options)
        said = "traffic" if known else "stored as traffic"
        self.stdout.write(f"{said} {row.name}: {row.statistics['requests']:,} requests ({row.pk})")
        form = FitForm({key: options[key] for key in FIT_PARTS}, traffic=row)
        cli.refuse_invalid(form)
        found = form.report
        assert found is not None  # noqa: S101  # a valid form has it
        for part, candidates, chosen in found.tables:
            self._tell(part, candidates, chosen, asked=bool(options[part]))
        floors = {one.name: one.distance for one in found.floor.distances}
        for one in found.comparison.distances:
            self.stdout.write(
                f"{one.name:14} KS {one.distance:.3f} on the held-out half (the halves: {floors[one.name]:.3f})"
            )
        self.stdout.write(f"model, fitted to {found.requests:,} requests:")
        for line in found.model.in_words():
            self.stdout.write(f"  {line}")
        for remark in found.remarks:
            self.stdout.write(f"note: {remark}")
        if options["json"]:
            cli.print_json(self, {"traffic": str(row.pk), **found.to_dict()})

    def _tell(self, part: str, candidates: Sequence[Candidate], chosen: str, *, asked: bool) -> None:
        why = "as asked" if asked else CRITERION
        self.stdout.write(f"{part}; * is what the model has, {why}:")
        for candidate in candidates:
            mark = "*" if candidate.kind == chosen else " "
            self.stdout.write(f"{mark} {candidate.title:28} score {candidate.score:.3f}")
