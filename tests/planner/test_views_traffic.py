"""Pages of traffic: bringing a trace and its refusals, presets, what a trace is, exports, and who may."""

from __future__ import annotations

import csv
import gzip
import io
import re
from typing import Any

import numpy as np
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from planner import exports, services
from planner.models import TrafficSet
from planner.traffic import PRESETS, PrefixHashes, Traffic, synthesise

pytestmark = pytest.mark.django_db
NASTY = '<script>alert(1)</script>"><img src=x onerror=alert(1)>'
LIST, NEW, SYNTHESISE = (
    reverse(f"planner:{name}") for name in ("traffic_list", "traffic_new", "traffic_synthesise")
)
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319569,3180,8
2023-11-16 18:17:04.0787570,110,27
"""
FIGURES = ("arrivals", "bursts", "lengths", "burstiness", "gaps", "dependence")


def url(name: str, row: TrafficSet, *more: str) -> str:
    return reverse(f"planner:{name}", args=[row.pk, *more])


def file_of(content: str | bytes, name: str = "trace.csv") -> SimpleUploadedFile:
    return SimpleUploadedFile(name, content.encode() if isinstance(content, str) else content)


@pytest.fixture
def make_traffic(project, owner):
    def made(traffic: Traffic | None = None, name: str = "the traffic", **arrays: Any) -> TrafficSet:
        if traffic is None:
            base: dict[str, Any] = {
                "arrival_s": np.array([0.0, 0.5, 90.0]), "prompt_tokens": np.array([10, 20, 30]),
                "output_tokens": np.array([1, 2, 3]), "source": "made.csv", "format": "columns",
            }  # fmt: skip
            traffic = Traffic(**{**base, **arrays})
        return services.create_traffic(project, owner, name, traffic)

    return made


# Bringing one --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "name", "format_name"),
    [(AZURE, "azure.csv", "Azure"), (gzip.compress(AZURE.encode(), mtime=0), "azure.csv.gz", "Azure"),
     ('{"timestamp": 0, "input_length": 5, "output_length": 3, "hash_ids": [1]}\n'
      '{"timestamp": 900, "input_length": 7, "output_length": 2, "hash_ids": [1]}\n', "m.jsonl", "Mooncake")],
)  # fmt: skip
def test_a_trace_is_read_and_shown(content, name, format_name, owner_client, owner, project) -> None:
    answer = owner_client.post(NEW, {"file": file_of(content, name)}, follow=True)
    row = TrafficSet.objects.get()
    assert answer.redirect_chain == [(url("traffic_detail", row), 302)]
    assert (row.name, row.owner, row.project) == (name, owner, project)
    assert f"{format_name} trace, from {name}" in answer.content.decode()


def test_lengths_need_a_rate_and_keep_what_was_typed(owner_client) -> None:
    lengths = "prompt_tokens,output_tokens\n812,164\n96,420\n50,20\n"
    answer = owner_client.post(NEW, {"file": file_of(lengths), "name": "mine"})
    assert answer.status_code == 422
    assert list(answer.context["form"].errors) == ["rate_per_s"]
    assert 'value="mine"' in answer.content.decode()
    answer = owner_client.post(NEW, {"file": file_of(lengths), "rate_per_s": "2", "seed": "7"})
    assert answer.status_code == 302
    assert TrafficSet.objects.get().recipe["seed"] == 7


def test_errors_of_rows_stand_beside_the_file_with_their_lines(owner_client) -> None:
    answer = owner_client.post(NEW, {"file": file_of(AZURE + "2023-11-16 18:17:05,abc,5\n"), "name": "kept"})
    page = answer.content.decode()
    assert answer.status_code == 422
    assert list(answer.context["form"].errors) == ["file"]
    assert "line 5" in page[page.index('id="id_file"') : page.index('id="id_name"')]
    assert 'aria-invalid="true"' in page
    assert 'value="kept"' in page
    assert "Nothing was stored" in page
    assert not TrafficSet.objects.exists()


def test_many_errors_are_listed_to_fifty_and_counted(owner_client) -> None:
    rows = "".join(f"2023-11-16 18:17:05,x{n},5\n" for n in range(70))
    answer = owner_client.post(NEW, {"file": file_of(AZURE + rows)})
    errors = answer.context["form"].errors["file"]
    assert len(errors) == 51
    assert errors[-1] == "… and 20 more."
    page = answer.content.decode()
    assert page.count("<li>line ") == 50
    assert 'class="errors-scroll" tabindex="0"' in page


@pytest.mark.parametrize(
    ("data", "field"),
    [({}, "file"), ({"file": b""}, "file"), ({"file": b"\x00\x01\x02"}, "file"), ({"file": b"PK\x03\x04zip"}, "file"),
     ({"file": AZURE.encode(), "max_model_len": "1"}, "max_model_len"),
     ({"file": AZURE.encode(), "rate_per_s": "nan"}, "rate_per_s"), ({"file": AZURE.encode(), "seed": "-1"}, "seed"),
     ({"file": AZURE.encode(), "name": "x" * 121}, "name"), ({"file": AZURE.encode(), "max_model_len": "2"}, "file")],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_beside_its_field(data, field, owner_client) -> None:
    sent = {key: file_of(value) if key == "file" else value for key, value in data.items()}
    answer = owner_client.post(NEW, sent)
    assert answer.status_code == 422
    assert list(answer.context["form"].errors) == [field]
    assert f'id="id_{field}_error"' in answer.content.decode()


def test_a_file_above_the_limit_is_413(owner_client, settings) -> None:
    settings.MAX_UPLOAD_BYTES = 64
    answer = owner_client.post(NEW, {"file": file_of(AZURE * 3)})
    assert answer.status_code == 413
    assert "larger than the limit" in answer.content.decode()


def test_a_file_that_unpacks_to_too_much_is_413(owner_client, settings) -> None:
    settings.MAX_UNPACKED_BYTES = 1000
    answer = owner_client.post(
        NEW, {"file": file_of(gzip.compress(AZURE.encode() * 100, mtime=0), "a.csv.gz")}
    )
    assert answer.status_code == 413


# Making one up -------------------------------------------------------------------------------------------------


def test_presets_say_what_they_resemble(owner_client) -> None:
    page = owner_client.get(SYNTHESISE).content.decode()
    for key, preset in PRESETS.items():
        assert f'value="{key}"' in page
        assert preset.resembles.replace("'", "&#x27;") in page
    assert 'value="chat" checked' in page


def test_a_preset_becomes_traffic(owner_client) -> None:
    form = {"preset": "code", "requests": "120", "rate_per_s": "3", "seed": "4"}
    answer = owner_client.post(SYNTHESISE, form, follow=True)
    row = TrafficSet.objects.get()
    expected = synthesise("code", requests=120, rate_per_s=3.0, seed=4)
    assert np.array_equal(services.traffic_of(row).prompt_tokens, expected.prompt_tokens)
    page = answer.content.decode()
    assert "Made up from a preset" in page
    assert PRESETS["code"].resembles.replace("'", "&#x27;") in page


@pytest.mark.parametrize(
    ("wrong", "field"),
    [({"preset": "nonsense"}, "preset"), ({"preset": ""}, "preset"), ({"requests": "0"}, "requests"),
     ({"requests": "9999999"}, "requests"), ({"rate_per_s": "0"}, "rate_per_s"), ({"seed": "x"}, "seed")],
)  # fmt: skip
def test_bad_synthesis_is_told_beside_its_field(wrong, field, owner_client) -> None:
    answer = owner_client.post(SYNTHESISE, {"preset": "demo", "name": "kept", **wrong})
    assert answer.status_code == 422
    assert list(answer.context["form"].errors) == [field]
    page = answer.content.decode()
    assert f'id="id_{field}_error"' in page
    assert 'value="kept"' in page
    assert not TrafficSet.objects.exists()


def test_sample_traffic_goes_on_to_the_plan(owner_client, published) -> None:
    form = {"preset": "demo", "then": "plan", "calibration": str(published.pk)}
    answer = owner_client.post(SYNTHESISE, form, follow=True)
    row = TrafficSet.objects.get()
    page = answer.content.decode()
    assert f'<option value="{row.pk}" selected' in page
    assert f'<option value="{published.pk}" selected' in page
    assert "300 requests" in page


# What it is ----------------------------------------------------------------------------------------------------


def test_the_statistics_have_units_and_definitions(make_traffic, owner_client) -> None:
    row = make_traffic(
        prefix_hashes=PrefixHashes(np.array([1, 2, 1, 3], dtype=np.uint64), np.array([0, 2, 3, 4]), 512),
        request_class=np.array([0, 1, 0], dtype=np.int16), class_names=("chat", NASTY),
    )  # fmt: skip
    page = owner_client.get(url("traffic_detail", row)).content.decode()
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    for words in ("Inter-arrival CV", "1 is Poisson", "1 min 30 s", "Prefix hits 25.0 %", "of 512 tokens",
                  "33 tokens, prompt and output", "2 requests; only these have an ITL",
                  "chat: 2 requests"):  # fmt: skip
        assert words in text
    assert "<script>alert" not in page
    assert page.count("data-figure-url") == len(FIGURES) + 2  # and those of shared prompts and of classes
    assert f"{reverse('planner:plan_new')}?traffic={row.pk}" in page


def test_warnings_come_with_counts_and_lines(owner_client) -> None:
    rows = AZURE + "2023-11-16 18:17:05.0000000,50,1\n"
    owner_client.post(NEW, {"file": file_of(rows)})
    row = TrafficSet.objects.get()
    warning = next(w for w in row.warnings if w["lines"])
    page = owner_client.get(url("traffic_detail", row)).content.decode()
    assert "What to know about this file" in page
    assert f"({warning['count']} row" in page
    assert f"Line {warning['lines'][0]}" in page


def test_one_request_has_no_rate(make_traffic, owner_client) -> None:
    one = {"arrival_s": np.zeros(1), "prompt_tokens": np.array([5]), "output_tokens": np.array([1])}
    row = make_traffic(**one)
    assert owner_client.get(url("traffic_detail", row)).status_code == 200
    assert owner_client.get(LIST).status_code == 200
    for name in FIGURES:
        figure = owner_client.get(url("traffic_figure", row, name)).json()
        assert bool(figure["empty"]) == (name in ("burstiness", "gaps"))


@pytest.mark.parametrize("name", FIGURES)
def test_figures(name, make_traffic, owner_client) -> None:
    row = make_traffic(synthesise("chat", requests=500, seed=1), name=NASTY[:120])
    answer = owner_client.get(url("traffic_figure", row, name))
    figure = answer.json()
    assert figure["data"]
    assert "<" not in figure["title"]
    again = owner_client.get(url("traffic_figure", row, name), headers={"If-None-Match": answer["ETag"]})
    assert again.status_code == 304
    assert owner_client.get(url("traffic_figure", row, "pie")).status_code == 404


def test_the_csv_has_every_request(make_traffic, owner_client, monkeypatch) -> None:
    monkeypatch.setattr(exports, "BLOCK_ROWS", 2)  # several blocks
    row = make_traffic(
        prefix_hashes=PrefixHashes(np.array([1, 2, 1, 3], dtype=np.uint64), np.array([0, 2, 3, 4]), 512),
        request_class=np.array([0, 1, 0], dtype=np.int16), class_names=("=SUM(A1)", "@chat"),
        max_tokens=np.array([5, 6, 7]),
    )  # fmt: skip
    answer = owner_client.get(url("requests_csv", row))
    assert answer["Content-Disposition"] == f'attachment; filename="traffic-{row.pk}.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.getvalue().decode())))
    assert [float(r["arrival_s"]) for r in rows] == [0.0, 0.5, 90.0]
    assert [int(r["prompt_tokens"]) for r in rows] == [10, 20, 30]
    assert [int(r["max_tokens"]) for r in rows] == [5, 6, 7]
    assert [r["hash_ids"] for r in rows] == ["1 2", "1", "3"]
    assert [r["class"] for r in rows] == ["'=SUM(A1)", "'@chat", "'=SUM(A1)"]


def test_plans_for_it_are_linked(finished_plan, owner_client) -> None:
    page = owner_client.get(url("traffic_detail", finished_plan.traffic)).content.decode()
    assert url("plan_detail", finished_plan) in page


# The list ------------------------------------------------------------------------------------------------------


def test_an_empty_list_says_what_to_do(owner_client) -> None:
    page = owner_client.get(LIST).content.decode()
    assert "No traffic yet" in page
    for action in (NEW, SYNTHESISE, "Take the demo traffic"):
        assert action in page


@pytest.mark.parametrize(
    ("query", "expected"),
    [("", {"a", "b"}), ("format=synthetic", {"b"}), ("format=columns", {"a"}), ("format=%00", {"a", "b"}),
     ("warnings=no", {"a", "b"}), ("warnings=yes", set()), ("warnings=maybe", {"a", "b"})],
)  # fmt: skip
def test_filters_stand_in_the_address(query, expected, make_traffic, owner_client) -> None:
    make_traffic(name="a")
    make_traffic(synthesise("demo", requests=20, seed=1), name="b")
    answer = owner_client.get(f"{LIST}?{query}")
    assert {row.name for row in answer.context["page"]} == expected
    assert expected or "No traffic matches" in answer.content.decode()


def test_the_list_loads_no_arrays(make_traffic, owner_client, django_assert_max_num_queries) -> None:
    for number in range(27):
        make_traffic(name=NASTY[:100] + str(number))
    with django_assert_max_num_queries(12):
        answer = owner_client.get(LIST)
    assert len(answer.context["page"]) == 25
    assert "<script>alert" not in answer.content.decode()


# Who may -------------------------------------------------------------------------------------------------------


def test_a_viewer_sees_and_may_not_add(viewer_client, traffic) -> None:
    page = viewer_client.get(url("traffic_detail", traffic)).content.decode()
    assert "Plan with this" not in page
    assert viewer_client.get(url("requests_csv", traffic)).status_code == 200
    assert viewer_client.post(NEW, {"file": file_of(AZURE)}).status_code == 403
    assert viewer_client.post(SYNTHESISE, {"preset": "demo"}).status_code == 403
    assert TrafficSet.objects.count() == 1


def test_outsiders_find_nothing(outsider_client, traffic) -> None:
    for name, more in (("traffic_detail", ()), ("traffic_figure", ("arrivals",)), ("requests_csv", ())):
        assert outsider_client.get(url(name, traffic, *more)).status_code == 404
    assert "No traffic yet" in outsider_client.get(LIST).content.decode()


def test_uploads_are_limited(owner_client, settings) -> None:
    settings.RATE_LIMITS_ENABLED = True
    statuses = [
        owner_client.post(SYNTHESISE, {"preset": "demo", "requests": "2"}).status_code for _ in range(31)
    ]
    assert statuses == [302] * 30 + [429]
