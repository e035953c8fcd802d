"""The page of two to four plans beside each other; they are ticked on the list of plans."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.cache import get_conditional_response
from django.views.decorators.http import require_GET

from accounts.access import get_visible
from planner.charts import VERSION
from planner.charts.plan_compare import metrics_of, overlaid
from planner.models import Plan
from planner.plan_compare import LEAST, MOST, NotComparable, compared
from planner.search.objectives import METRICS

ABOUT = {
    "ttft": "Arrival to the first token.", "itl": "Each gap between two tokens.",
    "tpot": "A request's mean gap.", "e2e": "Arrival to the last token.",
}  # fmt: skip


class BadChoice(Exception):
    """Not two to four different plans; the message says so."""


def chosen(user: Any, texts: Sequence[str]) -> list[Plan]:
    """The plans of these ids, in this order. Raises BadChoice, and Http404 for one that is not theirs to see."""
    try:
        ids = [uuid.UUID(text) for text in texts]
    except ValueError as error:
        raise Http404 from error
    rows = Plan.objects.select_related("calibration", "second_calibration", "traffic", "owner").defer(
        "log", "traceback", "calibration__result", "calibration__log", "calibration__traceback"
    )
    found = [get_visible(rows, user, pk) for pk in ids[: MOST + 1]]
    if len(set(ids)) != len(ids):
        raise BadChoice("A plan is named twice.")
    if not LEAST <= len(ids) <= MOST:
        raise BadChoice(f"Choose two to four plans, not {len(ids)}.")
    return found


@require_GET
def page(request: HttpRequest) -> HttpResponse:
    """``?plan=ID&plan=ID``: up to four."""
    try:
        found = compared(chosen(request.user, request.GET.getlist("plan")))
    except (BadChoice, NotComparable) as error:
        return render(request, "planner/plan_compare.html", {"refusal": str(error)}, status=422)
    query = "&".join(f"plan={plan.pk}" for plan in found.plans)
    figures = [{"name": metric, "title": metric.upper(), "about": ABOUT[metric],
                "url": f"{reverse('planner:plan_compare_figure', args=[metric])}?{query}"}
               for metric in metrics_of([plan.result or {} for plan in found.plans])]  # fmt: skip
    asked = [line for line in found.inputs if line.differs]
    context = {
        "found": found, "figures": figures,
        "inputs": asked, "same_inputs": [line for line in found.inputs if not line.differs],
        "answers": [line for line in found.answers if line.differs],
        "same_answers": [line for line in found.answers if not line.differs],
        "widths": len(found.plans),
    }  # fmt: skip
    return render(request, "planner/plan_compare.html", context)


@require_GET
def figure(request: HttpRequest, name: str) -> HttpResponseBase:
    """The distributions of one metric over each other, as JSON."""
    try:
        found = compared(chosen(request.user, request.GET.getlist("plan")))
    except (BadChoice, NotComparable) as error:
        return JsonResponse({"detail": str(error), "errors": []}, status=422)
    if name not in METRICS:
        raise Http404
    tag = f'"{VERSION}-{name}-{"-".join(plan.status for plan in found.plans)}"'

    def drawn() -> HttpResponse:
        named = [(plan.name, plan.result or {}) for plan in found.plans]
        drawing = overlaid(
            name, named, f"{name.upper()} of {' and '.join(plan.name for plan in found.plans)}"
        )
        return JsonResponse(drawing, headers={"ETag": tag, "Cache-Control": "no-cache"})

    return get_conditional_response(request, etag=tag) or drawn()
