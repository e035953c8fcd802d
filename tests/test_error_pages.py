"""Errors as pages: the right status, the site's look, the CSP, and no traceback for anybody but staff."""

from __future__ import annotations

import pytest
from django.core.exceptions import BadRequest
from django.test import Client, RequestFactory
from django.urls import reverse

from config import pages
from config.middleware import POLICY

pytestmark = pytest.mark.django_db


def broken(*_args: object, **_kwargs: object) -> None:
    raise RuntimeError("secret detail")


def malformed(*_args: object, **_kwargs: object) -> None:
    raise BadRequest("odd")


def test_not_found(owner_client) -> None:
    answer = owner_client.get("/nowhere")
    assert answer.status_code == 404
    assert "Error 404" in answer.content.decode()
    assert answer["Content-Security-Policy"] == POLICY


def test_bad_request(owner_client, monkeypatch) -> None:
    monkeypatch.setattr("planner.views.render", malformed)
    answer = owner_client.get(reverse("home"))
    assert answer.status_code == 400
    assert "Error 400" in answer.content.decode()


@pytest.mark.parametrize("staff", [False, True])
def test_a_defect_of_ours(staff, owner, owner_client, monkeypatch) -> None:
    owner.is_staff = staff
    owner.save()
    owner_client.raise_request_exception = False
    monkeypatch.setattr("planner.views.render", broken)
    answer = owner_client.get(reverse("home"))
    assert answer.status_code == 500
    assert "Something broke here" in answer.content.decode()
    assert ("secret detail" in answer.content.decode()) == staff
    assert answer["Content-Security-Policy"] == POLICY


def test_too_large_before_it_is_read(owner_client, settings) -> None:
    settings.MAX_UPLOAD_BYTES = 1000
    answer = owner_client.generic("POST", reverse("calibration:import"), b"x" * 2_000_000)
    assert answer.status_code == 413
    assert "Error 413" in answer.content.decode()
    assert answer["Content-Security-Policy"] == POLICY


def test_too_many_fields_are_413(owner_client) -> None:
    answer = owner_client.post(reverse("calibration:preview"), {f"field{i}": "" for i in range(1100)})
    assert answer.status_code == 413


def test_every_template_stands_without_a_user() -> None:
    for status in (400, 403, 404, 413, 429, 500):
        answer = pages.error_page(RequestFactory().get("/"), status, "because")
        assert answer.status_code == status
        assert f"Error {status}" in answer.content.decode()


def test_the_csp_stands_on_every_kind_of_answer(owner_client) -> None:
    for address in (
        reverse("home"),
        reverse("calibration:list"),
        "/nowhere",
        reverse("accounts:sign_in"),
        "/api/v1/x",
    ):
        assert owner_client.get(address)["Content-Security-Policy"] == POLICY
    assert Client().get(reverse("home"))["Content-Security-Policy"] == POLICY
