"""The contract of outputs: a folder and object storage keep the same promises."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from forescribe.asr.batch.batch import Batch
from forescribe.asr.batch.destinations import Folder
from forescribe.asr.batch.interrupts import Stop
from forescribe.asr.batch.ledger import Ledger
from forescribe.asr.batch.outputs import CHANGED, LACKING, OTHER_JSON, OTHERS, RecordingResult
from forescribe.asr.errors import AudioError
from forescribe.asr.storage.locations import Location
from forescribe.asr.storage.stores import Stores
from tests.asr.batch.remote import objects
from tests.asr.batch.remote.objects import CopyTypist
from tests.asr.storage.faults import memory
from tests.asr.typists import Outcome, Typist, text_of, write_wav


@dataclass(frozen=True)
class Output:
    kind: str  # folder, store
    where: str

    def batch(self, *names: str, **options: Any) -> Batch:
        return objects.batch([*names] or ["calls"], self.where, **options)

    def run(
        self, *names: str, typist: Typist | None = None, **options: Any
    ) -> list[RecordingResult]:
        made = self.batch(*names, **options)
        return list(made.run(typist or CopyTypist()))

    def files(self) -> dict[str, str]:
        """All results, with their texts."""
        if self.kind == "store":
            return objects.files(self.where)
        return {
            path.relative_to(self.where).as_posix(): path.read_bytes().decode(errors="replace")
            for path in Path(self.where).rglob("*")
            if path.is_file() and not {"manifest.jsonl", "_forescribe"} & set(path.parts)
        }

    def remove(self, name: str) -> None:
        if self.kind == "store":
            Stores().at(Location.parse(self.where)).delete(name)
        else:
            Path(self.where, name).unlink()

    def edit(self, name: str, text: str) -> None:
        if self.kind == "store":
            Stores().at(Location.parse(self.where)).put(name, text.encode())
        else:
            Path(self.where, name).write_text(text)

    def lines(self) -> list[dict[str, Any]]:
        """The manifest."""
        if self.kind == "store":
            return objects.merged(self.where)
        return [*map(json.loads, Path(self.where, "manifest.jsonl").read_text().splitlines())]


@pytest.fixture(params=["folder", "store"])
def out(request, tmp_path, monkeypatch) -> Output:
    monkeypatch.chdir(tmp_path)
    return Output(request.param, str(memory() / "out") if request.param == "store" else "out")


def calls(count: int) -> list[str]:
    """Recordings of this machine, each longer than the one before."""
    names = [f"calls/{n:02}.wav" for n in range(count)]
    for n, name in enumerate(names):
        write_wav(Path(name), 0.05 * (n + 1), n)
    return names


def statuses(results) -> Counter[str]:
    return Counter(result.record.status for result in results)


class Picky(CopyTypist):
    """Fails with one recording."""

    def _typed(self, source: Any) -> Outcome:
        if str(source).endswith("02.wav"):
            return Outcome(source, error=AudioError(f"{source}: no sound"))
        return super()._typed(source)


# Results and records


def test_every_recording_has_its_files_and_one_record(out) -> None:
    results = out.run(*calls(3))
    assert statuses(results) == {"succeeded": 3}
    found = out.files()
    assert set(found) == {f"{n:02}.{f}" for n in range(3) for f in ("txt", "srt")}
    assert all(found[f"{n:02}.txt"] == f"{text_of(f'calls/{n:02}.wav')}\n" for n in range(3))
    for result in results:
        stem = Path(result.record.path).stem
        assert result.record.outputs == (f"{stem}.txt", f"{stem}.srt")
        assert list(map(str, result.files)) == [f"{out.where}/{stem}.{f}" for f in ("txt", "srt")]
    assert sorted(line["path"] for line in out.lines()) == calls(3)


def test_a_record_comes_after_its_files(out) -> None:
    calls(4)
    for result in out.batch().run(CopyTypist()):
        assert set(result.record.outputs) <= set(out.files())


def test_a_tree_is_mirrored_and_names_that_meet_are_told_apart(out) -> None:
    for name in ("a.wav", "x/a.wav", "x/a.flac", "x/y/b.wav"):
        write_wav(Path("calls", name), value=len(name))
    out.run(formats="txt")
    assert set(out.files()) == {"a.txt", "x/a.wav.txt", "x/a.flac.txt", "x/y/b.txt"}


def test_runs_after_each_other_never_overwrite_each_other(out) -> None:
    write_wav(Path("x/a.wav"), value=1)
    write_wav(Path("y/a.wav"), value=2)
    out.run("x/a.wav", formats="txt")
    out.run("y/a.wav", formats="txt")
    texts = {name: f"{text_of(f'{name}/a.wav')}\n" for name in "xy"}
    assert out.files() == {"a.txt": texts["x"], "a.wav.txt": texts["y"]}
    assert not out.batch("x/a.wav", "y/a.wav", formats="txt").todo  # and both keep theirs


# Again


def test_what_is_done_is_not_done_again(out) -> None:
    calls(3)
    out.run()
    made = out.batch()
    assert not made.todo and statuses(made.skipped()) == {"skipped": 3}
    assert list(made.run(None)) == []
    assert len(out.batch(overwrite=True).todo) == 3


def test_only_what_changed_is_done_again(out) -> None:
    calls(3)
    out.run()
    write_wav(Path("calls/01.wav"), 0.3, 77)
    out.remove("02.srt")
    typist = CopyTypist()
    assert statuses(out.run(typist=typist)) == {"succeeded": 2}
    assert sorted(typist.typed) == ["calls/01.wav", "calls/02.wav"]
    assert out.batch().todo == []
    assert out.files()["01.txt"] == f"{text_of('calls/01.wav')}\n"


def test_another_format_adds_its_files_and_keeps_the_others(out) -> None:
    calls(2)
    out.run(formats="txt")
    assert statuses(out.run(formats="srt")) == {"succeeded": 2}
    for formats in ("txt", "srt", "txt,srt"):
        assert out.batch(formats=formats).todo == []


def test_what_somebody_has_edited_is_kept_until_it_is_to_be_overwritten(out) -> None:
    calls(2)
    out.run(formats="txt")
    mine = out.files()["00.txt"] + "My own line.\n"
    out.edit("00.txt", mine)
    for changed in ({"settings": "0"}, {"settings": "0", "formats": "txt,srt"}, {"settings": "1"}):
        results = out.run(**{"formats": "txt", **changed})
        kept = {result.record.path: result.kept for result in results}
        assert kept == {"calls/00.wav": ("00.txt",), "calls/01.wav": ()}
        assert out.files()["00.txt"] == mine
        assert out.batch(**{"formats": "txt", **changed}).todo == []  # not again and again
    results = out.run(formats="txt", settings="1", overwrite=True)
    assert out.files()["00.txt"] == f"{text_of('calls/00.wav')}\n"
    assert not any(result.kept for result in results)


def test_a_file_that_is_gone_is_written_alone(out) -> None:
    calls(1)
    out.run(formats="json,srt,txt")
    out.edit("00.srt", "mine")
    out.remove("00.txt")
    made, whole = out.batch(formats="json,srt,txt"), f"{text_of('calls/00.wav')}\n"
    assert made.todo == [] and made.writer.lacks(made.done[0])
    (result,) = made.skipped()
    assert (result.record.status, result.kept) == ("succeeded", ("00.srt",))
    assert (out.files()["00.txt"], out.files()["00.srt"]) == (whole, "mine")
    assert statuses(out.batch(formats="json,srt,txt").skipped()) == {"skipped": 1}


def test_formats_are_written_from_a_json_of_the_same_recording_and_settings(out) -> None:
    calls(2)
    out.run(formats="json")
    (record,) = (line for line in out.lines() if line["path"] == "calls/00.wav")
    made = out.batch(formats="txt,srt,docx")
    assert made.todo == [] and statuses(made.skipped()) == {"succeeded": 2}
    found = out.files()
    assert out.batch(formats="json,txt,srt,docx").todo == []
    again = [line for line in out.lines() if line["path"] == "calls/00.wav"][-1]
    assert again["outputs"] == ["00.txt", "00.srt", "00.docx", "00.json"]
    same = ("audio_s", "wall_s", "language", "coverage", "fingerprint", "version", "attempt")
    assert {name: again[name] for name in same} == {name: record[name] for name in same}
    out.run(formats="txt,srt", overwrite=True)
    assert out.files() == found  # as decoded


def test_a_json_that_was_edited_is_believed_and_a_damaged_one_is_not(out) -> None:
    calls(2)
    out.run(formats="json")
    out.edit("00.json", out.files()["00.json"].replace(text_of("calls/00.wav"), "mine"))
    out.edit("01.json", out.files()["01.json"][:-9])
    made = out.batch(formats="txt")
    assert [source.path for source in made.todo] == ["calls/01.wav"]
    assert statuses([*made.skipped(), *made.run(CopyTypist())]) == {"succeeded": 2}
    found = out.files()
    assert (found["00.txt"], found["01.txt"]) == ("mine\n", f"{text_of('calls/01.wav')}\n")


@pytest.mark.parametrize("changed", ["settings", "content"])
def test_an_edited_json_of_another_run_is_kept_and_no_format_is_written_from_it(
    out, changed
) -> None:
    (name,) = calls(1)
    out.run(formats="json,txt")
    mine = out.files()["00.json"].replace(text_of(name), "mine")
    out.edit("00.json", mine)
    options = {"settings": "0"} if changed == "settings" else {}
    if changed == "content":
        write_wav(Path(name), 0.3, 77)
    out.run(formats="json,txt", **options)
    for formats in ("srt", "json,srt,txt"):
        out.run(formats=formats, **options)
    found = out.files()
    assert found["00.json"] == mine and found["00.txt"] == f"{text_of(name)}\n"
    assert text_of(name) in found["00.srt"] and out.batch(formats="json,srt", **options).todo == []


def test_why_earlier_results_are_not_used_is_told(out) -> None:
    def told(**options: Any) -> list[str]:
        notices: list[str] = []
        out.batch(notice=notices.append, **options)
        return notices

    calls(3)
    assert told() == []
    out.run(formats="txt")
    assert told(formats="txt") == told(formats="txt", settings="0", overwrite=True) == []
    assert told(formats="txt", settings="0") == [
        f"3 recordings: earlier results are not used ({OTHERS})"
    ]
    assert told(formats="srt", settings="0") == []  # its text stays that of the others
    out.run(formats="json")
    assert told(formats="srt", settings="0") == [
        f"3 recordings: earlier results are not used ({OTHER_JSON})"
    ]
    assert told(formats="srt") == []
    for name in ("00.json", "01.json", "02.json"):
        out.remove(name)
    assert told(formats="txt,srt") == [f"3 recordings: earlier results are not used ({LACKING})"]
    write_wav(Path("calls/01.wav"), 0.3, 77)
    assert told(formats="txt") == [f"calls/01.wav: earlier results are not used ({CHANGED})"]


def test_an_edited_file_of_which_a_killed_run_knew_is_kept(tmp_path) -> None:
    first = Ledger(Folder(tmp_path))
    (tmp_path / "a.txt").write_text("mine")
    (tmp_path / "a.srt").write_text("ours, new")
    hashes = {
        "a.txt": hashlib.sha256(b"ours").hexdigest(),
        "a.srt": hashlib.sha256(b"ours, old").hexdigest(),
    }
    made = first.record("a.wav", status="succeeded", outputs=tuple(hashes), fingerprint="one")
    with first.locked():
        first.add(replace(made, hashes=hashes))
    with first.locked():
        first.replacing("a.wav", ["a.srt"], "two")  # and is killed after that
    again = Ledger(Folder(tmp_path))
    assert again.edited("a.txt") and not again.edited("a.srt")


def test_a_failure_is_tried_again_and_counted(out) -> None:
    calls(3)
    assert statuses(out.run(typist=Picky())) == {"succeeded": 2, "failed": 1}
    (failed,) = out.run(typist=Picky())
    assert (failed.record.status, failed.record.attempt) == ("failed", 2)
    (ended,) = out.run()
    assert (ended.record.status, ended.record.attempt) == ("succeeded", 3)


def test_a_record_that_another_process_made_meanwhile_is_taken_back_before_its_file_is_replaced(
    tmp_path,
) -> None:
    first, second = (Ledger(Folder(tmp_path)) for _ in range(2))
    with first.locked():
        made = first.record("a.wav", status="succeeded", outputs=("a.txt",), fingerprint="one")
        first.add(made)
    with second.locked():
        second.replacing("a.wav", ["a.txt"], "two")  # and is killed now
    assert Ledger(Folder(tmp_path)).fingerprint("a.txt") is None


def test_other_settings_are_never_taken_for_these(out) -> None:
    calls(2)
    out.run()
    assert statuses(out.run(settings="0123")) == {"succeeded": 2}
    assert out.batch(settings="0123").todo == []
    assert len(out.batch().todo) == 2


def test_two_runs_at_once_leave_one_record_of_each(out) -> None:
    calls(3)
    first, second = out.batch(), out.batch()
    assert statuses(first.run(CopyTypist())) == statuses(second.run(CopyTypist()))
    assert len(out.files()) == 6 and out.batch().todo == []
    if out.kind == "store":
        assert {line["generation"] for line in out.lines()} == {1}


@pytest.mark.parametrize(
    "wrong",
    [{"attempt": "1"}, {"outputs": [1]}, {"fingerprint": 1}, {"version": 2}, {"source": None}],
)
def test_a_damaged_record_is_as_none(out, wrong) -> None:
    calls(1)
    out.run()
    (line,) = out.lines()
    if out.kind == "folder":
        Path(out.where, "manifest.jsonl").write_text(json.dumps(line | wrong) + "\n")
    else:
        store = Stores().at(Location.parse(out.where))
        (name,) = (e.key for e in store.list("_forescribe/records"))
        store.put(name, json.dumps(line | wrong).encode())
        store.delete("manifest.jsonl")
    assert statuses(out.run()) == {"succeeded": 1}
    assert out.batch().todo == []


def test_records_in_a_store_are_read_with_few_requests(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = Output("store", str(memory() / "out"))
    calls(3)
    out.run()
    stores = Stores()
    assert out.batch(stores=stores).todo == []
    requests = stores.at(Location.parse(out.where)).requests
    assert (requests["list"], requests["get"]) == (1, 2)  # the manifest, and the check of `create`


# Ends


def test_a_bad_recording_takes_no_other_with_it(out) -> None:
    calls(2)
    Path("empty").mkdir()
    results = out.run("calls/00.wav", "missing.wav", "empty", "calls/01.wav", typist=Typist())
    assert {r.record.path: r.record.code for r in results} == {
        "calls/00.wav": None,
        "calls/01.wav": None,
        "missing.wav": "missing_file",
        "empty": "unreadable_file",
    }
    failed = next(line for line in out.lines() if line["path"] == "empty")
    assert failed["status"] == "failed" and "folder without recordings" in failed["message"]
    assert failed["outputs"] == [] and failed["fingerprint"] is None


def test_fail_fast_ends_with_the_first_failure(out) -> None:
    calls(3)
    Path("empty").mkdir()
    typist = CopyTypist()
    results = out.run("empty", "calls", typist=typist, fail_fast=True)
    assert statuses(results) == {"failed": 1, "cancelled": 3} and typist.typed == []
    told = {line["path"]: line["status"] for line in out.lines()}
    # In object storage, where each would be a request, what was cancelled has no record.
    cancelled = {} if out.kind == "store" else {f"calls/{n:02}.wav": "cancelled" for n in range(3)}
    assert told == {"empty": "failed"} | cancelled
    assert len(out.batch().todo) == 3


def test_an_interruption_keeps_what_is_written_and_leaves_the_rest(out) -> None:
    calls(3)
    stop = Stop()

    def interrupt(path: str) -> None:
        stop.requested = True

    made, results = out.batch(stop=stop), []
    with pytest.raises(KeyboardInterrupt):
        for result in made.run(CopyTypist(ahead=1, trouble=interrupt)):
            results.append(result)
    assert statuses(results) == {"succeeded": 1, "cancelled": 2}
    assert len(out.files()) == 2
    assert statuses(out.run()) == {"succeeded": 2}
