"""A real browser for tests of pages: one Chromium, a fresh context for each page, everything watched.

    browser = browsing.browser                      # in a test module: the fixture
    with browsing.watched(browser, url) as page: ...

A page that throws, breaks its Content-Security-Policy or asks anybody but its own server fails its test.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WAIT_MS = 60_000  # shared machines are slow at times


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Skips, and says why, where there is none."""
    reason = "the page is tested in a real browser: pip install playwright"
    api = pytest.importorskip("playwright.sync_api", reason=reason)
    with api.sync_playwright() as playwright:
        found = next(filter(None, map(shutil.which, NAMES)), None)
        found = found or playwright.chromium.executable_path
        if not os.path.exists(found):
            pytest.skip("no Chromium: apt-get install chromium, or playwright install chromium")
        # A microphone that beeps, and a root user who needs no sandbox inside a container.
        flags = ["--disable-gpu", "--mute-audio", "--disable-dev-shm-usage"]
        flags += ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        flags += ["--no-sandbox"] if os.geteuid() == 0 else []
        running = playwright.chromium.launch(executable_path=found, args=flags)
        yield running
        running.close()


@contextmanager
def watched(browser: Any, url: str, *, refusals: bool = False, **given: Any) -> Iterator[Any]:
    """A page at `url`. `refusals`: answers of 4xx and 5xx, which browsers log, are expected."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **given})
    context.set_default_timeout(WAIT_MS)
    page, faults, home = context.new_page(), list[str](), urlsplit(url)

    def logged(message: Any) -> None:
        expected = refusals and message.text.startswith("Failed to load resource")
        if message.type == "error" and not expected:
            faults.append(message.text)

    def asked(request: Any) -> None:
        there = urlsplit(request.url)
        if there.scheme not in ("data", "blob") and there.netloc != home.netloc:
            faults.append(f"asks {request.url}")

    page.on("console", logged)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", asked)
    page.add_init_script(
        "addEventListener('securitypolicyviolation', e => console.error('CSP ' + e.violatedDirective))"
    )
    try:
        page.goto(url)
        yield page
        assert not faults
    finally:
        context.close()
