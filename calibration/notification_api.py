"""The API's way to notifications: one's own channels and what was told on them."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Query, Router, Schema
from ninja.responses import Status as Answer

from accounts import limits
from calibration import notifications
from calibration.models import Channel, Delivery
from calibration.notification_forms import ChannelForm
from config.errors import answers, form_error
from config.schemas import Paging, Payload, Slug, form_data, of

router = Router()
EventName = Literal["drift", "recalibration_failed", "plan_stale"]


class ChannelIn(Payload):
    kind: str = of(ChannelForm, "kind")
    target: str = of(ChannelForm, "target")
    project: Slug | None = Field(None, description="Slug; default: your first one.")
    events: list[EventName] = Field(["drift", "recalibration_failed", "plan_stale"], min_length=1)
    enabled: bool = True


class ChannelOut(Schema):
    id: uuid.UUID
    kind: Literal["email", "webhook"]
    target: str
    project: str = Field(description="Slug.")
    events: list[EventName]
    enabled: bool
    created_at: datetime


class NewChannelOut(ChannelOut):
    secret: str | None = Field(description="Signs a webhook; shown here and nowhere else.")


class DeliveryOut(Schema):
    id: uuid.UUID = Field(description="The webhook-id of every try.")
    event: str
    subject: str
    status: Literal["waiting", "sending", "delivered", "failed"]
    tries: int
    created_at: datetime
    next_at: datetime = Field(description="Of the next try, while it is waiting.")
    delivered_at: datetime | None
    answer: str = Field(description="What came back of the last try.")
    body: dict[str, Any]


class DeliveryPage(Schema):
    items: list[DeliveryOut]
    count: int


def _fields(row: Channel) -> dict[str, Any]:
    return {
        "id": row.pk, "kind": row.kind, "target": row.target, "project": row.project.slug, "events": row.events,
        "enabled": row.enabled, "created_at": row.created_at,
    }  # fmt: skip


def _own(request: HttpRequest, pk: uuid.UUID) -> Channel:
    return get_object_or_404(Channel.objects.of(request.user).select_related("project"), pk=pk)


@router.get("/channels", response=answers({200: list[ChannelOut]}), operation_id="list_channels")
def list_channels(request: HttpRequest) -> list[dict[str, Any]]:
    """Where you are told of drift, failed recalibrations and stale plans. Yours alone."""
    return [_fields(row) for row in Channel.objects.of(request.user).select_related("project")]


@router.post("/channels", response=answers({201: NewChannelOut}, 413, 415), operation_id="create_channel")
def create_channel(request: HttpRequest, payload: ChannelIn) -> Answer[Any]:
    """A URL must be reachable from here; private addresses only where the operator allows their network."""
    limits.spend(limits.TOKEN_ISSUE, str(request.user.pk))
    form = ChannelForm(form_data(payload), user=request.user)
    if not form.is_valid():
        raise form_error(form)
    row = form.save()
    secret = notifications.secret_of(row) if row.kind == Channel.WEBHOOK else None
    return Answer(201, {**_fields(row), "secret": secret})


@router.get("/channels/{uuid:pk}", response=answers({200: ChannelOut}, 404), operation_id="get_channel")
def get_channel(request: HttpRequest, pk: uuid.UUID) -> dict[str, Any]:
    """One of your channels; its secret is not shown again."""
    return _fields(_own(request, pk))


@router.delete("/channels/{uuid:pk}", response=answers({204: None}, 404), operation_id="delete_channel")
def delete_channel(request: HttpRequest, pk: uuid.UUID) -> Answer[Any]:
    """With its history."""
    _own(request, pk).delete()
    return Answer(204, None)


@router.get(
    "/channels/{uuid:pk}/deliveries",
    response=answers({200: DeliveryPage}, 404),
    operation_id="list_deliveries",
)
def list_deliveries(request: HttpRequest, pk: uuid.UUID, paging: Query[Paging]) -> dict[str, Any]:
    """What was told there, newest first."""
    rows = Delivery.objects.filter(channel=_own(request, pk))
    return {"items": [DeliveryOut.from_orm(row) for row in paging.slice(rows)], "count": rows.count()}


@router.post(
    "/channels/{uuid:pk}/test", response=answers({202: DeliveryOut}, 404), operation_id="test_channel"
)
def test_channel(request: HttpRequest, pk: uuid.UUID) -> Answer[Any]:
    """Sends a message that only says that it works, within ten seconds."""
    row = _own(request, pk)
    limits.spend(limits.TOKEN_ISSUE, str(request.user.pk))
    return Answer(202, DeliveryOut.from_orm(notifications.try_out(row)))
