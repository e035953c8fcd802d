"""The pages in the system's Chromium: a signed-in page per test, light or dark, wide or narrow."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import Client
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.ops.services import PATIENCE_S

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
# Five figures drawn anew on a busy machine took longer than the default of 5 s.
PATIENCE_MS = 1_000 * PATIENCE_S
expect.set_options(timeout=PATIENCE_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/browser" in str(item.path):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.django_db(transaction=True))
            if CHROMIUM is None:
                item.add_marker(pytest.mark.skip(reason="chromium is not installed here"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Playwright's event loop runs in this thread until it stops: Django then suspects the ORM of blocking it, and no
    # other test of this process could start a loop of its own. So it lives for one file's tests.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture
def visit(browser, live_server, owner) -> Iterator[Callable[..., Page]]:
    """``visit("/path/", width=390, scheme="dark")``: the page, as the project's owner. Whatever the console
    complains about fails the test."""
    contexts, complaints = [], []

    def opened(path: str, *, width: int = 1280, scheme: Any = "light", user: Any = owner) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        if user is not None:
            client = Client()
            client.force_login(user)
            name = django_settings.SESSION_COOKIE_NAME
            context.add_cookies([{"name": name, "value": client.cookies[name].value, "url": live_server.url}])
        page = context.new_page()
        page.on(
            "console", lambda message: complaints.append(message.text) if message.type == "error" else None
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(live_server.url + path)
        return page

    opened.complaints = complaints  # type: ignore[attr-defined]
    yield opened
    for context in contexts:
        context.close()
    assert [c for c in complaints if "status of 4" not in c] == []
