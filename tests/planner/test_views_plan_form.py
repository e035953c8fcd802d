"""Asking for a plan: the form and its refusals, the preview; starting, cancelling, running again, and who may."""

from __future__ import annotations

import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

from accounts.models import Project
from calibration import jobs
from calibration.engines import MeasuredEngine
from calibration.facts import Facts
from calibration.models import Calibration
from calibration.transfer import TransferTable
from planner import work
from planner.models import Plan, TrafficSet
from tests.ops.services import PATIENCE_S

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


def chosen(page: str) -> list[str]:
    """Values of the selected options of calibration and traffic."""
    selects = {
        name: page.split(f'<select name="{name}"', 1)[1].split("</select>")[0]
        for name in ("calibration", "traffic")
    }
    return [(re.findall(r'<option value="([^"]*)" selected', text) or [""])[0] for text in selects.values()]


def test_the_only_calibration_and_traffic_are_chosen(published, calibration, traffic, owner_client) -> None:
    """`calibration` is not published, so no choice."""
    assert chosen(owner_client.get(NEW).content.decode()) == [str(published.pk), str(traffic.pk)]
    asked = owner_client.get(f"{NEW}?calibration=&traffic=nonsense").content.decode()
    assert chosen(asked) == ["", ""], "what the address says is kept"


def test_of_several_none_is_chosen_unless_the_other_choice_leaves_one(
    published, traffic, owner, owner_client, project
) -> None:
    second = Calibration.objects.get(pk=published.pk)
    second.pk, second.name = uuid.uuid4(), "the other"
    second.save(force_insert=True)
    assert chosen(owner_client.get(NEW).content.decode()) == ["", str(traffic.pk)]
    elsewhere = Project.objects.create(name="elsewhere", slug="elsewhere")
    elsewhere.memberships.create(user=owner, role="owner")
    own = TrafficSet.objects.create(
        project=elsewhere,
        owner=owner,
        name="other",
        format="azure",
        source="x",
        statistics=traffic.statistics,
    )
    Calibration.objects.filter(pk=second.pk).update(project=elsewhere)
    assert chosen(owner_client.get(NEW).content.decode()) == ["", ""]
    assert chosen(owner_client.get(f"{NEW}?calibration={second.pk}").content.decode()) == [
        str(second.pk),
        str(own.pk),
    ]
    assert chosen(owner_client.get(f"{NEW}?traffic={traffic.pk}").content.decode()) == [
        str(published.pk),
        str(traffic.pk),
    ]


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


# What would be dropped, or cannot be -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ({"window_start_s": "1e6", "window_end_s": "2e6"}, "window_start_s", "No request arrives from 1e+06 s"),
        ({"prefix_hits": "trace"}, "prefix_hits", "does not say which prompts begin alike"),
        ({"link_latency_s": "0.1"}, "link_latency_s", "Goes with a link"),
        ({"link_uncertainty": "0.3"}, "link_uncertainty", "Goes with a link"),
        ({"message_s": "0.1"}, "message_s", "Goes with a link"),
        ({"local_prefill_tokens": "64"}, "local_prefill_tokens", "Goes with a link"),
        ({"transfer_chunks_tokens": "64"}, "transfer_chunks_tokens", "Goes with a link"),
        ({"link_gb_per_s": "5", "max_replicas": "1"}, "max_replicas", "at least 2 replicas"),
        ({"link_gb_per_s": "5", "transfer_chunks_tokens": "64"}, "transfer_chunks_tokens", "vLLM hands KV caches over"),
        ({"engine": "sglang", "chunk_caps_tokens": "64"}, "chunk_caps_tokens", "SGLang has no cap"),
        ({"objectives": "night=ttft:p95:1"}, "objectives", "its requests have no classes"),
        ({"objectives": "ttft:p95:2"}, "objectives", "TTFT p95 is given twice"),
        ({"objectives": "\n".join(f"ttft:p{p}:1" for p in range(50, 70))}, "objectives", "at most 16"),
        ({"objectives": "goodput:p99"}, "objectives", "write metric:percentile:seconds"),
        ({"objectives": "goodput:p99:ttft"}, "objectives", "write limits of goodput as"),
        ({"goodput_ttft_ms": "0"}, "goodput_ttft_ms", ""),
        ({"goodput_percentile": "42"}, "goodput_percentile", ""),
    ],
)  # fmt: skip
def test_what_would_be_dropped_is_refused_beside_its_field(
    given, field, says, question, owner_client, no_broker
) -> None:
    answer = owner_client.post(NEW, {**question, **given})
    assert answer.status_code == 422
    assert list(answer.context["form"].errors) == [field]
    assert says in answer.context["form"].errors[field][0]
    page = answer.content.decode()
    shown = re.search(rf'id="id_{field}_error"[^>]*>(.*?)</(ul|div)>', page, re.S)
    assert shown is not None
    assert not Plan.objects.exists()


def test_single_token_outputs_have_no_gaps_to_ask_for(question, owner_client, traffic, no_broker) -> None:
    traffic.statistics["tpot_requests"] = 0
    traffic.save()
    answer = owner_client.post(NEW, question)
    assert "no request has a second token" in answer.context["form"].errors["objectives"][0]
    assert owner_client.post(NEW, {**question, "itl_limit_ms": ""}).status_code == 302


def test_joint_and_class_objectives_can_be_asked_for_on_the_page(
    question, owner_client, traffic, no_broker
) -> None:
    page = owner_client.get(NEW).content.decode()
    assert 'name="goodput_tpot_ms"' in page
    joint = {"goodput_percentile": "95", "goodput_ttft_ms": "800", "goodput_tpot_ms": "40"}
    assert owner_client.post(NEW, {**question, **joint}).status_code == 302
    row = Plan.objects.get()
    assert row.objectives == ["ttft:p95:1", "itl:p99:0.05", "goodput:p95:ttft=0.8+tpot=0.04"]
    page = text_of(owner_client.get(url("plan_detail", row)).content.decode())
    assert "TTFT ≤ 800 ms and TPOT ≤ 40 ms for 95 % of requests" in page


@pytest.mark.parametrize("engine", ["sglang", "tensorrt_llm"])
def test_a_default_question_to_each_engine_drops_nothing(engine, question, owner_client, no_broker) -> None:
    assert owner_client.post(NEW, {**question, "engine": engine, "link_gb_per_s": "5"}).status_code == 302


def test_the_same_question_twice_is_one_plan_while_it_runs(question, owner_client, no_broker) -> None:
    first = owner_client.post(NEW, question).headers["Location"]
    assert owner_client.post(NEW, question).headers["Location"] == first
    other = owner_client.post(NEW, {**question, "seed": "1"}).headers["Location"]
    assert other != first
    assert Plan.objects.count() == 2
    Plan.objects.update(status=Plan.DONE)
    assert owner_client.post(NEW, question).headers["Location"] not in (first, other)
    assert Plan.objects.count() == 3
    row = Plan.objects.filter(status=Plan.DONE, seed=1).get()
    again = [owner_client.post(url("plan_rerun", row)).headers["Location"] for _ in range(2)]
    assert again[0] == again[1]
    assert Plan.objects.count() == 4


@pytest.mark.django_db(transaction=True)
def test_posts_at_the_same_moment_are_one_plan(question, owner, no_broker) -> None:
    """Eight threads with connections of their own, as eight workers of the web server."""
    gate = Barrier(8)

    def post(_: int) -> str:
        client = Client()
        client.force_login(owner)
        gate.wait(timeout=PATIENCE_S)
        try:
            return str(client.post(NEW, question).headers["Location"])
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(post, range(8)))
    assert len(set(answers)) == 1
    assert Plan.objects.count() == 1
    assert len(no_broker) == 1


# A second kind of hardware --------------------------------------------------------------------------------------


def test_a_second_kind_of_hardware_is_asked_for_with_its_price(
    question, owner_client, second, published, no_broker
) -> None:
    given = {"second_calibration": str(second.pk), "price_per_gpu_hour": "2", "second_price_per_gpu_hour": "3",
             "second_max_gpus": "4", "max_gpus": "2", "host_gap_s": "0.001"}  # fmt: skip
    assert owner_client.post(NEW, {**question, **given}).status_code == 302
    row = Plan.objects.get()
    assert row.second_calibration == second
    assert row.conditions["second_price_per_gpu_hour"] == 3.0
    assert (row.conditions["second_max_gpus"], row.conditions["max_gpus"]) == (4, 2)
    assert row.conditions["host_gap_s"] == 0.001
    page = owner_client.get(url("plan_detail", row)).content.decode()
    assert f"&quot;second_calibration&quot;: &quot;{second.pk}&quot;" in page
    again = owner_client.post(url("plan_rerun", row))
    assert again.status_code == 302


def test_a_link_measured_with_other_ranks_is_not_taken_for_the_second_kinds(
    question, owner_client, second, published, no_broker
) -> None:
    """Entered it may be, by the same page: then it is whoever entered it who knows."""
    Calibration.objects.filter(pk=second.pk).update(tensor_parallel=2)
    table = TransferTable((1e6,), (1e-4,), (1e9,), "copied here")
    given = {"second_calibration": str(second.pk), "link": "measured"}
    for measured, says in ((table, "different numbers of ranks"), (replace(table, entered=True), "")):
        facts = Facts(MeasuredEngine("ridgeline"), transfers=(measured,))
        Calibration.objects.filter(pk=published.pk).update(facts=facts.to_dict())
        answer = owner_client.post(NEW, {**question, **given})
        assert answer.status_code == (422 if says else 302)
        assert says in answer.content.decode()


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ({"second_max_gpus": "4"}, "second_max_gpus", "Goes with a second calibration"),
        ({"second_price_per_gpu_hour": "4", "price_per_gpu_hour": "1"}, "second_price_per_gpu_hour", "Goes with"),
        ({"second_calibration": "SECOND", "price_per_gpu_hour": "1"}, "second_price_per_gpu_hour", "both prices"),
        ({"second_calibration": "SECOND", "second_price_per_gpu_hour": "1"}, "price_per_gpu_hour", "both prices"),
        ({"second_calibration": "FIRST"}, "second_calibration", "another one"),
        ({"second_calibration": "SECOND", "second_gpus_per_replica": "4", "second_max_gpus": "2"}, "second_max_gpus",
         "One replica has 4"),
        ({"max_gpus": "1", "gpus_per_replica": "2"}, "max_gpus", "One replica has 2"),
        ({"host_gap_s": "2"}, "host_gap_s", ""),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(
    given, field, says, question, owner_client, second, published, no_broker
) -> None:
    ids = {"SECOND": str(second.pk), "FIRST": str(published.pk)}
    answer = owner_client.post(NEW, {**question, **{k: ids.get(v, v) for k, v in given.items()}})
    assert answer.status_code == 422
    assert list(answer.context["form"].errors) == [field]
    assert says in answer.context["form"].errors[field][0]


def test_another_model_is_no_second_kind_of_hardware(question, owner_client, second, no_broker) -> None:
    Calibration.objects.filter(pk=second.pk).update(architecture={**second.architecture, "layers": 99})
    answer = owner_client.post(NEW, {**question, "second_calibration": str(second.pk)})
    assert "of another model" in answer.context["form"].errors["second_calibration"][0]


@pytest.mark.django_db(transaction=True)
def test_a_plan_on_two_kinds_is_worked_out_and_shown(question, owner_client, second, no_broker) -> None:
    given = {"second_calibration": str(second.pk), "link_gb_per_s": "5", "max_replicas": "2",
             "budgets_tokens": "128", "max_num_seqs": "8", "chunk_caps_tokens": "0"}  # fmt: skip
    owner_client.post(NEW, {**question, **given})
    row = Plan.objects.get()
    assert jobs.run(Plan, str(row.pk), work.plan) == "done"
    row.refresh_from_db()
    kinds = row.result["inputs"]["hardware"]
    assert len({kind["device"] for kind in kinds}) == 2
    page = text_of(owner_client.get(url("plan_detail", row)).content.decode())
    assert "Second kind of hardware" in page
    assert all(kind["device"] in page for kind in kinds)
    rows = owner_client.get(url("candidates_csv", row)).getvalue().decode().splitlines()
    assert rows[0].startswith("deployment,hardware,")
    recipe = owner_client.get(url("plan_recipe", row, "vllm")).content.decode()
    assert "on which its step times were measured" in recipe
