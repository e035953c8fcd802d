"""The what-if's pages: sliders, the answer to a move, its neighbours, and the plan that is made of it on request."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from accounts import limits
from accounts.access import get_visible, get_writable, may_write
from planner import services
from planner.models import Plan
from planner.plan_forms import PlanForm
from planner.what_if import answer, around, as_question
from planner.what_if_forms import WhatIfForm
from planner.what_if_page import answer_context, columns, neighbour_rows, sliders
from planner.what_if_subject import NotAskable, Opened, askable, load, opened
from planner.what_if_turns import Busy, Overtaken

NOT_NOW = (Busy, Overtaken, limits.RateLimited)


def _opened(plan: Plan) -> Opened:
    """404 where there is nothing to move."""
    try:
        return opened(plan)
    except NotAskable as error:
        raise Http404(str(error)) from error


def _page(
    request: HttpRequest, plan: Plan, there: Opened, form: WhatIfForm, status: int = 200, **more: Any
) -> HttpResponse:
    context = {
        "plan": plan, "pk": plan.pk, "form": form, "groups": sliders(form, there),
        "writable": may_write(request.user, plan.project), "remarks": there.remarks,
    }  # fmt: skip
    return render(request, "planner/what_if.html", context | more, status=status)


@require_http_methods(["GET", "POST"])
def page(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """The sliders where the plan stands, or where the address says. Sent without scripts they are answered here."""
    plan = get_visible(askable(), request.user, pk)
    there = _opened(plan)
    load(there.subject)
    if request.method == "GET":
        form = WhatIfForm(request.GET or None, subject=there.subject)
        bad = form.is_bound and not form.is_valid()
        return _page(request, plan, there, form, 422 if bad else 200)
    form = WhatIfForm(request.POST, subject=there.subject)
    if not form.is_valid():
        return _page(request, plan, there, form, 422)
    limits.spend(limits.WHAT_IF, str(request.user.pk))
    try:
        found = answer(there, form.setting(), request.user)
        rows = neighbour_rows(around(there, form.setting(), request.user), form)
    except (Busy, Overtaken) as error:
        messages.warning(request, str(error))
        return _page(request, plan, there, form, 429 if isinstance(error, Busy) else 409)
    return _page(request, plan, there, form, **answer_context(there, found), neighbours=rows, whole=True)


def _asked(request: HttpRequest, pk: uuid.UUID) -> tuple[Opened, WhatIfForm]:
    there = _opened(get_visible(askable(), request.user, pk))
    return there, WhatIfForm(request.POST, subject=there.subject)


@require_POST
def move(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """htmx: the numbers of one setting, errors beside their fields. Overtaken (409) or busy (429) it asks again."""
    there, form = _asked(request, pk)
    context: dict[str, Any] = {"form": form, "groups": sliders(form, there), "swap": True, "pk": pk}
    if not form.is_valid():
        return render(request, "planner/_what_if_move.html", context)
    try:
        limits.spend(limits.WHAT_IF, str(request.user.pk))
        found = answer(there, form.setting(), request.user)
    except NOT_NOW as error:
        return _later(request, error, context | {"id": "answer", "url": request.path})
    return render(request, "planner/_what_if_move.html", context | answer_context(there, found))


@require_POST
def beside(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """htmx: the neighbours of a setting; they follow its own numbers."""
    there, form = _asked(request, pk)
    if not form.is_valid():
        return HttpResponse(status=422)
    try:
        limits.spend(limits.WHAT_IF, str(request.user.pk))
        rows = neighbour_rows(around(there, form.setting(), request.user), form)
    except NOT_NOW as error:
        return _later(request, error, {"id": "neighbours-later", "url": request.path})
    context = {"neighbours": rows, "columns": columns(form.setting()), "pk": pk}
    return render(request, "planner/_what_if_neighbours.html", context)


def _later(request: HttpRequest, error: Exception, context: dict[str, Any]) -> HttpResponse:
    """Words, which ask again by themselves: overtaken by another page of the same user, or busy."""
    status = 409 if isinstance(error, Overtaken) else 429
    response = render(request, "planner/_what_if_later.html", context | {"later": str(error)}, status=status)
    if status == 429:
        response.headers["Retry-After"] = _seconds(error)
    return response


def _seconds(error: Exception) -> str:
    return str(max(1, round(getattr(error, "retry_after_s", 1.0))))


@require_POST
def save(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Starts a plan with this setting's limits, rate and link, in a space that has its knobs."""
    plan = get_writable(askable(), request.user, pk)
    there, form = _asked(request, pk)
    if not form.is_valid():
        return _page(request, plan, there, form, 422)
    asked = PlanForm(as_question(plan, there, form.setting()), user=request.user)
    if not asked.is_valid():
        for field, errors in asked.errors.items():
            for error in errors:
                messages.error(request, f"{field}: {error}")
        return _page(request, plan, there, form, 422)
    limits.spend(limits.JOB_START, str(request.user.pk))
    return redirect(
        "planner:plan_detail", services.start_plan(plan.project, request.user, asked.request()).pk
    )
