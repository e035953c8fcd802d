"""Forms under a hasty hand."""

from __future__ import annotations

import pytest
from django.urls import reverse
from playwright.sync_api import Dialog, expect

from accounts import tokens
from accounts.models import ApiToken
from planner.models import TrafficSet


@pytest.mark.parametrize("click", ["dblclick", "click"])
def test_a_form_is_sent_once(click, project, visit) -> None:
    page = visit(reverse("planner:traffic_synthesise"))
    page.locator("#id_requests").fill("20")
    getattr(page.get_by_role("button", name="Make this traffic"), click)()
    expect(page.locator("h1")).to_contain_text("Chat")
    assert TrafficSet.objects.count() == 1


def test_after_going_back_it_is_sent_again(project, visit) -> None:
    page = visit(reverse("planner:traffic_synthesise"))
    for _ in range(2):
        page.locator("#id_requests").fill("20")
        page.get_by_role("button", name="Make this traffic").click()
        expect(page.locator("h1")).to_contain_text("Chat")
        page.go_back()
    assert TrafficSet.objects.count() == 2


def test_what_cannot_be_taken_back_is_asked_about_first(owner, project, visit) -> None:
    tokens.issue(owner, "deploys", ApiToken.READ, None)
    page = visit(reverse("accounts:tokens"))
    questions = []

    def answer(yes: bool) -> None:
        def tell(dialog: Dialog) -> None:
            questions.append(dialog.message)
            dialog.accept() if yes else dialog.dismiss()

        page.once("dialog", tell)
        page.get_by_role("button", name="Revoke deploys").click()

    answer(False)
    expect(page.get_by_role("button", name="Revoke deploys")).to_be_visible()
    assert ApiToken.objects.get().revoked_at is None
    answer(True)
    expect(page.get_by_role("button", name="Revoke deploys")).to_have_count(0)
    assert ApiToken.objects.get().revoked_at is not None
    assert questions[0].startswith("Revoke deploys?") and len(questions) == 2
