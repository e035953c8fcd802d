"""The what-if in a browser: sliders by keyboard, numbers typed, the newest answer, back to the plan."""

from __future__ import annotations

import pytest
from django.urls import reverse
from playwright.sync_api import Page, expect

from planner.models import Plan
from tests.browser.barriers import settled, severe

WIDTHS = [(1280, "light"), (390, "dark")]


def moving(visit, plan, query: str = "", **options) -> Page:
    page = settled(visit(reverse("planner:what_if", args=[plan.pk]) + query, **options))
    expect(page.locator("#neighbours")).to_be_visible()
    return page


def still(page: Page) -> Page:
    """An answer that is being replaced is dimmed for a moment."""
    expect(page.locator("#answer")).to_have_css("opacity", "1")
    return page


@pytest.mark.parametrize(("width", "scheme"), WIDTHS)
def test_a_slider_is_moved_by_keyboard_and_answered(width, scheme, finished_plan, visit) -> None:
    page = moving(visit, finished_plan, width=width, scheme=scheme)
    assert severe(still(page)) == []
    expect(page.locator("#answer")).to_contain_text("Where the plan stands")
    slider = page.get_by_role("slider", name="Rate")
    slider.focus()
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#id_rate_multiplier")).to_have_value("2")
    expect(slider).to_have_attribute("aria-valuetext", "2 times")
    expect(page.locator("#answer")).not_to_contain_text("Where the plan stands")
    expect(page.locator("#neighbours")).to_be_visible()
    assert severe(still(page)) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("button", name="Back to the plan").click()
    expect(page.locator("#id_rate_multiplier")).to_have_value("1")
    expect(page.locator("#answer")).to_contain_text("Where the plan stands")
    assert Plan.objects.count() == 1


def test_a_typed_number_moves_the_slider_and_mistakes_stand_beside_it(finished_plan, visit) -> None:
    page = moving(visit, finished_plan)
    page.fill("#id_replicas", "0")
    expect(page.locator("#id_replicas_error")).to_contain_text("greater than or equal to 1")
    expect(page.locator("#answer")).to_contain_text("See the field marked")
    page.fill("#id_replicas", "2")
    expect(page.locator("#id_replicas_error")).to_have_text("")
    expect(page.get_by_role("slider", name="Replicas")).to_have_js_property("value", "1")
    expect(page.locator("#answer")).to_contain_text("2")


def test_a_neighbour_leads_on_and_stays_in_the_address(finished_plan, visit) -> None:
    page = moving(visit, finished_plan, "?rate_multiplier=2")
    page.locator("[aria-labelledby=neighbours] td a").first.click()
    settled(page)
    assert "rate_multiplier=2" in page.url
    expect(page.locator("#id_rate_multiplier")).to_have_value("2")
    expect(page.locator("#neighbours")).to_be_visible()
