"""Asking for a plan: the form and its refusals, the preview; starting, cancelling, running again, and who may."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.urls import reverse

from calibration.models import Calibration
from planner.models import Plan

pytestmark = pytest.mark.django_db
NEW = reverse("planner:plan_new")


def url(name: str, row: Plan, *more: str) -> str:
    return reverse(f"planner:{name}", args=[row.pk, *more])


def text_of(page: str) -> str:
    """Without markup; every space, the unbreakable ones included, is one blank."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page)).replace("&lt;", "<").replace("&#x27;", "'")


@pytest.fixture
def question(published, traffic) -> dict[str, Any]:
    return {"calibration": str(published.pk), "traffic": str(traffic.pk), "name": "kept", "max_replicas": "3",
            "ttft_percentile": "95", "ttft_limit_ms": "1000", "itl_percentile": "99", "itl_limit_ms": "50"}  # fmt: skip


def test_the_form_needs_its_ingredients(owner_client, traffic) -> None:
    page = owner_client.get(NEW).content.decode()
    assert "A plan needs measured step times" in page
    assert 'name="ttft_limit_ms"' not in page
    assert "Measure the demo model" in page
    assert "Take the demo traffic" not in page


def test_the_demo_model_is_one_click_away(owner_client, no_broker) -> None:
    page = owner_client.get(NEW).content.decode()
    form = next(part for part in page.split("<form")[1:] if "Measure the demo model" in part)
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
    fields.pop("csrfmiddlewaretoken", None)
    assert owner_client.post(reverse("calibration:new"), fields).status_code == 302
    assert Calibration.objects.get().status == "queued"


def test_the_address_chooses_beforehand(published, traffic, owner_client) -> None:
    page = owner_client.get(f"{NEW}?calibration={published.pk}&traffic={traffic.pk}").content.decode()
    assert f'<option value="{published.pk}" selected' in page
    assert f'<option value="{traffic.pk}" selected' in page
    assert owner_client.get(f"{NEW}?calibration=nonsense&traffic=%00").status_code == 200


def test_asking_starts_a_plan(
    question, owner_client, owner, no_broker, django_capture_on_commit_callbacks
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        answer = owner_client.post(NEW, question)
    row = Plan.objects.get()
    assert answer.headers["Location"] == url("plan_detail", row)
    assert row.objectives == ["ttft:p95:1", "itl:p99:0.05"]
    assert (row.status, row.owner, row.name, row.space["max_replicas"]) == ("queued", owner, "kept", 3)
    assert no_broker == [("planner.tasks.run_plan", str(row.pk))]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"calibration": ""}, "calibration"),
        ({"calibration": "nonsense"}, "calibration"),
        ({"calibration": "\x00"}, "calibration"),
        ({"traffic": "11111111-1111-1111-1111-111111111111"}, "traffic"),
        ({"ttft_limit_ms": "0"}, "ttft_limit_ms"),
        ({"ttft_limit_ms": "-5"}, "ttft_limit_ms"),
        ({"ttft_limit_ms": "nan"}, "ttft_limit_ms"),
        ({"ttft_limit_ms": "1e400"}, "ttft_limit_ms"),
        ({"ttft_limit_ms": "1e9"}, "ttft_limit_ms"),
        ({"itl_limit_ms": "fast"}, "itl_limit_ms"),
        ({"ttft_percentile": "42"}, "ttft_percentile"),
        ({"ttft_percentile": ""}, "ttft_percentile"),
        ({"ttft_limit_ms": "", "itl_limit_ms": ""}, "objectives"),
        ({"max_replicas": "0"}, "max_replicas"),
        ({"max_replicas": "1e3"}, "max_replicas"),
        ({"budgets_tokens": "a lot"}, "budgets_tokens"),
        ({"budgets_tokens": "0"}, "budgets_tokens"),
        ({"budgets_tokens": "9" * 5000}, "budgets_tokens"),
        ({"chunk_caps_tokens": "-1"}, "chunk_caps_tokens"),
        ({"max_num_seqs": "8 8"}, "max_num_seqs"),
        ({"scheduling": "odd"}, "scheduling"),
        ({"seed": "-1"}, "seed"),
        ({"name": "x" * 121}, "name"),
    ],
)  # fmt: skip
def test_errors_stand_beside_their_field_and_values_stay(
    wrong, field, question, owner_client, no_broker
) -> None:
    answer = owner_client.post(NEW, {**question, **wrong})
    page = answer.content.decode()
    assert answer.status_code == 422
    assert list(answer.context["form"].errors) == [field]
    message = answer.context["form"].errors[field][0]
    shown = re.search(rf'id="id_{field}_error"[^>]*>(.*?)</(ul|div)>', page, re.S)
    assert shown is not None
    assert message.split("'")[0][:30] in text_of(shown[1])
    for kept in ("itl_limit_ms", "name"):
        if kept not in wrong:
            assert f'value="{question[kept]}"' in page
    if field in ("budgets_tokens", "chunk_caps_tokens", "max_num_seqs", "scheduling", "seed"):
        assert "<details open>" in page
    assert not Plan.objects.exists()


def test_no_limit_at_all_is_said_in_the_pages_words(question, owner_client) -> None:
    answer = owner_client.post(NEW, {**question, "ttft_limit_ms": "", "itl_limit_ms": ""})
    assert answer.context["form"].errors["objectives"] == ["Give a limit for at least one of them."]


def test_a_refused_calibration_cannot_be_chosen(question, published, owner_client) -> None:
    Calibration.objects.filter(pk=published.pk).update(published=False)
    answer = owner_client.post(NEW, question)
    assert answer.status_code == 422
    assert list(answer.context["form"].errors) == ["calibration"]


def test_starting_too_much_is_429(question, owner_client, settings, no_broker) -> None:
    settings.RATE_LIMITS_ENABLED = True
    answers = [owner_client.post(NEW, question).status_code for _ in range(31)]
    assert answers == [302] * 30 + [429]


def test_the_preview_tells_what_the_question_amounts_to(question, owner_client, published, traffic) -> None:
    preview = reverse("planner:plan_preview")
    page = text_of(owner_client.post(preview, question).content.decode())
    assert "512 tokens a step, 16 sequences" in page
    assert f"{traffic.statistics['requests']} in" in page
    assert "on 1 to 3 replicas" in page
    without = text_of(owner_client.post(preview, {"calibration": str(published.pk)}).content.decode())
    assert "combinations at most" in without, "the space is known before any objective"
    assert "Choose a calibration" in owner_client.post(preview, {}).content.decode()
    small = {**question, "budgets_tokens": "128", "max_num_seqs": "4, 8", "chunk_caps_tokens": "0"}
    assert "2 combinations at most" in text_of(owner_client.post(preview, small).content.decode())


def test_the_preview_warns_of_requests_that_cannot_finish(question, owner_client, published) -> None:
    Calibration.objects.filter(pk=published.pk).update(kv_tokens=64)
    page = owner_client.post(reverse("planner:plan_preview"), question).content.decode()
    assert "they can never finish" in page


# Changing, and who may -----------------------------------------------------------------------------------------


def test_cancel_and_run_again(make_plan, owner_client, no_broker) -> None:
    row = make_plan(status="queued")
    early = owner_client.post(url("plan_rerun", row), follow=True)
    assert "It is still queued." in early.content.decode()
    owner_client.post(url("plan_cancel", row))
    row.refresh_from_db()
    assert row.status == "cancelled"
    late = owner_client.post(url("plan_cancel", row), follow=True)
    assert "It had already ended." in late.content.decode()
    answer = owner_client.post(url("plan_rerun", row))
    again = Plan.objects.exclude(pk=row.pk).get()
    assert answer.headers["Location"] == url("plan_detail", again)
    assert (again.objectives, again.space, again.rerun_of_id, again.status) == (
        row.objectives,
        row.space,
        row.pk,
        "queued",
    )
    assert "an earlier one" in owner_client.get(url("plan_detail", again)).content.decode()


def test_a_viewer_sees_and_may_not_change(viewer_client, make_plan, question, answers) -> None:
    row = make_plan(answers["feasible"])
    page = viewer_client.get(url("plan_detail", row)).content.decode()
    assert url("plan_rerun", row) not in page
    assert "Ask differently" not in page
    for address, data in ((url("plan_cancel", row), {}), (url("plan_rerun", row), {}), (NEW, question)):
        assert viewer_client.post(address, data).status_code == 403
    assert Plan.objects.count() == 1


def test_who_may_write_elsewhere_may_not_plan_here(viewer, viewer_client, question) -> None:
    """A viewer of the calibration's project who owns another one."""
    from accounts.services import create_project

    create_project(viewer, "Own")
    assert viewer_client.post(NEW, question).status_code == 403
    assert not Plan.objects.exists()


def test_outsiders_find_nothing(outsider_client, make_plan, answers, question) -> None:
    row = make_plan(answers["feasible"])
    for name, more in (("plan_detail", ()), ("plan_status", ()), ("plan_figure", ("trade",)),
                       ("candidates_csv", ()), ("result_json", ())):  # fmt: skip
        assert outsider_client.get(url(name, row, *more)).status_code == 404
    for name in ("plan_cancel", "plan_rerun"):
        assert outsider_client.post(url(name, row)).status_code == 404
    assert row.name not in outsider_client.get(reverse("planner:plan_list")).content.decode()
    assert outsider_client.post(NEW, question).status_code == 422
    preview = outsider_client.post(reverse("planner:plan_preview"), question).content.decode()
    assert "demo" not in preview
