"""Every recording has a place of its own, and what cannot be written is known before any work."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.asr.batch import destinations
from forescribe.asr.batch.ledger import Destination, Ledger, Record, result_fields
from forescribe.asr.batch.outputs import Outputs
from forescribe.asr.errors import AudioError, OutputError, UsageError
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Coverage, Segment, Span
from forescribe.asr.storage.locations import Source
from forescribe.asr.storage.stores import Stores

TRANSCRIPT = Transcript(
    segments=(Segment(0, 0, 0, 0, 16_000, " Grüße."),),
    sample_count=16_000,
    coverage=Coverage((Span(0, 16_000, "decoded"),)),
)


A = [Source("a.wav")]


def stems(*sources: str) -> dict[str, str]:
    return Outputs.plan([Source(source) for source in sources], "-", "txt").stems


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (["x/meeting.mp3"], ["meeting"]),
        (["a.b.wav", "noext", ".hidden"], ["a.b", "noext", ".hidden"]),
        (["-", "a.wav"], ["stdin", "a"]),
        (["a.mp3", "a.wav", "b.wav"], ["a.mp3", "a.wav", "b"]),
    ],
)
def test_a_file_lends_its_stem_and_equal_ones_keep_their_extensions(sources, expected) -> None:
    assert stems(*sources) == dict(zip(sources, expected, strict=True))


def test_equal_names_get_a_hash_of_their_place() -> None:
    found = stems("x/a.mp3", "y/a.mp3")
    assert len(set(found.values())) == 2
    assert all(stem.startswith("a-") and len(stem) == 10 for stem in found.values())
    assert stems("x/a.mp3", "y/a.mp3", "z.wav")["x/a.mp3"] == found["x/a.mp3"]  # it stays the same


folders = st.sampled_from(["", "x/", "y/", "x/y/", "a.mp3/"])
names = st.sampled_from(["a", "a.mp3", "a.wav", "a.mp3.wav", "stdin", "stdin.wav", ".a", "b.c"])
paths = st.one_of(st.just("-"), st.builds(str.__add__, folders, names))


@given(st.lists(paths, unique=True, max_size=12))
def test_no_two_recordings_share_a_stem(sources) -> None:
    """`x/a.mp3.wav` has the stem `a.mp3`, which is what `a.mp3` beside `a.wav` would take."""
    found = stems(*sources)
    assert list(found) == sources
    assert len(set(found.values())) == len(sources)
    assert not any("/" in stem or not stem for stem in found.values())


def test_of_several_names_the_one_that_was_written_last_comes_first() -> None:
    class Known(Destination):
        def exists(self, name: str) -> bool:
            return True

        def fresh(self) -> list[Record]:
            written = [(f"{stem}.txt",) for stem in ("one", "two", "one")]
            return [Record("a.wav", "succeeded", "a.wav", outputs=each) for each in written]

    assert Ledger(Known()).stems_of("a.wav") == ["one", "two"]


@pytest.mark.parametrize(("wall_s", "rtfx"), [(0.5, 2.0), (0.0, None)])
def test_a_record_tells_how_fast_a_recording_was(wall_s, rtfx) -> None:
    assert result_fields(TRANSCRIPT, None, wall_s)["rtfx"] == rtfx


def test_long_names_are_cut_so_that_files_can_have_them() -> None:
    same, other = "é" * 400 + "a.mp3", "é" * 400 + "b.mp3"
    known = stems(f"x/{same}", f"x/{other}", "n" * 249 + ".mp3")
    assert known["n" * 249 + ".mp3"] == "n" * 249
    assert len(set(known.values())) == 3
    assert all(len(stem.encode()) <= 249 for stem in known.values())
    assert all(stem.startswith("é" * 100) for stem in list(known.values())[:2])


def test_a_tree_is_mirrored_and_names_need_differ_only_in_one_place() -> None:
    sources = [Source("c/a.mp3"), Source("c/x/a.mp3", "x"), Source("c/x/a.wav", "x")]
    assert Outputs.plan(sources, "-", "txt").stems == {
        "c/a.mp3": "a",
        "c/x/a.mp3": "x/a.mp3",
        "c/x/a.wav": "x/a.wav",
    }
    again = Outputs.plan([Source("c/x/a.mp3", "x"), Source("d/x/a.mp3", "x")], "-", "txt").stems
    assert len(set(again.values())) == 2
    assert all(stem.startswith("x/a-") for stem in again.values())


def test_a_folder_without_recordings_takes_no_name() -> None:
    sources = [Source("a", error=AudioError("a: a directory")), Source("a.wav")]
    assert Outputs.plan(sources, "-", "txt").stems == {"a.wav": "a"}


def test_nothing_is_made_for_a_list_of_what_would_be(tmp_path) -> None:
    outputs = Outputs.plan(A, str(tmp_path / "out"), "txt,srt", dry_run=True)
    assert outputs.files(A[0]) == [tmp_path / "out" / "a.txt", tmp_path / "out" / "a.srt"]
    assert not (tmp_path / "out").exists()


def test_a_manifest_that_cannot_be_read_is_refused_by_its_folder(tmp_path) -> None:
    (tmp_path / "manifest.jsonl").mkdir()
    with pytest.raises(OutputError, match="cannot read .*manifest.jsonl"):
        Outputs.plan(A, str(tmp_path), "txt")


def test_only_what_a_killed_process_left_is_swept(tmp_path) -> None:
    for name in (".forescribe-12ab.tmp", ".other.tmp", "a.txt"):
        (tmp_path / name).touch()
    outputs = Outputs.plan(A, str(tmp_path), "txt")
    outputs.ledger.destination.sweep(outputs.stems.values())
    assert len(list(tmp_path.iterdir())) == 3  # there was never a lock in this folder
    (tmp_path / "manifest.jsonl").touch()
    outputs.ledger.destination.sweep(outputs.stems.values())
    assert {path.name for path in tmp_path.iterdir()} == {".other.tmp", "a.txt", "manifest.jsonl"}


def test_what_cannot_be_written_is_refused_before_anything_is_made(tmp_path) -> None:
    for names in ("all", "txt,srt"):
        with pytest.raises(UsageError, match="stdout takes one format"):
            Outputs.plan(A, "-", names)
    with pytest.raises(UsageError, match="'doc'; known: txt"):
        Outputs.plan(A, str(tmp_path / "out"), "doc")
    assert not (tmp_path / "out").exists()
    for where in ("https://example.com/out", "hf://datasets/org/name"):
        with pytest.raises(UsageError, match="can only be read"):
            Outputs.plan(A, where, "txt", stores=Stores())


def test_a_folder_is_made_with_its_parents(tmp_path) -> None:
    outputs = Outputs.plan(A, str(tmp_path / "x" / "y"), "txt,srt")
    outputs.write("a.wav", TRANSCRIPT)
    files = outputs.files(A[0])
    assert files == [tmp_path / "x" / "y" / "a.txt", tmp_path / "x" / "y" / "a.srt"]
    assert files[0].read_text(encoding="utf-8") == "Grüße.\n"
    assert sorted(p.name for p in (tmp_path / "x" / "y").iterdir()) == ["a.srt", "a.txt"]


@pytest.mark.parametrize("folder", ["file/below", "file", "/proc/forescribe"])
def test_a_folder_that_cannot_be_written_is_refused_by_name(tmp_path, folder) -> None:
    (tmp_path / "file").touch()
    place = str(tmp_path / folder)  # an absolute path stays as it is
    with pytest.raises(OutputError, match="cannot write to the output folder") as caught:
        Outputs.plan(A, place, "txt")
    assert place in str(caught.value) and "-o" in str(caught.value)


def stdout(monkeypatch: pytest.MonkeyPatch, buffer: io.RawIOBase | io.BytesIO) -> None:
    monkeypatch.setattr(destinations.sys, "stdout", SimpleNamespace(buffer=buffer))


def test_stdout_is_utf8_whatever_the_locale(monkeypatch) -> None:
    buffer = io.BytesIO()
    stdout(monkeypatch, buffer)
    outputs = Outputs.plan(A, "-", "txt")
    outputs.write("a.wav", TRANSCRIPT)
    assert outputs.files(A[0]) == []
    assert buffer.getvalue() == "Grüße.\n".encode()


@pytest.mark.parametrize(
    ("error", "raised", "says"),
    [
        (OSError(28, "No space left on device"), OutputError, "cannot write to stdout: No space"),
        (BrokenPipeError(), BrokenPipeError, None),  # a reader that has gone is no fault
    ],
)
def test_a_stdout_that_cannot_be_written(monkeypatch, error, raised, says) -> None:
    class Full(io.BytesIO):
        def write(self, data) -> int:
            raise error

    stdout(monkeypatch, Full())
    with pytest.raises(raised, match=says):
        Outputs.plan(A, "-", "txt").write("a.wav", TRANSCRIPT)
