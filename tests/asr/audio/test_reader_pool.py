"""Recordings read ahead in children: the same samples, windows and errors, within a bounded spool."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from forescribe.asr.audio import reader_pool, sandbox
from forescribe.asr.audio.fork_server import Bounds, Cutting
from forescribe.asr.audio.inputs import Input
from forescribe.asr.audio.reader_pool import ReaderPool
from forescribe.asr.audio.reading import open_audio
from forescribe.asr.audio.sandbox import Decoders
from forescribe.asr.errors import AudioError, CapacityError, ForescribeError, OutputError
from forescribe.asr.segment.cut_plan import planned_windows
from forescribe.asr.segment.cutter import cut
from forescribe.asr.segment.vad import SileroDetector
from forescribe.asr.segment.windows import WindowOptions
from tests.docs.pages import ROOT

SAMPLES = sorted((ROOT / "samples").glob("*.flac"))
SECOND = 16_000
SIZE = 4 * SECOND
"""Bytes of a second in the spool."""


def noise(path: Path, seconds: float, seed: int = 0) -> str:
    samples = np.random.default_rng(seed).uniform(-0.1, 0.1, round(seconds * SECOND))
    soundfile.write(path, samples, SECOND, subtype="PCM_16")
    return str(path)


def contents(pool: ReaderPool, sources: list[Input]) -> Iterator[object]:
    """What `pool` makes of each source: samples, spans and warnings, or its error."""
    for source in pool.ahead(sources):
        try:
            with pool.open(source) as recording:
                samples = np.concatenate([np.zeros(0, np.float32), *recording.blocks()])
                yield samples, recording.spans, recording.warnings
        except ForescribeError as error:
            yield type(error), error.code, error.message


@pytest.fixture
def loaded(decoders: Decoders, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pools whose decoders are loaded already; their children end with the test."""
    monkeypatch.setattr(reader_pool, "Decoders", lambda *given: decoders)
    monkeypatch.setattr(reader_pool, "MANY_S", 0.0)
    while not decoders.loaded:
        time.sleep(0.01)
    yield
    while decoders._lasting:
        decoders._lasting.pop().close()


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("vad", [True, False])
def test_windows_and_samples_are_those_of_reading_here(vad: bool) -> None:
    options = WindowOptions(max_silence_s=1.0)
    paths: list[Input] = [*map(str, SAMPLES)]
    with ReaderPool(2, Cutting(vad, options)) as pool:
        for path, found in zip(paths, contents(pool, [*paths]), strict=True):
            samples, spans, warnings = found  # type: ignore[misc]
            with open_audio(path) as recording:
                expected = np.concatenate([*recording.blocks()])
                assert np.array_equal(samples, expected)
                assert warnings == recording.warnings
            windows = cut(iter([expected]), SileroDetector(), options, skip_silence=vad)
            wanted = tuple(window.span for window in windows)
            assert spans is not None and tuple(spans) == wanted
        assert pool._used == 0


@pytest.mark.usefixtures("loaded")
def test_errors_are_those_of_reading_here_and_leave_the_others(tmp_path: Path) -> None:
    good = noise(tmp_path / "good.wav", 1.0)
    empty, text = tmp_path / "empty.wav", tmp_path / "text.mp3"
    empty.touch()
    text.write_text("no audio at all, but long enough to be tried\n" * 50)
    cut_off = tmp_path / "cut.flac"
    cut_off.write_bytes(SAMPLES[0].read_bytes()[:200_000])
    heads = [tmp_path / "head.wav", tmp_path / "sample.wav"]
    for head, length in zip(heads, (44, 46), strict=True):
        head.write_bytes(Path(good).read_bytes()[:length])
    sources: list[Input] = [
        good,
        str(empty),
        str(text),
        "/nonexistent.wav",
        str(cut_off),
        good,
        str(tmp_path),
        *map(str, heads),
    ]
    with ReaderPool(2, None) as pool:
        ahead = list(contents(pool, sources))
        assert pool._used == 0
    for source, found in zip(sources, ahead, strict=True):
        try:
            with open_audio(source) as recording:
                samples = np.concatenate([np.zeros(0, np.float32), *recording.blocks()])
                assert np.array_equal(found[0], samples)  # type: ignore[index]
                assert found[2] == recording.warnings  # type: ignore[index]
        except AudioError as error:
            assert found == (AudioError, error.code, error.message)


@pytest.mark.usefixtures("loaded")
def test_the_spool_holds_no_more_than_it_may(tmp_path: Path) -> None:
    """Room for three recordings of a second: of twelve, as many are begun at a time."""
    paths: list[Input] = [noise(tmp_path / f"{i}.wav", 1.0, i) for i in range(12)]
    most = 0
    with ReaderPool(4, None, spool_bytes=3 * SIZE) as pool:
        for source in pool.ahead(paths):
            most = max(most, pool._used)
            with pool.open(source) as recording:
                assert sum(map(len, recording.blocks())) == SECOND
        assert most == 3 * SIZE
        assert pool._used == 0


@pytest.mark.usefixtures("loaded")
def test_a_recording_longer_than_the_spool_is_read_here(tmp_path: Path) -> None:
    short, long = noise(tmp_path / "short.wav", 1.0), noise(tmp_path / "long.wav", 3.0)
    with ReaderPool(2, Cutting(vad=False), spool_bytes=2 * SIZE) as pool:
        found = list(contents(pool, [short, long, short]))
    assert [len(samples) for samples, _, _ in found] == [SECOND, 3 * SECOND, SECOND]  # type: ignore[misc]
    assert [spans is None for _, spans, _ in found] == [False, True, False]  # type: ignore[misc]


def test_a_full_disk_of_the_spool_costs_no_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Decoders, *arguments: object, **more: object) -> None:
        raise OutputError("no room for the samples", code="storage_full")

    paths: list[Input] = [noise(tmp_path / f"{i}.wav", 1.0, i) for i in range(3)]
    monkeypatch.setattr(Decoders, "decode", full)
    with ReaderPool(1, None) as pool:
        found = list(contents(pool, paths))
    assert [len(samples) for samples, _, _ in found] == 3 * [SECOND]  # type: ignore[misc]


def children(decoders: Decoders) -> list[int]:
    assert decoders._process is not None
    pid = decoders._process.pid
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each child that is asked of the fork server, whether it is for many recordings."""
    send, asked = Decoders._send, list[bool]()

    def counted(self: Decoders, message: bytes, files: list[int]) -> None:
        asked.append(json.loads(message)["name"] is None)
        send(self, message, files)

    monkeypatch.setattr(Decoders, "_send", counted)
    return asked


@pytest.mark.usefixtures("loaded")
def test_short_recordings_share_the_children_of_their_readers(
    tmp_path: Path, decoders: Decoders, forks: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox._Lasting, "left", 8)
    paths: list[Input] = [noise(tmp_path / f"{i}.wav", 0.5, i) for i in range(20)]
    with ReaderPool(1, Cutting()) as pool:
        found = list(contents(pool, [*paths]))
    assert forks == [True] * 3  # for 8, 8 and 4
    assert len(decoders._lasting) == 1
    for path, (samples, spans, _) in zip(paths, found, strict=True):  # type: ignore[misc]
        with open_audio(path) as recording:
            assert np.array_equal(samples, np.concatenate([*recording.blocks()]))
        windows = cut(iter([samples]), SileroDetector(), WindowOptions())
        assert spans == [window.span for window in windows]


@pytest.mark.usefixtures("loaded")
def test_a_recording_that_kills_its_child_costs_only_itself(
    tmp_path: Path, decoders: Decoders, forks: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both that of many and its own. One that cannot be decoded ends that of many too."""
    text = tmp_path / "text.mp3"
    text.write_text("no audio at all, but long enough to be tried\n" * 50)
    first, poison, last = (
        noise(tmp_path / f"{n}.wav", s) for n, s in zip("apz", (1, 300, 1), strict=True)
    )
    request = Decoders._request

    def deadly(self: Decoders, ask: Any, shared: bytes | None) -> dict[str, Any]:
        def dying(send: Any) -> Any:
            def sent(message: bytes, files: list[int]) -> None:
                send(message, files)
                while not (pids := children(self)):
                    time.sleep(0.001)
                (pid,) = pids
                os.kill(pid, signal.SIGKILL)

            return ask(sent if poison.encode() in ask.args[1] else send)

        return request(self, dying, shared)  # type: ignore[arg-type]

    monkeypatch.setattr(Decoders, "_request", deadly)
    with ReaderPool(1, Cutting()) as pool:
        found = list(contents(pool, [first, poison, last, str(text), last]))
    assert forks == [True, False, True, True]
    with pytest.raises(AudioError) as refused:
        open_audio(str(text))
    assert found[3] == (AudioError, "invalid_audio", refused.value.message)
    assert found[1][:2] == (CapacityError, "overloaded")  # type: ignore[index]
    assert [len(found[i][0]) for i in (0, 2, 4)] == [SECOND] * 3  # type: ignore[index]


@pytest.mark.usefixtures("loaded")
def test_short_recordings_do_not_wait_until_children_are_loaded(
    tmp_path: Path, forks: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read here meanwhile, and few do not even have them loaded."""
    read, asked = list[object](), list[int]()

    def loaded(self: Decoders) -> bool:
        asked.append(len(read))
        return len(read) > 6

    monkeypatch.setattr(Decoders, "loaded", property(loaded))
    paths: list[Input] = [noise(tmp_path / f"{i}.wav", 0.5, i) for i in range(6)]
    with ReaderPool(1, Cutting()) as pool:
        read += contents(pool, paths[:1])
    monkeypatch.setattr(reader_pool, "MANY_S", 4 * (reader_pool.FILE_S + 0.5))
    with ReaderPool(1, Cutting()) as pool:
        read += contents(pool, paths[:3])
        assert not asked
        for found in contents(pool, [*paths]):
            read.append(found)
    here = [spans is None for _, spans, _ in read]  # type: ignore[misc]
    assert here == [True] * 7 + [False] * 3 and forks == [True]


def talk(folder: Path, seconds: int = 90) -> str:
    """A recording of several windows: the samples, one after the other."""
    voices = np.concatenate([soundfile.read(path, dtype="float32")[0] for path in SAMPLES])
    repeated = np.tile(voices, 1 + seconds * SECOND // len(voices))[: seconds * SECOND]
    soundfile.write(folder / "talk.flac", repeated, SECOND)
    return str(folder / "talk.flac")


@pytest.mark.usefixtures("loaded")
def test_windows_of_a_long_recording_are_there_before_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is the first one, and the only one."""
    first, go_on, hear = threading.Event(), threading.Event(), sandbox._Windows.add

    def waiting(self: sandbox._Windows, values: list[object]) -> None:
        if first.is_set():
            assert go_on.wait(60)
        hear(self, values)
        first.set()

    monkeypatch.setattr(sandbox._Windows, "add", waiting)
    monkeypatch.setattr(reader_pool, "LONG_S", 60.0)
    path = talk(tmp_path)
    with open_audio(path) as recording:
        expected = np.concatenate([*recording.blocks()])
    spans = [w.span for w in cut(iter([expected]), SileroDetector(), WindowOptions())]
    assert len(spans) > 3
    with ReaderPool(1, Cutting()) as pool:
        with pool.open(next(pool.ahead([path]))) as recording:
            windows = planned_windows(recording.blocks(), recording.spans or ())
            assert recording.spans == spans[:1] and not go_on.is_set()
            go_on.set()
            found = list(windows)
    assert [window.span for window in found] == spans
    for window in filter(attrgetter("speech"), found):
        assert np.array_equal(window.samples, expected[window.start : window.end])


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("end", ["killed", "no room"])
def test_what_ends_a_child_between_two_windows_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    request, tries = Decoders._request, 0

    def ends(self: Decoders, ask: Any, shared: bytes | None) -> dict[str, Any]:
        nonlocal tries
        tries += 1
        if tries > 1:
            return request(self, ask, shared)
        (source, samples), *more, windows = ask.args
        with tempfile.TemporaryFile() as whole, monkeypatch.context() as patch:
            patch.setattr(windows, "_told", None)
            request(self, partial(ask.func, (source, whole), *more, windows), shared)
            spans, windows.spans[:], windows.end = [*windows.spans], [], 0
            os.pwrite(samples.fileno(), os.pread(whole.fileno(), SIZE * 60, 0), 0)
        for span in spans[:2]:
            windows.add(span)
        if end == "killed":
            return {"exit": -signal.SIGKILL, "late": False}
        return {"error": ["storage_full", "no room for the samples"], "exit": 0, "late": False}

    monkeypatch.setattr(reader_pool, "LONG_S", 60.0)
    path = talk(tmp_path)
    with ReaderPool(1, Cutting()) as pool:
        (expected,) = contents(pool, [path])
        monkeypatch.setattr(Decoders, "_request", ends)
        (found,) = contents(pool, [path])
        assert pool._used == 0
    assert tries == (2 if end == "killed" else 1)
    assert np.array_equal(found[0], expected[0]) and found[1:] == expected[1:]  # type: ignore[index]


@pytest.mark.parametrize(
    "reply",
    [
        {"samples": 3, "notices": []},  # another number than in the file
        {"samples": 0, "notices": [["a"]]},
        {"samples": 0, "notices": [["a", 5, 1, []]]},
        {"samples": 0, "notices": [["a", "b", 0, []]]},
        {"samples": "0", "notices": []},
        {"samples": None, "notices": []},
        {"samples": 0, "notices": None},
        {"samples": 0},
        {"error": ["no such code", "text"]},
        {"error": ["invalid_audio"]},
        {"error": 5},
    ],
)
def test_an_answer_that_is_none_fails_the_recording(monkeypatch, reply) -> None:
    """A hostile file may have taken the child over."""
    monkeypatch.setattr(Decoders, "_request", lambda *_: {"exit": 0, "late": False, **reply})
    decoders = Decoders()
    with pytest.raises(AudioError) as caught:
        decoders.decode(b"any", Bounds(), name="a")
    decoders.close()
    assert caught.value.code == "invalid_audio"


@pytest.mark.usefixtures("loaded")
def test_a_recording_that_is_closed_early_ends_its_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one would wait for it."""
    monkeypatch.setattr(reader_pool, "LONG_S", 60.0)
    paths: list[Input] = [talk(tmp_path, 1200), noise(tmp_path / "b.wav", 1.0)]
    with ReaderPool(1, Cutting()) as pool:
        ahead = pool.ahead(paths)
        with pool.open(next(ahead)) as first:
            next(first.blocks())
        with pool.open(next(ahead)) as second:
            assert sum(map(len, second.blocks())) == SECOND
        assert len(first.spans or ()) < 10
        assert pool._used == 0


def test_ending_early_leaves_neither_children_nor_files(tmp_path: Path) -> None:
    paths: list[Input] = [noise(tmp_path / f"{i}.wav", 5.0, i) for i in range(6)]
    open_before = set(os.listdir("/proc/self/fd"))
    pool = ReaderPool(2, None)
    ahead = pool.ahead(paths)
    next(ahead)
    with pool.open(paths[0]) as recording:
        next(recording.blocks())
    next(ahead)  # and never opened
    process = pool._decoders._process
    pool.close()
    assert pool._used == 0
    assert process is None or process.poll() is not None
    assert len(os.listdir("/proc/self/fd")) <= len(open_before) + 1  # the one that lists them
