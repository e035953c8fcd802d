"""Pages of traffic: bring a trace, make one up, see what it is."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Paginator
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
from django.views.decorators.http import require_GET, require_http_methods

from accounts import limits
from accounts.access import chosen_project, get_visible, may_write
from calibration.summary import flat
from config import once
from config.pages import filter_query, invalid
from planner import charts, exports, services
from planner.filters import filtered_traffic, traffic_chips
from planner.forms import SynthesiseForm
from planner.models import HeldUpload, TrafficImport, TrafficJob, TrafficSet
from planner.shape_page import shaped_context
from planner.traffic import PRESETS
from planner.traffic_job_views import made_or_started


@require_GET
def traffic_list(request: HttpRequest) -> HttpResponse:
    rows = TrafficSet.objects.visible_to(request.user)
    page = Paginator(filtered_traffic(rows, request.GET).select_related("owner"), 25).get_page(
        request.GET.get("page")
    )
    context = {
        "page": page, "chips": traffic_chips(rows, request.GET), "any": rows.exists(),
        "query": filter_query(request), "jobs": _running(request),
    }  # fmt: skip
    return render(request, "planner/traffic_list.html", context)


def _running(request: HttpRequest) -> list[tuple[str, Any]]:
    """Traffic that workers are at: the address of each job, and the job."""
    imports = TrafficImport.objects.visible_to(request.user).active()
    made = TrafficJob.objects.visible_to(request.user).active().defer("result")
    return [(reverse("planner:import_detail", args=[job.pk]), job) for job in imports] + [
        (reverse("planner:traffic_job", args=[job.pk]), job) for job in made
    ]


@require_http_methods(["GET", "POST"])
def synthesise(request: HttpRequest) -> HttpResponse:
    """Traffic made up from a preset; ``then=plan`` goes on to the plan's form with it."""
    project = chosen_project(request)
    if request.method == "GET":
        form = SynthesiseForm(initial={"preset": "chat"} | request.GET.dict())
        return render(request, "planner/traffic_synthesise.html", {"form": form, "presets": PRESETS})
    limits.spend(limits.UPLOAD, str(request.user.pk))
    form = SynthesiseForm(request.POST, defer=True)
    if not form.is_valid():
        return invalid(request, "planner/traffic_synthesise.html", form, presets=PRESETS)
    if form.deferred:
        return made_or_started(request, TrafficJob.SYNTHESISE, project, form)
    row = services.create_traffic(
        project, request.user, form.cleaned_data["name"], form.traffic(),
        default_named=form.cleaned_data["default_named"],
        pk=once.say_if_again(request, TrafficSet.objects.all(), "traffic"),
    )  # fmt: skip
    if request.POST.get("then") == "plan":
        messages.success(request, f"{row.name} was made: {row.statistics['requests']:,} requests.")
        chosen = {"traffic": str(row.pk), "calibration": request.POST.get("calibration", "")}
        return redirect(f"{reverse('planner:plan_new')}?{urlencode(chosen)}")
    return redirect("planner:traffic_detail", row.pk)


FIGURES = (
    ("arrivals", "Arrivals", "How many requests come, over the whole trace."),
    ("bursts", "Bursts", "The busiest stretch, finely cut: what queues are made of."),
    ("lengths", "Lengths", "What share of prompts and outputs is at most so long."),
    ("gaps", "Gaps", "How long it is from one request to the next."),
    ("burstiness", "Burstiness", "Whether requests crowd together, from moments to minutes."),
    ("dependence", "Prompt and output", "Whether long prompts have long outputs."),
    ("reuse", "Prefix reuse", "What a prefix cache would find of the prompts, by its size."),
    ("classes", "Classes", "The kinds of requests that are mixed here."),
)  # fmt: skip


@require_GET
def detail(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    traffic = get_visible(TrafficSet.objects.select_related("owner", "project"), request.user, pk)
    figures = [{"name": name, "title": title, "about": about,
                "url": reverse("planner:traffic_figure", args=[pk, name])}
               for name, title, about in FIGURES if _has(traffic, name)]  # fmt: skip
    plans = traffic.plans.visible_to(request.user).defer("result", "log", "traceback")
    context: dict[str, Any] = {
        "traffic": traffic, "statistics": traffic.statistics, "figures": figures,
        **_recipe(traffic), "shaped": shaped_context(traffic, request.user),
        "resembles": (traffic.recipe.get("preset") or {}).get("resembles", ""), "plans": plans[:5],
        "writable": may_write(request.user, traffic.project),
        "original": HeldUpload.objects.of(request.user).filter(traffic=traffic).first(),
    }  # fmt: skip
    return render(request, "planner/traffic_detail.html", context)


def _has(traffic: TrafficSet, figure: str) -> bool:
    """Whether there is anything to draw: shared prompts and classes are not in every traffic."""
    wanted = {"reuse": "prefix_hit_rate", "classes": "classes"}.get(figure)
    return wanted is None or bool(traffic.statistics.get(wanted) is not None)


def _recipe(traffic: TrafficSet) -> dict[str, list[tuple[str, str]]]:
    """What it takes to make the traffic again; how the columns of a file were read, apart."""
    said = ("preset name", "preset title", "preset resembles")  # elsewhere on the page
    rows = [row for row in flat(traffic.recipe) if row[0] not in said]
    layout = [(key.removeprefix("layout "), value) for key, value in rows if key.startswith("layout ")]
    return {"recipe": [row for row in rows if not row[0].startswith("layout ")], "layout": layout}


@require_GET
def figure(request: HttpRequest, pk: uuid.UUID, name: str) -> HttpResponseBase:
    traffic = get_visible(TrafficSet.objects.select_related("arrays"), request.user, pk)
    if name not in charts.TRAFFIC_FIGURES:
        raise Http404
    tag = f'"{charts.VERSION}-{name}"'  # a traffic never changes

    def drawn() -> HttpResponse:
        drawing = charts.traffic_figure(name, services.traffic_of(traffic), f"{traffic.name}: {name}")
        return JsonResponse(drawing, headers={"ETag": tag, "Cache-Control": "no-cache"})

    return get_conditional_response(request, etag=tag) or drawn()


@require_GET
def requests_csv(request: HttpRequest, pk: uuid.UUID) -> HttpResponseBase:
    traffic = get_visible(TrafficSet.objects.select_related("arrays"), request.user, pk)
    blocks = exports.csv_blocks(*exports.request_table(services.traffic_of(traffic)))
    headers = {"Content-Disposition": f'attachment; filename="traffic-{pk}.csv"'}
    return StreamingHttpResponse(blocks, content_type="text/csv; charset=utf-8", headers=headers)
