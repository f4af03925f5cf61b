"""Reference texts: the words of the files that people have."""

from __future__ import annotations

import json

import pytest

from forescribe.asr.errors import UsageError
from forescribe.asr.formats.files import read_reference_text

SRT = """1
00:00:00,000 --> 00:00:02,000
<i>Good</i> morning.

2
00:00:02,500 --> 00:00:04,000
It is
12.
"""
VTT = """WEBVTT

NOTE not spoken

00:00.000 --> 00:02.000 align:start
<v Ann>Good morning.

x
00:02.500 --> 00:04.000
It is 12.
"""


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "\ufeffGood morning.\n\nIt is   12.\n"),
        ("a.md", "Good morning. It is 12."),
        ("a.srt", SRT),
        ("a.srt", SRT.replace("\n", "\r\n")),
        ("a.vtt", VTT),
        ("a.tsv", "start\tend\ttext\n0\t2000\tGood morning.\n2500\t4000\tIt is 12.\n"),
        ("a.json", json.dumps({"text": " Good morning. It is 12."})),
        ("a.JSON", json.dumps({"segments": [{"text": "Good morning."}, {"text": "It is 12."}]})),
    ],
)
def test_the_words_of_every_format(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content.encode())
    assert read_reference_text(path) == "Good morning. It is 12."


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b" \n ", "holds no text"),
        ("a.srt", b"1\n00:00:00,000 --> 00:00:02,000\n\n", "holds no text"),
        ("a.json", b"{}", "neither `text` nor `segments`"),
        ("a.json", b"{", "is no transcript"),
        ("a.txt", b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_files_without_text_are_refused_by_name(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        read_reference_text(path)
    assert name in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"missing\.txt cannot be read"):
        read_reference_text(tmp_path / "missing.txt")


@pytest.mark.parametrize("name", ["/dev/zero", "film.txt"])
def test_what_is_much_larger_than_a_text_is_not_read(tmp_path, name) -> None:
    with (tmp_path / "film.txt").open("wb") as film:
        film.truncate(1 << 34)
    with pytest.raises(UsageError, match="more than 16777216 bytes: it is no text"):
        read_reference_text(tmp_path / name)
