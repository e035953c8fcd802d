"""The schema says what the API does: read by a property-based client that tries to catch it lying.

schemathesis sends what the schema allows and what it forbids to every operation, in this process, and checks each
answer: never a 5xx, only documented statuses, headers and bodies, refused credentials, refused methods.
Seeded and bounded; `-k properties -s` shows the requests that failed.
"""

from __future__ import annotations

import gc
import json
import uuid

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections
from hypothesis import HealthCheck, settings
from ninja import Schema

from calibration.models import Channel
from config.api import api
from tests.test_isolation import kept_true

CONFIG = {
    "seed": 20261129,
    "generation": {"deterministic": True, "max-examples": 12},
    "checks": {
        # 422 as well: what a form knows (an unknown id, a batch above the step, a config.json that is none) no
        # schema can say. 413 and 415 are the limits of uploads.
        "positive_data_acceptance": {"expected-statuses": ["2xx", "401", "403", "404", "409", "422", "429"]},
    },
}


def test_the_schema_is_3_1_and_documents_every_status():
    schema = api.get_openapi_schema()
    assert schema["openapi"].startswith("3.1")
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            statuses = set(operation["responses"])
            assert {400, 401, 403, 422, 429, 500} <= statuses, (method, path)
            assert ("{" in path) == (404 in statuses), (method, path)
            assert ("requestBody" in operation) == ({413, 415} <= statuses), (method, path)
            assert operation["description"], (method, path)
            for status, answer in operation["responses"].items():
                assert status == 204 or answer["content"]["application/json"]["schema"], (
                    method,
                    path,
                    status,
                )


def test_docs_are_served_from_here_under_the_policy(client, db):
    page = client.get("/api/docs")
    html = page.content.decode()
    assert page.status_code == 200
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]
    assert "/static/ninja/swagger-ui-bundle.js" in html
    assert "//cdn" not in html
    assert json.loads(client.get("/api/openapi.json").content)["info"]["title"] == "Ridgeline"


@pytest.fixture
def kept_connection():
    """A request must not end the test's transaction; Django's own test client does the same."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)
    gc.collect()  # while the test's warning filter stands


schema = schemathesis.openapi.from_dict(
    json.loads(json.dumps(api.get_openapi_schema())), config=schemathesis.Config.from_dict(CONFIG)
)
schema.app = get_wsgi_application()


@pytest.fixture
def known(project, owner, calibration, finished_plan, verification, no_broker) -> dict[str, str]:
    """An object in each collection."""
    schedule, check = kept_true(project, owner, calibration)
    channel = Channel.objects.create(
        project=project, owner=owner, kind="email", target="a@b.example", events=["drift"]
    )
    return {
        "channels": str(channel.pk), "schedules": str(schedule.pk), "drift-checks": str(check.pk),
        "calibrations": str(calibration.pk), "traffic": str(finished_plan.traffic_id), "plans": str(finished_plan.pk),
        "verifications": str(verification.pk),
    }  # fmt: skip


@pytest.fixture
def signed(owner, bearer) -> dict[str, str]:
    """One token for all the requests to an operation."""
    return bearer(owner)


# The client (werkzeug's) leaves the temporary files of large multipart bodies to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed file <_io.BufferedRandom:ResourceWarning")
@schema.parametrize()
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_properties(case, known, signed, no_broker, kept_connection):
    pk = case.path_parameters.get("pk")
    if is_uuid(pk) and uuid.UUID(pk).int % 2 == 0:  # or no operation on an object would ever answer 200
        case.path_parameters["pk"] = known[case.operation.path.split("/")[3]]
    case.call_and_validate(headers=signed)


def is_uuid(text: object) -> bool:
    try:
        return bool(uuid.UUID(text))
    except (TypeError, ValueError, AttributeError):
        return False


def test_no_two_shapes_share_a_name():
    """OpenAPI would document one of them for both."""
    found: dict[str, set[str]] = {}
    waiting = [Schema]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.split(".")[0] in ("config", "accounts", "calibration", "planner"):
            found.setdefault(kind.__name__, set()).add(kind.__module__)
    assert len(found) > 30
    assert {name: modules for name, modules in found.items() if len(modules) > 1} == {}
