"""From what is typed to recordings: all of them, each once, and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile

from forescribe.asr.batch.batch import length_s
from forescribe.asr.batch.destinations import MANIFEST as NAME
from forescribe.asr.batch.inputs import discover
from forescribe.asr.errors import UsageError
from forescribe.asr.storage.locations import Source
from tests.asr.typists import write_wav


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def paths(*names: str, recursive: bool = False) -> list[str]:
    return [source.path for source in discover(names, recursive=recursive)]


def places(*names: str) -> dict[str, str]:
    return {source.path: source.place for source in discover(names, recursive=True)}


def tree(*names: str) -> None:
    for n, name in enumerate(names):
        write_wav(Path(name), value=n)


# What is named


def test_files_are_taken_as_they_are_and_in_their_order() -> None:
    Path("notes.pdf").write_text("no audio")
    assert paths("b.wav", "notes.pdf", "-", "missing.mp3") == [
        "b.wav",
        "notes.pdf",
        "-",
        "missing.mp3",
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [("a.mp3", "a.mp3"), ("a.mp3", "./a.mp3"), ("x/../a.mp3", "a.mp3"), ("-", "-")],
)
def test_a_recording_named_twice_is_refused(first, second) -> None:
    with pytest.raises(UsageError, match=r"(a\.mp3|stdin) was given twice"):
        discover([first, second])
    with pytest.raises(UsageError, match="twice"):
        discover([str(Path.cwd() / "b.mp3"), "b.mp3"])
    with pytest.raises(UsageError, match="has an empty name"):  # not the folder here
        discover(["a.mp3", ""])


def test_a_file_beside_its_folder_counts_once() -> None:
    tree("calls/a.wav", "calls/b.wav")
    assert paths("calls/b.wav", "calls", "calls/*.wav") == ["calls/b.wav", "calls/a.wav"]


def test_a_name_with_brackets_that_is_there_is_no_pattern() -> None:
    tree("a[1].wav")
    assert paths("a[1].wav") == ["a[1].wav"]


# Folders


def test_a_folder_has_what_is_in_it_and_with_recursive_what_is_below() -> None:
    tree("calls/b.wav", "calls/a.wav", "calls/x/c.wav", "calls/x/y/d.wav")
    assert paths("calls") == ["calls/a.wav", "calls/b.wav"]
    assert places("calls") == {
        "calls/a.wav": "",
        "calls/b.wav": "",
        "calls/x/c.wav": "x",
        "calls/x/y/d.wav": "x/y",
    }


def test_hidden_files_own_results_and_what_is_no_recording_are_passed_over() -> None:
    tree("calls/a.wav", "calls/.hidden.wav", "calls/.trash/b.wav")
    for name in ("a.txt", "a.srt", "a.json", NAME, "notes.pdf", "a.wav.part", ".forescribe-0.tmp"):
        Path("calls", name).write_text("no audio")
    write_wav(Path("calls/odd.txt"))  # sound, but under a result's name
    os.mkfifo("calls/pipe.wav")
    assert paths("calls", recursive=True) == ["calls/a.wav"]


def test_names_decide_and_a_damaged_recording_is_not_lost() -> None:
    write_wav(Path("calls/voice.backup"))
    Path("calls/damaged.mp3").write_bytes(b"\0" * 100)
    Path("calls/empty.m4a").touch()
    Path("calls/gone.wav").symlink_to("nowhere.wav")
    assert paths("calls") == ["calls/damaged.mp3", "calls/empty.m4a", "calls/gone.wav"]


def test_links_in_circles_end() -> None:
    tree("calls/x/a.wav")
    Path("calls/x/up").symlink_to("..")
    Path("calls/again").symlink_to("x")
    Path("elsewhere").mkdir()
    tree("elsewhere/b.wav")
    Path("calls/far").symlink_to("../elsewhere")
    assert places("calls") == {"calls/x/a.wav": "x", "calls/far/b.wav": "far"}
    assert paths("calls/**/*.wav") == ["calls/x/a.wav"]


@pytest.mark.parametrize("recursive", [False, True])
def test_a_folder_without_recordings_fails_by_itself(recursive) -> None:
    tree("good/a.wav", "deep/x/a.wav")
    Path("deep/note.pdf").touch()
    Path("none").mkdir()
    good, none, *_ = discover(["good", "none", "deep"], recursive=recursive)
    assert good == Source("good/a.wav")
    assert none.error is not None and none.error.code == "unreadable_file"
    assert "none: a folder without recordings" in str(none.error)
    if not recursive:
        assert "--recursive" in str(none.error)


def test_a_folder_that_cannot_be_listed_is_said(monkeypatch) -> None:
    tree("calls/a.wav", "calls/locked/b.wav")
    real = os.scandir

    def scandir(path):
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    good, locked = discover(["calls"], recursive=True)
    assert good.error is None and locked.error is not None
    assert str(locked.error).startswith("calls/locked: cannot be read (Permission denied)")


# Patterns


def test_patterns_match_files_and_folders() -> None:
    tree("x/a.wav", "x/b.wav", "y/z/c.wav")
    Path("x/notes.pdf").touch()
    assert paths("x/*") == ["x/a.wav", "x/b.wav"]
    assert paths("?/*.wav") == ["x/a.wav", "x/b.wav"]
    assert sorted(paths("**/*.wav")) == ["x/a.wav", "x/b.wav", "y/z/c.wav"]
    assert paths("[xy]") == ["x/a.wav", "x/b.wav"]
    assert paths("[xy]", recursive=True) == ["x/a.wav", "x/b.wav", "y/z/c.wav"]


@pytest.mark.parametrize("pattern", ["*.mp3", "none/*", "x/*.pdf"])
def test_a_pattern_without_a_match_is_refused(pattern) -> None:
    tree("x/a.wav")
    Path("x/notes.pdf").touch()
    with pytest.raises(UsageError, match="no recording matches"):
        discover([pattern])


# Lists


def listed(*lines: object, name: str = "list.jsonl") -> str:
    Path(name).parent.mkdir(exist_ok=True, parents=True)
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    Path(name).write_text("\n".join(texts) + "\n", encoding="utf-8")
    return name


def test_a_list_names_recordings_from_where_it_lies() -> None:
    tree("data/a.wav", "b.wav")
    name = listed(
        {"audio_filepath": "a.wav", "duration": 3.5, "text": "x\u2028y"},
        "",
        {"audio_filepath": "b.wav"},
        {"audio_filepath": "/missing.wav", "duration": 0, "offset": 0},
        name="data/list.jsonl",
    )
    assert discover([name]) == [
        Source("data/a.wav", length_s=3.5), Source("b.wav"), Source("/missing.wav")
    ]  # fmt: skip


def test_a_name_in_a_list_may_begin_with_a_tilde(here, monkeypatch) -> None:
    """That of a home, or that of a backup: nobody is called `a.wav`."""
    monkeypatch.setenv("HOME", str(here / "home"))
    tree("home/b.wav", "data/~a.wav")
    name = listed(
        {"audio_filepath": "~/b.wav"}, {"audio_filepath": "~a.wav"}, name="data/list.jsonl"
    )
    assert paths(name) == [str(here / "home" / "b.wav"), "data/~a.wav"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is no JSON"),
        ({"path": "a.wav"}, "line 2 has no audio_filepath"),
        (["a.wav"], "line 2 has no audio_filepath"),
        ({"audio_filepath": "ftp://x/a.mp3"}, "line 2: ftp:// is not supported"),
        ({"audio_filepath": "a.wav", "offset": 2.5}, "line 2 has an offset"),
    ],
)
def test_a_list_with_a_fault_is_refused_by_line(line, message) -> None:
    with pytest.raises(UsageError, match=message):
        discover([listed({"audio_filepath": "a.wav"}, line)])


def test_a_list_that_is_missing_empty_or_no_text_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        discover(["none.jsonl"])
    with pytest.raises(UsageError, match="names no recording"):
        discover([listed()])
    Path("list.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        discover(["list.jsonl"])


# Lengths


def test_lengths_come_from_the_header_the_list_or_the_size() -> None:
    soundfile.write("a.flac", np.zeros(16_000), 16_000)
    assert length_s(Source("a.flac")) == pytest.approx(1.0)
    write_wav(Path("a.wav"), 2.5)
    assert length_s(Source("a.wav")) == pytest.approx(2.5)
    assert length_s(Source("a.wav", length_s=9.0)) == 9.0
    Path("noise.mp3").write_bytes(bytes(32_000))
    assert length_s(Source("noise.mp3")) == 2.0


def test_what_has_no_length_waits_for_the_others() -> None:
    os.mkfifo("pipe")  # opening it would wait for ever
    Path("folder").mkdir()
    Path("empty.wav").touch()
    for path in ("-", "pipe", "folder", "empty.wav", "missing.wav", "zero\0byte"):
        assert length_s(Source(path)) == 0.0
