"""Telling people: drift found, a recalibration that failed, a plan that went stale.

Nothing is sent where something happens. Every 10 s the sweep looks for what happened lately and writes one delivery
for each channel that wants to know (``tell``); the row's key makes a second one impossible. Then what is due is sent
(``send_due``): a row is claimed by one UPDATE, and a try that failed comes again after 10 s, 1, 5, 30 minutes, 2 h
and 6 h. A webhook whose sender died in between is sent again, with the same id; an e-mail is not, because nobody
could tell that it is the same.

Webhooks are signed as standardwebhooks.com has it: ``webhook-id``, ``webhook-timestamp`` (seconds since 1970) and
``webhook-signature: v1,BASE64(HMAC-SHA256(secret, "id.timestamp.body"))``. They leave through the guarded client.
"""

from __future__ import annotations

import base64
import hmac
import json
import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from accounts.models import Project
from calibration import outgoing
from calibration.jobs import Job
from calibration.models import Calibration, Channel, Delivery, DriftCheck, ScheduleRun
from calibration.sources import outbound

PAUSES_S = (10, 60, 300, 1800, 7200, 21_600)
LOOK_BACK = timedelta(days=1)
CLAIM_LASTS = timedelta(minutes=2)
AT_ONCE = 50
TIMEOUT_S = 10.0
MAX_REPLY_BYTES = 64 * 1024
KEPT = timedelta(days=90)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """`key` names it for ever; `at`: when it happened; `path`: of the page about it."""

    kind: str
    key: str
    at: datetime
    project: Project
    subject: str
    sentence: str
    path: str


# Writing -----------------------------------------------------------------------------------------------------


def tell(events: Sequence[Event]) -> int:
    """Writes a delivery for every channel of an event's project that wants to know and was there when it happened.
    Returns how many are new. Asked every 10 s about the same day: a few queries, however many events."""
    if not events:
        return 0
    channels = Channel.objects.filter(
        project__in={event.project.pk for event in events}, enabled=True, owner__is_active=True,
        owner__memberships__project=F("project"),
    ).distinct()  # fmt: skip
    told = set(Delivery.objects.filter(channel__in=channels).values_list("channel", "key"))
    new = 0
    for channel in channels:
        for event in events:
            if event.project.pk != channel.project_id or event.at < channel.created_at:
                continue
            if event.kind not in channel.events or (channel.pk, event.key) in told:
                continue
            _, made = Delivery.objects.get_or_create(
                channel=channel, key=event.key[:160],
                defaults={"event": event.kind, "subject": event.subject[:200], "body": _body(event)},
            )  # fmt: skip
            new += made
    return new


def _body(event: Event) -> dict[str, Any]:
    base = settings.PUBLIC_URL.rstrip("/")
    return {
        "type": event.kind, "timestamp": event.at.isoformat(timespec="seconds"),
        "data": {"project": event.project.slug, "subject": event.subject, "sentence": event.sentence,
                 "path": event.path, "url": f"{base}{event.path}" if base else None},
    }  # fmt: skip


def look() -> int:
    """Tells of what happened lately in this room. The planner tells of its own."""
    since = timezone.now() - LOOK_BACK
    return tell([*_drifts(since), *_failures(since)])


def _drifts(since: datetime) -> list[Event]:
    rows = DriftCheck.objects.filter(status=Job.DONE, drifted=True, finished_at__gte=since)
    return [
        Event(
            "drift", f"drift {row.pk}", row.finished_at or since, row.project,
            f"Drift: {row.calibration.name} on {row.calibration.device}",
            "; ".join((row.report or {}).get("reasons", [])), f"/calibrations/checks/{row.pk}/",
        )
        for row in rows.select_related("project", "calibration").defer("calibration__result", "log")
    ]  # fmt: skip


def _failures(since: datetime) -> list[Event]:
    """Of calibrations that a schedule or a drift check started: ended badly, or refused by the gate."""
    ours = Q(pk__in=ScheduleRun.objects.filter(calibration__isnull=False).values("calibration")) | Q(
        pk__in=DriftCheck.objects.filter(recalibration__isnull=False).values("recalibration")
    )
    bad = Q(status__in=(Job.FAILED, Job.INTERRUPTED)) | Q(status=Job.DONE, published=False)
    rows = Calibration.objects.filter(ours, bad, finished_at__gte=since).select_related("project")
    return [
        Event(
            "recalibration_failed", f"recalibration {row.pk}", row.finished_at or since, row.project,
            f"Recalibration failed: {row.name}", row.error or row.reason, f"/calibrations/{row.pk}/",
        )
        for row in rows.defer("result", "log")
    ]  # fmt: skip


# Sending -----------------------------------------------------------------------------------------------------


def send_due() -> int:
    """Sends what is due. Safe to run anywhere, any number of times. Returns how many were delivered."""
    now = timezone.now()
    lost = Delivery.objects.filter(status=Delivery.SENDING, claimed_at__lt=now - CLAIM_LASTS)
    lost.filter(channel__kind=Channel.WEBHOOK).update(status=Delivery.WAITING, next_at=now)
    lost.filter(channel__kind=Channel.EMAIL).update(
        status=Delivery.FAILED,
        answer="The sender died while sending: it may have arrived, so it is not sent again.",
    )
    Delivery.objects.filter(created_at__lt=now - KEPT).delete()
    due = Delivery.objects.filter(status=Delivery.WAITING, next_at__lte=now, channel__enabled=True)
    return sum(send(pk) for pk in due.order_by("next_at").values_list("pk", flat=True)[:AT_ONCE])


def send(pk: uuid.UUID) -> bool:
    """One try. False when somebody else has it, or it failed."""
    now = timezone.now()
    claimed = Delivery.objects.filter(pk=pk, status=Delivery.WAITING, next_at__lte=now).update(
        status=Delivery.SENDING, claimed_at=now, tries=F("tries") + 1
    )
    if not claimed:
        return False
    row = Delivery.objects.select_related("channel").get(pk=pk)
    try:
        answer = _webhook(row) if row.channel.kind == Channel.WEBHOOK else _email(row)
    except outbound.OutboundRefused as refusal:
        return _failed(row, str(refusal), again=False)
    except (outbound.OutboundError, OSError) as error:
        return _failed(row, str(error) or type(error).__name__, again=True)
    Delivery.objects.filter(pk=pk, status=Delivery.SENDING).update(
        status=Delivery.DELIVERED, delivered_at=timezone.now(), answer=answer[:300]
    )
    return True


def _failed(row: Delivery, answer: str, *, again: bool) -> bool:
    more = again and row.tries <= len(PAUSES_S)
    next_at = timezone.now() + timedelta(seconds=PAUSES_S[min(row.tries, len(PAUSES_S)) - 1])
    Delivery.objects.filter(pk=row.pk, status=Delivery.SENDING).update(
        status=Delivery.WAITING if more else Delivery.FAILED, next_at=next_at, answer=answer[:300]
    )
    return False


def _email(row: Delivery) -> str:
    data = row.body["data"]
    text = "\n\n".join(part for part in (data["sentence"], data["url"] or data["path"]) if part)
    message = EmailMessage(
        subject=" ".join(f"[Ridgeline] {row.subject}".split()), body=text, to=[row.channel.target],
        headers={"Message-ID": f"<{row.pk}@ridgeline>"},
    )  # fmt: skip
    message.send()
    return "handed to the mail server"


def _webhook(row: Delivery) -> str:
    body = json.dumps(row.body, sort_keys=True, allow_nan=False).encode()
    guard = outgoing.guard(
        total_timeout_s=TIMEOUT_S, connect_timeout_s=TIMEOUT_S, max_reply_bytes=MAX_REPLY_BYTES
    )
    stamp = str(int(time.time()))
    headers = {"webhook-id": str(row.pk), "webhook-timestamp": stamp,
               "webhook-signature": signature(secret_of(row.channel), str(row.pk), stamp, body)}  # fmt: skip
    reply = outbound.post_json(row.channel.target, body, guard, headers)
    if not 200 <= reply.status < 300:
        raise outbound.OutboundError(f"answered {reply.status}")
    return f"answered {reply.status}"


# Signing -----------------------------------------------------------------------------------------------------


def secret_of(channel: Channel) -> str:
    """`whsec_` and 32 bytes in base64: derived, so that a leaked database has none. Rotating SECRET_KEY changes it."""
    message = f"webhook {channel.pk} {channel.nonce}".encode()
    return "whsec_" + base64.b64encode(hmac.digest(settings.SECRET_KEY.encode(), message, sha256)).decode()


def signature(secret: str, identity: str, timestamp: str, body: bytes) -> str:
    """What a receiver compares, in constant time, with what it works out itself."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{identity}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, sha256)).decode()


def try_out(channel: Channel) -> Delivery:
    """A delivery that says only that it works. Sent by the next sweep, as any other."""
    with transaction.atomic():
        event = Event(
            "test", f"test {uuid.uuid4()}", timezone.now(), channel.project, "This channel works",
            "Ridgeline can reach you here.", "/notifications/",
        )  # fmt: skip
        return Delivery.objects.create(
            channel=channel, event=event.kind, key=event.key, subject=event.subject, body=_body(event)
        )
