"""`forescribe listen`: what goes to stdout and to stderr, files at the end, and every way to end."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from rich.console import Console as Rich

from forescribe.asr.audio.reading import read_audio
from forescribe.asr.batch.destinations import Stdout
from forescribe.asr.errors import AudioError
from forescribe.asr.formats.transcript_parts import Notice
from forescribe.asr.live.commit import LiveWord
from forescribe.asr.live.events import (
    Committed,
    Completed,
    Delta,
    Event,
    Failed,
    Hypothesis,
    SpeechStarted,
)
from forescribe.cli import listen as command
from forescribe.cli import main as command_line
from forescribe.cli.console import Console
from forescribe.cli.live_text import LiveText
from tests.asr.live.test_record import item
from tests.asr.model import folders

ROOT = Path(__file__).parents[2]
MEMO = ROOT / "samples" / "memo.flac"
RATE = 16_000
MEMO_3S = (read_audio(MEMO)[: 3 * RATE] * 32767).astype("<i2").tobytes()
TONE = (0.3 * np.sin(np.arange(10 * RATE) * 0.05) * 32767).astype("<i2").tobytes()


def words(item: int, text: str) -> Delta:
    return Delta(item, (LiveWord(text),))


def completed(number: int, text: str, start_s: float = 0.0, seconds: float = 1.0) -> list[Event]:
    return [
        Committed(number, start_s, start_s + seconds),
        Completed(number, item(text, seconds), (), start_s, 1, 0),
    ]


@dataclass
class Told:
    """An engine that tells what it was given when so many seconds have been fed, and the rest at the end."""

    after: dict[float, list[Event]] = field(default_factory=dict)
    fed: int = 0
    finished: bool = False
    behind_s: float = 0.0
    on_feed: object = None

    def __enter__(self) -> Told:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def feed(self, samples: np.ndarray) -> None:
        self.fed += len(samples)
        if callable(self.on_feed):
            self.on_feed()

    def finish(self) -> None:
        self.finished = True

    def wait(self, timeout_s: float, *, idle: bool = False) -> bool:
        return idle or self.finished

    def events(self):
        for due in [due for due in self.after if self.finished or due * RATE <= self.fed]:
            yield from self.after.pop(due)


@dataclass(frozen=True)
class Run:
    status: int
    out: str
    err: str


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """The command in this process, with an engine that tells; None for the bundled model."""
    monkeypatch.chdir(tmp_path)

    def listen(*arguments: str, stdin: object = TONE, engine: Told | None = None) -> Run:
        if engine is not None:
            monkeypatch.setattr(command, "_engine", lambda *_: engine)
        buffer = io.BytesIO(stdin) if isinstance(stdin, bytes) else stdin
        fake = SimpleNamespace(buffer=buffer, isatty=lambda: False)
        monkeypatch.setattr(sys, "stdin", fake)
        monkeypatch.setattr(sys, "argv", ["forescribe", "listen", *arguments])
        status = 0
        try:
            command_line.main()
        except SystemExit as left:
            status = int(left.code or 0)
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return Run(status, out, err)

    return listen


class Endless(io.RawIOBase):
    """A pipe that stays open: a tenth of a second each `pause_s`."""

    def __init__(self, pause_s: float = 0.01) -> None:
        self.pause_s, self.sent = pause_s, 0

    def read1(self, size: int) -> bytes:
        time.sleep(self.pause_s)
        self.sent += RATE // 10
        return TONE[: RATE // 10 * 2]


# What comes out


def test_lines_come_in_the_order_in_which_they_were_spoken(run) -> None:
    engine = Told(
        {
            1: [SpeechStarted(1, 0.0), words(1, "one"), Committed(1, 0.0, 1.0)],
            2: [SpeechStarted(2, 2.0), words(2, "two"), *completed(2, "two", 2.0)],
            4: completed(1, "one"),
            9: completed(3, ""),
        }
    )
    done = run("-", engine=engine)
    assert (done.status, done.out) == (0, "one\ntwo\n")
    assert engine.fed == 10 * RATE and "10.0 s of audio, 2 turns" in done.err


def test_words_come_when_they_are_released(run) -> None:
    engine = Told(
        {
            1: [words(1, " And"), words(1, " so"), words(2, " my")],
            2: [*completed(1, "and so"), words(2, " fellow"), *completed(2, "my fellow")],
        }
    )
    assert run("-", "--words", engine=engine).out == "And so\nmy fellow\n"


def test_lines_begin_with_their_speakers(run, tmp_path) -> None:
    """The files have the words as they were before, as their speakers are found in all of the session."""
    plain = item("one two three", 1.0)
    (segment,) = plain.segments
    parts = (("Speaker A", " one"), ("Speaker A", " two"), ("Speaker B", " "), (None, " three"))
    said = tuple(replace(segment, speaker=who, text=text) for who, text in parts)
    failed = Notice("speakers_failed", "speakers could not be found: out of memory")
    told = {
        0.5: [
            Committed(1, 0.0, 1.0),
            Completed(1, replace(plain, segments=said, diarized=True), (), 0.0, 1, 0, plain),
            Committed(2, 1.0, 2.0),
            Completed(2, replace(plain, warnings=(failed,)), (), 1.0, 1, 0, plain),
        ]
    }
    done = run("-", "-o", "out", "-f", "txt", engine=Told(told))
    assert done.out == "Speaker A: one two\nunknown: three\none two three\n"
    assert done.err.count("out of memory") == 1
    (path,) = (tmp_path / "out").glob("*.txt")
    assert path.read_text() == "one two three\none two three\n"


@pytest.mark.nightly
def test_a_conversation_is_written_with_its_speakers(run, tmp_path) -> None:
    samples = read_audio(ROOT / "samples" / "conversation.flac")[: 20 * RATE]
    pipe = (samples * 32767).astype("<i2").tobytes()
    done = run("-", "--model", "tiny.en", "--diarize", "-o", "out", "-f", "rttm", stdin=pipe)
    (path,) = (tmp_path / "out").iterdir()
    assert path.read_text().split()[1] == path.stem
    who = [line.partition(":")[0] for line in done.out.splitlines()]
    assert (
        done.status == 0
        and who == [f"Speaker {'AB'[n % 2]}" for n in range(len(who))]
        and len(who) >= 5
    )


def test_codes_in_the_text_do_not_reach_the_terminal(run) -> None:
    bad = "a\x1b[2Jb\nc"
    engine = Told({1: [words(1, bad), *completed(1, bad)]})
    assert run("-", engine=engine).out == "a\\x1b[2Jb c\n"


def test_quiet_shows_lines_only(run) -> None:
    done = run("-", "-q", "-o", "out", engine=Told({1: completed(1, "one")}))
    assert (done.out, done.err) == ("one\n", "")


def test_files_have_the_times_of_the_stream(run, tmp_path) -> None:
    engine = Told({1: completed(1, "one", 1.0), 5: completed(2, "two", 5.0)})
    done = run("-", "-o", "out", "--keep-audio", engine=engine)
    assert done.status == 0
    files = {path.suffix: path for path in (tmp_path / "out").iterdir()}
    assert set(files) == {".txt", ".srt", ".vtt", ".tsv", ".json", ".flac"}
    assert re.fullmatch(r"live-\d{4}-\d\d-\d\d-\d{6}", files[".txt"].stem)
    assert files[".txt"].read_text() == "one\ntwo\n"
    assert "00:00:05,000 --> 00:00:06,000\ntwo" in files[".srt"].read_text()
    assert json.loads(files[".json"].read_text())["duration"] == 10
    assert soundfile.info(files[".flac"]).frames == 10 * RATE
    assert "live-" in done.err


def test_no_file_is_replaced(run, tmp_path) -> None:
    soundfile.write("talk.wav", np.zeros(RATE), RATE)
    for _ in range(2):
        engine = Told({0: completed(1, "one", 0.0, 0.5)})
        assert (
            run(
                "--replay", "talk.wav", "--speed", "max", "-o", ".", "-f", "txt", engine=engine
            ).status
            == 0
        )
    assert {path.name for path in tmp_path.glob("*.txt")} == {"talk-live.txt", "talk-live-2.txt"}


def test_silence_writes_nothing(run, tmp_path) -> None:
    done = run("-", "-o", "out", "-f", "txt,vtt", stdin=bytes(64_000), engine=Told())
    assert (done.status, done.out) == (0, "") and "no speech" in done.err
    content = {path.suffix: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert content == {".txt": "", ".vtt": "WEBVTT\n\n"}


# How it ends


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_turn_and_writes_the_files(run, tmp_path, number) -> None:
    def once() -> None:
        if engine.on_feed is not None and engine.fed >= RATE:
            engine.on_feed = None
            os.kill(os.getpid(), number)

    engine = Told({100: completed(1, "one")}, on_feed=once)
    done = run("-", "-o", "out", "-f", "txt", stdin=Endless(), engine=engine)
    assert (done.status, done.out) == (0, "one\n")
    assert engine.finished and "a second Ctrl-C ends at once" in done.err
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["one\n"]


@pytest.mark.parametrize("pause_s", [0.1, 0.001], ids=["as it is spoken", "faster"])
def test_a_signal_ends_with_what_was_heard_not_with_what_was_sent(run, pause_s) -> None:
    """The engine takes nothing before the signal, and all that was heard by then after it."""
    stdin, began_s = Endless(pause_s), time.monotonic()
    engine = Told(behind_s=100.0)
    sent = list[int]()

    def signalled() -> None:
        time.sleep(2.0)
        sent.append(stdin.sent)
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=signalled)
    sender.start()
    run("-", stdin=stdin, engine=engine)
    ended_s = time.monotonic() - began_s
    sender.join()
    assert engine.finished and engine.fed <= (ended_s + 0.5) * RATE
    assert engine.fed >= min(sent[0] - RATE // 5, 2 * RATE)
    assert sent[0] > (20 if pause_s < 0.1 else 1) * RATE and ended_s < 5


def test_a_reader_that_goes_away_ends_it_quietly(run, monkeypatch, tmp_path) -> None:
    def gone(self, key, data):
        raise BrokenPipeError

    monkeypatch.setattr(Stdout, "put", gone)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    engine = Told({1: completed(1, "one")})
    done = run("-", "-o", "out", "-f", "txt", stdin=Endless(), engine=engine)
    assert done.status == 1 and engine.finished and engine.fed < 5 * RATE
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["one\n"]


def test_a_turn_that_fails_is_told_and_the_others_go_on(run, tmp_path) -> None:
    lost = [Committed(1, 0.0, 1.0), Failed(1, AudioError("broken", code="internal_error"))]
    engine = Told({1: lost, 2: completed(2, "two", 2.0)})
    done = run("-", "-o", "out", "-f", "json", engine=engine)
    assert (done.status, done.out) == (1, "two\n") and "broken" in done.err
    (written,) = (tmp_path / "out").iterdir()
    assert json.loads(written.read_text())["coverage"]["failed_s"] == 1


def test_audio_that_breaks_off_in_the_middle_keeps_what_was_said(run, monkeypatch) -> None:
    class Broken(io.RawIOBase):
        turn = 0

        def read1(self, size: int) -> bytes:
            self.turn += 1
            if self.turn > 10:
                raise AudioError("stdin: gone")
            return TONE[:6400]

    done = run("-", stdin=Broken(), engine=Told({1: completed(1, "one")}))
    assert (done.status, done.out) == (2, "one\n") and "gone" in done.err


@pytest.mark.parametrize(
    ("stdin", "word"),
    [
        (b"", "before any audio"),
        (b"this is not audio\n" * 9, "text"),
        (b"fLaC" + bytes(99), "flac"),
    ],
)
def test_what_is_no_audio_is_told_before_a_model_is_loaded(run, monkeypatch, stdin, word) -> None:
    monkeypatch.setattr(command, "_engine", lambda *_: pytest.fail("a model was loaded"))
    done = run("-", stdin=stdin)
    assert done.status == 2 and word in done.err and done.out == ""


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["talk.mp3"], "--replay FILE"),
        (["-", "--replay", "a.wav"], "two inputs"),
        (["--replay", "a.wav", "--speed", "fast"], "neither max nor a number"),
        (["-", "--delay", "short"], "'minimal', 'low'"),
        (["-", "--turns", "never"], "'pause', 'sentence', 'none'"),
        (["-", "-o", "-"], "name a folder"),
        (["-", "--diarize", "--words"], "-o FOLDER"),
        (["-", "--keep-audio"], "-o FOLDER"),
        (["-", "--num-speakers", "2"], "--diarize"),
        (["-", "-o", "out", "-f", "doc"], "unknown output format"),
        (["--replay", "missing.wav"], "no such file"),
    ],
)
def test_impossible_command_lines(run, arguments, word) -> None:
    done = run(*arguments, engine=Told())
    assert done.status == 2 and word in done.err and done.out == ""


def test_without_portaudio_the_remedy_is_told(run, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    for arguments in ([], ["--list-devices"]):
        done = run(*arguments, engine=Told())
        assert done.status == 2 and "listen -" in done.err


# The terminal


def screen(width: int = 40, *, words: bool = False) -> tuple[LiveText, io.StringIO]:
    drawn = io.StringIO()
    console = Console(quiet=False)
    console.rich = Rich(
        file=drawn, force_terminal=True, width=width, highlight=False, soft_wrap=True
    )
    return LiveText(console, words=words), drawn


def shown(drawn: io.StringIO) -> str:
    """The last row, without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", drawn.getvalue().split("\r")[-1]).replace("\x1b[2K", "")


def test_the_text_that_may_change_stands_in_one_row(capfd) -> None:
    text, drawn = screen()
    text.show(Hypothesis(1, "And so", " my fellow", 2.0, 1, 0.1))
    assert shown(drawn) == "And so my fellow" and "\x1b[2mmy fellow" in drawn.getvalue()
    text.show(Hypothesis(1, "And so my", " fellow Americans " * 9, 2.0, 1, 0.1))
    assert len(shown(drawn)) <= 39 and shown(drawn).startswith("…")
    text.show(Hypothesis(1, "", "世界" * 30, 2.0, 1, 0.1))
    assert len(shown(drawn)) <= 20 and "\n" not in drawn.getvalue()
    for event in completed(1, "And so."):
        text.show(event)
    assert shown(drawn) == "" and capfd.readouterr().out == "And so.\n"


def test_text_that_comes_later_and_later_is_told() -> None:
    text, drawn = screen(200)
    for lag_s in (0.5, 4.0, 6.0, 7.0, 13.0):
        text.show(Hypothesis(1, "one", " two", 2.0, 1, lag_s))
    told = re.findall(r"the text is (\d+) s behind", drawn.getvalue())
    assert told == ["6", "13"]


# With a model


def test_a_model_in_this_process_hears_all_of_a_pipe(run, tmp_path) -> None:
    """Random weights: no words, and every part of the way."""
    model = str(folders.write(tmp_path / "model", max_target_positions=24))
    done = run("-", "--model", model, "--device", "cpu", "-o", "out", "-f", "json", stdin=MEMO_3S)
    assert done.status == 0, done.err
    (written,) = (tmp_path / "out").iterdir()
    found = json.loads(written.read_text())
    assert found["duration"] == 3 and found["coverage"]["decoded_s"] > 1
    assert found["settings"]["live"]["turns"] == "pause" and found["settings"]["model"]
    assert "3.0 s of audio" in done.err


@pytest.mark.slow
def test_a_pipe_of_a_human_voice_becomes_lines_and_files(run, tmp_path) -> None:
    file = io.BytesIO()
    soundfile.write(file, read_audio(MEMO)[: 11 * RATE], RATE, format="WAV")
    done = run("-", "--model", "tiny.en", "-o", "out", "-f", "txt,json", stdin=file.getvalue())
    assert done.status == 0, done.err
    found = json.loads(next((tmp_path / "out").glob("*.json")).read_text())
    assert "printing plant" in done.out
    assert done.out.split() == found["text"].split()
    assert found["duration"] == 11 and 0 < found["segments"][0]["end"] < 11
    spans = found["coverage"]["spans"]
    assert spans[0]["start"] == 0 and spans[-1]["end"] == 11


@pytest.mark.slow
def test_played_back_as_fast_as_it_goes_the_words_do_not_depend_on_the_machine(run) -> None:
    soundfile.write("a.wav", read_audio(MEMO)[: 8 * RATE], RATE)
    options = ["--replay", "a.wav", "--speed", "max", "--model", "tiny.en", "--words"]
    first = run(*options, "--batch-size", "1")
    stalled = threading.Thread(target=lambda: sum(range(30_000_000)))
    stalled.start()
    assert run(*options, "--gamma", "0").out == first.out != ""
    stalled.join()
