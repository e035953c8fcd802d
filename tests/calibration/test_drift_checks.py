"""Drift checks as jobs: what is recorded, what follows, what is shown. The device is a formula that can be slowed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from django.utils import timezone

from calibration import drift_checks, jobs, services
from calibration.drift import in_words
from calibration.drift_chart import drift_figure
from calibration.engine.client import EngineError
from calibration.engine.process import STRETCH
from calibration.experiment.clocks import cpu_settings
from calibration.experiment.drift import REPEATS, changed, choose_sentinels, judge_drift
from calibration.freshness import freshness_of
from calibration.models import Calibration, DriftCheck
from calibration.models import Device as AnnouncedDevice
from calibration.steptime import StepSample

pytestmark = pytest.mark.django_db
#: Repeat noise of a check's steps, as log standard deviations around each step's own level.
GPU_NOISE, CPU_NOISE = 0.01, 0.04


@pytest.fixture
def measured(published, no_broker) -> Calibration:
    published.environment = {"dtype": "float32", "torch": "2.13.0"}
    published.finished_at = timezone.now()
    published.save(update_fields=["environment", "finished_at"])
    return published


def timed_again(
    samples: list[StepSample], factor: float, noise: float, seed: int, repeats: int = REPEATS
) -> list[StepSample]:
    rng = np.random.default_rng(seed)
    return [
        StepSample(
            sample.shape,
            tuple((sample.median_s * factor * np.exp(noise * rng.standard_normal(repeats))).tolist()),
            "sentinel",
        )
        for sample in samples
    ]


@pytest.fixture
def device(monkeypatch) -> Any:
    """What `services.drift_of` finds on a device that takes `factor` times as long, with noise of `noise`."""

    class Device:
        factor, noise, kind, seed = 1.0, CPU_NOISE, "cpu", 0

        def __call__(self, calibration, seed=0, on_log=print, should_stop=bool, on_stage=print):
            on_stage("Timing its steps again")
            chosen = choose_sentinels(services.samples_of(calibration))
            self.seed += 1
            now = timed_again(chosen, self.factor, self.noise, self.seed)
            return judge_drift(chosen, now, self.kind, (), seed)

    made = Device()
    monkeypatch.setattr(services, "drift_of", made)
    return made


def checked(calibration: Calibration, **options: Any) -> DriftCheck:
    row = drift_checks.start(calibration, calibration.owner, **options)
    assert jobs.run(DriftCheck, str(row.pk), drift_checks.check) == "done"
    row.refresh_from_db()
    return row


def test_a_quiet_device_is_found_unchanged_and_stays_fresh(measured, device):
    row = checked(measured, recalibrate=True)
    assert row.drifted is False and row.low <= row.statistic <= row.high
    assert row.recalibration is None and set(row.report["by_kind"]) == {"decode", "prefill", "mixed"}
    assert freshness_of(measured).state == "fresh"
    assert "found unchanged" in freshness_of(measured).sentence


def test_a_cpu_slowed_by_12_percent_is_noticed_and_measured_anew(measured, device):
    device.factor = 1.12
    row = checked(measured, recalibrate=True)
    assert row.drifted and row.statistic == pytest.approx(np.log(1.12), abs=0.03)
    assert row.recalibration.status == "queued" and row.recalibration.rerun_of_id == measured.pk
    assert freshness_of(measured).state == "drifted"
    again = checked(measured, recalibrate=True)
    assert again.drifted and again.recalibration is None, "one is under way"


@pytest.mark.parametrize(("kind", "noticed"), [("gpu", True), ("cpu", False)])
def test_5_percent_are_noticed_on_a_gpu_and_rightly_not_on_a_cpu(measured, kind, noticed):
    """Over 20 seeds, synthetic noise of 1 %."""
    chosen = choose_sentinels(services.samples_of(measured))
    verdicts = [
        judge_drift(chosen, timed_again(chosen, 1.05, GPU_NOISE, seed), kind, (), seed).drifted
        for seed in range(20)
    ]
    assert sum(verdicts) == (20 if noticed else 0)


@pytest.mark.parametrize(("kind", "noise"), [("gpu", GPU_NOISE), ("cpu", CPU_NOISE)])
def test_at_most_one_alarm_in_20_quiet_runs(measured, kind, noise):
    """200 quiet runs, whose repeats are normal draws around the calibration's own times, of 1 % and 4 %."""
    chosen = choose_sentinels(services.samples_of(measured))
    alarms = sum(
        judge_drift(chosen, timed_again(chosen, 1.0, noise, seed), kind, (), seed).drifted
        for seed in range(200)
    )
    assert alarms <= 10


def test_what_cannot_be_checked_says_why(measured):
    Calibration.objects.filter(pk=measured.pk).update(tensor_parallel=2, device="cuda:0")
    AnnouncedDevice.objects.create(name="cuda:0", label="H200", hostname="here", total_bytes=1, free_bytes=1)
    measured.refresh_from_db()
    row = drift_checks.start(measured, measured.owner)
    assert jobs.run(DriftCheck, str(row.pk), drift_checks.check) == "failed"
    row.refresh_from_db()
    assert "'cuda:1' is not one of this machine's" in row.error and row.drifted is None


def test_a_later_one_supersedes_and_time_ages(measured, settings, device):
    now = timezone.now()
    assert freshness_of(measured, now + timedelta(days=31)).state == "ageing"
    checked(measured)
    assert freshness_of(measured, now + timedelta(days=29)).state == "fresh"
    later = Calibration.objects.create(
        **{name: getattr(measured, name) for name in (
            "project", "owner", "name", "architecture", "device", "envelope", "status", "published", "result",
            "provenance", "facts", "environment",
        )}, finished_at=now + timedelta(days=1),
    )  # fmt: skip
    found = freshness_of(measured, now + timedelta(days=2))
    assert (found.state, found.newer) == ("superseded", later.pk)
    assert freshness_of(later, now + timedelta(days=2)).state == "fresh"
    other = Calibration.objects.get(pk=later.pk)
    Calibration.objects.filter(pk=other.pk).update(device="cuda:0")
    assert freshness_of(measured, now + timedelta(days=2)).state != "superseded", "another device's"


def test_an_import_without_a_date_is_of_unknown_age(measured):
    measured.source, measured.environment = Calibration.IMPORTED, None
    assert freshness_of(measured).state == "unknown"
    measured.environment = {"started_at": "2026-01-01T00:00:00+00:00"}
    assert freshness_of(measured).measured_at.year == 2026


def test_freshness_stands_on_list_page_and_api(owner_client, measured, device):
    device.factor = 1.2
    checked(measured)
    for url in ("/calibrations/", f"/calibrations/{measured.pk}/", f"/calibrations/{measured.pk}/drift"):
        assert "drifted" in owner_client.get(url).content.decode().lower(), url
    for url in ("/api/v1/calibrations", f"/api/v1/calibrations/{measured.pk}"):
        body = owner_client.get(url).json()
        assert (body["items"][0] if "items" in body else body)["freshness"]["state"] == "drifted"


def test_a_check_beside_other_programs_says_so(owner_client, measured, device):
    row = checked(measured)
    url = f"/calibrations/checks/{row.pk}/"
    assert "when the machine is quiet" not in owner_client.get(url).content.decode()
    DriftCheck.objects.filter(pk=row.pk).update(report=row.report | {"contended_share": 0.8})
    assert "when the machine is quiet" in owner_client.get(url).content.decode()


def test_the_chart_holds_every_check_in_its_table(owner_client, measured, device):
    empty = drift_figure([], [], "t")
    assert empty["empty"] == "Not checked yet."
    for factor in (1.0, 1.2):
        device.factor = factor
        checked(measured)
    drawn = owner_client.get(f"/calibrations/{measured.pk}/drift.json").json()
    assert [row[-1] for row in drawn["table"]["rows"]] == ["drifted", "no drift"]
    assert "[%]" in drawn["layout"]["yaxis"]["title"]["text"]


def test_a_check_starts_from_the_page_and_the_api(owner_client, client, owner, bearer, measured, no_broker):
    started = owner_client.post(f"/calibrations/{measured.pk}/drift", {"recalibrate": "on"})
    assert started.status_code == 302
    row = DriftCheck.objects.get()
    assert row.recalibrate and started.url == f"/calibrations/checks/{row.pk}/"
    assert owner_client.get(started.url).status_code == 200
    url = f"/api/v1/calibrations/{measured.pk}/drift-checks"
    made = client.post(url, {}, "application/json", headers=bearer(owner)).json()
    assert (made["status"], made["drifted"]) == ("queued", None)
    assert client.get(url, headers=bearer(owner)).json()["count"] == 2


def test_the_hook_is_off_unless_it_is_set(monkeypatch):
    from calibration.engine import process

    monkeypatch.delenv(STRETCH, raising=False)
    assert process._stretch() == 1.0
    monkeypatch.setenv(STRETCH, "1.12")
    assert process._stretch() == 1.12


def test_a_processors_limits_are_told_where_the_system_says_them(tmp_path):
    assert cpu_settings(tmp_path) == {}
    (tmp_path / "scaling_governor").write_text("performance\n")
    (tmp_path / "scaling_max_freq").write_text("3400000\n")
    assert cpu_settings(tmp_path) == {"governor": "performance", "max_clock_mhz": 3400.0}


def test_a_gpus_settings_are_read_and_what_it_does_not_say_is_absent(monkeypatch):
    from calibration.experiment import clocks

    monkeypatch.setattr(clocks, "_ask", lambda index, query: "580.65.06, 1980, [N/A], 700.00")
    assert clocks.device_settings("cuda:0") == {
        "driver": "580.65.06",
        "max_clock_mhz": 1980.0,
        "power_limit_w": 700.0,
    }
    monkeypatch.setattr(clocks, "_ask", lambda index, query: "")
    assert clocks.device_settings("cuda:1") == {}


def test_what_changed_is_told_in_words_and_digests_by_their_beginning(measured):
    chosen = choose_sentinels(services.samples_of(measured))
    then = {"torch": "2.13.0", "measuring_code_sha256": "a" * 64, "governor": "powersave"}
    now = {"torch": "2.14.0", "measuring_code_sha256": "b" * 64, "governor": "performance"}
    same = timed_again(chosen, 1.0, GPU_NOISE, 1)
    report = in_words(judge_drift(chosen, same, "cpu", changed(then, now), 0))
    assert report.drifted and report.reasons == (
        "torch changed: 2.13.0 then, 2.14.0 now", "governor changed: powersave then, performance now",
        f"our measuring code changed: {'a' * 12}… then, {'b' * 12}… now",
    )  # fmt: skip
    assert report.changes[2].then == "a" * 64, "in full where it is kept"


def test_an_engine_that_ends_under_a_check_is_no_refusal(measured, monkeypatch):
    def ends(*given):
        raise EngineError("the engine process ended (signal 9)")

    monkeypatch.setattr(services, "drift_of", ends)
    row = drift_checks.start(measured, measured.owner)
    assert jobs.run(DriftCheck, str(row.pk), drift_checks.check) == "failed"
    row.refresh_from_db()
    assert (row.message, row.drifted, "signal 9" in row.error) == ("Broke off", None, True)
