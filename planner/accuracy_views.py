"""The accuracy page: what was predicted and what came of it."""

from __future__ import annotations

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from planner import accuracy


def _parted(lines: list[accuracy.Line]) -> dict[str, list[accuracy.Line]]:
    """Those that are held to a bar, and those that are shown only; nothing where there is none."""
    judged = [line for line in lines if line.bar is not None]
    return {"judged": judged, "shown": [line for line in lines if line.bar is None]} if lines else {}


@require_GET
def accuracy_page(request: HttpRequest) -> HttpResponse:
    rows = accuracy.verified(request.user)
    page = Paginator(rows, 20).get_page(request.GET.get("page"))
    shown = [(row, _parted(accuracy.lines_of(row))) for row in page.object_list]
    context = {
        "page": page, "verifications": shown, "counts": accuracy.counts(rows, request.user),
        "groups": accuracy.reference_groups(),
    }  # fmt: skip
    return render(request, "planner/accuracy.html", context)
