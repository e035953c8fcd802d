"""Commands that fail: the exit code, and with ``--json`` one object on the last line whatever went wrong."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command

from accounts.models import Membership, Project
from calibration.models import Calibration
from planner.models import Plan, TrafficSet
from tests.conftest import REPOSITORY
from tests.ops.services import PATIENCE_S

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
        ("import_vllm_log", NOWHERE, "--model", "demo"),
        ("import_curves", NOWHERE, "--model", "demo"),
        ("traffic", NOWHERE),
        ("traffic", "chat", "--rate-per-s", "nan"),
        ("scheduler_cases", NOWHERE),
        ("replay_check", NOWHERE),
        ("fit_check", NOWHERE),
        ("plan", "--calibration", "none", *TRAFFIC, *OBJECTIVE),
        ("simulate", "--calibration", "none", "--traffic", "demo"),
        ("replan", NOWHERE),
        ("verify", "none"),
        ("mixed_load", "none"),
    ],
    ids=" ".join,
)
def test_bad_input_is_exit_2_and_a_json_object(argv) -> None:
    code, told = failed(*argv)
    assert code == 2
    assert told["detail"] and isinstance(told["errors"], list)


def test_arguments_that_cannot_be_read_are_told_as_json_too() -> None:
    command = [sys.executable, "manage.py", "import_steps", "x.csv", "--kv-tokens", "many", "--json"]
    ended = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
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


def test_a_user_who_never_signed_in_is_given_a_project_to_write_to(several_users) -> None:
    ada = get_user_model().objects.create_user("ada")
    call_command("generate", "chat", "--requests", "20", "--user", "ada", stdout=io.StringIO())
    call_command("generate", "chat", "--requests", "20", "--user", "ada", stdout=io.StringIO())
    assert Project.objects.get().memberships.get().user == ada
    assert set(TrafficSet.objects.values_list("project__slug", flat=True)) == {"ada"}


def test_a_project_is_named_in_the_refusal_where_one_was_named(viewer) -> None:
    generate = ("generate", "chat", "--requests", "20", "--user", viewer.get_username())
    for words, field, message in (
        (("--project", "nowhere"), "project", "has no project 'nowhere' to write to"),
        ((), "user", "may write to no project"),
    ):
        code, told = failed(*generate, *words)
        [error] = told["errors"]
        assert (code, error["field"]) == (2, field)
        assert error["message"] == f"{viewer.get_username()} {message}"


@pytest.mark.django_db
@pytest.mark.parametrize(
    "argv",
    [
        ("calibrate", "--model"),
        ("import_steps", "steps.csv", "--kv-tokens", "1000", "--model"),
        ("import_vllm_log", "vllm.log", "--model"),
        ("import_curves", "curves.npz", "--model"),
        ("model",),
    ],
    ids=lambda argv: argv[0],
)
@pytest.mark.parametrize("word", ["llama-4", "no/such/config.json", "x" * 5000])
def test_a_model_that_nobody_knows_is_told_with_those_that_are_known(argv, word) -> None:
    code, told = failed(*argv, word)
    [error] = told["errors"]
    assert (code, error["field"]) == (2, "model")
    assert "neither a readable config.json nor one of demo, llama-3.1-8b" in error["message"]


@pytest.mark.django_db
@pytest.mark.parametrize("command", ["verify", "mixed_load"])
@pytest.mark.parametrize("about", ["recommends nothing", "imported"])
def test_a_plan_that_cannot_be_verified_is_the_wrong_one_to_name(finished_plan, command, about) -> None:
    if about == "imported":
        Calibration.objects.update(source=Calibration.IMPORTED)
    else:
        verdict = {**finished_plan.result["verdict"], "choice": None, "feasible": False}
        Plan.objects.update(result={**finished_plan.result, "verdict": verdict}, feasible=False)
    code, told = failed(command, str(finished_plan.pk), "--user", finished_plan.owner.get_username())
    [error] = told["errors"]
    assert (code, error["field"]) == (2, "plan")
    assert ("imported" if about == "imported" else "recommends something") in error["message"]


@pytest.mark.django_db
def test_a_plan_of_a_calibration_that_the_gate_refused_runs_nothing(finished_plan) -> None:
    Calibration.objects.update(published=False, reason="held-out error above the bar")
    code, told = failed("mixed_load", str(finished_plan.pk), "--user", finished_plan.owner.get_username())
    assert (code, told["detail"]) == (
        3,
        "Its calibration is not published: there is nothing to predict with.",
    )
