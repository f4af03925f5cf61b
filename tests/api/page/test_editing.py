"""Corrections in a real browser: text, speakers and names are changed, saved, undone, written to files."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forescribe.api.jobs.corrections import Corrections
from forescribe.asr.formats import files
from forescribe.asr.formats.report import Sound, render_page
from forescribe.asr.formats.subtitles import LineRules
from forescribe.asr.formats.transcript import Transcript
from tests import browser as browsing
from tests.api.page.conftest import walk
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
    return Corrections.parse(fake.jobs[id].saved[-1]).apply(fake.jobs[id].told)


def download(page: Any, name: str) -> str:
    page.get_by_role("button", name="Download").click()
    with page.expect_download() as waiting:
        page.get_by_role("menuitem", name=f".{name})").click()
    return Path(waiting.value.path()).read_text(encoding="utf-8")


def test_text_is_corrected_in_place_saved_and_in_every_file(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.add()
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".viewer").wait_for()
        correct(page, "thanks", f"Good evening,\0thank you {HOSTILE} all for joining.")
        assert "Good evening, thank you <img" in said(page)
        saved(page)
        before, after = fake.told.segments[0].words, corrected(fake).segments[0].words
        times = {w.text: (w.start, w.end) for w in before or ()}
        for word in after or ():
            if word.text in times and word.text != " the":
                assert (word.start, word.end) == times[word.text], (
                    "words that stay keep their times"
                )
        assert [w.start for w in after or ()] == sorted(w.start for w in after or ())
        assert fake.jobs["job-1"].saved[-1]["segments"][1:] == [1, 2, 3, 4], "the rest is untouched"
        for name in ("txt", "srt", "vtt", "tsv"):
            assert download(page, name) == files.FORMATS[name].render(corrected(fake)), name
        assert json.loads(download(page, "json")) == corrected(fake).to_dict()
        page.get_by_label("Search in the transcript").fill("good evening")
        assert page.locator(".search .count").inner_text() == "1 found"
        page.reload()
        page.locator(".viewer").wait_for()
        assert "Good evening" in said(page) and page.locator("img").count() == 0
        page.get_by_role("button", name="Original").click()
        assert "Good morning" in said(page) and "Good evening" not in said(page)
        page.get_by_role("button", name="Original").click()
        assert "Good evening" in said(page)


def test_steps_are_undone_and_done_again_and_versions_come_back(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.add()
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".viewer").wait_for()
        for before, text in (("Good", "One."), ("One.", "Two."), ("Two.", "Three.")):
            correct(page, before, text)
            saved(page)
        page.keyboard.press("Control+z")
        assert "Two." in said(page) and "Three." not in said(page)
        page.get_by_role("button", name="Undo").click()
        page.get_by_role("button", name="Undo").click()
        assert (
            "Good morning" in said(page) and page.get_by_role("button", name="Undo").is_disabled()
        )
        page.get_by_role("button", name="Redo").click()
        assert "One." in said(page)
        saved(page)
        assert corrected(fake).segments[0].text == " One."
        page.get_by_role("button", name="Versions").click()
        page.get_by_role("menuitem", name="Corrected at").nth(1).wait_for()
        page.get_by_role("menuitem", name="Corrected at").first.press("End")
        page.get_by_role("menuitem").nth(1).click()
        page.locator(".w", has_text="Three.").wait_for()
        saved(page)
        page.get_by_role("button", name="Versions").click()
        page.get_by_role("menuitem", name="As it was recognized").click()
        saved(page)
        assert corrected(fake).text == fake.told.text
        assert not page.get_by_role("button", name="Original").is_visible()


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
        page.locator(".brand a").click()  # asked whether to leave without them, the answer is no
        assert page.url.endswith("#job-1") and "Mine." in said(page)
        page.get_by_role("button", name="Show theirs").click()
        page.get_by_text("something").wait_for(state="detached")
        assert "Good morning" in said(page)
        page.get_by_role("button", name="Undo").click()
        saved(page)
        assert corrected(fake).segments[0].text == " Mine." and len(job.saved[-1]["segments"]) == 5


def test_a_server_that_is_away_gets_the_corrections_later(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.add()

    server = Server(fake.app)
    try:
        with browsing.watched(browser, f"{server.url}/#job-1", refusals=True) as page:
            page.locator(".viewer").wait_for()
            server.stop()
            correct(page, "Good", "Later.")
            page.get_by_text("Waiting: corrections of recording 1.wav to be saved.").wait_for()
            server.start()
            page.get_by_role("button", name="Try now").click()
            saved(page)
            assert corrected(fake).segments[0].text == " Later."
    finally:
        server.stop()


def test_speakers_are_named_merged_and_given_and_parts_are_split_and_joined(browser, tone) -> None:
    fake = Fake(tone, walk())
    fake.add()
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".viewer").wait_for()
        page.locator(".w", has_text="Did").first.focus()
        page.keyboard.press("s")
        page.keyboard.press("2")
        saved(page)
        first, second = corrected(fake).segments[:2]
        assert second.text.startswith(" Did the") and second.speaker == "SPEAKER_01"
        assert first.speaker == "SPEAKER_00" and first.end <= second.start
        assert page.evaluate("document.activeElement.textContent") == "Did"
        page.keyboard.press("3")
        assert page.locator(".person").count() == 3, "a key more than there are is a new one"
        page.get_by_label("Name of speaker C").fill("Zoë")
        page.get_by_role("button", name="Merge Zoë with another speaker").click()
        page.get_by_role("menuitem", name="The same person as Speaker B").click()
        assert page.locator(".person").count() == 2
        saved(page)
        assert {s.speaker for s in corrected(fake).segments} == {"SPEAKER_00", "Zoë"}
        page.locator(".w", has_text="Good").first.focus()
        page.keyboard.press("m")
        saved(page)
        assert corrected(fake).segments[0].text == fake.told.segments[0].text
        page.get_by_role("button", name="Edit").click()
        for button, word, parts in (("Split here", "until", 6), ("Join with next", "Rain", 5)):
            page.locator(".w", has_text=word).first.click()
            page.get_by_role("button", name=button).click()
            saved(page)
            assert len(corrected(fake).segments) == parts, "the buttons of the field do it too"
        page.locator(".w", has_text="until").first.click()
        page.keyboard.type("or ")
        page.keyboard.press("Control+Enter")
        saved(page)
        assert [s.text for s in corrected(fake).segments][1:3] == [
            " It did. Rain or",
            " until ten, then it clears from the west, so we could leave at eleven.",
        ]
        page.get_by_role("button", name="Undo").click()
        page.get_by_role("button", name="Undo").click()
        page.get_by_role("button", name="Edit").click()
        page.locator(".who .name").nth(1).click()
        page.get_by_role("menuitem", name="Speaker A").click()
        saved(page)
        assert corrected(fake).segments[1].speaker == "SPEAKER_00"
        assert "SPEAKER_00: " in download(page, "txt")


def test_what_is_found_is_replaced(browser, tone) -> None:
    fake = Fake(tone, transcript(conversation(10)))
    fake.add()
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".viewer").wait_for()
        page.keyboard.press("r")
        page.get_by_label("Search in the transcript").fill("RAIN")
        page.get_by_label("Replace with").fill("$& snow")
        page.get_by_role("button", name="Replace all").click()
        page.get_by_text("6 replaced").wait_for()
        page.get_by_role("button", name="Undo").click()
        page.get_by_label("Whole words").check()
        page.get_by_role("button", name="Replace all").click()
        page.get_by_text("4 replaced").wait_for()
        saved(page)
        text = corrected(fake).text
        assert text.count("$& snow") == 4 and text.count("drains") == 2
        assert download(page, "vtt") == files.vtt(corrected(fake))


def test_doubtful_words_are_marked_and_gone_through(browser, tone) -> None:
    told = walk()
    first = told.segments[0]
    low = {2: 0.2, 5: 0.2}
    words = tuple(replace(w, probability=low.get(n, 0.4)) for n, w in enumerate(first.words or ()))
    fake = Fake(tone, replace(told, segments=(replace(first, words=words), *told.segments[1:])))
    fake.add()
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".play:enabled").wait_for()
        assert page.locator(".w.unsure").count() == len(words)
        page.locator(".view summary").click()
        page.get_by_label("Mark doubtful words").select_option("below 30 %")
        page.keyboard.press("Escape")
        assert page.locator(".w.unsure").all_inner_texts() == ["thanks", "Did"]
        assert page.locator(".w.unsure").first.get_attribute("title") == "Probability 20 %"
        page.locator(".view summary").blur()
        page.keyboard.press("n")
        assert page.evaluate("document.activeElement.textContent") == "thanks"
        page.keyboard.press("n")
        assert page.evaluate("document.activeElement.textContent") == "Did"
        page.keyboard.press("e")
        field = page.locator(".editor textarea")
        start = field.evaluate("e => e.value.slice(e.selectionStart)")
        assert start.startswith("Did the"), "the cursor is at the word"
        page.keyboard.type("Well. ")
        page.keyboard.press("Enter")
        saved(page)
        assert "joining. Well. Did the" in corrected(fake).text
        page.keyboard.press("N")
        assert page.evaluate("document.activeElement.textContent") == "thanks"


def test_captions_and_files_have_the_lines_that_are_set(browser, tone) -> None:
    fake = Fake(tone, transcript(conversation(9)))
    fake.add()
    with running(fake.app) as url, browsing.watched(browser, f"{url}/#job-1") as page:
        page.locator(".play:enabled").wait_for()
        correct(
            page,
            "Good",
            "Good day to you all, and thanks for coming here so early. Was there a report?",
        )
        saved(page)
        for width, count in ((32, 2), (20, 1), (42, None)):
            page.get_by_role("button", name="Download").click()
            page.get_by_role("menuitem", name="Settings of files").click()
            page.get_by_label("Characters in a line").fill(str(width))
            page.get_by_label("Lines at a time").fill("" if count is None else str(count))
            page.get_by_role("button", name="Keep").click()
            rules = LineRules(width, count)
            assert download(page, "srt") == files.srt(corrected(fake), rules), rules
            assert download(page, "vtt") == files.vtt(corrected(fake), rules), rules
        page.keyboard.press("v")
        page.locator(".stage").wait_for()
        page.locator(".w", has_text="Good").first.click()
        page.locator(".caption", has_text="Speaker A: Good day").wait_for()
        page.get_by_role("button", name="Download").click()
        page.get_by_role("menuitem", name="Settings of files").click()
        page.get_by_label("Names of speakers").uncheck()
        page.get_by_role("button", name="Keep").click()
        assert "SPEAKER" not in download(page, "txt") + download(page, "srt")


def test_a_report_keeps_corrections_in_the_browser(browser, tmp_path) -> None:
    path = tmp_path / "r.html"
    path.write_text(render_page(walk(), "call", Sound(None, "nothing to play")), "utf-8")
    with browsing.watched(browser, path.as_uri()) as page:
        correct(page, "Good", f"Changed {HOSTILE}.")
        saved(page)
        page.reload()
        assert "Changed <img" in said(page) and page.locator("img").count() == 0
        told = json.loads(download(page, "json"))
        assert told["segments"][0]["text"].startswith(" Changed <img")
        assert told["text"].startswith("Changed") and len(told["segments"]) == 5


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
        kind = draws.choice(["withText"] * 4 + ["withSplit", "withJoin"])
        if kind == "withText":
            edits.append(
                [
                    kind,
                    draws.randrange(99),
                    " ".join(draws.choices(words, k=draws.randrange(1, 14))),
                ]
            )
        else:
            edits.append(
                [
                    kind,
                    draws.randrange(99),
                    *([draws.randrange(1, 5)] if kind == "withSplit" else []),
                ]
            )
    with running(fake.app) as url, browsing.watched(browser, url) as page:
        sent, same, undone = page.evaluate(program, [fake.told.to_dict(), edits])
    assert same and undone == list(range(len(fake.told.segments)))
    for body in sent:
        told = Corrections.parse(body).apply(fake.told)
        for segment in told.segments:
            assert "".join(w.text for w in segment.words or ()) == segment.text
            times = [t for w in segment.words or () for t in (w.start, w.end)]
            assert times == sorted(times), segment
            assert segment.start <= times[0] and times[-1] <= segment.end
