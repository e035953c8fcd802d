"""manage.py mixed_load PLAN [--grid] --json: long prompts beside short answers on a plan's device, without a queue."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from config import commandline as cli
from planner.commands import PLAN_HELP, plan_of
from planner.mixed_load_work import run_mixed_load
from planner.verification_commands import refuse, run_and_report
from planner.verification_forms import MixedLoadForm
from planner.verifications import create_verification, why_not_mixed_load

SIZES = ("prompt_tokens", "output_tokens", "streams", "replays", "seed")


class Command(BaseCommand):
    help = "Run long prompts beside short answers on a plan's device, and compare; exit 1 outside the bars."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("plan", help=PLAN_HELP)
        for name in SIZES:
            field = MixedLoadForm.base_fields[name]
            parser.add_argument(
                f"--{name.replace('_', '-')}", help=str(field.help_text or field.label or "") or None
            )
        parser.add_argument(
            "--grid", action="store_true", help=str(MixedLoadForm.base_fields["grid"].help_text)
        )
        cli.add_json_argument(parser)
        cli.add_owner_arguments(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        owner, _ = cli.owner_and_project(options)
        plan = plan_of(options["plan"], owner)
        refuse(why_not_mixed_load(plan))
        given = {name: options[name] for name in (*SIZES, "grid") if options[name] is not None}
        form = MixedLoadForm(given, plan=plan)
        cli.refuse_invalid(form)
        row = create_verification(plan, owner, form.asked())
        run_and_report(self, row, run_mixed_load, options["json"])
