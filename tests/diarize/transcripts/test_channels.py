"""Channels as speakers: splitting and merging."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from forescribe.asr.audio.inputs import Input
from forescribe.asr.audio.reading import read_audio
from forescribe.asr.decode.options import Options
from forescribe.asr.decode.results import Hook, Outcome
from forescribe.asr.errors import AudioError, UsageError
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Coverage, Segment, Span, Word
from forescribe.diarize.channels import ChannelTranscriber, merge_channels, split_channels

RATE = 16_000


def stereo(path: Path, rate: int = RATE, seconds: float = 1.0) -> np.ndarray:
    """A low tone left, a high one right."""
    time = np.arange(round(rate * seconds)) / rate
    both = 0.5 * np.stack([np.sin(2 * np.pi * 200 * time), np.sin(2 * np.pi * 1500 * time)], 1)
    soundfile.write(path, both, rate)
    return both


def pitch(samples: np.ndarray) -> float:
    """Hz of the loudest frequency."""
    return float(np.abs(np.fft.rfft(samples)).argmax() * RATE / len(samples))


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100])
def test_each_side_has_its_own_sound_and_the_whole_length(tmp_path: Path, rate: int) -> None:
    stereo(tmp_path / "call.wav", rate)
    left, right = split_channels(tmp_path / "call.wav", tmp_path)
    assert (left.name, right.name) == ("call.channel-0.wav", "call.channel-1.wav")
    sides = [read_audio(side) for side in (left, right)]
    assert [len(side) for side in sides] == [RATE, RATE]
    assert [round(pitch(side), -1) for side in sides] == [200, 1500]


def test_mono_is_refused_and_so_is_what_is_no_audio(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "mono.wav", np.zeros(100), RATE)
    with pytest.raises(UsageError, match=r"mono\.wav has one channel"):
        split_channels(tmp_path / "mono.wav", tmp_path)
    (tmp_path / "text.wav").write_text("no sound" * 100)
    with pytest.raises(AudioError):
        split_channels(tmp_path / "text.wav", tmp_path)


def side(*spans: tuple[float, float, str], total: float, silent: float = 0.0) -> Transcript:
    """Segments with one word each; the last `silent` seconds are so."""
    at = round((total - silent) * RATE)
    states = [Span(0, at, "decoded")]
    if silent:
        states.append(Span(at, round(total * RATE), "silent", "no voice activity"))
    return Transcript(
        tuple(
            Segment(n, 0, 0, round(a * RATE), round(b * RATE), text, words=(word(a, b, text),))
            for n, (a, b, text) in enumerate(spans)
        ),
        round(total * RATE),
        Coverage(tuple(states)),
    )


def word(start: float, end: float, text: str) -> Word:
    return Word(text, round(start * RATE), round(end * RATE))


def test_two_sides_become_one_conversation_in_the_order_of_what_was_said() -> None:
    left = side((0, 1, " Hello."), (3, 4, " Fine."), total=6, silent=2)
    right = side((1.2, 2.5, " How are you?"), total=5)
    found = merge_channels([left, right], ["agent", "customer"])
    assert [(s.id, s.speaker, s.text) for s in found.segments] == [
        (0, "agent", " Hello."),
        (1, "customer", " How are you?"),
        (2, "agent", " Fine."),
    ]
    assert found.text == "Hello. How are you? Fine." and found.sample_count == 6 * RATE
    assert [(t.start, t.end, t.speaker) for t in found.turns] == [
        (0, 1, "agent"),
        (1.2, 2.5, "customer"),
        (3, 4, "agent"),
    ]
    assert [(s.state, s.end_sample / RATE) for s in found.coverage.spans] == [
        ("decoded", 5),
        ("silent", 6),
    ]


def test_what_is_loud_on_either_side_without_a_voice_stays_told() -> None:
    def silence(*levels: float | None) -> Transcript:
        spans = (
            Span(n * RATE, (n + 1) * RATE, "silent", "no voice activity", level)
            for n, level in enumerate(levels)
        )
        return Transcript((), len(levels) * RATE, Coverage(tuple(spans)))

    found = merge_channels([silence(None, -20, None), silence(-30, -30, None)], ["a", "b"])
    assert [(s.end_sample / RATE, s.level_db) for s in found.coverage.spans] == [
        (1, -30),
        (2, -20),
        (3, None),
    ]
    assert found.coverage.loud_samples == 2 * RATE


def test_voice_without_words_is_summed_over_the_sides() -> None:
    def missed(*samples: int | None) -> int | None:
        sides = [side((0, 1, " Hello."), total=2) for _ in samples]
        told = [
            replace(one, coverage=replace(one.coverage, wordless_samples=n))
            for one, n in zip(sides, samples, strict=True)
        ]
        return merge_channels(told, ["a", "b"]).coverage.wordless_samples

    assert missed(3, 4) == 7 and missed(0, 0) == 0
    assert missed(3, None) is None, "nothing is known of the other side"


class Parrot:
    """Transcribes a recording to its length; the last recording comes first."""

    def transcribe(
        self,
        sources: Iterable[Input],
        options: Options | None = None,
        hook: Hook | None = None,
        **others: object,
    ) -> Iterator[Outcome]:
        for source in reversed(list(sources)):
            if "broken" in str(source):
                yield Outcome(source, error=AudioError("broken"))
                continue
            seconds = len(read_audio(source)) / RATE  # type: ignore[arg-type]
            yield Outcome(source, side((0, seconds, f" {seconds:g}"), total=seconds))


def test_calls_of_a_run_share_the_transcriber_and_none_takes_another_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name, seconds in (("a", 1), ("b", 2), ("broken", 1)):
        stereo(tmp_path / f"{name}.wav", seconds=seconds)
    soundfile.write(tmp_path / "mono.wav", np.zeros(RATE), RATE)
    names = [str(tmp_path / f"{n}.wav") for n in ("a", "mono", "b", "broken")]
    found, left = {}, {}
    for outcome in ChannelTranscriber(Parrot()).transcribe([*names, "-"]):
        found[outcome.name] = outcome
        left[outcome.name] = {path.name for path in tmp_path.glob("forescribe-*/*/*")}
    assert left[names[2]] == {"a.channel-0.wav", "a.channel-1.wav"}, "those of others are gone"
    assert not left[names[0]]
    assert set(found) == {*names, "-"}
    one, mono, two, broken = (found[name] for name in names)
    assert one.transcript is not None and two.transcript is not None
    assert [(s.speaker, s.text) for s in two.transcript.segments] == [
        ("Speaker A", " 2"),
        ("Speaker B", " 2"),
    ]
    assert isinstance(mono.error, UsageError) and isinstance(broken.error, AudioError)
    assert "stream" in str(found["-"].error)
