"""A real browser for tests of pages: one Chromium, a fresh context for each page, everything watched.

    browser = browsing.browser                      # in a test module: the fixture
    with browsing.watched(browser, url) as page: ...

A page that throws, breaks its Content-Security-Policy or asks anybody but its own server fails its test.
Where no browser starts, the tests are skipped with the reason; FORESCRIBE_TEST_BROWSER=required, which is for
machines that have one, makes that a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WAIT_MS = 60_000  # shared machines are slow at times
START_S = 120

# A microphone that beeps.
MICROPHONE = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")

PROBE = """
import sys
from tests import browser
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    playwright.chromium.launch(executable_path=browser.found(playwright), args=browser.flags()).close()
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched(*MICROPHONE) as running:
        yield running


@contextmanager
def launched(*more: str) -> Iterator[Any]:
    """A Chromium with further flags, while the block runs. Skips, and says why, where there is none.

    One at a time in a process: Playwright's loop runs in this thread until the end of the block.
    """
    reason = missing()
    if reason is not None:
        if os.environ.get("FORESCRIBE_TEST_BROWSER") == "required":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        given = {"executable_path": found(playwright), "args": [*flags(), *more]}
        running = playwright.chromium.launch(**given)
        yield running
        running.close()


def found(playwright: Any) -> str:
    """The system's Chromium, else the one that Playwright has installed."""
    return next(filter(None, map(shutil.which, NAMES)), playwright.chromium.executable_path)


def flags() -> list[str]:
    """A root user inside a container needs no sandbox, and can have none."""
    always = ["--disable-gpu", "--mute-audio", "--disable-dev-shm-usage"]
    return always + (["--no-sandbox"] if os.geteuid() == 0 else [])


@cache
def missing() -> str | None:
    """Why no browser starts here. Asked in a process of its own: a Playwright that fails to start leaves
    its loop running in the thread, and fails whatever uses asyncio afterwards."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        tried = subprocess.run(
            [sys.executable, "-c", PROBE],
            cwd=root,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=START_S,
        )
    except subprocess.TimeoutExpired:
        return f"no browser: it did not start within {START_S} s"
    return None if tried.returncode == 0 else why(tried.stderr)


def why(said: str) -> str:
    """The line that names the cause, and what to install."""
    for sign, remedy in (
        ("No module named 'playwright'", "pip install playwright"),
        ("error while loading shared libraries", "apt-get install chromium, which brings them"),
        ("executable doesn't exist", "apt-get install chromium, or playwright install chromium"),
    ):
        line = next((line for line in said.splitlines() if sign in line), None)
        if line is not None:
            return f"no browser: {line.strip()} ({remedy})"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"no browser: {lines[-1] if lines else 'it ended without a word'}"


@contextmanager
def watched(
    browser: Any,
    url: str,
    *,
    refusals: bool = False,
    before: Callable[[Any], None] = lambda page: None,
    **given: Any,
) -> Iterator[Any]:
    """A page at `url`. `refusals`: answers of 4xx and 5xx and broken connections, which browsers log, are
    expected. `before(page)` runs before the page is loaded."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **given})
    context.set_default_timeout(WAIT_MS)
    faults, home = list[str](), urlsplit(url)

    def logged(message: Any) -> None:
        expected = refusals and message.text.startswith("Failed to load resource")
        if message.type == "error" and not expected:
            faults.append(message.text)

    def asked(request: Any) -> None:
        there = urlsplit(request.url)
        if there.scheme not in ("data", "blob") and there.netloc != home.netloc:
            faults.append(f"asks {request.url}")

    context.on("console", logged)
    context.on("weberror", lambda error: faults.append(str(error.error)))
    context.on("request", asked)
    context.add_init_script(
        "addEventListener('securitypolicyviolation', e => console.error('CSP ' + e.violatedDirective))"
    )
    page = context.new_page()
    try:
        before(page)
        page.goto(url)
        yield page
        assert not faults, faults
    finally:
        context.close()


def try_now(page: Any) -> None:
    """Press the button, unless the page has tried again by itself meanwhile: then the button goes, while a
    click waits until it stands still."""
    page.evaluate(
        "[...document.querySelectorAll('button')].find((b) => b.textContent === 'Try now')?.click()"
    )
