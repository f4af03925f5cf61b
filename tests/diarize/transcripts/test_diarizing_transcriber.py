"""Transcription with diarization."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import soundfile

from forescribe.asr.audio.inputs import Input
from forescribe.asr.audio.reading import Recording, open_audio
from forescribe.asr.decode.options import Hook, Options, Outcome
from forescribe.asr.errors import AudioError, CapacityError
from forescribe.asr.formats.files import rttm
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Coverage, Segment, Span, Word
from forescribe.diarize.diarizer import Bounds
from forescribe.diarize.known_speakers import KnownSpeaker
from forescribe.diarize.transcribers import DiarizingTranscriber, SpeakerOnlyTranscriber
from tests.diarize.engines.fake_engines import RATE, LevelDiarizer, sound, vector

TALK = sound((1, 0.5), (1, 0), (2, 0.1))


class Typist:
    """Writes a word per half second of what it is given; reads everything before it writes."""

    def __init__(self) -> None:
        self.options: Options | None = None

    def transcribe(
        self,
        sources: Iterable[Input],
        options: Options | None = None,
        hook: Hook | None = None,
        *,
        open: Callable[[Input], Recording] = open_audio,
    ) -> Iterator[Outcome]:
        self.options = options
        lengths: list[tuple[Input, int]] = []
        for source in sources:
            try:
                with open(source) as recording:
                    lengths.append((source, sum(len(block) for block in recording.blocks())))
            except AudioError as error:
                yield Outcome(source, error=error)
        for source, length in lengths:
            half = RATE // 2
            words = tuple(Word(f" w{n}", n * half, (n + 1) * half) for n in range(length // half))
            text = "".join(word.text for word in words)
            segment = Segment(0, 0, 0, 0, length, text, words=words)
            yield Outcome(
                source, Transcript((segment,), length, Coverage((Span(0, length, "decoded"),)))
            )


@pytest.fixture
def talk(tmp_path: Path) -> str:
    soundfile.write(tmp_path / "my talk.wav", TALK, RATE)
    return str(tmp_path / "my talk.wav")


def test_the_words_are_the_transcribers_and_the_speakers_the_diarizers(talk: str) -> None:
    typist = Typist()
    (outcome,) = DiarizingTranscriber(typist, LevelDiarizer()).transcribe([talk])
    assert typist.options is not None and typist.options.words
    found = outcome.transcript
    assert found is not None and found.text == "w0 w1 w2 w3 w4 w5 w6 w7"
    assert [s.speaker for s in found.segments] == ["SPEAKER_00", "SPEAKER_01"]
    assert found.settings["diarization"]["name"] == "level"  # type: ignore[index, call-overload]
    assert rttm(found).splitlines() == [
        "SPEAKER my_talk 1 0.000 1.000 <NA> <NA> SPEAKER_00 <NA> <NA>",
        "SPEAKER my_talk 1 2.000 2.000 <NA> <NA> SPEAKER_01 <NA> <NA>",
    ]


def test_several_recordings_keep_their_own_speakers_and_a_broken_one_fails_alone(
    talk: str, tmp_path: Path
) -> None:
    soundfile.write(tmp_path / "quiet.wav", sound((2, 0.1)), RATE)
    (tmp_path / "text.wav").write_text("no sound" * 100)
    names = [talk, str(tmp_path / "text.wav"), str(tmp_path / "quiet.wav")]
    found = {o.name: o for o in DiarizingTranscriber(Typist(), LevelDiarizer()).transcribe(names)}
    assert found[names[1]].error is not None and found[names[1]].transcript is None
    one, other = found[names[0]].transcript, found[names[2]].transcript
    assert one is not None and other is not None
    assert (len(one.turns), len(other.turns)) == (2, 1)


def test_a_recording_that_cannot_be_diarized_fails_with_the_reason(talk: str) -> None:
    class Full(LevelDiarizer):
        def diarize(self, *given: object, **others: object) -> None:  # type: ignore[override]
            raise CapacityError("full")

    class Broken(LevelDiarizer):
        def diarize(self, *given: object, **others: object) -> None:  # type: ignore[override]
            raise RuntimeError("broken")

    (full,) = DiarizingTranscriber(Typist(), Full()).transcribe([talk])
    assert isinstance(full.error, CapacityError) and full.transcript is None
    for transcriber in (DiarizingTranscriber(Typist(), Broken()), SpeakerOnlyTranscriber(Broken())):
        (broken,) = transcriber.transcribe([talk])
        assert broken.error is not None and broken.error.code == "internal_error"
        assert "RuntimeError while diarizing: broken" in str(broken.error)


def test_leaving_early_ends_the_thread(talk: str, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "quiet.wav", sound((2, 0.1)), RATE)
    names = [talk, str(tmp_path / "quiet.wav")]
    outcomes = DiarizingTranscriber(Typist(), LevelDiarizer()).transcribe(names)
    next(outcomes)
    outcomes.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("diarize")]


def test_a_known_voice_is_called_by_its_name_and_a_doubtful_one_is_a_warning(talk: str) -> None:
    people = [
        KnownSpeaker("Zoë", "levels-1", vector("LOUD"), RATE, 1, ""),
        KnownSpeaker("Ada", "other", vector("QUIET"), RATE, 1, ""),
    ]
    (outcome,) = DiarizingTranscriber(Typist(), LevelDiarizer(), known=people).transcribe([talk])
    assert outcome.transcript is not None
    assert [s.speaker for s in outcome.transcript.segments] == ["Zoë", "SPEAKER_01"]


def test_turns_without_words(talk: str) -> None:
    engine = LevelDiarizer()
    (outcome,) = SpeakerOnlyTranscriber(engine, Bounds(at_most=5)).transcribe([talk])
    found = outcome.transcript
    assert found is not None and found.segments == () and len(found.turns) == 2
    assert found.diarized and found.coverage.decoded_samples == len(TALK)
    assert engine.bounds == [Bounds(at_most=5)]
