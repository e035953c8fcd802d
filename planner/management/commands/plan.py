"""manage.py plan --calibration C --traffic T --objective ttft:p95:1.0 ... --json: the answer, without a queue."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from accounts.models import Project
from calibration import jobs
from calibration import services as calibration_services
from calibration import work as calibration_work
from calibration.forms import ImportDocumentForm
from calibration.models import Calibration
from config import commandline as cli
from planner import services, work
from planner.commands import traffic_form
from planner.forms import PlanForm
from planner.models import Plan, TrafficSet


class Command(BaseCommand):
    help = "Find the least replicas and the knobs that meet the objectives; exit 1 when nothing does."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--calibration", required=True, help="id or name of a calibration, or its file")
        parser.add_argument(
            "--traffic", required=True, help="a file, a preset, or the id of a stored traffic"
        )
        parser.add_argument(
            "--objective", action="append", required=True, metavar="METRIC:pNN:SECONDS",
            help="ttft, itl, tpot or e2e, e.g. ttft:p95:1.0; may be given several times",
        )  # fmt: skip
        parser.add_argument("--max-replicas", type=int, default=8, help="the most you would deploy (8)")
        parser.add_argument("--budgets-tokens", help="max_num_batched_tokens to try [tokens], e.g. 512,1024")
        parser.add_argument("--chunk-caps-tokens", help="most of one prompt in a step [tokens]; 0: no cap")
        parser.add_argument("--max-num-seqs", help="most sequences at once, e.g. 64,256")
        parser.add_argument("--scheduling", choices=["async", "sync"], default="async")
        parser.add_argument(
            "--rate-per-s",
            type=float,
            help="requests/s, for traffic files without arrival times, and presets",
        )
        parser.add_argument("--requests", type=int, help="for presets")
        parser.add_argument("--max-model-len", type=int, help="leave out longer requests [tokens]")
        parser.add_argument("--seed", type=int, default=0)
        cli.add_json_argument(parser)
        cli.add_owner_arguments(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        owner, project = cli.owner_and_project(options)
        calibration = self._calibration(options, owner, project)
        if not calibration.published:
            state = calibration.reason or f"it is {calibration.status}"
            raise CommandError(f"not published: {state}", returncode=cli.REFUSED)
        plan = self._question(options, owner, calibration)
        status = jobs.run(Plan, str(plan.pk), work.plan)
        plan.refresh_from_db()
        if status != Plan.DONE or plan.result is None:
            raise CommandError(f"{status}: {plan.error or plan.message}", returncode=cli.BELOW)
        self.stdout.write(plan.sentence)
        if options["json"]:
            cli.print_json(self, {"plan": str(plan.pk), **plan.result["summary"]})
        cli.leave(cli.OK if plan.feasible else cli.BELOW)

    @transaction.atomic  # a question that is refused leaves no traffic behind
    def _question(self, options: dict[str, Any], owner: Any, calibration: Calibration) -> Plan:
        """The plan's row. It belongs, with the traffic read for it, to its calibration's project."""
        _, project = cli.owner_and_project({**options, "project": calibration.project.slug})
        traffic = self._traffic(options, owner, project)
        form = PlanForm(
            {**{key: options[key] for key in ("max_replicas", "budgets_tokens", "chunk_caps_tokens",
                                              "max_num_seqs", "scheduling", "seed")},
             "calibration": calibration.pk, "traffic": traffic.pk, "objectives": options["objective"]},
            user=owner,
        )  # fmt: skip
        cli.refuse_invalid(form)
        return services.create_plan(project, owner, form.request())

    def _calibration(self, options: dict[str, Any], owner: Any, project: Project) -> Calibration:
        """By id, by name (the newest), or imported from a calibration file."""
        named = options["calibration"]
        rows = Calibration.objects.visible_to(owner)
        found = rows.filter(pk=named).first() if _is_uuid(named) else rows.filter(name=named).first()
        if found is not None:
            return found
        if not Path(named).is_file():
            raise cli.BadInput(f"no calibration or file named {named!r}")
        form = ImportDocumentForm({}, cli.uploads(file=named))
        cli.refuse_invalid(form)
        row = calibration_services.create_import(project, owner, form.request())
        jobs.run(Calibration, str(row.pk), calibration_work.fit_imported)
        row.refresh_from_db()
        return row

    def _traffic(self, options: dict[str, Any], owner: Any, project: Project) -> TrafficSet:
        if _is_uuid(options["traffic"]):
            row = TrafficSet.objects.visible_to(owner).filter(pk=options["traffic"]).first()
            if row is None:
                raise cli.BadInput("no traffic has this id")
            return row
        form = traffic_form(options["traffic"], options)
        cli.refuse_invalid(form)
        return services.create_traffic(project, owner, form.cleaned_data["name"], form.traffic())


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
