"""Files through the API: mapping as JSON, a look that stores nothing, refusals, large files as jobs."""

from __future__ import annotations

import json

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from planner import tasks
from planner.models import HeldUpload, TrafficImport, TrafficSet

pytestmark = pytest.mark.django_db
URL = "/api/v1/traffic"
STRANGE = b"when;sent;got\n0,5;10;20\n1,5;1.100;21\n"
MAPPING = {"time": "when", "prompt": "sent", "output": "got", "thousands": "."}


@pytest.fixture(autouse=True)
def data_folder(settings, tmp_path):
    settings.DATA_DIR = tmp_path


@pytest.fixture
def send(owner_client):
    def sent(content: bytes, path: str = URL, **fields):
        return owner_client.post(path, {"file": SimpleUploadedFile("mine.csv", content), **fields})

    return sent


@pytest.fixture(autouse=True)
def no_csrf(monkeypatch) -> None:
    monkeypatch.setattr("config.api.check_csrf", lambda request: None)


@pytest.mark.parametrize(
    "mapping",
    [json.dumps(MAPPING), json.dumps({"columns": MAPPING}), "time=when,prompt=sent,output=got,thousands=."],
)
def test_the_mapping_says_which_column_is_what(mapping: str, send) -> None:
    assert send(STRANGE).status_code == 422
    answer = send(STRANGE, mapping=mapping)
    assert answer.status_code == 201, answer.content
    figures = answer.json()["statistics"]
    assert (figures["requests"], figures["duration_s"], figures["prompt_tokens"]["max"]) == (2, 1.0, 1100)
    kinds = {warning["code"]: warning["kind"] for warning in answer.json()["warnings"]}
    assert kinds["mapped"] == "noted"


@pytest.mark.parametrize(
    ("mapping", "words"),
    [('{"prompt": ', "not valid JSON"), ("[1]", "role=column"), ("{}x", "not valid JSON"),
     ('{"colour": "when"}', "nothing called"),
     ('{"prompt": "nope", "output": "got"}', "no column"), ('{"prompt": ["sent"]}', "neither text"),
     ("prompt", "role=column"), ('{"prompt": "sent", "output": "sent"}', "mapped twice")],
)  # fmt: skip
def test_a_mapping_that_makes_no_sense_is_refused_beside_its_field(mapping: str, words: str, send) -> None:
    answer = send(STRANGE, mapping=mapping)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["field"] == "mapping"
    assert words in error["message"]


def test_an_option_in_the_mapping_is_checked_as_the_field_is(send) -> None:
    answer = send(STRANGE, mapping=json.dumps({**MAPPING, "time_unit": "weeks"}))
    assert [error["field"] for error in answer.json()["errors"]] == ["time_unit"]


def test_what_is_not_recognised_says_where_to_say_it(send) -> None:
    for content in (STRANGE, b"time,prompt_tokens,input_tokens,output\n0,1,2,3\n1,1,2,3\n"):
        (error,) = send(content).json()["errors"]
        assert "mapping in the API, --map of the commands" in error["message"]
        assert "Columns on the page" in error["message"]


def test_a_look_stores_nothing_and_says_it_all(send) -> None:
    answer = send(STRANGE, URL + "/inspect").json()
    assert answer["format"] is None
    assert answer["columns"] == ["when", "sent", "got"]
    assert answer["rows"][1] == ["1,5", "1.100", "21"]
    assert answer["dialect"]["delimiter"] == ";"
    assert answer["problems"][0]["code"] == "unknown_format"
    answer = send(STRANGE, URL + "/inspect", mapping=json.dumps(MAPPING)).json()
    assert answer["used"] == {"time": "when", "prompt": "sent", "output": "got"}
    found = answer["consequences"]
    assert (found["requests"], found["duration_s"], found["rate_per_s"], found["whole_file"]) == (
        2,
        1.0,
        1.0,
        True,
    )
    assert found["peak_minute"] == {"start_s": 0.0, "requests": 2, "width_s": 60.0}
    assert found["first_requests"][1] == {"arrival_s": 1.0, "prompt_tokens": 1100, "output_tokens": 21}
    assert not TrafficSet.objects.exists()
    assert not HeldUpload.objects.exists()


def test_a_look_at_a_result_gives_its_evidence(send) -> None:
    text = (
        b'{"requested_rate": 183.4, "achieved_rate": 106.5, "client_max_in_flight": 440, "ttft_p99_s": 3.35}'
    )
    evidence = send(text, URL + "/inspect").json()["evidence"]
    assert "58 %" in evidence["runs"][0]["checks"][-1]["message"]
    answer = send(text)
    assert answer.status_code == 422
    assert any("58 %" in error["message"] for error in answer.json()["errors"])


def test_a_long_file_is_looked_at_in_part(send) -> None:
    rows = b"".join(b"%d,10,20\n" % i for i in range(300_000))
    found = send(b"time_s,prompt_tokens,output_tokens\n" + rows, URL + "/inspect").json()["consequences"]
    assert found["whole_file"] is False
    assert found["requests"] < 300_000


def test_a_large_file_is_202_with_a_job(send, settings, no_broker, owner_client) -> None:
    settings.IMMEDIATE_IMPORT_BYTES = 10
    answer = send(STRANGE, mapping=json.dumps(MAPPING))
    assert answer.status_code == 202
    url = f"{URL}/imports/{answer.json()['id']}"
    assert owner_client.get(url).json()["status"] == "queued"
    tasks.run_import(answer.json()["id"])
    done = owner_client.get(url).json()
    assert (done["status"], done["error"]) == ("done", "")
    assert owner_client.get(f"{URL}/{done['traffic']}").json()["statistics"]["requests"] == 2
    assert owner_client.post(url + "/cancel").status_code == 409
    assert TrafficImport.objects.count() == 1


def test_above_the_limit_is_413_with_the_limit(send, settings) -> None:
    settings.MAX_UPLOAD_BYTES = 1024 * 1024
    answer = send(b"x" * (1024 * 1024 + 1))
    assert answer.status_code == 413
    assert "1 MiB" in answer.json()["errors"][0]["message"]


def test_zero_is_an_answer(send) -> None:
    lengths = b"prompt_tokens,output_tokens\n10,5\n20,6\n30,7\n"
    answer = send(lengths, rate_per_s="2", interarrival_cv="0").json()
    assert answer["statistics"]["interarrival_cv"] == 0
    assert answer["statistics"]["duration_s"] == 1.0
