"""``manage.py demo``: a new user's first minutes. Measures a small model on this machine, plans for a built-in
traffic, prints the verdict and where to read it, and keeps serving.

Everything goes the way a user's own work goes: the forms validate it, rows record it, Celery's workers do it.
Run again it reuses the published calibration and the finished plan. Exit status with ``--exit``: 0 after a
verdict, 3 when the calibration's gate refused, 1 for any other failure.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.urls import reverse

from accounts.access import current_project
from accounts.single_user import local_user
from calibration import services as calibrations
from calibration.architecture import PRESETS
from calibration.forms import CalibrateForm
from calibration.jobs import Job
from calibration.models import Calibration
from config import tree
from config.commandline import BELOW, REFUSED, leave, refuse_invalid
from planner import services as plans
from planner.forms import SynthesiseForm
from planner.management.commands.serve import arguments
from planner.models import Plan, TrafficSet
from planner.plan_forms import PlanForm
from planner.progress import ProgressLine

# The region the demo calibration covers, and a KV pool of four times its largest batch at full context.
ENVELOPE = {"max_batch": 16, "max_context_tokens": 1024, "max_step_tokens": 512}
KV_TOKENS = 65_536
TRAFFIC = "demo"
# What a chat is usually held to: the first word within half a second for 19 of 20 requests, and no pause between
# words above a twentieth of a second but for one in a hundred. Chosen before any measurement, the same everywhere.
OBJECTIVES = ("ttft:p95:0.5", "itl:p99:0.05")
MAX_REPLICAS = 8
POLL_S = 0.25
NOBODY_AFTER_S = 60.0


class Command(BaseCommand):
    help = "Measures a small model here, plans for a built-in traffic, and serves the result."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--exit", action="store_true", help="stop after the verdict instead of serving on"
        )
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000)

    def handle(self, *_args: Any, host: str, port: int, **options: Any) -> None:
        if not settings.SINGLE_USER:
            raise CommandError("the demo is for single-user mode (RIDGELINE_MODE=single)", returncode=2)
        self.line = ProgressLine(self.stdout)
        reached = False
        try:
            with ExitStack() as stack:
                url, tick, own = self._tree(stack, host, port)
                self._measure_and_plan(url, tick, options)
                reached = True
                if options["exit"] or not own:
                    return
                self.line.say("Serving on. Ctrl-C ends every process.")
                while True:
                    tick()
                    time.sleep(POLL_S)
        except KeyboardInterrupt:
            self.line.say("Ended. `make run` serves what is there; `make demo` goes on where this stopped.")
            leave(0 if reached else 130)
        except tree.Refused as refusal:
            raise CommandError(str(refusal), returncode=2) from refusal

    def _tree(self, stack: ExitStack, host: str, port: int) -> tuple[str, Callable[[], None], bool]:
        """A tree of our own, or the one that already runs on this data directory."""
        try:
            serving = stack.enter_context(tree.running(**arguments(host, port), say=self.line.say))
        except tree.AlreadyServing as other:
            if other.url is None or not tree.answers(other.url):
                raise
            self.line.say(f"Using the Ridgeline that already serves {other.url}")
            return other.url, lambda: None, False
        self.line.say(f"Ridgeline serves {serving.url}  (logs: {settings.DATA_DIR / 'logs'})")
        return serving.url, serving.supervisor.tick, True

    def _measure_and_plan(self, url: str, tick: Callable[[], None], options: dict[str, Any]) -> None:
        user = local_user()
        project = current_project(user)
        calibration = self._calibration(project, user, url, tick)
        traffic = self._traffic(project, user)
        plan = self._plan(project, user, calibration, traffic, url, tick)
        self.line.say("")
        self.line.say(plan.sentence)
        self.line.say(f"Read why: {url}{reverse('planner:plan_detail', args=[plan.pk])}")

    def _calibration(self, project: Any, user: Any, url: str, tick: Callable[[], None]) -> Calibration:
        mine = Calibration.objects.filter(
            project=project, source=Calibration.MEASURED, device="cpu", envelope=ENVELOPE,
            architecture__name=PRESETS["demo"].name, kv_tokens=KV_TOKENS,
        ).order_by("-created_at")  # fmt: skip
        if found := mine.usable().first():
            self.line.say(
                f"1/3 Using the calibration of {found.created_at:%Y-%m-%d %H:%M} UTC: {found.reason}"
            )
            return found
        # One still at work is followed; if its worker turns out to be gone, another is started.
        calibration = mine.active().first()
        if calibration is not None:
            self._follow(calibration, "1/3 Measuring, started earlier", tick)
        if calibration is None or calibration.status == Job.INTERRUPTED:
            form = CalibrateForm({"model": "demo", "device": "cpu", "kv_tokens": KV_TOKENS, **ENVELOPE})
            refuse_invalid(form)
            calibration = calibrations.start_calibration(project, user, form.request())
            self.line.say(f"    watch it: {url}{reverse('calibration:detail', args=[calibration.pk])}")
            self._follow(calibration, f"1/3 Measuring {calibration.model_name} on this CPU", tick)
        self._require_done(calibration)
        self.line.say(f"    {calibration.reason}")
        if not calibration.published:
            self.line.say(
                "The gate refused this calibration, so nothing is planned from it. Run it again, best quiet."
            )
            leave(REFUSED)
        return calibration

    def _traffic(self, project: Any, user: Any) -> TrafficSet:
        found = TrafficSet.objects.filter(project=project, source=TRAFFIC, format="synthetic").first()
        if found is None:
            form = SynthesiseForm({"preset": TRAFFIC})
            refuse_invalid(form)
            found = plans.create_traffic(
                project, user, form.cleaned_data["name"], form.traffic(), default_named=True
            )
        self.line.say(f"2/3 Traffic: {found.name}, {found.statistics['rows']:,} requests")
        return found

    def _plan(
        self, project: Any, user: Any, calibration: Calibration, traffic: TrafficSet, url: str,
        tick: Callable[[], None],
    ) -> Plan:  # fmt: skip
        form = PlanForm(
            {"calibration": calibration.pk, "traffic": traffic.pk, "objectives": list(OBJECTIVES),
             "max_replicas": MAX_REPLICAS},
            user=user,
        )  # fmt: skip
        refuse_invalid(form)
        request = form.request()
        specs = [objective.spec for objective in request.objectives]
        same = Plan.objects.filter(project=project, calibration=calibration, traffic=traffic)
        plan = next((old for old in same.filter(status=Job.DONE) if old.objectives == specs), None)
        if plan is not None:
            self.line.say(
                f"3/3 Using the plan of {plan.created_at:%Y-%m-%d %H:%M} UTC for {', '.join(specs)}"
            )
            return plan
        plan = plans.start_plan(project, user, request)
        self._follow(plan, f"3/3 Planning for {', '.join(specs)}", tick)
        self._require_done(plan)
        return plan

    def _follow(self, job: Job, title: str, tick: Callable[[], None]) -> None:
        """Shows the row's progress until the job has ended."""
        since_s, warned = time.monotonic(), False
        while True:
            tick()
            job.refresh_from_db()
            if not job.is_active:
                break
            if job.status == Job.QUEUED and not warned and time.monotonic() - since_s > NOBODY_AFTER_S:
                warned = True
                self.line.say(f"No worker has taken it yet; see {settings.DATA_DIR / 'logs'}")
            self.line.show(title, job)
            time.sleep(POLL_S)
        self.line.say(f"{title}: {job.status} after {job.elapsed_s:.0f} s")

    def _require_done(self, job: Job) -> None:
        if job.status != Job.DONE:
            self.line.say(f"{job.name}: {job.status}. {job.error or job.message}")
            leave(BELOW)
