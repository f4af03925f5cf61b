"""The spool: bounded, in order, and empty in the end."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from forescribe.asr.batch import spool as spool_module
from forescribe.asr.batch.spool import PREFIX, Spool, SpoolFolder
from forescribe.asr.errors import OutputError
from forescribe.asr.storage.errors import MissingError
from forescribe.asr.storage.locations import Location, Source, remote_source
from forescribe.asr.storage.stores import Stores
from tests.asr.storage.faults import memory

SIZE = 1000


@pytest.fixture
def calls() -> list[Source]:
    """Ten recordings of a thousand bytes."""
    folder = memory() / "calls"
    store = Stores().at(folder)
    for number in range(10):
        store.put(f"{number}.mp3", bytes([number]) * SIZE)
    return [remote_source(folder / entry.key, entry) for entry in store.list()]


def spool(tmp_path: Path, **options) -> Spool:
    return Spool(Stores(), place=str(tmp_path), **options)


def test_copies_have_the_names_of_recordings_and_the_bytes(calls, tmp_path) -> None:
    made = spool(tmp_path)
    made.order(calls)
    for number, source in enumerate(calls):
        copy = made.take(source)
        assert str(copy) == source.path and Path(copy).suffix == ".mp3"
        assert Path(copy).read_bytes() == bytes([number]) * SIZE
        assert made.take(source) is copy  # until it is released
        made.release(source.path)
        assert not os.path.exists(copy)
    assert made.used == 0
    made.close()
    assert list(tmp_path.iterdir()) == []


def test_it_never_holds_more_than_its_limit(calls, tmp_path) -> None:
    made = spool(tmp_path, limit=3 * SIZE)
    made.order(calls)
    taken: list[Source] = []
    for source in calls:
        while (copy := made.take(source)) is None:
            assert len(taken) == 3, "room was refused although there was some"
            made.release(taken.pop(0).path)
        taken.append(source)
        files = [p for p in made.folder.path.iterdir() if p.name != "lock"]
        assert sum(p.stat().st_size for p in files) <= 3 * SIZE and made.used <= 3 * SIZE
        assert copy is not None
    made.close()


def test_what_can_never_fit_fails_and_the_others_do_not(calls, tmp_path) -> None:
    large = replace(calls[4], entry=replace(calls[4].entry, size=5000))
    made = spool(tmp_path, limit=2 * SIZE)
    sources = [*calls[:4], large, *calls[5:]]
    made.order(sources)
    for source in sources:
        if source is large:
            with pytest.raises(OutputError, match=r"5000 bytes do not fit .*--spool") as caught:
                made.take(source)
            assert caught.value.code == "storage_full"
        else:
            assert made.take(source) is not None
            made.release(source.path)
    made.close()


def test_a_recording_that_is_larger_than_was_said_needs_room_too(calls, tmp_path) -> None:
    small = replace(calls[0], entry=replace(calls[0].entry, size=10))
    made = spool(tmp_path, limit=SIZE - 1)
    made.order([small])
    with pytest.raises(OutputError, match="do not fit"):
        made.take(small)
    made.close()
    made = spool(tmp_path, limit=SIZE)
    made.order([small])
    assert made.take(small).entry.size == SIZE and made.used == SIZE
    made.close()


def test_a_recording_of_unknown_size_is_fetched(calls, tmp_path) -> None:
    unknown = replace(calls[0], entry=None)
    made = spool(tmp_path, limit=2 * SIZE)
    made.order([unknown, calls[1]])
    assert made.take(unknown).entry.version and made.used <= 2 * SIZE
    assert made.take(calls[1]) is not None
    made.close()


def test_what_is_missing_fails_alone(calls, tmp_path) -> None:
    nope = remote_source(Location.parse(calls[0].path).parent / "nope.mp3")
    made = spool(tmp_path)
    made.order([nope, calls[0]])
    with pytest.raises(MissingError):
        made.take(nope)
    assert made.take(calls[0]) is not None
    made.close()


def test_few_are_fetched_ahead_and_none_once_it_is_closed(calls, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(spool_module, "AHEAD", 2)
    stores = Stores()
    made = Spool(stores, place=str(tmp_path))
    made.order(calls)
    made.take(calls[0])
    made.take(calls[1])
    assert stores.at(calls[0].location).requests["get"] <= 4
    made.close()
    made._pool.shutdown()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="--spool"):
        spool(tmp_path / "file").order([])


def test_what_a_killed_process_left_is_removed_and_what_a_live_one_has_is_not(tmp_path) -> None:
    script = (
        "import os, signal, sys; from forescribe.asr.batch.spool import SpoolFolder; "
        "folder = SpoolFolder(sys.argv[1]); (folder.path / '1.mp3').write_bytes(b'x'); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=120)
    assert len(list(tmp_path.glob(f"{PREFIX}*"))) == 1
    first = SpoolFolder(str(tmp_path))
    assert [first.path] == list(tmp_path.iterdir())
    second = SpoolFolder(str(tmp_path))
    assert first.path.exists()
    first.close()
    second.close()
