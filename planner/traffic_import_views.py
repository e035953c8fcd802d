"""Pages of bringing a file: upload it, say how to read it while the consequences show, watch a large one."""

from __future__ import annotations

import uuid
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from accounts import limits
from accounts.access import chosen_project, get_visible, get_writable, may_write
from calibration import jobs
from config import once
from config.pages import STOP_POLLING, invalid
from planner import import_work, services, uploads
from planner.forms import UploadTrafficForm, add_traffic_errors
from planner.models import FORMAT_NAMES, HeldUpload, TrafficImport, TrafficSet
from planner.traffic import LIMITS, ImportOptions, Preview, TrafficError
from planner.traffic import preview as looked_at
from planner.traffic.look import columns_of
from planner.traffic_import_forms import ImportOptionsForm, MappingForm

MAPPED = frozenset({"unknown_format", "ambiguous_columns", "no_header"})
"""What the mapping page settles: the file goes there."""
NOT_MAPPED = frozenset(
    {"benchmark_result", "not_text", "nul_byte", "empty", "no_rows", "bad_archive", "too_large", "not_json_lines",
     "line_ends", "parquet_not_installed", "no_requests"}
)  # fmt: skip
"""What no mapping settles: the file is not kept for it."""


def _caps(request: HttpRequest) -> dict[str, Any]:
    return {
        "most_rows": LIMITS.rows, "most_bytes": settings.MAX_UPLOAD_BYTES,
        "waiting": uploads.waiting(request.user),
    }  # fmt: skip


@require_http_methods(["GET", "POST"])
def upload(request: HttpRequest) -> HttpResponse:
    """Read at once; or, where it is large, by a worker; or, where it is not recognised or its owner wants to look
    first, put aside and taken to the mapping page."""
    project = chosen_project(request)
    if request.method == "GET":
        return render(request, "planner/traffic_new.html", {"form": UploadTrafficForm(), **_caps(request)})
    limits.spend(limits.UPLOAD, str(request.user.pk))
    form = UploadTrafficForm(request.POST, request.FILES, defer=True)
    valid = form.is_valid()
    file = form.files.get("file") if "file" in form.cleaned_data or form.refusal else None
    if file is not None and "look" in request.POST and _mappable(form):
        once.say_if_again(request, HeldUpload.objects.all(), "upload")
        return redirect("planner:traffic_upload", _held(request, project, file).pk)
    if not valid or file is None:
        return _refused(request, project, form, file)
    name, keep = form.cleaned_data["name"], bool(form.cleaned_data["keep_file"])
    default_named = form.cleaned_data["default_named"]
    if form.deferred:
        pk = once.say_if_again(request, TrafficImport.objects.all(), "import")
        if TrafficImport.objects.filter(pk=pk).exists():
            return redirect("planner:import_detail", pk)
        held = _held(request, project, file)
        return redirect(_started(request, held, name, form.chosen(), keep, default_named))
    row = services.create_traffic(
        project, request.user, name, form.traffic(), default_named=default_named,
        pk=once.say_if_again(request, TrafficSet.objects.all(), "traffic"),
    )  # fmt: skip
    if keep and not row.originals.exists():
        uploads.keep(_held(request, project, file), row)
    return redirect("planner:traffic_detail", row.pk)


def _held(request: HttpRequest, project: Any, file: Any) -> HeldUpload:
    """The file put aside, once for a form."""
    pk = once.row_id(request, "upload")
    return uploads.hold(project, request.user, file, file.name or "upload", pk=pk)


def _mappable(form: UploadTrafficForm) -> bool:
    refusal = form.refusal
    return refusal is None or not ({error.code for error in refusal.errors} & NOT_MAPPED)


def _refused(request: HttpRequest, project: Any, form: UploadTrafficForm, file: Any) -> HttpResponse:
    held = None
    if form.refusal is not None and file is not None and _mappable(form):
        held = _held(request, project, file)
        if form.refusal.errors[0].code in MAPPED:
            messages.warning(request, "Its columns were not recognised: say which they are.")
            return redirect("planner:traffic_upload", held.pk)
    context = {"held": held, "evidence": form.evidence, **_caps(request)}
    return invalid(request, "planner/traffic_new.html", form, **context)


def _started(
    request: HttpRequest,
    held: HeldUpload,
    name: str,
    options: dict[str, Any],
    keep: bool,
    default_named: bool,
) -> str:
    limits.spend(limits.JOB_START, str(request.user.pk))
    pk = once.say_if_again(request, TrafficImport.objects.all(), "import")
    job = import_work.start_import(
        held, request.user, name, options, keep=keep, default_named=default_named, pk=pk
    )
    return reverse("planner:import_detail", args=[job.pk])


def _own(request: HttpRequest, pk: uuid.UUID) -> HeldUpload:
    """The file, for its owner only; 404 also where the sweep has been faster."""
    row = get_object_or_404(HeldUpload.objects.of(request.user).select_related("project"), pk=pk)
    if not uploads.path_of(row).exists():
        raise Http404
    return row


def _mapping(data: Any, row: HeldUpload) -> tuple[MappingForm, Preview]:
    """The form with the file's columns to choose from, and what the file becomes with its answers."""
    dialect = ImportOptionsForm(data or {})
    dialect.is_valid()
    with uploads.opened(row) as file:
        kept = {key: dialect.cleaned_data.get(key) for key in ("delimiter", "header", "encoding")}
        columns = columns_of(
            file, import_work.options_of({k: v for k, v in kept.items() if v not in (None, "")})
        )
        form = MappingForm(data, file_columns=columns, initial={"name": row.name[:120]})
        valid = form.is_valid() if data is not None else True
        file.seek(0)
        options = form.options() if data is not None and valid else ImportOptions()
        preview = looked_at(file, options, import_work.limits(), row.name)
        if preview.problem is not None and preview.problem.errors[0].code in MAPPED:
            form.ask_for_lengths()
        return form, preview


HINTS = {
    "unknown_format": "Which columns hold the lengths of prompt and output, in tokens? Choose them under the rows.",
    "no_header": "The first line holds values and no names. Say so under Dialect (First line: is a row already), then "
    "choose the columns.",
    "rate_needed": "No column was taken for the time: choose the one that has it, or give a rate under Times.",
}
"""What is still to be said of a file: a question, not an error."""


def _hint(preview: Preview) -> str:
    problem = preview.problem.errors[0] if preview.problem is not None else None
    if problem is None:
        return ""
    return problem.message if problem.code == "ambiguous_columns" else HINTS.get(problem.code, "")


def _page(row: HeldUpload, form: MappingForm, preview: Preview) -> dict[str, Any]:
    return {
        "hint": _hint(preview),
        "upload": row, "form": form, "preview": preview, "consequences": preview.consequences(),
        "format_name": FORMAT_NAMES.get(preview.traffic.format, "") if preview.traffic else "",
        "evidence": preview.evidence, "used": preview.used, "hours": uploads.HOURS,
    }  # fmt: skip


@require_http_methods(["GET", "POST"])
def held(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """The mapping page of a file that was put aside; its POST imports the file."""
    post = request.method == "POST"
    made = once.say_if_again(request, TrafficSet.objects.all(), "traffic") if post else None
    if made is not None and TrafficSet.objects.filter(pk=made).exists():  # and the file is gone
        return redirect("planner:traffic_detail", made)
    row = _own(request, pk)
    if not may_write(request.user, row.project):
        raise PermissionDenied("You may look at this project, but not start anything in it.")
    if request.method == "GET":
        return render(request, "planner/traffic_map.html", _page(row, *_mapping(None, row)))
    form, preview = _mapping(request.POST, row)
    if not form.is_valid():
        return invalid(request, "planner/traffic_map.html", **_page(row, form, preview))
    name = form.cleaned_data["name"] or row.name[:120]
    default_named = name == row.name[:120]
    keep = bool(form.cleaned_data["keep_file"])
    with uploads.opened(row) as file:
        large = import_work.is_large(file, row.size_bytes)
    if large and preview.problem is None:
        return redirect(_started(request, row, name, form.chosen(), keep, default_named))
    try:
        traffic = import_work.import_now(
            row, request.user, name, form.options(), keep=keep, default_named=default_named, pk=made
        )
    except TrafficError as error:
        add_traffic_errors(form, error)
        return invalid(request, "planner/traffic_map.html", **_page(row, form, preview))
    return redirect("planner:traffic_detail", traffic.pk)


@require_POST
def preview(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """htmx: what the file becomes when it is read so."""
    row = _own(request, pk)
    form, found = _mapping(request.POST, row)
    return render(request, "planner/_map_preview.html", {**_page(row, form, found), "live": True})


@require_POST
def discard(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """The owner deletes the file now."""
    row = get_object_or_404(HeldUpload.objects.of(request.user), pk=pk)
    traffic = row.traffic_id
    uploads.delete(row)
    messages.success(request, f"{row.name} was deleted.")
    return redirect("planner:traffic_detail", traffic) if traffic else redirect("planner:traffic_new")


@require_GET
def original(request: HttpRequest, pk: uuid.UUID) -> HttpResponseBase:
    """The file as it was uploaded, for its owner."""
    row = _own(request, pk)
    name = "".join(c if c.isprintable() and c not in '/\\"' else "_" for c in row.name)
    disposition = content_disposition_header(as_attachment=True, filename=name or "file")
    headers = {"Content-Disposition": disposition or "attachment", "Content-Length": str(row.size_bytes)}
    return StreamingHttpResponse(
        uploads.pieces(row), content_type="application/octet-stream", headers=headers
    )


# Large files: the job ----------------------------------------------------------------------------------------


def _job_context(request: HttpRequest, job: TrafficImport) -> dict[str, Any]:
    names = ("status", "cancel", "rerun")
    address = {name: reverse(f"planner:import_{name}", args=[job.pk]) for name in names}
    upload = job.upload
    mine = upload is not None and upload.owner_id == request.user.pk
    return {
        "job": job, "address": address, "waiting_words": "Waiting for a worker.",
        "writable": may_write(request.user, job.project) and (job.is_active or upload is not None),
        "map_url": reverse("planner:traffic_upload", args=[job.upload_id]) if mine and not job.is_active else "",
    }  # fmt: skip


@require_GET
def import_detail(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    rows = TrafficImport.objects.select_related("owner", "project", "upload", "traffic")
    job = get_visible(rows, request.user, pk)
    return render(request, "planner/import_detail.html", {"import": job, **_job_context(request, job)})


@require_GET
def import_status(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    job = get_visible(TrafficImport.objects.select_related("project", "upload"), request.user, pk)
    code = 200 if job.is_active else STOP_POLLING
    return render(request, "jobs/_live.html", _job_context(request, job), status=code)


@require_POST
def import_cancel(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    job = get_writable(TrafficImport.objects.all(), request.user, pk)
    if not jobs.request_cancel(job):
        messages.warning(request, "It had already ended.")
    return redirect("planner:import_detail", pk)


@require_POST
def import_rerun(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    job = get_writable(TrafficImport.objects.select_related("upload", "project"), request.user, pk)
    if job.is_active or job.upload is None:
        messages.warning(request, f"It is still {job.status}." if job.is_active else import_work.FILE_GONE)
        return redirect("planner:import_detail", pk)
    limits.spend(limits.JOB_START, str(request.user.pk))
    again = import_work.start_import(
        job.upload, request.user, job.name, job.options, keep=job.keep_file, rerun_of=job
    )
    return redirect("planner:import_detail", again.pk)
