"""Batches from and to object storage: the rules of folders hold, and each recording has one record."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path

import pytest

from forescribe.asr.batch import spool as spool_module
from forescribe.asr.storage.locations import Location
from forescribe.asr.storage.stores import Stores
from tests.asr.batch.remote.objects import CopyTypist, batch, files, put_calls, put_wav, run
from tests.asr.storage.faults import LOST, OK, FaultyStores, memory
from tests.asr.typists import write_wav


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def calls() -> Location:
    folder = memory() / "calls"
    put_calls(folder, 3)
    return folder


@pytest.fixture
def out() -> str:
    return str(memory() / "out")


def statuses(results) -> Counter[str]:
    return Counter(result.record.status for result in results)


def left_over() -> list[Path]:
    return list(Path().glob("spool/*"))


# Results and records


def test_a_folder_in_a_store_gives_what_the_same_folder_here_gives(calls, out) -> None:
    for name in ("a.wav", "x/a.wav", "x/a.flac", "x/y/b.wav"):
        put_wav(calls / name, value=len(name))
    for entry in Stores().at(calls).list():
        path = Path("calls", entry.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(Stores().at(calls).read(entry.key))
    pairs = (("calls", "local"), ("calls", str(memory() / "x")), (str(calls), "fetched"))
    for source, where in (*pairs, (str(calls), out)):
        assert statuses(run([source], where)) == {"succeeded": 7}
    local, fetched = (
        {
            path.relative_to(folder).as_posix(): path.read_text()
            for path in Path(folder).rglob("*.*")
            if path.name != "manifest.jsonl"
        }
        for folder in ("local", "fetched")
    )
    assert len(local) == 14 and "x/a.flac.txt" in local
    assert files(out) == files(pairs[1][1]) == fetched == local
    assert left_over() == []


def test_here_and_there_mix(calls, out) -> None:
    write_wav(Path("here.wav"))
    Path("list.jsonl").write_text(
        json.dumps({"audio_filepath": str(calls / "01.wav"), "duration": 99})
        + "\n"
        + json.dumps({"audio_filepath": "here.wav"})
    )
    typist = CopyTypist()
    results = run(["list.jsonl", str(calls / "00.wav")], out, typist)
    assert statuses(results) == {"succeeded": 3}
    assert [Path(name).name for name in typist.typed][0] == "01.wav"  # a list is believed
    assert set(files(out)) == {f"{n}.{f}" for n in ("here", "01", "00") for f in ("txt", "srt")}


def test_stdout_keeps_the_order_given(calls, capsysbinary) -> None:
    names = [str(calls / f"{n:02}.wav") for n in (1, 0, 2)]
    names.insert(1, str(calls / "nope.wav"))
    results = run(names, "-", formats="txt")
    assert [r.record.path for r in results if r.record.status == "succeeded"] == [
        names[0],
        names[2],
        names[3],
    ]


# Again


@pytest.mark.parametrize("where", ["store", "folder"])
def test_only_new_versions_are_fetched_and_only_new_content_is_transcribed(
    calls, out, where
) -> None:
    out = out if where == "store" else "out"
    run([str(calls)], out)
    stores = Stores()
    made = batch([str(calls)], out, stores=stores)
    assert made.todo == [] and statuses(made.skipped()) == {"skipped": 3}
    assert stores.at(calls).requests["get"] == 0 and stores.at(calls).requests["list"] == 1
    data = Stores().at(calls).read("01.wav")
    Stores().at(calls).put("01.wav", data)  # another tag, the same bytes
    put_wav(calls / "02.wav", 0.3, 77)
    typist = CopyTypist()
    assert statuses(run([str(calls)], out, typist)) == {"skipped": 1, "succeeded": 1}
    assert [Path(name).name for name in typist.typed] == ["02.wav"]
    assert batch([str(calls)], out).todo == []  # the new versions are known now


def test_records_that_a_killed_run_left_are_found_without_a_manifest(calls, out) -> None:
    made = batch([str(calls)], out)
    run_ = made.run(CopyTypist())
    next(run_)
    made.outputs.ledger.destination.close = lambda: None  # killed before the end
    run_.close()
    done = len(Stores().at(Location.parse(out)).list("_forescribe/records"))
    assert 1 <= done <= 3
    assert len(batch([str(calls)], out).todo) == 3 - done


# Failures


def test_a_recording_that_cannot_be_fetched_fails_alone(calls, out) -> None:
    stores = FaultyStores()
    made = batch([str(calls)], out, stores=stores)
    stores.fate = lambda where, kind: LOST if where.host == calls.host else OK
    results = list(made.run(CopyTypist()))
    assert statuses(results) == {"failed": 3}
    assert {r.record.code for r in results} == {"storage_unavailable"}
    assert left_over() == []
    assert statuses(run([str(calls)], out)) == {"succeeded": 3}


def test_results_that_cannot_be_written_fail_alone_and_are_done_again(calls, out) -> None:
    stores = FaultyStores()
    made = batch([str(calls)], out, stores=stores)
    host = Location.parse(out).host
    stores.fate = lambda where, kind: LOST if where.host == host and kind == "put" else OK
    results = list(made.run(CopyTypist()))
    assert statuses(results) == {"failed": 3}
    assert {r.record.code for r in results} == {"storage_unavailable"}
    assert statuses(run([str(calls)], out)) == {"succeeded": 3}


def test_a_recording_that_is_larger_than_the_spool_fails_alone(calls, out) -> None:
    sizes = {entry.key: entry.size for entry in Stores().at(calls).list()}
    results = run([str(calls)], out, limit=sizes["02.wav"] - 1)
    failed = [r for r in results if r.record.status == "failed"]
    assert [r.record.code for r in failed] == ["storage_full"]
    assert "--spool" in failed[0].record.message and failed[0].record.path.endswith("02.wav")
    assert statuses(results) == {"succeeded": 2, "failed": 1}


def test_a_spool_with_room_for_one_recording_is_enough(calls, out) -> None:
    put_calls(calls, 8)
    largest = max(entry.size for entry in Stores().at(calls).list())
    typist = CopyTypist(ahead=3)  # pulls more than fits before it gives anything back
    assert statuses(run([str(calls)], out, typist, limit=largest)) == {"succeeded": 8}
    assert len(typist.typed) == 8


def test_memory_that_runs_out_halves_the_batch_and_fetches_nothing_twice(calls, out) -> None:
    class Crowded(CopyTypist):
        def _typed(self, source):
            if self.batch == 4:
                raise MemoryError("out of memory")
            return super()._typed(source)

    typist = Crowded()
    stores = Stores()
    made = batch([str(calls)], out, stores=stores)
    assert statuses(made.run(typist)) == {"succeeded": 3}
    assert typist.sizes == [4, 2] and stores.at(calls).requests["get"] == 3


def test_readers_do_not_wait_for_what_is_still_fetched(calls, out, monkeypatch) -> None:
    """The first recording is given on while the second one is under way."""
    from forescribe.asr.audio.reader_pool import ReaderPool

    monkeypatch.setattr(spool_module, "FETCHERS", 1)
    first_given = threading.Event()
    stores = FaultyStores()
    made = batch([str(calls)], out, stores=stores)

    def fate(where: Location, kind: str) -> str:
        if where.host == calls.host and kind == "get":
            fetched.append(kind)
            if len(fetched) > 1:
                assert first_given.wait(60), "the first recording was held back"
        return OK

    fetched: list[str] = []
    stores.fate = fate

    class Reading(CopyTypist):
        def transcribe(self, sources, options=None, hook=None):
            with ReaderPool(2, None) as pool:
                for source in pool.ahead(sources):
                    pool.open(source).close()
                    first_given.set()
                    yield self._typed(source)

    results = list(made.run(Reading()))
    assert statuses(results) == {"succeeded": 3} and len(fetched) == 3
