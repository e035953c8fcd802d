"""An exported plan is asked again from it: found by digest, refused as another question, compared to the digit."""

from __future__ import annotations

import copy
import io
import json

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse

from calibration.models import Calibration
from planner.models import Plan, TrafficSet
from planner.search.inputs import sha256
from planner.traffic_rows import create_traffic, traffic_of
from tests.planner.test_schedule_of_plans import day, not_stopped, planned, question  # noqa: F401

pytestmark = pytest.mark.django_db


@pytest.fixture
def exported(question, owner, owner_client, tmp_path):  # noqa: F811
    """The plan's row, and its file as the page gives it."""
    plan = planned(question, owner, schedule="parts", schedule_parts=3)
    path = tmp_path / "plan.json"
    path.write_bytes(owner_client.get(reverse("planner:result_json", args=[plan.pk])).content)
    return plan, path


def replanned(path, owner, *more) -> tuple[int, dict]:
    out = io.StringIO()
    try:
        call_command("replan", str(path), "--user", owner.get_username(), "--json", *more, stdout=out)
        code = 0
    except (CommandError, SystemExit) as ended:
        code = getattr(ended, "returncode", None) or ended.code
    return code, json.loads(out.getvalue().splitlines()[-1])


def test_a_result_as_the_api_gives_it_is_asked_again_too(exported, owner, owner_client, bearer, tmp_path):
    plan, _ = exported
    Plan.objects.filter(pk=plan.pk).update(status=Plan.DONE)
    given = owner_client.get(f"/api/v1/plans/{plan.pk}", headers=bearer(owner)).json()["result"]
    assert "candidates" not in given
    code, told = replanned(written(tmp_path / "api.json", given), owner)
    assert (code, told["same"]) == (0, True), told
    other = copy.deepcopy(given) | {"answer_hash": "0" * 64}
    assert replanned(written(tmp_path / "other.json", other), owner)[0] == 1
    del other["answer_hash"]
    assert replanned(written(tmp_path / "other.json", other), owner)[0] == 1


def written(path, result):
    path.write_text(json.dumps(result))
    return path


def test_the_same_answer_comes_out_whatever_things_are_called(exported, owner, project):
    plan, path = exported
    result = json.loads(path.read_text())
    assert set(result["made_with"]) == {"python", "numpy", "numba", "scipy", "simulator"}
    traffic = plan.traffic
    again = create_traffic(project, owner, "brought again", traffic_of(traffic))
    recipe = {**again.recipe, "options": {"delimiter": ";"}}
    TrafficSet.objects.filter(pk=again.pk).update(source="another-name.csv", recipe=recipe)
    Calibration.objects.filter(pk=plan.calibration_id).update(name="renamed")
    code, told = replanned(path, owner)
    assert (code, told["same"]) == (0, True), told
    made = Plan.objects.get(pk=told["plan"])
    assert made.traffic_id == again.pk, "the newest with these requests"
    assert made.result["verdict"] == plan.result["verdict"]
    assert made.result["schedule"] == plan.result["schedule"]


def test_another_answer_is_told_with_the_versions(exported, owner, capsys):
    _, path = exported
    result = json.loads(path.read_text())
    result["candidates"][0]["reason"] = "something else"
    result["made_with"]["numpy"] = "1.0"
    code, told = replanned(written(path, result), owner)
    assert (code, told["same"]) == (1, False)


def _without_inputs(result):
    del result["inputs"]


def _moved(result):
    result["inputs"]["seed"] += 1


def _of_other_step_times(result):
    result["inputs"]["hardware"][0]["step_time_sha256"] = "0" * 64
    result["content_hash"] = sha256(result["inputs"])


def _of_other_requests(result):
    result["inputs"]["traffic"]["arrays_sha256"] = "0" * 64
    result["content_hash"] = sha256(result["inputs"])


def _of_another_engine_version(result):
    result["inputs"]["engine"]["version"] = "0.0.1"
    result["content_hash"] = sha256(result["inputs"])


def _of_unknown_conditions(result):
    result["inputs"]["conditions"]["headroom"] = "much"
    result["content_hash"] = sha256(result["inputs"])


def _of_an_older_kind(result):
    del result["inputs"]["schedule"]
    result["content_hash"] = sha256(result["inputs"])


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        (_without_inputs, "file", "not the result of a plan"),
        (_moved, "file", "the file was changed"),
        (_of_other_step_times, "calibration", "bring its file with --calibration"),
        (_of_other_requests, "traffic", "bring its file with --traffic"),
        (_of_another_engine_version, "file", "another question: not the same are engine.version"),
        (_of_unknown_conditions, "file", "cannot read its inputs"),
        (_of_an_older_kind, "file", "ask anew"),
    ],
)
def test_what_cannot_be_asked_again_is_refused_and_leaves_nothing(exported, owner, change, field, words):
    _, path = exported
    result = copy.deepcopy(json.loads(path.read_text()))
    change(result)
    before = Plan.objects.count(), TrafficSet.objects.count(), Calibration.objects.count()
    code, told = replanned(written(path, result), owner)
    assert code == 2
    assert told["errors"][0]["field"] == field and words in told["detail"], told
    assert (Plan.objects.count(), TrafficSet.objects.count(), Calibration.objects.count()) == before


@pytest.mark.parametrize(
    "text", ["", "[]", "null", '{"inputs": 3}', '{"inputs": {}, "content_hash": 1}', "{"]
)
def test_a_file_that_is_none_is_refused(owner, project, tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    code, told = replanned(path, owner)
    assert code == 2 and told["errors"][0]["field"] == "file", told


def test_strangers_find_nothing_by_digest(exported, django_user_model):
    _, path = exported
    stranger = django_user_model.objects.create_user("stranger")
    from accounts.models import Membership, Project

    own = Project.objects.create(name="Other", slug="other")
    Membership.objects.create(project=own, user=stranger, role=Membership.OWNER)
    code, told = replanned(path, stranger)
    assert code == 2 and told["errors"][0]["field"] == "calibration"
