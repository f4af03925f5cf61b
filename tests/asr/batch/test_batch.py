"""Runs over many recordings: nothing is lost, nothing is done twice, nothing is half written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.asr.batch import batch as batch_module
from forescribe.asr.batch.destinations import MANIFEST as NAME
from forescribe.asr.batch.ledger import content_hash, file_version
from forescribe.asr.decode.results import Progress
from forescribe.asr.errors import AudioError, OutputError, UsageError
from forescribe.asr.storage.locations import Source
from forescribe.speculative.requests import Stats
from tests.asr.typists import Outcome, Typist, batch, run, text_of, write_wav

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def calls(count: int, folder: str = "calls") -> list[Path]:
    """A folder of recordings, each longer than the one before."""
    names = [Path(folder, f"{n:02}.wav") for n in range(count)]
    return [write_wav(name, 0.05 * (n + 1), n) for n, name in enumerate(names)]


def records(out: str = "out") -> list[dict]:
    return [
        json.loads(line) for line in Path(out, NAME).read_text().splitlines() if line[-1:] == "}"
    ]


def files(out: str = "out") -> dict[str, str]:
    return {
        str(p.relative_to(out)): p.read_text()
        for p in sorted(Path(out).rglob("*"))
        if p.is_file() and p.name != NAME
    }


def statuses(ended) -> Counter[str]:
    return Counter(e.record.status for e in ended)


# Records and files


def test_a_record_says_what_became_of_a_recording() -> None:
    run(calls(1), "out")
    assert records()[-1] == {
        "path": "calls/00.wav",
        "source": "../calls/00.wav",
        "status": "succeeded",
        "code": None,
        "message": None,
        "audio_s": 1.0,
        "wall_s": 0.5,
        "rtfx": 2.0,
        "language": "en",
        "coverage": {
            "decoded_s": 1.0,
            "silent_s": 0.0,
            "failed_s": 0.0,
            "voice_without_words_s": None,
            "loud_silence_s": 0.0,
        },
        "acceptance_rate": 0.5,
        "mean_acceptance_length": 1.5,
        "warnings": [],
        "outputs": ["00.txt", "00.srt"],
        "fingerprint": f"sha256:{content_hash('calls/00.wav')}+5e77",
        "attempt": 1,
        "version": file_version("calls/00.wav"),
        "hashes": {f"00.{name}": content_hash(f"out/00.{name}") for name in ("txt", "srt")},
    }


def test_the_longest_goes_first_and_a_list_is_believed() -> None:
    names = calls(4)
    typist = Typist()
    run(reversed(names), "out", typist)
    assert typist.typed == [str(name) for name in reversed(names)]
    Path("list.jsonl").write_text(
        "".join(
            json.dumps({"audio_filepath": str(name), "duration": 9 - n}) + "\n"
            for n, name in enumerate(names)
        )
    )
    run(["list.jsonl"], "out", typist := Typist(), overwrite=True)
    assert [Path(path).name for path in typist.typed] == [name.name for name in names]


@pytest.mark.parametrize("out", ["out", "-"])
def test_the_transcriber_does_not_wait_until_a_file_is_hashed(monkeypatch, out) -> None:
    """A large one takes seconds: here longer than all that is transcribed behind it."""
    last = threading.Event()

    def slow(path: str) -> str | None:
        assert last.wait(20)
        return content_hash(path)

    monkeypatch.setattr(batch_module, "content_hash", slow)
    names = calls(3)
    typist = Typist(trouble=lambda path: last.set() if path == str(names[0]) else None)
    ended = {e.record.path: e.record for e in run(names, out, typist, formats="txt")}
    assert len(typist.typed) == len(ended) == 3
    for name, record in ended.items():
        assert record.fingerprint == f"sha256:{content_hash(name)}+5e77"


def test_a_result_that_cannot_be_put_in_place_fails_alone() -> None:
    Path("out/00.txt").mkdir(parents=True)
    ended = {e.record.path: e for e in run(calls(2), "out")}
    assert ended["calls/00.wav"].record.code == "unwritable_output"
    assert ended["calls/01.wav"].record.status == "succeeded"
    assert {r["path"]: r["status"] for r in records()} == {
        "calls/00.wav": "failed",
        "calls/01.wav": "succeeded",
    }


def test_a_manifest_that_cannot_be_written_is_a_failure_and_no_more(monkeypatch) -> None:
    made = batch(calls(2), "out")
    folder = made.outputs.ledger.destination
    real = folder.keep

    def full(record) -> object:
        if record.path == "calls/00.wav":
            raise OutputError("disk full", code="storage_full")
        return real(record)

    monkeypatch.setattr(folder, "keep", full)
    ended = {e.record.path: e.record for e in made.run(Typist())}
    assert ended["calls/00.wav"].code == "storage_full"
    assert ended["calls/01.wav"].status == "succeeded"
    assert statuses(run(["calls"], "out")) == {"succeeded": 1}  # what has no record is done again


# Resume


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (lambda: os.utime("calls/01.wav", (1, 1)), set()),  # content counts, no date
        (lambda: Path("out/00.txt").write_text("by hand"), set()),  # corrections are kept
        (lambda: Path("calls/00.wav").rename("calls/moved.wav"), {"calls/moved.wav"}),
    ],
)
def test_only_what_changed_is_done_again(change, again) -> None:
    run(calls(3), "out")
    change()
    assert {source.path for source in batch(["calls"], "out").todo} == again


def test_each_file_is_judged_by_the_run_that_wrote_it() -> None:
    """The last record alone would lie here: it says that the settings of `a.txt` are the old ones."""
    calls(1)
    run(["calls"], "out", formats="txt")
    run(["calls"], "out", formats="txt", settings="0123")
    run(["calls"], "out", formats="srt")
    assert len(batch(["calls"], "out", formats="srt").todo) == 0
    assert len(batch(["calls"], "out", formats="txt").todo) == 1
    assert len(batch(["calls"], "out", formats="txt", settings="0123").todo) == 0


def test_a_folder_that_moved_with_its_results_is_done(here, monkeypatch) -> None:
    run(calls(2), "out")
    (here / "new").mkdir()
    Path("calls").rename("new/calls")
    Path("out").rename("new/out")
    monkeypatch.chdir(here / "new")
    assert not batch(["calls"], "out").todo
    assert not batch([here / "new" / "calls"], here / "new" / "out").todo


def test_recordings_that_moved_and_are_redone_keep_their_names() -> None:
    run(calls(2), "out")
    Path("calls").rename("elsewhere")
    assert not batch(["elsewhere"], "out").todo
    run(["elsewhere"], "out", settings="0123")
    assert set(files()) == {f"{n:02}.{kind}" for n in range(2) for kind in ("txt", "srt")}
    assert not batch(["elsewhere"], "out", settings="0123").todo


def test_stdout_has_no_memory(capsysbinary) -> None:
    for _ in range(2):
        calls(1)
        assert statuses(run(["calls"], "-", formats="txt")) == {"succeeded": 1}
    assert capsysbinary.readouterr().out.decode() == (text_of("calls/00.wav") + "\n") * 2
    assert not list(Path().rglob(NAME))


class Hasty(Typist):
    """What is pulled last is done first."""

    def transcribe(self, sources, options=None, hook=None):
        yield from reversed(list(super().transcribe(sources)))


def test_texts_on_stdout_come_in_the_order_in_which_they_were_named(capsysbinary) -> None:
    names = [*calls(4), Path("missing.wav")]
    ended = run(names, "-", Hasty(), formats="txt")
    assert [e.record.path for e in ended] == [str(name) for name in names]
    texts = "".join(f"{text_of(name)}\n" for name in names[:4])
    assert capsysbinary.readouterr().out.decode() == texts


# Names


def test_a_name_that_another_process_took_meanwhile_is_left_alone() -> None:
    write_wav(Path("x/a.wav"), value=1)
    write_wav(Path("y/a.wav"), value=2)
    late = batch(["y/a.wav"], "out", formats="txt")  # it chose `a` before the other one wrote it
    run(["x/a.wav"], "out", formats="txt")
    list(late.run(Typist()))
    assert files()["a.txt"] == text_of("x/a.wav") + "\n"
    assert set(files().values()) == {text_of("x/a.wav") + "\n", text_of("y/a.wav") + "\n"}


def test_no_recording_is_replaced_by_a_result() -> None:
    """Sound under the name that its text would have."""
    sound = write_wav(Path("a.txt"), value=3).read_bytes()
    (ended,) = run(["a.txt"], ".", formats="txt")
    assert Path("a.txt").read_bytes() == sound
    assert ended.record.outputs == ("a.txt.txt",)


@given(
    names=st.sets(st.sampled_from(["a.wav", "a.mp3", "x/a.wav", "y/a.wav", "a-1.wav"]), min_size=1)
)
def test_any_order_of_runs_keeps_all_results_apart(tmp_path_factory, names) -> None:
    os.chdir(tmp_path_factory.mktemp("run"))
    for n, name in enumerate(sorted(names)):
        write_wav(Path(name), value=n)
        run([name], "out", formats="txt")
    assert sorted(files().values()) == sorted(text_of(name) + "\n" for name in names)
    assert not batch(sorted(names), "out", formats="txt").todo


# Killed


def child(die_at: str, *names: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.asr.typists", "out", die_at, *names],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def expect_whole() -> None:
    """Every file in the folder holds all of some recording's text, and nothing else is there."""
    texts = {text_of(path) for path in Path("calls").iterdir()}
    for name, text in files().items():
        if name.startswith(".forescribe-"):  # half written, under a temporary name
            continue
        assert text.splitlines()[-1 if name.endswith("txt") else 2] in texts, name


def expect_complete(count: int) -> None:
    assert set(files()) == {f"{n:02}.{kind}" for n in range(count) for kind in ("txt", "srt")}
    for n in range(count):
        assert files()[f"{n:02}.txt"] == text_of(f"calls/{n:02}.wav") + "\n"
    good = Counter(r["path"] for r in records() if r["status"] == "succeeded")
    assert good == {f"calls/{n:02}.wav": 1 for n in range(count)}  # none lost, none done twice


@pytest.mark.parametrize("die_at", ["replace:0", "replace:1", "replace:17", "append:0", "append:9"])
def test_killed_at_any_point_of_20_the_next_run_completes_it(die_at) -> None:
    """kill -9 before a file's rename, between two files, and between the files and their record."""
    calls(20)
    killed = child(die_at, "calls")
    killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    expect_whole()
    done = {r["path"]: r["outputs"] for r in records()}
    assert len(done) == {"replace:17": 8, "append:9": 9}.get(die_at, 0)
    before = {n: Path("out", n).stat().st_mtime_ns for names in done.values() for n in names}
    typist = Typist()
    run(["calls"], "out", typist)
    assert sorted(typist.typed) == sorted({f"calls/{n:02}.wav" for n in range(20)} - done.keys())
    assert before == {name: Path("out", name).stat().st_mtime_ns for name in before}
    expect_complete(20)  # and the litter of the killed process is gone


@pytest.mark.parametrize("die_at", ["replace:1", "append:1"])
def test_killed_while_it_replaces_a_result_the_old_one_is_not_taken_for_whole(die_at) -> None:
    """Between two files and before the record: the first file is of the new settings already."""
    run(calls(2), "out", settings="0123")
    killed = child(die_at, "calls")
    killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    for settings in ("0123", "5e77"):
        assert "calls/01.wav" in {s.path for s in batch(["calls"], "out", settings=settings).todo}
    assert [s.path for s in batch(["calls"], "out", settings="0123").done] == ["calls/00.wav"]
    assert records()[-1]["status"] == "cancelled"
    run(["calls"], "out")
    assert not batch(["calls"], "out").todo


# Interrupted


def test_half_a_line_in_the_manifest_hurts_nobody() -> None:
    run(calls(3), "out")
    whole = Path("out", NAME).read_bytes()
    Path("out", NAME).write_bytes(whole[:-40])
    again = batch(["calls"], "out")
    assert len(again.todo) == 1
    list(again.run(Typist()))
    assert not batch(["calls"], "out").todo
    assert len(records()) == 3


def test_two_processes_at_once_leave_whole_files_and_whole_lines() -> None:
    calls(8)
    both = [child("pause:0.01", "calls") for _ in range(2)]
    for running in both:
        _, err = running.communicate(timeout=120)
        assert (running.returncode, err) == (0, "")
    expect_whole()
    assert len(files()) == 16 and not batch(["calls"], "out").todo
    assert {r["status"] for r in records()} == {"succeeded"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_ends_it_with_a_record_for_everything(number) -> None:
    calls(20)
    running = child("pause:0.05", "calls")
    running.stdout.readline()
    running.send_signal(number)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert err.startswith("forescribe: interrupted; what is being written is completed")
    assert len(err.splitlines()) == 1
    found = Counter(r["status"] for r in records())
    assert found["succeeded"] >= 1 and found["cancelled"] >= 10
    assert {r["path"] for r in records()} == {f"calls/{n:02}.wav" for n in range(20)}
    assert len(files()) == 2 * found["succeeded"]
    again = child("never", "calls")
    out, _ = again.communicate(timeout=60)
    assert len(out.splitlines()) == 20 - found["succeeded"]
    expect_complete(20)


# Out of memory


class OutOfMemoryError(RuntimeError):
    """Named as torch names it."""


class Crowded(Typist):
    """On a device where batches above `memory` fail, after two recordings that went well."""

    def __init__(self, memory: int) -> None:
        super().__init__(sizes=[8])
        self.memory, self.went_well = memory, 0

    def set_batch(self, size: int) -> None:
        self.went_well = 0
        super().set_batch(size)

    def _typed(self, path):
        self.went_well += 1
        if self.batch > self.memory and self.went_well > 2:
            self.went_well = 0
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super()._typed(path)


def run_in(memory: int):
    """What came back, the sizes of batches, and what was said."""
    said: list[str] = []
    typist = Crowded(memory)
    made = batch(["calls"], "out", notice=said.append)
    return list(made.run(typist)), typist.sizes, said


def test_out_of_memory_halves_the_batch_once_and_says_so() -> None:
    calls(8)
    ended, sizes, said = run_in(memory=4)
    assert sizes == [8, 4] and statuses(ended) == {"succeeded": 8}
    assert said == ["out of memory with 8 windows at a time: going on with 4"]
    expect_complete(8)


@pytest.mark.parametrize("count", [1, 4])
def test_memory_that_runs_out_for_drafts_halves_the_batch_and_loses_nothing(count: int) -> None:
    """At the first window that lacks them, so that one long recording gets drafts too."""
    calls(count)
    error = OutOfMemoryError("CUDA out of memory")
    shown: list[Progress] = []

    class Drafting(Typist):
        def transcribe(self, sources, options=None, hook=None):
            def seen():
                for path in sources:
                    self.windows += 1
                    hook(
                        Progress(path, 1.0, 2.0, (), Stats(), (), error if self.batch > 4 else None)
                    )
                    yield path

            return super().transcribe(seen(), options, hook)

    said: list[str] = []
    typist = Drafting(sizes=[8])
    typist.windows = 0
    ended = list(batch(["calls"], "out", notice=said.append).run(typist, hook=shown.append))
    assert typist.sizes == [8, 4] and statuses(ended) == {"succeeded": count} and len(said) == 1
    assert typist.windows == 1 + count == 1 + len(shown)
    expect_complete(count)


def test_a_second_time_fails_what_was_in_the_air_and_goes_on() -> None:
    calls(8)
    ended, sizes, said = run_in(memory=2)
    found = statuses(ended)
    assert found["failed"] >= 3 and found["succeeded"] >= 4 and sum(found.values()) == 8
    assert sizes == [8, 4] and len(said) == 1
    failed = next(e for e in ended if e.error)
    assert failed.record.code == "overloaded"
    assert "out of memory with 4 windows at a time; try a smaller --batch-size" in str(failed.error)


def test_memory_that_is_never_enough_ends_the_run() -> None:
    calls(8)
    typist = Typist(trouble=_raise(MemoryError()))
    assert statuses(run(["calls"], "out", typist)) == {"failed": 8} and typist.sizes == [4, 2]


def test_a_pipe_cannot_be_read_again() -> None:
    os.mkfifo("pipe")
    made = batch(["pipe"], "out")
    assert made.todo == [Source("pipe")]
    ended = list(made.run(Typist(trouble=_raise(MemoryError()))))
    assert [e.record.code for e in ended] == ["overloaded"]


def _raise(error: Exception):
    def trouble(path: str) -> None:
        raise error

    return trouble


def test_a_recording_that_takes_too_much_memory_to_read_fails_alone() -> None:
    """It says nothing about the batch: with half of it, it would take as much."""
    calls(4)

    class Reading(Typist):
        def _typed(self, path):
            if str(path) != "calls/02.wav":
                return super()._typed(path)
            error = AudioError(f"{path}: needs more memory to decode than is free")
            error.__cause__ = MemoryError()
            return Outcome(path, error=error)

    typist = Reading()
    ended = {e.record.path: e for e in run(["calls"], "out", typist)}
    assert typist.sizes == [4]
    assert ended.pop("calls/02.wav").record.code == "invalid_audio"
    assert statuses(ended.values()) == {"succeeded": 3}


@pytest.mark.parametrize("line", ['{"audio_filepath": "s.wav"}', "[1]"])
def test_a_file_of_the_manifests_name_that_is_none_is_left_alone(line) -> None:
    """NeMo's lists of recordings are called so."""
    calls(1)
    Path("manifest.jsonl").write_text(line + "\n")
    with pytest.raises(UsageError, match=r"manifest.jsonl was not written by forescribe.* -o"):
        run(["calls"], ".")
    assert Path("manifest.jsonl").read_text() == line + "\n"


# Recordings that were begun


class Keeper(Typist):
    """Keeps the first second of a recording, and is interrupted `at` one."""

    def __init__(self, at: str) -> None:
        super().__init__(ahead=1)
        self.at = at
        self.found: dict[str, int] = {}

    def _typed(self, file: Any) -> Outcome:
        self.found[str(file)] = len(file.windows())
        file.keep({"k": 0, "windows": [{"start": 0, "end": 16_000}]})
        if str(file).endswith(self.at):
            raise KeyboardInterrupt
        return super()._typed(file)


def test_what_was_decoded_of_a_recording_is_kept_until_it_has_its_results() -> None:
    names, told = calls(3), list[str]()

    def ended(keeper: Keeper, **options: Any) -> Counter[str]:
        made, results = batch(names, "out", notice=told.append, **options), []
        with suppress(KeyboardInterrupt):
            for result in made.run(keeper):
                results.append(result)
        return statuses(results)

    assert ended(Keeper("01.wav")) == {"succeeded": 1, "cancelled": 2}
    (kept,) = Path("out").glob(".forescribe-*.windows")
    with kept.open("a") as lines:
        lines.write('7\n{"of": "x"}\n{"k": 1}\n')
        lines.write(json.dumps({"of": json.loads(kept.read_text().split("\n")[1])["of"], "k": 1}))
    assert ended(Keeper("01.wav"), settings="other") == {"succeeded": 1, "cancelled": 2}
    assert not any("goes on" in text for text in told)  # of other settings
    keeper = Keeper("none")
    assert ended(keeper) == {"succeeded": 3}
    assert keeper.found == {str(names[0]): 0, str(names[1]): 1, str(names[2]): 0}
    assert f"{names[1]}: goes on, as 1 s of it are decoded" in told
    assert list(Path("out").glob(".forescribe-*")) == []
    (folder := kept).mkdir()  # costs a resumption and no recording
    assert ended(Keeper("none"), overwrite=True) == {"succeeded": 3}
    folder.rmdir()
    assert ended(Keeper("01.wav"), overwrite=True) == {"succeeded": 1, "cancelled": 2}
    keeper = Keeper("none")
    assert ended(keeper, overwrite=True) == {"succeeded": 3}
    assert set(keeper.found.values()) == {0}
