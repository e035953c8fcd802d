"""Traffic from a model: page with live preview, API and command through one form; and who may."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse

from planner import services
from planner.models import TrafficSet
from planner.traffic import PRESETS, synthesise
from planner.traffic.generating import ARRIVALS, LENGTHS

pytestmark = pytest.mark.django_db
PAGE, PREVIEW = reverse("planner:traffic_model"), reverse("planner:traffic_model_preview")
MODEL = PRESETS["conversation"].model().to_dict()


def typed(page: str) -> dict[str, str]:
    """What the inputs of the page hold, as a browser would send it."""
    found = {
        m["name"]: m["value"]
        for m in re.finditer(r'<input type="text"[^>]*name="(?P<name>[^"]+)" value="(?P<value>[^"]*)"', page)
    }
    for select in re.finditer(r'<select id="[^"]+" name="([^"]+)".*?</select>', page, re.S):
        chosen = re.search(r'<option value="([^"]*)" selected', select[0])
        found[select[1]] = chosen[1] if chosen else ""
    if re.search(r'name="sessions-kind" value="yes" checked', page):
        found["sessions-kind"] = "yes"
    return found


def test_a_preset_is_the_beginning_and_page_api_and_command_make_the_same(
    project, owner, owner_client, bearer
) -> None:
    page = owner_client.get(PAGE, {"preset": "conversation"}).content.decode()
    assert "Prefix hits" in page
    sent = {**typed(page), "requests": "200", "seed": "3", "name": "by page"}
    assert owner_client.post(PAGE, sent).status_code == 302
    owner_client.defaults |= {"HTTP_AUTHORIZATION": bearer(owner)["Authorization"]}
    body = {"model": MODEL, "requests": 200, "seed": 3, "name": "by API"}
    answer = owner_client.post("/api/v1/traffic/generate", body, content_type="application/json")
    assert answer.status_code == 201, answer.content
    out = io.StringIO()
    call_command("generate", json.dumps(MODEL), requests=200, seed=3, user="owner", json=True, stdout=out)
    printed = json.loads(out.getvalue().splitlines()[-1])
    rows = TrafficSet.objects.all()
    assert len(rows) == 3
    assert len({row.recipe["arrays_sha256"] for row in rows}) == 1
    assert printed["recipe"]["model"] == MODEL
    assert printed["name"] == "Poisson × Lognormal × sessions (synthetic)"
    page = owner_client.get(reverse("planner:traffic_detail", args=[rows[0].pk])).content.decode()
    assert "Made up from a model" in page


@pytest.mark.parametrize(
    ("part", "kind"), [*(("arrivals", k) for k in ARRIVALS), *(("lengths", k) for k in LENGTHS)]
)
def test_every_kind_shows_its_own_fields(part, kind, traffic, owner_client) -> None:
    sent = {**typed(owner_client.get(PAGE).content.decode()), f"{part}-kind": kind, "requests": "50"}
    for place in (PREVIEW, PAGE):
        page = owner_client.post(place, {**sent, "do": "kind"}).content.decode()
        kinds = {**ARRIVALS, **LENGTHS}
        assert kinds[kind].ABOUT.replace("'", "&#x27;") in page
        assert re.search(rf'<option value="{kind}" selected', page)
        assert "This field is required" not in page
    for field in kinds[kind].__slots__:
        assert f'name="{part}-{field}"' in page


def test_the_preview_shows_what_comes_out_and_what_is_wrong(project, owner_client) -> None:
    sent = {**typed(owner_client.get(PAGE).content.decode()), "requests": "100"}
    page = owner_client.post(PREVIEW, sent).content.decode()
    assert "p50" in page
    page = owner_client.post(PREVIEW, {**sent, "arrivals-rate_per_s": "-1"}).content.decode()
    assert "Not complete" in page
    assert "at least 1e-06" in page[page.index('id="id_arrivals-rate_per_s_error"') :][:200]
    assert not TrafficSet.objects.exists()


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"arrivals-rate_per_s": ""}, "arrivals-rate_per_s", "required"),
        ({"arrivals-rate_per_s": "nan"}, "arrivals-rate_per_s", "must be a number"),
        ({"lengths-prompt_sigma": "6"}, "lengths-prompt_sigma", "at most 5"),
        ({"sessions-kind": "yes", "sessions-mean_turns": "0"}, "sessions-mean_turns", "at least 1"),
        ({"arrivals-kind": "replayed", "arrivals-traffic": "x"}, "arrivals-traffic", "no such traffic"),
        ({"requests": ""}, "requests", "Either so many"), ({"requests": "0"}, "requests", "greater than or equal to 1"),
        ({"duration_s": "10"}, "requests", "either a number"), ({"seed": "x"}, "seed", "whole number"),
    ],
)  # fmt: skip
def test_what_is_wrong_stands_beside_its_field(change, field, words, project, owner_client) -> None:
    sent = {**typed(owner_client.get(PAGE).content.decode()), "requests": "100", "name": "kept", **change}
    answer = owner_client.post(PAGE, sent)
    page = answer.content.decode()
    assert answer.status_code == 422
    assert words in page[page.index(f'id="id_{field}"') :][:1200]
    assert 'value="kept"' in page
    assert not TrafficSet.objects.exists()


def test_lengths_and_counts_of_stored_traffic(
    traffic, owner, owner_client, outsider, outsider_client
) -> None:
    model = {
        "arrivals": {"kind": "replayed", "traffic": str(traffic.pk)},
        "lengths": {"kind": "empirical", "traffic": str(traffic.pk)},
    }
    call_command("generate", json.dumps(model), requests=40, user="owner", stdout=io.StringIO())
    row = TrafficSet.objects.first()
    assert [parent["id"] for parent in row.recipe["parents"]] == [str(traffic.pk)]
    lengths = set(services.traffic_of(traffic).prompt_tokens.tolist())
    assert set(services.traffic_of(row).prompt_tokens.tolist()) <= lengths
    answer = outsider_client.post(PAGE, {"arrivals-kind": "replayed", "arrivals-traffic": str(traffic.pk),
                                         "lengths-kind": "empirical", "lengths-traffic": str(traffic.pk),
                                         "requests": "9"})  # fmt: skip
    assert answer.status_code == 422
    assert "no such traffic" in answer.content.decode()


def test_the_api_names_the_path_and_documents_the_model(project, owner, client, bearer) -> None:
    client.defaults |= {"HTTP_AUTHORIZATION": bearer(owner)["Authorization"]}

    def fields(model: Any, **size: Any) -> list[str]:
        answer = client.post(
            "/api/v1/traffic/generate", {"model": model, **size}, content_type="application/json"
        )
        assert answer.status_code == 422
        return [error["field"] for error in answer.json()["errors"]]

    assert fields({**MODEL, "arrivals": {"kind": "gamma"}}, requests=5) == [
        "model.arrivals.rate_per_s",
        "model.arrivals.cv",
    ]
    assert fields({"sessions": {}}, requests=5) == ["model.arrivals.kind", "model.lengths.kind"]
    assert fields(MODEL) == ["requests"]
    schema = client.get("/api/openapi.json").json()["components"]["schemas"]["GenerateIn"]["properties"][
        "model"
    ]
    assert {kind["title"] for kind in schema["properties"]["arrivals"]["oneOf"]} == set(ARRIVALS)


def test_presets_with_sessions_become_traffic(owner_client) -> None:
    answer = owner_client.post(
        reverse("planner:traffic_synthesise"), {"preset": "agents", "requests": "150", "seed": "2"}
    )
    assert answer.status_code == 302
    row = TrafficSet.objects.get()
    made = synthesise("agents", requests=150, seed=2)
    assert row.recipe["arrays_sha256"] == made.recipe["arrays_sha256"]
    page = owner_client.get(answer.url).content.decode()
    assert "Made up from a preset" in page
    assert PRESETS["agents"].resembles.replace("'", "&#x27;") in page


@pytest.mark.parametrize(
    ("model", "words"), [("{}", r"model\.arrivals\.kind"), ("/nowhere", "No such file"), ("{]", "model")]
)
def test_the_command_refuses_with_exit_2(model, words, project, owner) -> None:
    with pytest.raises(CommandError, match=words) as caught:
        call_command("generate", model, requests=5, user="owner", stdout=io.StringIO())
    assert caught.value.returncode == 2
