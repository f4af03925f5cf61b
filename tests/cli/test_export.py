"""`forescribe export`: transcripts in other formats, without audio or models."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from forescribe.cli.main import main
from tests.asr.typists import transcript

ROOT = Path(__file__).parents[2]


@pytest.fixture
def calls(tmp_path, monkeypatch) -> Path:
    """A folder with the JSON of two recordings."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        transcript(f"{name} word").save(f"calls/{name}.json")
    return tmp_path


@pytest.fixture
def run(monkeypatch, capfd) -> Callable[..., tuple[int, str, str]]:
    """The command in this process: its status, and what it prints."""

    def export(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["forescribe", "export", *arguments])
        try:
            main()
            status = 0
        except SystemExit as left:
            status = int(left.code or 0)
        return (status, *capfd.readouterr())

    return export


def test_transcripts_are_written_beside_their_json_or_elsewhere(calls, run) -> None:
    assert run("calls/a.json", "calls/b.json", "-f", "txt,docx") == (
        0, "calls/a.txt\ncalls/a.docx\ncalls/b.txt\ncalls/b.docx\n", ""
    )  # fmt: skip
    assert Path("calls/b.txt").read_text() == "b word\n"
    assert run("calls/a.json", "-o", "subtitles", "-f", "vtt")[1] == "subtitles/a.vtt\n"
    before = Path("calls/a.json").read_bytes()
    status, told, said = run("calls/a.json", "-f", "all", "--overwrite")
    assert (status, said) == (0, "") and "a.json" not in told  # it is there
    assert Path("calls/a.json").read_bytes() == before


def test_what_was_edited_in_the_json_is_written(calls, run) -> None:
    edited = json.loads(Path("calls/a.json").read_text())
    edited["segments"][0]["text"] = " Corrected."
    Path("calls/a.json").write_text(json.dumps(edited))
    assert run("calls/a.json", "-f", "txt")[0] == 0
    assert Path("calls/a.txt").read_text() == "Corrected.\n"


def test_words_follow_a_text_that_was_edited(calls, run) -> None:
    edited = json.loads(Path("calls/a.json").read_text())
    edited["segments"][0]["text"] = " Three other words."
    Path("calls/a.json").write_text(json.dumps(edited))
    assert run("calls/a.json", "-f", "srt", "--max-words-per-line", "1")[0] == 0
    cues = Path("calls/a.srt").read_text().split("\n\n")
    assert [cue.splitlines()[2] for cue in cues if cue] == ["Three", "other", "words."]


def test_what_cannot_be_written_so_is_refused_before_anything_is(calls, run) -> None:
    Path("b").mkdir()
    Path("b/a.json").write_bytes(Path("calls/a.json").read_bytes())
    for arguments, told in (
        (("calls/a.json", "b/a.json", "-o", "out"), "would be one file: export one into another"),
        (("calls/a.json", "-o", "-"), "-o -: `export` writes files; name a folder"),
    ):
        status, _, said = run(*arguments, "-f", "txt")
        assert status == 2 and told in said
    status, _, said = run("calls/a.json", "-f", "rttm")
    assert status == 1 and "names no speakers" in said
    assert not list(calls.rglob("*.txt")) + list(calls.rglob("*.rttm"))


def test_nothing_is_replaced_unless_that_is_asked_for(calls, run) -> None:
    Path("calls/a.srt").write_text("mine")
    status, told, said = run("calls/a.json", "calls/b.json", "-f", "srt")
    assert (status, told) == (1, "calls/b.srt\n")  # one does not harm the other
    assert said == "failed: calls/a.srt exists: --overwrite replaces it\n"
    assert Path("calls/a.srt").read_text() == "mine"
    assert run("calls/a.json", "-f", "srt", "--overwrite")[0] == 0
    assert "a word" in Path("calls/a.srt").read_text()


def test_lines_of_subtitles_are_arranged_anew(calls, run) -> None:
    assert run("calls/a.json", "-f", "srt", "--max-words-per-line", "1")[0] == 0
    assert run("calls/a.json", "-f", "txt", "--max-words-per-line", "1")[2] == (
        "forescribe: line rules and --highlight-words shape subtitles: add srt or vtt to -f\n"
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.json", "cannot read 'none.json': No such file or directory"),
        ("calls", "cannot read 'calls': Is a directory"),
        ("text.json", "'text.json' is not a transcript of this program: "),
    ],
)
def test_what_is_no_transcript_is_told_in_words(calls, run, name, said) -> None:
    Path("text.json").write_text('{"text": "of another program"}')
    status, _, told = run(name, "calls/a.json", "-f", "txt")
    assert status == 1 and told.startswith(f"failed: {said}")
    assert Path("calls/a.txt").exists()


def test_it_loads_no_network(calls) -> None:
    code = """
import sys
sys.argv = ["forescribe", "export", "calls/a.json", "-f", "md,srt,docx"]
from forescribe.cli.main import main
try:
    main()
finally:
    assert not {"torch", "numpy", "transformers"} & sys.modules.keys()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=calls,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["calls/a.md", "calls/a.srt", "calls/a.docx"]
