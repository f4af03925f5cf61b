"""What people and scripts are told: on stderr for the ones, as JSON on stdout for the others."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console as Rich

from forescribe.asr.batch.ledger import Record, result_fields
from forescribe.asr.batch.outputs import RecordingResult
from forescribe.asr.decode.results import Progress
from forescribe.asr.errors import AudioError, ForescribeError
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Coverage, Notice, Segment, Span, Turn
from forescribe.asr.storage.locations import Source
from forescribe.cli.console import Console, Totals
from forescribe.speculative.requests import Stats

A = Source("a.wav")
STATS = Stats(row_rounds=10, drafted_at_depth=(10,), accepted_at_depth=(5,))
SEGMENT = Segment(0, 0, 0, 8_000, 16_000, " Hello [there].")


def ended(
    name: str, made: Transcript | None, error: ForescribeError | None = None
) -> RecordingResult:
    files = () if error else (Path("out/a.txt"), Path("out/a.srt"))
    return RecordingResult(Record(name, **result_fields(made, error, 0.5)), made, error, files)


FAILED = ended("b.mp3", None, AudioError("b.mp3: no such file", code="missing_file"))


def done(name: str = "a.wav", *warnings: Notice, text: bool = True) -> RecordingResult:
    return ended(
        name,
        Transcript(
            segments=(SEGMENT,) if text else (),
            sample_count=32_000,
            coverage=Coverage((Span(0, 32_000, "decoded"),)),
            language="en",
            warnings=warnings,
            stats={"acceptance_rate": 0.5, "mean_acceptance_length": 1.5},
        ),
    )


def console(**options: bool) -> Console:
    return Console(**{"quiet": False, **options})


def on_terminal(made: Console) -> io.StringIO:
    screen = io.StringIO()
    made.rich = Rich(file=screen, force_terminal=True, width=100, color_system=None)
    return screen


def tell(made: Console, *all_: RecordingResult) -> None:
    for one in all_:
        made.result(one)


def test_a_recording_is_one_line_on_stderr(capsys) -> None:
    tell(console(), done())
    assert capsys.readouterr() == ("", "a.wav: 2.0 s of audio -> out/a .txt .srt\n")


def test_lines_of_silence_of_failures_and_of_warnings(capsys) -> None:
    tell(console(), done(text=False), FAILED, done("a.wav", Notice("truncated_audio", "cut off")))
    silent, failed, _, warning = capsys.readouterr().err.splitlines()
    assert "2.0 s of audio, no speech" in silent
    assert failed == "failed b.mp3: no such file (missing_file)"
    assert warning == "  note cut off"


def test_names_with_brackets_are_no_markup(capsys) -> None:
    tell(console(), done("[bold]x.wav"), ended("y", None, AudioError("[red]y: broken")))
    err = capsys.readouterr().err
    assert "[bold]x.wav: 2.0 s" in err and "failed [red]y: broken" in err


def test_the_last_line_tells_what_was_heard_and_then_every_failure(capsys) -> None:
    made = console()
    tell(made, done(), FAILED, done())
    made.summary()
    *_, totals, failures = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"4\.0 s of audio in \d+\.\d s \(.*x real time\): 4 words", totals)
    assert failures == "1 failed: b.mp3: missing_file"


def told(transcript: Transcript, **options: bool) -> str:
    totals = Totals()
    totals.add(transcript)
    return totals.line(1.0, **{"vad": True, **options})


def test_the_last_line_names_speakers_and_silence() -> None:
    made = done().transcript
    assert made is not None
    half = Coverage(
        (Span(0, 416_000, "silent", "no voice activity"), Span(416_000, 832_000, "decoded"))
    )
    turns = (Turn(0, 8_000, "A"), Turn(8_000, 16_000, "B"))
    long = replace(made, sample_count=832_000, coverage=half, turns=turns)
    line = "52.0 s of audio in 1.0 s (52.0x real time): 2 words, 2 speakers"
    assert told(long) == f"{line}; 26 s skipped as silence, --no-vad decodes it"
    assert told(long, vad=False) == line
    chinese = replace(made, language="zh", segments=(replace(SEGMENT, text="你好，世界"),))
    assert told(chinese).endswith(": 4 characters")


def test_drafts_and_engines_are_told_on_request(capsys) -> None:
    one = done().transcript
    assert one is not None
    figures = {"drafted": 10, "accepted": 5, "rounds": 10, "drafting": "drafts of 4"}
    figures |= {"search": "5 beams where words are doubtful"}
    made = console(stats=True)
    for engine in ("native", "lean"):  # two workers of a cluster
        tell(made, ended("a", replace(one, stats=figures, settings={"engine": engine})))
    made.summary()
    assert capsys.readouterr().err.splitlines()[-1] == (
        "5 beams where words are doubtful; 50.0% of drafts accepted, 1.50 tokens per round; "
        "auto: drafts of 4; engine lean, native"
    )


def test_quiet_says_nothing_but_errors(capsys) -> None:
    made = console(quiet=True)
    made.status("loading")
    with made.progress([A, A]) as hook:
        assert hook is None
        tell(made, done("a.wav", Notice("short_audio", "short")))
    made.summary()
    assert capsys.readouterr() == ("", "")
    tell(made, FAILED)
    assert capsys.readouterr().err == "failed b.mp3: no such file (missing_file)\n"


def records(capsys: pytest.CaptureFixture[str]) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_records_are_one_line_per_recording(capsys) -> None:
    made = console(quiet=True, records=True)
    tell(made, done("a.wav", Notice("short_audio", "short")), FAILED)
    good, bad = records(capsys)
    assert good["status"] == "succeeded" and good["code"] is good["message"] is None
    assert good["outputs"] == ["out/a.txt", "out/a.srt"]
    assert (good["audio_s"], good["wall_s"], good["rtfx"]) == (2.0, 0.5, 4.0)
    assert (good["language"], good["acceptance_rate"]) == ("en", 0.5)
    assert good["warnings"] == ["short_audio"]
    assert bad["path"] == "b.mp3" and bad["status"] == "failed" and bad["code"] == "missing_file"
    assert bad["message"] == "b.mp3: no such file"
    assert bad["outputs"] == [] and bad["audio_s"] is None


def progress(seconds: float, total: float | None = 60.0) -> Progress:
    return Progress("a.wav", seconds, total, (SEGMENT,), STATS)


def test_a_bar_counts_seconds_of_audio() -> None:
    made = console()
    screen = on_terminal(made)
    with made.progress([A]) as hook:
        assert hook is not None
        hook(progress(30.0))
        hook(progress(60.0))
    assert "60/60 s" in screen.getvalue() and "x real time" in screen.getvalue()


def test_verbose_writes_segments_as_they_come(capsys) -> None:
    with console(verbose=True).progress([A]) as hook:
        assert hook is not None
        hook(progress(30.0))
    out, err = capsys.readouterr()
    assert out == "" and "[0.50 --> 1.00] Hello [there]." in err
    assert "audio" not in err and "━" not in err  # in a log there is still no bar


def spoken(*texts: str) -> Progress:
    segments = tuple(Segment(0, 0, 0, 0, 16_000, text) for text in texts)
    return Progress("a.wav", 30.0, 60.0, (), STATS, segments)


def test_words_are_shown_as_windows_end_and_do_not_steer_the_terminal() -> None:
    made = console()
    screen = on_terminal(made)
    with made.progress([A]) as hook:
        assert hook is not None
        for step in (spoken(" One.", " Two."), spoken(" \x1b[2J\x07bell [bold]")):
            hook(step)
    said = screen.getvalue()
    assert said.index("One.") < said.index("Two.") < said.index(r"\x1b[2J\x07bell [bold]")
    assert "\x1b[2J" not in said and "\x07" not in said


def test_a_bar_knows_all_recordings_from_the_beginning() -> None:
    made = console()
    screen = on_terminal(made)
    with made.progress([Source("a.wav", length_s=60.0), Source("b.wav", length_s=40.0)]) as hook:
        assert hook is not None
        hook(progress(30.0))
    assert "2 files" in screen.getvalue() and "30/100 s" in screen.getvalue()


def skipped(*names: str) -> list[RecordingResult]:
    return [RecordingResult(Record(name, "skipped"), files=(Path("out/a.txt"),)) for name in names]


def test_what_is_done_already_is_one_line(capsys) -> None:
    console().skipped([], 3)
    console().skipped(skipped("a.wav"), 1)
    console().skipped(skipped("a.wav", "b.wav"), 5)
    console(quiet=True).skipped(skipped("a.wav"), 1)
    assert capsys.readouterr().err.splitlines() == [
        "a.wav: already done, --overwrite to redo",
        "2 of 5: already done, --overwrite to redo",
    ]


def test_what_is_done_already_has_a_record_for_scripts(capsys) -> None:
    console(quiet=True, records=True).skipped(skipped("a.wav", "b.wav"), 2)
    one, two = records(capsys)
    assert (one["path"], one["status"], one["outputs"]) == ("a.wav", "skipped", ["out/a.txt"])
    assert two["path"] == "b.wav"


def test_cancelled_recordings_are_counted_not_listed(capsys) -> None:
    made = console()
    tell(made, done(), *(RecordingResult(Record(f"{n}.wav", "cancelled")) for n in range(4)))
    made.summary()
    _, totals, cancelled = capsys.readouterr().err.splitlines()
    assert totals.startswith("2.0 s of audio") and cancelled.startswith("4 cancelled;")
