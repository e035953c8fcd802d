"""Notifications: who is told of what, once; signed, tried again, and only where the guarded client may go."""

from __future__ import annotations

import base64
import hmac
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.core import mail
from django.utils import timezone

from accounts.models import Membership
from calibration import drift_checks, notifications
from calibration.models import Calibration, Channel, Delivery, DriftCheck
from calibration.notification_forms import MOST_CHANNELS, ChannelForm

pytestmark = pytest.mark.django_db
EVENTS = ["drift", "recalibration_failed", "plan_stale"]


class Receiver(ThreadingHTTPServer):
    """Keeps what it was sent; answers with the statuses of `script`, then with 204."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, str], bytes]] = []
        self.script: list[int] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append(({k.lower(): v for k, v in self.headers.items()}, body))
        self.send_response(self.server.script.pop(0) if self.server.script else 204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def receiver(settings) -> Iterator[Receiver]:
    settings.OUTBOUND_NETWORKS = ["127.0.0.0/8"]
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def hook(project, owner, receiver) -> Channel:
    return Channel.objects.create(
        project=project, owner=owner, kind="webhook", target=receiver.url, events=EVENTS
    )


@pytest.fixture
def drifted(calibration, owner, no_broker) -> DriftCheck:
    row = drift_checks.start(calibration, owner)
    finish(row)
    return row


def finish(row: DriftCheck, **more: Any) -> None:
    values = {"status": "done", "drifted": True, "finished_at": timezone.now(),
              "report": {"reasons": ["steps take 12.0% longer than when it was calibrated (bar ±7%)"]}}  # fmt: skip
    DriftCheck.objects.filter(pk=row.pk).update(**(values | more))


def due_again() -> None:
    Delivery.objects.update(next_at=timezone.now() - timedelta(seconds=1))


def test_drift_is_told_once_and_signed(hook, drifted, receiver):
    assert notifications.look() == 1 and notifications.look() == 0, "one delivery, whoever looks how often"
    assert notifications.send_due() == 1 and notifications.send_due() == 0
    [(headers, body)] = receiver.seen
    row = Delivery.objects.get()
    assert (row.status, row.tries, headers["webhook-id"]) == ("delivered", 1, str(row.pk))
    said = json.loads(body)
    assert said["type"] == "drift" and said["data"]["path"] == f"/calibrations/checks/{drifted.pk}/"
    assert "12.0% longer" in said["data"]["sentence"]
    key = base64.b64decode(notifications.secret_of(hook).removeprefix("whsec_"))
    signed = f"{row.pk}.{headers['webhook-timestamp']}.".encode() + body
    wanted = base64.b64encode(hmac.new(key, signed, sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{wanted}"
    assert abs(int(headers["webhook-timestamp"]) - timezone.now().timestamp()) < 300


def test_a_receiver_that_fails_is_tried_again_later_with_the_same_id(hook, drifted, receiver):
    receiver.script = [500, 302]
    notifications.look()
    assert notifications.send_due() == 0
    row = Delivery.objects.get()
    assert (row.status, row.answer) == ("waiting", "answered 500")
    assert timedelta(seconds=5) < row.next_at - timezone.now() <= timedelta(seconds=10)
    assert notifications.send_due() == 0 and len(receiver.seen) == 1, "not before its time"
    due_again()
    assert notifications.send_due() == 0, "a redirect is an answer and not followed"
    row.refresh_from_db()
    assert timedelta(seconds=50) < row.next_at - timezone.now() <= timedelta(seconds=60), "backs off"
    due_again()
    assert notifications.send_due() == 1
    assert len({headers["webhook-id"] for headers, _ in receiver.seen}) == 1 and len(receiver.seen) == 3


def test_it_gives_up_after_the_last_pause(hook, drifted, receiver):
    receiver.script = [503] * 20
    notifications.look()
    for _ in range(len(notifications.PAUSES_S) + 3):
        due_again()
        notifications.send_due()
    row = Delivery.objects.get()
    assert (row.status, row.tries) == ("failed", len(notifications.PAUSES_S) + 1) and len(
        receiver.seen
    ) == row.tries


def test_a_private_address_is_refused_unless_its_network_is_allowed(hook, drifted, receiver, settings, owner):
    settings.OUTBOUND_NETWORKS = []
    form = ChannelForm({"kind": "webhook", "target": receiver.url, "events": EVENTS}, user=owner)
    assert not form.is_valid() and "not public" in form.errors["target"][0]
    notifications.look()
    assert notifications.send_due() == 0, (
        "and again when it is sent: the setting or the name may have changed"
    )
    row = Delivery.objects.get()
    assert row.status == "failed" and "not public" in row.answer and not receiver.seen


def test_a_claimed_one_is_not_sent_twice_and_a_lost_one_is_sent_again(hook, drifted, receiver):
    notifications.look()
    row = Delivery.objects.get()
    Delivery.objects.update(status="sending", claimed_at=timezone.now(), tries=1)
    assert notifications.send_due() == 0 and not notifications.send(row.pk)
    Delivery.objects.update(claimed_at=timezone.now() - notifications.CLAIM_LASTS - timedelta(seconds=1))
    assert notifications.send_due() == 1
    assert [headers["webhook-id"] for headers, _ in receiver.seen] == [str(row.pk)]


def test_an_email_says_what_and_where_and_is_never_sent_twice(project, owner, drifted, settings, no_broker):
    settings.PUBLIC_URL = "https://ridgeline.example/"
    Channel.objects.create(
        project=project, owner=owner, kind="email", target="ops@example.org", events=["drift"],
        created_at=timezone.now() - timedelta(hours=1),
    )  # fmt: skip
    DriftCheck.objects.update(finished_at=timezone.now())
    Calibration.objects.update(name="two\nlines")
    assert notifications.look() == 1 and notifications.send_due() == 1
    [message] = mail.outbox
    assert message.to == ["ops@example.org"] and "\n" not in message.subject
    assert f"https://ridgeline.example/calibrations/checks/{drifted.pk}/" in message.body
    Delivery.objects.update(status="sending", claimed_at=timezone.now() - timedelta(hours=1))
    assert notifications.send_due() == 0 and len(mail.outbox) == 1
    assert "it may have arrived" in Delivery.objects.get().answer


def test_only_who_wants_to_know_is_told(project, owner, outsider, hook, drifted):
    Channel.objects.filter(pk=hook.pk).update(events=["plan_stale"])
    assert notifications.look() == 0
    Channel.objects.filter(pk=hook.pk).update(events=EVENTS, enabled=False)
    assert notifications.look() == 0
    Channel.objects.filter(pk=hook.pk).update(enabled=True, created_at=timezone.now() + timedelta(minutes=1))
    assert notifications.look() == 0, "what happened before it was there"
    Channel.objects.filter(pk=hook.pk).update(created_at=timezone.now() - timedelta(minutes=1))
    Membership.objects.filter(user=owner).delete()
    assert notifications.look() == 0, "who left the project"


def test_quiet_checks_and_other_calibrations_are_not_told(hook, drifted, calibration):
    finish(drifted, drifted=False)
    Calibration.objects.filter(pk=calibration.pk).update(status="failed", finished_at=timezone.now())
    assert notifications.look() == 0, "a calibration that somebody started by hand is on their screen"


@pytest.mark.parametrize("ended", [{"status": "failed", "error": "No memory."}, {"status": "interrupted"},
                                   {"status": "done", "published": False, "reason": "the gate refused"}])  # fmt: skip
def test_a_recalibration_that_ends_badly_is_told(hook, drifted, calibration, ended):
    finish(drifted, drifted=False, recalibration=calibration)
    Calibration.objects.filter(pk=calibration.pk).update(finished_at=timezone.now(), **ended)
    assert notifications.look() == 1
    assert Delivery.objects.get().subject == "Recalibration failed: demo on cpu"


def test_the_secret_is_shown_once_and_stored_nowhere(owner_client, receiver):
    made = owner_client.post("/notifications/", {"kind": "webhook", "target": receiver.url, "events": EVENTS})
    row = Channel.objects.get()
    secret = notifications.secret_of(row)
    assert made.status_code == 200 and secret in made.content.decode()
    assert made.headers["Cache-Control"].count("no-store")
    for url in ("/notifications/", f"/notifications/{row.pk}/", f"/api/v1/channels/{row.pk}"):
        assert secret not in owner_client.get(url).content.decode()
    stored = [str(getattr(row, field.attname)) for field in Channel._meta.fields]
    assert not [value for value in stored if secret.removeprefix("whsec_") in value]
    again = owner_client.post(f"/notifications/{row.pk}/rotate").content.decode()
    row.refresh_from_db()
    assert notifications.secret_of(row) != secret and notifications.secret_of(row) in again


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kind": "email", "target": "nobody"}, "target"),
        ({"kind": "email", "target": "a@b.example\nBcc: c@d.example"}, "target"),
        ({"kind": "webhook", "target": "ftp://example.org/"}, "target"),
        ({"kind": "webhook", "target": "http://user:word@example.org/"}, "target"),
        ({"kind": "webhook", "target": "http://no-such-host.invalid/"}, "target"),
        ({"kind": "pigeon"}, "kind"),
        ({"events": ["earthquake"]}, "events"),
        ({"events": []}, "events"),
        ({"project": "nobodys"}, "project"),
    ],
)
def test_bad_input_is_told_beside_its_field(owner, changes, field):
    form = ChannelForm({"kind": "email", "target": "a@b.example", "events": EVENTS} | changes, user=owner)
    assert not form.is_valid() and field in form.errors, form.errors.as_text()


def test_there_is_a_bound(owner, project):
    for _ in range(MOST_CHANNELS):
        Channel.objects.create(
            project=project, owner=owner, kind="email", target="a@b.example", events=EVENTS
        )
    form = ChannelForm({"kind": "email", "target": "a@b.example", "events": EVENTS}, user=owner)
    assert not form.is_valid() and "At most" in form.non_field_errors()[0]


def test_pages_and_api_keep_try_and_delete(owner_client, client, owner, bearer, hook, receiver):
    url = f"/notifications/{hook.pk}"
    assert owner_client.post(f"{url}/test").status_code == 302
    assert notifications.send_due() == 1 and json.loads(receiver.seen[0][1])["type"] == "test"
    assert "This channel works" in owner_client.get(f"{url}/").content.decode()
    assert owner_client.post(f"{url}/", {"events": ["drift"]}).status_code == 302
    hook.refresh_from_db()
    assert (hook.events, hook.enabled) == (["drift"], False)
    headers = bearer(owner)
    body = {"kind": "webhook", "target": receiver.url}
    made = client.post("/api/v1/channels", body, "application/json", headers=headers).json()
    assert made["secret"].startswith("whsec_") and made["events"] == EVENTS
    assert "secret" not in client.get(f"/api/v1/channels/{made['id']}", headers=headers).json()
    tried = client.post(f"/api/v1/channels/{made['id']}/test", headers=headers).json()
    assert (tried["event"], tried["status"]) == ("test", "waiting")
    assert client.get(f"/api/v1/channels/{made['id']}/deliveries", headers=headers).json()["count"] == 1
    assert client.delete(f"/api/v1/channels/{made['id']}", headers=headers).status_code == 204
    assert owner_client.post(f"{url}/delete").status_code == 302 and not Channel.objects.exists()


def test_a_stale_plan_is_told(hook, finished_plan, calibration):
    from planner import reviews
    from planner.models import PlanReview

    PlanReview.objects.create(
        plan=finished_plan, calibration=calibration, project=finished_plan.project, owner=finished_plan.owner,
        name="r", status="done", outcome="choice no longer holds", sentence="It no longer holds.",
        finished_at=timezone.now(),
    )  # fmt: skip
    assert reviews.tell_stale() == 1 and reviews.tell_stale() == 0
    assert Delivery.objects.get().body["data"]["path"] == f"/plans/{finished_plan.pk}/"
