"""The page in a real browser over a fake service: recordings are sent, watched, read, heard and kept, and a
server comes and goes. The fake (`fakejobs.py`) keeps the jobs contract; texts and names are what an attacker
would choose.
"""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import browser as browsing
from tests.api.conftest import until
from tests.api.page.conftest import ROOT, free_port, lines, listens, send, served, walk
from tests.api.page.fakejobs import WARNING, Fake, Server, conversation, running, transcript

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


def test_a_recording_is_sent_watched_read_and_heard(browser, tone) -> None:
    fake = Fake(tone, walk())
    with running(fake.app) as url, browsing.watched(browser, url) as page:
        page.get_by_text("Transcripts with speakers").wait_for()
        page.locator("#settings summary").click()
        page.get_by_label("Language").select_option("en")
        assert page.get_by_text("Model: org/tiny").is_visible()
        assert page.get_by_role("button", name="API key").is_hidden(), "as this server has none"
        page.locator("#speakers").select_option("2 people")
        page.get_by_label("Names and spellings").fill(" Zoë \n\ncube net ease => Kubernetes")
        page.get_by_label("Corrections").fill("um =>")
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
            "terms": '["Zoë","cube net ease => Kubernetes"]',
            "replacements": '["um =>"]',
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
        assert clicked - 0.11 <= page.locator("audio").evaluate("e => e.currentTime") < clicked + 5


def test_files_are_sent_in_the_order_of_their_names_with_what_was_chosen(browser, tone) -> None:
    fake = Fake(tone, walk())
    with running(fake.app) as url, browsing.watched(browser, url) as page:
        page.get_by_text("None yet.").wait_for()
        page.locator("#settings summary").click()
        page.locator("#speakers").select_option("not told apart")
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
            field = page.get_by_label(f"Name of {HOSTILE}")
            field.fill(HOSTILE + "!")
            assert page.locator(".name option:checked").first.inner_text() == HOSTILE + "!"
            assert page.locator("img, iframe, object, embed").count() == 0
            assert page.title() == f"{HOSTILE} · forescribe"
        with browsing.watched(browser, f"{url}/#job-2") as page:
            page.get_by_role("alert").filter(has_text="onerror").wait_for()
            assert page.locator("img").count() == 0


def test_a_server_without_jobs_says_so(browser, tone) -> None:
    fake = Fake(tone, walk(), jobs=False)
    with running(fake.app) as url, browsing.watched(browser, url, refusals=True) as page:
        page.get_by_text("Jobs are disabled on this server").wait_for()
        assert page.locator("#files").is_disabled()


def test_a_key_is_asked_for_kept_in_the_tab_and_sent_with_everything(browser, tone) -> None:
    fake = Fake(tone, walk(), key="fs-secret")
    fake.add()
    with running(fake.app) as url, browsing.watched(browser, url, refusals=True) as page:
        page.get_by_text("This server requires an API key.").wait_for()
        assert not page.get_by_text("None yet.").is_visible(), "nobody knows"
        field = page.get_by_label("API key of this server")
        field.fill("wrong")
        field.press("Enter")
        page.get_by_text("The server does not know this key.").wait_for()
        field.fill("fs-secret")
        field.press("Enter")
        page.locator("#list a").click()
        page.locator(".viewer").wait_for()
        assert page.locator(".notice").count() == 0, "what has passed is not said any more"
        # The player cannot send a key: the recording is fetched with it.
        page.locator("audio[src^=blob]").wait_for()
        page.locator(".transcript .w").first.click()
        page.locator(".w.now").first.wait_for()
        assert page.evaluate("JSON.stringify(localStorage)").find("fs-secret") == -1
        assert page.evaluate("Object.values(sessionStorage)") == ["fs-secret"]
        assert "fs-secret" not in page.url


def test_words_are_found_and_doubtful_text_is_marked_where_it_stands(browser, tone) -> None:
    told = transcript(conversation(10), warnings=(WARNING,), failed_s=1.0)
    first, *rest = told.segments
    doubted = replace(first, doubt="log-probability -1.37")
    fake = Fake(tone, replace(told, segments=(doubted, *rest)))
    fake.add()
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        field = page.get_by_label("Search in the transcript")
        field.fill("THE RIDGE")
        assert page.locator(".search .count").inner_text() == "4 found"
        field.press("Enter")
        field.press("Enter")
        assert page.locator(".search .count").inner_text() == "2 of 4"
        assert page.locator(".w.found").all_inner_texts() == ["The", "ridge,"]
        field.fill("nobody says this")
        assert page.locator(".search .count").inner_text() == "not found"
        assert "1.0 s failed" in page.locator(".summary").inner_text()
        warned = page.get_by_label("Warnings").inner_text()
        assert warned.split("\n")[-1] == WARNING.message
        marked = page.locator(".transcript .doubtful").all_inner_texts()
        assert " ".join(marked) == first.text.strip()
        (said,) = page.locator(".doubt").all_inner_texts()
        assert said.endswith("doubtful: log-probability -1.37")
        look = "e => getComputedStyle(e).textDecorationStyle"
        assert page.locator(".doubtful").first.evaluate(look) == "dashed"


def test_a_place_far_down_is_on_the_screen_of_a_phone_too(browser, tone) -> None:
    fake = Fake(tone, transcript([*conversation(80), ("Speaker A", "A heron."), *conversation(80)]))
    fake.add()
    phone = {"viewport": {"width": 375, "height": 812}, "has_touch": True}
    shown = "e => e.getBoundingClientRect().top > 100 && e.getBoundingClientRect().bottom < 650"
    at = "/#job-1?find=heron&at=400"
    with running(fake.app) as url, browsing.watched(browser, url + at, **phone) as page:
        page.locator(".w.found", has_text="heron").wait_for()
        page.wait_for_timeout(1500)  # the browser scrolls
        assert page.locator(".w.found").evaluate(shown)


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


def test_errors_look_like_errors_and_can_be_closed(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.refuse = (400, "invalid_audio", "Upload-Length: not audio that can be decoded")
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
    fake = Fake(tone, walk(), recordings=1)
    fake.audio_gone = True
    with (
        running(fake.app) as url,
        browsing.watched(browser, f"{url}/#job-1", refusals=True) as page,
    ):
        page.locator(".player", has_text="the job's audio is not kept any more").wait_for()
        assert not page.locator("audio").is_visible()


def test_older_recordings_are_shown_when_asked_for(browser, tone) -> None:
    fake = Fake(tone, walk(), recordings=130)
    with running(fake.app) as url, browsing.watched(browser, url) as page:
        page.get_by_role("button", name="Show older recordings").click()
        page.locator("#list", has_text="recording 1.wav").wait_for()
        assert page.locator("#list a").count() == 130
        assert not page.locator("#older").is_visible()


def test_progress_says_what_is_done_and_of_how_much_and_no_more(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.add(state="running", stage="diarizing", progress={"done_s": 20, "total_s": 20})
    reading = fake.add(state="running", stage="reading", progress={"done_s": 0, "total_s": 20})
    fake.add(state="running", progress={"done_s": 7.99, "total_s": 8.0})
    fake.add(state="running", progress={"done_s": 0, "total_s": 8.0})
    fake.add(state="queued", progress={"done_s": 0, "total_s": 8.0})
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-2") as page:
        page.get_by_text(re.compile(r"^Reading 0:\d\d of audio$")).wait_for()
        told = page.locator(".list .line").all_inner_texts()
        assert told[0].startswith("waiting\n") and told[1:] == [
            "transcribing",
            "transcribing\n99 %",
            "reading",
            "finding speakers",
        ]
        bars = page.locator("#list progress")
        assert not bars.nth(0).is_visible(), "what waits does not move"
        shares = [bars.nth(n).get_attribute("value") for n in (1, 2, 3, 4)]
        assert shares == [None, str(7.99 / 8), None, None], "nothing is done yet, or all"
        reading.view["stage"] = "diarizing"  # no other event comes
        page.get_by_text("Text complete; finding speakers").wait_for()
        page.locator("#list a[aria-current] .state", has_text="finding speakers").wait_for()


def test_only_the_languages_of_the_model_are_offered_by_their_names(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.languages = {"en": "English", "de": "German", "qaa": "Whistled Speech"}
    fake.add(replace(walk(), language="qaa"))
    french: Any = {"locale": "fr-FR"}
    with running(fake.app) as url, browsing.watched(browser, url, **french) as page:
        page.locator("#list a").wait_for()
        page.locator("#settings summary").click()
        page.get_by_label("Language").select_option("de")
        page.get_by_label("Write").select_option("translate")
        offered = page.locator("#language option").all_inner_texts()
        assert offered == ["detect", "allemand", "anglais", "Whistled Speech"]
        page.locator("#list a").click()
        page.locator(".summary", has_text="· Whistled Speech ·").wait_for()
        fake.languages = {"en": "English"}
        page.reload()
        page.locator("#list a").wait_for()
        for name in ("Language", "Write"):
            page.get_by_label(name, exact=True).wait_for(state="hidden")
        send(page, tone)
        page.locator("#list .state.running").wait_for()
    assert fake.forms[0]["task"] == "transcribe" and "language" not in fake.forms[0]


def test_words_are_found_in_all_recordings_and_each_place_is_a_link(browser, tone) -> None:
    fake = Fake(tone, walk())
    said = ["We waited an hour.", "At dawn the Grey Heron left, and the grey", "heron came back."]
    birds = fake.add(transcript([("Speaker A", text) for text in said]), label=f"{HOSTILE}.wav")
    for _ in range(120):  # the list shows a hundred
        fake.add()
    with running(fake.app) as url, browsing.watched(browser, url) as page:
        field = page.get_by_label("Search all recordings")
        field.fill("grey HERON")
        page.locator("#found", has_text="1 place in 1 recording").wait_for()
        assert not page.locator("#list").is_visible()
        assert page.locator("mark").all_inner_texts() == ["Grey Heron"]
        assert HOSTILE in page.locator("#hits").inner_text()
        page.locator("#hits .place").click()
        page.locator(".w.now", has_text="Grey").wait_for()
        assert page.locator(".w.found").all_inner_texts() == ["Grey", "Heron"]
        assert page.get_by_label("Search in the transcript").input_value() == "grey HERON"
        at, paused = page.locator("audio").evaluate("e => [e.currentTime, e.paused]")
        assert paused and at == pytest.approx(birds.told.segments[1].words[3].start)
        assert page.locator("#hits .place").get_attribute("aria-current") == ""
        # In the open recording it goes to the nearest one, also where the link is sent to somebody.
        place = page.url.rpartition("at=")[0] + "at=6.9"
        page.evaluate("place => location.hash = place", place.partition("#")[2])
        page.locator(".w.now", has_text="grey").wait_for()
        assert page.locator(".w.found").all_inner_texts() == ["grey", "heron"]
        field.fill("ridge")
        page.locator("#found", has_text="240 places in 120 recordings").wait_for()
        field.fill("nobody says this")
        page.locator("#found", has_text="Not found").wait_for()
        field.fill("ridge")
        send(page, tone, "new.wav")  # what is sent is seen
        page.locator("#list a", has_text="new.wav").wait_for()
        assert field.input_value() == "" and page.locator("#hits li").count() == 0


def test_a_recording_gets_another_name_which_its_files_have(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.add(label="2026-11-27.wav")
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".viewer").wait_for()
        for typed in ("", "  ", None, "2026-11-27.wav"):  # nothing to be done
            page.once("dialog", lambda d, t=typed: d.dismiss() if t is None else d.accept(t))
            page.get_by_role("button", name="Rename").click()
        assert fake.jobs["job-1"].view["label"] == "2026-11-27.wav"
        name = 'the "best" / हिन्दी & 100% 🚚 <b>'
        page.once("dialog", lambda dialog: dialog.accept(name))
        page.get_by_role("button", name="Rename").click()
        page.get_by_role("heading", name=f"{name}.wav", exact=True).wait_for()
        assert page.locator("#list .label").inner_text() == f"{name}.wav"
        assert page.title() == f"{name}.wav · forescribe"
        for item, ending in (("(.docx)", "docx"), ("The recording", "wav")):
            page.get_by_role("button", name="Download", exact=True).click()
            with page.expect_download() as waiting:
                page.get_by_role("menuitem", name=item).click()
            stem = "the _best_ _ हिन्दी & 100% 🚚 _b_"
            assert waiting.value.suggested_filename == f"{stem}.{ending}"
        assert Path(waiting.value.path()).read_bytes() == tone.read_bytes()


@pytest.mark.parametrize("key", ["", "fs-secret"])
def test_all_transcripts_are_one_download(browser, tone, key) -> None:
    fake = Fake(tone, walk(), key=key)
    fake.add(state="running")
    with running(fake.app) as url, browsing.watched(browser, url, refusals=bool(key)) as page:
        if key:
            page.get_by_label("API key of this server").fill(key)
            page.keyboard.press("Enter")
        page.locator("#list a").wait_for()
        every = page.get_by_role("button", name="Download all")
        assert every.is_hidden(), "there is nothing yet"
        fake.jobs["job-1"].going.set()
        fake.jobs["job-1"].view["state"] = "succeeded"
        every.click()
        with page.expect_download() as waiting:
            page.get_by_role("menuitem", name="Word (.docx)").click()
        assert waiting.value.suggested_filename == "recordings.zip"
        assert Path(waiting.value.path()).read_text() == "all as docx"


def test_it_works_from_the_keyboard(browser, tone) -> None:
    fake = Fake(tone, walk(), recordings=1)
    with running(fake.app) as url, browsing.watched(browser, url) as page:
        page.locator("#list a").focus()
        page.keyboard.press("Enter")
        page.locator("audio[src]").wait_for()
        page.locator(".transcript .w[tabindex='0']").focus()
        for _ in range(2):
            page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.textContent") == "thanks"
        page.keyboard.press("Enter")
        page.locator(".w.now", has_text="thanks").wait_for()
        page.keyboard.press(" ")
        assert page.locator("audio").evaluate("e => e.paused")
        page.keyboard.press("F2")
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.textContent") == "Good"
        page.get_by_role("button", name="Download", exact=True).press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Word (.docx)"
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.textContent") == "Download"


def test_text_from_right_to_left_is_read_and_walked_so(browser, tone) -> None:
    fake = Fake(tone, transcript([("Speaker A", "שלום לכולם ותודה")]))
    fake.add()
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        first = page.locator(".transcript [tabindex='0']")
        first.focus()
        assert first.evaluate("e => getComputedStyle(e).direction") == "rtl"
        page.keyboard.press("ArrowLeft")
        assert page.evaluate("document.activeElement.textContent") == "לכולם"


def test_a_screen_reader_finds_names_landmarks_and_news(browser, tone) -> None:
    fake = Fake(tone, walk(), recordings=1)
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".viewer").wait_for()
        unnamed = page.evaluate(
            "[...document.querySelectorAll('button, input, select, progress, a[href]')]"
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
                page.get_by_role("button", name="Download", exact=True).click()
                box = page.get_by_role("menu").bounding_box()
                assert box["x"] >= 0 and box["x"] + box["width"] <= 375
            for width in (375, 320):
                page.set_viewport_size({"width": width, "height": 812})
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (id, width)
                inside = page.evaluate(
                    "[...document.querySelectorAll('button, a, input, select, summary, .notice')]"
                    ".filter(e => e.checkVisibility() && !e.closest('.unseen'))"
                    ".filter(e => e.getBoundingClientRect().right > innerWidth + 0.5)"
                    ".map(e => e.outerHTML)"
                )
                assert inside == [], (id, width)
            page.set_viewport_size({"width": 375, "height": 812})
        page.get_by_role("link", name="All recordings").click()
        page.locator("#side").wait_for()


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
            assert "Waiting: the text of recording 1.wav." in notice.inner_text()
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
            page.get_by_text("Waiting: 1 recording to be sent.").wait_for()
            page.get_by_role("button", name="Try now").wait_for()
            fake.holds_at, fake.loading = None, True
            server.start()
            browsing.try_now(page)
            page.get_by_text("waiting: the server is loading").wait_for()
            fake.loading = False
            page.locator(".running-text", has_text="weather report").wait_for()
            assert page.locator("h1").inner_text() == 'the "quoted" name & 100%22.wav'
    finally:
        server.stop()
    assert fake.offsets == [0, 100_000]
    assert fake.bodies == [tone.read_bytes()] and len(fake.jobs) == 1
    assert fake.forbidden == []


def test_a_file_that_is_dropped_before_the_server_has_answered_is_sent(browser, tone) -> None:
    fake = Fake(tone, walk())
    drop = """() => {
        const dataTransfer = new DataTransfer();
        dataTransfer.items.add(new File(["sound"], "early.wav"));
        dispatchEvent(new DragEvent("drop", { dataTransfer, cancelable: true }));
    }"""

    def dropped_first(page: Any) -> None:
        page.route("**/v1/models", lambda route: (page.evaluate(drop), route.continue_()))

    with running(fake.app) as url, browsing.watched(browser, url, before=dropped_first) as page:
        page.locator(".running-text", has_text="weather report").wait_for()
        assert page.locator("h1").inner_text() == "early.wav"
    assert fake.bodies == [b"sound"]


def test_what_other_tabs_and_programs_do_is_seen(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.add(label="one.wav")
    at = {"before": lambda page: page.clock.install(), "refusals": True}
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1", **at) as page:
        page.locator(".viewer").wait_for()
        fake.add(label="from a program.wav")
        page.clock.fast_forward(15_000)
        page.locator("#list", has_text="from a program.wav").wait_for()
        fake.jobs["job-1"].view.update(state="running", progress={"done_s": 0, "total_s": 20})
        page.clock.fast_forward(15_000)
        page.locator(".running-text", has_text="weather report").wait_for()
        page.evaluate("location.hash = '%E0%A4%A'")
        page.get_by_role("heading", name="Not here").wait_for()


@pytest.mark.nightly
def test_a_service_that_is_killed_at_work_ends_the_job_before_the_readers_eyes(
    browser, tmp_path
) -> None:
    """The whole of it: the real service, a real recording, SIGKILL while the job runs, a new process."""
    port = free_port()
    sample, url = ROOT / "samples" / "memo.flac", f"http://127.0.0.1:{port}"

    with served(port, tmp_path) as first:
        until(lambda: listens(port), 300)
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
                # And what is corrected here is what the service gives from then on.
                page.locator(".transcript .w").first.dblclick()
                page.keyboard.type("Corrected,")
                page.keyboard.press("Enter")
                page.locator(".saving", has_text=re.compile("^Saved$")).wait_for()
                at = f"v1/jobs/{page.url.rpartition('#')[2]}/result?response_format=text"
                text = "async at => (await fetch(at)).text()"
                assert page.evaluate(text, at).startswith("Corrected, ")
                assert "Corrected" not in page.evaluate(text, f"{at}&corrected=false")
