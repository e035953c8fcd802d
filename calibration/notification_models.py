"""Where people want to be told, and what was told there.

A channel is its owner's alone: its address may be a secret. The secret that signs a webhook is not stored: it is
derived from SECRET_KEY and the channel's ``nonce`` (calibration/notifications.py).
"""

from __future__ import annotations

import secrets
import uuid
from typing import Any, Self

from django.conf import settings
from django.db import models
from django.utils import timezone

from accounts.access import OwnedQuerySet

EVENTS = {
    "drift": "drift found",
    "recalibration_failed": "recalibration failed",
    "plan_stale": "plan went stale",
}


def new_nonce() -> str:
    return secrets.token_hex(16)


class ChannelQuerySet(OwnedQuerySet["Channel"]):
    def of(self, user: Any) -> Self:
        """Nobody else's, whatever their role."""
        return self.filter(owner_id=user.pk)


class Channel(models.Model):
    """One address that is told of some events of one project."""

    EMAIL, WEBHOOK = "email", "webhook"
    KINDS = [(EMAIL, "e-mail"), (WEBHOOK, "webhook")]

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey("accounts.Project", models.CASCADE, related_name="channels")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    kind = models.CharField(max_length=8, choices=KINDS)
    target = models.CharField(max_length=2000, help_text="Address or URL")
    events = models.JSONField(default=list, help_text="Of EVENTS")
    enabled = models.BooleanField(default=True)
    nonce = models.CharField(max_length=32, default=new_nonce)

    objects: ChannelQuerySet = ChannelQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        ordering = ["created_at"]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.target[:80]}"

    @property
    def event_names(self) -> list[str]:
        return [EVENTS[event] for event in self.events if event in EVENTS]


class Delivery(models.Model):
    """One event told to one channel. ``key`` names the event: there is one delivery of it, whoever finds it how
    often. The row's id goes with every try, so that a receiver can tell a repeat."""

    WAITING, SENDING, DELIVERED, FAILED = "waiting", "sending", "delivered", "failed"
    STATUSES = [(s, s) for s in (WAITING, SENDING, DELIVERED, FAILED)]

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    channel = models.ForeignKey(Channel, models.CASCADE, related_name="deliveries")
    event = models.CharField(max_length=24)
    key = models.CharField(max_length=160)
    subject = models.CharField(max_length=200)
    body = models.JSONField()
    created_at = models.DateTimeField(default=timezone.now)
    status = models.CharField(max_length=10, choices=STATUSES, default=WAITING, db_index=True)
    tries = models.PositiveSmallIntegerField(default=0)
    next_at = models.DateTimeField(default=timezone.now)
    claimed_at = models.DateTimeField(null=True, blank=True)
    delivered_at = models.DateTimeField(null=True, blank=True)
    answer = models.CharField(max_length=300, blank=True, help_text="What came back of the last try")

    class Meta:
        ordering = ["-created_at"]
        constraints = [models.UniqueConstraint(fields=["channel", "key"], name="one_delivery_an_event")]

    def __str__(self) -> str:
        return self.subject
