"""The web process's part in job tests: a process of its own that calls the services, as a view would.

Reads one JSON request a line ({"call": name, "arguments": {...}}), answers one JSON line. Its environment says which
database and queue it uses.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup()

from django.core.files.uploadedfile import UploadedFile  # noqa: E402
from django.utils import timezone  # noqa: E402
from django_celery_beat.models import PeriodicTask  # noqa: E402

from accounts import tokens  # noqa: E402
from accounts.access import current_project  # noqa: E402
from accounts.models import ApiToken  # noqa: E402
from accounts.single_user import local_user  # noqa: E402
from calibration import jobs, schedules, services, tasks  # noqa: E402
from calibration.architecture import PRESETS  # noqa: E402
from calibration.forms import CalibrateForm  # noqa: E402
from calibration.models import Calibration, Channel, Delivery, DriftCheck, Schedule, ScheduleRun  # noqa: E402
from calibration.notification_models import EVENTS  # noqa: E402
from config.celery import app  # noqa: E402
from planner import import_work, reviews, uploads  # noqa: E402
from planner.models import Plan, PlanReview, TrafficArrays, TrafficImport, TrafficSet  # noqa: E402

seeds = itertools.count(1)


def start(config: dict[str, Any], kv_tokens: int, **envelope: int) -> str:
    """Starts a calibration as the page does: form, service, message. Each with a seed of its own, since one like
    another that still counts as running, its worker killed a moment ago, would be that one."""
    user = local_user()
    form = CalibrateForm(
        {
            "model": "config",
            "config_text": json.dumps(config),
            "device": "cpu",
            "kv_tokens": kv_tokens,
            "seed": next(seeds),
            **envelope,
        }
    )
    assert form.is_valid(), form.errors.as_text()
    return str(services.start_calibration(current_project(user), user, form.request()).pk)


def row(pk: str) -> dict[str, Any]:
    job = Calibration.objects.get(pk=pk)
    return {
        "status": job.status, "done": job.done, "total": job.total, "percent": job.percent, "eta_s": job.eta_s,
        "message": job.message, "log": job.log, "error": job.error, "worker": job.worker, "published": job.published,
        "started_at": str(job.started_at), "finished_s": job.finished_at and job.finished_at.timestamp(),
        "ordinals": list(job.samples.values_list("ordinal", flat=True)),
    }  # fmt: skip


def cancel(pk: str) -> bool:
    return jobs.request_cancel(Calibration.objects.get(pk=pk))


def rerun(pk: str) -> str:
    return str(services.rerun(Calibration.objects.get(pk=pk), local_user()).pk)


def start_plan(
    calibration: dict[str, Any], objectives: list[str], space: dict[str, Any], traffic: dict[str, Any]
) -> str:
    """Starts a plan as the page does, on a published calibration with this result."""
    from planner import services as plan_services
    from planner.search import SearchSpace, parse_objectives
    from planner.traffic import synthesise

    user = local_user()
    project = current_project(user)
    measured = Calibration.objects.create(
        project=project, owner=user, name="demo", architecture=PRESETS["demo"].to_dict(), device="cpu",
        kv_tokens=16_384, status=Calibration.DONE, published=True, result=calibration,
    )  # fmt: skip
    request = plan_services.PlanRequest(
        name="shared", calibration=measured, objectives=parse_objectives(objectives),
        traffic=plan_services.create_traffic(project, user, "demo", synthesise("demo", **traffic)),
        space=SearchSpace(**{key: tuple(v) if isinstance(v, list) else v for key, v in space.items()}),
    )  # fmt: skip
    return str(plan_services.start_plan(project, user, request).pk)


def plan_on(pk: str, objectives: list[str]) -> str:
    """Starts a plan with one configuration only, on a calibration that was published."""
    from planner import services as plan_services
    from planner.search import SearchSpace, parse_objectives
    from planner.traffic import synthesise

    row = Calibration.objects.usable().get(pk=pk)
    name = ", ".join(objectives)
    request = plan_services.PlanRequest(
        name=name, calibration=row, objectives=parse_objectives(objectives),
        traffic=plan_services.create_traffic(row.project, row.owner, name, synthesise("demo", requests=60, seed=1)),
        space=SearchSpace(budgets_tokens=(256,), chunk_caps_tokens=(0,), max_num_seqs=(8,), max_replicas=1),
    )  # fmt: skip
    return str(plan_services.start_plan(row.project, row.owner, request).pk)


def watch(pk: str) -> str:
    """A schedule that checks the calibration for drift and measures it anew; a channel that is told of everything."""
    row = Calibration.objects.get(pk=pk)
    Channel.objects.create(
        project=row.project, owner=row.owner, kind=Channel.EMAIL, target="ops@ridgeline.example", events=list(EVENTS)
    )  # fmt: skip
    asked = schedules.ScheduleRequest(
        "watch", row, Schedule.CHECK, 86_400, "", "UTC", None, enabled=True, recalibrate_on_drift=True
    )
    return str(schedules.create(row.project, row.owner, asked).pk)


def come_due(pk: str) -> None:
    """As if its time had come."""
    Schedule.objects.filter(pk=pk).update(due_at=timezone.now())


def sweep_all() -> None:
    """What beat sends each 10 s, here and now."""
    from planner import tasks as plan_tasks

    for sweep in (
        tasks.sweep_schedules, tasks.sweep_calibrations, plan_tasks.sweep_reviews, plan_tasks.sweep_plans,
        tasks.sweep_notifications,
    ):  # fmt: skip
        sweep()


def story() -> dict[str, Any]:
    """All that came of a schedule, oldest first."""
    checks = DriftCheck.objects.order_by("created_at")
    measured = Calibration.objects.order_by("created_at")
    told = Delivery.objects.order_by("created_at")
    return {
        "runs": [(run.outcome, run.drift_check_id and str(run.drift_check_id), run.reason)
                 for run in ScheduleRun.objects.order_by("at")],
        "checks": [{"pk": str(row.pk), "of": str(row.calibration_id), "status": row.status, "drifted": row.drifted,
                    "statistic": row.statistic, "reasons": (row.report or {}).get("reasons"), "error": row.error,
                    "recalibration": row.recalibration_id and str(row.recalibration_id)} for row in checks],
        "calibrations": [{"pk": str(row.pk), "status": row.status, "published": row.published, "reason": row.reason,
                          "rerun_of": row.rerun_of_id and str(row.rerun_of_id),
                          "stretched": (row.environment or {}).get("steps_stretched_by")} for row in measured],
        "reviews": [{"plan": str(row.plan_id), "of": str(row.calibration_id), "status": row.status,
                     "outcome": row.outcome, "difference": row.difference, "error": row.error}
                    for row in PlanReview.objects.order_by("created_at")],
        "told": [(row.event, row.status, row.tries, row.subject) for row in told],
        "plans": {str(row.pk): found.state for row in Plan.objects.all()
                  if (found := reviews.staleness_of(row)) is not None},
    }  # fmt: skip


def plan_row(pk: str) -> dict[str, Any]:
    plan = Plan.objects.get(pk=pk)
    parts = list(plan.parts.order_by("number").values("number", "status", "worker"))
    return {
        "status": plan.status, "done": plan.done, "total": plan.total, "eta_s": plan.eta_s, "error": plan.error,
        "result": plan.result, "worker": plan.worker, "parts": parts, "message": plan.message,
    }  # fmt: skip


def answer_alone(pk: str) -> dict[str, Any]:
    """What this process, alone, answers to the plan's question."""
    from planner import work
    from planner.search import search
    from planner.search.crew import in_threads

    plan = Plan.objects.get(pk=pk)
    prepared = work.prepared(plan, plan.calibration, lambda: False)
    answer = search(prepared, in_threads(prepared.hand.do, 1)).to_dict()
    found: dict[str, Any] = json.loads(json.dumps(answer))
    return found


def cancel_plan(pk: str) -> bool:
    return jobs.request_cancel(Plan.objects.get(pk=pk))


def send(pk: str) -> str:
    """Delivers the job's message once more; the message's id."""
    return str(tasks.run_calibration.apply_async(args=[pk]).id)


def age(pk: str, seconds: float) -> None:
    """As if the message had been sent ``seconds`` ago."""
    Calibration.objects.filter(pk=pk).update(sent_at=timezone.now() - timedelta(seconds=seconds))


def pickled(path: str) -> None:
    """A message that would touch ``path`` if anybody unpickled it."""
    with app.connection_for_write() as connection, connection.SimpleQueue("default") as queue:
        queue.put(
            Touch(path), serializer="pickle", headers={"task": "calibration.tasks.run_calibration", "id": "x"}
        )


def make_schedule(every_s: int) -> str:
    """A drift check each ``every_s`` seconds, of a calibration that nobody measured; below what the form allows."""
    user = local_user()
    project = current_project(user)
    calibration = Calibration.objects.create(
        project=project, owner=user, name="of a schedule", status="done", device="cpu",
        architecture=PRESETS["demo"].to_dict(), environment={"dtype": "float32"}, provenance={"engine": "ridgeline"},
        envelope={"max_batch": 4, "max_context_tokens": 64, "max_step_tokens": 32}, kv_tokens=1024,
    )  # fmt: skip
    asked = schedules.ScheduleRequest(
        "often", calibration, "check", every_s, "", "UTC", None, enabled=True, recalibrate_on_drift=False
    )
    return str(schedules.create(project, user, asked).pk)


def runs_of(pk: str) -> list[dict[str, Any]]:
    """Those that came due, oldest first. Ends the checks that wait for a device: the next occasion may start one."""
    DriftCheck.objects.filter(status="queued").update(status="cancelled", finished_at=timezone.now())
    rows = ScheduleRun.objects.filter(schedule=pk, due_at__isnull=False).order_by("due_at")
    return [
        {"due_s": row.due_at.timestamp(), "missed": row.missed, "outcome": row.outcome, "check": row.drift_check_id and
         str(row.drift_check_id), "late_s": (row.at - row.due_at).total_seconds()}
        for row in rows
    ]  # fmt: skip


def runs_by_hand(pk: str) -> int:
    return ScheduleRun.objects.filter(schedule=pk, due_at__isnull=True).count()


def issue_token() -> str:
    return tokens.issue(local_user(), "test", ApiToken.WRITE, None)[1]


def beats_row(pk: str) -> dict[str, Any]:
    task = PeriodicTask.objects.filter(name=f"schedule {pk}").first()
    return {"enabled": task and task.enabled, "runs": task and task.total_run_count}


def delete_schedule(pk: str) -> dict[str, int]:
    """Deletes it; how many checks there ever were, and how many of beat's rows are left."""
    schedules.delete(Schedule.objects.get(pk=pk))
    return {
        "checks": DriftCheck.objects.count(),
        "tasks": PeriodicTask.objects.filter(task=schedules.TASK).count(),
    }


def start_import(path: str) -> str:
    """Puts a file of this machine aside and starts its import, as an upload does."""
    user = local_user()
    with Path(path).open("rb") as opened:
        file = UploadedFile(opened, "large.csv", size=Path(path).stat().st_size)
        held = uploads.hold(current_project(user), user, file, "large.csv")
    return str(import_work.start_import(held, user, "large", {}, keep=False).pk)


def import_row(pk: str) -> dict[str, Any]:
    """As whoever looks at its page sees it, and what there is of traffic and of files."""
    job = TrafficImport.objects.visible_to(local_user()).get(pk=pk)
    return {
        "status": job.status, "done": job.done, "total": job.total, "error": job.error,
        "traffic": TrafficSet.objects.count(), "arrays": TrafficArrays.objects.count(),
        "held": [row.pk.hex for row in uploads.waiting(local_user())], "requests":
        job.traffic and job.traffic.statistics["requests"],
        "files": sorted(path.name for path in uploads.folder().iterdir()),
    }  # fmt: skip


def import_silent(pk: str) -> None:
    """As if the worker had said nothing for longer than one may."""
    long_ago = timezone.now() - timedelta(seconds=2 * jobs.STALE_AFTER_S)
    TrafficImport.objects.filter(pk=pk).update(heartbeat_at=long_ago)


def import_again(pk: str) -> str:
    row = TrafficImport.objects.get(pk=pk)
    assert row.upload is not None
    return str(import_work.start_import(row.upload, row.owner, row.name, row.options, keep=False).pk)


class Touch:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.path, "w"))


CALLS = {
    call.__name__: call
    for call in (
        start, start_plan, answer_alone, row, plan_row, cancel, cancel_plan, rerun, send, age, pickled,
        plan_on, watch, come_due, sweep_all, story,
        make_schedule, runs_of, runs_by_hand, issue_token, beats_row, delete_schedule,
        start_import, import_row, import_silent, import_again,
    )
}  # fmt: skip

if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"value": CALLS[request["call"]](**request["arguments"])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
