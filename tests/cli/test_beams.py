"""Beams on the command line: what is searched by default, what is said of it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import soundfile

from tests.asr.recordings import cut
from tests.cli import test_cli
from tests.cli.test_cli import Command

pytestmark = pytest.mark.usefixtures("encoded_once")

forescribe = test_cli.forescribe

TINY = ("a.wav", "--model", "tiny.en", "--device", "cpu", "-f", "json")
DRAFTS = {
    "--draft": ("--draft", "tiny.en-draft"),
    "--gamma": ("--gamma", "3"),
    "--reference-text": ("--reference-text", "script.txt"),
}

SAID = {1: "most probable words", 5: "5 beams", "auto": "5 beams where words are doubtful"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recording whose words are others with beams than without."""
    monkeypatch.chdir(tmp_path)
    soundfile.write("a.wav", *cut("memo.flac", (20, 25)))
    (tmp_path / "script.txt").write_text("Two of the rollers were worn.")
    return tmp_path


def test_models_up_to_small_are_searched_with_five_beams(forescribe: Command, here: Path) -> None:
    """A result is up to date where the same search would make it again, whether it was asked for or is the
    default."""
    texts = {}
    for asked, beams, made in (
        (("--beam-size", "1"), 1, True),
        ((), 5, True),
        (("--beam-size", "5"), 5, False),
        (("--beam-size", "auto"), "auto", True),
        (("--beam-size", "5"), 5, True),
        ((), 5, False),
    ):
        done = forescribe(*TINY, *asked, "--stats")
        assert done.status == 0, done.err
        assert ("already done" in done.err) == (not made), (asked, done.err)
        if made:
            assert done.err.splitlines()[-1].startswith(f"{SAID[beams]}; ")
        found = json.loads((here / "a.json").read_text(encoding="utf-8"))
        assert found["settings"]["beam_size"] == beams
        texts.setdefault(beams, set()).add(found["text"])
    assert all(len(each) == 1 for each in texts.values())
    assert texts[1] != texts[5]


@pytest.mark.parametrize(
    ("name", "told"),
    [("--gamma", "is for drafts"), ("--reference-text", "is for the most probable")],
)
@pytest.mark.parametrize("searched", [(), ("--beam-size", "2")], ids=["default", "2 beams"])
def test_drafts_are_refused_beside_a_search_that_has_none(
    forescribe: Command, here: Path, name: str, told: str, searched: tuple[str, ...]
) -> None:
    done = forescribe(*TINY, *DRAFTS[name], *searched)
    assert (done.status, done.out) == (2, "") and done.err.count("\n") == 1
    assert done.err.startswith(f"forescribe: {name} {told}")
    assert "--beam-size 1" in done.err
    assert f"tiny.en is searched with {2 if searched else 5} beams" in done.err
    assert {path.name for path in here.iterdir()} == {"a.wav", "script.txt"}


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("size", ["1", "auto"])
def test_drafts_go_with_the_most_probable_words(forescribe: Command, name: str, size: str) -> None:
    done = forescribe(*TINY, *DRAFTS[name], "--beam-size", size, "--dry-run")
    assert (done.status, done.out, done.err) == (0, "a.wav -> a .json\n", "")


@pytest.mark.parametrize("more", [("--draft", "none"), ("--gamma", "0")], ids=" ".join)
def test_no_drafts_go_with_every_search(forescribe: Command, more: tuple[str, ...]) -> None:
    assert forescribe(*TINY, *more, "--dry-run").status == 0
    assert forescribe(*TINY, *more, "--beam-size", "5", "--dry-run").status == 0


def test_drafts_go_with_a_model_of_one_beam(forescribe: Command, here: Path) -> None:
    """Also where it is not here yet."""
    medium = ("a.wav", "--model", "medium", "-f", "json", "--dry-run")
    for drafts in DRAFTS.values():
        assert forescribe(*medium, *drafts).status == 0


def test_drafts_are_written_with_one_beam(forescribe: Command, here: Path) -> None:
    done = forescribe(*TINY, "--beam-size", "1", "--gamma", "3", "--stats")
    assert done.status == 0, done.err
    assert done.err.splitlines()[-1].startswith("most probable words; ") and "accepted" in done.err
    found = json.loads((here / "a.json").read_text(encoding="utf-8"))
    assert found["settings"]["draft"] and found["stats"]["accepted"] > 0
    done = forescribe(*TINY, "--stats")
    found = json.loads((here / "a.json").read_text(encoding="utf-8"))
    assert found["settings"]["draft"] is None and found["stats"]["drafted"] == 0
    assert done.err.splitlines()[-1].startswith("5 beams; no drafts; ")


def test_a_draft_that_is_named_drafts_behind_beams(forescribe: Command, here: Path) -> None:
    """The text is that of beams without drafts."""
    texts = []
    for drafts in ((), ("--draft", "tiny.en-draft", "--gamma", "2")):
        done = forescribe(*TINY, *drafts, "--overwrite", "--stats")
        assert done.status == 0, done.err
        found = json.loads((here / "a.json").read_text(encoding="utf-8"))
        assert found["settings"]["beam_size"] == 5
        assert bool(found["stats"]["drafted"]) == bool(found["stats"]["accepted"]) == bool(drafts)
        texts.append(found["text"])
    assert "accepted" in done.err and texts[0] == texts[1]


def test_listen_refuses_drafts_beside_a_search_too(forescribe: Command) -> None:
    done = forescribe("listen", "-", "--model", "tiny.en", *DRAFTS["--gamma"])
    assert (done.status, done.out) == (2, "") and done.err.count("\n") == 1
    assert "--gamma is for drafts" in done.err and "--beam-size 1" in done.err
