"""Whatever is sent, the answer is 4xx in the one shape; what breaks inside is a 500 that tells nothing."""

from __future__ import annotations

import json

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from calibration import services
from config.api import api as joint

ARCHITECTURES = "/api/v1/architectures"


@pytest.fixture
def api(owner, bearer) -> Client:
    return Client(headers=bearer(owner), raise_request_exception=False)


def send(api: Client, body: bytes | str, content_type: str = "application/json", url: str = ARCHITECTURES):
    return api.post(url, body, content_type=content_type)


def problem(answer) -> tuple[int, dict[str, str]]:
    body = answer.json()
    assert set(body) == {"detail", "errors"}, body
    assert body["detail"]
    return answer.status_code, {error["field"]: error["message"] for error in body["errors"]}


@pytest.mark.parametrize(
    "body",
    [
        '{"model": ', "[1, 2", "nonsense", '{"config": {"hidden_size": NaN}}', '{"config": {"x": Infinity}}',
        '{"config": {"x": -Infinity}}', '{"config": {"x": 1e999}}', b'{"model": "\xff"}', "[" * 100_000,
        '{"config": {"x": ' + "9" * 5000 + "}}",
    ],
)  # fmt: skip
def test_what_is_not_json_is_400(api, body):
    status, _ = problem(send(api, body))
    assert status == 400


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"name": "a\\u0000b"}', "name"),
        ('{"config": {"model_type": "x\\u0000"}}', "config.model_type"),
        ('{"config": {"x\\u0000": 1}}', "config"),
        ('{"config": {"list": [1, {"y": "\\ud800"}]}}', "config.list.1.y"),
        ('{"config": {"hidden_size": 9223372036854775808}}', "config.hidden_size"),
        ('{"config": {"hidden_size": -99999999999999999999}}', "config.hidden_size"),
    ],
)
def test_what_no_column_can_hold_is_422_with_its_path(api, body, field):
    status, errors = problem(send(api, body))
    assert (status, set(errors)) == (422, {field})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"model": 5}, "model"),
        ({"model": "gpt-9"}, "model"),
        ({"colour": "red"}, "colour"),
        ({"config": "text"}, "config"),
        ({"config": {}}, "config"),
        ({"config": {"model_type": "mamba"}}, "config"),
        ({"model": "demo", "config": {"model_type": "llama"}}, "model"),
        ({"name": "n" * 121}, "name"),
    ],
)
def test_a_bad_field_is_named(api, body, field):
    status, errors = problem(send(api, json.dumps(body)))
    assert (status, set(errors)) == (422, {field})
    assert errors[field]


@pytest.mark.parametrize("body", ["[]", '"text"', "5", "null", "true", ""])
def test_a_body_that_is_no_object_is_422(api, body):
    status, errors = problem(send(api, body))
    assert status == 422
    assert errors


def test_other_content_types_are_415(api):
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/xml",
        "x",
    ):
        assert problem(send(api, '{"model": "demo"}', kind))[0] == 415, kind
    assert problem(send(api, "{}", url="/api/v1/calibrations/import-steps"))[0] == 415
    assert send(api, '{"model": "demo"}', "application/json; charset=utf-8").status_code == 200


UPLOADS = [
    path
    for path, operations in joint.get_openapi_schema()["paths"].items()
    if "multipart/form-data" in operations.get("post", {}).get("requestBody", {}).get("content", {})
]


@pytest.mark.parametrize("path", UPLOADS)
def test_a_form_field_that_nobody_knows_is_refused_as_in_json(path, owner_client, monkeypatch):
    monkeypatch.setattr("config.api.check_csrf", lambda request: None)
    file = SimpleUploadedFile("a.csv", b"arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,2\n")
    for name, value in (("nonsense", "1"), ("File", SimpleUploadedFile("b.csv", b"1")), ("a\x00b", "1")):
        answer = owner_client.post(path, {"file": file, name: value})
        file.seek(0)
        status, errors = answer.status_code, answer.json()["errors"]
        assert (status, len(errors)) == (422, 1)
        assert errors[0]["field"] == name.replace("\x00", "�")
        assert "\x00" in name or "no such field; known are project, name" in errors[0]["message"]
    assert len(UPLOADS) >= 6


def test_a_multipart_body_that_is_broken_is_400(api):
    kind = "multipart/form-data; boundary=xyz"
    assert problem(send(api, b"--xyz\r\nrubbish", kind, "/api/v1/traffic"))[0] in (400, 422)
    assert problem(send(api, b"x", "multipart/form-data", "/api/v1/traffic"))[0] == 400


def test_files_and_form_fields_are_checked_like_json(api):
    def upload(**fields):
        steps = SimpleUploadedFile("steps.csv", b"not,a,step\n1,2,3\n")
        return problem(
            api.post(
                "/api/v1/calibrations/import-steps", {"file": steps, "device": "x", "model": "demo", **fields}
            )
        )

    assert upload(kv_tokens="many") == (422, {"kv_tokens": upload(kv_tokens="many")[1]["kv_tokens"]})
    assert set(upload(kv_tokens="5")[1]) == {"kv_tokens"}
    assert set(upload()[1]) == {"kv_tokens"}
    assert set(upload(kv_tokens="4096", name="a\x00b")[1]) == {"name"}
    assert upload(kv_tokens="4096")[0] == 422, "the file is no step CSV"
    assert set(problem(api.post("/api/v1/traffic", {"name": "x"}))[1]) == {"file"}


def test_a_body_above_the_limits_is_413(api, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    assert problem(send(api, json.dumps({"name": "n" * 2000})))[0] == 413
    settings.MAX_UPLOAD_BYTES = 1000
    file = SimpleUploadedFile("steps.csv", b"x" * 2000)
    fields = {"file": file, "device": "x", "kv_tokens": "4096"}
    assert problem(api.post("/api/v1/calibrations/import-steps", fields))[0] == 413
    answer = api.post("/api/v1/traffic", {"file": SimpleUploadedFile("t.csv", b"x" * 2_000_000)})
    assert problem(answer)[0] == 413


@pytest.mark.parametrize(
    "url", ["/api/v1/nothing", "/api/", "/api/v1/plans/not-a-uuid", "/api/v1/plans/", "/api/%00"]
)
def test_an_unknown_address_is_404(api, url):
    assert problem(api.get(url))[0] == 404


@pytest.mark.parametrize("listed", ["plans", "calibrations", "traffic", "schedules"])
def test_a_query_parameter_that_nobody_knows_is_422(api, listed):
    status, errors = problem(api.get(f"/api/v1/{listed}?limt=3&status="))
    assert status == 422
    assert "known are limit, offset" in errors["limt"]
    assert api.head(f"/api/v1/{listed}?limit=3").status_code in (200, 405)


def test_a_query_parameter_is_given_once_and_only_where_it_means_something(api):
    assert problem(api.get("/api/v1/plans?limit=1&limit=3")) == (422, {"limit": "Give it once."})
    status, errors = problem(api.get("/api/v1/channels?limit=1"))
    assert (status, errors) == (422, {"limit": "There is no such field; known are none."})
    status, errors = problem(send(api, '{"model": "demo"}', url=f"{ARCHITECTURES}?model=demo"))
    assert (status, list(errors)) == (422, ["model"])


def test_another_method_is_405_and_says_which_are_allowed(api):
    answer = api.put("/api/v1/calibrations", "{}", content_type="application/json")
    assert problem(answer)[0] == 405
    assert set(answer.headers["Allow"].split(", ")) == {"GET", "POST"}


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=201", "limit=x", "offset=-1", "offset=99999999999999999999", "status=odd",
              "project=%00", "project=" + "p" * 100, "published=perhaps", "limit=NaN"]
)  # fmt: skip
def test_a_bad_query_is_422_and_names_the_parameter(api, query):
    status, errors = problem(api.get(f"/api/v1/calibrations?{query}"))
    assert (status, set(errors)) == (422, {query.split("=")[0]})


def test_what_breaks_inside_is_500_without_a_word_of_it(api, monkeypatch, caplog):
    def broken():
        raise RuntimeError("secret detail")

    monkeypatch.setattr(services, "known_devices", broken)
    answer = api.get("/api/v1/devices")
    assert problem(answer)[0] == 500
    assert "secret" not in answer.content.decode()
    assert "Traceback" not in answer.content.decode()
    assert "secret detail" in caplog.text, "but it is logged"


def test_an_answer_with_nan_is_our_defect_and_not_sent(api, monkeypatch):
    from calibration.models import Device

    device = Device(name="cpu", label="x", hostname="y", total_bytes=1, free_bytes=1)
    device.free_bytes = float("nan")
    monkeypatch.setattr(services, "known_devices", lambda: [device])
    assert problem(api.get("/api/v1/devices"))[0] == 500
