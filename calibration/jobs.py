"""Jobs: one row says what a piece of work is doing, whatever dies.

A job is a database row before it is a message. ``submit`` writes the row and sends the message after the
transaction commits. A worker must ``claim`` the row (one ``UPDATE ... WHERE status = 'queued'``), so a message
delivered twice runs once. While it runs, a heartbeat thread stamps the row; ``sweep`` (each 10 s) re-sends rows
that were queued but never started and marks rows whose heartbeat stopped as interrupted. Cancelling is
cooperative: the row's flag is polled between steps.

Every job ends in one of done, failed, cancelled, interrupted; nothing else writes those.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Self, TypeVar

from django.conf import settings
from django.db import connection, models, transaction
from django.db.models import F, Value
from django.db.models.functions import Concat
from django.utils import timezone

from accounts.access import OwnedQuerySet
from calibration.patience import patiently
from calibration.telling import Teller

HEARTBEAT_S = 5.0
STALE_AFTER_S = 30.0  # with a sweep each 10 s: a killed worker's job is marked within 45 s
RESEND_AFTER_S = 20.0

log = logging.getLogger(__name__)
AnyJob = TypeVar("AnyJob", bound="Job")


class JobQuerySet(OwnedQuerySet[AnyJob]):
    def visible_to(self, user: Any) -> Self:
        """Whoever looks sees the truth, also when every worker that could sweep is busy or gone: jobs whose
        heartbeat stopped are marked before they are shown."""
        silent = self.model._default_manager.stale()  # type: ignore[attr-defined]
        if silent.exists():
            silent.interrupt()
        return super().visible_to(user)

    def interrupt(self) -> int:
        """Ends these jobs as interrupted. Returns how many."""
        return self.update(
            status=Job.INTERRUPTED,
            finished_at=timezone.now(),
            eta_s=None,
            message="Interrupted",
            error="The worker that ran this stopped answering. What it had stored is kept; run it again.",
        )

    def active(self) -> Self:
        return self.filter(status__in=Job.ACTIVE)

    def stale(self) -> Self:
        return self.filter(
            status=Job.RUNNING, heartbeat_at__lt=timezone.now() - timedelta(seconds=STALE_AFTER_S)
        )

    def never_started(self) -> Self:
        return self.filter(status=Job.QUEUED, sent_at__lt=timezone.now() - timedelta(seconds=RESEND_AFTER_S))


class Job(models.Model):
    QUEUED, RUNNING, DONE = "queued", "running", "done"
    FAILED, CANCELLED, INTERRUPTED = "failed", "cancelled", "interrupted"
    STATUSES = [(s, s) for s in (QUEUED, RUNNING, DONE, FAILED, CANCELLED, INTERRUPTED)]
    ACTIVE = (QUEUED, RUNNING)

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey("accounts.Project", models.CASCADE, related_name="%(class)ss")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    name = models.CharField(max_length=120)
    created_at = models.DateTimeField(default=timezone.now, db_index=True)

    status = models.CharField(max_length=12, choices=STATUSES, default=QUEUED, db_index=True)
    done = models.PositiveIntegerField(default=0)
    total = models.PositiveIntegerField(default=0)
    eta_s = models.FloatField(null=True, blank=True)
    eta_at_most = models.BooleanField(default=False)
    message = models.CharField(max_length=300, blank=True)
    cancel_requested = models.BooleanField(default=False)
    sent_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    worker = models.CharField(max_length=120, blank=True)
    log = models.TextField(blank=True)
    error = models.TextField(blank=True, help_text="What the user reads when it failed.")
    traceback = models.TextField(blank=True, help_text="For staff only.")
    rerun_of = models.ForeignKey("self", models.SET_NULL, null=True, blank=True, related_name="reruns")

    class Meta:
        abstract = True
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return self.name

    @property
    def is_active(self) -> bool:
        return self.status in self.ACTIVE

    @property
    def percent(self) -> int:
        if self.status == self.DONE:
            return 100
        return min(99, 100 * self.done // self.total) if self.total else 0

    @property
    def elapsed_s(self) -> float:
        if self.started_at is None:
            return 0.0
        return ((self.finished_at or timezone.now()) - self.started_at).total_seconds()


class JobCancelled(Exception):
    """Raised inside a job's work when its row asks to stop."""


class JobRefused(Exception):
    """The job cannot be done, for a reason the user can act on; not a defect of ours."""

    heading = "Refused"


class JobBroken(JobRefused):
    """What the job used ended under it; what had been done by then is in its row."""

    heading = "Broke off"


def send_after_commit(job: Job, task: Any) -> None:
    """Sends ``task`` with the job's id once the transaction commits. If the broker is away the row stays
    queued and the sweep sends it again."""
    type(job)._default_manager.filter(pk=job.pk).update(sent_at=timezone.now())
    transaction.on_commit(lambda: _send(task, job.pk))


def _send(task: Any, pk: uuid.UUID) -> None:
    try:
        task.apply_async(args=[str(pk)], retry=False)
    except Exception:  # a broker that is down must not lose the row or fail the request
        log.exception("could not send %s for %s; the sweep will", task.name, pk)


def request_cancel(job: Job) -> bool:
    """Cancels a queued job at once and asks a running one to stop. False when it had already ended."""
    rows = type(job)._default_manager.filter(pk=job.pk)
    now = timezone.now()
    if rows.filter(status=Job.QUEUED).update(
        status=Job.CANCELLED, finished_at=now, cancel_requested=True, message="Cancelled before it started"
    ):
        return True
    return bool(rows.filter(status=Job.RUNNING).update(cancel_requested=True, message="Stopping…"))


def sweep(rows: JobQuerySet[Any], task: Any) -> dict[str, int]:
    """Marks jobs whose worker vanished as interrupted and re-sends what never started. Safe to run anywhere,
    any number of times."""
    interrupted = rows.stale().interrupt()
    resent = list(rows.never_started().values_list("pk", flat=True))
    for pk in resent:
        rows.filter(pk=pk).update(sent_at=timezone.now())
        _send(task, pk)
    return {"interrupted": interrupted, "resent": len(resent)}


class JobRun:
    """The handle that a job's work writes through: progress, log, and the question whether to stop."""

    def __init__(self, job: Job, teller: Teller | None = None) -> None:
        self.job = job
        self.teller = teller  # who waits for it, in the same process
        self.rows = type(job)._default_manager.filter(pk=job.pk, status=Job.RUNNING)
        self._written_s = 0.0
        self._message = ""
        self._polled_s = 0.0
        self._stop = False
        self._thread = threading.get_ident()

    def progress(
        self, done: int, total: int, message: str, eta_s: float | None = None, *, at_most: bool = False
    ) -> None:
        """Written at most four times a second, except the last one and where a stage begins that counts nothing yet (it
        may last: starting an engine, say). `eta_s`: what is left, or the most that can be."""
        if self.teller:
            self.teller.progress(done, total, message, eta_s, at_most=at_most)
        now = time.monotonic()
        begins = done == 0 and message != self._message
        if now - self._written_s < 0.25 and done < total and not begins:
            return
        self._written_s, self._message = now, message
        values = {"done": max(0, done), "total": max(0, total), "message": message[:300], "eta_s": eta_s}
        values["eta_at_most"] = at_most
        patiently(lambda: self.rows.update(heartbeat_at=timezone.now(), **values))

    def write_log(self, line: str) -> None:
        if self.teller:
            self.teller.log(line)
        stamp = timezone.now().strftime("%H:%M:%S")
        clean = line.replace("\x00", "�")[:2000]
        patiently(lambda: self.rows.update(log=Concat(F("log"), Value(f"{stamp} {clean}\n"))))

    def end(self) -> None:
        """Inside the transaction that stores the result: the job is done together with it or, where the row was taken
        away meanwhile, neither is (JobCancelled)."""
        if not self.rows.update(status=Job.DONE, finished_at=timezone.now(), eta_s=None):
            raise JobCancelled

    def should_stop(self) -> bool:
        """Asks the row at most twice a second. Also true when the row was taken away (marked interrupted).

        Work may ask from threads of its own: each would keep a database connection that nobody closes.
        """
        now = time.monotonic()
        if not self._stop and now - self._polled_s >= 0.5:
            self._polled_s = now
            row = patiently(lambda: self.rows.values_list("cancel_requested", flat=True).first())
            self._stop = row is None or row
            if threading.get_ident() != self._thread:
                connection.close()
        return self._stop

    def check(self) -> None:
        if self.should_stop():
            raise JobCancelled


def claim(model: type[AnyJob], pk: str, at_once: int | None = None) -> AnyJob | None:
    """The job, now ours and running; None when another worker has it or it has ended, or where `at_once` of its kind
    run already: then it stays queued, and whoever ends sends for it (`send_next`)."""
    now = timezone.now()
    with transaction.atomic():
        if at_once is not None:
            # One claim is looked up and written at a time: of two that come at once the second counts the first.
            active = model._default_manager.filter(status__in=Job.ACTIVE).order_by("pk").select_for_update()
            if list(active.values_list("status", flat=True)).count(Job.RUNNING) >= at_once:
                return None
        claimed = model._default_manager.filter(pk=pk, status=Job.QUEUED).update(
            status=Job.RUNNING, started_at=now, heartbeat_at=now, worker=f"{socket.gethostname()}:{os.getpid()}",
            message="Starting", error="",
        )  # fmt: skip
    return model._default_manager.get(pk=pk) if claimed else None


def send_next(model: type[Job], task: Any) -> None:
    """Sends for the one of the kind that has been queued longest, if there is one: a place has become free."""
    queued = model._default_manager.filter(status=Job.QUEUED).order_by("created_at")
    if (longest := queued.values_list("pk", flat=True).first()) is not None:
        _send(task, longest)


def run(
    model: type[AnyJob],
    pk: str,
    work: Callable[[AnyJob, JobRun], None],
    teller: Teller | None = None,
    at_once: int | None = None,
) -> str | None:
    """Claims the job and runs ``work``; whatever happens, the row ends truthfully. Returns the final status,
    or None when there was nothing to claim.

    ``teller`` is told as well what is written of progress and log. ``work`` stores its own results before it returns,
    best together with `JobRun.end`. ``at_once``: as of `claim`.
    """
    job = claim(model, pk, at_once)
    if job is None:
        return None
    handle = JobRun(job, teller)
    try:
        with stamping(handle.rows, str(job.pk)):
            work(job, handle)
    except JobCancelled:
        return _finish(job, Job.CANCELLED, "Cancelled. What it had until then is kept.")
    except JobRefused as refusal:
        return _finish(job, Job.FAILED, refusal.heading, error=str(refusal))
    except Exception as error:
        log.exception("%s %s failed", model.__name__, pk)
        return _finish(
            job, Job.FAILED, "Failed", error=f"{type(error).__name__}: {error}", trace=traceback.format_exc()
        )
    return _finish(job, Job.DONE, "")


def _finish(job: Job, status: str, message: str, *, error: str = "", trace: str = "") -> str:
    values: dict[str, Any] = {"status": status, "finished_at": timezone.now(), "eta_s": None}
    if message:
        values["message"] = message
    if error:
        values |= {
            "error": error[:4000].replace("\x00", "�"),
            "traceback": trace[-20_000:].replace("\x00", "�"),
        }
    # Only a row that is still ours: one marked interrupted meanwhile stays so.
    rows = type(job)._default_manager.filter(pk=job.pk, status=Job.RUNNING)
    patiently(lambda: rows.update(**values))
    return status


@contextmanager
def stamping(rows: models.QuerySet[Any], name: str, every_s: float = HEARTBEAT_S) -> Iterator[None]:
    """Stamps the rows' `heartbeat_at` from a thread, so that a long step without progress is not taken for a dead
    worker."""
    ended = threading.Event()

    def beat() -> None:
        try:
            while not ended.wait(every_s):
                try:
                    rows.update(heartbeat_at=timezone.now())
                except Exception:  # the database may be away for a moment; the next beat tries again
                    log.warning("heartbeat of %s not written", name, exc_info=True)
        finally:
            connection.close()

    thread = threading.Thread(target=beat, name=f"heartbeat-{name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=30)
