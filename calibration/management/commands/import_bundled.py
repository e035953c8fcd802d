"""manage.py import_bundled [NAME] --json: calibrations that come with Ridgeline, listed or imported."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from calibration import services, work
from calibration.bundles import bundled
from calibration.forms import ImportBundledForm
from calibration.management.commands.calibrate import report_calibration, run_here
from config import commandline as cli


class Command(BaseCommand):
    help = "List the bundled calibrations, or import one by its name."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("bundle", nargs="?", metavar="name", help="as listed, e.g. h200/llama-8b")
        cli.add_json_argument(parser)
        cli.add_owner_arguments(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        if not options["bundle"]:
            self._list(options["json"])
            return
        owner, project = cli.owner_and_project(options)
        form = ImportBundledForm({"name": options["bundle"]})
        cli.refuse_invalid(form)
        calibration = services.create_import(project, owner, form.request())
        run_here(calibration, work.fit_imported)
        report_calibration(self, calibration, options["json"])

    def _list(self, as_json: bool) -> None:
        entries = bundled()
        for entry in entries:
            told = entry.problem or f"{entry.model} on {entry.device}, {entry.engine}, {entry.steps:,} steps"
            self.stdout.write(f"{entry.name}: {told} (SHA-256 {entry.sha256[:16]})")
        if not entries:
            self.stdout.write("No calibration is bundled with this release.")
        if as_json:
            names = [{"name": e.name, "sha256": e.sha256, "problem": e.problem} for e in entries]
            cli.print_json(self, {"bundled": names})
