"""What the browser is given: vendored files as they were published, and templates that the CSP lets live."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import plotly
import pytest
from django.contrib.staticfiles import finders
from plotly.validator_cache import ValidatorCache

REPOSITORY = Path(__file__).resolve().parent.parent
VENDOR = REPOSITORY / "static" / "vendor"
LISTED = json.loads((VENDOR / "VENDOR.json").read_text())["files"]
TEMPLATES = sorted((REPOSITORY / "templates").rglob("*.html"))
MODULES = sorted((REPOSITORY / "static" / "js").glob("*.js"))


@pytest.mark.parametrize("entry", LISTED, ids=lambda entry: entry["file"])
def test_vendored_files_are_the_published_ones(entry) -> None:
    assert hashlib.sha256((VENDOR / entry["file"]).read_bytes()).hexdigest() == entry["sha256"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", entry["version"])
    assert entry["version"] in (VENDOR / entry["file"]).read_bytes()[:2000].decode()
    assert entry["licence"] == "MIT"


def test_every_vendored_file_is_listed() -> None:
    found = {path.name for path in VENDOR.iterdir()} - {"VENDOR.json"}
    assert {name for name in found if not name.endswith(".LICENSE.txt")} == {
        entry["file"] for entry in LISTED
    }


def test_plotly_in_the_browser_is_plotly_in_python() -> None:
    bundled = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    version = re.search(r"plotly\.js v([\d.]+)", bundled.read_bytes()[:400].decode())
    assert version is not None
    ours = next(entry for entry in LISTED if entry["package"].startswith("plotly.js"))
    assert ours["version"] == version[1]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(REPOSITORY / "templates")))
def test_templates_hold_nothing_that_the_csp_would_stop(path) -> None:
    text = re.sub(r"{#.*?#}", "", path.read_text())
    assert not re.search(r"<script(?![^>]*\bsrc=)", text), "inline script"
    assert not re.search(r"<style\b", text), "style element"
    assert not re.search(r"\sstyle\s*=", text), "style attribute"
    assert not re.search(r"\son[a-z]+\s*=", text), "event handler"
    assert not re.search(r"hx-on|hx-vals=.js:|javascript:", text), "script in an attribute"
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", text), "something from elsewhere"
    assert "|safe" not in text
    assert "autoescape off" not in text


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(REPOSITORY / "templates")))
def test_static_files_of_templates_exist(path) -> None:
    for name in re.findall(r"{% static '([^']+)' %}", path.read_text()):
        assert finders.find(name), name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_scripts_build_no_markup_from_text(path) -> None:
    assert not re.search(
        r"innerHTML|outerHTML\s*=|insertAdjacentHTML|document\.write|\beval\(|new Function", path.read_text()
    )


def test_every_post_form_carries_a_csrf_token() -> None:
    for path in TEMPLATES:
        forms = re.findall(r"<form[^>]*method=\"post\".*?</form>", path.read_text(), re.DOTALL)
        assert all("{% csrf_token %}" in form for form in forms), path


def test_the_legend_draws_every_symbol_that_a_figure_has() -> None:
    """What it does not know it shows as a circle, which the chart then has nowhere."""
    known = set(ValidatorCache.get_validator("scatter.marker", "symbol").values)
    sources = [*(REPOSITORY / "planner" / "charts").glob("*.py"), REPOSITORY / "calibration" / "charts.py"]
    used = {
        word for path in sources for word in re.findall(r'"([a-z-]+)"', path.read_text()) if word in known
    }
    used.discard("x")  # the axis
    assert "circle" in used
    shapes = (
        (REPOSITORY / "static" / "js" / "legend.js")
        .read_text()
        .partition("const SHAPE = {")[2]
        .partition("};")[0]
    )
    drawn = set(re.findall(r'"?([a-z-]+)"?: "M', shapes))
    assert {symbol.replace("-open", "") for symbol in used} <= drawn


@pytest.mark.parametrize("name", ["_answer.html", "_alternatives.html"])
def test_cells_that_stand_one_under_the_other_on_a_phone_say_what_they_are(name) -> None:
    source = (REPOSITORY / "templates" / "planner" / name).read_text()
    stacked = source.partition('class="table-scroll stacked"')[2].partition("</table>")[0]
    cells = re.findall(r"<td[^>]*>", stacked)
    assert cells
    assert all("data-label=" in cell for cell in cells)
