"""Pages of schedules. Views assemble: forms validate, services write."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Prefetch
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from accounts import limits
from accounts.access import chosen_project, get_visible, get_writable, may_write
from calibration import schedules
from calibration.freshness import freshness_of
from calibration.models import Schedule, ScheduleRun
from calibration.schedule_forms import ScheduleForm, initial_of
from config import once
from config.pages import invalid

RELATED = ("owner", "project", "calibration")


@require_GET
def schedule_list(request: HttpRequest) -> HttpResponse:
    # Of a history of 400 days the last one only.
    last = Prefetch("runs", ScheduleRun.objects.all()[:1], to_attr="last")
    rows = Schedule.objects.visible_to(request.user).select_related(*RELATED).prefetch_related(last)
    page = Paginator(rows, 25).get_page(request.GET.get("page"))
    return render(request, "calibration/schedules.html", {"page": page})


@require_http_methods(["GET", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """``?calibration=ID`` chooses it beforehand."""
    chosen_project(request)  # who may only look is told so before filling in a form
    if request.method == "GET":
        form = ScheduleForm(initial=request.GET.dict(), user=request.user)
        return render(request, "calibration/schedule_form.html", {"form": form})
    form = ScheduleForm(request.POST, user=request.user)
    if not form.is_valid():
        return invalid(request, "calibration/schedule_form.html", form)
    asked = form.request()
    project = asked.calibration.project
    if not may_write(request.user, project):
        raise PermissionDenied("You may look at this project, but not start anything in it.")
    pk = once.say_if_again(request, Schedule.objects.all(), "schedule")
    return redirect("calibration:schedule", schedules.create(project, request.user, asked, pk).pk)


@require_GET
def detail(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    row = get_visible(Schedule.objects.select_related(*RELATED), request.user, pk)
    runs = row.runs.select_related("calibration", "drift_check").defer(
        "calibration__result", "calibration__log"
    )
    context: dict[str, Any] = {
        "schedule": row, "page": Paginator(runs, 25).get_page(request.GET.get("page")),
        "writable": may_write(request.user, row.project), "fresh": freshness_of(row.calibration),
    }  # fmt: skip
    return render(request, "calibration/schedule.html", context)


@require_http_methods(["GET", "POST"])
def edit(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    row = get_writable(Schedule.objects.select_related(*RELATED), request.user, pk)
    if request.method == "GET":
        form = ScheduleForm(initial=initial_of(row), user=request.user, project=row.project)
        return render(request, "calibration/schedule_form.html", {"form": form, "schedule": row})
    form = ScheduleForm(request.POST, user=request.user, project=row.project)
    if not form.is_valid():
        return invalid(request, "calibration/schedule_form.html", form, schedule=row)
    schedules.edit(row, form.request())
    return redirect("calibration:schedule", pk)


@require_POST
def delete(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    row = get_writable(Schedule.objects.all(), request.user, pk)
    schedules.delete(row)
    messages.success(request, f"{row.name} is deleted. What it measured stays.")
    return redirect("calibration:schedules")


@require_POST
def run(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    row = get_writable(Schedule.objects.select_related(*RELATED), request.user, pk)
    limits.spend(limits.JOB_START, str(request.user.pk))
    done = schedules.run_now(row, request.user)
    if done.reason:
        messages.warning(request, f"Skipped: {done.reason}.")
    return redirect("calibration:schedule", pk)
