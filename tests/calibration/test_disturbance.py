"""A calibration whose device was disturbed says so wherever somebody might build on it; the gate is as it was."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import call_command
from django.urls import reverse

from calibration import work as calibration_work
from calibration.disturbance import disturbances
from calibration.models import Calibration
from planner.work import told_of

DISTURBED = {"observed": {"sentinel_drift": [0.02, 0.301]}}
WORDS = "check steps took 35.1% longer at the end of the run"


@pytest.mark.parametrize(
    ("environment", "device", "words"),
    [
        (DISTURBED, "cpu", WORDS),
        ({"observed": {"sentinel_drift": [-0.2, 0.1]}}, "cpu", "18.1% shorter"),
        ({"observed": {"sentinel_drift": [0.05]}}, "cuda:0", "5.1% longer"),
        ({"observed": {"sentinel_drift": [0.01]}, "observed_retry": {"sentinel_drift": [0.08]}}, "cpu", "8.3% longer"),
    ],
)  # fmt: skip
def test_what_moved_is_told(environment, device, words) -> None:
    (said,) = disturbances(environment, device)
    assert words in said


@pytest.mark.parametrize(
    "environment",
    [
        None, {}, {"observed": {"sentinel_drift": [0.05, -0.06]}}, {"observed": 3}, {"observed": {"sentinel_drift": 1}},
        {"observed": {"sentinel_drift": ["0.5", None, True, 1e300, float("nan"), float("inf")]}}, {"observed": []},
    ],
)  # fmt: skip
def test_a_quiet_run_and_a_record_that_says_nothing_have_no_remark(environment) -> None:
    assert disturbances(environment, "cpu") == ()


@pytest.fixture
def disturbed(published) -> Calibration:
    published.environment = DISTURBED
    published.save()
    return published


def test_the_page_the_api_and_a_plan_say_it(member_client, disturbed) -> None:
    page = member_client.get(reverse("calibration:detail", args=[disturbed.pk])).content.decode()
    assert "Doubtful." in page
    assert WORDS in page
    told = member_client.get(f"/api/v1/calibrations/{disturbed.pk}").json()
    assert [WORDS in remark for remark in told["remarks"]] == [True]
    (remark,) = told_of(disturbed, None)
    assert WORDS in remark
    assert [each.partition(":")[0] for each in told_of(disturbed, disturbed)] == [
        f"{disturbed.device_label} ({disturbed.name})"
    ] * 2


def test_the_command_says_it_and_tells_what_it_does_meanwhile(owner, project, monkeypatch, capsys) -> None:
    def measure(row, run) -> None:
        run.progress(1, 9, "Measuring 1 decode")
        run.write_log("Pass 1: 9 points")
        Calibration.objects.filter(pk=row.pk).update(
            environment=DISTURBED, published=True, reason="published: for the test"
        )

    monkeypatch.setattr(calibration_work, "measure", measure)
    out = io.StringIO()
    call_command("calibrate", "--model", "demo", "--json", "--user", owner.username, stdout=out)
    assert WORDS in json.loads(out.getvalue().splitlines()[-1])["remarks"][0]
    assert capsys.readouterr().err.splitlines() == ["1/9 Measuring 1 decode", "Pass 1: 9 points"]
    plain = io.StringIO()
    call_command("calibrate", "--model", "demo", "--user", owner.username, stdout=plain)
    assert WORDS in plain.getvalue()
