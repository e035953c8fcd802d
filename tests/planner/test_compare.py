"""Two traffics beside each other: page, figures, API; and who may."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
from django.urls import reverse

from planner import services
from planner.charts.compare import COMPARISON_FIGURES, comparison_figure
from planner.traffic import Traffic, synthesise
from tests.planner.test_charts import NASTY, SAMPLES, check

pytestmark = pytest.mark.django_db


@pytest.fixture
def pair(project, owner):
    return [
        services.create_traffic(project, owner, f"{name} {NASTY}", synthesise(name, requests=400, seed=1))
        for name in ("chat", "code")
    ]


def url(pair, name="traffic_compare", *more) -> str:
    return reverse(f"planner:{name}", args=[pair[0].pk, *more])


def test_the_page_shows_both_and_their_ratio(pair, owner_client) -> None:
    page = owner_client.get(url(pair), {"other": str(pair[1].pk)}).content.decode()
    for words in ("Rate [1/s]", "Dispersion, windows of 1 s", "Prompt p99 [tokens]", "95 % interval", "differs",
                  "Kolmogorov-Smirnov", "times the rate of the first", "seed 0"):  # fmt: skip
        assert words in page
    assert page.count("data-figure-url") == len(COMPARISON_FIGURES)
    assert NASTY not in page


def test_without_another_there_is_a_choice(pair, owner_client, outsider_client) -> None:
    page = owner_client.get(url(pair)).content.decode()
    assert f'value="{pair[1].pk}"' in page
    assert "data-figure-url" not in page
    for wrong in ("", "x", str(uuid.uuid4())):
        answer = owner_client.get(url(pair), {"other": wrong})
        assert answer.status_code == 422
        assert 'id="id_other_error"' in answer.content.decode()


def test_an_outsiders_traffic_is_nowhere(pair, outsider, outsider_client) -> None:
    theirs = services.create_traffic(
        outsider.memberships.get().project, outsider, "theirs", synthesise("demo")
    )
    assert outsider_client.get(url([theirs]), {"other": str(pair[0].pk)}).status_code == 422
    for first, second in ((theirs, pair[0]), (pair[0], theirs)):
        path = url([first], "comparison_figure", second.pk, "arrivals")
        assert outsider_client.get(path).status_code == 404
        assert outsider_client.get(f"/api/v1/traffic/{first.pk}/compare/{second.pk}").status_code == 404


@pytest.mark.parametrize("name", COMPARISON_FIGURES)
def test_figures(name, pair, owner_client) -> None:
    path = url(pair, "comparison_figure", pair[1].pk, name)
    answer = owner_client.get(path)
    figure = answer.json()
    check(figure)
    assert len({trace["line"]["dash"] for trace in figure["data"]}) == len(figure["data"])
    assert owner_client.get(path, headers={"If-None-Match": answer["ETag"]}).status_code == 304
    assert owner_client.get(url(pair, "comparison_figure", pair[1].pk, "pie")).status_code == 404


@pytest.mark.parametrize("name", COMPARISON_FIGURES)
@pytest.mark.parametrize("first", SAMPLES)
def test_figures_of_every_pair(name, first) -> None:
    for second in SAMPLES:
        check(comparison_figure(name, (NASTY, SAMPLES[first]), (NASTY, SAMPLES[second]), NASTY))


def test_the_api_says_the_same(pair, owner_client) -> None:
    answer = owner_client.get(f"/api/v1/traffic/{pair[0].pk}/compare/{pair[1].pk}")
    assert answer.status_code == 200
    found = answer.json()
    rate = next(row for row in found["rows"] if row["name"] == "rate")
    assert rate["ratio"] == pytest.approx(pair[1].statistics["rate_per_s"] / pair[0].statistics["rate_per_s"])
    prompts = next(row for row in found["rows"] if row["name"] == "prompt_tokens_p50")
    assert prompts["differs"] is True
    assert prompts["low"] < prompts["ratio"] < prompts["high"]
    assert found["requests"] == [400, 400]
    assert owner_client.get(f"/api/v1/traffic/{pair[0].pk}/compare/{uuid.uuid4()}").status_code == 404


def test_one_request_is_compared(project, owner, owner_client) -> None:
    one = Traffic(np.zeros(1), np.array([5]), np.array([1]), "x", "columns")
    row = services.create_traffic(project, owner, "one", one)
    page = owner_client.get(url([row]), {"other": str(row.pk)})
    assert page.status_code == 200
    assert "too little data" in page.content.decode()


def test_looks_are_limited(pair, owner_client, settings) -> None:
    settings.RATE_LIMITS_ENABLED = True
    path = reverse("planner:traffic_shape_preview", args=[pair[0].pk])
    statuses = [owner_client.post(path, {}).status_code for _ in range(125)]
    assert statuses[:120] == [200] * 120
    assert 429 in statuses
    assert owner_client.get(f"/api/v1/traffic/{pair[0].pk}/compare/{pair[1].pk}").status_code == 429
