"""Pages of traffic and plans as a browser shows them: accessible, drawn, followed live, copied, and never wider
than a phone."""

from __future__ import annotations

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from planner.models import Plan
from tests.browser.barriers import settled, severe

PATHS = {
    "traffic list": lambda plan: reverse("planner:traffic_list"),
    "upload": lambda plan: reverse("planner:traffic_new"),
    "synthesise": lambda plan: reverse("planner:traffic_synthesise"),
    "traffic": lambda plan: reverse("planner:traffic_detail", args=[plan.traffic_id]),
    "plan list": lambda plan: reverse("planner:plan_list"),
    "ask": lambda plan: (
        f"{reverse('planner:plan_new')}?calibration={plan.calibration_id}&traffic={plan.traffic_id}"
    ),
    "plan": lambda plan: reverse("planner:plan_detail", args=[plan.pk]),
}
DARK = ("synthesise", "traffic", "plan list", "ask", "plan")


@pytest.fixture
def running(finished_plan) -> Plan:
    return Plan.objects.create(
        project=finished_plan.project, owner=finished_plan.owner, name="at it", traffic=finished_plan.traffic,
        calibration=finished_plan.calibration, objectives=finished_plan.objectives, space=finished_plan.space,
        status="running", done=3, total=12, eta_s=4, message="Trying 2 replicas", log="12:00:00 began\n" * 40,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "scheme"), [*((name, "light") for name in PATHS), *((name, "dark") for name in DARK)]
)
def test_no_severe_barrier(name, scheme, finished_plan, visit) -> None:
    page = settled(visit(PATHS[name](finished_plan), scheme=scheme))
    if name in ("plan", "traffic"):
        expect(page.locator("#figures .placeholder")).to_have_count(0)
        page.locator("#figures details summary").first.click()
    assert severe(page) == []


def test_no_severe_barrier_while_it_runs(running, visit) -> None:
    assert severe(visit(PATHS["plan"](running), scheme="dark")) == []


def test_no_severe_barrier_where_everything_is_missing(project, visit) -> None:
    for name in ("planner:traffic_list", "planner:plan_list", "planner:plan_new"):
        assert severe(visit(reverse(name))) == []


def test_no_severe_barrier_beside_errors(finished_plan, visit, tmp_path) -> None:
    page = settled(visit(PATHS["ask"](finished_plan)))
    page.click("text=Find the configuration")
    expect(page.locator("#id_objectives_error")).to_contain_text("at least one")
    assert severe(page) == []
    bad = tmp_path / "bad.csv"
    rows = "".join(f"2023-11-16 18:17:05,x{n},5\n" for n in range(60))
    bad.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    page = visit(PATHS["upload"](finished_plan), scheme="dark")
    page.set_input_files("#id_file", str(bad))
    page.click("text=Read the trace")
    expect(page.locator(".errors-scroll")).to_contain_text("and 10 more")
    assert severe(page) == []


@pytest.mark.parametrize("name", PATHS)
def test_nothing_is_wider_than_a_phone(name, finished_plan, visit) -> None:
    page = settled(visit(PATHS[name](finished_plan), width=390))
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize(("name", "figures"), [("traffic", 6), ("plan", 6)])
def test_figures_are_drawn_and_have_tables(name, figures, finished_plan, visit) -> None:
    page = settled(visit(PATHS[name](finished_plan)))
    expect(page.locator("#figures .plot:has(.main-svg)")).to_have_count(figures)
    expect(page.locator("#figures .legend svg")).not_to_have_count(0)
    for figure in page.locator("figure").all():
        figure.locator("summary").click()
        expect(figure.locator("tbody tr").first).to_be_visible()


def test_a_candidate_answers_the_pointer(finished_plan, visit) -> None:
    page = settled(visit(PATHS["plan"](finished_plan)))
    figure = page.locator("figure", has_text="TTFT against ITL")
    figure.scroll_into_view_if_needed()
    figure.locator(".scatterlayer .points path").first.hover(force=True)
    expect(figure.locator(".hoverlayer .hovertext").first).to_contain_text("budget")


def test_flags_are_copied(finished_plan, visit) -> None:
    page = visit(PATHS["plan"](finished_plan))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = page.locator('[data-copy="flags"]')
    expect(button).to_be_visible()
    button.click()
    expect(button).to_have_text("Copied")
    expect(page.locator("#copy-announce")).to_have_text("Copied to the clipboard")
    assert page.evaluate("navigator.clipboard.readText()") == page.locator("#flags").text_content()
    expect(button).to_have_text("Copy")


def test_a_plan_is_followed_to_its_answer(running, plan_result, visit) -> None:
    page = visit(PATHS["plan"](running))
    expect(page).to_have_title("25 % · at it · Ridgeline")
    rows = Plan.objects.filter(pk=running.pk)
    rows.update(done=6, message="Trying 3 replicas")
    expect(page.locator("#job-live")).to_contain_text("Trying 3 replicas")
    expect(page).to_have_title("50 % · at it · Ridgeline")
    sentence = plan_result["verdict"]["sentence"]
    rows.update(status="done", done=12, feasible=True, sentence=sentence, result=plan_result)
    expect(page.locator("#result .sentence")).to_have_text(sentence.replace("<=", "≤"))
    expect(page.locator("#page-actions")).to_contain_text("Run again")
    expect(page.locator("#candidates tbody tr")).not_to_have_count(0)
    expect(page.locator("#figures .plot:has(.main-svg)")).to_have_count(6)
    expect(page.locator('[data-copy="flags"]')).to_be_visible()
    expect(page).to_have_title("at it · Ridgeline")
    assert page.locator("#job-live").get_attribute("hx-get") is None


def test_candidates_are_sorted_by_a_click(finished_plan, visit) -> None:
    page = visit(PATHS["plan"](finished_plan))
    page.click("#candidates thead >> text=Budget")
    expect(page.locator("th[aria-sort=ascending]")).to_contain_text("Budget")
    page.click("#candidates thead >> text=Budget")
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("Budget")
    assert page.url.endswith("?sort=-budget#candidates")


def test_the_question_is_described_while_it_is_asked(finished_plan, visit) -> None:
    page = visit(reverse("planner:plan_new"))
    expect(page.locator("#question")).to_contain_text(
        "combinations at most"
    )  # there is one of each to choose
    for field in ("calibration", "traffic"):
        page.select_option(f"#id_{field}", "")
    expect(page.locator("#question")).to_contain_text("Choose a calibration")
    page.select_option("#id_calibration", str(finished_plan.calibration_id))
    expect(page.locator("#question")).to_contain_text("combinations at most, on 1 to 8 replicas")
    page.fill("#id_max_replicas", "3")
    page.locator("#id_max_replicas").blur()
    expect(page.locator("#question")).to_contain_text("on 1 to 3 replicas")
    page.select_option("#id_traffic", str(finished_plan.traffic_id))
    expect(page.locator("#question")).to_contain_text("Prompt")
