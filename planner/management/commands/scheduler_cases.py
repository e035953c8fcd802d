"""manage.py scheduler_cases FILE.jsonl.gz [--by reference|kernel|both]: our batches against the real ones."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from config import commandline as cli
from planner.simulation.cases import CaseFileError, run_cases


class Command(BaseCommand):
    help = "Replay recordings of real scheduler objects; exit 1 unless every case is identical."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", help="recordings: a JSON object a line, also .gz")
        parser.add_argument("--by", choices=["reference", "kernel", "both"], default="both")
        cli.add_json_argument(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        engines = ["reference", "kernel"] if options["by"] == "both" else [options["by"]]
        reports = {}
        for by in engines:
            try:
                report = run_cases(options["file"], by)
            except (CaseFileError, OSError) as error:
                cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
                reason = getattr(cause, "strerror", None) or str(error)
                raise CommandError(f"{options['file']}: {reason}", returncode=cli.BAD_INPUT) from error
            reports[by] = report
            self.stdout.write(f"{by}: {report.cases} cases, {report.identical} identical")
            for difference in report.differences[:5]:
                self.stdout.write(f"  {difference}")
        if options["json"]:
            cli.print_json(
                self, {by: {"cases": r.cases, "identical": r.identical} for by, r in reports.items()}
            )
        cli.leave(cli.OK if all(r.cases and r.cases == r.identical for r in reports.values()) else cli.BELOW)
