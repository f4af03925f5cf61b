"""Transcripts to read, as minutes of a meeting are: Markdown, and Word's docx (by python-docx).

A paragraph is what one speaker says without a long pause. Each has its time, and the name of its speaker
where that is another than before; the title is the name of the recording. Knows nothing of files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

from .subtitles import UNNAMED, label, one_line
from .transcript_parts import SAMPLE_RATE, Contents

TITLE = "Transcript"
"""Of a recording without a name."""

PAUSE = 2 * SAMPLE_RATE
"""Samples of silence that end a paragraph, as on the page."""

LONGEST = 60
"""Words after which the next segment begins a paragraph."""

TIME_PT, GREY = 9, "6B6B6B"
INDENT_PT = 42
"""Of text behind its time, which has room for ten hours."""

_MARKUP = re.compile(r"[\\`*_\[\]<&~]")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML cannot hold."""


@dataclass
class Paragraph:
    """Text of one speaker from a sample on; `speaker` is None in a recording without speakers."""

    speaker: str | None
    start_sample: int
    text: str

    @property
    def clock(self) -> str:
        """0:05, 1:02:05."""
        minutes, second = divmod(self.start_sample // SAMPLE_RATE, 60)
        hour, minute = divmod(minutes, 60)
        return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def paragraphs(transcript: Contents) -> Iterator[Paragraph]:
    """The text in order, without empty segments."""
    segments = [segment for segment in transcript.segments if one_line(segment.text)]
    nobody = UNNAMED if any(label(segment.speaker) for segment in segments) else None
    found: Paragraph | None = None
    end = 0
    for segment in segments:
        speaker = label(segment.speaker) or nobody
        fits = segment.start_sample - end <= PAUSE
        if found and fits and speaker == found.speaker and len(found.text.split()) < LONGEST:
            found.text += segment.text
        else:
            if found:
                yield found
            found = Paragraph(speaker, segment.start_sample, segment.text)
        end = segment.end_sample
    if found:
        yield found


def md(transcript: Contents, title: str = TITLE) -> str:
    """Markdown: `**Speaker B** (0:05) Good morning.`"""
    lines, before = [f"# {_escaped(label(title) or TITLE)}\n"], None
    for one in paragraphs(transcript):
        name = f"**{_escaped(one.speaker)}** " if one.speaker and one.speaker != before else ""
        lines.append(f"{name}({one.clock}) {_escaped(one_line(one.text))}\n")
        before = one.speaker
    return "\n".join(lines)


def docx(transcript: Contents, title: str = TITLE) -> bytes:
    """A document of Word: the title, then a heading for each turn and its paragraphs with their times."""
    from docx import Document
    from docx.shared import Pt, RGBColor

    document = Document()
    about, name = document.core_properties, _printable(label(title) or TITLE)
    about.title, about.author, about.comments = name, "", ""
    document.add_heading(name, level=1)
    before = None
    for one in paragraphs(transcript):
        if one.speaker and one.speaker != before:
            document.add_heading(_printable(one.speaker), level=3)
        before = one.speaker
        paragraph = document.add_paragraph()
        shape = paragraph.paragraph_format
        shape.left_indent, shape.first_line_indent = Pt(INDENT_PT), Pt(-INDENT_PT)
        time = paragraph.add_run(f"{one.clock}\t")
        time.font.size, time.font.color.rgb = Pt(TIME_PT), RGBColor.from_string(GREY)
        paragraph.add_run(_printable(one_line(one.text)))
    made = BytesIO()
    document.save(made)
    return made.getvalue()


def _escaped(text: str) -> str:
    return _MARKUP.sub(r"\\\g<0>", text)


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub("", text)
