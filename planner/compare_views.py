"""The page of two traffics beside each other."""

from __future__ import annotations

import uuid
from typing import Any

from django import forms
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.cache import get_conditional_response
from django.views.decorators.http import require_GET

from accounts import limits
from accounts.access import get_visible
from planner import services
from planner.charts import VERSION
from planner.charts.compare import COMPARISON_FIGURES, comparison_figure
from planner.models import TrafficSet
from planner.traffic.comparison import Comparison, Row, compare

FIGURES = (
    ("arrivals", "Arrivals", "How many requests come, over both from their beginnings."),
    ("burstiness", "Burstiness", "Whether requests crowd together, from moments to minutes."),
    ("gaps", "Gaps", "How long it is from one request to the next."),
    ("prompts", "Prompts", "What share is at most so long."),
    ("outputs", "Outputs", "What share is at most so long."),
)  # fmt: skip
NAMES = {
    "rate": "Rate [1/s]", "interarrival_cv": "Inter-arrival CV", "gaps": "gaps, each divided by the mean",
    "prompt_tokens": "prompts", "output_tokens": "outputs",
}  # fmt: skip


class OtherField(forms.ModelChoiceField):  # type: ignore[type-arg]  # no [] at run time
    def label_from_instance(self, obj: Any) -> str:
        return f"{obj.name} ({obj.statistics['requests']:,} requests)"


class CompareForm(forms.Form):
    """Which other one."""

    other = OtherField(TrafficSet.objects.none(), label="Compare with", empty_label="Choose a traffic")

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["other"].queryset = TrafficSet.objects.visible_to(user)  # type: ignore[attr-defined]


@require_GET
def page(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """``?other=ID``: the second one; without it, the choice."""
    first = get_visible(TrafficSet.objects.all(), request.user, pk)
    asked = "other" in request.GET
    form = CompareForm(request.GET if asked else None, user=request.user)
    context: dict[str, Any] = {"traffic": first, "form": form}
    if not asked or not form.is_valid():
        return render(request, "planner/traffic_compare.html", context, status=422 if asked else 200)
    limits.spend(limits.LOOK, str(request.user.pk))
    second = form.cleaned_data["other"]
    found = compare(services.traffic_of(first), services.traffic_of(second))
    figures = [{"name": name, "title": title, "about": about,
                "url": reverse("planner:comparison_figure", args=[first.pk, second.pk, name])}
               for name, title, about in FIGURES]  # fmt: skip
    context |= {**table(found), "second": second, "figures": figures, "sentence": sentence(found.rows)}
    return render(request, "planner/traffic_compare.html", context)


def table(found: Comparison, floor: Comparison | None = None) -> dict[str, Any]:
    """What templates/planner/_comparison.html shows; `floor`: distances to show beside."""
    floors = {one.name: one.distance for one in floor.distances} if floor is not None else {}
    distances = [
        (NAMES[one.name], {"distance": one.distance, "chance": one.chance, "floor": floors.get(one.name)})
        for one in found.distances
    ]
    return {"rows": [(label(row.name), row) for row in found.rows], "distances": distances, "found": found}


def label(name: str) -> str:
    """prompt_tokens_p50 -> Prompt p50 [tokens]; dispersion_10_s -> Dispersion, windows of 10 s."""
    if name in NAMES:
        return NAMES[name]
    if name.startswith("dispersion_"):
        return f"Dispersion, windows of {name.removeprefix('dispersion_').removesuffix('_s')} s"
    kind, _, statistic = name.partition("_tokens_")
    return f"{kind.capitalize()} {statistic} [tokens]"


def sentence(rows: tuple[Row, ...]) -> str:
    """The rate, and how many of the other figures differ by more than chance."""
    rate = next(row for row in rows if row.name == "rate")
    others = [row for row in rows if row.name != "rate" and row.differs is not None]
    if others:
        beyond = sum(bool(row.differs) for row in others)
        words = f"{beyond} of {len(others)} other figures differ by more than chance."
    else:
        words = "there are too few requests to tell whether its other figures differ by more than chance."
    if rate.ratio is None:
        return words
    return f"The second has {rate.ratio:.3g} times the rate of the first; {words}"


@require_GET
def figure(request: HttpRequest, pk: uuid.UUID, other: uuid.UUID, name: str) -> HttpResponseBase:
    rows = [
        get_visible(TrafficSet.objects.select_related("arrays"), request.user, one) for one in (pk, other)
    ]
    if name not in COMPARISON_FIGURES:
        raise Http404
    tag = f'"{VERSION}-{name}"'  # neither traffic ever changes

    def drawn() -> HttpResponse:
        named = [(row.name, services.traffic_of(row)) for row in rows]
        drawing = comparison_figure(name, named[0], named[1], f"{rows[0].name} and {rows[1].name}: {name}")
        return JsonResponse(drawing, headers={"ETag": tag, "Cache-Control": "no-cache"})

    return get_conditional_response(request, etag=tag) or drawn()
