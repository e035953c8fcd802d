"""Pages of the planner. The start page says what to do next."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse
from django.views.decorators.http import require_GET

from calibration.models import Calibration
from planner.models import Plan, TrafficSet

LATEST = 6


@require_GET
def home(request: HttpRequest) -> HttpResponse:
    """Three steps with what is there and what comes next; below, what runs and what is newest."""
    calibrations = Calibration.objects.visible_to(request.user).defer("result", "log", "traceback")
    plans = Plan.objects.visible_to(request.user).defer("result", "log", "traceback")
    traffic = TrafficSet.objects.visible_to(request.user)
    counts = {"usable": calibrations.usable().count(), "calibrations": calibrations.count(),
              "traffic": traffic.count(), "plans": plans.count()}  # fmt: skip
    running = [entry(job) for rows in (calibrations.active(), plans.active()) for job in rows[:LATEST]]
    shown = {item["row"].pk for item in running}  # above, so not once more below
    newest = (row for rows in (calibrations, traffic, plans)
              for row in rows.select_related("owner")[: LATEST + len(shown)] if row.pk not in shown)  # fmt: skip
    latest = sorted(map(entry, newest), key=lambda item: item["at"], reverse=True)[:LATEST]
    context = {
        "counts": counts,
        "running": running,
        "latest": latest,
        "measuring": calibrations.active().exists(),
    }
    return render(request, "home.html", context)


def entry(row: Calibration | Plan | TrafficSet) -> dict[str, Any]:
    """A row of the start page: what kind of thing, which, where, how it stands."""
    kind, route = {
        Calibration: ("calibration", "calibration:detail"), Plan: ("plan", "planner:plan_detail"),
        TrafficSet: ("traffic", "planner:traffic_detail"),
    }[type(row)]  # fmt: skip
    try:
        url = reverse(route, args=[row.pk])
    except NoReverseMatch:
        url = ""
    return {
        "kind": kind,
        "row": row,
        "url": url,
        "at": row.created_at,
        "job": None if kind == "traffic" else row,
    }
