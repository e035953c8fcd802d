"""API: architectures, devices, calibrations. Payloads go through the pages' forms (calibration/forms.py)."""

from __future__ import annotations

import json
import uuid
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import File, Form, Query, Router, UploadedFile
from ninja.responses import Status as Answer

from accounts import limits
from calibration import services
from calibration.architecture import PRESETS, Architecture
from calibration.bundles import bundled
from calibration.curve_forms import ImportCurvesForm
from calibration.describe import described
from calibration.document import write_document
from calibration.form_parts import CUSTOM
from calibration.forms import (
    CalibrateForm,
    DescribeForm,
    ImportBundledForm,
    ImportDocumentForm,
    ImportStepsForm,
    ImportVllmLogForm,
    LinkForm,
)
from calibration.freshness import Freshness, freshness_by_id, freshness_of
from calibration.jobs import request_cancel
from calibration.models import Calibration
from calibration.schemas import (
    ArchitectureIn,
    ArchitectureOut,
    BundledOut,
    CalibrationDetail,
    CalibrationFilters,
    CalibrationIn,
    CalibrationPage,
    DeviceOut,
    ImportBundledIn,
    ImportCurvesIn,
    ImportDocumentIn,
    ImportStepsIn,
    ImportVllmLogIn,
    LinkIn,
    PresetOut,
    SamplePage,
)
from config.errors import ApiError, answers, conflict, form_error
from config.schemas import (
    Paging,
    form_data,
    found,
    job_fields,
    target_project,
    uploaded,
)

router = Router()


@router.get("/architectures/presets", response=answers({200: list[PresetOut]}), operation_id="list_presets")
def list_presets(request: HttpRequest) -> list[dict[str, Any]]:
    """The models whose public dimensions are built in."""
    return [{"key": key, "architecture": described(preset)} for key, preset in PRESETS.items()]


@router.post(
    "/architectures", response=answers({200: ArchitectureOut}, 413, 415), operation_id="describe_architecture"
)
def describe_architecture(request: HttpRequest, payload: ArchitectureIn) -> dict[str, Any]:
    """What a preset or a config.json is made of. Stores nothing."""
    form = DescribeForm(_with_config(payload))
    if not form.is_valid():
        raise form_error(form, {"config_text": "config"})
    return described(form.architecture())


def _with_config(
    payload: ArchitectureIn | CalibrationIn | ImportStepsIn | ImportVllmLogIn | ImportCurvesIn,
) -> dict[str, Any]:
    """The form's data, a config.json as the text it takes. With a preset named as well one would go unread."""
    data = form_data(payload, "config", "project")
    if isinstance(payload, ArchitectureIn | CalibrationIn) and payload.config is not None:
        data["config_text"] = json.dumps(payload.config)
    if "config_text" not in data:
        return data
    if "model" in payload.model_fields_set and payload.model != CUSTOM:
        problem = f'With a config.json this is "{CUSTOM}", or left out.'
        raise ApiError(422, "The request is not valid.", [("model", problem)])
    return data | {"model": CUSTOM}


@router.get("/devices", response=answers({200: list[DeviceOut]}), operation_id="list_devices")
def list_devices(request: HttpRequest) -> list[DeviceOut]:
    """What the device workers announced they can measure on."""
    return [DeviceOut.from_orm(device) for device in services.known_devices()]


# Calibrations ------------------------------------------------------------------------------------------------


def _fields(row: Calibration, freshness: Freshness | None) -> dict[str, Any]:
    heldout = (row.result or {}).get("heldout")
    return {
        **job_fields(row), "source": row.source, "model": row.model_name, "device": row.device,
        "device_label": row.device_label, "kv_tokens": row.kv_tokens, "published": row.published, "reason": row.reason,
        "remarks": list(row.remarks),
        "heldout": heldout and {"median": heldout.get("median"), "p90": heldout.get("p90")},
        "freshness": freshness and freshness.to_dict(),
    }  # fmt: skip


def _detail(row: Calibration) -> dict[str, Any]:
    return {
        **_fields(row, freshness_of(row)), "architecture": described(Architecture.from_dict(row.architecture)),
        "envelope": row.envelope, "seed": row.seed, "tensor_parallel": row.tensor_parallel,
        "samples": row.samples.count(),
        "environment": row.environment, "provenance": row.provenance,
        "facts": services.facts_of(row).to_dict(),
        "chunking": [cost.to_dict() for cost in services.chunk_arithmetic(row)], "result": row.result, "log": row.log,
    }  # fmt: skip


@router.get("/calibrations", response=answers({200: CalibrationPage}), operation_id="list_calibrations")
def list_calibrations(request: HttpRequest, filters: Query[CalibrationFilters]) -> dict[str, Any]:
    """The calibrations of your projects, newest first."""
    rows = filters.select(Calibration.objects.defer("log", "traceback"), request.user)
    wanted = {"source": filters.source, "published": filters.published}
    rows = rows.filter(**{key: value for key, value in wanted.items() if value is not None})
    shown = list(filters.slice(rows))
    fresh = freshness_by_id(shown)
    return {"items": [_fields(row, fresh.get(row.pk)) for row in shown], "count": rows.count()}


@router.post(
    "/calibrations", response=answers({202: CalibrationDetail}, 413, 415), operation_id="start_calibration"
)
def start_calibration(request: HttpRequest, payload: CalibrationIn) -> Answer[Any]:
    """Starts measuring; while the same is being measured for you, that one. Follow it with GET; it has ended
    when `status` is neither queued nor running."""
    project = target_project(request, payload.project)
    form = CalibrateForm(_with_config(payload))
    if not form.is_valid():
        raise form_error(form, {"config_text": "config"})
    limits.spend(limits.JOB_START, str(request.user.pk))
    return Answer(202, _detail(services.start_calibration(project, request.user, form.request())))


@router.post(
    "/calibrations/import-steps",
    response=answers({202: CalibrationDetail}, 413, 415),
    operation_id="import_steps",
)
def import_steps(request: HttpRequest, payload: Form[ImportStepsIn], file: File[UploadedFile]) -> Answer[Any]:
    """Turns a CSV of step times (prefill_tokens, prefill_context, decode_seqs, decode_context, step_ms or step_s;
    also gzipped) into a calibration. The model is a preset, or a config.json in `config_text`."""
    project = target_project(request, payload.project)
    limits.spend(limits.UPLOAD, str(request.user.pk))
    form = ImportStepsForm(_with_config(payload), uploaded(file))
    if not form.is_valid():
        raise form_error(form)
    return Answer(202, _detail(services.start_import(project, request.user, form.request())))


@router.post(
    "/calibrations/import-vllm-log",
    response=answers({202: CalibrationDetail}, 413, 415),
    operation_id="import_vllm_log",
)
def import_vllm_log(
    request: HttpRequest, payload: Form[ImportVllmLogIn], file: File[UploadedFile]
) -> Answer[Any]:
    """Turns the log of a vLLM started with `--enable-logging-iteration-details` (also gzipped) into a calibration.
    `provenance.iterations` says what the log lacked and how it was bounded."""
    project = target_project(request, payload.project)
    limits.spend(limits.UPLOAD, str(request.user.pk))
    form = ImportVllmLogForm(_with_config(payload), uploaded(file))
    if not form.is_valid():
        raise form_error(form)
    return Answer(202, _detail(services.start_import(project, request.user, form.request())))


@router.post(
    "/calibrations/import-curves",
    response=answers({202: CalibrationDetail}, 413, 415),
    operation_id="import_curves",
)
def import_curves(
    request: HttpRequest,
    payload: Form[ImportCurvesIn],
    file: File[UploadedFile],
    second_file: File[UploadedFile | None] = None,
) -> Answer[Any]:
    """Turns published curves into a calibration: Dynamo's profile (npz; prefill and decode may be two files), Sarathi's
    figure 2 or Splitwise's table (CSV). `provenance.published` says what was taken for granted."""
    project = target_project(request, payload.project)
    limits.spend(limits.UPLOAD, str(request.user.pk))
    files = uploaded(file) | ({"second_file": second_file} if second_file is not None else {})
    form = ImportCurvesForm(_with_config(payload), files)
    if not form.is_valid():
        raise form_error(form)
    return Answer(202, _detail(services.start_import(project, request.user, form.request())))


@router.post(
    "/calibrations/import-document",
    response=answers({202: CalibrationDetail}, 413, 415),
    operation_id="import_document",
)
def import_document(
    request: HttpRequest, payload: Form[ImportDocumentIn], file: File[UploadedFile]
) -> Answer[Any]:
    """Imports a calibration file, as `GET /calibrations/{id}/document` and `manage.py calibrate --out` write it."""
    project = target_project(request, payload.project)
    limits.spend(limits.UPLOAD, str(request.user.pk))
    form = ImportDocumentForm(form_data(payload, "project"), uploaded(file))
    if not form.is_valid():
        raise form_error(form)
    return Answer(202, _detail(services.start_import(project, request.user, form.request())))


@router.get(
    "/calibrations/bundled",
    response=answers({200: list[BundledOut]}),
    operation_id="list_bundled_calibrations",
)
def list_bundled(request: HttpRequest) -> list[BundledOut]:
    """The calibration files that come with Ridgeline, measured elsewhere: read-only samples to import."""
    return [BundledOut.from_orm(entry) for entry in bundled()]


@router.post(
    "/calibrations/import-bundled", response=answers({202: CalibrationDetail}, 413, 415),
    operation_id="import_bundled",
)  # fmt: skip
def import_bundled(request: HttpRequest, payload: ImportBundledIn) -> Answer[Any]:
    """A copy of a bundled calibration, fitted and judged here as any import is."""
    project = target_project(request, payload.project)
    form = ImportBundledForm(form_data(payload, "project"))
    if not form.is_valid():
        raise form_error(form)
    limits.spend(limits.JOB_START, str(request.user.pk))
    return Answer(202, _detail(services.start_import(project, request.user, form.request())))


@router.get(
    "/calibrations/{uuid:pk}", response=answers({200: CalibrationDetail}, 404), operation_id="get_calibration"
)
def get_calibration(request: HttpRequest, pk: uuid.UUID) -> dict[str, Any]:
    """Status, progress, log and, once it is done, the fit with its errors."""
    return _detail(found(Calibration.objects.all(), request, pk))


@router.post(
    "/calibrations/{uuid:pk}/cancel", response=answers({202: CalibrationDetail}, 404, 409),
    operation_id="cancel_calibration",
)  # fmt: skip
def cancel_calibration(request: HttpRequest, pk: uuid.UUID) -> Answer[Any]:
    """Stops between two steps; what was measured until then is kept. 409 when it had already ended."""
    row = found(Calibration.objects.all(), request, pk, to_write=True)
    if not request_cancel(row):
        raise conflict(f"It has already ended: {row.status}.")
    return Answer(202, _detail(found(Calibration.objects.all(), request, pk)))


@router.post(
    "/calibrations/{uuid:pk}/rerun", response=answers({202: CalibrationDetail}, 404, 409),
    operation_id="rerun_calibration",
)  # fmt: skip
def rerun_calibration(request: HttpRequest, pk: uuid.UUID) -> Answer[Any]:
    """The same again as a new calibration. 409 while this one is still at it."""
    row = found(Calibration.objects.all(), request, pk, to_write=True)
    if row.is_active:
        raise conflict(f"It is still {row.status}.")
    limits.spend(limits.JOB_START, str(request.user.pk))
    return Answer(202, _detail(services.rerun(row, request.user)))


@router.post(
    "/calibrations/{uuid:pk}/links", response=answers({200: CalibrationDetail}, 404, 409, 413, 415),
    operation_id="add_link",
)  # fmt: skip
def add_link(request: HttpRequest, pk: uuid.UUID, payload: LinkIn) -> dict[str, Any]:
    """Keeps a link between hosts, as you know it, beside the measured transfers. 409 when there are too many."""
    row = found(Calibration.objects.all(), request, pk, to_write=True)
    form = LinkForm(form_data(payload))
    if not form.is_valid():
        raise form_error(form)
    try:
        services.add_link(row, form.table())
    except ValueError as error:
        raise conflict(str(error)) from error
    return _detail(found(Calibration.objects.all(), request, pk))


@router.get(
    "/calibrations/{uuid:pk}/samples", response=answers({200: SamplePage}, 404), operation_id="list_samples"
)
def list_samples(request: HttpRequest, pk: uuid.UUID, paging: Query[Paging]) -> dict[str, Any]:
    """What was measured, in order; also of a calibration that is running, was cancelled or failed."""
    rows = found(Calibration.objects.all(), request, pk).samples.order_by("ordinal")
    items = [
        {
            "ordinal": row.ordinal, "role": row.role, "kind": row.kind, "decode_contexts": row.shape["decode"],
            "chunks": [
                {"query_tokens": query, "cached_tokens": cached, "completes_prompt": bool(samples)}
                for query, cached, samples in row.shape["chunks"]
            ],
            "seconds": row.seconds, "contended_share": row.contended_share, "host_gap_s": row.host_gap_s,
        }
        for row in paging.slice(rows)
    ]  # fmt: skip
    return {"items": items, "count": rows.count()}


@router.get(
    "/calibrations/{uuid:pk}/document",
    response=answers({200: dict[str, Any]}, 404, 409),
    operation_id="get_document",
)
def get_document(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """The calibration as a file that another Ridgeline imports. 409 while it has no samples to give."""
    row = found(Calibration.objects.all(), request, pk)
    if row.is_active or not row.samples.exists():
        raise conflict("There is nothing to give yet.")
    return HttpResponse(
        write_document(services.document_of(row)), content_type="application/json; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="calibration-{row.pk}.json"'},
    )  # fmt: skip
