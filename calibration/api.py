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
from calibration.describe import described
from calibration.document import write_document
from calibration.form_parts import CUSTOM
from calibration.forms import CalibrateForm, DescribeForm, ImportDocumentForm, ImportStepsForm
from calibration.jobs import request_cancel
from calibration.models import Calibration
from calibration.schemas import (
    ArchitectureIn,
    ArchitectureOut,
    CalibrationDetail,
    CalibrationFilters,
    CalibrationIn,
    CalibrationPage,
    DeviceOut,
    ImportDocumentIn,
    ImportStepsIn,
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


def _with_config(payload: ArchitectureIn | CalibrationIn | ImportStepsIn) -> dict[str, Any]:
    """The form's data, a config.json as the text it takes. With a preset named as well one would go unread."""
    data = form_data(payload, "config", "project")
    if not isinstance(payload, ImportStepsIn) and payload.config is not None:
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


def _fields(row: Calibration) -> dict[str, Any]:
    heldout = (row.result or {}).get("heldout")
    return {
        **job_fields(row), "source": row.source, "model": row.model_name, "device": row.device,
        "kv_tokens": row.kv_tokens, "published": row.published, "reason": row.reason,
        "heldout": heldout and {"median": heldout.get("median"), "p90": heldout.get("p90")},
    }  # fmt: skip


def _detail(row: Calibration) -> dict[str, Any]:
    return {
        **_fields(row), "architecture": described(Architecture.from_dict(row.architecture)),
        "envelope": row.envelope, "seed": row.seed, "samples": row.samples.count(),
        "environment": row.environment, "provenance": row.provenance, "result": row.result, "log": row.log,
    }  # fmt: skip


@router.get("/calibrations", response=answers({200: CalibrationPage}), operation_id="list_calibrations")
def list_calibrations(request: HttpRequest, filters: Query[CalibrationFilters]) -> dict[str, Any]:
    """The calibrations of your projects, newest first."""
    rows = filters.select(Calibration.objects.defer("log", "traceback"), request.user)
    wanted = {"source": filters.source, "published": filters.published}
    rows = rows.filter(**{key: value for key, value in wanted.items() if value is not None})
    return {"items": [_fields(row) for row in filters.slice(rows)], "count": rows.count()}


@router.post(
    "/calibrations", response=answers({202: CalibrationDetail}, 413, 415), operation_id="start_calibration"
)
def start_calibration(request: HttpRequest, payload: CalibrationIn) -> Answer[Any]:
    """Starts measuring. Follow it with GET; it has ended when `status` is neither queued nor running."""
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
