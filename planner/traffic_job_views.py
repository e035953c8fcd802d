"""Pages of traffic that a worker makes, and of models that it fits."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_GET, require_POST

from accounts import limits
from accounts.access import get_visible, get_writable, may_write
from accounts.models import Project
from calibration import jobs
from config import once
from config.pages import STOP_POLLING
from planner import services, traffic_work
from planner.models import TrafficJob, TrafficSet


def made_or_started(
    request: HttpRequest, kind: str, project: Project, form: Any, parent: TrafficSet | None = None
) -> HttpResponse:
    """Of a valid form: on to the traffic, or to the job that makes it."""
    name, default_named = form.cleaned_data["name"], form.cleaned_data["default_named"]
    if not form.deferred:
        pk = once.say_if_again(request, TrafficSet.objects.all(), "traffic")
        row = services.create_traffic(
            project, request.user, name, form.traffic(), default_named=default_named, pk=pk
        )
        return redirect("planner:traffic_detail", row.pk)
    limits.spend(limits.JOB_START, str(request.user.pk))
    options = {**form.options(), "default_named": default_named}
    job = traffic_work.start(kind, project, request.user, name, options, parent=parent)
    return redirect("planner:traffic_job", job.pk)


def _context(request: HttpRequest, job: TrafficJob) -> dict[str, Any]:
    names = ("status", "cancel", "rerun")
    return {
        "job": job, "waiting_words": "Waiting for a worker.",
        "address": {name: reverse(f"planner:traffic_job_{name}", args=[job.pk]) for name in names},
        "writable": may_write(request.user, job.project),
    }  # fmt: skip


@require_GET
def detail(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    rows = TrafficJob.objects.select_related("owner", "project", "parent", "traffic").defer("result")
    job = get_visible(rows, request.user, pk)
    see = ""
    if job.kind == TrafficJob.FIT and job.status == TrafficJob.DONE and job.parent is not None:
        see = f"{reverse('planner:traffic_fit', args=[job.parent_id])}?{urlencode(job.options)}"
    return render(request, "planner/traffic_job.html", {**_context(request, job), "fit_url": see})


@require_GET
def status(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    job = get_visible(TrafficJob.objects.select_related("project").defer("result"), request.user, pk)
    code = 200 if job.is_active else STOP_POLLING
    return render(request, "jobs/_live.html", _context(request, job), status=code)


@require_POST
def cancel(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    job = get_writable(TrafficJob.objects.all(), request.user, pk)
    if not jobs.request_cancel(job):
        messages.warning(request, "It had already ended.")
    return redirect("planner:traffic_job", pk)


@require_POST
def rerun(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    job = get_writable(TrafficJob.objects.select_related("project", "parent"), request.user, pk)
    if job.is_active:
        messages.warning(request, f"It is still {job.status}.")
        return redirect("planner:traffic_job", pk)
    limits.spend(limits.JOB_START, str(request.user.pk))
    again = traffic_work.start(
        job.kind, job.project, request.user, job.name, job.options, parent=job.parent, rerun_of=job
    )
    return redirect("planner:traffic_job", again.pk)
