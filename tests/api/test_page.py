"""The page at /: what it serves, and what people can do with it, in a real browser over a fake service.

The fake (`tests/api/fakejobs.py`) keeps the jobs' contract; texts and names are what an attacker would
choose.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.routers import page as pages
from asr import writers
from asr.transcript import Transcript
from tests import browser as browsing
from tests.api.fakejobs import WARNING, Fake, conversation, running, transcript

browser = browsing.browser

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "api" / "page").iterdir(), *(ROOT / "asr" / "view").iterdir()])


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
    css = (ROOT / "asr" / "view" / "view.css").read_text(encoding="utf-8")
    schemes = [
        dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in css.split("@media")[:2]
    ]
    texts = "ink quiet accent bad accepted correction bonus plain s0 s1 s2 s3 s4 s5 s6 s7".split()
    for colours in schemes:
        pairs = [(text, ground) for text in texts for ground in ("ground", "raised")]
        pairs += [("on-accent", "accent"), ("ink", "wash"), ("ink", "bad-wash"), ("ink", "lit")]
        pairs += [("ink", "found"), ("quiet", "wash"), ("accent", "wash"), ("bad", "wash")]
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
        page.get_by_text("What was said, and by whom").wait_for()
        page.locator("#settings summary").click()
        page.get_by_label("Language").select_option("en")
        page.get_by_label("Tell speakers apart").check()
        page.get_by_label("How many speakers").fill("2")
        send(page, tone)
        page.locator(".live", has_text="weather report").wait_for()
        assert page.get_by_role("progressbar", name="Progress", exact=True).is_visible()
        form = fake.forms[0]
        assert form == {
            "bytes": tone.stat().st_size,
            "file": "tone.wav",
            "language": "en",
            "task": "transcribe",
            "diarize": "true",
            "num_speakers": "2",
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
        page.get_by_text("Jobs are switched off on this server").wait_for()
        assert "the transcript lives in this tab only" in page.locator("#notice").inner_text()
        page.locator("#settings summary").click()
        page.get_by_label("Tell speakers apart").check()
        send(page, tone)
        page.locator(".live", has_text="Good morning").wait_for()
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
        page.get_by_text("This server asks for an API key.").wait_for()
        field = page.get_by_label("Key of this server")
        field.fill("wrong")
        field.press("Enter")
        page.get_by_text("The server does not know this key.").wait_for()
        field.fill("fs-secret")
        field.press("Enter")
        page.locator("#list a").click()
        page.locator(".viewer").wait_for()
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
            assert download(page, name) == writers.FORMATS[name].render(fake.told), name
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
    menu = page.locator(".viewer details.menu")
    if menu.get_attribute("open") is None:
        menu.locator("summary").click()
    with page.expect_download() as waiting:
        menu.get_by_role("button", name=name, exact=True).click()
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
        assert WARNING.message in page.get_by_label("Warnings").inner_text()


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
    with running(fake.app) as url, browsing.watched(browser, url, **allowed) as page:
        page.get_by_text("None yet.").wait_for()
        page.get_by_role("button", name="Record").click()
        page.wait_for_timeout(3000)  # a busy machine starts its recorder late
        page.get_by_role("button", name="Stop").click()
        page.locator(".live").wait_for(state="attached")
        for _ in range(100):  # the upload may still be under way
            if fake.forms:
                break
            page.wait_for_timeout(100)
        assert fake.forms[0]["file"].endswith(".webm") and fake.forms[0]["bytes"] > 500


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
        text = page.locator(".transcript")
        text.focus()
        for _ in range(3):
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


@pytest.mark.parametrize("place", ["", "#job-1"])
def test_a_phone_shows_all_of_it_without_scrolling_sideways(browser, tone, place) -> None:
    fake = Fake(tone, walk())
    fake.add(label="a very long name without any spaces " + "x" * 120)
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
    with running(fake.app) as url, browsing.watched(browser, f"{url}/{place}", **phone) as page:
        page.locator(".viewer" if place else "#list a").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        if place:
            assert not page.locator("#side").is_visible()
            page.get_by_role("link", name="All recordings").click()
            assert page.locator("#side").is_visible()


def test_speakers_can_be_found_afterwards(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.add(transcript([(None, text) for _, text in conversation(3)]))
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".viewer").wait_for()
        assert page.locator(".person").count() == 0
        page.get_by_role("button", name="Find speakers").click()
        page.locator(".person").first.wait_for()
        assert page.locator(".person").count() == 2
