"""The page at /: what it serves, and what people can do with it, in a real browser over a fake service.

The fake (`tests/api/jobs/fakejobs.py`) keeps the jobs' contract; texts and names are what an attacker would
choose.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from fastapi import FastAPI
from fastapi.testclient import TestClient

from forescribe.api.routers import page as pages
from forescribe.asr.formats import files
from forescribe.asr.formats.transcript import Transcript
from tests import browser as browsing
from tests.api.conftest import until
from tests.api.jobs.fakejobs import WARNING, Fake, Server, conversation, running, transcript

browser = browsing.browser

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "api" / "page").iterdir(), *(ROOT / "asr" / "formats" / "view").iterdir()])


@pytest.fixture(scope="module")
def tone(tmp_path_factory) -> Path:
    """Half a minute to play."""
    path = tmp_path_factory.mktemp("audio") / "tone.wav"
    soundfile.write(path, 0.1 * np.sin(np.arange(8000 * 30) * 0.2), 8000)
    return path


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI()
    app.include_router(pages.router)
    return TestClient(app)


def walk(turns: int = 5) -> Transcript:
    return transcript(conversation(turns))


# -- what is served -----------------------------------------------------------------------------------


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
    # All at once: modules that are found by their imports come one round trip behind the other.
    index = client.get("/page/index.html").text
    ahead = re.findall(r'rel="modulepreload" href="page/([\w.]+)"', index)
    assert sorted(ahead) == sorted(name for name in named - {"app.js"} if name.endswith(".js"))
    for name in named:
        answer = client.get(f"/page/{name}")
        assert answer.status_code == 200 and answer.headers["x-content-type-options"] == "nosniff"
        again = client.get(f"/page/{name}", headers={"If-None-Match": answer.headers["etag"]})
        assert again.status_code == 304 and not again.content
    for name in ("../app.py", "..%2Fapp.py", "report.html", "page.py", ""):
        assert client.get(f"/page/{name}").status_code == 404


def test_no_file_holds_inline_code_markup_from_text_or_a_foreign_address() -> None:
    for path in FILES:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
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
    schemes = [
        dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in css.split("@media")[:2]
    ]
    texts = (
        "ink quiet accent bad good accepted correction bonus plain s0 s1 s2 s3 s4 s5 s6 s7".split()
    )
    for colours in schemes:
        pairs = [(text, ground) for text in texts for ground in ("ground", "raised")]
        pairs += [("on-accent", "accent"), ("ink", "wash"), ("ink", "bad-wash"), ("ink", "lit")]
        pairs += [("ink", "found"), ("quiet", "wash"), ("accent", "wash"), ("bad", "wash")]
        pairs += [
            ("bad", "bad-wash"),
            ("raised", "correction"),
            ("raised", "bad"),
            ("raised", "good"),
        ]
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


# -- in a browser -------------------------------------------------------------------------------------


def send(page: Any, path: Path, name: str | None = None) -> None:
    file = {"name": name or path.name, "mimeType": "audio/wav", "buffer": path.read_bytes()}
    page.locator("#files").set_input_files([file])


def lines(page: Any) -> str:
    return re.sub(r"\s+", " ", page.locator(".transcript").inner_text())


def test_a_recording_is_sent_watched_read_and_heard(browser, tone) -> None:
    fake = Fake(tone, walk())
    with running(fake.app) as url, browsing.watched(browser, url) as page:
        page.get_by_text("Transcripts with speakers").wait_for()
        page.locator("#settings summary").click()
        page.get_by_label("Language").select_option("en")
        page.get_by_label("Identify speakers").check()
        page.get_by_label("Number of speakers").fill("2")
        send(page, tone)
        page.locator(".running-text", has_text="weather report").wait_for()
        assert page.get_by_role("progressbar", name="Progress", exact=True).is_visible()
        form = fake.forms[0]
        assert form == {
            "bytes": tone.stat().st_size,
            "file": "tone.wav",
            "language": "en",
            "task": "transcribe",
            "diarize": "true",
            "num_speakers": "2",
            "upload_id": "up_1",
        }
        fake.jobs["job-1"].going.set()
        page.locator(".viewer").wait_for()
        told = lines(page)
        for _, text in conversation(5):
            assert text in told
        page.locator(".w", has_text="ridge").first.click()
        page.locator(".w.now").first.wait_for()
        clicked = next(
            w.start for s in fake.told.segments for w in s.words or () if "ridge" in w.text
        )
        at = float(page.get_by_label("Position").input_value())
        assert clicked - 0.11 <= at < clicked + 5
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Play", exact=True).wait_for()


def test_what_was_said_and_how_files_are_called_is_never_code(browser, tone) -> None:
    said = transcript([(HOSTILE, f"one {HOSTILE} two"), ("</script>B", "javascript:alert(1)")])
    fake = Fake(tone, said)
    fake.add(label=HOSTILE)
    error = {"code": "invalid_audio", "message": HOSTILE}
    fake.add(label="b.wav", state="failed", error=error)
    with running(fake.app) as url:
        with browsing.watched(browser, f"{url}/#job-1") as page:
            page.locator(".viewer").wait_for()
            assert page.locator("h1").inner_text() == HOSTILE
            assert f"one {HOSTILE} two" in lines(page)
            field = page.get_by_label("Name of speaker A")
            field.fill(HOSTILE + "!")
            assert page.locator(".who .name").first.inner_text() == HOSTILE + "!"
            assert page.locator("img, iframe, object, embed").count() == 0
            assert page.title() == f"{HOSTILE} · forescribe"
        with browsing.watched(browser, f"{url}/#job-2") as page:
            page.get_by_role("alert").filter(has_text="onerror").wait_for()
            assert page.locator("img").count() == 0


def test_a_server_without_jobs_is_told_and_the_tab_does_the_work(browser, tone) -> None:
    fake = Fake(tone, walk(), jobs=False)
    fake.streaming.clear()
    with running(fake.app) as url, browsing.watched(browser, url, refusals=True) as page:
        page.get_by_text("Jobs are disabled on this server").wait_for()
        assert "transcripts are kept in this tab only" in page.locator("#notices").inner_text()
        page.locator("#settings summary").click()
        page.get_by_label("Identify speakers").check()
        send(page, tone)
        page.locator(".running-text", has_text="Good morning").wait_for()
        fake.streaming.set()
        page.locator(".viewer").wait_for()
        assert [form["response_format"] for form in fake.forms] == ["diarized_json", "verbose_json"]
        assert fake.forms[1]["timestamp_granularities[]"] == ["word", "segment"]
        assert page.locator(".person").count() == 2
        words = sum(len(s.words or ()) for s in fake.told.segments)
        assert page.locator(".w[data-n]").count() == words
        page.locator(".w", has_text="ridge").first.click()
        page.locator(".w.now").first.wait_for()


def test_a_key_is_asked_for_kept_in_the_tab_and_sent_with_everything(browser, tone) -> None:
    fake = Fake(tone, walk(), key="fs-secret")
    fake.add()
    with running(fake.app) as url, browsing.watched(browser, url, refusals=True) as page:
        page.get_by_text("This server requires an API key.").wait_for()
        field = page.get_by_label("API key, if this server requires one")
        field.fill("wrong")
        field.press("Enter")
        page.get_by_text("The server does not know this key.").wait_for()
        field.fill("fs-secret")
        field.press("Enter")
        page.locator("#list a").click()
        page.locator(".viewer").wait_for()
        assert page.locator(".notice").count() == 0, "what has passed is not said any more"
        # The player cannot send a key: the recording is fetched with it.
        page.locator(".play:enabled").wait_for()
        page.locator(".transcript .w").first.click()
        page.locator(".w.now").first.wait_for()
        assert page.evaluate("JSON.stringify(localStorage)").find("fs-secret") == -1
        assert page.evaluate("Object.values(sessionStorage)") == ["fs-secret"]
        assert "fs-secret" not in page.url


def test_an_event_stream_that_breaks_goes_on_where_it_was(browser, tone) -> None:
    fake = Fake(tone, walk())
    job = fake.add(state="running", progress={"done_s": 0, "total_s": 20})
    job.breaks = 1
    job.going.set()
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".viewer").wait_for()
        assert fake.resumed == ["1"]


def test_names_are_given_kept_and_written_into_files(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.add()
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".viewer").wait_for()
        for name in ("txt", "srt", "vtt", "tsv"):
            assert download(page, name) == files.FORMATS[name].render(fake.told), name
        assert json.loads(download(page, "json")) == fake.told.to_dict()
        assert download(page, "rttm") == "rttm of job-1\n"
        page.get_by_label("Name of speaker B").fill("Zoë")
        assert set(page.locator(".who .name").all_inner_texts()) == {"Speaker A", "Zoë"}
        page.reload()
        page.locator(".viewer").wait_for()
        assert "Zoë" in page.locator(".who .name").all_inner_texts()
        assert "[Zoë]: It did." in download(page, "srt")
        assert "[SPEAKER_00]: Good morning" in download(page, "srt")


def download(page: Any, name: str) -> str:
    page.get_by_role("button", name="Download").click()
    with page.expect_download() as waiting:
        page.get_by_role("menuitem", name=f".{name})").click()
    assert waiting.value.suggested_filename == f"recording 1.{name}"
    return Path(waiting.value.path()).read_text(encoding="utf-8")


def test_words_are_found_and_coloured_by_who_wrote_them(browser, tone) -> None:
    fake = Fake(tone, transcript(conversation(10), warnings=(WARNING,), failed_s=1.0))
    fake.add()
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".viewer").wait_for()
        field = page.get_by_label("Search in the transcript")
        field.fill("THE RIDGE")
        assert page.locator(".search .count").inner_text() == "4 found"
        field.press("Enter")
        field.press("Enter")
        assert page.locator(".search .count").inner_text() == "2 of 4"
        assert page.locator(".w.found").all_inner_texts() == ["The", "ridge,"]
        field.fill("nobody says this")
        assert page.locator(".search .count").inner_text() == "not found"

        assert not page.locator(".figures").is_visible()
        page.locator(".views").get_by_text("Who wrote it").click()
        figures = page.get_by_role("region", name="Who wrote it")
        assert "73.8 % of 160 drafted tokens accepted; 3.95 tokens" in figures.inner_text()
        assert "118 tokens" in figures.inner_text() and "37 of 40" in figures.inner_text()
        expected = [
            "correction"
            if "correction" in sources
            else "bonus"
            if "bonus" in sources
            else "accepted"
            for s in fake.told.segments
            for w in s.words or ()
            for sources in (w.sources or (),)
        ]
        shown = page.locator(".transcript .w").evaluate_all("all => all.map(w => w.classList[1])")
        assert shown == [f"by-{who}" for who in expected]
        looks = page.evaluate(
            "['accepted', 'correction', 'bonus'].map(who => {"
            "  const look = getComputedStyle(document.querySelector('.transcript .by-' + who));"
            "  return look.textDecorationLine + look.textDecorationStyle;})"
        )
        assert len(set(looks)) == 3, "colour is never alone"
        assert "1.0 s failed" in page.locator(".coverage").inner_text()
        warned = page.get_by_label("Warnings").inner_text()
        assert warned.split("\n")[1:] == ["A warning about this transcript", WARNING.message]


def test_doubtful_text_is_marked_where_it_stands(browser, tone) -> None:
    told = walk()
    first, *rest = told.segments
    doubted = (replace(first, doubt="log-probability -1.37"), *rest)
    fake = Fake(tone, replace(told, segments=doubted))
    fake.add()
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".viewer").wait_for()
        marked = page.locator(".transcript .doubtful").all_inner_texts()
        assert " ".join(marked) == first.text.strip()
        (said,) = page.locator(".doubt").all_inner_texts()
        assert said.endswith("doubtful: log-probability -1.37")
        look = "e => getComputedStyle(e).textDecorationStyle"
        assert page.locator(".doubtful").first.evaluate(look) == "dashed"


def test_recordings_are_cancelled_tried_again_and_deleted(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.add(state="running", label="a.wav", progress={"done_s": 5, "total_s": 20})
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.on("dialog", lambda dialog: dialog.accept())
        main = page.get_by_role("main")
        main.get_by_role("button", name="Cancel").click()
        page.get_by_text("Cancelled.").wait_for()
        main.get_by_role("button", name="Retry").click()
        main.get_by_role("button", name="Cancel").wait_for()
        fake.jobs["job-1"].going.set()
        page.locator(".viewer").wait_for()
        main.get_by_role("button", name="Delete").click()
        page.get_by_text("None yet.").wait_for()
        assert not fake.jobs


def test_what_the_server_refuses_is_said_with_the_files_name(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.refuse = (413, "audio_too_long", "audio of 5 h; at most 4 h")
    with running(fake.app) as url, browsing.watched(browser, url, refusals=True) as page:
        page.get_by_text("None yet.").wait_for()
        send(page, tone, "long.wav")
        page.get_by_text("long.wav: audio of 5 h; at most 4 h").wait_for()
        page.get_by_text("None yet.").wait_for()


def test_the_microphone_becomes_a_recording(browser, tone) -> None:
    fake = Fake(tone, walk())
    allowed = {"permissions": ["microphone"]}
    style = "(e => [e.paddingBottom, e.lineHeight, e.fontSize])(getComputedStyle(record))"
    with running(fake.app) as url, browsing.watched(browser, url, **allowed) as page:
        page.get_by_text("None yet.").wait_for()
        still = page.evaluate(style)
        page.get_by_role("button", name="Record").click()
        page.locator("#microphone", has_text="0:01").wait_for()
        assert page.evaluate(style) == still, "it looks as before, but for its colour"
        page.get_by_role("button", name="Discard").click()
        page.get_by_role("button", name="Record").click()
        page.locator("#microphone", has_text="0:01").wait_for()
        page.get_by_role("button", name="Stop and send").click()
        page.locator(".running-text").wait_for(state="attached")
    assert [form["file"].rpartition(".")[2] for form in fake.forms] == ["webm"]
    assert fake.forms[0]["bytes"] > 500


def test_all_of_it_works_from_the_keyboard(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.add()
    with running(fake.app) as url, browsing.watched(browser, url) as page:
        page.locator("#list a").wait_for()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.locator("#list a").focus()
        page.keyboard.press("Enter")
        page.locator(".viewer").wait_for()
        page.locator(".play:enabled").wait_for()
        page.locator(".transcript [tabindex='0']").focus()
        for _ in range(2):
            page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.textContent") == "thanks"
        page.keyboard.press("Enter")
        page.locator(".w.now", has_text="thanks").wait_for()
        page.keyboard.press(" ")
        page.get_by_role("button", name="Play", exact=True).wait_for()
        reached = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.getAttribute('aria-label') || ''"))
        assert {"Search in the transcript", "Position", "Speed", "Play"} <= reached


def test_a_screen_reader_finds_names_landmarks_and_news(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.add()
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".viewer").wait_for()
        unnamed = page.evaluate(
            "[...document.querySelectorAll('button, input, select, progress, audio[controls], a[href]')]"
            ".filter(e => !(e.getAttribute('aria-label') || e.labels?.length || e.textContent.trim()))"
            ".map(e => e.outerHTML)"
        )
        assert unnamed == []
        for role in ("banner", "main", "complementary"):
            assert page.get_by_role(role).count() == 1, role
        assert page.locator("h1").count() == 1
        assert page.locator("[role=status], [role=alert]").count() >= 4
        assert page.evaluate("document.documentElement.lang") == "en"
        # Letters of speakers are for eyes: their names are there in words.
        assert page.locator(".letter:not([aria-hidden])").count() == 0


def test_phones_show_all_of_it_without_scrolling_sideways(browser, tone) -> None:
    warnings = tuple(WARNING for _ in range(6))
    fake = Fake(tone, transcript(conversation(8), warnings=warnings, failed_s=1.0))
    fake.add(label="a very long name without any spaces " + "x" * 120)
    fake.add(label="y" * 200, state="failed", error={"code": "x", "message": "z" * 200})
    fake.add(label="running.wav", state="running", progress={"done_s": 5, "total_s": 20})
    phone = {"viewport": {"width": 375, "height": 812}, "has_touch": True}
    with running(fake.app) as url, browsing.watched(browser, url, **phone) as page:
        for id, there in (("", "#list a"), ("job-1", ".viewer"), ("job-2", ".failure")):
            page.evaluate("id => location.hash = id", id)
            page.locator(there).first.wait_for()
            if id == "job-1":
                assert not page.locator("#side").is_visible()
                page.get_by_label("Search in the transcript").fill("the ridge")
                page.get_by_role("button", name="Download").click()
                box = page.get_by_role("menu").bounding_box()
                assert box["x"] >= 0 and box["x"] + box["width"] <= 375
                page.locator(".views").get_by_text("Who wrote it").click()
            for width in (375, 320):
                page.set_viewport_size({"width": width, "height": 812})
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (id, width)
                inside = page.evaluate(
                    "[...document.querySelectorAll('button, a, input, select, summary, .notice')]"
                    ".filter(e => e.checkVisibility() && !e.closest('.unseen, .skip, dialog'))"
                    ".filter(e => e.getBoundingClientRect().right > innerWidth + 0.5)"
                    ".map(e => e.outerHTML)"
                )
                assert inside == [], (id, width)
            page.set_viewport_size({"width": 375, "height": 812})
        page.get_by_role("link", name="All recordings").click()
        page.locator("#side").wait_for()


def test_speakers_can_be_found_afterwards(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.add(transcript([(None, text) for _, text in conversation(3)]))
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".viewer").wait_for()
        assert page.locator(".person").count() == 0
        page.locator(".actions summary").click()
        page.get_by_label("Number of speakers").last.fill("2")
        page.get_by_role("button", name="Find speakers").click()
        page.locator(".person").first.wait_for()
        assert page.locator(".person").count() == 2


# -- servers that come and go, other tabs -------------------------------------------------------------


def test_a_server_that_is_gone_for_minutes_is_waited_for(browser, tone) -> None:
    fake, gone = Fake(tone, walk()), "The server does not answer."
    job = fake.add(state="running", progress={"done_s": 0, "total_s": 20})
    server = Server(fake.app)
    at = f"{server.url}/#job-1"
    try:
        with browsing.watched(
            browser, at, refusals=True, before=lambda page: page.clock.install()
        ) as page:
            page.locator(".running-text", has_text="weather report").wait_for()
            with page.expect_event("requestfailed"):
                server.stop()
            notice = page.get_by_role("status").filter(has_text=gone)
            notice.wait_for()
            for _ in range(12):  # each pause ends at once: three minutes
                with page.expect_event("requestfailed"):
                    page.clock.fast_forward(20_000)
            assert notice.is_visible() and page.locator(".failure").count() == 0
            server.start()
            job.going.set()
            page.get_by_role("button", name="Try now").click()
            page.locator(".viewer").wait_for()
            notice.wait_for(state="detached")
            page.get_by_text("The server answers again.").wait_for()
            page.clock.fast_forward(10_000)
            page.get_by_text("The server answers again.").wait_for(state="detached")
            assert fake.resumed and set(fake.resumed) == {"2"}, "no text came twice"
    finally:
        server.stop()
    assert fake.forbidden == []


def test_an_upload_goes_on_where_it_was_in_the_server_that_comes_back(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.holds_at = 100_000
    server = Server(fake.app)
    try:
        with browsing.watched(browser, server.url, refusals=True) as page:
            page.get_by_text("None yet.").wait_for()
            send(page, tone, 'the "quoted" name & 100%22.wav')
            assert fake.held.wait(60)
            server.stop()
            page.get_by_text("waiting: The server does not answer.").wait_for()
            fake.holds_at, fake.loading = None, True
            server.start()
            page.get_by_role("button", name="Try now").click()
            page.get_by_text("waiting: the server is loading").wait_for()
            fake.loading = False
            page.locator(".running-text", has_text="weather report").wait_for()
            assert page.locator("h1").inner_text() == 'the "quoted" name & 100%22.wav'
            assert page.evaluate("localStorage.getItem('forescribe.uploads')") == "{}"
    finally:
        server.stop()
    assert fake.offsets == [0, 100_000]
    assert fake.bodies == [tone.read_bytes()] and len(fake.jobs) == 1
    assert fake.forbidden == []


def test_a_file_that_is_chosen_again_after_a_reload_is_not_sent_twice(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.holds_at = 100_000
    with running(fake.app) as url, browsing.watched(browser, url, refusals=True) as page:
        page.on("dialog", lambda dialog: dialog.accept())  # "leave the page?"
        page.get_by_text("None yet.").wait_for()
        page.locator("#files").set_input_files(tone)
        assert fake.held.wait(60)
        page.reload()
        fake.holds_at = None
        page.get_by_text("None yet.").wait_for()
        page.locator("#files").set_input_files(tone)
        page.locator(".running-text", has_text="weather report").wait_for()
    assert fake.offsets == [0, 100_000] and fake.bodies == [tone.read_bytes()]


def test_files_wait_for_a_server_that_loads_and_a_cancelled_one_is_dropped(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.loading = True
    with running(fake.app) as url, browsing.watched(browser, url, refusals=True) as page:
        page.locator("#server", has_text="the server is loading").wait_for()
        for name in ("a.wav", "b.wav", "c.wav"):
            send(page, tone, name)
        page.get_by_text("waiting: the server is loading").wait_for()
        assert page.get_by_text("waiting to be sent").count() == 2
        page.get_by_role("button", name="Cancel b.wav").click()
        page.get_by_text("b.wav").wait_for(state="detached")
        page.get_by_role("button", name="Cancel a.wav").click()
        page.get_by_text("a.wav").wait_for(state="detached")
        fake.loading = False
        page.locator(".state.running").wait_for()
        assert [form["file"] for form in fake.forms if "file" in form] == ["c.wav"]
        page.locator("#server.ready").wait_for()
    assert fake.uploads == {}


def test_what_other_tabs_and_programs_do_is_seen(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.add(label="one.wav")
    fake.add(label="two.wav")
    with (
        running(fake.app) as url,
        browsing.watched(
            browser, f"{url}/#job-1", refusals=True, before=lambda page: page.clock.install()
        ) as page,
    ):
        page.locator(".viewer").wait_for()
        other = page.context.new_page()
        other.on("dialog", lambda dialog: dialog.accept())
        other.goto(url)
        other.locator("#list a").first.wait_for()
        send(other, tone, "from the other tab.wav")
        page.locator("#list", has_text="from the other tab.wav").wait_for()
        assert page.locator("h1").inner_text() == "one.wav", "it does not push itself forward"
        other.evaluate("location.hash = 'job-1'")
        other.locator(".viewer").wait_for()
        other.locator(".actions").get_by_role("button", name="Delete").click()
        page.get_by_text("one.wav was deleted, in another tab or by the server.").wait_for()
        assert page.locator("#list a").count() == 2
        # What programs do tells nobody: the page looks now and then.
        fake.add(label="from a program.wav")
        page.clock.fast_forward(15_000)
        page.locator("#list", has_text="from a program.wav").wait_for()
        # A recording that is gone on with elsewhere is followed here.
        page.evaluate("location.hash = 'job-2'")
        page.locator(".viewer").wait_for()
        fake.jobs["job-2"].view.update(state="running", progress={"done_s": 0, "total_s": 20})
        page.clock.fast_forward(15_000)
        page.locator(".running-text", has_text="weather report").wait_for()
        # And one that is deleted meanwhile is not waited for.
        fake.jobs.pop("job-2").view["state"] = "erased"
        page.get_by_text("two.wav was deleted").wait_for()


# -- messages -----------------------------------------------------------------------------------------


def test_errors_look_like_errors_and_can_be_closed(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.refuse = (400, "invalid_audio", "not audio that can be decoded")
    with running(fake.app) as url, browsing.watched(browser, url, refusals=True) as page:
        page.get_by_text("None yet.").wait_for()
        for name in ("a.txt", "b.txt", "c.txt"):
            send(page, tone, name)
        alerts = page.get_by_role("alert")
        alerts.nth(2).wait_for()
        assert "c.txt: not audio that can be decoded" in alerts.nth(2).inner_text()
        assert page.locator(".notice.error .icon").all_inner_texts() == ["!", "!", "!"]
        colour = "e => getComputedStyle(e).color"
        assert alerts.first.evaluate(colour) != page.locator("body").evaluate(colour)
        alerts.nth(1).get_by_role("button", name="Close this message").click()
        assert alerts.count() == 2
        focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
        assert focused == "Close this message", "the keyboard stays with the messages"
        fake.refuse = None
        send(page, tone, "a.txt")  # it works this time: the message about it has passed
        page.locator(".running-text").wait_for(state="attached")
        assert alerts.count() == 1 and "c.txt" in alerts.inner_text()
        page.get_by_role("button", name="Close this message").click()
        assert alerts.count() == 0
    assert fake.forbidden == []


def test_a_folder_or_a_lost_file_is_refused_and_not_tried_for_ever(browser, tone, tmp_path) -> None:
    fake, path = Fake(tone, walk()), tmp_path / "gone.wav"
    path.write_bytes(tone.read_bytes())
    fake.holds_at = 100_000
    with running(fake.app) as url, browsing.watched(browser, url, refusals=True) as page:
        page.get_by_text("None yet.").wait_for()
        send(page, tone, "first.wav")
        assert fake.held.wait(60)
        page.locator("#files").set_input_files(path)
        page.get_by_text("waiting to be sent").wait_for()
        path.unlink()
        page.get_by_role("button", name="Cancel first.wav").click()
        page.get_by_role("alert").filter(has_text="gone.wav: The file cannot be read").wait_for()
        page.get_by_text("None yet.").wait_for()


def test_why_a_recording_cannot_be_heard_is_what_the_server_says(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.add()
    fake.audio_gone = True
    with (
        running(fake.app) as url,
        browsing.watched(browser, f"{url}/#job-1", refusals=True) as page,
    ):
        page.locator(".player", has_text="the job's audio is not kept any more").wait_for()
        assert page.locator(".play").is_disabled()


# -- hands and eyes -----------------------------------------------------------------------------------


def test_lists_are_one_tab_stop_each(browser, tone) -> None:
    fake = Fake(tone, walk(12))
    for _ in range(4):
        fake.add()
    stops = "root => [...root.querySelectorAll('a, button, [tabindex]')].filter(e => e.tabIndex >= 0).length"
    focused = "document.activeElement.textContent"
    with running(fake.app) as url, browsing.watched(browser, url) as page:
        page.on("dialog", lambda dialog: dialog.accept())
        rows = page.locator("#list")
        rows.locator("a").first.wait_for()
        assert rows.evaluate(stops) == 1
        rows.locator("[tabindex='0']").focus()
        for key, name in (
            ("ArrowDown", 3),
            ("End", 1),
            ("ArrowDown", 1),
            ("ArrowUp", 2),
            ("Home", 4),
        ):
            page.keyboard.press(key)
            assert page.evaluate(focused).startswith(f"recording {name}.wav"), key
            assert rows.evaluate(stops) == 1
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", "the focus can be seen"
        page.keyboard.press("ArrowRight")
        assert page.evaluate(focused) == "Delete"
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Delete")
        rows.get_by_text("recording 4.wav").wait_for(state="detached")
        assert page.evaluate(focused).startswith("recording 3.wav"), "the focus stays in the list"
        page.keyboard.press("Enter")
        page.locator(".viewer").wait_for()
        text = page.locator(".transcript")
        assert text.evaluate(stops) == 1
        text.locator("[tabindex='0']").focus()
        told = []
        for key in ("ArrowDown", "ArrowRight", "ArrowUp", "ArrowUp", "End", "Home"):
            page.keyboard.press(key)
            told.append(page.evaluate(focused))
        assert told == ["It", "did.", "It", "Good", "eleven.", "Good"]
        assert text.evaluate(stops) == 1
        menu = page.get_by_role("button", name="Download")
        menu.press("ArrowDown")
        assert page.get_by_role("menu").evaluate(stops) == 1
        page.keyboard.press("End")
        assert page.evaluate(focused) == "The recording"
        page.keyboard.press("Escape")
        assert page.get_by_role("menu").count() == 0 and page.evaluate(focused) == "Download"


def test_text_from_right_to_left_is_read_and_walked_so(browser, tone) -> None:
    fake = Fake(tone, transcript([("SPEAKER_00", "שלום לכולם ותודה")]))
    fake.add()
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        first = page.locator(".transcript [tabindex='0']")
        first.focus()
        assert first.evaluate("e => getComputedStyle(e).direction") == "rtl"
        page.keyboard.press("ArrowLeft")
        assert page.evaluate("document.activeElement.textContent") == "לכולם"


def test_keys_of_one_letter_work_outside_of_fields_and_can_be_turned_off(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.add()
    allowed = {"permissions": ["clipboard-read", "clipboard-write"]}
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1", **allowed) as page:
        page.locator(".play:enabled").wait_for()
        page.keyboard.press("/")
        field = page.get_by_label("Search in the transcript")
        page.keyboard.type("l/k?c")
        assert field.input_value() == "l/k?c" and page.locator("dialog[open]").count() == 0
        field.blur()
        page.keyboard.press("c")
        page.get_by_text("Copied.").wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == files.FORMATS["txt"].render(fake.told)
        page.keyboard.press("l")
        assert page.get_by_label("Position").input_value() == "5"
        page.keyboard.press("?")
        help = page.get_by_role("dialog", name="Keyboard shortcuts")
        assert "play or pause" in help.inner_text()
        help.get_by_label("Keys of one letter").uncheck()
        help.get_by_role("button", name="Close").click()
        page.reload()
        page.locator(".play:enabled").wait_for()
        page.keyboard.press("?")
        page.keyboard.press("l")
        assert page.locator("dialog[open]").count() == 0
        assert page.get_by_label("Position").input_value() == "0"


def test_the_address_is_kept_by_the_skip_link_and_may_be_anything(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.add()
    with (
        running(fake.app) as url,
        browsing.watched(browser, f"{url}/#job-1", refusals=True) as page,
    ):
        page.locator(".viewer").wait_for()
        page.locator("#skip").focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"
        assert page.url.endswith("#job-1") and page.locator(".viewer").is_visible()
        page.evaluate("location.hash = '%E0%A4%A'")
        page.get_by_role("heading", name="Not here").wait_for()


def test_the_list_stays_beside_a_long_transcript(browser, tone) -> None:
    said = [text for _, text in conversation(60)]
    fake = Fake(tone, transcript([("SPEAKER_00", text) for text in said]))
    fake.add()
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".viewer").wait_for()
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        assert page.evaluate("scrollY") > 500
        assert page.locator("#drop").bounding_box()["y"] >= 0
        # Who goes on speaking is named once, and not in a column of its own.
        assert page.locator(".who").count() == 1 and page.locator(".paragraph").count() > 5
        text, side = page.locator(".paragraph p").first, page.locator("#content")
        assert text.bounding_box()["x"] - side.bounding_box()["x"] < 130


def test_older_recordings_are_shown_when_asked_for(browser, tone) -> None:
    fake = Fake(tone, walk())
    for _ in range(130):
        fake.add()
    with running(fake.app) as url, browsing.watched(browser, url) as page:
        page.get_by_role("button", name="Show older recordings").click()
        page.locator("#list", has_text="recording 1.wav").wait_for()
        assert page.locator("#list a").count() == 130
        assert not page.locator("#older").is_visible()


def test_progress_says_what_is_known_and_no_more(browser, tone) -> None:
    fake = Fake(tone, walk())
    told = {"diarize": True}
    fake.add(state="running", progress={"done_s": 20, "total_s": 20}, options=told)
    fake.add(state="running", progress={"done_s": 7.99, "total_s": 8.0})
    fake.add(state="queued", progress={"done_s": 0, "total_s": 8.0})
    still = {"reduced_motion": "reduce"}
    with running(fake.app) as url, browsing.watched(browser, url, **still) as page:
        page.locator("#list a").first.wait_for()
        told = page.locator(".list .line").all_inner_texts()
        assert told[0].startswith("waiting\n") and told[1:] == ["running\n99 %", "finding speakers"]
        bars = page.locator("#list progress")
        assert not bars.nth(0).is_visible(), "what waits does not move"
        assert bars.nth(1).get_attribute("value") and bars.nth(2).get_attribute("value") is None
        assert bars.nth(2).evaluate("e => getComputedStyle(e).animationName") == "none"


def test_names_of_files_are_kept_in_downloads_as_far_as_file_systems_take_them(
    browser, tone
) -> None:
    fake = Fake(tone, walk())
    fake.add(label='the "best" of: हिन्दी & 100% (v1.2).final.wav')
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        for name, expected in (("(.txt)", "txt"), ("The recording", "wav")):
            page.get_by_role("button", name="Download").click()
            with page.expect_download() as waiting:
                page.get_by_role("menuitem", name=name).click()
            stem = "the _best_ of_ हिन्दी & 100% (v1.2).final"
            assert waiting.value.suggested_filename == f"{stem}.{expected}"
        assert Path(waiting.value.path()).read_bytes() == tone.read_bytes()


@contextmanager
def served(port: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The real service with the demo pair; killed, with all its children, at the end."""
    command = [
        sys.executable,
        "-m",
        "forescribe",
        "serve",
        "--model",
        "tiny.en",
        "--port",
        str(port),
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FORESCRIBE_")}
    environment["FORESCRIBE_DATA_DIR"] = str(folder)
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL, start_new_session=True
    ) as server:
        try:
            yield server
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_service_that_is_killed_at_work_ends_the_job_before_the_readers_eyes(
    browser, tmp_path
) -> None:
    """The whole of it: the real service, a real recording, SIGKILL while the job runs, a new process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sample, url = ROOT / "samples" / "memo.flac", f"http://127.0.0.1:{port}"

    def listening() -> bool:
        with socket.socket() as trying:
            return trying.connect_ex(("127.0.0.1", port)) == 0

    with served(port, tmp_path) as first:
        until(listening, 300)
        with browsing.watched(browser, url, refusals=True) as page:
            page.context.set_default_timeout(300_000)
            page.locator("#files").set_input_files(sample)  # while the model is still loading
            page.locator(".list .state.running").wait_for()
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
            page.get_by_text("The server does not answer.").wait_for()
            with served(port, tmp_path):
                page.locator(".viewer").wait_for()
                page.get_by_text("The server does not answer.").wait_for(state="detached")
                assert page.locator("#list a").count() == 1
                assert page.locator("h1").inner_text() == "memo.flac"
                said = lines(page).lower()
                assert "printing plant in denver" in said and "quality of the samples" in said
                assert page.get_by_role("alert").count() == 0
