"""What axe finds on a page: barriers that keep somebody out, of the two severest kinds."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

SEVERE = {"serious", "critical"}


def settled(page: Page) -> Page:
    """After the scripts have drawn what they draw."""
    if page.locator("[data-figure-url], [hx-trigger*=load]").count():
        page.wait_for_load_state("networkidle")
    return page


def severe(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [
        f"{v['id']}: {n['target']} {n['failureSummary']}"
        for v in found
        if v["impact"] in SEVERE
        for n in v["nodes"]
    ]
