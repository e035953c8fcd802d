"""What a plan's page shows of newer step times, and the two things one can ask for there."""

from __future__ import annotations

import uuid
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from accounts import limits
from accounts.access import get_writable
from planner import reviews
from planner.models import Plan, PlanReview
from planner.plan_basis import basis_of


class FollowForm(forms.Form):
    """The owner's setting of a plan."""

    replan_when_stale = forms.BooleanField(
        required=False, label="Make it again when newer step times change the answer"
    )


def plan_context(plan: Plan) -> dict[str, Any]:
    """What a plan's page shows: how fresh its step times are, and whether the answer still stands."""
    found = reviews.staleness_of(plan)
    replan = found and found.review and found.review.replan_id
    return {
        "staleness": found, "basis": basis_of(plan),
        "replan_id": replan, "follow": FollowForm(initial={"replan_when_stale": plan.replan_when_stale}),
    }  # fmt: skip


@require_POST
def follow(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Whether it is made again by itself."""
    plan = get_writable(Plan.objects.defer("result", "log", "traceback"), request.user, pk)
    form = FollowForm(request.POST)
    form.is_valid()
    Plan.objects.filter(pk=plan.pk).update(replan_when_stale=form.cleaned_data["replan_when_stale"])
    messages.success(request, "Kept.")
    return redirect("planner:plan_detail", pk)


@require_POST
def replan(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Makes a stale plan again, with the newer step times."""
    plan = get_writable(Plan.objects.select_related("project"), request.user, pk)
    row = latest_review(plan)
    if row is None:
        messages.warning(request, "Nothing newer changed its answer.")
        return redirect("planner:plan_detail", pk)
    limits.spend(limits.JOB_START, str(request.user.pk))
    return redirect("planner:plan_detail", reviews.replan(row, request.user).pk)


def latest_review(plan: Plan) -> PlanReview | None:
    """The review that made it stale; None where it is not."""
    found = reviews.staleness_of(plan)
    return found.review if found is not None and found.stale else None
