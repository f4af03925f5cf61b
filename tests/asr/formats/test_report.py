"""Reports: one file that can be read, heard and passed on, whatever was said in it."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from forescribe.asr.decode.outcome import source_stats
from forescribe.asr.errors import OutputError, UsageError
from forescribe.asr.formats import report
from forescribe.asr.formats.report import Reports, Sound, page_sound, render_page
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Coverage, Notice, Segment, Span, Turn, Word
from forescribe.cli import main as command_line
from forescribe.speculative.requests import Source
from tests import browser as browsing
from tests.asr.model import folders

browser = browsing.browser

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">@DATA@"
SILENCE = Sound(None, "nothing to play")


def spoken(*texts: str, speakers: tuple[str, ...] = (), seconds: float = 8.0) -> Transcript:
    """A second for each word; drafts right but for each third word."""
    segments, at = [], 0
    for n, text in enumerate(texts):
        start, words = at, []
        speaker = speakers[n % len(speakers)] if speakers else None
        for word in text.split():
            who = "correction" if len(words) % 3 == 2 else "accepted"
            words.append(Word(f" {word}", at, at + 16_000, 0.9, speaker, sources=(who,)))
            at += 16_000
        segments.append(
            Segment(n, 0, 0, start, at, f" {text}", words=tuple(words), speaker=speaker)
        )
    end = max(at, round(16_000 * seconds))
    spans = [Span(0, at, "decoded")] * bool(at) + [Span(at, end, "silent")] * (end > at)
    told = source_stats([[Source.ACCEPTED, Source.ACCEPTED, Source.CORRECTION] * 4])
    return Transcript(
        tuple(segments),
        end,
        Coverage(tuple(spans)),
        language="en",
        diarized=bool(speakers),
        stats={"rounds": 4, "drafted": 12, "accepted": 8, "wall_s": 0.5, **told},
        settings={"model": "tiny.en", "draft": None, "device": "cpu"},
    )


def wav(path: Path, seconds: float = 8.0) -> Path:
    soundfile.write(path, 0.1 * np.sin(np.arange(round(8000 * seconds)) * 0.2), 8000)
    return path


# -- the file -----------------------------------------------------------------------------------------


def test_what_was_said_cannot_leave_its_place() -> None:
    told = spoken(HOSTILE, speakers=(HOSTILE,))
    text = render_page(told, HOSTILE, SILENCE)
    assert text.count("</script>") == 2 and "<img" not in text
    held = json.loads(text.split('id="report">')[1].split("</script>")[0])
    assert held["transcript"] == json.loads(json.dumps(told.to_dict()))
    assert held["title"] == HOSTILE


def test_modules_are_joined_whole_and_in_order() -> None:
    """No import is left, nothing is imported before it is there, and no two have one name."""
    script = report._script()
    assert not re.search(r"^(import|export) ", script, flags=re.M)
    seen: set[str] = set()
    names: list[str] = []
    for module in report.MODULES:
        text = report.view(module)
        assert set(re.findall(r'from "\./([\w.]+)"', text)) <= seen, module
        seen.add(module)
        found = r"^(?:export )?(?:async )?(?:function\*?|class|const|let) (\w+)"
        names += re.findall(found, text, flags=re.M)
    assert len(names) == len(set(names))


def test_a_recording_travels_in_the_page_up_to_a_size(tmp_path, monkeypatch) -> None:
    path = wav(tmp_path / "a b.wav")
    inside = page_sound(str(path), tmp_path / "out")
    assert inside.src.startswith("data:audio/wav;base64,UklGR")
    monkeypatch.setattr(report, "EMBEDDED_BYTES", path.stat().st_size - 1)
    beside = page_sound(str(path), tmp_path / "out")
    assert beside.src == "../a%20b.wav" and "is not in this page" in beside.note
    assert "media-src data:" not in render_page(spoken("one"), "a", beside)


@pytest.mark.parametrize(
    ("name", "note"),
    [("-", "through a pipe"), ("a.amr", "do not play .amr"), ("gone.wav", "No such file")],
)
def test_what_cannot_be_played_is_said(tmp_path, name, note) -> None:
    played = page_sound(name if name == "-" else str(tmp_path / name), tmp_path)
    assert played.src is None and note in played.note


def test_several_recordings_are_a_folder_with_a_list(tmp_path) -> None:
    names = [str(wav(tmp_path / name)) for name in ("a.wav", "b.wav")]
    stems = {names[0]: "a", names[1]: "sub/b", "<i>.mp3": "c"}
    reports = Reports.plan(str(tmp_path / "out"), stems)
    for name in names:
        reports.add(name, spoken("one two"))
    reports.add("<i>.mp3", "<i>.mp3: no audio in it")
    assert reports.close() == [tmp_path / "out" / "index.html"]
    text = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'href="([^"]+)"', text) == ["a.html", "sub/b.html"]
    assert (tmp_path / "out" / "sub" / "b.html").is_file()
    assert "&lt;i&gt;.mp3: no audio in it" in text and "<i>" not in text


def test_warnings_are_in_the_page_with_and_without_programs_and_in_the_list(tmp_path) -> None:
    warned = replace(spoken("one two"), warnings=(Notice("a", HOSTILE), Notice("b", "not sure")))
    text = render_page(warned, "a.wav", SILENCE)
    assert "Warning: &lt;/script&gt;" in text and "Warning: not sure" in text
    held = json.loads(text.split('id="report">')[1].split("</script>")[0])
    assert [notice["message"] for notice in held["transcript"]["warnings"]] == [HOSTILE, "not sure"]
    reports = Reports.plan(str(tmp_path), {"a.wav": "a", "b.wav": "b"})
    reports.add("a.wav", warned)
    reports.add("b.wav", replace(warned, warnings=warned.warnings[:1]))
    (listed,) = reports.close()
    assert re.findall(r"<td>(done[^<]*)</td>", listed.read_text(encoding="utf-8")) == [
        "done, 2 warnings",
        "done, 1 warning",
    ]


def test_one_page_holds_one_recording(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"--report r.html: .* there are 2; name a folder"):
        Reports.plan("r.html", {"a.wav": "a", "b.wav": "b"})
    name = str(wav(tmp_path / "a.wav"))
    reports = Reports.plan(str(tmp_path / "r.html"), {name: "a"})
    reports.add(name, spoken("one"))
    assert reports.close() == [tmp_path / "r.html"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.wav", "r.html"]


def test_a_page_that_cannot_be_written_stops_no_recording(tmp_path) -> None:
    (tmp_path / "file").touch()
    reports = Reports.plan(str(tmp_path / "file" / "out"), {"a.wav": "a"})
    reports.add("a.wav", spoken("one"))
    reports.add("a.wav", spoken("one"))
    with pytest.raises(OutputError, match="cannot write the report .* --report"):
        reports.close()


def test_what_an_earlier_run_has_done_is_shown_from_its_json(tmp_path) -> None:
    told, name = spoken("one two", speakers=("A",)), str(wav(tmp_path / "a.wav"))
    files = [told.save(tmp_path / name) for name in ("a.txt", "a.json")]
    reports = Reports.plan(str(tmp_path / "r.html"), {name: "a"})
    assert reports.add_skipped(name, files)
    assert not reports.add_skipped(name, files[:1])
    (tmp_path / "changed.json").write_text('{"text": 1}')
    assert not reports.add_skipped(name, [tmp_path / "changed.json"])
    reports.close()
    assert '"speaker": "A"' in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_the_command_writes_them_and_shows_what_is_done_already(
    tmp_path, monkeypatch, capfd
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [wav(Path(name), 2).name for name in ("a.wav", "b.wav")]
    folder = folders.write(tmp_path / "target", max_target_positions=40)
    given = [
        *names,
        "--model",
        str(folder),
        "--draft",
        "none",
        "--device",
        "cpu",
        "--no-vad",
        "--no-guards",
    ]

    def forescribe(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["forescribe", *given, "-o", "out", *arguments])
        try:
            command_line.main()
        except SystemExit as left:
            return int(left.code or 0)
        return 0

    assert forescribe("--report", "r.html") == 2 and "name a folder" in capfd.readouterr().err
    for _ in ("decoded", "skipped"):
        assert forescribe("--report", "pages") == 0
        made = {path.name: path.read_text(encoding="utf-8") for path in Path("pages").iterdir()}
        assert set(made) == {"a.html", "b.html", "index.html"}
        assert all('"written": {"accepted": ' in made[f"{name}.html"] for name in "ab")
        assert json.loads(Path("out/a.json").read_text())["segments"][0]["words"]
        shutil.rmtree("pages")
    assert "already done" in capfd.readouterr().err


# -- in a browser -------------------------------------------------------------------------------------


@pytest.fixture
def shown(tmp_path, browser) -> Iterator[Any]:
    told = spoken("Good morning <b>all", f"bye {HOSTILE}", speakers=("A", HOSTILE))
    told = replace(told, warnings=(Notice("unsure", HOSTILE),))
    path = tmp_path / "r.html"
    path.write_text(
        render_page(told, HOSTILE, page_sound(str(wav(tmp_path / "a.wav")), tmp_path)), "utf-8"
    )
    with browsing.watched(browser, path.as_uri()) as opened:
        yield opened


def test_it_is_read_heard_and_looked_into(shown) -> None:
    """Under its own policy, from a file, with nothing beside it."""
    assert shown.title() == HOSTILE and shown.locator("img").count() == 0
    assert "Good morning <b>all" in shown.locator(".transcript").inner_text()
    assert shown.locator(".summary").inner_text().startswith("0:08 · English")
    shown.locator(".w", has_text="morning").click()
    shown.locator(".w.now").first.wait_for()
    shown.get_by_label(f"Name of {HOSTILE}").wait_for(state="attached")
    assert HOSTILE in shown.get_by_label("Warnings").inner_text()


def test_doubtful_speakers_are_marked(tmp_path, browser) -> None:
    told = spoken("Good morning all", "bye", speakers=("Speaker A", "Speaker B"))
    first, second = told.segments
    sure = replace(first, speaker_confidence=0.97), replace(second, speaker_confidence=0.42)
    path = tmp_path / "r.html"
    path.write_text(render_page(replace(told, segments=sure), "call", SILENCE), "utf-8")
    with browsing.watched(browser, path.as_uri()) as opened:
        doubts = opened.locator(".doubt").all_inner_texts()
        assert len(doubts) == 1 and doubts[0].endswith("doubtful (confidence 42 %).")


def test_the_turns_of_a_json_follow_its_corrections(tmp_path, browser) -> None:
    told = spoken("Good morning all", "bye", speakers=("Speaker A", "Speaker B"))
    heard = (Turn(0, 52_000, "Speaker A"), Turn(40_000, 64_000, "Speaker B"))
    path = tmp_path / "r.html"
    path.write_text(render_page(replace(told, turns=heard), "call", SILENCE), "utf-8")

    def turns() -> list[tuple[float, float, str]]:
        opened.get_by_role("button", name="Download", exact=True).click()
        with opened.expect_download() as waiting:
            opened.get_by_role("menuitem", name=".json)").click()
        read = Transcript.load(waiting.value.path())
        return [(turn.start, turn.end, turn.speaker) for turn in read.turns]

    with browsing.watched(browser, path.as_uri()) as opened:
        opened.get_by_label("Name of Speaker A").fill("Ann")
        assert turns() == [(0.0, 3.25, "Ann"), (2.5, 4.0, "Speaker B")]
        opened.get_by_role("button", name="Same person").click()
        opened.get_by_role("menuitem", name="Ann is Speaker B").click()
        assert turns() == [(0.0, 3.0, "Ann"), (3.0, 4.0, "Ann")]
