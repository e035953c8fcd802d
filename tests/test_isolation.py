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
from accounts.models import ApiToken
from config.api import api
from planner.charts import TRAFFIC_FIGURES

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
    "calibrations/<uuid:pk>/": {"GET": READ},
    "calibrations/<uuid:pk>/status": {"GET": READ},
    "calibrations/<uuid:pk>/cancel": {"POST": WRITE},
    "calibrations/<uuid:pk>/rerun": {"POST": WRITE},
    "calibrations/<uuid:pk>/figures/<slug:name>.json": {"GET": READ},
    "calibrations/<uuid:pk>/samples.csv": {"GET": READ},
    "calibrations/<uuid:pk>/document.json": {"GET": READ},
    "traffic/": {"GET": PEOPLE},
    "traffic/new": {"GET": CREATE, "POST": CREATE},
    "traffic/synthesise": {"GET": CREATE, "POST": CREATE},
    "traffic/<uuid:pk>/": {"GET": READ},
    "traffic/<uuid:pk>/figures/<slug:name>.json": {"GET": READ},
    "traffic/<uuid:pk>/requests.csv": {"GET": READ},
    "plans/": {"GET": PEOPLE},
    "plans/new": {"GET": CREATE, "POST": ASK},
    "plans/preview": {"POST": PEOPLE},
    "plans/<uuid:pk>/": {"GET": READ},
    "plans/<uuid:pk>/status": {"GET": READ},
    "plans/<uuid:pk>/cancel": {"POST": WRITE},
    "plans/<uuid:pk>/rerun": {"POST": WRITE},
    "plans/<uuid:pk>/figures/<slug:name>.json": {"GET": READ},
    "plans/<uuid:pk>/candidates.csv": {"GET": READ},
    "plans/<uuid:pk>/result.json": {"GET": READ},
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
    "import_document": CREATE,
    "get_calibration": READ,
    "cancel_calibration": WRITE,
    "rerun_calibration": WRITE,
    "list_samples": READ,
    "get_document": READ,
    "list_traffic": PEOPLE,
    "upload_traffic": CREATE,
    "synthesise_traffic": CREATE,
    "list_traffic_presets": PEOPLE,
    "get_traffic": READ,
    "list_plans": PEOPLE,
    "start_plan": ASK,
    "get_plan": READ,
    "cancel_plan": WRITE,
    "rerun_plan": WRITE,
    "list_candidates": READ,
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
def things(project, owner, member, viewer, outsider, finished_plan, no_broker) -> dict[str, Any]:
    """The project's objects, under names that nothing else has."""
    calibration, traffic = finished_plan.calibration, finished_plan.traffic
    for row in (calibration, traffic, finished_plan):
        row.name = f"kestrel {row._meta.model_name}"
        row.save(update_fields=["name"])
    token, _ = tokens.issue(owner, "kestrel token", ApiToken.READ, None)
    return {
        "calibrations": calibration.pk, "plans": finished_plan.pk, "traffic": traffic.pk, "tokens": token.pk,
        "members": project.memberships.get(user=member).pk, "slug": project.slug,
        "calibrations figure": "prefill", "plans figure": "trade", "traffic figure": next(iter(TRAFFIC_FIGURES)),
    }  # fmt: skip


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
    forms = {"accounts/use-project": {"project": "ridge"}, "plans/new": question, "plans/preview": question}
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
            *(str(things[kind]) for kind in ("calibrations", "plans", "traffic")),
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
        "import_steps": {"file": file, "device": "x", "kv_tokens": "4096"},
        "import_document": {"file": file},
        "upload_traffic": {"file": file},
        "synthesise_traffic": {"preset": "demo"},
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
