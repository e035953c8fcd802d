"""Pages of calibrations. Views assemble: forms validate, services write, charts draw."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import F
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.cache import get_conditional_response
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from accounts import limits
from accounts.access import chosen_project, get_visible, get_writable, may_write
from calibration import charts, exports, jobs, services
from calibration.architecture import Architecture
from calibration.bundles import bundled
from calibration.curve_forms import ImportCurvesForm
from calibration.describe import described
from calibration.device_table import device_floor, device_table
from calibration.document import write_document
from calibration.filters import chips, filtered
from calibration.forms import (
    CalibrateForm,
    DescribeForm,
    ImportBundledForm,
    ImportDocumentForm,
    ImportStepsForm,
    ImportVllmLogForm,
    LinkForm,
)
from calibration.freshness import freshness_by_id, freshness_of
from calibration.models import Calibration
from calibration.steptime import FITTED_ROLES
from calibration.summary import error_rows, flat, pool_rows, told_first, transfer_rows
from config.pages import STOP_POLLING, download, filter_query, invalid

ImportForm = ImportStepsForm | ImportVllmLogForm | ImportCurvesForm | ImportDocumentForm


@require_GET
def calibration_list(request: HttpRequest) -> HttpResponse:
    rows = Calibration.objects.visible_to(request.user)
    found = (
        filtered(rows, request.GET)
        .select_related("owner")
        .defer("result", "log", "traceback")
        .annotate(heldout_median=F("result__heldout__median"), heldout_p90=F("result__heldout__p90"))
    )
    page = Paginator(found, 25).get_page(request.GET.get("page"))
    shown = list(page.object_list)
    fresh = freshness_by_id(shown)
    context = {
        "rows": [(row, fresh.get(row.pk)) for row in shown],
        "page": page,
        "chips": chips(rows, request.GET),
        "any": rows.exists(),
        "query": filter_query(request),
    }
    return render(request, "calibration/list.html", context)


@require_http_methods(["GET", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    project = chosen_project(request)
    if request.method == "GET":
        return render(request, "calibration/new.html", {"form": CalibrateForm(initial=request.GET.dict())})
    form = CalibrateForm(request.POST, request.FILES)
    if not form.is_valid():
        return invalid(request, "calibration/new.html", form)
    limits.spend(limits.JOB_START, str(request.user.pk))
    calibration = services.start_calibration(project, request.user, form.request())
    return redirect("calibration:detail", calibration.pk)


@require_POST
def preview(request: HttpRequest) -> HttpResponse:
    """htmx: what the model chosen in the form amounts to, and whether it fits, before anything starts."""
    describe = DescribeForm(request.POST, request.FILES)
    architecture = describe.architecture() if describe.is_valid() else None
    for _, uploads in request.FILES.lists():
        for upload in uploads:
            upload.seek(0)  # the second form reads it again
    form = CalibrateForm(request.POST, request.FILES)
    context = {
        "problems": [error for errors in describe.errors.values() for error in errors],
        "architecture": described(architecture) if architecture else None,
        "would_be": form.request() if form.is_valid() else None,
        "refusals": form.errors.get("device", []),
    }
    return render(request, "calibration/_architecture.html", context)


@require_http_methods(["GET", "POST"])
def import_(request: HttpRequest) -> HttpResponse:
    """A CSV of step times, a log of vLLM, curves that others published, or a calibration file of another Ridgeline."""
    project = chosen_project(request)
    kinds: dict[str, type[ImportForm]] = {
        "steps": ImportStepsForm, "log": ImportVllmLogForm, "curves": ImportCurvesForm, "document": ImportDocumentForm,
    }  # fmt: skip
    kind = request.POST.get("kind", "steps")
    if kind not in kinds:
        raise Http404
    forms: dict[str, Any] = {name: form(prefix=name) for name, form in kinds.items()}
    if request.method == "GET":
        return render(request, "calibration/import.html", {"forms": forms, "bundled": bundled()})
    limits.spend(limits.UPLOAD, str(request.user.pk))
    form = forms[kind] = kinds[kind](request.POST, request.FILES, prefix=kind)
    if not form.is_valid():
        return invalid(request, "calibration/import.html", form, forms=forms, bundled=bundled())
    calibration = services.start_import(project, request.user, form.request())
    return redirect("calibration:detail", calibration.pk)


@require_POST
def import_bundled(request: HttpRequest) -> HttpResponse:
    """A copy of a calibration that comes with Ridgeline."""
    project = chosen_project(request)
    form = ImportBundledForm(request.POST)
    if not form.is_valid():
        messages.error(request, " ".join(str(error) for errors in form.errors.values() for error in errors))
        return redirect("calibration:import")
    limits.spend(limits.JOB_START, str(request.user.pk))
    return redirect("calibration:detail", services.start_import(project, request.user, form.request()).pk)


@require_GET
def detail(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    calibration = get_visible(Calibration.objects.select_related("owner", "project"), request.user, pk)
    return render(request, "calibration/detail.html", detail_context(request, calibration))


def detail_context(request: HttpRequest, calibration: Calibration) -> dict[str, Any]:
    result = calibration.result or {}
    heldout = result.get("heldout") or {}
    facts = services.facts_of(calibration)
    context = job_context(request, calibration)
    # While it runs the figures stand ready: points appear as they are measured.
    shown = FIGURES if context["sample_count"] or calibration.is_active else ()
    figures = [{"name": name, "title": title, "about": about,
                "url": reverse("calibration:figure", args=[calibration.pk, name])}
               for name, title, about in shown]  # fmt: skip
    return context | {
        "calibration": calibration,
        "architecture": described(Architecture.from_dict(calibration.architecture)),
        "figures": figures,
        "fitted": calibration.samples.filter(role__in=FITTED_ROLES).count(),
        "result": result,
        "heldout": heldout,
        "errors": error_rows(heldout),
        "envelope": flat(calibration.envelope),
        "environment": told_first(flat(calibration.environment)),
        "provenance": flat({key: value for key, value in calibration.provenance.items() if key != "engine"}),
        "engine": facts.engine,
        "chunks": services.chunk_arithmetic(calibration),
        "pools": pool_rows(facts.kv_capacity),
        "capacity_label": facts.kv_capacity.label if facts.kv_capacity else "",
        "pool_ranks": facts.kv_capacity.ranks if facts.kv_capacity else 1,
        "transfers": [(table, transfer_rows(table)) for table in facts.transfers],
        "not_measured": (calibration.environment or {}).get("not_measured") or (),
        "link_form": LinkForm(),
        "device": device_table(calibration.environment),
        "fresh": freshness_of(calibration),
    }


FIGURES = (
    ("decode", "Decode", "How long between tokens when many sequences decode together."),
    ("prefill", "Prefill", "How long a step takes that processes prompt tokens alone."),
    ("mixed", "Mixed", "What a chunk of a prompt costs the sequences that decode beside it."),
    ("accuracy", "Accuracy", "How far the fit is from each measured step."),
)  # fmt: skip


def job_context(request: HttpRequest, calibration: Calibration) -> dict[str, Any]:
    """What the shared job templates need."""
    address = {
        name: reverse(f"calibration:{name}", args=[calibration.pk]) for name in ("status", "cancel", "rerun")
    }
    return {
        "job": calibration, "address": address, "writable": may_write(request.user, calibration.project),
        "sample_count": calibration.samples.exclude(role="sentinel").count(),
    }  # fmt: skip


@require_GET
def status(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    calibration = get_visible(Calibration.objects.select_related("project"), request.user, pk)
    code = 200 if calibration.is_active else STOP_POLLING
    return render(request, "jobs/_live.html", job_context(request, calibration), status=code)


@require_POST
def cancel(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    calibration = get_writable(Calibration.objects.all(), request.user, pk)
    if not jobs.request_cancel(calibration):
        messages.warning(request, "It had already ended.")
    return redirect("calibration:detail", pk)


@require_POST
def rerun(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    calibration = get_writable(Calibration.objects.all(), request.user, pk)
    if calibration.is_active:
        messages.warning(request, f"It is still {calibration.status}.")
        return redirect("calibration:detail", pk)
    limits.spend(limits.JOB_START, str(request.user.pk))
    return redirect("calibration:detail", services.rerun(calibration, request.user).pk)


@require_POST
def links(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """A link between hosts that a person enters."""
    calibration = get_writable(Calibration.objects.select_related("owner", "project"), request.user, pk)
    form = LinkForm(request.POST)
    if not form.is_valid():
        context = detail_context(request, calibration) | {"link_form": form}
        return render(request, "calibration/detail.html", context, status=422)
    try:
        services.add_link(calibration, form.table())
    except ValueError as error:
        messages.warning(request, str(error))
    return redirect("calibration:detail", pk)


@require_GET
def figure(request: HttpRequest, pk: uuid.UUID, name: str) -> HttpResponse:
    calibration = get_visible(Calibration.objects.all(), request.user, pk)
    if name not in charts.FIGURES:
        raise Http404
    # What has ended does not change: a browser that comes again with this tag is spared the drawing.
    parts = (charts.VERSION, calibration.status, calibration.samples.count(), calibration.done)
    tag = f'"{"-".join(map(str, parts))}"'

    def drawn() -> HttpResponse:
        result = calibration.result or {}
        model = services.step_time_model(calibration) if result.get("model") else None
        stored = services.samples_of(calibration, None if name == "accuracy" else [name])
        # Steps that the KV pool cannot hold would stretch every axis for what no schedule contains.
        samples = [sample for sample in stored if sample.role != "outside"]
        rows = (result.get("heldout") or {}).get("rows") or ()
        floor = device_floor(Architecture.from_dict(calibration.architecture), calibration.environment)
        drawing = charts.figure(name, samples, model, rows, f"{calibration.name}: {name}", floor)
        return JsonResponse(drawing, headers={"ETag": tag, "Cache-Control": "no-cache"})

    return get_conditional_response(request, etag=tag) or drawn()


@require_GET
def samples_csv(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    calibration = get_visible(Calibration.objects.all(), request.user, pk)
    rows = exports.sample_rows(services.samples_of(calibration))
    text = exports.csv_text(exports.SAMPLE_COLUMNS, rows)
    return download(text, f"calibration-{pk}-samples.csv", "text/csv; charset=utf-8")


@require_GET
def document_json(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """The calibration as a file that another Ridgeline imports."""
    calibration = get_visible(Calibration.objects.all(), request.user, pk)
    if calibration.is_active or not calibration.samples.exists():
        raise Http404
    text = write_document(services.document_of(calibration))
    return download(text, f"calibration-{pk}.json", "application/json; charset=utf-8")
