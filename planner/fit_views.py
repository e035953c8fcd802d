"""The page of a model fitted to a traffic: which kinds hold on the half that was held out, and how well."""

from __future__ import annotations

import uuid
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.cache import get_conditional_response
from django.utils.http import urlencode
from django.views.decorators.http import require_GET, require_http_methods

from accounts import limits
from accounts.access import get_visible, get_writable, may_write
from calibration.summary import flat
from planner import services, traffic_work
from planner.charts import VERSION
from planner.charts.compare import COMPARISON_FIGURES, comparison_figure
from planner.compare_views import table
from planner.fit_forms import FitForm
from planner.models import TrafficJob, TrafficSet
from planner.traffic import TrafficError
from planner.traffic.fitting import FIT_PARTS, Candidate, FitReport, judged

FIGURES = (
    ("prompts", "Prompts", "What share is at most so long."),
    ("outputs", "Outputs", "What share is at most so long."),
    ("gaps", "Gaps", "How long it is from one request to the next."),
    ("burstiness", "Burstiness", "Whether requests crowd together, from moments to minutes."),
    ("arrivals", "Arrivals", "How many requests come, over both from their beginnings."),
)  # fmt: skip
COLUMNS = {"ks_gaps": "KS of gaps", "cv": "CV", "ks_prompt": "KS of prompts", "ks_output": "KS of outputs",
           "rank_correlation": "Rank correlation", "hit_rate": "Whole blocks found again, share",
           "hit_rate_heldout": "In the held-out half"}  # fmt: skip


@require_http_methods(["GET", "POST"])
def page(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """A small traffic is fitted as it is looked at. Of a large one the page shows what a worker fitted; POST has one do
    it."""
    if request.method == "POST":
        return _start(request, pk)
    row = get_visible(TrafficSet.objects.select_related("project"), request.user, pk)
    limits.spend(limits.LOOK, str(request.user.pk))
    form = FitForm({key: request.GET.get(key, "") for key in FIT_PARTS}, traffic=row, defer=True)
    context = {"traffic": row, "form": form, "writable": may_write(request.user, row.project)}
    if not form.is_valid():
        return render(request, "planner/traffic_fit.html", context, status=422)
    if form.report is None:
        running = TrafficJob.objects.visible_to(request.user).active().filter(kind=TrafficJob.FIT, parent=row)
        return render(request, "planner/traffic_fit.html", {**context, "running": running.first()})
    return render(request, "planner/traffic_fit.html", {**context, **_shown(row, form, form.report)})


def _shown(row: TrafficSet, form: FitForm, report: FitReport) -> dict[str, Any]:
    chosen = dict(zip(FIT_PARTS, report.chosen, strict=True))
    asked = {"job": str(form.made_by.pk)} if form.made_by is not None else chosen
    figures = [{"name": name, "title": title, "about": about,
                "url": f"{reverse('planner:fit_figure', args=[row.pk, name])}?{urlencode(asked)}"}
               for name, title, about in FIGURES]  # fmt: skip
    return {
        "fit": report, "figures": figures, **table(report.comparison, report.floor),
        "tables": [_candidates(part.capitalize(), tried, kind) for part, tried, kind in report.tables],
        "model": flat(report.model.to_dict()),
        "make": f"{reverse('planner:traffic_model')}?{urlencode({'fit': str(row.pk), **form.options()})}",
    }  # fmt: skip


def _start(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    row = get_writable(TrafficSet.objects.select_related("project"), request.user, pk)
    form = FitForm({key: request.POST.get(key, "") for key in FIT_PARTS}, traffic=row, defer=True)
    if not form.is_valid() or not form.deferred:
        asked = {key: request.POST.get(key, "") for key in FIT_PARTS}
        return redirect(f"{reverse('planner:traffic_fit', args=[pk])}?{urlencode(asked)}")
    limits.spend(limits.JOB_START, str(request.user.pk))
    name = f"Model of {row.name}"
    job = traffic_work.start(TrafficJob.FIT, row.project, request.user, name, form.options(), parent=row)
    return redirect("planner:traffic_job", job.pk)


def _candidates(title: str, candidates: tuple[Candidate, ...], chosen: str) -> dict[str, Any]:
    keys = list(dict.fromkeys(key for one in candidates for key in one.figures))
    names = [
        COLUMNS.get(key, f"Dispersion {key.removeprefix('dispersion_').removesuffix('_s')} s") for key in keys
    ]
    rows = [
        (one.title, one.kind == chosen, one.score, [one.figures.get(key) for key in keys])
        for one in candidates
    ]
    return {"title": title, "columns": names, "rows": rows}


@require_GET
def figure(request: HttpRequest, pk: uuid.UUID, name: str) -> HttpResponseBase:
    """``?arrivals=KIND&lengths=KIND``, fitted now (a kind that is not named is the simplest), or ``?job=ID``."""
    row = get_visible(TrafficSet.objects.select_related("arrays"), request.user, pk)
    if name not in COMPARISON_FIGURES:
        raise Http404
    if "job" in request.GET:
        return _kept_figure(request, row, name)
    if row.statistics["requests"] > settings.IMMEDIATE_FIT_REQUESTS:
        return JsonResponse({"detail": "A worker fits so large a traffic: name its job."}, status=422)
    kinds = (
        request.GET.get("arrivals") or "poisson",
        request.GET.get("lengths") or "lognormal",
        request.GET.get("sessions") or "none",
    )
    tag = f'"{VERSION}-{name}-{urlencode({"k": "-".join(kinds)})[:100]}"'

    def drawn() -> HttpResponse:
        try:
            heldout, synthetic = judged(services.parent_of(row), *kinds)
        except TrafficError as error:
            return JsonResponse({"detail": error.detail}, status=422)
        title = f"{row.name}: {name}, held out and model"
        drawing = comparison_figure(name, ("held-out half", heldout), ("model", synthetic), title)
        return JsonResponse(drawing, headers={"ETag": tag, "Cache-Control": "no-cache"})

    return get_conditional_response(request, etag=tag) or drawn()


def _kept_figure(request: HttpRequest, row: TrafficSet, name: str) -> HttpResponseBase:
    try:
        pk = uuid.UUID(request.GET["job"])
    except ValueError:
        raise Http404 from None
    job = get_visible(TrafficJob.objects.filter(parent=row, kind=TrafficJob.FIT), request.user, pk)
    if job.result is None:
        raise Http404
    return JsonResponse(job.result["figures"][name])
