"""How long does somebody wait, from the click, for a first useful answer on the page, and for the whole one?

    python -m benchmarks.plan_page --steps STEPS.csv.gz --traffic TRACE.csv.gz [--port 8140] [--times 3]

A whole installation in a temporary folder, served as `manage.py serve` does (web server, two workers, beat), and a
Chromium that fills in the form and clicks. The first question warms the workers and is not counted. Told: the median
seconds from the click until a configuration is shown that meets the objectives so far, or what comes closest, and
until the job is done. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress

from playwright.sync_api import Page, expect, sync_playwright

from benchmarks.plan_sharing import ROOT, installation, stored_question
from benchmarks.plan_speed import add_question

WAIT_MS = 120_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_question(parser)
    parser.add_argument("--port", type=int, default=8140)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--picture", help="a PNG of the page with its first answer")
    options = parser.parse_args()
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"  # Playwright's loop runs in this thread
    with installation():
        _, _, request = stored_question(options)
        command = (sys.executable, "manage.py", "serve", "--port", str(options.port))
        served = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        url = f"http://127.0.0.1:{options.port}"
        try:
            _wait_for(url)
            query = f"calibration={request.calibration.pk}&traffic={request.traffic.pk}"
            waits = _watched(f"{url}/plans/new?{query}", options)
        finally:
            served.terminate()
            served.wait(timeout=60)
    first, whole = (round(statistics.median(seconds), 2) for seconds in zip(*waits, strict=True))
    print(json.dumps({"first_answer_s": first, "whole_answer_s": whole, "times": options.times}))


def _watched(address: str, options: argparse.Namespace) -> list[tuple[float, float]]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        found = [_asked(page, address, options) for _ in range(options.times + 1)]
        browser.close()
    return found[1:]


def _asked(page: Page, address: str, options: argparse.Namespace) -> tuple[float, float]:
    page.goto(address)
    for objective in options.objective or ["ttft:p95:2.0", "itl:p99:0.1"]:
        metric, percentile, limit_s = objective.split(":")
        page.select_option(f"#id_{metric}_percentile", percentile.lstrip("p"))
        page.fill(f"#id_{metric}_limit_ms", str(float(limit_s) * 1e3))
    page.fill("#id_max_replicas", str(options.max_replicas))
    page.fill("#id_headroom", str(options.headroom))
    if options.link_gb_per_s:
        page.locator("summary", has_text="pools").click()
        page.select_option("#id_link", "entered")
        page.fill("#id_link_gb_per_s", str(options.link_gb_per_s))
    clicked_s = time.monotonic()
    page.click("text=Find the configuration")
    expect(page.locator("#result .sentence")).to_be_visible(timeout=WAIT_MS)
    first_s = time.monotonic() - clicked_s
    if options.picture:
        page.screenshot(path=options.picture)
    expect(page.locator("#job-live[data-status=done]")).to_be_visible(timeout=WAIT_MS)
    return first_s, time.monotonic() - clicked_s


def _wait_for(url: str) -> None:
    until_s = time.monotonic() + 120
    while time.monotonic() < until_s:
        with suppress(OSError), urllib.request.urlopen(f"{url}/healthz", timeout=5):
            return
        time.sleep(0.2)
    raise SystemExit("the server did not start")


if __name__ == "__main__":
    main()
