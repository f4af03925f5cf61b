"""The page in a real browser over a fake service: recordings are sent, watched, read, heard and kept.

The fake (`fakejobs.py`) keeps the jobs' contract; texts and names are what an attacker would choose.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forescribe.asr.formats import files
from tests import browser as browsing
from tests.api.page.conftest import lines, send, walk
from tests.api.page.fakejobs import WARNING, Fake, conversation, running, transcript

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


def test_a_recording_is_sent_watched_read_and_heard(browser, tone) -> None:
    fake = Fake(tone, walk())
    with running(fake.app) as url, browsing.watched(browser, url) as page:
        page.get_by_text("Transcripts with speakers").wait_for()
        page.locator("#settings summary").click()
        page.get_by_label("Language").select_option("en")
        assert page.get_by_label("Identify speakers").is_checked(), "unless somebody says otherwise"
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


def test_files_are_sent_in_the_order_of_their_names_with_what_was_chosen(browser, tone) -> None:
    fake = Fake(tone, walk())
    with running(fake.app) as url, browsing.watched(browser, url) as page:
        page.get_by_text("None yet.").wait_for()
        page.locator("#settings summary").click()
        page.get_by_label("Identify speakers").uncheck()
        page.reload()
        page.get_by_text("None yet.").wait_for()
        names = ["10 end.wav", "2 middle.wav", "1 begin.wav"]
        body = tone.read_bytes()
        sent = [{"name": name, "mimeType": "audio/wav", "buffer": body} for name in names]
        page.locator("#files").set_input_files(sent)
        page.locator("#list a", has_text="10 end.wav").locator(".state.running").wait_for()
    assert [form["file"] for form in fake.forms] == ["1 begin.wav", "2 middle.wav", "10 end.wav"]
    assert all("diarize" not in form for form in fake.forms)


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
        page.locator(".saving", has_text="Saved").wait_for()
        assert set(page.locator(".who .name").all_inner_texts()) == {"Speaker A", "Zoë"}
        page.reload()
        page.locator(".viewer").wait_for()
        assert "Zoë" in page.locator(".who .name").all_inner_texts()
        assert "[Zoë]: It did." in download(page, "srt")
        assert "[SPEAKER_00]: Good morning" in download(page, "srt")


def who_wrote_it(page: Any) -> None:
    page.locator(".view summary").click()
    page.get_by_role("checkbox", name="Who wrote it").check()
    page.keyboard.press("Escape")


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
        who_wrote_it(page)
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
                who_wrote_it(page)
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
