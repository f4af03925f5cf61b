"""The page in a real browser: servers that come and go, other tabs, messages, and keys and eyes."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path

import pytest

from forescribe.asr.formats import files
from tests import browser as browsing
from tests.api.conftest import until
from tests.api.page.conftest import ROOT, lines, send, served, walk
from tests.api.page.fakejobs import Fake, Server, conversation, running, transcript

pytestmark = pytest.mark.slow


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


def test_the_server_makes_the_waveform_of_a_long_recording(browser, tone) -> None:
    fake = Fake(tone, transcript(conversation(4), pace_s=60))
    fake.add()
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".band.heard canvas").wait_for()
        drawn = "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, 1).data.some(Boolean)"
        assert page.locator(".band canvas").evaluate(drawn) is False  # a pixel is free above
        assert page.locator(".band canvas").evaluate(drawn.replace("0, 0,", "0, 3,")) is True


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
        assert page.get_by_label("Position").input_value() == "3"
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


@pytest.mark.nightly
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
                # And what is corrected here is what the service gives from then on.
                page.locator(".transcript .w").first.dblclick()
                page.keyboard.press("Home")
                page.keyboard.type("Corrected, ")
                page.keyboard.press("Enter")
                page.locator(".saving", has_text=re.compile("^Saved$")).wait_for()
                at = f"v1/jobs/{page.url.rpartition('#')[2]}/result?response_format=text"
                text = "async at => (await fetch(at)).text()"
                assert page.evaluate(text, at).startswith("Corrected, ")
                assert "Corrected" not in page.evaluate(text, f"{at}&corrected=false")
