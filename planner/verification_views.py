"""Pages of verifications: start one from a plan, watch it, read what the device did."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.cache import get_conditional_response
from django.views.decorators.http import require_GET, require_POST

from accounts import limits
from accounts.access import get_visible, get_writable, may_write
from calibration.freshness import freshness_of
from config.pages import STOP_POLLING, download, invalid
from planner import charts, plan_views, verifications
from planner import verification_feedback as feedback
from planner.exports import csv_blocks
from planner.models import Plan, ServerAnswers, Verification
from planner.verification.answer_rows import COLUMNS, unpacked
from planner.verification_forms import EndpointForm, MixedLoadForm, StartForm, VerifyForm
from planner.verification_page import plan_context
from planner.verifications import (
    start_verification,
    why_no_rerun,
    why_not,
    why_not_endpoint,
    why_not_mixed_load,
)

#: What the residuals' consequences need.
REPLAYED = Verification.objects.select_related(
    "plan", "plan__project", "plan__calibration", "plan__second_calibration"
).defer("steps")
LIGHT = ("steps", "plan__result", "plan__log", "plan__traceback")
FIGURES = (
    ("mixed", "What the streams feel", "p99 of their gaps, by how the long prompts are served."),
    ("ttft", "Time to first token", "Share of requests that had it by then."),
    ("itl", "Gaps between tokens", "Share of gaps that were no longer."),
    ("residuals", "Where steps were mispriced", "Measured against predicted, by kind and size of step."),
)


@require_POST
def start(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    plan = get_writable(plan_views.SHOWN, request.user, pk)
    form = VerifyForm(request.POST, auto_id="verify-%s")
    return _started(request, plan, "verify", form, why_not(plan))


@require_POST
def start_endpoint(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    plan = get_writable(plan_views.SHOWN, request.user, pk)
    form = EndpointForm(request.POST, plan=plan, auto_id="endpoint-%s")
    return _started(request, plan, "endpoint", form, why_not_endpoint(plan))


@require_POST
def start_mixed_load(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    plan = get_writable(plan_views.SHOWN, request.user, pk)
    form = MixedLoadForm(request.POST, plan=plan, auto_id="mixed-%s")
    return _started(request, plan, "mixed", form, why_not_mixed_load(plan))


def _started(request: HttpRequest, plan: Plan, name: str, form: StartForm, reason: str) -> HttpResponse:
    """The job's page; or, where the form is refused, the plan's with the errors beside its fields."""
    if reason:
        messages.warning(request, reason)
        return redirect("planner:plan_detail", plan.pk)
    if not form.is_valid():
        context = plan_views.detail_context(request, plan) | plan_context(plan, **{name: form})
        return invalid(request, "planner/plan_detail.html", form, **context)
    limits.spend(limits.JOB_START, str(request.user.pk))
    row = start_verification(plan, request.user, form.asked())
    return redirect("planner:verification_detail", row.pk)


def _row(request: HttpRequest, pk: uuid.UUID) -> Verification:
    rows = Verification.objects.select_related(
        "project", "owner", "plan", "plan__calibration", "plan__second_calibration"
    ).defer(*LIGHT)
    found: Verification = get_visible(rows, request.user, pk)
    return found


@require_GET
def detail(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    row = _row(request, pk)
    figures = [
        {"name": name, "title": title, "about": about,
         "url": reverse("planner:verification_figure", args=[row.pk, name])}
        for name, title, about in charts.verification_figures(row.told, FIGURES)
    ]  # fmt: skip
    context = _job_context(request, row) | {"row": row, "result": row.told, "figures": figures}
    context |= {
        "fresh": freshness_of(row.calibration),
        "has_requests": ServerAnswers.objects.filter(verification=row).exists(),
        "may_widen": not feedback.why_not_wider(row), "may_measure": not feedback.why_not_measure(row)
    }  # fmt: skip
    return render(request, "planner/verification_detail.html", context)


def _job_context(request: HttpRequest, row: Verification) -> dict[str, Any]:
    names = ("status", "cancel", "rerun")
    address = {name: reverse(f"planner:verification_{name}", args=[row.pk]) for name in names}
    return {
        "job": row, "address": address, "writable": may_write(request.user, row.project),
        "rerun_label": "Go on where it was" if verifications.goes_on(row) else "", "kept_steps": sum(row.steps_of),
    }  # fmt: skip


@require_GET
def status(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    rows = Verification.objects.select_related("project").defer("steps", "result")
    row = get_visible(rows, request.user, pk)
    code = 200 if row.is_active else STOP_POLLING
    return render(request, "jobs/_live.html", _job_context(request, row), status=code)


@require_POST
def cancel(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    row = get_writable(Verification.objects.defer("steps", "result"), request.user, pk)
    if not verifications.cancel(row):
        messages.warning(request, "It had already ended.")
    return redirect("planner:verification_detail", pk)


@require_POST
def rerun(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    row = get_writable(Verification.objects.select_related("plan", "plan__project"), request.user, pk)
    if reason := why_no_rerun(row):
        messages.warning(request, reason)
        return redirect("planner:verification_detail", pk)
    limits.spend(limits.JOB_START, str(request.user.pk))
    return redirect("planner:verification_detail", verifications.rerun(row, request.user).pk)


@require_POST
def widen(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    row = get_writable(REPLAYED, request.user, pk)
    if reason := feedback.why_not_wider(row):
        messages.warning(request, reason)
        return redirect("planner:verification_detail", pk)
    limits.spend(limits.JOB_START, str(request.user.pk))
    return redirect("planner:plan_detail", feedback.wider(row, request.user).pk)


@require_POST
def measure(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    row = get_writable(REPLAYED, request.user, pk)
    if reason := feedback.why_not_measure(row):
        messages.warning(request, reason)
        return redirect("planner:verification_detail", pk)
    limits.spend(limits.JOB_START, str(request.user.pk))
    return redirect("calibration:detail", feedback.measure_points(row, request.user).pk)


@require_GET
def requests_csv(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """What each request to a running server saw."""
    row = get_visible(Verification.objects.filter(answers__isnull=False), request.user, pk)
    kept = ServerAnswers.objects.get(verification=row)
    text = "".join(csv_blocks(COLUMNS, unpacked(bytes(kept.rows))))
    return download(text, f"requests-{row.pk}.csv", "text/csv; charset=utf-8")


@require_GET
def figure(request: HttpRequest, pk: uuid.UUID, name: str) -> HttpResponseBase:
    row = _row(request, pk)
    if name not in [known for known, _, _ in charts.verification_figures(row.told, FIGURES)]:
        raise Http404
    tag = f'"{charts.VERSION}-{name}-{row.status}"'

    def drawn() -> HttpResponse:
        drawing = charts.verification_figure(name, row.told or {}, f"{row.name}: {name}")
        return JsonResponse(drawing, headers={"ETag": tag, "Cache-Control": "no-cache"})

    return get_conditional_response(request, etag=tag) or drawn()
