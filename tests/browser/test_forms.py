"""Forms under a hasty hand."""

from __future__ import annotations

import pytest
from django.urls import reverse
from playwright.sync_api import expect

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
