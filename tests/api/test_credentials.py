"""Who may call the API, with what, and what everybody else is told."""

from __future__ import annotations

import json

import pytest
from django.test import Client

from accounts import tokens
from accounts.models import ApiToken
from calibration.models import Calibration

ME, START = "/api/v1/me", "/api/v1/calibrations"


def post(client: Client, url: str, data: object, **more):
    return client.post(url, json.dumps(data), content_type="application/json", **more)


def is_problem(answer) -> bool:
    body = answer.json()
    return (
        set(body) == {"detail", "errors"}
        and isinstance(body["detail"], str)
        and all(set(error) == {"field", "message"} for error in body["errors"])
    )


def test_without_credentials_the_api_answers_401_and_no_page(client, several_users):
    for answer in (client.get(ME), post(client, START, {}), client.get("/api/v1/plans")):
        assert answer.status_code == 401
        assert is_problem(answer)
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")


def test_a_token_says_who_it_is(client, owner, bearer):
    assert client.get(ME, headers=bearer(owner, "read")).json() == {
        "username": "owner", "credential": "token", "scope": "read", "token_expires_at": None,
    }  # fmt: skip


def test_a_read_token_reads_only(client, owner, bearer, no_broker):
    headers = bearer(owner, ApiToken.READ)
    assert client.get("/api/v1/calibrations", headers=headers).status_code == 200
    answer = post(client, START, {}, headers=headers)
    assert (answer.status_code, answer.json()["detail"]) == (403, "This token may only read.")
    assert not Calibration.objects.exists()


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer rl_x_y", "Basic cmw6eA==", "rl_0_0", "Bearer \x00"]
)
def test_a_bad_token_is_401_even_with_a_good_session(owner_client, header):
    answer = owner_client.get(ME, headers={"Authorization": header})
    assert answer.status_code == 401
    assert is_problem(answer)


def test_a_bad_token_is_401_in_single_user_mode_too(client, db):
    assert client.get(ME).json()["username"] == "local"
    assert client.get(ME, headers={"Authorization": "Bearer rl_x_y"}).status_code == 401


def test_guessing_tokens_is_limited_by_address(client, owner, bearer, settings):
    settings.RATE_LIMITS_ENABLED = True
    answers = [client.get(ME, headers={"Authorization": "Bearer rl_x_y"}) for _ in range(31)]
    assert [answer.status_code for answer in answers] == [401] * 30 + [429]
    assert int(answers[-1].headers["Retry-After"]) >= 1
    assert is_problem(answers[-1])
    assert client.get(ME, headers=bearer(owner)).status_code == 200, "a good token is not kept out"


def test_a_session_reads_but_changes_nothing_without_its_csrf_token(owner, no_broker):
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(owner)
    assert browser.get(ME).json()["credential"] == "session"
    answer = post(browser, START, {})
    assert answer.status_code == 403
    assert "CSRF" in answer.json()["detail"]
    browser.get("/accounts/tokens/")
    headers = {"X-CSRFToken": browser.cookies["ridgeline_csrf"].value}
    assert post(browser, START, {}, headers=headers).status_code == 202
    assert Calibration.objects.get().owner == owner


def test_in_single_user_mode_another_site_cannot_start_jobs(db, no_broker):
    """The page of another site can make the browser send these requests to loopback; none may change anything."""
    browser = Client(enforce_csrf_checks=True)
    assert browser.get(ME).status_code == 200
    evil = {"Origin": "https://evil.example"}
    attempts = [
        post(browser, START, {}, headers=evil),
        browser.post(START, json.dumps({}), content_type="text/plain", headers=evil),
        browser.post(START, {"name": "x"}, headers=evil),
        browser.post("/api/v1/traffic/synthesise", {"preset": "demo"}, headers=evil),
        post(browser, "/api/v1/plans", {}),
    ]
    assert [answer.status_code for answer in attempts] == [403] * len(attempts)
    browser.get("/accounts/tokens/")
    stolen = {"X-CSRFToken": browser.cookies["ridgeline_csrf"].value}
    assert post(browser, START, {}, headers=evil | stolen).status_code == 403, "Origin is checked as well"
    assert not Calibration.objects.exists()
    assert post(browser, START, {}, headers={"Origin": "http://testserver"} | stolen).status_code == 202


def test_in_single_user_mode_curl_needs_only_a_token(db, no_broker, django_capture_on_commit_callbacks):
    from accounts.single_user import local_user

    curl = Client(enforce_csrf_checks=True)
    clear = tokens.issue(local_user(), "curl", ApiToken.WRITE, None)[1]
    with django_capture_on_commit_callbacks(execute=True):
        answer = post(curl, START, {}, headers={"Authorization": f"Bearer {clear}"})
    assert answer.status_code == 202
    assert no_broker == [("calibration.tasks.run_calibration", answer.json()["id"])]


def test_in_single_user_mode_other_machines_are_refused(client, db):
    answer = client.get(ME, REMOTE_ADDR="203.0.113.9")
    assert answer.status_code == 403
    assert is_problem(answer)


def test_another_host_name_is_refused(client, db):
    answer = client.get(ME, headers={"Host": "evil.example"})
    assert answer.status_code == 400
    assert is_problem(answer)


def test_the_token_decides_when_a_session_is_there_too(owner_client, outsider, bearer):
    assert owner_client.get(ME, headers=bearer(outsider)).json()["username"] == "outsider"


def test_projects_are_mine_with_my_role(viewer_client, outsider):
    assert [(p["slug"], p["role"]) for p in viewer_client.get("/api/v1/projects").json()] == [
        ("ridge", "viewer")
    ]
