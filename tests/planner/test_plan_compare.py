"""Two to four plans beside each other: what differs, the figures over each other, and what is refused."""

from __future__ import annotations

import uuid

import pytest
from django.test import Client
from django.urls import reverse

from planner.charts.plan_compare import metrics_of, overlaid
from planner.plan_compare import NotComparable, compared
from tests.planner.test_charts import check
from tests.planner.test_views_plans import NASTY, text_of

pytestmark = pytest.mark.django_db
PAGE = reverse("planner:plan_compare")


@pytest.fixture
def three(make_plan, answers):
    """One that meets, one that cannot, one that is saturated."""
    return [
        make_plan(answers["feasible"], name=f"first {NASTY}"),
        make_plan(answers["impossible"], name="second", conditions={"headroom": 0.5}, seed=7),
        make_plan(answers["saturated"], name="third"),
    ]


@pytest.fixture
def api(owner, bearer) -> Client:
    return Client(headers=bearer(owner))


def ids(plans) -> dict[str, list[str]]:
    return {"plan": [str(plan.pk) for plan in plans]}


def api_url(plans) -> str:
    return f"/api/v1/plans/{plans[0].pk}/compare?" + "&".join(f"other={plan.pk}" for plan in plans[1:])


def test_what_differs_stands_first_and_the_rest_is_folded(three, owner_client) -> None:
    page = owner_client.get(PAGE, ids(three[:2])).content.decode()
    inputs = page[page.index('id="inputs"') :]
    before, _, folded = inputs.partition("<details>")
    assert "Objectives" in before and "Seed" in before
    assert "Calibration" not in before and "Calibration" in folded
    assert NASTY not in page and "style=" not in page
    words = text_of(page)
    for each in ("not asked", "90 % interval", "Two plans beside each other", "meets", "nothing meets"):
        assert each in words


def test_a_plan_beside_itself_run_again_differs_in_nothing(make_plan, answers, owner_client) -> None:
    twice = [make_plan(answers["feasible"]), make_plan(answers["feasible"])]
    found = compared(twice)
    assert not [line.key for line in (*found.inputs, *found.answers, *found.percentiles) if line.differs]
    page = text_of(owner_client.get(PAGE, ids(twice)).content.decode())
    assert "The answers are the same." in page and "They were asked the same." in page


def test_every_line_is_the_results_own_number(three) -> None:
    found = compared(three)
    choice = three[0].result["verdict"]["choice"]
    answers_ = {line.key: line.values for line in found.answers}
    assert answers_["gpus"][0] == choice["gpus"]
    assert answers_["utilisation"][0] == choice["behaviour"]["utilisation"]
    assert answers_["breaks_at"][0] == three[0].result["breaking"]["breaks_at"]
    assert answers_["feasible"] == ("yes", "no", "no")
    for line in found.percentiles:
        for plan, value in zip(three, line.values, strict=True):
            shown = plan.result["verdict"]["choice"] or plan.result["verdict"]["closest"]
            own = [o for o in shown["objectives"] if f"{o['metric']}:p{o['percentile']:g}" == line.key]
            assert (value is None) == (not own)
            if value is not None:
                assert (value.limit_s, value.predicted_s, value.low_s, value.high_s) == (
                    own[0]["limit"], own[0]["predicted"], own[0]["low"], own[0]["high"],
                )  # fmt: skip


def test_page_and_api_say_the_same(three, api) -> None:
    body = api.get(api_url(three)).json()
    found = compared(three)
    assert [plan["id"] for plan in body["plans"]] == [str(plan.pk) for plan in three]
    for part in ("inputs", "answers", "percentiles"):
        assert [(line["key"], line["differs"]) for line in body[part]] == [
            (line.key, line.differs) for line in getattr(found, part)
        ]
    assert body["distributions"][0]["curves_s"] == three[0].result["why"]["curves_s"]


def test_refusals(three, make_plan, owner_client, api, answers) -> None:
    waiting = make_plan(status="running", name="still at it")
    many = [make_plan(answers["feasible"]) for _ in range(5)]
    for chosen, words in (
        ([], "two to four"), (three[:1], "two to four"), (many, "two to four"), ([three[0], three[0]], "twice"),
        ([three[0], waiting], "still at it has no answer: it is running."),
    ):  # fmt: skip
        page = owner_client.get(PAGE, ids(chosen))
        assert page.status_code == 422
        assert words in page.content.decode()
        assert (
            owner_client.get(reverse("planner:plan_compare_figure", args=["ttft"]), ids(chosen)).status_code
            == 422
        )
    assert api.get(f"/api/v1/plans/{three[0].pk}/compare").status_code == 422
    assert api.get(api_url(many)).status_code == 422
    assert api.get(api_url([three[0], waiting])).status_code == 409
    assert owner_client.get(PAGE, {"plan": ["x", "y"]}).status_code == 404
    with pytest.raises(NotComparable):
        compared([three[0], waiting])


def test_other_peoples_plans_are_not_there(
    three, outsider_client, owner_client, api, outsider, bearer
) -> None:
    assert outsider_client.get(PAGE, ids(three)).status_code == 404
    figure = reverse("planner:plan_compare_figure", args=["ttft"])
    assert outsider_client.get(figure, ids(three)).status_code == 404
    assert Client(headers=bearer(outsider)).get(api_url(three)).status_code == 404
    stranger = [str(three[0].pk), str(uuid.uuid4())]
    assert owner_client.get(PAGE, {"plan": stranger}).status_code == 404
    assert api.get(f"/api/v1/plans/{stranger[0]}/compare?other={stranger[1]}").status_code == 404


def test_figures_have_a_colour_and_a_dash_for_each_plan(three, owner_client) -> None:
    url = reverse("planner:plan_compare_figure", args=["ttft"])
    answer = owner_client.get(url, ids(three[:2]))
    figure = answer.json()
    check(figure)
    curves = [
        trace for trace in figure["data"] if trace["mode"] == "lines" and trace.get("showlegend") is not False
    ]
    assert len(curves) == 2
    assert (
        len({trace["line"]["color"] for trace in curves})
        == len({trace["line"]["dash"] for trace in curves})
        == 2
    )
    assert any("≤" in trace["name"] for trace in figure["data"])
    assert owner_client.get(url, ids(three[:2]), headers={"If-None-Match": answer["ETag"]}).status_code == 304
    assert (
        owner_client.get(reverse("planner:plan_compare_figure", args=["pie"]), ids(three[:2])).status_code
        == 404
    )


def test_every_answer_can_be_drawn_with_every_other(answers) -> None:
    for first in answers.values():
        for second in answers.values():
            for metric in metrics_of([first, second]):
                check(overlaid(metric, [(NASTY, first), (NASTY, second)], NASTY))


def test_the_list_offers_what_can_be_compared(three, make_plan, owner_client) -> None:
    waiting = make_plan(status="running")
    page = owner_client.get(reverse("planner:plan_list")).content.decode()
    for plan in three:
        assert f'name="plan" value="{plan.pk}"' in page
    assert f'value="{waiting.pk}"' not in page
