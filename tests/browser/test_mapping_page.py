"""A file that nothing recognises, mapped by hand: what it becomes follows every answer before it is imported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from planner.models import HeldUpload, TrafficSet

STRANGE = "when;sent;got;note\n" + "".join(f"{i},5;{100 + i};{10 + i};text {i}\n" for i in range(40))


@pytest.fixture(autouse=True)
def data_folder(settings, tmp_path):
    settings.DATA_DIR = tmp_path


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_strange_file_is_mapped_and_imported(width, scheme, project, visit, tmp_path) -> None:
    file = tmp_path / "strange.csv"
    file.write_text(STRANGE)
    page = visit(reverse("planner:traffic_new"), width=width, scheme=scheme)
    page.locator("#id_file").set_input_files(file)
    page.get_by_role("button", name="Read the trace").click()
    expect(page.locator("h1")).to_have_text("How to read strange.csv")
    becomes = page.locator("#consequences")
    expect(becomes).to_contain_text("Which columns hold the lengths")
    for role, column in {"time": "when", "prompt": "sent", "output": "got"}.items():
        page.locator(f"#id_column_{role}").select_option(column)
    expect(becomes).to_contain_text("40 requests over 39\u00a0s")
    expect(page.locator("#map-columns th").first).to_contain_text("time")
    page.locator("#id_time_unit").select_option("min")
    expect(becomes).to_contain_text("40 requests over 39\u00a0min")
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=str(Path(folder) / f"mapping-{width}-{scheme}.png"), full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("button", name="Import it so").click()
    expect(page.locator("h1")).to_have_text("strange.csv")
    assert TrafficSet.objects.get().statistics["duration_s"] == 39 * 60
    assert not HeldUpload.objects.exists()


LATE_CHOICE = """document.addEventListener("htmx:beforeOnLoad", () => {
  const prompt = document.querySelector("#id_column_prompt");
  prompt.value = "sent";
  prompt.dispatchEvent(new Event("change", {bubbles: true}));
}, {once: true})"""


def test_an_answer_to_what_was_chosen_before_does_not_undo_a_choice(project, visit, tmp_path) -> None:
    file = tmp_path / "strange.csv"
    file.write_text(STRANGE)
    page = visit(reverse("planner:traffic_new"))
    page.locator("#id_file").set_input_files(file)
    page.get_by_role("button", name="Read the trace").click()
    expect(page.locator("h1")).to_have_text("How to read strange.csv")
    page.locator("#id_column_output").select_option("got")
    page.evaluate(LATE_CHOICE)
    page.locator("#id_column_time").select_option("when")
    expect(page.locator("#consequences")).to_contain_text("40 requests over 39\u00a0s")
    expect(page.locator("#id_column_prompt")).to_have_value("sent")
