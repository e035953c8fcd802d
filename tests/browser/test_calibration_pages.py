"""Pages of calibrations as a browser shows them: accessible, drawn, followed live, and never wider than a phone."""

from __future__ import annotations

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from calibration import services
from calibration.architecture import PRESETS
from calibration.models import Calibration
from tests.browser.barriers import settled, severe

PATHS = {
    "home": lambda row: reverse("home"),
    "list": lambda row: reverse("calibration:list"),
    "new": lambda row: reverse("calibration:new"),
    "import": lambda row: reverse("calibration:import"),
    "detail": lambda row: reverse("calibration:detail", args=[row.pk]),
    "tokens": lambda row: reverse("accounts:tokens"),
    "projects": lambda row: reverse("accounts:projects"),
    "project": lambda row: reverse("accounts:project", args=[row.project.slug]),
    "404": lambda row: "/nowhere",
}


@pytest.fixture
def running(project, owner, fitted_samples) -> Calibration:
    row = Calibration.objects.create(
        project=project, owner=owner, name="at it", architecture=PRESETS["demo"].to_dict(), device="cpu",
        envelope={"max_batch": 16, "max_context_tokens": 1024, "max_step_tokens": 512}, kv_tokens=16_384,
        status="running", done=3, total=12, eta_s=40, message="8 decodes", log="12:00:00 began\n" * 40,
    )  # fmt: skip
    services.store_samples(row, fitted_samples[:10])
    return row


@pytest.mark.parametrize(
    ("name", "scheme"),
    [*((name, "light") for name in PATHS), ("list", "dark"), ("new", "dark"), ("detail", "dark")],
)
def test_no_severe_barrier(name, scheme, published, visit) -> None:
    page = settled(visit(PATHS[name](published), scheme=scheme))
    if name == "detail":
        expect(page.locator(".plot .main-svg").first).to_be_visible()
        page.locator("#figures details summary").first.click()
    assert severe(page) == []


def test_no_severe_barrier_on_a_running_job(running, visit) -> None:
    page = visit(PATHS["detail"](running), scheme="dark")
    expect(page.locator(".plot .main-svg").first).to_be_visible()
    assert severe(page) == []


def test_a_severe_barrier_would_be_found(visit) -> None:
    page = visit("/nowhere")
    page.evaluate(
        "document.querySelector('main').append(document.createElement('input'), document.createElement('button'))"
    )
    assert len(severe(page)) == 2


def test_no_severe_barrier_for_a_stranger(several_users, visit) -> None:
    assert severe(visit(reverse("accounts:sign_in"), user=None)) == []


def test_no_severe_barrier_beside_errors(published, visit) -> None:
    page = visit(reverse("calibration:new"))
    page.fill("#id_max_batch", "0")
    page.click("text=Start measuring")
    expect(page.locator("#id_max_batch_error")).to_be_visible()
    assert severe(page) == []


@pytest.mark.parametrize("name", ["home", "list", "new", "import", "detail"])
def test_nothing_is_wider_than_a_phone(name, published, visit) -> None:
    page = settled(visit(PATHS[name](published), width=390))
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_figures_are_drawn_and_answer_the_pointer(published, visit) -> None:
    page = visit(PATHS["detail"](published))
    expect(page.locator(".plot .main-svg")).not_to_have_count(0)
    expect(page.locator("#figures .plot:has(.main-svg)")).to_have_count(4)
    expect(page.locator(".placeholder")).to_have_count(0)
    figure = page.locator("figure", has_text="Accuracy")
    figure.scroll_into_view_if_needed()
    point = figure.locator(".scatterlayer .points path").first
    point.hover(force=True)
    expect(figure.locator(".hoverlayer .hovertext").first).to_be_visible()


def test_a_figure_has_the_same_as_a_table(published, visit) -> None:
    page = visit(PATHS["detail"](published))
    figure = page.locator("figure").first
    figure.locator("summary").click()
    expect(figure.locator("tbody tr").first).to_be_visible()
    assert figure.locator("thead th").count() == 6


def test_the_legend_hides_a_curve(published, visit) -> None:
    page = visit(PATHS["detail"](published))
    figure = page.locator("figure").first
    lines = figure.locator(".scatterlayer .trace")
    expect(lines).not_to_have_count(0)
    before = lines.count()
    entry = figure.locator(".legend button").first
    entry.click()
    expect(entry).to_have_attribute("aria-pressed", "false")
    assert lines.count() < before


def test_colours_follow_the_theme(published, visit) -> None:
    page = visit(PATHS["detail"](published), scheme="light")
    line = page.locator("figure").first.locator(".scatterlayer .js-line").nth(1)
    expect(line).to_have_css("stroke", "rgb(0, 114, 178)")
    page.emulate_media(color_scheme="dark")
    expect(page.locator("figure").first.locator(".scatterlayer .js-line").nth(1)).to_have_css(
        "stroke", "rgb(86, 180, 233)"
    )


def test_a_job_is_followed_to_its_end(running, visit, fitted_samples, calibration_result) -> None:
    page = visit(PATHS["detail"](running))
    expect(page).to_have_title("25 % · at it · Ridgeline")
    expect(page.locator("#figures .plot:has(.main-svg)")).not_to_have_count(0)
    services.store_samples(running, fitted_samples[10:], first=10)
    rows = Calibration.objects.filter(pk=running.pk)
    rows.update(done=6, message="16 decodes")
    expect(page.locator("#job-live")).to_contain_text("16 decodes")
    expect(page).to_have_title("50 % · at it · Ridgeline")
    rows.update(status="done", done=12, published=True, reason="It held.", result=calibration_result)
    expect(page.locator("#result")).to_contain_text("It held.")
    expect(page.locator("#page-actions")).to_contain_text("Run again")
    expect(page.locator("#tables")).to_contain_text("Held-out errors")
    expect(page).to_have_title("at it · Ridgeline")
    expect(page.locator("#job-announce")).to_have_text("done")
    expect(page.locator("figure").first.locator(".scatterlayer .js-line")).not_to_have_count(0)
    assert page.locator("#job-live").get_attribute("hx-get") is None


def test_the_model_is_described_while_it_is_chosen(project, visit) -> None:
    page = visit(reverse("calibration:new"))
    expect(page.locator("#architecture")).to_contain_text("32.5 million")
    page.select_option("#id_model", "llama-3.1-8b")
    expect(page.locator("#architecture")).to_contain_text("8.03 billion")
    expect(page.locator("#id_config_text")).to_be_hidden()
    page.select_option("#id_model", "config")
    expect(page.locator("#id_config_text")).to_be_visible()


def test_the_keyboard_reaches_the_content_first(published, visit) -> None:
    page = visit(reverse("home"))
    page.keyboard.press("Tab")
    expect(page.locator(".skip-link")).to_be_focused()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
