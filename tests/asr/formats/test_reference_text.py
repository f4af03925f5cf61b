"""Reference texts: the words of the files that people have."""

from __future__ import annotations

import pytest

from forescribe.asr.errors import UsageError
from forescribe.asr.formats.files import read_reference_text


def test_its_words_are_those_of_the_file(tmp_path):
    (tmp_path / "a.md").write_bytes("\ufeffGood morning.\r\n\r\nIt is   12.\n".encode())
    assert read_reference_text(tmp_path / "a.md") == "Good morning. It is 12."


@pytest.mark.parametrize(
    ("content", "message"),
    [(b" \n ", "holds no text"), (b"\xff\xfe\x00", "cannot be read"), (None, "cannot be read")],
)
def test_files_without_text_are_refused_by_name(tmp_path, content, message):
    path = tmp_path / "a.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        read_reference_text(path)
    assert "a.txt" in str(caught.value)


@pytest.mark.parametrize("name", ["/dev/zero", "film.txt"])
def test_what_is_much_larger_than_a_text_is_not_read(tmp_path, name) -> None:
    with (tmp_path / "film.txt").open("wb") as film:
        film.truncate(1 << 34)
    with pytest.raises(UsageError, match="more than 16777216 bytes: it is no text"):
        read_reference_text(tmp_path / name)
