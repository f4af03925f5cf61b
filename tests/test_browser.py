"""Where no browser starts, tests that need one are skipped with the reason, and nothing else suffers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import browser as browsing

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[1]

TESTS = """
import asyncio
from tests import browser as browsing
browser = browsing.browser
def test_one(browser): raise AssertionError("there is a browser")
def test_two(browser): raise AssertionError("there is a browser")
def test_others_go_on(): asyncio.run(asyncio.sleep(0))
"""

LIBRARY = "error while loading shared libraries: libnss3.so: cannot open shared object file"


def program(path: Path, said: str) -> str:
    """One that cannot start."""
    path.write_text(f'#!/bin/sh\necho "{path.name}: {said}" >&2\nexit 127\n')
    path.chmod(0o755)
    return str(path)


def driver_fault() -> str | None:
    """Why Playwright's own program does not start here, whatever the browser: libatomic is missing, say."""
    tried = subprocess.run(
        [sys.executable, "-m", "playwright", "--version"], capture_output=True, text=True
    )
    return None if tried.returncode == 0 else browsing.why(tried.stderr)


@pytest.mark.parametrize("broken", ["driver", "chromium", "nothing"])
def test_without_a_browser_its_tests_are_skipped_and_say_why(tmp_path, broken) -> None:
    pytest.importorskip("playwright")
    fault = None if broken == "driver" else driver_fault()
    if fault is not None:
        pytest.skip(fault)
    (tmp_path / "test_pages.py").write_text(TESTS)
    bin = tmp_path / "bin"
    bin.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{bin}:/nowhere"}
    environment["PLAYWRIGHT_BROWSERS_PATH"] = str(tmp_path)
    if broken == "driver":
        environment["PLAYWRIGHT_NODEJS_PATH"] = program(tmp_path / "node", LIBRARY)
    elif broken == "chromium":
        environment["PATH"] += ":/bin:/usr/bin"
        program(bin / "chromium", LIBRARY)

    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-c", os.devnull, "test_pages.py"]
    command += ["-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    told = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True
    ).stdout
    assert "1 passed, 2 skipped" in told, told
    expected = {"driver": LIBRARY, "chromium": LIBRARY, "nothing": "executable doesn't exist"}
    assert expected[broken] in told and "apt-get install chromium" in told, told


def test_a_machine_that_must_have_a_browser_fails_without_one(monkeypatch) -> None:
    monkeypatch.setattr(browsing, "missing", lambda: "no browser: it is gone")
    monkeypatch.setenv("FORESCRIBE_TEST_BROWSER", "required")
    with pytest.raises(pytest.fail.Exception, match="it is gone"), browsing.launched():
        pass
    monkeypatch.delenv("FORESCRIBE_TEST_BROWSER")
    with pytest.raises(pytest.skip.Exception, match="it is gone"), browsing.launched():
        pass


def test_the_reason_is_the_line_that_names_the_cause() -> None:
    assert browsing.why("Traceback\n\nException: Connection closed\n").endswith("Connection closed")
    assert browsing.why("").startswith("no browser: ")
