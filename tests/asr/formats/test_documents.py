"""Markdown and docx, read back by their own readers: what a person finds in the minutes of a meeting."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path

import pytest
from docx import Document

from forescribe.asr.formats.documents import docx, md
from forescribe.asr.formats.files import FORMATS, formats
from forescribe.asr.formats.transcript import Transcript
from tests.asr.formats.test_files import RATE, said

HOSTILE = "</w:t> *a* _b_ [c](d) `e` <img src=x> \\ & ~~f~~"


def meeting() -> Transcript:
    return said(
        (0, 2 * RATE, " Good morning."),
        (2 * RATE, 3 * RATE, " Shall we?"),
        (3 * RATE, 4 * RATE, " Yes."),
        (9 * RATE, 10 * RATE, " One more thing."),
        (3725 * RATE, 3726 * RATE, " Bye."),
        speakers=("Anna", "Anna", "Speaker B", "Speaker B", None),
    )


def read(data: bytes) -> list[tuple[str, str]]:
    """Style and text of each paragraph."""
    return [(p.style.name, p.text) for p in Document(BytesIO(data)).paragraphs]


def test_minutes_have_a_title_names_times_and_a_paragraph_for_each_pause() -> None:
    assert md(meeting(), "Monday").split("\n\n") == [
        "# Monday",
        "**Anna** (0:00) Good morning. Shall we?",
        "**Speaker B** (0:03) Yes.",
        "(0:09) One more thing.",
        "**Unknown speaker** (1:02:05) Bye.\n",
    ]
    made = docx(meeting(), "Monday")
    assert read(made) == [
        ("Heading 1", "Monday"),
        ("Heading 3", "Anna"),
        ("Normal", "0:00\tGood morning. Shall we?"),
        ("Heading 3", "Speaker B"),
        ("Normal", "0:03\tYes."),
        ("Normal", "0:09\tOne more thing."),
        ("Heading 3", "Unknown speaker"),
        ("Normal", "1:02:05\tBye."),
    ]
    about = Document(BytesIO(made)).core_properties
    assert (about.title, about.author) == ("Monday", "")


def test_without_speakers_there_are_times_alone_and_long_speech_is_divided() -> None:
    parts = [(n * RATE, (n + 1) * RATE, " ten words" * 5) for n in range(10)]
    told = said(*parts)
    assert [line[:6] for line in md(told).splitlines() if line] == ["# Tran", "(0:00)", "(0:06)"]
    assert [style for style, _ in read(docx(told))] == ["Heading 1", "Normal", "Normal"]


def test_nobody_speaks() -> None:
    assert md(said(), "a") == "# a\n" and read(docx(said(), "a")) == [("Heading 1", "a")]


@pytest.mark.parametrize("text", [HOSTILE, "a\nb\x00c\x1b[2J\ud800\uffffd", "日本語 🚚 שלום"])
def test_no_text_name_or_title_is_markup_or_breaks_the_file(text: str, tmp_path: Path) -> None:
    told = said((0, RATE, text), speakers=(text,))
    for name in ("a.md", "a.docx"):
        assert told.save(tmp_path / name).stat().st_size
    lines = (tmp_path / "a.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3
    plain = re.sub(r"\\(.)", r"\1", re.sub(r"\*\*", "", lines[2]))
    assert not re.search(r"(?<!\\)[`_\[\]<&~]", lines[2])
    shown = [text for _, text in read((tmp_path / "a.docx").read_bytes())]
    assert len(shown) == 3
    if text.isprintable():
        assert plain == f"{text} (0:00) {text}" and shown[1:] == [text, f"0:00\t{text}"]


def test_all_is_what_programs_read_and_documents_are_asked_for() -> None:
    assert {f.name for f in formats("all")} == FORMATS.keys() - {"rttm", "md", "docx"}
    assert [f.name for f in formats("all,docx")][-1] == "docx"


def test_a_speaker_has_one_name_in_every_format() -> None:
    for name in ("txt", "srt", "vtt", "tsv", "md"):
        text = str(FORMATS[name].render(meeting()))
        assert "Speaker B" in text and "Unknown speaker" in text, name
    assert {"Speaker B", "Unknown speaker"} <= {text for _, text in read(docx(meeting()))}
