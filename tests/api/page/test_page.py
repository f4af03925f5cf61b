"""The page at /: what is served. What people can do with it is tested in a browser beside this file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from forescribe.api.routers import page as pages

ROOT = Path(__file__).parents[3]
FILES = sorted([*(ROOT / "api" / "page").iterdir(), *(ROOT / "asr" / "formats" / "view").iterdir()])


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI()
    app.include_router(pages.router)
    return TestClient(app)


def test_people_get_the_page_and_programs_the_ancestors_ok(client) -> None:
    shown = client.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert shown.status_code == 200 and shown.text.startswith("<!doctype html>")
    told = client.get("/")
    assert told.text == "OK" and told.headers["content-type"].startswith("text/plain")
    assert {shown.headers["vary"], told.headers["vary"]} == {"Accept"}


def test_nothing_but_this_servers_own_files_may_run(client) -> None:
    headers = client.get("/", headers={"Accept": "text/html"}).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'" and policy["script-src"] == policy["style-src"]
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_every_file_that_the_page_names_is_served_and_no_other(client) -> None:
    named = {"index.html"}
    for name in (waiting := ["index.html"]):
        text = client.get(f"/page/{name}").text
        found = re.findall(r'(?:from "\./|(?:href|src)="page/)([\w.]+)"', text)
        waiting += [other for other in dict.fromkeys(found) if other not in waiting]
        named |= set(found)
    assert {"app.js", "viewer.js", "view.css", "icon.svg"} <= named
    for name in named:
        answer = client.get(f"/page/{name}")
        assert answer.status_code == 200 and answer.headers["x-content-type-options"] == "nosniff"
        again = client.get(f"/page/{name}", headers={"If-None-Match": answer.headers["etag"]})
        assert again.status_code == 304 and not again.content
    for name in ("../app.py", "..%2Fapp.py", "report.html", "page.py", ""):
        assert client.get(f"/page/{name}").status_code == 404


def test_no_file_holds_inline_code_markup_from_text_or_a_foreign_address() -> None:
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        for namespace in ("http://www.w3.org/2000/svg", "http://schemas.openxmlformats.org"):
            text = text.replace(namespace, "")
        assert not re.search(r"https?://(?!\s|and\b)", text.replace("https:// and", "")), path.name
        if path.suffix == ".js":
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text
            )
        if path.name == "index.html":
            assert not re.search(r"<style|\son\w+=|\sstyle=|<script(?![^>]*\ssrc=)", text)


def test_text_can_be_read_on_what_it_stands_on() -> None:
    """WCAG's 4.5:1, for every colour of text on both grounds, light and dark."""
    css = (ROOT / "asr" / "formats" / "view" / "view.css").read_text(encoding="utf-8")
    found = re.findall(
        r"(?:--|\.speaker-)([\w-]+)(?:: | { --tone: )light-dark\((#\w{6}), (#\w{6})\)", css
    )
    schemes = [{name: colours[n] for name, *colours in found} for n in (0, 1)]
    texts = "ink quiet accent bad good doubt 0 1 2 3 4 5 6 7".split()
    for colours in schemes:
        pairs = [(text, ground) for text in texts for ground in ("ground", "raised")]
        pairs += [("on-accent", "accent"), ("ink", "wash"), ("ink", "bad-wash"), ("ink", "lit")]
        pairs += [("ink", "found"), ("quiet", "wash"), ("accent", "wash"), ("bad", "wash")]
        pairs += [("bad", "bad-wash"), ("raised", "doubt"), ("raised", "bad"), ("raised", "good")]
        for text, ground in pairs:
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground, colours[text])
        assert contrast(colours["edge"], colours["raised"]) >= 3


def contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)
