"""Pages of plans: ask, watch, read the answer. Views assemble: forms validate, services write, charts draw."""

from __future__ import annotations

import json
import uuid
import zlib
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import F
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    JsonResponse,
    StreamingHttpResponse,
)
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.cache import get_conditional_response
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from accounts import limits
from accounts.access import chosen_project, get_visible, get_writable, may_write
from calibration import jobs
from calibration.models import Calibration
from config.pages import STOP_POLLING, download, filter_query, invalid
from planner import charts, exports, review_views, services
from planner.candidates import candidate_table
from planner.filters import filtered_plans, plan_chips
from planner.models import Plan, TrafficSet
from planner.plan_choices import chosen_beforehand
from planner.plan_forms import PlanForm
from planner.question import question_context
from planner.result_page import as_curl, result_context
from planner.reviews import staleness_by_id
from planner.verification_page import plan_context

LIGHT = ("result", "log", "traceback")  # columns a list does without
CALIBRATIONS = ("calibration", "second_calibration")


@require_GET
def plan_list(request: HttpRequest) -> HttpResponse:
    rows = Plan.objects.visible_to(request.user)
    found = (
        filtered_plans(rows, request.GET)
        .select_related("owner", "calibration", "second_calibration")
        .defer(*LIGHT, *(f"{own}__{column}" for own in CALIBRATIONS for column in LIGHT))
        .annotate(
            replicas=F("result__summary__replicas"),
            calibration_name=F("calibration__name"),
            traffic_name=F("traffic__name"),
        )
    )
    page = Paginator(found, 25).get_page(request.GET.get("page"))
    shown = list(page.object_list)
    states = staleness_by_id(shown)
    context = {
        "page": page, "rows": [(row, states.get(row.pk)) for row in shown], "chips": plan_chips(rows, request.GET),
        "any": bool(shown) or rows.exists(), "query": filter_query(request), **_ingredients(request),
    }  # fmt: skip
    return render(request, "planner/plan_list.html", context)


def _ingredients(request: HttpRequest) -> dict[str, bool]:
    """Whether there is what a plan needs, or will be."""
    return {
        "measuring": Calibration.objects.visible_to(request.user).active().exists(),
        "has_calibration": Calibration.objects.visible_to(request.user).usable().exists(),
        "has_traffic": TrafficSet.objects.visible_to(request.user).exists(),
    }


@require_http_methods(["GET", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """``?calibration=ID&traffic=ID`` chooses them beforehand; unsaid, the only one that there is. ``?plan=ID``: as that
    plan was asked."""
    chosen_project(request)  # who may only look is told so before filling in a form
    context = _ingredients(request)
    if request.method == "GET":
        form = PlanForm(initial=chosen_beforehand(request.user, request.GET), user=request.user)
        return render(request, "planner/plan_new.html", {"form": form, **context})
    form = PlanForm(request.POST, user=request.user)
    if not form.is_valid():
        return invalid(request, "planner/plan_new.html", form, **context)
    question = form.request()
    project = question.calibration.project
    if not may_write(request.user, project):
        raise PermissionDenied("You may look at this project, but not start anything in it.")
    limits.spend(limits.JOB_START, str(request.user.pk))
    return redirect("planner:plan_detail", services.start_plan(project, request.user, question).pk)


@require_POST
def preview(request: HttpRequest) -> HttpResponse:
    """htmx: what the question amounts to, before it is asked."""
    form = PlanForm(request.POST, user=request.user)
    form.is_valid()
    return render(request, "planner/_question.html", question_context(form.cleaned_data))


FIGURES = (
    ("schedule", "Time of day", "How many replicas each period needs, by simulation of that period."),
    ("load", "What breaks first", "The same deployment under less and more load: how much there is to spare."),
    ("curves", "Whole distributions", "Not only the percentiles that were asked for."),
    ("trade", "TTFT against ITL", "What each combination of knobs gives and takes at this replica count."),
    ("budget", "What the token budget does", "The same sequences and chunk cap with other budgets."),
    ("replicas", "More or fewer replicas", "The same knobs on other replica counts: what breaks first."),
    ("ttft", "Where the first token's time goes", "Waiting, or computing the prompt."),
)  # fmt: skip


#: A plan with what its page needs beside it.
SHOWN = (
    Plan.objects.select_related("owner", "project", "traffic", "calibration", "second_calibration")
    .annotate(so_far=F("result__verdict__sentence"))
    .defer(*(f"{own}__{column}" for own in CALIBRATIONS for column in LIGHT))
)


@require_GET
def detail(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    plan = get_visible(SHOWN, request.user, pk)
    return render(request, "planner/plan_detail.html", detail_context(request, plan))


def detail_context(request: HttpRequest, plan: Plan) -> dict[str, Any]:
    answer = result_context(plan)
    there = charts.drawable(answer["result"]) if answer and not plan.is_active else []
    figures = [{"name": name, "title": title, "about": about,
                "url": reverse("planner:plan_figure", args=[plan.pk, name])}
               for name, title, about in FIGURES if name in there]  # fmt: skip
    context = job_context(request, plan) | answer
    context |= {
        "plan": plan,
        "figures": figures,
        "curl": as_curl(plan, request.build_absolute_uri("/api/v1/plans")),
        "asked": services.objectives_of(plan),
    }
    context |= plan_context(plan) | review_views.plan_context(plan)
    if answer:
        context["table"] = candidate_table(answer["result"], answer["shown"], request.GET)
    return context


def job_context(request: HttpRequest, plan: Plan) -> dict[str, Any]:
    """What the shared job templates need."""
    names = ("status", "cancel", "rerun")
    address = {name: reverse(f"planner:plan_{name}", args=[plan.pk]) for name in names}
    return {
        "job": plan, "address": address, "writable": may_write(request.user, plan.project),
        "waiting_words": waiting_words(plan), "sample_count": _news(getattr(plan, "so_far", None)),
    }  # fmt: skip


def waiting_words(plan: Plan) -> str:
    """What a queued plan waits for."""
    running = Plan.objects.filter(status=Plan.RUNNING).count() if plan.status == Plan.QUEUED else 0
    if running >= settings.PLANS_AT_ONCE:
        return f"Waiting in line: {running} other plan{'s are' if running > 1 else ' is'} being made."
    return "Waiting for a worker."


def _news(so_far: str | None) -> int:
    """A number that changes when a better answer is known: the page then fetches it."""
    return zlib.crc32(so_far.encode()) if so_far else 0


@require_GET
def status(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    rows = Plan.objects.select_related("project").defer("result")
    plan = get_visible(rows.annotate(so_far=F("result__verdict__sentence")), request.user, pk)
    code = 200 if plan.is_active else STOP_POLLING
    return render(request, "jobs/_live.html", job_context(request, plan), status=code)


@require_POST
def cancel(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    plan = get_writable(Plan.objects.defer(*LIGHT), request.user, pk)
    if not jobs.request_cancel(plan):
        messages.warning(request, "It had already ended.")
    return redirect("planner:plan_detail", pk)


@require_POST
def rerun(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    plan = get_writable(Plan.objects.defer(*LIGHT), request.user, pk)
    if plan.is_active:
        messages.warning(request, f"It is still {plan.status}.")
        return redirect("planner:plan_detail", pk)
    limits.spend(limits.JOB_START, str(request.user.pk))
    return redirect("planner:plan_detail", services.rerun(plan, request.user).pk)


def _answered(request: HttpRequest, pk: uuid.UUID) -> Plan:
    """A plan with a result; 404 for one that has none (yet)."""
    plan = get_visible(Plan.objects.defer("log", "traceback"), request.user, pk)
    if not plan.result:
        raise Http404
    return plan


@require_GET
def figure(request: HttpRequest, pk: uuid.UUID, name: str) -> HttpResponseBase:
    plan = _answered(request, pk)
    if name not in charts.PLAN_FIGURES:
        raise Http404
    tag = f'"{charts.VERSION}-{name}-{plan.status}"'  # what has ended does not change

    def drawn() -> HttpResponse:
        drawing = charts.plan_figure(name, plan.result or {}, f"{plan.name}: {name}")
        return JsonResponse(drawing, headers={"ETag": tag, "Cache-Control": "no-cache"})

    return get_conditional_response(request, etag=tag) or drawn()


@require_GET
def candidates_csv(request: HttpRequest, pk: uuid.UUID) -> HttpResponseBase:
    blocks = exports.csv_blocks(*exports.candidate_table(_answered(request, pk).result or {}))
    headers = {"Content-Disposition": f'attachment; filename="plan-{pk}-candidates.csv"'}
    return StreamingHttpResponse(blocks, content_type="text/csv; charset=utf-8", headers=headers)


@require_GET
def result_json(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    text = json.dumps(_answered(request, pk).result, allow_nan=False, indent=1)
    return download(text, f"plan-{pk}.json", "application/json; charset=utf-8")
