"""manage.py verify PLAN [--load 0.8] --json: replay a plan's window on its device, here and now, without a queue."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from config import commandline as cli
from planner import verification_work
from planner.commands import PLAN_HELP, plan_of
from planner.verification_commands import refuse, run_and_report
from planner.verification_forms import VerifyForm
from planner.verifications import create_verification, why_not


class Command(BaseCommand):
    help = "Serve a window of a plan's traffic on the device it was measured on, and compare; exit 1 outside the bars."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("plan", help=PLAN_HELP)
        for name in ("requests", "replays", "load", "seed"):
            field = VerifyForm.base_fields[name]
            help_text = str(field.help_text or field.label or "").replace("%", "%%")
            parser.add_argument(f"--{name}", help=help_text or None)
        cli.add_json_argument(parser)
        cli.add_owner_arguments(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        owner, _ = cli.owner_and_project(options)
        plan = plan_of(options["plan"], owner)
        refuse(why_not(plan))
        form = VerifyForm(
            {name: options[name] for name in VerifyForm.base_fields if options[name] is not None}
        )
        cli.refuse_invalid(form)
        row = create_verification(plan, owner, form.asked())
        run_and_report(self, row, verification_work.verify, options["json"])
