"""Commands that fail: the exit code, and with ``--json`` one object on the last line whatever went wrong."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from django.core.management import CommandError, call_command

from accounts.models import Membership, Project
from calibration.models import Calibration
from planner.models import Plan, TrafficSet
from tests.conftest import REPOSITORY

NOWHERE = "/nowhere/file"
TRAFFIC = ("--traffic", "demo", "--requests", "20")
OBJECTIVE = ("--objective", "ttft:p95:1")


def asked(calibration: Calibration) -> tuple[str, ...]:
    return (
        "plan",
        "--calibration",
        str(calibration.pk),
        "--user",
        calibration.owner.get_username(),
        *TRAFFIC,
    )


def failed(*argv: str) -> tuple[int, dict]:
    out = io.StringIO()
    with pytest.raises(CommandError) as caught:
        call_command(*argv, "--json", stdout=out)
    return caught.value.returncode, json.loads(out.getvalue().splitlines()[-1])


@pytest.mark.django_db
@pytest.mark.parametrize(
    "argv",
    [
        ("model", NOWHERE),
        ("calibrate", "--model", NOWHERE),
        ("calibrate", "--model", "demo", "--max-batch", "0"),
        ("calibrate", "--model", "demo", "--user", "nobody"),
        ("import_steps", NOWHERE, "--model", "demo", "--kv-tokens", "1000"),
        ("traffic", NOWHERE),
        ("traffic", "chat", "--rate-per-s", "nan"),
        ("scheduler_cases", NOWHERE),
        ("replay_check", NOWHERE),
        ("fit_check", NOWHERE),
        ("plan", "--calibration", "none", *TRAFFIC, *OBJECTIVE),
    ],
    ids=" ".join,
)
def test_bad_input_is_exit_2_and_a_json_object(argv) -> None:
    code, told = failed(*argv)
    assert code == 2
    assert told["detail"] and isinstance(told["errors"], list)


def test_arguments_that_cannot_be_read_are_told_as_json_too() -> None:
    command = [sys.executable, "manage.py", "import_steps", "x.csv", "--kv-tokens", "many", "--json"]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "kv-tokens" in json.loads(ended.stdout.splitlines()[-1])["detail"]


def test_a_refused_question_leaves_no_traffic_behind(published) -> None:
    code, told = failed(*asked(published), "--objective", "ttft:p95:soon")
    assert (code, told["errors"][0]["field"]) == (2, "objectives")
    assert not TrafficSet.objects.exists()


def test_a_calibration_that_the_gate_refused_is_exit_3(published) -> None:
    Calibration.objects.update(published=False, reason="held-out error above the bar")
    code, told = failed(*asked(published), *OBJECTIVE)
    assert (code, told["detail"]) == (3, "not published: held-out error above the bar")


# The search asks from its own threads, with their own connections, whether to stop: rows must be committed.
@pytest.mark.django_db(transaction=True)
def test_a_plan_belongs_to_its_calibrations_project(published) -> None:
    first = Project.objects.create(id=0, name="First", slug="first")  # taken when none is named
    Membership.objects.create(project=first, user=published.owner, role=Membership.OWNER)
    with pytest.raises(SystemExit) as left:
        narrow = ("--objective", "ttft:p95:1e-9", "--budgets-tokens", "256", "--max-num-seqs", "8")
        call_command(*asked(published), *narrow, stdout=io.StringIO())
    assert left.value.code == 1
    plan = Plan.objects.get()
    assert plan.project == plan.traffic.project == published.project
