"""A model fitted to a stored traffic: page, figures, API, command, and on to making traffic of it."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse

from planner import services
from planner.models import TrafficJob, TrafficSet
from planner.traffic import synthesise
from planner.traffic.generating import SyntheticModel, generate
from planner.traffic.generating.arrivals import Poisson
from tests.planner.test_charts import check
from tests.planner.test_generate import typed
from tests.planner.traffic.test_fitting_sessions import CHAT, SHORT

pytestmark = pytest.mark.django_db


@pytest.fixture
def code(project, owner) -> TrafficSet:
    return services.create_traffic(project, owner, "code", synthesise("code", requests=1_500, seed=3))


def url(row: TrafficSet, name: str = "traffic_fit", *more: str) -> str:
    return reverse(f"planner:{name}", args=[row.pk, *more])


def test_the_page_says_what_holds_and_how_well(code, owner_client) -> None:
    page = owner_client.get(url(code)).content.decode()
    for words in ("Gamma gaps", "chosen", "Held out", "the halves themselves are", "95 % interval",
                  "Fitted to all 1,500", "Make traffic from it"):  # fmt: skip
        assert words in page
    assert page.count("data-figure-url") == 5
    page = owner_client.get(url(code), {"arrivals": "replayed", "lengths": "empirical"}).content.decode()
    assert "arrivals=replayed&amp;lengths=empirical" in page


@pytest.mark.parametrize("name", ["prompts", "outputs", "gaps", "burstiness", "arrivals"])
def test_figures(name, code, owner_client) -> None:
    path = f"{url(code, 'fit_figure', name)}?arrivals=gamma&lengths=mixture"
    answer = owner_client.get(path)
    check(answer.json())
    assert owner_client.get(path, headers={"If-None-Match": answer["ETag"]}).status_code == 304
    other = owner_client.get(url(code, "fit_figure", name))
    assert other["ETag"] != answer["ETag"]
    assert owner_client.get(f"{url(code, 'fit_figure', name)}?arrivals=diurnal").status_code == 422
    assert owner_client.get(url(code, "fit_figure", "pie")).status_code == 404


def test_from_the_fit_to_the_traffic(code, owner_client) -> None:
    page = owner_client.get(
        reverse("planner:traffic_model"), {"fit": str(code.pk), "arrivals": "replayed"}
    ).content.decode()
    assert f'<option value="{code.pk}" selected' in page
    answer = owner_client.post(
        reverse("planner:traffic_model"), {**typed(page), "requests": "300", "name": "like it"}
    )
    assert answer.status_code == 302
    row = TrafficSet.objects.get(name="like it")
    assert row.recipe["parents"][0]["id"] == str(code.pk)
    answer = owner_client.get(reverse("planner:traffic_model"), {"fit": str(code.pk), "arrivals": "diurnal"})
    assert (
        answer["Location"] == f"{url(code)}?arrivals=diurnal&lengths=&sessions="
    )  # which says what is wrong
    unknown = {"fit": "00000000-0000-0000-0000-000000000000"}
    assert owner_client.get(reverse("planner:traffic_model"), unknown).status_code == 404


def test_too_few_requests_are_refused_everywhere(traffic, owner_client) -> None:
    answer = owner_client.get(url(traffic))
    assert answer.status_code == 422
    assert "50 requests say too little; 200 are needed." in answer.content.decode()
    assert owner_client.get(f"/api/v1/traffic/{traffic.pk}/fit").json()["errors"][0]["field"] == "traffic"
    with pytest.raises(CommandError) as caught:
        call_command("fit", str(traffic.pk), user="owner", stdout=io.StringIO())
    assert caught.value.returncode == 2


def test_kinds_that_do_not_fit_are_told_beside_their_field(code, owner_client) -> None:
    for sent, field in (({"arrivals": "diurnal"}, "arrivals"), ({"lengths": "x"}, "lengths")):
        answer = owner_client.get(url(code), sent)
        page = answer.content.decode()
        assert answer.status_code == 422
        assert "errorlist" in page[page.index(f'id="id_{field}"') :][:1500]


def test_the_api_and_the_command_say_the_same_and_generate_takes_it(code, owner, owner_client) -> None:
    found = owner_client.get(f"/api/v1/traffic/{code.pk}/fit").json()
    out = io.StringIO()
    call_command("fit", str(code.pk), user="owner", json=True, stdout=out)
    assert json.loads(out.getvalue().splitlines()[-1]) == {"traffic": str(code.pk), **found}
    assert found["chosen"]["arrivals"] == "gamma"
    assert "KS" in out.getvalue()
    call_command("generate", json.dumps(found["model"]), requests=50, user="owner", stdout=io.StringIO())
    assert owner_client.get(f"/api/v1/traffic/{code.pk}/fit?arrivals=nonsense").status_code == 422


def test_sessions_are_shown_and_handed_on_everywhere(project, owner, owner_client) -> None:
    model = SyntheticModel(Poisson(rate_per_s=5), SHORT, CHAT)
    row = services.create_traffic(project, owner, "talks", generate(model, requests=2_000, seed=1))
    page = owner_client.get(url(row)).content.decode()
    for words in (
        "Sessions",
        "Sessions with growing prompts",
        "Whole blocks found again, share",
        "sessions=growing",
    ):
        assert words in page
    check(owner_client.get(f"{url(row, 'fit_figure', 'prompts')}?sessions=growing").json())
    assert owner_client.get(f"{url(row, 'fit_figure', 'prompts')}?sessions=nonsense").status_code == 422
    assert (
        owner_client.get(f"{url(row, 'fit_figure', 'gaps')}?arrivals=&lengths=&sessions=").status_code == 200
    )
    wrong = owner_client.get(f"/api/v1/traffic/{row.pk}/fit?sessions=growing&lengths=empirical")
    assert [one["field"] for one in wrong.json()["errors"]] == ["lengths"]
    found = owner_client.get(f"/api/v1/traffic/{row.pk}/fit").json()
    assert found["chosen"]["sessions"] == "growing"
    assert [one["kind"] for one in found["sessions"]] == ["none", "growing"]
    assert "sessions" not in owner_client.get(f"/api/v1/traffic/{row.pk}/fit?sessions=none").json()["model"]
    lines = told(str(row.pk), "--sessions", "growing")
    assert "sessions; * is what the model has, as asked:" in lines
    assert any(line.startswith("  sessions: ") for line in lines)
    page = owner_client.get(reverse("planner:traffic_model"), {"fit": str(row.pk)}).content.decode()
    answer = owner_client.post(
        reverse("planner:traffic_model"), {**typed(page), "requests": "300", "name": "more talks"}
    )
    assert answer.status_code == 302
    assert "sessions" in TrafficSet.objects.get(name="more talks").recipe["model"]


def test_a_fit_that_is_asked_for_twice_is_one_job_and_its_address_holds_only_kinds(
    code, owner_client, settings, django_capture_on_commit_callbacks
) -> None:
    settings.IMMEDIATE_FIT_REQUESTS = 100
    asked = {"arrivals": "poisson", "lengths": "", "sessions": "", "csrfmiddlewaretoken": "secret"}
    first, again = (owner_client.post(url(code), asked)["Location"] for _ in range(2))
    assert first == again
    assert TrafficJob.objects.count() == 1
    settings.IMMEDIATE_FIT_REQUESTS = 10_000
    assert (
        owner_client.post(url(code), asked)["Location"] == f"{url(code)}?arrivals=poisson&lengths=&sessions="
    )


def told(*argv: str) -> list[str]:
    out = io.StringIO()
    call_command("fit", *argv, "--user", "owner", stdout=out)
    return out.getvalue().splitlines()


def test_the_command_says_the_model_and_what_its_marks_mean(code, project) -> None:
    lines = told(str(code.pk))
    assert lines[0] == f"traffic {code.name}: 1,500 requests ({code.pk})"
    legends = [line for line in lines if "*" in line and line.endswith(":")]
    assert [line.split(";")[0] for line in legends] == ["arrivals", "lengths"]
    assert all("the simplest kind whose score is at most 1.1 times the best" in line for line in legends)
    assert len([line for line in lines if line.startswith("* ")]) == 2
    model = next(line for line in lines if line.startswith("  arrivals, Gamma gaps: Mean rate "))
    assert "requests/s; CV of the gaps " in model
    assert any(line.startswith("  lengths, ") and "Prompt, " in line and " tokens" in line for line in lines)
    asked = told(str(code.pk), "--arrivals", "poisson")
    assert "arrivals; * is what the model has, as asked:" in asked
    assert any(line.startswith("* Poisson ") for line in asked)


def test_the_command_says_what_it_stores(project, owner) -> None:
    [first, *_] = told("code", "--arrivals", "poisson", "--lengths", "lognormal")
    row = TrafficSet.objects.get()
    assert first == f"stored as traffic {row.name}: {row.statistics['requests']:,} requests ({row.pk})"
