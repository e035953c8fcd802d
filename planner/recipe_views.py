"""Pages that say what to start: a plan's recommendation as files for one target."""

from __future__ import annotations

import uuid

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from accounts.access import get_visible
from config.pages import download
from planner.models import Plan
from planner.plan_recipes import archive, recipe_of, service_of
from planner.recipe_forms import RecipeForm
from planner.recipes import TARGETS, Recipe, RecipeError, Service, targets_of


def _asked(
    request: HttpRequest, pk: uuid.UUID, target: str
) -> tuple[Plan, RecipeForm, Service, Recipe | None, str]:
    """The plan, the form, what it recommends, the recipe or why there is none; 404 where nothing is recommended."""
    rows = Plan.objects.select_related("calibration", "second_calibration", "traffic").defer(
        "log", "traceback"
    )
    plan = get_visible(rows, request.user, pk)
    form = RecipeForm(request.GET, plan=plan)
    model, labels = (form.cleaned_data["model"], form.node_labels()) if form.is_valid() else ("", [])
    service = service_of(plan, model, labels)
    if service is None or target not in TARGETS:
        raise Http404
    try:
        return plan, form, service, recipe_of(plan, service, target), ""
    except RecipeError as error:
        return plan, form, service, None, str(error)


@require_GET
def detail(request: HttpRequest, pk: uuid.UUID, target: str) -> HttpResponse:
    plan, form, service, made, refusal = _asked(request, pk, target)
    tabs = [
        (TARGETS[key], reverse("planner:plan_recipe", args=[pk, key]), key == target)
        for key in targets_of(service)
    ]
    context = {
        "plan": plan, "form": form, "fields": [form[name] for name in form.asked],
        "recipe": made, "refusal": refusal, "tabs": tabs, "service": service,
        "query": request.GET.urlencode(), "archive": reverse("planner:plan_recipe_zip", args=[pk, target]),
    }  # fmt: skip
    return render(request, "planner/plan_recipe.html", context, status=200 if form.is_valid() else 422)


@require_GET
def archive_zip(request: HttpRequest, pk: uuid.UUID, target: str) -> HttpResponse:
    plan, form, _, made, _ = _asked(request, pk, target)
    if made is None or not form.is_valid():
        raise Http404
    return download(archive(plan, made), f"plan-{pk}-{target}.zip", "application/zip")
