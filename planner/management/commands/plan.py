"""manage.py plan --calibration C --traffic T --objective ttft:p95:1.0 ... --json: the answer, without a queue."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from calibration.models import Calibration
from config import commandline as cli
from planner import services
from planner.commands import CALIBRATION_HELP, TRAFFIC_HELP, traffic_row
from planner.models import Plan
from planner.plan_commands import answer_here, as_json, published, told
from planner.plan_forms import ASSUMED, COST, DEPLOYMENT, LOAD, SECOND, PlanForm
from planner.schedule_forms import SCHEDULE


class Command(BaseCommand):
    help = "Find the least replicas and the knobs that meet the objectives; exit 1 when nothing does."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--calibration", required=True, help=CALIBRATION_HELP)
        parser.add_argument("--traffic", required=True, help=TRAFFIC_HELP)
        parser.add_argument(
            "--second-calibration",
            help="of the same model on other hardware, as --calibration: replicas and pools may be on either",
        )
        parser.add_argument(
            "--objective", action="append", default=[], metavar="METRIC:pNN:SECONDS",
            help="ttft, itl, tpot or e2e, e.g. ttft:p95:1.0; or goodput:p99:ttft=1.0+tpot=0.05, a share of requests "
            "that meets every limit; may be given several times",
        )  # fmt: skip
        parser.add_argument(
            "--class-objective", action="append", default=[], metavar="CLASS=METRIC:pNN:SECONDS",
            help="the same for the requests of one class; --objective is then for the other classes",
        )  # fmt: skip
        parser.add_argument("--max-replicas", type=int, default=8, help="the most you would deploy (8)")
        parser.add_argument("--budgets-tokens", help="max_num_batched_tokens to try [tokens], e.g. 512,1024")
        parser.add_argument("--chunk-caps-tokens", help="most of one prompt in a step [tokens]; 0: no cap")
        parser.add_argument("--max-num-seqs", help="most sequences at once, e.g. 64,256")
        parser.add_argument("--routers", help="to try, separated by commas: round robin, least outstanding tokens, "
                            "prefix aware")  # fmt: skip
        parser.add_argument("--scheduling", choices=["async", "sync"], default="async")
        parser.add_argument(
            "--rate-per-s",
            type=float,
            help="requests/s, for traffic files without arrival times, and presets",
        )
        parser.add_argument("--requests", type=int, help="for presets")
        parser.add_argument("--max-model-len", type=int, help="leave out longer requests [tokens]")
        parser.add_argument("--seed", type=int, default=0)
        _add_conditions(parser)
        cli.add_json_argument(parser)
        cli.add_owner_arguments(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        owner, project = cli.owner_and_project(options)
        calibration = published(options["calibration"], owner, project)
        second = None
        if options["second_calibration"]:
            second = published(options["second_calibration"], owner, project)
        plan = self._question(options, owner, calibration, second)
        answer_here(plan)
        told(self, plan)
        if options["json"]:
            cli.print_json(self, as_json(plan))
        cli.leave(cli.OK if plan.feasible else cli.BELOW)

    @transaction.atomic  # a question that is refused leaves no traffic behind
    def _question(
        self, options: dict[str, Any], owner: Any, calibration: Calibration, second: Calibration | None
    ) -> Plan:
        """The plan's row. It belongs, with the traffic read for it, to its calibration's project."""
        _, project = cli.owner_and_project({**options, "project": calibration.project.slug})
        traffic = traffic_row(options["traffic"], owner, project, options)
        form = PlanForm(
            {**{key: options[key] for key in ("max_replicas", "budgets_tokens", "chunk_caps_tokens",
                                              "max_num_seqs", "routers", "scheduling", "seed")},
             **{key: options[key] for key in CONDITIONS if options[key] is not None},
             "calibration": calibration.pk, "traffic": traffic.pk,
             **({"second_calibration": second.pk} if second else {}),
             "objectives": [*options["objective"], *options["class_objective"]]},
            user=owner,
        )  # fmt: skip
        cli.refuse_invalid(form)
        return services.create_plan(project, owner, form.request())


#: Options that go to the form under their own names; their help and limits are the form's.
CONDITIONS = ("engine", *DEPLOYMENT, "headroom", *LOAD, *COST, *SECOND[1:], *ASSUMED, *SCHEDULE)


def _add_conditions(parser: CommandParser) -> None:
    group = parser.add_argument_group(
        "conditions", "what the plan must hold under; the defaults are the page's"
    )
    for name in CONDITIONS:
        field = PlanForm.base_fields[name]
        help_text = f"{field.label}. {field.help_text}".replace("%", "%%")
        if field.initial not in (None, ""):
            help_text += f" ({field.initial})"
        choices = [key for key, _ in getattr(field, "choices", ())] or None
        group.add_argument(f"--{name.replace('_', '-')}", choices=choices, help=help_text)
