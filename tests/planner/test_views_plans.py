"""Pages of plans: every state of one, the form and its refusals, who may what, and what a name cannot do."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from calibration.models import Calibration
from planner import work
from planner.models import Plan
from planner.unjudged import UNJUDGED

pytestmark = pytest.mark.django_db
NASTY = '<script>alert(1)</script>"><img src=x onerror=alert(1)>'
NEW = reverse("planner:plan_new")
LIST = reverse("planner:plan_list")

STATES: dict[str, dict[str, Any]] = {
    "queued": {"status": "queued"},
    "running": {"status": "running", "done": 17, "total": 68, "eta_s": 80, "log": "12:00 at it",
                "message": "Trying 2 replicas: 3 combinations meet the objectives so far"},
    "failed": {"status": "failed", "error": "It broke.", "traceback": "Traceback: secret"},
    "cancelled": {"status": "cancelled", "message": "Cancelled."},
    "interrupted": {"status": "interrupted", "error": "The worker stopped answering."},
}  # fmt: skip


def url(name: str, row: Plan, *more: str) -> str:
    return reverse(f"planner:{name}", args=[row.pk, *more])


def page_of(client: Client, row: Plan, query: str = "") -> str:
    answer = client.get(url("plan_detail", row) + query)
    assert answer.status_code == 200
    return answer.content.decode()


def text_of(page: str) -> str:
    """Without markup; every space, the unbreakable ones included, is one blank."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page)).replace("&lt;", "<").replace("&#x27;", "'")


# A plan's page: before there is an answer ----------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_the_page_of_each_state(state, make_plan, owner_client) -> None:
    row = make_plan(started_at=timezone.now(), **STATES[state])
    page = page_of(owner_client, row)
    active = state in ("queued", "running")
    assert f">{state}</span>" in page
    assert ("every 1s" in page) == active
    assert (url("plan_cancel", row) in page) == active
    assert (url("plan_rerun", row) in page) == (not active)
    assert "data-figure-url" not in page
    assert url("result_json", row) not in page
    assert "TTFT p95 ≤ 1,000\u00a0ms" in page
    for words in (STATES[state].get("error"), STATES[state].get("log")):
        assert not words or words in page
    assert "secret" not in page
    polled = owner_client.get(url("plan_status", row))
    assert polled.status_code == (200 if active else 286)
    assert ("hx-get" in polled.content.decode()) == active
    for name in ("candidates_csv", "result_json"):
        assert owner_client.get(url(name, row)).status_code == 404
    assert owner_client.get(url("plan_figure", row, "trade")).status_code == 404


def test_a_running_plan_tells_how_far_it_is(make_plan, owner_client) -> None:
    page = owner_client.get(url("plan_status", make_plan(**STATES["running"]))).content.decode()
    assert "<strong>17</strong> of 68" in page
    assert 'value="25" max="100"' in page
    assert "Trying 2 replicas: 3 combinations" in page


def test_a_queued_plan_does_not_wait_for_a_device(make_plan, owner_client) -> None:
    page = page_of(owner_client, make_plan(status="queued"))
    assert "Waiting for a worker." in page
    assert "One job runs on a device" not in page


def test_a_calibration_that_was_refused_meanwhile_is_told(make_plan, published, owner_client) -> None:
    from calibration import jobs

    row = make_plan(status="queued")
    Calibration.objects.filter(pk=published.pk).update(published=False, reason="median 7.9 %")
    assert jobs.run(Plan, str(row.pk), work.plan) == "failed"
    row.refresh_from_db()
    page = page_of(owner_client, row)
    assert "is not published: median 7.9 %" in page
    assert ">failed</span>" in page


# A plan's page: the answer -------------------------------------------------------------------------------------


def test_an_answer_begins_with_one_sentence(make_plan, answers, owner_client) -> None:
    row = make_plan(answers["feasible"])
    page = page_of(owner_client, row)
    body = page[page.index("<main") :]
    sentence = row.sentence.replace("<=", "≤")
    assert body.index(sentence) < body.index("<table")
    assert "meets the objectives" in page
    assert page.count("data-figure-url") == 6
    choice = answers["feasible"]["verdict"]["choice"]
    told = [f"holds, P {o['probability']:.2f}" for o in choice["objectives"]]
    assert re.findall(r'<span class="badge done" title="[^"]*">(holds, P [0-9.]+)</span>', page) == told
    for o in choice["objectives"]:
        assert f"{o['samples']:,}" in page
    assert f"{choice['holding']} of {choice['refits']}" in page


def test_the_flags_are_those_of_the_result(make_plan, answers, owner_client) -> None:
    page = owner_client.get(url("plan_detail", make_plan(answers["feasible"])))
    command = page.context["pools"][0].command
    assert shlex.split(command.replace("\\\n", " "))[:3] == ["vllm", "serve", "$MODEL"]
    assert shlex.split(command.replace("\\\n", " "))[3:] == answers["feasible"]["verdict"]["choice"]["flags"]
    assert 'data-copy="flags" hidden' in page.content.decode()


def test_the_same_question_as_curl_is_the_same_question(
    make_plan, answers, owner_client, bearer, no_broker
) -> None:
    row = make_plan(answers["feasible"], name="It's mine; $(rm -rf) & `more`", seed=5)
    words = shlex.split(owner_client.get(url("plan_detail", row)).context["curl"].replace("\\\n", " "))
    assert words[:3] == ["curl", "-sS", "http://testserver/api/v1/plans"]
    assert "Authorization: Bearer $RIDGELINE_TOKEN" in words
    body = words[words.index("-d") + 1]
    answer = Client(headers=bearer(row.owner)).post("/api/v1/plans", body, content_type="application/json")
    assert answer.status_code == 202, answer.content
    again = Plan.objects.exclude(pk=row.pk).get()
    for field in ("name", "calibration_id", "traffic_id", "objectives", "space", "seed"):
        assert getattr(again, field) == getattr(row, field)


def test_what_is_impossible_is_told_with_its_reason(make_plan, answers, owner_client) -> None:
    page = text_of(page_of(owner_client, make_plan(answers["impossible"])))
    assert "no configuration meets this" in page
    assert "Binding: TTFT p95 ≤ 1.00 ms" in page
    assert "No number of replicas would do" in page
    assert "has a replica to itself" not in page, "the sentence says it already"
    assert "exceeded" in page
    assert "The closest configuration" in page
    assert "vllm serve" not in page


def test_too_few_replicas_are_told_with_the_closest(make_plan, answers, owner_client) -> None:
    assert answers["short"]["verdict"]["impossible"] is False
    page = text_of(page_of(owner_client, make_plan(answers["short"])))
    assert "replicas would do" in page
    assert "The closest configuration" in page
    assert "beyond its limit" in page


def test_what_is_saturated_has_no_latency(make_plan, answers, owner_client) -> None:
    row = make_plan(answers["saturated"])
    assert answers["saturated"]["verdict"]["closest"]["status"] == "saturated"
    page = page_of(owner_client, row)
    assert "no latency" in page
    assert "data-figure-url" not in page
    assert "is not claimed" not in page  # samples enough: the load is what is wrong


def test_what_cannot_be_judged_is_not_called_unmet(make_plan, answers, owner_client) -> None:
    row = make_plan(
        answers["short"], name="unjudged", sentence=f"{UNJUDGED}: with 1 replica it cannot be judged."
    )
    page = text_of(page_of(owner_client, row))
    assert "cannot be judged" in page
    assert "no configuration meets this" not in page
    assert "not judged" in text_of(owner_client.get(LIST).content.decode())


def test_a_cancelled_search_shows_what_it_had(make_plan, answers, owner_client) -> None:
    page = page_of(owner_client, make_plan(answers["stopped"], status="cancelled"))
    assert "stopped before an answer" in page
    assert "The search was stopped" in page
    assert ">cancelled</span>" in page


def test_every_number_has_its_source(make_plan, answers, published, traffic, owner_client) -> None:
    row = make_plan(answers["feasible"])
    page = page_of(owner_client, row)
    assert reverse("calibration:detail", args=[published.pk]) in page
    assert reverse("planner:traffic_detail", args=[traffic.pk]) in page
    assert f"{published.created_at:%Y-%m-%d}" in page
    assert answers["feasible"]["content_hash"] in page
    heldout = published.result["heldout"]
    assert f"median {heldout['median'] * 100:.1f}\u00a0%, p90 {heldout['p90'] * 100:.1f}\u00a0%" in page


def test_the_page_loads_no_model_of_a_calibration(make_plan, answers, owner_client) -> None:
    answer = owner_client.get(url("plan_detail", make_plan(answers["feasible"])))
    assert "result" in answer.context["plan"].calibration.get_deferred_fields()


def test_nothing_runs_inline(make_plan, answers, owner_client) -> None:
    answer = owner_client.get(url("plan_detail", make_plan(answers["feasible"])))
    page = answer.content.decode()
    assert "script-src 'self';" in answer.headers["Content-Security-Policy"]
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)
    assert not re.search(r"\son\w+=|\sstyle=|javascript:", page)


# Candidates ----------------------------------------------------------------------------------------------------


def table_of(client: Client, row: Plan, query: str = "") -> Any:
    return client.get(url("plan_detail", row) + query).context["table"]


def rows_of(client: Client, row: Plan, query: str) -> list[Any]:
    return list(table_of(client, row, query).page)


def test_candidates_are_sorted_by_links(make_plan, answers, owner_client) -> None:
    row = make_plan(answers["feasible"])
    first = rows_of(owner_client, row, "")[0]
    choice = answers["feasible"]["verdict"]["choice"]
    assert first.shown
    assert first.budget == choice["knobs"]["max_num_batched_tokens"]
    for key, of in (
        ("budget", lambda r: r.budget),
        ("margin", lambda r: r.margin),
        ("o0", lambda r: r.cells[0].seconds),
    ):
        rising = [of(r) for r in rows_of(owner_client, row, f"?sort={key}")]
        known = [value for value in rising if value is not None]
        assert known == sorted(known)
        assert rising[: len(known)] == known, "what is unknown comes last"
        falling = [of(r) for r in rows_of(owner_client, row, f"?sort=-{key}")]
        assert falling[: len(known)] == sorted(known, reverse=True)
    page = page_of(owner_client, row, "?sort=-margin&status=meets")
    assert (
        '<th scope="col" class="n" aria-sort="descending"><a href="?sort=margin&amp;status=meets#candidates"'
        in page
    )


def test_candidates_say_their_hardware_in_a_column_of_its_own(
    pools_on_two, finished_plan, owner_client
) -> None:
    """And nothing that is not a cap stands under the cap."""
    plan, second = pools_on_two
    page = page_of(owner_client, plan)
    table = page[page.index('<table class="sortable">') :]
    heads = [text_of(cell).strip() for cell in re.findall(r"<th .*?</th>", table[: table.index("</thead>")])]
    cap, where = heads.index("Chunk cap [tokens]"), heads.index("Hardware")
    body = table[table.index("<tbody>") : table.index("</tbody>")]
    rows = [
        [text_of(cell).strip() for cell in re.findall(r"<td.*?</td>", row)] for row in body.split("<tr")[1:]
    ]
    assert {row[cap] for row in rows} == {"none"}
    assert {len(row) for row in rows} == {len(heads)}
    one, other = work.device_names(plan.calibration, second)
    assert rows[0][where] == f"{one} for prefill, {other} for decode"
    assert {one, other} <= {row[where] for row in rows}
    assert "pull" in rows[0][heads.index("Replicas")]
    rising = [row.hardware for row in rows_of(owner_client, plan, "?sort=hardware")]
    assert rising == sorted(rising)
    assert "Hardware" not in [column.label for column in table_of(owner_client, finished_plan).columns]


def test_candidates_are_filtered_by_outcome(make_plan, answers, owner_client) -> None:
    row = make_plan(answers["feasible"])
    all_rows = rows_of(owner_client, row, "?status=nonsense&sort=nonsense&page=nonsense")
    statuses = {r.status for r in all_rows}
    assert len(all_rows) == len(answers["feasible"]["candidates"])
    assert len(statuses) > 1
    for status in statuses:
        assert {r.status for r in rows_of(owner_client, row, f"?status={status}")} == {status}


def test_a_cell_above_its_limit_is_marked(make_plan, answers, owner_client) -> None:
    page = page_of(owner_client, make_plan(answers["impossible"]))
    assert 'class="exceeds" title="above its limit">✕' in page


# Figures and downloads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["trade", "budget", "replicas", "ttft"])
def test_figures(name, make_plan, answers, owner_client) -> None:
    row = make_plan(answers["feasible"], name=NASTY[:120])
    answer = owner_client.get(url("plan_figure", row, name))
    figure = answer.json()
    assert figure["data"]
    assert "<" not in figure["title"]
    again = owner_client.get(url("plan_figure", row, name), headers={"If-None-Match": answer["ETag"]})
    assert again.status_code == 304


def test_there_is_no_figure_of_another_name(make_plan, answers, owner_client) -> None:
    assert owner_client.get(url("plan_figure", make_plan(answers["feasible"]), "pie")).status_code == 404


def test_the_csv_has_every_candidate(make_plan, answers, owner_client) -> None:
    answer = owner_client.get(url("candidates_csv", make_plan(answers["feasible"])))
    assert answer["Content-Disposition"].startswith("attachment; filename=")
    rows = list(csv.DictReader(io.StringIO(answer.getvalue().decode())))
    candidates = answers["feasible"]["candidates"]
    assert len(rows) == len(candidates)
    for row, candidate in zip(rows, candidates, strict=True):
        assert int(row["max_num_batched_tokens"]) == candidate["knobs"]["max_num_batched_tokens"]
        assert row["status"] == candidate["status"]
        predicted = candidate["objectives"][0]["predicted"] if candidate["objectives"] else None
        assert row["ttft_p95_s"] == ("" if predicted is None else repr(predicted))


def test_the_json_is_the_result(make_plan, answers, owner_client) -> None:
    answer = owner_client.get(url("result_json", make_plan(answers["feasible"])))
    assert answer["Content-Disposition"].startswith("attachment; filename=")
    assert json.loads(answer.content) == answers["feasible"]


# The list ------------------------------------------------------------------------------------------------------


def test_an_empty_list_says_what_is_missing(owner_client) -> None:
    page = owner_client.get(LIST).content.decode()
    assert reverse("calibration:new") in page
    assert reverse("planner:traffic_new") in page
    assert "Take the demo traffic" in page


def test_an_empty_list_with_everything_there_says_the_next_step(published, traffic, owner_client) -> None:
    page = owner_client.get(LIST).content.decode()
    assert "No plan yet" in page
    assert NEW in page


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {*STATES, "yes", "no", "unjudged"}),
        ("status=active", {"queued", "running"}),
        ("status=meets", {"yes"}),
        ("status=nothing", {"no"}),
        ("status=unjudged", {"unjudged"}),
        ("status=interrupted", {"interrupted"}),
        ("status=%00&calibration=%00&traffic=nothing", {*STATES, "yes", "no", "unjudged"}),
        ("traffic=demo&status=failed", {"failed"}),
    ],
)
def test_filters_stand_in_the_address(query, expected, make_plan, answers, owner_client) -> None:
    for state, values in STATES.items():
        make_plan(name=state, **values)
    make_plan(answers["feasible"], name="yes")
    make_plan(answers["impossible"], name="no")
    make_plan(answers["impossible"], name="unjudged", sentence=f"{UNJUDGED}: nobody knows.")
    answer = owner_client.get(f"{LIST}?{query}")
    assert {row.name for row in answer.context["page"]} == expected
    assert 'class="chip" href="?' in answer.content.decode()


def test_the_list_shows_verdicts_and_loads_no_results(
    make_plan, answers, owner_client, django_assert_max_num_queries
) -> None:
    row = make_plan(answers["feasible"])
    with django_assert_max_num_queries(14):
        answer = owner_client.get(LIST)
    listed = answer.context["page"][0]
    assert "result" in listed.get_deferred_fields()
    assert listed.replicas == answers["feasible"]["summary"]["replicas"]
    assert row.sentence.replace("<=", "≤") in answer.content.decode()


def test_names_are_text_everywhere(make_plan, answers, owner_client, published, traffic) -> None:
    for thing in (published, traffic):
        type(thing).objects.filter(pk=thing.pk).update(name=NASTY[:120])
    answer = json.loads(json.dumps(answers["impossible"]).replace("demo-30m", NASTY[:30].replace('"', "'")))
    rows = [make_plan(answer, name=NASTY[:120]),
            make_plan(name=NASTY[:120], status="running", log=NASTY, message=NASTY[:100], error=NASTY)]  # fmt: skip
    addresses = [LIST, NEW, reverse("home"), reverse("planner:traffic_detail", args=[traffic.pk])]
    for address in [*addresses, *(url(name, row) for row in rows for name in ("plan_detail", "plan_status"))]:
        page = owner_client.get(address).content.decode()
        assert "<script>alert" not in page
        assert "<img src=x" not in page
