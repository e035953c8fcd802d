"""Schedules: one row is the truth, beat's row follows it, and every occasion is run once."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
from django.utils import timezone
from django_celery_beat.models import PeriodicTask

from accounts.models import Membership
from calibration import jobs, schedules, services
from calibration.models import Calibration, DriftCheck, Schedule, ScheduleRun
from calibration.schedule_forms import ScheduleForm, initial_of

pytestmark = pytest.mark.django_db
START = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.fixture
def now(monkeypatch) -> Any:
    """The time, which the test moves on: ``now.at``."""

    class Clock:
        at = START

        def __call__(self) -> datetime:
            return self.at

    clock = Clock()
    monkeypatch.setattr(timezone, "now", clock)
    return clock


@pytest.fixture
def measured(published, no_broker) -> Calibration:
    published.environment = {"dtype": "float32"}
    published.save(update_fields=["environment"])
    return published


def asked(calibration: Calibration, **changes: Any) -> schedules.ScheduleRequest:
    values: dict[str, Any] = {
        "name": "nightly", "calibration": calibration, "action": Schedule.RECALIBRATE, "every_s": 3600, "cron": "",
        "time_zone": "UTC", "window": None, "enabled": True, "recalibrate_on_drift": False,
    }  # fmt: skip
    return schedules.ScheduleRequest(**(values | changes))


@pytest.fixture
def schedule(project, owner, measured, now) -> Schedule:
    return schedules.create(project, owner, asked(measured))


def knock(schedule: Schedule) -> ScheduleRun | None:
    return schedules.run_due(str(schedule.pk))


def end_jobs() -> None:
    for model in (Calibration, DriftCheck):
        model.objects.active().update(status=jobs.Job.FAILED)


def test_beats_row_says_what_ours_says(schedule, project, owner, measured):
    task = PeriodicTask.objects.get(task=schedules.TASK)
    assert (task.enabled, task.interval.every, task.interval.period) == (True, 3600, "seconds")
    schedules.edit(schedule, asked(measured, every_s=None, cron="30 3 * * mon", time_zone="Europe/Berlin"))
    task.refresh_from_db()
    assert task.interval is None and str(task.crontab.timezone) == "Europe/Berlin"
    assert (task.crontab.hour, task.crontab.day_of_week) == ("3", "mon")
    schedules.edit(schedule, asked(measured, enabled=False))
    task.refresh_from_db()
    schedule.refresh_from_db()
    assert not task.enabled and schedule.due_at is None
    schedules.delete(schedule)
    assert not PeriodicTask.objects.filter(task=schedules.TASK).exists()


def test_what_somebody_does_to_beats_row_is_undone(schedule):
    task = PeriodicTask.objects.get(task=schedules.TASK)
    assert schedules.keep_in_step() == 0
    PeriodicTask.objects.filter(pk=task.pk).update(enabled=False, args="[]")
    assert schedules.keep_in_step() == 1
    task.refresh_from_db()
    assert task.enabled and str(schedule.pk) in task.args
    task.delete()
    assert schedules.keep_in_step() == 1
    schedule.refresh_from_db()
    assert schedule.task is not None
    schedule.task.pk, schedule.task.name = None, "schedule of nobody"
    schedule.task.save()
    assert schedules.keep_in_step() == 1
    assert PeriodicTask.objects.filter(task=schedules.TASK).count() == 1


def test_an_occasion_is_run_once_however_often_somebody_knocks(
    schedule, now, no_broker, django_capture_on_commit_callbacks
):
    assert knock(schedule) is None, "not yet"
    now.at += timedelta(hours=1)
    with django_capture_on_commit_callbacks(execute=True):
        run = knock(schedule)
        assert knock(schedule) is None
    assert run is not None and run.outcome == ScheduleRun.STARTED and run.missed == 0
    assert run.calibration.rerun_of_id == schedule.calibration_id and run.calibration.status == "queued"
    assert no_broker == [("calibration.tasks.run_calibration", str(run.calibration_id))]
    schedule.refresh_from_db()
    assert schedule.due_at == START + timedelta(hours=2)


def test_what_was_missed_while_nothing_ran_is_run_once(schedule, now):
    now.at += timedelta(hours=5, minutes=20)
    run = knock(schedule)
    assert run is not None and run.due_at == START + timedelta(hours=1) and run.missed == 4
    assert knock(schedule) is None
    schedule.refresh_from_db()
    assert schedule.due_at == START + timedelta(hours=6), "the grid stays"


def test_it_is_skipped_while_one_is_active_and_history_says_why(schedule, now):
    now.at += timedelta(hours=1)
    first = knock(schedule)
    now.at += timedelta(hours=1)
    second = knock(schedule)
    assert first is not None and second is not None
    assert (second.outcome, second.reason) == ("skipped", "a calibration of it is still queued")
    assert second.job is None and Calibration.objects.active().count() == 1
    end_jobs()
    now.at += timedelta(hours=1)
    assert knock(schedule).outcome == "started"


def test_run_now_needs_no_occasion_and_moves_none(schedule, owner, now):
    run = schedules.run_now(schedule, owner)
    assert (run.outcome, run.due_at) == ("started", None)
    assert schedules.run_now(schedule, owner).outcome == "skipped"
    schedule.refresh_from_db()
    assert schedule.due_at == START + timedelta(hours=1)


def test_a_disabled_one_never_runs_and_counts_from_when_it_is_enabled(schedule, measured, now):
    schedules.edit(schedule, asked(measured, enabled=False))
    now.at += timedelta(days=3)
    assert knock(schedule) is None and schedules.due_ids() == []
    schedules.edit(schedule, asked(measured))
    assert knock(schedule) is None, "what came due while it was disabled was not missed"


def test_a_missed_window_is_waited_for(project, owner, measured, now):
    night = schedules.create(
        project, owner, asked(measured, every_s=None, cron="0 23 * * *", window=(time(22), time(4)))
    )
    assert night.due_at == datetime(2026, 6, 1, 23, tzinfo=UTC)
    now.at = datetime(2026, 6, 3, 12, tzinfo=UTC)  # down for two nights
    assert knock(night) is None and not night.runs.exists()
    now.at = datetime(2026, 6, 3, 22, 0, 1, tzinfo=UTC)
    run = knock(night)
    assert run is not None and run.due_at == datetime(2026, 6, 3, 22, tzinfo=UTC)
    night.refresh_from_db()
    assert night.due_at == datetime(2026, 6, 3, 23, tzinfo=UTC)


def test_a_job_is_stopped_when_its_window_closes(project, owner, measured, now):
    night = schedules.create(project, owner, asked(measured, window=(time(12), time(14))))
    now.at += timedelta(hours=1)
    run = knock(night)
    assert run is not None and schedules.stop_outside_windows() == 0
    Calibration.objects.filter(pk=run.calibration_id).update(status="running", heartbeat_at=now.at)
    now.at += timedelta(hours=1)
    assert schedules.stop_outside_windows() == 1
    assert schedules.stop_outside_windows() == 0, "asked once"
    run.refresh_from_db()
    assert run.calibration.cancel_requested and run.reason == "stopped: its window closed at 14:00 (UTC)"


def test_what_a_check_started_is_stopped_with_its_window_too(project, owner, measured, now):
    asked_for = asked(measured, action=Schedule.CHECK, window=(time(12), time(14)), recalibrate_on_drift=True)
    night = schedules.create(project, owner, asked_for)
    now.at += timedelta(hours=1)
    check = knock(night).drift_check
    anew = services.rerun(measured, owner)
    DriftCheck.objects.filter(pk=check.pk).update(status="done", drifted=True, recalibration=anew)
    assert schedules.stop_outside_windows() == 0
    now.at += timedelta(hours=2)
    assert schedules.stop_outside_windows() == 1
    anew.refresh_from_db()
    assert anew.status == "cancelled", "it had not started yet"


def test_one_that_cannot_be_run_keeps_none_of_the_others(schedule, project, owner, measured, now):
    Schedule.objects.filter(pk=schedule.pk).update(time_zone="No/Where", cron="* * * * *", every_s=None)
    other = schedules.create(project, owner, asked(measured))
    now.at += timedelta(hours=1)
    schedules.run_all_due()
    assert other.runs.count() == 1 and schedule.runs.count() == 0


def test_it_measures_the_newest_of_its_subject(schedule, measured, now, calibration_result):
    Calibration.objects.filter(pk=measured.pk).update(finished_at=START - timedelta(days=9))
    now.at += timedelta(hours=1)
    first = knock(schedule).calibration
    Calibration.objects.filter(pk=first.pk).update(
        status="done", published=True, finished_at=now.at, result=calibration_result
    )
    assert schedules.latest_of(schedule).pk == first.pk


def test_whoever_may_no_longer_write_starts_nothing(schedule, owner, now):
    Membership.objects.filter(user=owner).update(role=Membership.VIEWER)
    now.at += timedelta(hours=1)
    run = knock(schedule)
    assert (run.outcome, run.reason) == ("skipped", "owner may no longer write in project Ridge")


def test_a_device_that_is_gone_is_a_reason(schedule, now, monkeypatch):
    monkeypatch.setattr(services, "known_devices", list)
    now.at += timedelta(hours=1)
    assert "is not one of this machine's" in knock(schedule).reason


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"every": "", "cron": ""}, "every"),
        ({"every": "2", "cron": "0 3 * * *"}, "every"),
        ({"every": "5", "unit": "minutes"}, "every"),
        ({"every": "1000000", "unit": "weeks"}, "every"),
        ({"every": "-1"}, "every"),
        ({"every": "", "cron": "0 0 30 2 *"}, "cron"),
        ({"every": "", "cron": "0 3 * *"}, "cron"),
        ({"every": "", "cron": "* * * * *"}, "cron"),
        ({"every": "", "cron": "0,5 3 * * mon"}, "cron"),
        ({"time_zone": "localtime"}, "time_zone"),
        ({"time_zone": "Mars/Olympus"}, "time_zone"),
        ({"time_zone": "../etc/passwd"}, "time_zone"),
        ({"window_start": "22:00"}, "window_end"),
        ({"window_end": "6:00"}, "window_start"),
        ({"window_start": "22:00", "window_end": "22:00"}, "window_end"),
        ({"window_start": "25:00", "window_end": "22:00"}, "window_start"),
        ({"calibration": "x"}, "calibration"),
        ({"action": "explode"}, "action"),
    ],
)  # fmt: skip
def test_bad_input_is_told_beside_its_field(measured, owner, changes, field):
    form = ScheduleForm(form_of(measured) | changes, user=owner)
    assert not form.is_valid() and field in form.errors, form.errors.as_text()


def form_of(calibration: Calibration) -> dict[str, Any]:
    return {
        "calibration": str(calibration.pk),
        "action": "recalibrate",
        "every": "2",
        "unit": "hours",
        "enabled": "on",
    }


def test_imported_step_times_are_not_measured_anew(measured, owner):
    Calibration.objects.filter(pk=measured.pk).update(source=Calibration.IMPORTED)
    form = ScheduleForm(form_of(measured), user=owner)
    assert not form.is_valid() and "imported" in form.errors["calibration"][0]


def test_the_form_shows_what_it_stored(schedule, owner, measured):
    again = ScheduleForm(initial_of(schedule) | {"enabled": "on"}, user=owner)
    assert again.is_valid(), again.errors.as_text()
    assert again.request().every_s == 3600


def test_a_calibration_is_chosen_by_its_date_and_freshness(owner_client, measured, schedule):
    """One that was measured anew has the same name."""
    chosen = owner_client.get("/calibrations/schedules/new").content.decode()
    assert f"{measured.created_at:%Y-%m-%d %H:%M}, fresh)" in chosen
    DriftCheck.objects.create(
        project=measured.project, owner=measured.owner, name="d", calibration=measured, status=jobs.Job.DONE,
        drifted=True, finished_at=timezone.now(),
    )  # fmt: skip
    assert ", drifted)" in owner_client.get("/calibrations/schedules/new").content.decode()
    assert "drifted" in owner_client.get(f"/calibrations/schedules/{schedule.pk}/").content.decode()


def test_pages_make_edit_run_and_delete(owner_client, measured):
    made = owner_client.post("/calibrations/schedules/new", form_of(measured) | {"action": "check"})
    assert made.status_code == 302
    page = owner_client.get(made.url).content.decode()
    assert "check for drift: demo, published" in page and "It has not come due yet" in page
    assert owner_client.post(f"{made.url}run").status_code == 302
    page = owner_client.get(made.url).content.decode()
    assert "by hand" in page and "queued" in page
    edited = form_of(measured) | {"action": "check", "every": "", "cron": "5 4 * * sun", "name": "Sundays"}
    assert owner_client.post(f"{made.url}edit", edited).status_code == 302
    assert "5 4 * * sun" in owner_client.get("/calibrations/schedules/").content.decode()
    refused = owner_client.post(f"{made.url}edit", edited | {"cron": "nonsense"})
    assert refused.status_code == 422 and "five fields" in refused.content.decode()
    assert owner_client.post(f"{made.url}delete").status_code == 302
    assert not Schedule.objects.exists() and DriftCheck.objects.exists(), "what it started stays"


def test_the_api_makes_edits_runs_and_deletes(client, owner, bearer, measured):
    headers, kind = bearer(owner), "application/json"
    body = {
        "calibration": str(measured.pk),
        "every": 1,
        "unit": "days",
        "window_start": "22:00",
        "window_end": "06:00",
    }
    made = client.post("/api/v1/schedules", body, kind, headers=headers)
    assert made.status_code == 201, made.content
    row = made.json()
    assert (row["every_s"], row["window_start"], row["action"], row["enabled"]) == (
        86_400,
        "22:00",
        "check",
        True,
    )
    url = f"/api/v1/schedules/{row['id']}"
    assert client.post(f"{url}/run", headers=headers).json()["outcome"] == "started"
    assert client.post(f"{url}/run", headers=headers).json()["outcome"] == "skipped"
    runs = client.get(f"{url}/runs", headers=headers).json()
    assert runs["count"] == 2 and runs["items"][1]["status"] == "queued"
    edited = client.put(url, body | {"enabled": False}, kind, headers=headers).json()
    assert (edited["enabled"], edited["next_at"]) == (False, None)
    refused = client.put(url, body | {"every": None}, kind, headers=headers)
    assert refused.status_code == 422 and refused.json()["errors"][0]["field"] == "every"
    assert client.delete(url, headers=headers).status_code == 204
    assert client.get(url, headers=headers).status_code == 404


@pytest.mark.parametrize(
    ("every_s", "text"),
    [
        (600, "10 minutes"),
        (3600, "hour"),
        (5400, "90 minutes"),
        (86_400, "day"),
        (1_209_600, "2 weeks"),
        (None, ""),
    ],
)
def test_an_interval_is_told_in_its_largest_unit(every_s, text):
    assert Schedule(every_s=every_s).every_text == text


def test_beat_is_given_sunday_as_it_reads_it(schedule, measured):
    """Its parser knows 0 only: a 7 would end beat itself."""
    schedules.edit(schedule, asked(measured, every_s=None, cron="30 3 * * 5-7"))
    task = PeriodicTask.objects.get(task=schedules.TASK)
    assert task.crontab.day_of_week == "0,5,6" and task.schedule.day_of_week == {0, 5, 6}
    assert schedules.keep_in_step() == 0
