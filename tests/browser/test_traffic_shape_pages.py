"""Pages that make and compare traffic, as a browser shows them: a chain that is built by clicks and by keyboard."""

from __future__ import annotations

import pytest
from django.urls import reverse
from playwright.sync_api import Page, expect

from planner import services
from planner.models import TrafficSet
from planner.traffic import synthesise
from tests.browser.barriers import settled, severe

WIDTHS = [(1280, "light"), (390, "dark")]


def shaping(visit, traffic, **options) -> Page:
    return settled(visit(reverse("planner:traffic_shape", args=[traffic.pk]), **options))


@pytest.mark.parametrize(("width", "scheme"), WIDTHS)
def test_a_chain_is_built_seen_and_kept(width, scheme, traffic, visit) -> None:
    page = shaping(visit, traffic, width=width, scheme=scheme)
    assert severe(page) == []
    page.get_by_role("button", name="+ Thin").click()
    expect(page.locator("#id_op-0-share")).to_be_focused()
    page.keyboard.type("0.5")
    page.get_by_role("button", name="+ Scale lengths").click()
    expect(page.locator("#consequences")).to_contain_text("Step 2: not complete")
    expect(page.locator("#id_op-0-share")).to_have_value("0.5")
    page.fill("#id_op-1-factor", "x")
    page.locator("#id_op-1-factor").blur()
    expect(page.locator("#id_op-1-factor_error")).to_have_text("It must be a number.")
    assert severe(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.fill("#id_op-1-factor", "2")
    page.locator("#id_op-1-factor").blur()
    expect(page.locator("#consequences")).to_contain_text("Make prompts 2 times as long")
    expect(page.locator("#id_op-1-factor_error")).to_have_text("")
    page.get_by_role("button", name="Move step 2 up").click()
    expect(page.locator("#id_op-0-factor")).to_have_value("2")
    page.get_by_role("button", name="Remove step 1").click()
    expect(page.locator("#id_op-0-share")).to_have_value("0.5")
    page.get_by_role("button", name="Make this traffic").click()
    expect(page.locator("h1")).to_have_text("demo, shaped")
    assert [one["op"] for one in TrafficSet.objects.get(format="shaped").recipe["shape"]["operations"]] == [
        "thin"
    ]


def test_enter_keeps_and_does_not_move(traffic, visit) -> None:
    page = shaping(visit, traffic)
    page.get_by_role("button", name="+ Thin").click()
    expect(page.locator("#id_op-0-share")).to_be_focused()
    page.keyboard.type("2")
    page.keyboard.press("Enter")
    expect(page.locator(".note.bad")).to_contain_text("Nothing was stored")
    expect(page.locator("#id_op-0-share_error")).to_contain_text("at most 1")


@pytest.mark.parametrize(("width", "scheme"), WIDTHS)
def test_two_traffics_are_compared(width, scheme, traffic, project, owner, visit) -> None:
    other = services.create_traffic(project, owner, "other", synthesise("code", requests=300, seed=2))
    page = settled(visit(reverse("planner:traffic_compare", args=[traffic.pk]), width=width, scheme=scheme))
    page.select_option("#id_other", str(other.pk))
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("h1")).to_have_text("demo and other")
    expect(page.locator("#figures .plot:has(.main-svg)")).to_have_count(5)
    expect(page.locator("#figures .placeholder")).to_have_count(0)
    assert severe(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(("width", "scheme"), WIDTHS)
def test_a_model_is_put_together(width, scheme, project, visit) -> None:
    page = settled(visit(f"{reverse('planner:traffic_model')}?preset=chat", width=width, scheme=scheme))
    assert severe(page) == []
    page.fill("#id_requests", "60")
    page.locator("#id_requests").blur()
    expect(page.locator("#outcome dd").first).to_have_text("60")
    page.select_option("#id_arrivals-kind", "on_off")
    expect(page.locator("#id_arrivals-mean_on_s")).to_be_visible()
    expect(page.locator("#outcome")).to_contain_text("Not complete")
    for field, value in (("on_rate_per_s", "9"), ("mean_on_s", "5"), ("mean_off_s", "x")):
        page.fill(f"#id_arrivals-{field}", value)
    page.locator("#id_arrivals-mean_off_s").blur()
    expect(page.locator("#id_arrivals-mean_off_s_error")).to_have_text("It must be a number.")
    page.fill("#id_arrivals-mean_off_s", "5")
    page.locator("#id_sessions-kind").check()
    expect(page.locator("#id_sessions-mean_turns")).to_be_visible()
    expect(page.locator("#outcome")).to_contain_text("Prefix hits")
    assert severe(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("button", name="Make this traffic").click()
    expect(page.locator("h1")).to_contain_text("On and off × Lognormal × sessions")


@pytest.mark.parametrize(("width", "scheme"), WIDTHS)
def test_a_fit_is_shown(width, scheme, project, owner, visit) -> None:
    row = services.create_traffic(project, owner, "code", synthesise("code", requests=600, seed=2))
    page = settled(visit(reverse("planner:traffic_fit", args=[row.pk]), width=width, scheme=scheme))
    expect(page.locator("#figures .plot:has(.main-svg)")).to_have_count(5)
    assert severe(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
