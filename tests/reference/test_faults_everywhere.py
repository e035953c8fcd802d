"""The fault files by upload, API and command: one answer, whichever way they come."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from django.urls import reverse

from planner.models import TrafficSet

pytestmark = pytest.mark.django_db
OPTIONS: dict[str, dict[str, Any]] = {"d06": {"max_model_len": 8192}}
READ = ("d01", "d02", "d04", "d05", "d06")


@pytest.mark.parametrize("start", [f"d{n:02}" for n in range(1, 11)])
def test_page_api_and_command_say_the_same(
    start: str, reference_data: Path, owner_client, monkeypatch, settings, tmp_path
) -> None:
    settings.DATA_DIR = tmp_path
    monkeypatch.setattr("config.api.check_csrf", lambda request: None)
    (path,) = (reference_data / "faults").glob(f"{start}*")
    options = OPTIONS.get(start, {})

    def sent() -> dict[str, Any]:
        return {"file": SimpleUploadedFile(path.name, path.read_bytes()), **options}

    page = owner_client.post(reverse("planner:traffic_new"), sent())
    api = owner_client.post("/api/v1/traffic", sent())
    out = io.StringIO()
    try:
        call_command("traffic", str(path), json=True, stdout=out, **options)
    except CommandError as error:
        assert error.returncode == 2
    command = json.loads(out.getvalue().splitlines()[-1])
    if start in READ:
        assert (page.status_code, api.status_code) == (302, 201)
        by_page = TrafficSet.objects.exclude(pk=api.json()["id"]).get()
        found = [by_page.warnings, api.json()["warnings"], command["warnings"]]
        assert found[0] == found[1] == found[2]
        assert by_page.statistics["requests"] == api.json()["statistics"]["requests"] == command["requests"]
    else:
        assert (page.status_code, api.status_code) == (422, 422)
        by_page = [m for messages in page.context["form"].errors.values() for m in messages]
        assert by_page == [error["message"] for error in api.json()["errors"]]
        assert by_page == [error["message"] for error in command["errors"]]
        assert not TrafficSet.objects.exists()
