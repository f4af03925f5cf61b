"""Corrections in a real browser: text, speakers and names are changed, saved, undone, written to files."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from forescribe.api.errors import checked
from forescribe.api.jobs.corrections import Corrections
from forescribe.asr.formats import files
from forescribe.asr.formats.report import Sound, render_page
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.words.replacements import Replacements
from tests import browser as browsing
from tests.api.conftest import until
from tests.api.page.conftest import send, walk
from tests.api.page.fakejobs import Fake, Server, conversation, running, transcript

pytestmark = pytest.mark.slow

HOSTILE = '<img src=x onerror="document.title=1">&amp; --> \u202e'


def saved(page: Any) -> None:
    page.locator(".saving", has_text=re.compile("^Saved$")).wait_for()


def said(page: Any) -> str:
    """Of all paragraphs, those outside the window too."""
    return " ".join(page.locator(".paragraph p").all_text_contents())


def correct(page: Any, word: str, text: str) -> None:
    """The text of the segment with the first of these words."""
    page.locator(".w", has_text=word).first.dblclick()
    field = page.locator(".editor textarea")
    field.fill(text)
    field.press("Enter")


def corrected(fake: Fake, id: str = "job-1") -> Transcript:
    """What the service makes of what it was sent."""
    return checked(Corrections, fake.jobs[id].saved[-1]).apply(fake.jobs[id].told)


def download(page: Any, name: str) -> str:
    return download_bytes(page, name).decode()


def download_bytes(page: Any, name: str) -> bytes:
    page.get_by_role("button", name="Download", exact=True).click()
    with page.expect_download() as waiting:
        page.get_by_role("menuitem", name=f".{name})").click()
    return Path(waiting.value.path()).read_bytes()


def test_text_is_corrected_in_place_saved_and_undone(browser, tone) -> None:
    fake = Fake(tone, walk(), recordings=1)
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".viewer").wait_for()
        text = (
            f"Good evening,\0thank {HOSTILE} for joining. Did the weather report change overnight?"
        )
        correct(page, "thanks", text)
        assert "Good evening, thank <img" in said(page)
        saved(page)
        before, after = fake.told.segments[0].words or (), corrected(fake).segments[0].words or ()
        kept = [(w.text, w.start, w.end) for w in (*before[:1], *before[3:])]
        assert [(w.text, w.start, w.end) for w in (after[0], *after[-8:])] == kept
        assert [w.start for w in after] == sorted(w.start for w in after)
        assert fake.jobs["job-1"].saved[-1]["segments"][1:] == [1, 2, 3, 4], "the rest is untouched"
        assert json.loads(download(page, "json")) == corrected(fake).to_dict()
        assert download(page, "srt") == "srt of job-1\n"
        page.get_by_label("Search in the transcript").fill("good evening")
        assert page.locator(".search .count").inner_text() == "1 found"
        page.reload()
        page.locator(".viewer").wait_for()
        assert "Good evening" in said(page) and page.locator("img").count() == 0
        correct(page, "evening", "Two.")
        page.locator(".w", has_text="Two.").focus()
        page.keyboard.press("Control+z")
        assert "Good evening" in said(page)
        page.get_by_role("button", name="Redo").click()
        saved(page)
        assert corrected(fake).segments[0].text == " Two."
        assert page.get_by_role("button", name="Redo").is_disabled()


def double_click(page: Any, word: str) -> None:
    """With the mouse, at the middle of the first of these words."""
    box = page.locator(".w", has_text=word).first.bounding_box()
    page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.locator(".editor textarea").wait_for()


def first_text(fake: Fake) -> str:
    """Of the first segment, as it is saved."""
    return corrected(fake).segments[0].text


SELECTED = "(e => e.value.slice(e.selectionStart, e.selectionEnd))(document.activeElement)"


def test_a_double_click_selects_the_word_and_typing_replaces_it_alone(browser, tone) -> None:
    fake = Fake(tone, walk(), recordings=1)
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator("audio[src]").wait_for()
        double_click(page, "joining.")
        assert page.evaluate(SELECTED) == "joining", "without the full stop"
        page.keyboard.type("coming")
        page.keyboard.press("Enter")
        saved(page)
        rest = " Did the weather report change overnight?"
        assert first_text(fake) == f" Good morning, thanks for coming.{rest}"
        for key in ("Control+a", "Meta+a"):  # the word once more, and not the ten beside it
            double_click(page, "morning,")
            page.keyboard.press(key)
            assert page.evaluate(SELECTED) == "morning"
            page.keyboard.type("eve")
            page.keyboard.press(key)
            page.keyboard.type("evening")
            assert page.evaluate("document.activeElement.value").startswith("Good evening, th")
            page.keyboard.press("Escape")
            assert said(page).startswith("Good morning, thanks")
        double_click(page, "thanks")
        page.keyboard.press("Control+a")
        page.keyboard.press("Control+a")
        assert page.evaluate(SELECTED) == first_text(fake).strip(), "all of it when asked twice"
        page.keyboard.press("Escape")
        double_click(page, "thanks")
        page.keyboard.press("Delete")
        page.get_by_role("button", name="Save", exact=True).click()
        saved(page)
        assert first_text(fake) == f" Good morning, for coming.{rest}"
        page.reload()
        page.locator(".viewer").wait_for()
        assert said(page).startswith(f"Good morning, for coming.{rest}")
        assert len(fake.jobs["job-1"].saved) == 2


def test_a_click_plays_a_double_click_does_not_and_editing_is_silent(browser, tone) -> None:
    fake = Fake(tone, walk(), recordings=1)
    at = {"before": lambda page: page.clock.install(time=1000)}
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1", **at) as page:
        page.locator("audio[src]").wait_for()

        def paused() -> bool:
            return bool(page.locator("audio").evaluate("e => e.paused"))

        page.clock.pause_at(3600)  # else a busy machine parts the two clicks
        played = (
            "window.played = 0; document.querySelector('audio').onplay = () => window.played++; 0"
        )
        page.evaluate(played)
        double_click(page, "weather")
        page.clock.run_for(1000)
        assert page.evaluate("window.played") == 0
        page.clock.resume()
        page.keyboard.press("Escape")
        page.locator(".w", has_text="weather").first.click()
        until(lambda: page.evaluate("window.played") == 1 and not paused())
        double_click(page, "weather")
        assert paused()
        page.keyboard.press("Alt+k")  # unless it is asked for
        until(lambda: not paused())


def test_two_who_correct_the_same_text_are_told(browser, tone) -> None:
    fake = Fake(tone, walk())
    job = fake.add()
    with (
        running(fake.app) as url,
        browsing.watched(browser, f"{url}/#job-1", refusals=True) as page,
    ):
        page.locator(".viewer").wait_for()
        theirs = {"segments": [0, 1, 2], "names": {}, "merged": {}, "note": "shorter"}
        job.saved.append(theirs)
        correct(page, "Good", "Mine.")
        page.get_by_text("Somebody else has saved another version meanwhile.").wait_for()
        assert job.saved == [theirs]
        page.once("dialog", lambda dialog: dialog.dismiss())
        with page.expect_event("dialog"):  # asked whether to leave without them, the answer is no
            page.locator(".brand a").click()
        page.wait_for_url("**/#job-1")
        assert "Mine." in said(page)
        page.get_by_role("button", name="Show theirs").click()
        page.get_by_text("something").wait_for(state="detached")
        assert "Good morning" in said(page)
        page.get_by_role("button", name="Undo").click()
        saved(page)
        assert corrected(fake).segments[0].text == " Mine." and len(job.saved[-1]["segments"]) == 5


def test_a_version_of_somebody_else_waits_for_an_answer_whatever_is_done_meanwhile(
    browser, tone
) -> None:
    fake = Fake(tone, walk(), recordings=1)
    with (
        running(fake.app) as url,
        browsing.watched(browser, f"{url}/#job-1", refusals=True) as page,
    ):
        page.locator(".viewer").wait_for()
        job = fake.jobs["job-1"]
        theirs = {"segments": [0, 1, 2], "names": {}, "merged": {}, "note": "shorter"}
        job.saved.append(theirs)
        correct(page, "Good", "Mine.")
        question = page.get_by_text("Somebody else has saved another version meanwhile.")
        question.wait_for()
        correct(page, "did.", "Mine too.")
        for button in ("Versions", "Download"):
            page.get_by_role("button", name=button, exact=True).click()
            if button == "Download":
                page.get_by_role("menuitem", name="(.txt)").click()
            page.get_by_text("Choose first which version is to be kept.").wait_for()
        page.wait_for_timeout(1500)  # longer than a correction waits
        assert job.saved == [theirs] and question.is_visible()
        page.get_by_role("button", name="Keep mine").click()
        saved(page)
        assert corrected(fake).segments[0].text == " Mine." and "Mine too." in said(page)


def test_corrections_that_cannot_be_saved_yet_are_not_left_without_a_question(
    browser, tone
) -> None:
    fake, refused = Fake(tone, walk(), recordings=2), list[str]()

    def refuse(route: Any) -> None:
        if route.request.method != "PUT":
            return route.continue_()
        refused.append(route.request.url)
        error = {"error": {"message": "loading", "code": "not_ready", "type": "server_error"}}
        return route.fulfill(status=503, json=error)

    with (
        running(fake.app) as url,
        browsing.watched(browser, f"{url}/#job-1", refusals=True) as page,
    ):
        page.locator(".viewer").wait_for()
        page.route("**/corrections", refuse)
        double_click(page, "morning")
        page.keyboard.type("evening")  # in a field that is open still
        page.once("dialog", lambda dialog: dialog.dismiss())
        with page.expect_event("dialog", timeout=20_000):
            page.evaluate("location.hash = 'job-2'")
        page.wait_for_url("**/#job-1")
        assert "Good evening" in said(page) and refused
        page.unroute("**/corrections")
        saved(page)
        page.evaluate("location.hash = 'job-2'")  # without one
        page.wait_for_url("**/#job-2")
        assert first_text(fake).startswith(" Good evening")


def test_a_note_never_ends_within_a_letter(browser, tone) -> None:
    fake = Fake(tone, walk(), recordings=1)
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".viewer").wait_for()
        for first in ("", "a", "aa"):
            correct(page, "thanks", first + "\U0001f600" * 120 + " thanks")
            saved(page)
        assert all(len(note) <= 200 and note.isprintable() for note in notes(fake))


def test_a_second_word_is_the_one_that_was_meant_while_a_field_is_open(browser, tone) -> None:
    fake = Fake(tone, walk(), recordings=1)
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".viewer").wait_for()
        double_click(page, "thanks")
        page.keyboard.type("many many thanks")  # two more words, before those below
        page.locator(".w", has_text="drains").dblclick()
        page.keyboard.type("flows")
        page.keyboard.press("Enter")
        saved(page)
        assert "Good morning, many many thanks for" in said(page) and "it flows well" in said(page)


def test_two_windows_of_a_report_do_not_replace_each_other(browser, tmp_path) -> None:
    path = tmp_path / "r.html"
    path.write_text(render_page(walk(), "call.mp3", Sound(None, "nothing to play")), "utf-8")
    with browsing.watched(browser, path.as_uri()) as page:
        other = page.context.new_page()
        other.goto(path.as_uri())
        correct(other, "Good", "Theirs.")
        saved(other)
        correct(page, "did.", "Mine.")
        page.get_by_role("button", name="Show theirs").click()
        saved(page)
        assert "Theirs." in said(page) and "Mine." not in said(page)
        page.keyboard.press("Control+z")
        saved(page)
        page.reload()
        assert "Mine." in said(page)


def test_a_server_that_is_away_gets_the_corrections_later(browser, tone) -> None:
    fake = Fake(tone, walk(), recordings=1)

    server = Server(fake.app)
    try:
        with browsing.watched(browser, f"{server.url}/#job-1", refusals=True) as page:
            page.locator(".viewer").wait_for()
            server.stop()
            correct(page, "Good", "Later.")
            page.get_by_text("Waiting: corrections of recording 1.wav to be saved.").wait_for()
            page.get_by_role("button", name="Try now").wait_for()
            server.start()
            browsing.try_now(page)
            saved(page)
            assert corrected(fake).segments[0].text == " Later."
    finally:
        server.stop()


def test_speakers_are_named_merged_and_given_and_parts_are_split(browser, tone) -> None:
    fake = Fake(tone, walk(), recordings=1)
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".viewer").wait_for()
        page.get_by_role("button", name="Edit").click()
        page.locator(".w", has_text="Did").first.click()
        page.get_by_role("button", name="Split here").click()
        saved(page)
        first, second = corrected(fake).segments[:2]
        assert second.text.startswith(" Did the") and first.end <= second.start
        assert page.evaluate("document.activeElement.textContent") == "Did"
        page.get_by_role("button", name="Edit").click()
        paragraphs = page.locator(".paragraph")
        halves = [paragraphs.nth(n).inner_text().splitlines()[-1] for n in (0, 1)]
        assert halves[0].endswith("joining.") and halves[1].startswith("Did")
        page.reload()
        page.get_by_label("Speaker", exact=True).nth(1).select_option("A new speaker")
        assert paragraphs.nth(1).locator(".name").evaluate("e => e === document.activeElement")
        page.get_by_label("Name of speaker C").fill("Zoë")
        page.keyboard.press("Enter")
        saved(page)
        told = corrected(fake)
        assert [s.speaker for s in told.segments[:3]] == ["Speaker A", "Zoë", "Speaker B"]
        assert [(t.start, t.end) for t in told.turns] == [(second.start, second.end)]
        page.get_by_role("button", name="Same person").press("ArrowDown")
        assert page.locator(".person").count() == 3, "a key of a closed list decides nothing"
        page.get_by_role("button", name="Same person").click()
        page.get_by_role("menuitem", name="Zoë is Speaker B").click()
        assert page.locator(".person").count() == 2
        saved(page)
        assert {s.speaker for s in corrected(fake).segments} == {"Speaker A", "Zoë"}
        page.reload()
        assert page.get_by_label("Name of speaker B").input_value() == "Zoë"
        page.locator(".w", has_text="until").first.dblclick()
        page.keyboard.press("Control+Enter")
        saved(page)
        assert " until ten, then it clears from the west, so we could leave at eleven." in [
            s.text for s in corrected(fake).segments
        ]


def select(page: Any, first: str, last: str) -> None:
    """With the mouse, from the beginning of the one word to the end of the other."""
    one, other = (page.locator(".w", has_text=word).first.bounding_box() for word in (first, last))
    page.mouse.move(one["x"] + 2, one["y"] + one["height"] / 2)
    page.mouse.down()
    page.mouse.move(other["x"] + other["width"] - 2, other["y"] + other["height"] / 2, steps=5)
    page.mouse.up()


def test_selected_words_are_given_to_a_speaker(browser, tone) -> None:
    fake = Fake(tone, walk(), recordings=1)
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator("audio[src]").wait_for()
        choice = page.get_by_label("Speaker of the selected words")
        select(page, "until", "then")
        choice.wait_for()
        assert choice.inner_text().splitlines()[0] == "Who says these 3 words?"
        choice.select_option("Speaker A")
        saved(page)
        told = [(s.speaker, s.text) for s in corrected(fake).segments[1:4]]
        rest = " it clears from the west, so we could leave at eleven."
        assert told == [
            ("Speaker B", " It did. Rain"),
            ("Speaker A", " until ten, then"),
            ("Speaker B", rest),
        ]
        assert page.evaluate("document.activeElement.selectedOptions[0].text") == "Speaker A"
        select(page, "Good", "morning")
        choice.select_option("A new speaker")
        saved(page)
        assert [s.speaker for s in corrected(fake).segments[:2]] == ["Speaker C", "Speaker A"]
        page.keyboard.press("Control+z")
        page.keyboard.press("Control+z")
        saved(page)
        assert corrected(fake).to_dict()["segments"] == fake.told.to_dict()["segments"]
        select(page, "Eleven", "would")
        choice.wait_for()
        page.locator(".summary").click()
        choice.wait_for(state="hidden")


def test_a_recording_without_speakers_gets_them_where_it_is_split(browser, tone) -> None:
    fake = Fake(tone, transcript(SPOKEN), recordings=1)
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".w", has_text="is").first.dblclick()
        page.get_by_role("button", name="Split here").click()
        names = page.get_by_label("Speaker", exact=True)
        assert names.count() == 2
        names.nth(1).select_option("A new speaker")
        saved(page)
        told = corrected(fake)
        assert [s.speaker for s in told.segments] == [None, None, "Speaker A", "Speaker A"]
        assert told.to_rttm().count("Speaker_A") == len(told.turns) == 1


@pytest.mark.parametrize(
    ("before", "written", "after"),
    [
        ("It was. Tuesday.", "It was. wednesday.", "It was. Wednesday."),
        ("Tuesday it is.", "wednesday it is.", "Wednesday it is."),
        ("On Tuesday.", "On wednesday.", "On wednesday."),
        ("So we go.", "we go.", "We go."),
        ("The end.", "the end.", "the end."),
        ("Fine, iPhone.", "iPhone, iPhone.", "iPhone, iPhone."),
        ("Thanks, Ann.", "Thanks, .", "Thanks."),
        ("Ann. Well then.", ". Well then.", "Well then."),
        ("Well – then.", "Well then.", "Well then."),
        ("It is", "It is .", "It is ."),
    ],
)
def test_a_correction_keeps_the_ends_of_a_sentence(page_of, before, written, after) -> None:
    program = """async ([before, written]) => {
        const { Edits } = await import("/page/edits.js");
        const segment = { start: 0, end: 1, text: ` ${before}`, speaker: null, words: null };
        return new Edits([segment], true).withText(0, written).segments[0].text;
    }"""
    assert page_of.evaluate(program, [before, written]) == f" {after}"


@pytest.fixture(scope="module")
def page_of(browser, tone) -> Iterator[Any]:
    fake = Fake(tone, walk())
    with running(fake.app) as url, browsing.watched(browser, url) as page:
        yield page


def test_undo_works_from_everywhere_and_escape_from_the_buttons(browser, tone) -> None:
    fake = Fake(tone, walk(), recordings=1)
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator("audio[src]").wait_for()
        for place in ("audio", "h1", "#files"):
            correct(page, "Good", "Changed.")
            page.evaluate(
                "place => (document.activeElement.blur(), document.querySelector(place).focus())",
                place,
            )
            page.keyboard.press("Control+z")
            assert said(page).startswith("Good morning")
        page.get_by_label("Name of Speaker A").press_sequentially("Al")
        page.keyboard.press("Control+z")
        assert page.get_by_label("Name of Speaker A").input_value() == ""
        search = page.get_by_label("Search in the transcript")
        search.press_sequentially("x")
        correct(page, "Good", "Changed.")
        search.focus()
        page.keyboard.press("Control+z")
        assert search.input_value() == "" and said(page).startswith("Changed."), "its own letters"
        double_click(page, "Rain")
        page.keyboard.type("Snow")
        page.get_by_role("button", name="Everywhere").focus()
        page.keyboard.press("Escape")
        assert page.locator(".editor").count() == 0 and "Rain until" in said(page)


def test_what_is_typed_in_an_open_field_outlives_a_reload(browser, tone) -> None:
    fake = Fake(tone, walk(), recordings=1)
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator("audio[src]").wait_for()
        double_click(page, "morning")
        page.keyboard.type("evening")
        asked = list[str]()

        def stay(dialog: Any) -> None:
            asked.append(dialog.type)
            dialog.dismiss()

        page.once("dialog", stay)
        page.evaluate("setTimeout(() => location.reload())")
        saved(page)
        assert asked == ["beforeunload"] and first_text(fake).startswith(" Good evening, thanks")
        double_click(page, "evening")
        page.reload()  # without a question: nothing is lost
        page.locator(".viewer").wait_for()
        assert said(page).startswith("Good evening, thanks")


def notes(fake: Fake) -> list[str]:
    return [version["note"] for version in fake.jobs["job-1"].saved]


def test_versions_are_told_looked_at_and_restored(browser, tone) -> None:
    fake = Fake(tone, walk(), recordings=1)
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator("audio[src]").wait_for()
        double_click(page, "morning")
        page.keyboard.type("evening")
        page.keyboard.press("Enter")
        saved(page)
        correct(page, "Eleven", "Gone.")
        page.keyboard.press("Control+z")
        page.get_by_label("Name of Speaker B").press_sequentially("Peter", delay=100)
        page.keyboard.press("Enter")
        saved(page)
        assert notes(fake) == ["Corrected at 0:00: morning → evening", "Named Peter"]
        page.reload()
        page.get_by_role("button", name="Versions").click()
        listed, told = page.get_by_role("dialog").locator("li"), page.locator(".version")
        page.get_by_role("dialog").wait_for()
        assert [note.splitlines()[0] for note in listed.all_inner_texts()] == [
            "Named Peter",
            "Corrected at 0:00: morning → evening",
            "As it was transcribed",
        ]
        assert told.locator("ins, del").count() == 0
        listed.nth(2).get_by_role("button").click()
        told.locator("ins", has_text="morning").wait_for()
        assert told.locator("del").all_inner_texts()[0].strip() == "evening,"
        listed.nth(1).get_by_role("button").click()
        told.locator("ins", has_text="Speaker B").first.wait_for()
        page.get_by_role("button", name="Restore", exact=True).click()
        saved(page)
        assert corrected(fake).speakers == ("Speaker A", "Speaker B")
        assert notes(fake)[2].startswith("Restored: Corrected at 0:00: morning → evening, ")
        page.get_by_role("button", name="Versions").click()
        page.get_by_role("button", name="As it was transcribed").click()
        page.get_by_role("button", name="Restore", exact=True).click()
        saved(page)
        assert said(page).startswith("Good morning") and len(fake.jobs["job-1"].saved) == 4
        page.keyboard.press("Control+z")
        assert said(page).startswith("Good evening")
        saved(page)
        assert notes(fake)[4] == "Undone: Restored: As it was transcribed"


def test_what_is_found_is_replaced(browser, tone) -> None:
    fake = Fake(tone, transcript(conversation(10)), recordings=1)
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.get_by_label("Search in the transcript").fill("RAIN")
        page.get_by_label("Replace with").fill("$& snow")
        page.get_by_role("button", name="Replace all").click()
        page.get_by_text("6 replaced").wait_for()
        saved(page)
        assert corrected(fake).text.count("$& snow") == 6


SPOKEN = [
    (None, "The cube netties cluster, cube netties' nodes."),
    (None, "Cube netties is up."),
    (None, "cube-netties and Cube netties's end."),
]


def lists(page: Any) -> dict[str, str]:
    """What the page keeps in this browser."""
    return dict(page.evaluate("JSON.parse(localStorage.getItem('forescribe.settings'))"))


def test_a_correction_is_made_everywhere_and_remembered(browser, tone) -> None:
    fake = Fake(tone, transcript(SPOKEN), recordings=1)

    def kept(context: Any) -> None:
        before = {"terms": "Zoë\nBerlin", "replacements": "um =>\nCUBE  netties => Cubes"}
        stored = json.dumps(json.dumps(before))
        context.add_init_script(
            f"localStorage.length || localStorage.setItem('forescribe.settings', {stored})"
        )

    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1", before=kept) as page:
        page.locator(".viewer").wait_for()
        assert page.locator("#terms").input_value() == "Zoë\nBerlin"
        page.locator(".w", has_text="netties").first.dblclick()
        page.locator(".editor textarea").fill("The Kubernetes cluster, cube netties' nodes.")
        page.get_by_role("button", name="Everywhere, and remember").click()
        page.get_by_text(
            "cube netties → Kubernetes: corrected at 4 places, and remembered"
        ).wait_for()
        saved(page)
        assert corrected(fake).text == (
            "The Kubernetes cluster, Kubernetes' nodes. Kubernetes is up. "
            "cube-netties and Kubernetes's end."
        )
        assert lists(page)["replacements"] == "um =>\ncube netties => Kubernetes"
        page.get_by_role("button", name="Undo").click()
        saved(page)
        assert corrected(fake).text == fake.told.text
        correct(page, "cluster,", "The cube netties cluster, cube netties' nodes. And more.")
        page.locator(".w", has_text="more").first.dblclick()
        page.locator(".editor textarea").fill("The cube netties cluster, cube netties' nodes.")
        page.get_by_role("button", name="Everywhere, and remember").click()
        assert lists(page)["replacements"].endswith("\nAnd more =>")
        page.locator(".brand a").click()
        page.locator("#settings summary").click()
        send(page, tone)
        page.locator(".running-text").wait_for()
        sent = json.loads(fake.forms[0]["replacements"])
        assert sent == ["um =>", "cube netties => Kubernetes", "And more =>"]
        assert json.loads(fake.forms[0]["terms"]) == ["Zoë", "Berlin"]


def test_corrections_everywhere_are_those_of_replacements(browser, tone) -> None:
    """What the page writes at once is what the service writes in the next recording."""
    texts = (
        "Can we? We can't. CAN I, the can's lid; canned 1 can.",
        "It was 1,300 and 300, not 300.5 or 2:300.",
        "Porter and Porter's well-porter, porter-house PORTER",
        "Größe größe GRÖßE ein größer",
        "new york, New  York! NEW YORK newyork",
    )
    pairs = [
        ("can", "may"),
        ("300", "400"),
        ("porter", "Potter"),
        ("größe", "weite"),
        ("new york", "york"),
    ]
    program = """async ([pairs, texts]) => {
        const { Edits } = await import("/page/edits.js");
        const segment = (text) => ({ start: 0, end: 1, text, speaker: null, words: null });
        return pairs.map(([heard, meant]) => texts.map((text) => {
            const made = new Edits([segment(heard), segment(text)], true);
            const [changes] = made.withEverywhere(0, meant);
            return changes.segments[1].text;
        }));
    }"""
    fake = Fake(tone, walk())
    with running(fake.app) as url, browsing.watched(browser, url) as page:
        written = page.evaluate(program, [pairs, texts])
    for (heard, meant), own in zip(pairs, written, strict=True):
        replacements = Replacements([f"{heard} => {meant}"])
        for text, made in zip(texts, own, strict=True):
            expected = text
            for place in reversed(replacements.places(text)):
                expected = expected[: place.start] + place.written + expected[place.end :]
            assert made.split() == expected.split(), (heard, text)


def test_doubtful_words_are_marked_and_gone_through(browser, tone) -> None:
    told = walk()
    first = told.segments[0]
    words = [
        replace(w, probability=0.2 if n in (2, 5) else 0.6) for n, w in enumerate(first.words or ())
    ]
    fake = Fake(
        tone, replace(told, segments=(replace(first, words=tuple(words)), *told.segments[1:]))
    )
    fake.add()
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator("audio[src]").wait_for()
        assert page.locator(".w.unsure").all_inner_texts() == ["thanks", "Did"]
        assert page.locator(".w.unsure").first.get_attribute("title") == "Probability 20 %"
        for word in ("thanks", "Did", "thanks"):
            page.get_by_role("button", name="2 doubtful words").click()
            assert page.evaluate("document.activeElement.textContent") == word


def of_word(document: bytes) -> list[tuple[str, str]]:
    """The styles and texts of a docx, as Word's reader in Python finds them."""
    from docx import Document

    with ZipFile(BytesIO(document)) as parts:
        assert parts.testzip() is None
    paragraphs = Document(BytesIO(document)).paragraphs
    return [(paragraph.style.name, paragraph.text) for paragraph in paragraphs]


def test_a_report_keeps_corrections_in_the_browser_and_writes_files(browser, tmp_path) -> None:
    path = tmp_path / "r.html"
    path.write_text(render_page(walk(), "call.mp3", Sound(None, "nothing to play")), "utf-8")
    with browsing.watched(browser, path.as_uri()) as page:
        for name in ("txt", "srt", "vtt"):
            assert download(page, name) == files.FORMATS[name].render(walk()), name
        assert download(page, "md") == files.FORMATS["md"].render(walk(), title="call")
        made = of_word(files.FORMATS["docx"].render(walk(), title="call"))
        assert of_word(download_bytes(page, "docx")) == made and len(made) > 5
        assert json.loads(download(page, "json")) == walk().to_dict()
        correct(page, "Good", f"Changed {HOSTILE}.")
        saved(page)
        page.reload()
        assert "Changed <img" in said(page) and page.locator("img").count() == 0
        told = json.loads(download(page, "json"))
        assert told["segments"][0]["text"].startswith(" Changed <img")
        assert told["text"].startswith("Changed") and len(told["segments"]) == 5
        texts = [text for _, text in of_word(download_bytes(page, "docx"))]
        assert texts[2] == f"0:00\tChanged {HOSTILE}."
        page.get_by_role("button", name="Versions").click()
        page.get_by_role("button", name="Restore", exact=True).click()  # as it was transcribed
        assert json.loads(download(page, "json")) == walk().to_dict()
        page.keyboard.press("Control+z")
        assert "\n00:" in download(page, "vtt") and "--> \u202e" not in download(page, "vtt")


def test_words_keep_or_share_times_whatever_is_written(browser, tone) -> None:
    """Random edits: what is sent fits what the service accepts, and times stay in order."""
    fake, draws = Fake(tone, walk()), random.Random(7)
    fake.add()
    words = "the a ridge rain until ten eleven then map, new. Bring – ü 日本".split()
    program = """async ([data, edits]) => {
        const { Edits } = await import("/page/edits.js");
        const { segmentsOf } = await import("/page/model.js");
        const made = new Edits(segmentsOf(data), true);
        const sent = [];
        for (const [name, ...given] of edits) {
            const index = given[0] % made.state.segments.length;
            made.do(made[name](index, ...given.slice(1)), name);
            sent.push(made.packed());
        }
        const again = new Edits(segmentsOf(data), true);
        again.open(JSON.parse(JSON.stringify(made.packed())));
        const same = JSON.stringify(again.packed().segments) === JSON.stringify(made.packed().segments);
        while (made.undo() !== null);
        return [sent, same, made.packed().segments];
    }"""
    edits: list[list[Any]] = []
    for _ in range(300):
        kind = draws.choice(["withText"] * 4 + ["withSplit"])
        text = " ".join(draws.choices(words, k=draws.randrange(1, 14)))
        given = text if kind == "withText" else draws.randrange(1, 5)
        edits.append([kind, draws.randrange(99), given])
    with running(fake.app) as url, browsing.watched(browser, url) as page:
        sent, same, undone = page.evaluate(program, [fake.told.to_dict(), edits])
    assert same and undone == list(range(len(fake.told.segments)))
    for body in sent:
        told = checked(Corrections, body).apply(fake.told)
        for segment in told.segments:
            assert "".join(w.text for w in segment.words or ()) == segment.text
            times = [t for w in segment.words or () for t in (w.start, w.end)]
            assert times == sorted(times), segment
            assert segment.start <= times[0] and times[-1] <= segment.end
