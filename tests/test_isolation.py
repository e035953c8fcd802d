"""Who gets what on every URL of the site and every operation of the API.

URLs are taken from the resolver and operations from the OpenAPI schema, so one that is added without a decision
here fails. Each is asked for as the project's owner, a member, a viewer, somebody from another project, and
nobody. Whatever an outsider or nobody is answered may not contain a word of the project's objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, get_resolver

from accounts import tokens
from accounts.models import ApiToken, Project
from calibration import drift_checks, schedules
from calibration.models import Calibration, Channel, DriftCheck, Schedule
from config.api import api
from planner import import_work, traffic_work, uploads
from planner.charts import TRAFFIC_FIGURES
from planner.models import ServerAnswers, TrafficJob
from planner.traffic import PRESETS
from planner.verification.answer_rows import packed
from planner.verification.stream import Answer

pytestmark = pytest.mark.django_db
ROLES = ("owner", "member", "viewer", "outsider", "nobody")

# What is expected of: owner, member, viewer, outsider, nobody. "ok" is any answer of somebody who may: also a
# complaint about the (empty) form or the state of the object. "in" sends to the sign-in page (API: 401).
PUBLIC = ("ok", "ok", "ok", "ok", "ok")
PEOPLE = ("ok", "ok", "ok", "ok", "in")
READ = ("ok", "ok", "ok", "404", "in")
WRITE = ("ok", "ok", "403", "404", "in")
CREATE = ("ok", "ok", "403", "ok", "in")  # an outsider creates in a project of their own
ASK = ("ok", "ok", "403", "422", "in")  # an outsider's question names a calibration that is none of theirs
MANAGE = ("ok", "403", "403", "404", "in")
LEAVE = ("ok", "ok", "403", "404", "in")  # of the member: by an owner or by themself
OWN = ("ok", "404", "404", "404", "in")
PASSWORDLESS = ("404", "404", "404", "404", "in")  # as the people of these tests are
NOTHING = ("404", "404", "404", "404", "404")

PAGES: dict[str, dict[str, tuple[str, ...]]] = {
    "": {"GET": PEOPLE},
    "healthz": {"GET": PUBLIC},
    "accounts/sign-in": {"GET": PUBLIC, "POST": PUBLIC},
    "accounts/sign-out": {"POST": PEOPLE},
    "accounts/password": {"GET": PASSWORDLESS, "POST": PASSWORDLESS},
    "accounts/tokens/": {"GET": PEOPLE, "POST": PEOPLE},
    "accounts/tokens/<int:pk>/revoke": {"POST": OWN},
    "accounts/projects/": {"GET": PEOPLE, "POST": PEOPLE},
    "accounts/use-project": {"POST": READ},
    "accounts/projects/<slug:slug>/": {"GET": READ},
    "accounts/projects/<slug:slug>/members": {"POST": MANAGE},
    "accounts/projects/<slug:slug>/members/<int:pk>/role": {"POST": MANAGE},
    "accounts/projects/<slug:slug>/members/<int:pk>/remove": {"POST": LEAVE},
    "calibrations/": {"GET": PEOPLE},
    "calibrations/new": {"GET": CREATE, "POST": CREATE},
    "calibrations/preview": {"POST": PEOPLE},
    "calibrations/import": {"GET": CREATE, "POST": CREATE},
    "calibrations/import/bundled": {"POST": CREATE},
    "calibrations/<uuid:pk>/": {"GET": READ},
    "calibrations/<uuid:pk>/status": {"GET": READ},
    "calibrations/<uuid:pk>/cancel": {"POST": WRITE},
    "calibrations/<uuid:pk>/rerun": {"POST": WRITE},
    "calibrations/<uuid:pk>/links": {"POST": WRITE},
    "calibrations/<uuid:pk>/figures/<slug:name>.json": {"GET": READ},
    "calibrations/<uuid:pk>/samples.csv": {"GET": READ},
    "calibrations/<uuid:pk>/document.json": {"GET": READ},
    "calibrations/<uuid:pk>/drift": {"GET": READ, "POST": WRITE},
    "calibrations/<uuid:pk>/drift.json": {"GET": READ},
    "calibrations/schedules/": {"GET": PEOPLE},
    "calibrations/schedules/new": {"GET": CREATE, "POST": ASK},
    "calibrations/schedules/<uuid:pk>/": {"GET": READ},
    "calibrations/schedules/<uuid:pk>/edit": {"GET": WRITE, "POST": WRITE},
    "calibrations/schedules/<uuid:pk>/delete": {"POST": WRITE},
    "calibrations/schedules/<uuid:pk>/run": {"POST": WRITE},
    "calibrations/checks/<uuid:pk>/": {"GET": READ},
    "calibrations/checks/<uuid:pk>/status": {"GET": READ},
    "calibrations/checks/<uuid:pk>/cancel": {"POST": WRITE},
    "calibrations/checks/<uuid:pk>/rerun": {"POST": WRITE},
    "notifications/": {"GET": PEOPLE, "POST": PEOPLE},
    "notifications/<uuid:pk>/": {"GET": OWN, "POST": OWN},
    "notifications/<uuid:pk>/delete": {"POST": OWN},
    "notifications/<uuid:pk>/rotate": {"POST": OWN},
    "notifications/<uuid:pk>/test": {"POST": OWN},
    "traffic/": {"GET": PEOPLE},
    "traffic/new": {"GET": CREATE, "POST": CREATE},
    "traffic/uploads/<uuid:pk>/": {"GET": OWN, "POST": OWN},
    "traffic/uploads/<uuid:pk>/preview": {"POST": OWN},
    "traffic/uploads/<uuid:pk>/delete": {"POST": OWN},
    "traffic/uploads/<uuid:pk>/file": {"GET": OWN},
    "traffic/imports/<uuid:pk>/": {"GET": READ},
    "traffic/imports/<uuid:pk>/status": {"GET": READ},
    "traffic/imports/<uuid:pk>/cancel": {"POST": WRITE},
    "traffic/imports/<uuid:pk>/rerun": {"POST": WRITE},
    "traffic/jobs/<uuid:pk>/": {"GET": READ},
    "traffic/jobs/<uuid:pk>/status": {"GET": READ},
    "traffic/jobs/<uuid:pk>/cancel": {"POST": WRITE},
    "traffic/jobs/<uuid:pk>/rerun": {"POST": WRITE},
    "traffic/synthesise": {"GET": CREATE, "POST": CREATE},
    "traffic/<uuid:pk>/": {"GET": READ},
    "traffic/<uuid:pk>/figures/<slug:name>.json": {"GET": READ},
    "traffic/<uuid:pk>/requests.csv": {"GET": READ},
    "traffic/model": {"GET": CREATE, "POST": CREATE},
    "traffic/model/preview": {"POST": CREATE},
    "traffic/<uuid:pk>/fit": {"GET": READ, "POST": WRITE},
    "traffic/<uuid:pk>/fit/figures/<slug:name>.json": {"GET": READ},
    "traffic/<uuid:pk>/compare": {"GET": READ},
    "traffic/<uuid:pk>/compare/<uuid:other>/figures/<slug:name>.json": {"GET": READ},
    "traffic/<uuid:pk>/shape": {"GET": WRITE, "POST": WRITE},
    "traffic/<uuid:pk>/shape/preview": {"POST": WRITE},
    "accuracy/": {"GET": PEOPLE},
    "plans/": {"GET": PEOPLE},
    "plans/new": {"GET": CREATE, "POST": ASK},
    "plans/preview": {"POST": PEOPLE},
    "plans/compare": {"GET": PEOPLE},  # without plans: 422 for everybody
    "plans/compare/figures/<slug:name>.json": {"GET": PEOPLE},
    "plans/<uuid:pk>/": {"GET": READ},
    "plans/<uuid:pk>/status": {"GET": READ},
    "plans/<uuid:pk>/cancel": {"POST": WRITE},
    "plans/<uuid:pk>/rerun": {"POST": WRITE},
    "plans/<uuid:pk>/figures/<slug:name>.json": {"GET": READ},
    "plans/<uuid:pk>/candidates.csv": {"GET": READ},
    "plans/<uuid:pk>/result.json": {"GET": READ},
    "plans/<uuid:pk>/what-if": {"GET": READ, "POST": READ},
    "plans/<uuid:pk>/what-if/move": {"POST": READ},
    "plans/<uuid:pk>/what-if/neighbours": {"POST": READ},
    "plans/<uuid:pk>/what-if/save": {"POST": WRITE},
    "plans/<uuid:pk>/verify": {"POST": WRITE},
    "plans/<uuid:pk>/verify-endpoint": {"POST": WRITE},
    "plans/<uuid:pk>/follow": {"POST": WRITE},
    "plans/<uuid:pk>/replan": {"POST": WRITE},
    "plans/<uuid:pk>/mixed-load": {"POST": WRITE},
    "verifications/<uuid:pk>/": {"GET": READ},
    "verifications/<uuid:pk>/requests.csv": {"GET": READ},
    "verifications/<uuid:pk>/status": {"GET": READ},
    "verifications/<uuid:pk>/cancel": {"POST": WRITE},
    "verifications/<uuid:pk>/rerun": {"POST": WRITE},
    "verifications/<uuid:pk>/figures/<slug:name>.json": {"GET": READ},
    "verifications/<uuid:pk>/widen": {"POST": WRITE},
    "verifications/<uuid:pk>/measure": {"POST": WRITE},
    "plans/<uuid:pk>/recipes/<slug:target>/": {"GET": READ},
    "plans/<uuid:pk>/recipes/<slug:target>.zip": {"GET": READ},
    "api/": {"GET": NOTHING},
    "api/docs": {"GET": PUBLIC},
    "api/openapi.json": {"GET": PUBLIC},
}

OPERATIONS: dict[str, tuple[str, ...]] = {
    "me": PEOPLE,
    "list_projects": PEOPLE,
    "list_presets": PEOPLE,
    "describe_architecture": PEOPLE,
    "list_devices": PEOPLE,
    "list_calibrations": PEOPLE,
    "start_calibration": CREATE,
    "import_steps": CREATE,
    "import_vllm_log": CREATE,
    "import_curves": CREATE,
    "import_document": CREATE,
    "list_bundled_calibrations": PEOPLE,
    "import_bundled": CREATE,
    "get_calibration": READ,
    "cancel_calibration": WRITE,
    "rerun_calibration": WRITE,
    "add_link": WRITE,
    "list_samples": READ,
    "get_document": READ,
    "list_schedules": PEOPLE,
    "create_schedule": ASK,
    "get_schedule": READ,
    "edit_schedule": WRITE,
    "delete_schedule": WRITE,
    "run_schedule": WRITE,
    "list_schedule_runs": READ,
    "start_drift_check": WRITE,
    "list_drift_checks": READ,
    "get_drift_check": READ,
    "cancel_drift_check": WRITE,
    "list_channels": PEOPLE,
    "create_channel": PEOPLE,
    "get_channel": OWN,
    "delete_channel": OWN,
    "list_deliveries": OWN,
    "test_channel": OWN,
    "list_traffic": PEOPLE,
    "upload_traffic": CREATE,
    "inspect_traffic": CREATE,
    "get_import": READ,
    "cancel_import": WRITE,
    "synthesise_traffic": CREATE,
    "list_traffic_presets": PEOPLE,
    "generate_traffic": CREATE,
    "fit_traffic": READ,
    "start_fit": WRITE,
    "get_traffic_job": READ,
    "cancel_traffic_job": WRITE,
    "get_traffic": READ,
    "shape_traffic": WRITE,
    "compare_traffic": READ,
    "get_accuracy": PEOPLE,
    "list_plans": PEOPLE,
    "start_plan": ASK,
    "get_plan": READ,
    "cancel_plan": WRITE,
    "rerun_plan": WRITE,
    "list_candidates": READ,
    "what_if": READ,
    "compare_plans": READ,
    "get_recipe": READ,
    "get_staleness": READ,
    "follow_plan": WRITE,
    "replan": WRITE,
    "start_verification": WRITE,
    "verify_endpoint": WRITE,
    "start_mixed_load": WRITE,
    "list_verifications": PEOPLE,
    "get_verification": READ,
    "list_verification_requests": READ,
    "cancel_verification": WRITE,
    "rerun_verification": WRITE,
    "widen_plan": WRITE,
    "measure_points": WRITE,
}


def routes(resolver: Any = None, prefix: str = "") -> Iterator[tuple[str, URLPattern]]:
    for entry in (resolver or get_resolver()).url_patterns:
        route = prefix + str(entry.pattern)
        if isinstance(entry, URLPattern):
            yield route, entry
        else:
            yield from routes(entry, route)


@cache
def operations() -> dict[str, tuple[str, str]]:
    """operationId -> (method, path)."""
    return {
        details["operationId"]: (method.upper(), path)
        for path, methods in api.get_openapi_schema()["paths"].items()
        for method, details in methods.items()
    }


@pytest.fixture
def things(
    project, owner, member, viewer, outsider, finished_plan, verification, no_broker, settings, tmp_path
) -> dict[str, Any]:
    """The project's objects, under names that nothing else has."""
    calibration, traffic = finished_plan.calibration, finished_plan.traffic
    for row in (calibration, traffic, finished_plan):
        row.name = f"kestrel {row._meta.model_name}"
        row.save(update_fields=["name"])
    schedule, check = kept_true(project, owner, calibration)
    channel = Channel.objects.create(
        project=project, owner=owner, kind="email", target="kestrel@ridge.example", events=["drift"]
    )
    token, _ = tokens.issue(owner, "kestrel token", ApiToken.READ, None)
    settings.DATA_DIR = tmp_path  # where held files stand
    held = uploads.hold(project, owner, SimpleUploadedFile("kestrel.csv", b"a;b\n1;2\n"), "kestrel.csv")
    reading = import_work.start_import(held, owner, "kestrel import", {}, keep=False)
    making = traffic_work.start(
        TrafficJob.FIT, project, owner, "kestrel job", {"arrivals": "", "lengths": ""}, parent=traffic
    )
    verification.name = "kestrel verification"
    verification.save(update_fields=["name"])
    ServerAnswers.objects.create(verification=verification, rows=packed([Answer(0, 0.0, 8, error="kestrel")]))
    return {
        "calibrations": calibration.pk, "plans": finished_plan.pk, "traffic": traffic.pk, "tokens": token.pk,
        "other": traffic.pk,
        "members": project.memberships.get(user=member).pk, "slug": project.slug,
        "calibrations figure": "prefill", "plans figure": "trade", "traffic figure": next(iter(TRAFFIC_FIGURES)),
        "uploads": held.pk, "imports": reading.pk, "jobs": making.pk,
        "notifications": channel.pk, "channels": channel.pk,
        "schedules": schedule.pk, "checks": check.pk, "drift-checks": check.pk,
        "target": "vllm", "verifications": verification.pk, "verifications figure": "ttft",
    }  # fmt: skip


def kept_true(project: Project, owner: Any, calibration: Calibration) -> tuple[Schedule, DriftCheck]:
    """A schedule of the calibration, and a check that it started."""
    calibration.environment = {"dtype": "float32"}
    calibration.save(update_fields=["environment"])
    asked = schedules.ScheduleRequest(
        "kestrel schedule",
        calibration,
        "check",
        3600,
        "",
        "UTC",
        None,
        enabled=True,
        recalibrate_on_drift=True,
    )
    check = drift_checks.start(calibration, owner)
    return schedules.create(project, owner, asked), check


@pytest.fixture
def clients(owner, member, viewer, outsider, things) -> dict[str, Client]:
    people = dict(zip(ROLES, (owner, member, viewer, outsider, None), strict=True))
    found = {role: Client(raise_request_exception=False) for role in people}
    for role, user in people.items():
        if user is not None:
            found[role].force_login(user)
    return found


def filled(route: str, things: dict[str, Any]) -> str:
    """The route with the project's own ids: of the collection before the parameter."""
    path, before = [], ""
    for part in route.split("/"):
        name = re.search(r"[<{](?:\w+:)?(\w+)[>}]", part)
        if name:
            key = {"pk": before, "name": f"{route.split('/')[0]} figure"}.get(name[1], name[1])
            part = re.sub(r"[<{][^>}]*[>}]", str(things[key]), part)
        path.append(part)
        before = part
    return "/" + "/".join(path).lstrip("/")


def form_of(route: str, things: dict[str, Any]) -> dict[str, Any]:
    """What is posted to a page where an empty form would not show who may what."""
    question = {
        "calibration": str(things["calibrations"]), "traffic": str(things["traffic"]), "objectives": "ttft:p95:1",
    }  # fmt: skip
    schedule = {"calibration": str(things["calibrations"]), "action": "check", "every": "2", "unit": "hours"}
    forms = {
        "accounts/use-project": {"project": "ridge"}, "plans/new": question, "plans/preview": question,
        "calibrations/schedules/new": schedule, "calibrations/schedules/<uuid:pk>/edit": schedule,
    }  # fmt: skip
    return forms.get(route, {})


def check(answer: Any, expected: str, role: str, things: dict[str, Any], sent: dict[str, Any]) -> None:
    status = answer.status_code
    to_sign_in = status == 302 and answer.url.startswith("/accounts/sign-in?")
    assert status != 500, answer.content[-2000:]
    if expected == "in":
        assert status == 401 or to_sign_in, status
    elif expected == "ok":
        assert (200 <= status < 400 and not to_sign_in) or status in (409, 413, 415, 422), status
    else:
        assert status == int(expected), answer.content[:300]
    if role in ("outsider", "nobody"):
        body = b"".join(answer) if answer.streaming else answer.content
        secrets = [
            "kestrel",
            *(
                str(things[kind])
                for kind in ("calibrations", "plans", "traffic", "uploads", "imports", "jobs")
            ),
        ]
        assert not [word for word in secrets if word.encode() in body and word not in sent.values()]


def test_every_url_has_a_decision():
    served = {route for route, _ in routes() if not route.startswith(("admin/", "api/v1/"))}
    assert served == set(PAGES)


def test_every_operation_has_a_decision_and_every_api_url_is_an_operation():
    assert set(operations()) == set(OPERATIONS)
    documented = {path.lstrip("/") for _, path in operations().values()}
    served = {re.sub(r"<\w+:(\w+)>", r"{\1}", route) for route, _ in routes() if route.startswith("api/v1/")}
    assert served == documented


@contextmanager
def undone() -> Iterator[None]:
    """What one role changes the next one does not see."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@pytest.mark.parametrize(("route", "method"), [(r, m) for r, methods in PAGES.items() for m in methods])
def test_pages(route, method, things, clients, subtests):
    for role, expected in zip(ROLES, PAGES[route][method], strict=True):
        with subtests.test(role=role), undone():
            send = clients[role].get if method == "GET" else clients[role].post
            form = form_of(route, things)
            check(send(filled(route, things), form), expected, role, things, form)


def test_every_page_has_the_content_security_policy(things, clients):
    for route in (route for route, methods in PAGES.items() if "GET" in methods):
        for role in ("owner", "nobody"):
            answer = clients[role].get(filled(route, things))
            assert "script-src 'self';" in answer.headers["Content-Security-Policy"], (route, role)


def test_every_post_of_a_page_needs_the_csrf_token(things, owner):
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(owner)
    for route in (route for route, methods in PAGES.items() if "POST" in methods):
        answer = browser.post(filled(route, things), form_of(route, things))
        assert (answer.status_code, answer.headers.get("Location")) == (403, None), route


@pytest.mark.parametrize("route", PAGES)
def test_pages_answer_no_other_method(route, things, clients):
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - set(PAGES[route]):
        answer = clients["owner"].generic(method, filled(route, things))
        assert answer.status_code in (405, 404), (method, answer.status_code)


def body_of(name: str, things: dict[str, Any]) -> dict[str, Any]:
    """A payload that is complete, so that only the role decides."""
    file = SimpleUploadedFile("file.csv", b"not a trace")
    return {
        "start_plan": form_of("plans/new", things) | {"objectives": ["ttft:p95:1"]},
        "create_schedule": {"calibration": str(things["calibrations"]), "every": 2},
        "create_channel": {"kind": "email", "target": "a@b.example"},
        "follow_plan": {"replan_when_stale": True},
        "edit_schedule": {"calibration": str(things["calibrations"]), "every": 3},
        "import_steps": {"file": file, "device": "x", "kv_tokens": "4096"},
        "import_vllm_log": {"file": file, "device": "x"},
        "import_curves": {"file": file, "device": "x"},
        "import_document": {"file": file},
        "import_bundled": {"name": "h200/llama-8b"},
        "upload_traffic": {"file": file},
        "inspect_traffic": {"file": file},
        "synthesise_traffic": {"preset": "demo"},
        "generate_traffic": {"model": PRESETS["demo"].model().to_dict(), "requests": 20},
        "shape_traffic": {"operations": [{"op": "repeat", "times": 2}]},
        "verify_endpoint": {"base_url": "http://10.0.0.1", "model": "x"},
        "add_link": {"gigabytes_per_s": 10.0, "latency_us": 5.0, "uncertainty_percent": 10.0},
    }.get(name, {})  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name, things, clients, subtests):
    method, path = operations()[name]
    for role, expected in zip(ROLES, OPERATIONS[name], strict=True):
        with subtests.test(role=role), undone():
            body = body_of(name, things)
            kind = {} if "file" in body or method == "GET" else {"content_type": "application/json"}
            answer = getattr(clients[role], method.lower())(filled(path, things), body, **kind)
            check(answer, expected, role, things, body)
            if expected == "in":
                assert answer.status_code == 401, "the API redirects nobody"


@pytest.mark.parametrize(
    "name", [n for n, expected in OPERATIONS.items() if expected in (WRITE, CREATE, ASK)]
)
def test_a_read_token_changes_nothing(name, owner, things, bearer):
    method, path = operations()[name]
    client = Client(headers=bearer(owner, ApiToken.READ))
    answer = getattr(client, method.lower())(filled(path, things), {}, content_type="application/json")
    assert answer.status_code == 403


def test_the_administration_is_for_staff(clients):
    """Every URL of it; none of these people is staff."""
    pages = [route for route, _ in routes() if route.startswith("admin/")]
    assert len(pages) > 20
    for role in ROLES:
        for route in pages:
            path = "/" + re.sub(r"<[^>]*>|\(\?P<\w+>[^)]*\)", "1", route).replace("$", "").replace("^", "")
            answer = clients[role].get(path)
            assert answer.status_code in (302, 403, 404, 405), (role, path, answer.status_code)
            if answer.status_code == 302:
                assert "sign-in" in answer.url or "login" in answer.url or answer.url.endswith("/"), (
                    answer.url
                )
