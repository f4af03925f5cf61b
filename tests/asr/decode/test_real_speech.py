"""Published Whisper weights on human voices: lost words, times, languages.

Needs `scripts/setup real`, which fetches the models, and recordings of people, which do not ship with the
repository: FORESCRIBE_VOICES names their folder (FLAC files with their text beside them).
"""

from __future__ import annotations

import json
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
import pytest

from forescribe.asr.audio.reading import read_audio
from forescribe.asr.decode.options import Guards
from forescribe.asr.decode.requests import CONFIDENT
from forescribe.asr.decode.transcriber import Options, Outcome, Transcriber
from forescribe.asr.formats.transcript import Transcript
from forescribe.speculative.requests import Result
from tests.asr.decode.test_rests import answers, with_tokens
from tests.real import BASE, READ, TINY, VOICES, errors, model, normal, voice

pytestmark = [pytest.mark.weights, pytest.mark.usefixtures("encoded_once")]

ENGLISH = Options(language="en", keep_encoder_states=True)


@pytest.fixture(scope="module")
def base() -> Transcriber:
    return Transcriber.load(
        str(model(BASE)), str(model(TINY)), batch=8, device="cpu", dtype="float32"
    )


@pytest.fixture(scope="module")
def read(base) -> dict[str, Outcome]:
    """The English readers by the default options, words timed."""
    options = Options(language="en", words=True, keep_encoder_states=True)
    paths = {str(voice(name)): name for name in READ}
    return {paths[str(o.source)]: o for o in base.transcribe(list(paths), options)}


def test_no_word_of_a_reader_is_lost(read) -> None:
    """faster-whisper's sequential mode loses none. Before windows went on behind their last word: 10."""
    found = errors(read)
    total = found.hits + found.substitutions + found.deletions
    assert total == 356
    assert found.deletions <= 1
    assert (found.substitutions + found.deletions + found.insertions) / total <= 0.035
    assert any(d.continued for o in read.values() for d in o.decoded)
    for outcome in read.values():
        coverage = outcome.transcript.coverage
        assert coverage.failed_samples == coverage.wordless_samples == 0
        assert outcome.transcript.warnings == ()


MODES = {
    "prompt": {"initial_prompt": "A reading about the history of printing."},
    "no timestamps": {"timestamps": False},
    "no vad": {"vad": False},
}


@pytest.mark.parametrize(
    "mode", [pytest.param(m, marks=pytest.mark.nightly) if m == "prompt" else m for m in MODES]
)
def test_no_word_is_lost_in_any_mode(base, mode) -> None:
    names, options = ("jfk", "librispeech-1089"), Options(language="en", **MODES[mode])
    found = {}
    for outcome in base.transcribe([str(voice(name)) for name in names], options):
        found[Path(outcome.source).stem] = outcome
        assert outcome.transcript.coverage.wordless_samples == 0
        assert outcome.transcript.coverage.failed_samples == 0
    counted = errors(found)
    assert counted.deletions <= 1 and counted.wer <= 0.05


def test_a_translation_is_in_english(base) -> None:
    options = Options(language="fr", task="translate")
    (outcome,) = base.transcribe([str(voice("french"))], options)
    assert "that" in outcome.transcript.text and "1" in outcome.transcript.text
    assert outcome.transcript.coverage.wordless_samples == 0


def test_each_clip_is_in_its_language(base) -> None:
    found = {}
    for name in ("french", "chinese", "english"):
        (outcome,) = base.transcribe([str(voice(name))], Options(gamma=0))
        found[name] = outcome.transcript.language
    assert found == {"french": "fr", "chinese": "zh", "english": "en"}


def first_segments(monkeypatch, special) -> None:
    """Answers end behind their first segment: the next part reads it."""

    def first_segment(result: Result) -> Result:
        stamps = [i for i, t in enumerate(result.tokens) if t >= special.timestamp_begin]
        if len(stamps) < 3 or result.request.tag.window.part:
            return result
        return with_tokens(result, (*result.tokens[: stamps[1] + 1], special.end))

    answers(monkeypatch, first_segment)


@pytest.mark.parametrize(
    ("name", "named", "heard"),
    [
        ("french", "en", "fr"),
        pytest.param("librispeech-1089", "en", "en", marks=pytest.mark.nightly),
    ],
)
def test_parts_hear_their_own_language_behind_text_of_another(
    base, monkeypatch, name, named, heard
) -> None:
    """They are decoded in the language that was named, and listen for others all the same."""
    first_segments(monkeypatch, base.whisper.tokens)
    samples = read_audio(str(voice(name)))
    if name == "french":  # short
        samples = np.concatenate([np.append(samples, [0] * 8000)] * 4).astype(np.float32)
    (outcome,) = base.transcribe([(samples, 16_000)], replace(ENGLISH, language=named))
    assert outcome.decoded[0].continued and len(outcome.decoded) > 1
    assert {decoded.heard[0] for decoded in outcome.decoded} == {heard}
    assert min(decoded.heard[1] for decoded in outcome.decoded) >= CONFIDENT
    told = [notice for notice in outcome.transcript.warnings if notice.code == "other_language"]
    assert len(told) == (heard != named)


@pytest.mark.nightly
def test_without_a_name_each_window_and_its_parts_have_their_own_language(
    base, monkeypatch
) -> None:
    mixed = VOICES / "multilingual.mp3"
    if not mixed.is_file():
        pytest.skip(f"{mixed} is missing")
    first_segments(monkeypatch, base.whisper.tokens)
    (outcome,) = base.transcribe([str(mixed)], replace(ENGLISH, language=None))
    languages = [decoded.language for decoded in outcome.decoded]
    assert languages == sorted(languages, reverse=True) and {*languages} == {"en", "de"}
    assert sum(decoded.continued for decoded in outcome.decoded) >= 2


def test_an_english_draft_changes_no_token_of_another_language(base) -> None:
    for name, language in (("french", "fr"), ("chinese", "zh")):
        options = replace(ENGLISH, language=language, beam_size=1)
        plain, drafted = (
            [d.result.tokens for d in outcome.decoded]
            for gamma in (0, 5)
            for outcome in base.transcribe([str(voice(name))], replace(options, gamma=gamma))
        )
        assert plain == drafted and plain[0]


def music(seconds: int, rng: np.random.Generator) -> np.ndarray:
    """Chords of three tones with overtones, which change every 2 s, a drum and a snare each second."""
    second, drum = np.arange(16_000) / 16_000, np.exp(-np.arange(2000) / 300)
    chords = ((220, 277, 330), (196, 247, 294), (175, 220, 262), (165, 208, 247))
    made = np.zeros((seconds, 16_000))
    for number, bar in enumerate(made):
        for tone in chords[number // 2 % 4]:
            for overtone in (1, 2, 3):
                bar += 0.06 * np.sin(2 * np.pi * tone * overtone * second) / overtone
        bar[:2000] += 0.3 * np.sin(2 * np.pi * 60 * second[:2000]) * drum
        bar[8000:10_000] += 0.2 * rng.standard_normal(2000) * drum
    return made.ravel()


HOSTILE = {"default": {}, **MODES, "translation": {"task": "translate", "language": "fr"}}


LONGEST = "no vad"
"""It decodes what the others pass over, and takes longer than all other tests of this file."""


@pytest.mark.parametrize(
    "mode", [pytest.param(m, marks=pytest.mark.nightly) if m == LONGEST else m for m in HOSTILE]
)
def test_noise_silence_and_music_have_no_words(base, tmp_path, mode) -> None:
    import soundfile

    rng, length = np.random.default_rng(0), 20 if mode == LONGEST else 120
    noise = 0.05 * rng.standard_normal(length * 16_000)
    sounds = {"noise": noise, "silence": np.zeros_like(noise), "music": music(length, rng)}
    for name, samples in sounds.items():
        soundfile.write(tmp_path / f"{name}.wav", samples.astype(np.float32), 16_000, "FLOAT")
    options = Options(guards=Guards(), **HOSTILE[mode])
    for outcome in base.transcribe([str(tmp_path / f"{name}.wav") for name in sounds], options):
        assert outcome.transcript.text == "", outcome.source


def test_a_quiet_voice_keeps_its_words(base, tmp_path) -> None:
    """At -80 dB as at full scale: recorders of 32 bits write such files. Not amplified, 65 of 81
    words are others."""
    import soundfile

    names = ("jfk", "librispeech-1089", "lj-1")
    for name in names:
        speech, rate = soundfile.read(voice(name), dtype="float32")
        speech = speech[: 12 * rate] / np.abs(speech[: 12 * rate]).max()
        for level in (0, -80):
            path = tmp_path / f"{name}{level}.wav"
            soundfile.write(path, speech * 10 ** (level / 20), rate, "FLOAT")
    options = Options(language="en", guards=Guards())
    paths = sorted(map(str, tmp_path.glob("*.wav")))
    found = {str(o.source): o.transcript for o in base.transcribe(paths, options)}
    wrong = 0
    for name in names:
        loud, quiet = (
            normal(found[str(tmp_path / f"{name}{db}.wav")].text).split() for db in (0, -80)
        )
        codes = SequenceMatcher(None, loud, quiet, autojunk=False).get_opcodes()
        wrong += sum(max(b - a, d - c) for tag, a, b, c, d in codes if tag != "equal")
    assert wrong <= 4


def test_a_reverberant_voice_that_is_not_detected_is_decoded(base, tmp_path) -> None:
    """Without the windows that are loud and have no voice activity: 0.8 of 12.6 s, and no word."""
    import soundfile

    speech, rate = soundfile.read(voice("jfk"), dtype="float32")
    decay = 10 ** (-3 * np.arange(int(1.5 * rate)) / rate / 1.2)  # 60 dB in 1.2 s
    echo = np.random.default_rng(1).standard_normal(len(decay)) * decay
    samples = np.convolve(speech, 0.1 * echo / np.linalg.norm(echo)).astype(np.float32)
    beeps = 0.1 * np.sin(2 * np.pi * 1000 * np.arange(30 * rate) / rate)
    beeps *= np.arange(30 * rate) // (rate // 2) % 4 == 0
    for name, sound in {"echo": samples, "beeps": beeps.astype(np.float32)}.items():
        soundfile.write(tmp_path / f"{name}.wav", sound, rate)
    for drafts in (None, 0):  # the same words with and without drafts
        options = Options(gamma=drafts)
        echo, beeps = (
            next(iter(base.transcribe([str(tmp_path / f"{name}.wav")], options))).transcript
            for name in ("echo", "beeps")
        )
        assert "what your country can do for you" in echo.text
        assert echo.coverage.loud_samples == 0 and echo.language == "en"
        assert beeps.text == "" and beeps.warnings == () and beeps.language is None
        assert beeps.coverage.loud_samples > 25 * rate and -35 < beeps.coverage.loud_db < -20
        told = Transcript.from_dict(json.loads(json.dumps(beeps.to_dict()))).coverage
        assert told.loud_samples == beeps.coverage.loud_samples
