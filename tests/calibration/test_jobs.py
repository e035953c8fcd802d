"""The life of a job row, without a broker. Real workers are exercised in tests/jobs."""

from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.utils import timezone

from accounts.models import Membership, Project
from calibration import jobs
from calibration.architecture import PRESETS
from calibration.jobs import Job, JobCancelled, JobRefused
from calibration.models import Calibration

pytestmark = pytest.mark.django_db


class Task:
    """Stands where a Celery task would; remembers what was sent."""

    name = "task"

    def __init__(self, broken: bool = False) -> None:
        self.sent: list[str] = []
        self.broken = broken

    def apply_async(self, args: list[str], retry: bool) -> None:
        if self.broken:
            raise ConnectionError("no broker")
        self.sent.append(args[0])


@pytest.fixture
def job() -> Calibration:
    user = get_user_model().objects.create_user("ada")
    project = Project.objects.create(name="P", slug="p")
    Membership.objects.create(project=project, user=user, role=Membership.OWNER)
    return Calibration.objects.create(
        project=project, owner=user, name="c", architecture=PRESETS["demo"].to_dict(), device="cpu"
    )


def status_of(job: Job) -> str:
    return type(job).objects.get(pk=job.pk).status


def test_a_job_is_claimed_once(job):
    assert jobs.claim(Calibration, str(job.pk)) is not None
    assert jobs.claim(Calibration, str(job.pk)) is None


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (None, "done"),
        (JobCancelled(), "cancelled"),
        (JobRefused("no room"), "failed"),
        (KeyError("x"), "failed"),
    ],
)
def test_every_outcome_ends_the_row(job, outcome, status):
    def work(row, run):
        run.write_log("began")
        if outcome is not None:
            raise outcome

    assert jobs.run(Calibration, str(job.pk), work) == status
    row = Calibration.objects.get(pk=job.pk)
    assert (row.status, row.finished_at is not None, "began" in row.log) == (status, True, True)
    assert row.traceback.count("KeyError") == (1 if isinstance(outcome, KeyError) else 0)
    assert jobs.run(Calibration, str(job.pk), work) is None, "a second delivery must find nothing to claim"


def test_cancel_before_and_while_running(job):
    assert jobs.request_cancel(job)
    assert status_of(job) == "cancelled"
    assert not jobs.request_cancel(job), "it had already ended"

    Calibration.objects.filter(pk=job.pk).update(status="queued", cancel_requested=False)

    def work(row, run):
        assert jobs.request_cancel(row)
        run.check()

    assert jobs.run(Calibration, str(job.pk), work) == "cancelled"


def test_sweep_marks_the_silent_and_resends_the_forgotten(job):
    task, rows = Task(), Calibration.objects.all()
    long_ago = timezone.now() - timedelta(seconds=120)
    Calibration.objects.update(sent_at=long_ago)
    assert jobs.sweep(rows, task) == {"interrupted": 0, "resent": 1}
    assert task.sent == [str(job.pk)]
    assert jobs.sweep(rows, task)["resent"] == 0, "just sent again"

    jobs.claim(Calibration, str(job.pk))
    assert jobs.sweep(rows, task)["interrupted"] == 0
    Calibration.objects.update(heartbeat_at=long_ago, eta_s=12.0)
    assert jobs.sweep(rows, task)["interrupted"] == 1
    row = Calibration.objects.get(pk=job.pk)
    assert (row.status, "run it again" in row.error, row.eta_s) == ("interrupted", True, None)


def test_whoever_looks_sees_the_truth_without_a_sweep(job):
    jobs.claim(Calibration, str(job.pk))
    assert Calibration.objects.visible_to(job.owner).get().status == "running"
    Calibration.objects.update(heartbeat_at=timezone.now() - timedelta(seconds=120))
    assert Calibration.objects.visible_to(job.owner).get().status == "interrupted"


def test_a_stage_that_begins_is_told_however_soon_after_another(job):
    """One of them may last for minutes: its name must not be the one before."""
    told = []

    def work(row, run):
        for words in ("Waiting for cpu, which measures one thing at a time", "Starting the engine"):
            run.progress(0, 1, words)
            told.append(Calibration.objects.get(pk=row.pk).message)
        for done in range(1, 100):
            run.progress(done, 100, "Measuring")
        told.append(Calibration.objects.get(pk=row.pk).done)

    jobs.run(Calibration, str(job.pk), work)
    assert (
        told[:2] == ["Waiting for cpu, which measures one thing at a time", "Starting the engine"]
        and told[2] < 99
    )


def test_a_worker_that_comes_back_does_not_overwrite_interrupted(job):
    def work(row, run):
        Calibration.objects.update(status="interrupted")
        assert run.should_stop()
        run.progress(1, 1, "late")

    jobs.run(Calibration, str(job.pk), work)
    assert status_of(job) == "interrupted"


def test_a_broker_that_is_away_loses_nothing(job, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        jobs.send_after_commit(job, Task(broken=True))
    assert status_of(job) == "queued"
    Calibration.objects.update(sent_at=timezone.now() - timedelta(seconds=60))
    task = Task()
    jobs.sweep(Calibration.objects.all(), task)
    assert task.sent == [str(job.pk)]


def test_nul_bytes_in_a_log_or_an_error_do_not_break_the_row(job):
    def work(row, run):
        run.write_log("a\x00b")
        raise ValueError("c\x00d")

    jobs.run(Calibration, str(job.pk), work)
    row = Calibration.objects.get(pk=job.pk)
    assert "\x00" not in row.log + row.error + row.traceback


def test_a_lost_job_is_marked_within_a_minute(settings):
    """As often as it is looked for where nobody says otherwise: tests/jobs/test_recovery.py sees it happen, but does
    not wait so long between two looks."""
    sweeps = settings.CELERY_BEAT_SCHEDULE
    assert {entry["schedule"] for entry in sweeps.values()} == {settings.SWEEP_EVERY_S} == {10}
    assert "calibration.tasks.sweep_calibrations" in {entry["task"] for entry in sweeps.values()}
    assert 3 * jobs.HEARTBEAT_S < jobs.STALE_AFTER_S, "one late stamp is no death"
    assert jobs.STALE_AFTER_S + settings.SWEEP_EVERY_S <= 45
