"""The start page: what to do next, what runs, what is newest; of one's own projects only."""

from __future__ import annotations

import pytest
from django.urls import reverse

from calibration.architecture import PRESETS
from calibration.models import Calibration

pytestmark = pytest.mark.django_db


def test_a_new_user_is_told_the_three_steps(owner_client) -> None:
    page = owner_client.get(reverse("home")).content.decode()
    for words in ("Measure", "Bring traffic", "Plan", "Nothing measured yet"):
        assert words in page
    assert reverse("calibration:new") in page
    assert "Running now" not in page
    assert "Latest" not in page


def test_what_is_there_counts_as_done(published, traffic, owner_client) -> None:
    page = owner_client.get(reverse("home")).content.decode()
    assert "published calibration," in page
    assert "traffic set ready" in page
    assert page.count(' complete"') == 2
    assert published.name in page


def test_what_runs_is_shown(project, owner, owner_client) -> None:
    Calibration.objects.create(
        project=project, owner=owner, name="at it", architecture=PRESETS["demo"].to_dict(), device="cpu",
        status="running", done=3, total=12, message="8 decodes",
    )  # fmt: skip
    page = owner_client.get(reverse("home")).content.decode()
    assert "Running now" in page
    assert "25 %" in page
    assert "No calibration is published yet: one is on its way" in page
    form = owner_client.get(reverse("planner:plan_new")).content.decode()
    assert "one is on its way" in form
    assert "Measure the demo model" not in form, "not a second one beside it"


def test_nothing_of_others(published, traffic, outsider_client) -> None:
    page = outsider_client.get(reverse("home")).content.decode()
    assert published.name not in page
    assert "Nothing measured yet" in page


def test_the_switcher_appears_with_a_second_project(owner, owner_client, project) -> None:
    from accounts.services import create_project

    assert "switch-project" not in owner_client.get(reverse("home")).content.decode()
    create_project(owner, "<b>Second</b>")
    page = owner_client.get(reverse("home")).content.decode()
    assert "switch-project" in page
    assert "&lt;b&gt;Second" in page


def test_single_user_mode_has_no_account_menu(client, db) -> None:
    page = client.get(reverse("home")).content.decode()
    assert "Sign out" not in page
    assert "Single-user mode" in page
