"""What the apps' API modules share: payloads that the forms validate, pages of lists, jobs, access to one object.

A payload names and types its fields; whether the values make sense is decided by the same form that the page
uses, and limits shown in the API's documentation are read from that form (``of``).
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Annotated, Any, Literal

from django import forms
from django.core.exceptions import PermissionDenied
from django.db import models
from django.http import Http404, HttpRequest
from ninja import Field, Schema, UploadedFile
from pydantic import BaseModel, ConfigDict, StringConstraints

from accounts.access import OwnedQuerySet, current_project, get_visible, get_writable, may_write
from accounts.models import Project
from config.errors import ApiError

Slug = Annotated[str, StringConstraints(max_length=80, pattern=r"^[a-zA-Z0-9_-]+$")]
Status = Literal["queued", "running", "done", "failed", "cancelled", "interrupted"]


class Payload(BaseModel):
    """A JSON body: unknown fields are refused, and a number in quotes is not a number."""

    model_config = ConfigDict(strict=True, extra="forbid")


def of(form: type[forms.Form], name: str, **options: Any) -> Any:
    """A payload field documented as the form's field is: default, help, limits, choices. The form enforces them."""
    field: Any = form.base_fields[name]
    limits = {
        "minimum": getattr(field, "min_value", None),
        "maximum": getattr(field, "max_value", None),
        "maxLength": getattr(field, "max_length", None),
        "minLength": 1 if field.required and isinstance(field, forms.CharField) else None,
        "enum": [key for key, _ in getattr(field, "choices", ()) if key or not field.required] or None,
    }
    extra = {key: value for key, value in limits.items() if value is not None}
    if "default" not in options:
        options["default"] = ... if field.required and field.initial is None else field.initial
    return Field(description=str(field.help_text) or None, json_schema_extra=extra, **options)


def uploaded(file: UploadedFile) -> Any:
    """The files a form takes."""
    return {"file": file}


def form_data(payload: BaseModel, *without: str) -> dict[str, Any]:
    """What the form is given: what was sent and is not null, under the form's names."""
    return {key: value for key, value in payload.model_dump(exclude={*without}).items() if value is not None}


class Paging(Schema):
    limit: int = Field(50, ge=1, le=200)
    offset: int = Field(0, ge=0, le=1_000_000)

    def slice(self, rows: models.QuerySet[Any]) -> models.QuerySet[Any]:
        return rows[self.offset : self.offset + self.limit]


class JobFilters(Paging):
    project: Slug | None = Field(None, description="Slug; default: all your projects.")
    status: Status | None = None

    def select(self, rows: OwnedQuerySet[Any], user: Any) -> Any:
        refuse_unknown_project(user, self.project)
        rows = rows.visible_to(user).select_related("project", "owner")
        wanted = {"project__slug": self.project, "status": self.status}
        return rows.filter(**{key: value for key, value in wanted.items() if value is not None})


class Progress(Schema):
    done: int
    total: int
    percent: int = Field(ge=0, le=100)
    message: str = Field(description="The step it is at.")
    elapsed_s: float
    eta_s: float | None


class JobOut(Schema):
    id: uuid.UUID
    name: str
    project: str = Field(description="Slug.")
    owner: str
    status: Status
    progress: Progress
    cancel_requested: bool
    error: str = Field(description="What went wrong, when it failed.")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    rerun_of: uuid.UUID | None


def job_fields(job: Any) -> dict[str, Any]:
    """The fields of JobOut, of any Job."""
    progress = Progress(
        done=job.done, total=job.total, percent=job.percent, message=job.message,
        elapsed_s=job.elapsed_s, eta_s=job.eta_s,
    )  # fmt: skip
    return {
        "id": job.pk, "name": job.name, "project": job.project.slug, "owner": job.owner.get_username(),
        "status": job.status, "progress": progress, "cancel_requested": job.cancel_requested,
        "error": job.error, "created_at": job.created_at, "started_at": job.started_at,
        "finished_at": job.finished_at, "rerun_of": job.rerun_of_id,
    }  # fmt: skip


def found(rows: OwnedQuerySet[Any], request: HttpRequest, pk: uuid.UUID, *, to_write: bool = False) -> Any:
    """The object ``pk``: 404 when it is not theirs to see, 403 when a viewer wants to change it."""
    get = get_writable if to_write else get_visible
    return get(rows.select_related("project", "owner"), request.user, pk)


def refuse_unknown_project(user: Any, slug: str | None) -> None:
    """422 for a slug that is none of the user's projects: an empty list would say that the project has nothing."""
    if slug is not None and not Project.objects.visible_to(user).filter(slug=slug).exists():
        raise ApiError(422, "The request is not valid.", [("project", "You have no project with this slug.")])


def refuse_reader(request: HttpRequest, project: Project) -> None:
    """403 for a viewer of the project."""
    if not may_write(request.user, project):
        raise PermissionDenied(f"You may only read in project {project.slug}.")


def target_project(request: HttpRequest, slug: str | None) -> Project:
    """Where a new object goes: the project named, or the first one the user may write to."""
    refuse_unknown_project(request.user, slug)
    try:
        return current_project(request.user, slug)
    except Http404 as error:
        raise PermissionDenied(
            f"You may only read in project {slug}." if slug else "You may write nowhere."
        ) from error
