"""Pages of drift checks: the chart of a subject, starting a check, and one check as a job."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from accounts import limits
from accounts.access import get_visible, get_writable, may_write
from calibration import drift_checks, jobs, services
from calibration.drift_chart import drift_figure
from calibration.experiment.drift import KIND_BAR, MEAN_BARS
from calibration.freshness import freshness_of
from calibration.lineage import same_subject
from calibration.models import Calibration, DriftCheck
from calibration.pipeline import device_kind
from calibration.schedule_forms import DriftForm
from config.pages import STOP_POLLING, invalid

LIGHT = ("calibration__result", "calibration__log", "calibration__environment", "log", "traceback")
MOST_SHOWN = 200


def _of_subject(request: HttpRequest, row: Calibration) -> tuple[list[Calibration], list[DriftCheck]]:
    """The published calibrations of the same subject, and their checks, oldest first."""
    visible = Calibration.objects.visible_to(request.user)
    group = same_subject(row, visible)
    checks = DriftCheck.objects.visible_to(request.user).filter(calibration__in=[each.pk for each in group])
    found = checks.select_related("calibration").defer(*LIGHT)[:MOST_SHOWN]
    return [each for each in group if each.published], list(found)[::-1]


@require_http_methods(["GET", "POST"])
def drift(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """The checks of a calibration and of those of the same subject; a POST starts one."""
    rows = Calibration.objects.select_related("owner", "project").defer("result", "log", "traceback")
    if request.method == "GET":
        return render(
            request, "calibration/drift.html", _context(request, get_visible(rows, request.user, pk))
        )
    row = get_writable(rows, request.user, pk)
    form = DriftForm(request.POST)
    if not form.is_valid():
        return invalid(request, "calibration/drift.html", form, **_context(request, row))
    if reason := why_not(row):
        messages.warning(request, reason)
        return redirect("calibration:drift", pk)
    limits.spend(limits.JOB_START, str(request.user.pk))
    data = form.cleaned_data
    check = drift_checks.start(row, request.user, recalibrate=data["recalibrate"], seed=data["seed"] or 0)
    return redirect("calibration:check", check.pk)


def why_not(row: Calibration) -> str:
    """Why it is not checked now, as a sentence; empty where it can be."""
    if row.status != Calibration.DONE:
        return f"It has nothing to compare with: {row.status}."
    reason = services.why_no_drift_check(row)
    return f"It cannot be checked: {reason}." if reason else ""


def _context(request: HttpRequest, row: Calibration) -> dict[str, Any]:
    _, checks = _of_subject(request, row)
    kind = device_kind(row.device)
    return {
        "calibration": row, "checks": checks[::-1], "fresh": freshness_of(row), "form": DriftForm(),
        "figure_url": reverse("calibration:drift_figure", args=[row.pk]) if checks else "",
        "why_not": why_not(row), "writable": may_write(request.user, row.project),
        "mean_bar": MEAN_BARS[kind], "kind_bar": KIND_BAR, "schedules": row.schedules.all(),
    }  # fmt: skip


@require_GET
def figure(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    row = get_visible(Calibration.objects.defer("result", "log"), request.user, pk)
    group, checks = _of_subject(request, row)
    done = [check for check in checks if check.status == DriftCheck.DONE]
    return JsonResponse(
        drift_figure(done, group, f"{row.name}: drift"), headers={"Cache-Control": "no-cache"}
    )


def _check(request: HttpRequest, pk: uuid.UUID, *, to_write: bool = False) -> DriftCheck:
    get = get_writable if to_write else get_visible
    rows = DriftCheck.objects.select_related("owner", "project", "calibration", "recalibration")
    return get(
        rows.defer("calibration__result", "calibration__log", "recalibration__result"), request.user, pk
    )


def _job_context(request: HttpRequest, row: DriftCheck) -> dict[str, Any]:
    names = ("status", "cancel", "rerun")
    address = {name: reverse(f"calibration:check_{name}", args=[row.pk]) for name in names}
    return {"job": row, "address": address, "writable": may_write(request.user, row.project)}


@require_GET
def check_detail(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    row = _check(request, pk)
    return render(
        request, "calibration/check.html",
        _job_context(request, row) | {"row": row, "report": row.report, "fresh": freshness_of(row.calibration)},
    )  # fmt: skip


@require_GET
def check_status(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    row = _check(request, pk)
    code = 200 if row.is_active else STOP_POLLING
    return render(request, "jobs/_live.html", _job_context(request, row), status=code)


@require_POST
def check_cancel(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    if not jobs.request_cancel(_check(request, pk, to_write=True)):
        messages.warning(request, "It had already ended.")
    return redirect("calibration:check", pk)


@require_POST
def check_rerun(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    row = _check(request, pk, to_write=True)
    if row.is_active:
        messages.warning(request, f"It is still {row.status}.")
        return redirect("calibration:check", pk)
    limits.spend(limits.JOB_START, str(request.user.pk))
    return redirect("calibration:check", drift_checks.rerun(row, request.user).pk)
