"""Recordings in, transcripts out: what one of them is does not depend on the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch
from transformers import WhisperForConditionalGeneration

from forescribe.asr.decode import recording, text
from forescribe.asr.decode import transcriber as transcriber_module
from forescribe.asr.decode.guards import Guards, Judgement
from forescribe.asr.decode.outcome import settings_of
from forescribe.asr.decode.requests import DOUBTFUL
from forescribe.asr.decode.transcriber import Options, Outcome, Progress, Transcriber
from forescribe.asr.errors import AudioError, CapacityError, UsageError
from forescribe.asr.formats.files import srt, tsv, txt, vtt
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Coverage, Segment
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.asr.model.whisper import Whisper
from forescribe.speculative.device import choose
from tests.asr.decode.whole_windows import judged, whole
from tests.asr.detectors import EnergyDetector
from tests.asr.model import folders
from tests.asr.recordings import silence, tone, wav

RATE = 16_000
GERMAN = Options(language="de")


@pytest.fixture(scope="module")
def whisper(tmp_path_factory) -> Whisper:
    """A target, and a draft that is the target with noise: some of its tokens are kept, not all."""
    root = tmp_path_factory.mktemp("pair")
    target = folders.write(root / "target", max_target_positions=40)
    model = WhisperForConditionalGeneration.from_pretrained(target)
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.model.decoder.layers.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=noise)
    model.save_pretrained(root / "draft")
    for part in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        (root / "draft" / part).write_bytes((target / part).read_bytes())
    return load(Pair(target, root / "draft"), choose("cpu"))


def transcriber(whisper: Whisper, batch: int = 4, gamma: int = 3) -> Transcriber:
    return Transcriber(whisper, batch=batch, gamma=gamma, detector=EnergyDetector())


@pytest.fixture(scope="module")
def shared(whisper) -> Transcriber:
    """One for many tests: that calls leave nothing behind is itself a claim here."""
    return transcriber(whisper)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory) -> list[str]:
    root, paths = tmp_path_factory.mktemp("recordings"), []
    for name, samples in {
        "short": tone(2, 1),
        "long": tone(40, 2),
        "pause": np.concatenate([silence(5), tone(6, 3), silence(12), tone(3, 4)]),
        "silent": silence(40),
        "other": tone(7, 5),
    }.items():
        paths.append(str(root / f"{name}.wav"))
        (root / f"{name}.wav").write_bytes(wav(samples))
    return paths


def essence(outcome: Outcome) -> tuple:
    """What must not depend on the batch; probabilities are rounded otherwise by other shapes."""
    made = outcome.transcript
    assert made is not None, outcome.error
    spans = [(s.start_sample, s.end_sample, s.tokens, s.text) for s in made.segments]
    return made.text, spans, made.coverage, made.language, made.sample_count, made.warnings


@pytest.fixture(scope="module")
def alone(whisper, recordings) -> dict[str, tuple]:
    """Each recording by itself, plainly decoded, by a transcriber of its own."""
    found = {}
    for path in recordings:
        (outcome,) = transcriber(whisper, batch=1, gamma=0).transcribe([path], GERMAN)
        found[path] = essence(outcome)
    return found


# The whole


def test_half_the_batch_drafts_as_the_whole_one_did(
    whisper, recordings, alone, monkeypatch
) -> None:
    """What a run goes on with where memory has run out."""

    def full(*args, **options):
        raise torch.OutOfMemoryError("planted")

    one = transcriber(whisper)
    with monkeypatch.context() as patch:
        patch.setattr(one.engine.target, "score", full)
        (outcome,) = one.transcribe(recordings[1:2], GERMAN)
    assert isinstance(outcome.error, CapacityError)
    one.set_batch(2)
    before = one.stats()
    (outcome,) = one.transcribe(recordings[1:2], GERMAN)
    assert essence(outcome) == alone[recordings[1]]
    assert one.batch == 2 and (one.stats() - before).accepted > 0


def test_copies_share_the_engine_whatever_its_size(whisper, recordings, alone) -> None:
    one = transcriber(whisper)
    two, three = one.with_readers(0), one.with_readers(0)
    (outcome,) = one.transcribe(recordings[1:2], GERMAN)
    before = one.stats()
    two.set_batch(2)
    assert one.batch == two.batch == three.batch == 2
    assert one.engine is two.engine is three.engine
    assert one.stats().rounds == before.rounds > 0
    (outcome,) = three.transcribe(recordings[1:2], GERMAN)
    assert essence(outcome) == alone[recordings[1]] and one.stats().rounds > before.rounds


def test_one_recording_is_no_list(shared, tmp_path) -> None:
    """A string would be read letter by letter."""
    for one in ("memo.flac", b"RIFF", tmp_path / "memo.flac"):
        with pytest.raises(UsageError, match="give a list"):
            shared.transcribe(one)


def test_a_recording_that_is_done_does_not_wait_for_the_next_to_be_read(whisper, recordings):
    """The next may be a pipe from a live source."""
    opened = []

    def sources() -> Iterator[str]:
        for path in recordings[:2]:
            opened.append(path)
            yield path

    outcome = next(transcriber(whisper, batch=1).transcribe(sources(), GERMAN))
    assert outcome.source == recordings[0] and opened == recordings[:1]


# Coverage


def test_coverage_is_a_partition_and_silence_is_not_decoded(shared, recordings) -> None:
    (outcome,) = shared.transcribe([recordings[2]], replace(GERMAN, keep_encoder_states=True))
    made = outcome.transcript
    assert made is not None and made.sample_count == 26 * RATE
    assert isinstance(made.coverage, Coverage)  # which refuses gaps and overlaps
    states = [span.state for span in made.coverage.spans]
    assert states == ["silent", "decoded", "silent", "decoded"]
    assert made.coverage.silent_samples > 14 * RATE
    decoded = [(s.start_sample, s.end_sample) for s in made.coverage.spans if s.state == "decoded"]
    assert [(d.start, d.end) for d in outcome.decoded] == decoded
    assert made.stats["windows"] == 2
    for segment in made.segments:
        assert any(a <= segment.start_sample <= segment.end_sample <= b for a, b in decoded)


def test_without_voice_activity_every_sample_is_decoded(shared, recordings) -> None:
    (outcome,) = shared.transcribe([recordings[3]], replace(GERMAN, vad=False))
    assert outcome.transcript is not None
    assert outcome.transcript.coverage.decoded_samples == 40 * RATE
    assert outcome.transcript.stats["windows"] == 2


# Failures


def test_a_failing_recording_takes_no_other_with_it(shared, recordings, alone, tmp_path) -> None:
    (tmp_path / "empty.wav").touch()
    bad = [str(tmp_path / "missing.wav"), str(tmp_path / "empty.wav"), str(tmp_path)]
    mixed = [bad[0], *recordings[:2], bad[1], *recordings[2:], bad[2]]
    outcomes = {o.source: o for o in shared.transcribe(mixed, GERMAN)}
    assert {p: essence(outcomes[p]) for p in recordings} == alone
    codes = [outcomes[path].error.code for path in bad]
    assert codes == ["missing_file", "empty_file", "unreadable_file"]
    assert all(outcomes[path].transcript is None for path in bad)


# Languages


def hears(monkeypatch, *languages: tuple[str, float]) -> None:
    """The model's verdict on window after window."""
    verdicts = list(languages)

    def detect(self, encoded, among=None):
        return [verdicts.pop(0) for _ in encoded]

    monkeypatch.setattr(Whisper, "detect_language", detect)


@pytest.fixture
def three_windows(tmp_path, monkeypatch) -> str:
    whole(monkeypatch)
    soundfile.write(tmp_path / "a.wav", tone(80, 7), RATE)
    return str(tmp_path / "a.wav")


@pytest.mark.parametrize(
    ("verdicts", "written", "language"),
    [
        ([("de", 0.5), ("fr", 0.85), ("en", 0.95)], ["de", "de", "en"], ("de", 0.5)),
        ([("de", 0.2), ("fr", 0.6), ("fr", 0.7)], ["de", "fr", "fr"], ("fr", 0.6)),
        ([("de", 0.2), ("fr", 0.1), ("fr", 0.3)], ["de", "de", "fr"], ("fr", 0.3)),
        ([("de", 0.2), ("fr", 0.6), ("en", 0.8)], ["de", "fr", "fr"], ("fr", 0.6)),
        ([("fr", DOUBTFUL), ("en", 0.6), ("en", 0.8)], ["fr", "fr", "fr"], ("fr", DOUBTFUL)),
    ],
)
def test_a_doubtful_language_gives_way_to_a_more_probable_one(
    shared, three_windows, monkeypatch, verdicts, written, language
) -> None:
    """A window leaves any other only with confidence."""
    hears(monkeypatch, *verdicts)
    options = Options(vad=False, keep_encoder_states=True)
    (outcome,) = shared.transcribe([three_windows], options)
    assert [d.language for d in outcome.decoded] == written
    made = outcome.transcript
    assert made is not None and (made.language, made.language_probability) == language
    mixed = [w.message for w in made.warnings if w.code == "mixed_languages"]
    assert len(mixed) == (len(set(written)) > 1)
    assert all(other in mixed[0] for other in set(written) - {made.language})
    tokens = shared.whisper.tokens
    for decoded in outcome.decoded:
        expected = tokens.prompt(decoded.language, "transcribe", timestamps=True)
        assert decoded.result.request.prompt == expected


def test_a_doubtful_language_is_told(shared, three_windows, monkeypatch) -> None:
    options = Options(vad=False)

    def warned(options: Options, *verdicts: tuple[str, float]) -> list[str]:
        hears(monkeypatch, *verdicts)
        (outcome,) = shared.transcribe([three_windows], options)
        made = Transcript.from_dict(json.loads(json.dumps(outcome.transcript.to_dict())))
        return [w.message for w in made.warnings if w.code == "doubtful_language"]

    (message,) = warned(options, ("en", 0.2), ("en", 0.1), ("en", 0.1))
    assert message.startswith("the language was detected as en with a probability of 0.20")
    assert message.endswith("name the language (--language)")
    assert warned(options, ("en", DOUBTFUL - 0.01), ("en", 0.1), ("en", 0.1))
    assert not warned(options, ("en", DOUBTFUL), ("en", 0.1), ("en", 0.1))
    assert not warned(replace(options, language="en"))

    # Without text the language does not matter.
    monkeypatch.setattr(text, "texts_of", lambda *_: [])
    assert not warned(options, ("en", 0.2), ("en", 0.8), ("en", 0.8))


@pytest.mark.parametrize(
    ("heard", "told"),
    [
        ([0.02, 0.96, 0.02], "0.0 to 30.0 s, 30.0 to 59.9 s, 59.9 to 80.0 s"),
        ([0.1, 0.85, 0.05], None),
        ([0.96, 0.02, 0.02], None),
    ],
)
def test_another_language_than_the_one_named_is_told(
    shared, three_windows, monkeypatch, heard, told
) -> None:
    real, codes = recording.answer_of, list(shared.whisper.tokens.languages)
    chances = [heard[["de", "fr", "en"].index(code)] / 2 for code in codes]

    def answer_of(whisper, guards, result, pending):
        assert len(result.probe) == 1 + len(codes) and 0 < sum(result.probe) < 1
        return real(whisper, guards, replace(result, probe=(0.0, *chances)), pending)

    monkeypatch.setattr(recording, "answer_of", answer_of)
    (outcome,) = shared.transcribe([three_windows], replace(GERMAN, vad=False))
    made = outcome.transcript
    assert (made.language, made.language_probability) == ("de", None)
    assert [(w.code, w.message) for w in made.warnings] == (
        [
            (
                "other_language",
                f"{told}: this sounds like French (0.96) and was decoded as German; --language fr decodes it "
                "as such",
            )
        ]
        if told
        else []
    )


@pytest.mark.parametrize("language", [None, "auto", "Auto"])
def test_a_language_is_detected_unless_it_is_given(shared, recordings, language) -> None:
    (outcome,) = shared.transcribe(recordings[:1], Options(language=language))
    made = outcome.transcript
    assert made is not None and made.language in folders.CODES
    assert made.language_probability is not None and 1 / 3 <= made.language_probability <= 1


@pytest.mark.parametrize("given", ["fr,de", "French, German", "de,fr,de"])
def test_of_several_languages_the_one_that_is_heard_is_taken(shared, recordings, given) -> None:
    """The made-up model hears something in every window; what is not listed has no chance."""
    (free,) = shared.transcribe(recordings[:1])
    (outcome,) = shared.transcribe(recordings[:1], Options(language=given))
    made = outcome.transcript
    assert made is not None and made.language in ("fr", "de")
    assert made.language_probability is not None and 0 <= made.language_probability <= 1
    if free.transcript.language in ("fr", "de"):
        assert free.transcript.language == made.language
    with pytest.raises(UsageError, match="unknown language 'xx'"):
        shared.transcribe(recordings[:1], Options(language="fr,xx"))


def test_what_is_left_out_of_a_language_is_a_warning(shared, recordings) -> None:
    (outcome,) = shared.transcribe(recordings[:1], Options(language="de-AT"))
    assert outcome.transcript is not None and outcome.transcript.language == "de"
    assert [w.message for w in outcome.transcript.warnings if w.code == "language"] == [
        "language de-AT: taken as de (German); models know no regions"
    ]


def test_a_draft_is_off_in_languages_that_it_was_not_made_for(whisper, recordings) -> None:
    english = replace(whisper, pair=replace(whisper.pair, draft_languages=frozenset({"en"})))
    one = transcriber(english)
    for language, drafts in (("en", True), ("de", False)):
        (outcome,) = one.transcribe(recordings[:1], Options(language=language))
        assert outcome.transcript is not None
        assert bool(outcome.transcript.stats["drafted"]) is drafts


@pytest.mark.parametrize("language", [None, "auto", "en", "English", "EN", "en-US"])
def test_the_draft_is_chosen_by_the_language_however_it_is_written(monkeypatch, language) -> None:
    chosen: list[Pair] = []

    def loaded(pair, device, **options):
        chosen.append(pair)
        raise KeyboardInterrupt  # far enough

    monkeypatch.setattr(transcriber_module, "load", loaded)
    with pytest.raises(KeyboardInterrupt):
        Transcriber.load(language=language, device="cpu")
    assert chosen[0].draft == "distil-whisper/distil-large-v3.5"


# Prompts and other options


def prompt_of(one: Transcriber, path: str, options: Options) -> tuple[int, ...]:
    (outcome,) = one.transcribe([path], replace(options, keep_encoder_states=True))
    return outcome.decoded[0].result.request.prompt


def test_an_initial_prompt_stands_before_every_window(shared, three_windows) -> None:
    options = replace(GERMAN, initial_prompt="Zoë", vad=False, keep_encoder_states=True)
    (outcome,) = shared.transcribe([three_windows], options)
    ids = shared.whisper.tokenizer.encode(" Zoë", add_special_tokens=False)
    assert len(outcome.decoded) == 3
    for decoded in outcome.decoded:
        prompt = decoded.result.request.prompt
        assert prompt[: len(ids) + 1] == (shared.whisper.tokens.previous, *ids)
        assert decoded.result.request.hint == ()  # a prompt is searched in any case


def test_a_long_prompt_keeps_its_end(shared, recordings) -> None:
    """Half of the positions less one, as openai/whisper: 223 of 448, here 19 of 40."""
    text = "".join(chr(97 + n % 26) for n in range(100))
    prompt = prompt_of(shared, recordings[0], replace(GERMAN, initial_prompt=text))
    ids = shared.whisper.tokenizer.encode(text, add_special_tokens=False)
    assert prompt[1:20] == tuple(ids[-19:])
    assert prompt[20] == shared.whisper.tokens.start
    (long,) = shared.transcribe([recordings[0]], replace(GERMAN, initial_prompt=text))
    (notice,) = [n for n in long.transcript.warnings if n.code == "cut_prompt"]
    assert notice.message.startswith(
        "the prompt has 100 characters, and the model has read the last 19 "
    )
    (whole,) = shared.transcribe([recordings[0]], replace(GERMAN, initial_prompt=text[-19:]))
    assert not [n for n in whole.transcript.warnings if n.code == "cut_prompt"]


def test_options_that_the_model_cannot_serve_are_refused_at_once(whisper, shared) -> None:
    bare = replace(whisper.tokens, languages={}, tasks={}, previous=None)
    english = transcriber(replace(whisper, tokens=bare))
    made = replace(whisper.tokens, made_for=frozenset({"en"}))  # as of distilled models
    distilled = transcriber(replace(whisper, tokens=made))
    for one, options, message in (
        (shared, Options(language="klingon"), "does not know Klingon"),
        (shared, Options(gamma=9), "gamma 9 is more than the 3"),
        (shared, Options(initial_prompt="a <|endoftext|> b"), "special token"),
        (english, Options(language="de"), "knows English only; use large$"),
        (english, Options(task="translate"), "translate: .* knows English only; use large$"),
        (english, Options(initial_prompt="names"), "no prompt"),
        (distilled, Options(language="de"), "knows English only; use large$"),
        (distilled, Options(task="translate"), "translate: .* knows English only; use large$"),
    ):
        with pytest.raises(UsageError, match=message):
            one.transcribe(["never opened"], options)  # not even iterated


# What is told, what is kept


def test_the_hook_hears_of_every_window(whisper, three_windows) -> None:
    one, seen = transcriber(whisper, batch=2), []
    options = replace(GERMAN, vad=False)
    list(one.transcribe([three_windows], options))
    (outcome,) = one.transcribe([three_windows], options, seen.append)
    assert [p.source for p in seen] == [three_windows] * 3
    assert [p.total_s for p in seen] == [80.0] * 3
    assert seen[0].done_s > 0 and seen[-1].done_s == 80.0
    assert [p.done_s for p in seen] == sorted(p.done_s for p in seen)
    assert outcome.transcript is not None
    told = sorted((s.start_sample, s.tokens) for p in seen for s in p.segments)
    assert told == sorted((s.start_sample, s.tokens) for s in outcome.transcript.segments)
    # Statistics are of this call alone, not of the one before.
    assert seen[-1].stats.emitted <= outcome.transcript.stats["tokens"]


def harsh(whisper, guards, result, pending):
    """The second window takes all tries, so the third ends before it."""
    again = result.request.tag.window.index == 1
    return judged(result, Judgement.RETRY if again else Judgement.KEEP, "planted")


def test_a_hook_hears_the_text_in_order(whisper, three_windows) -> None:
    one = transcriber(whisper, batch=3)
    told: list[Segment] = []

    def read(progress: Progress) -> None:
        told.extend(progress.spoken)

    options = replace(GERMAN, vad=False, guards=Guards(temperatures=(0.0, 0.2, 0.4)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "answer_of", harsh)
        (outcome,) = one.transcribe([three_windows], options, read)
    assert outcome.transcript is not None
    assert [s.tokens for s in told] == [s.tokens for s in outcome.transcript.segments]


@pytest.mark.parametrize("words", [False, True])
def test_streamed_segments_are_those_of_the_transcript(whisper, three_windows, words) -> None:
    guards = Guards(temperatures=(0.0, 0.2, 0.4))
    options = replace(GERMAN, vad=False, guards=guards, words=words)
    one = transcriber(whisper, batch=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "answer_of", harsh)
        stream = one.stream(three_windows, options)
        first = next(stream)
        assert stream.transcript is None, "it comes before the end"
        told = [first, *stream]
        (outcome,) = one.transcribe([three_windows], options)
    assert tuple(told) == stream.transcript.segments == outcome.transcript.segments
    assert all((segment.words is not None) is words for segment in told)


def test_a_stream_that_is_left_leaves_nothing_behind(whisper, three_windows) -> None:
    one = transcriber(whisper, batch=3)
    held = one.stream(three_windows, replace(GERMAN, vad=False))
    next(held)
    assert not one.engine.idle
    held.close()
    assert one.engine.idle and list(held) == [] and held.transcript is None


def test_a_stream_raises_its_errors(shared, three_windows) -> None:
    with pytest.raises(AudioError, match="no such file"):
        next(shared.stream("nowhere.wav"))
    first, second = (shared.stream(three_windows, replace(GERMAN, vad=False)) for _ in range(2))
    with pytest.raises(UsageError, match="one runs at a time"):
        list(zip(first, second, strict=True))
    first.close()
    assert list(second) and second.transcript is not None


def test_what_the_guards_could_not_save_carries_a_warning(shared, three_windows) -> None:
    guards = Guards(None, -0.01, None, (0.0, 0.4))  # no text of random weights is so probable
    options = replace(GERMAN, vad=False, guards=guards)
    (outcome,) = shared.transcribe([three_windows], options)
    made = outcome.transcript
    assert made is not None
    (notice,) = made.warnings
    assert notice.code == "doubtful_text"
    assert "3 places, 80.0 s in all: 0.0 to 30.0 s (improbable (mean log-" in notice.message
    assert "name the language, or use a larger model" in notice.message
    assert all("improbable" in segment.doubt for segment in made.segments)
    assert all("improbable" in span.reason for span in made.coverage.spans)
    assert Transcript.from_dict(json.loads(json.dumps(made.to_dict()))).segments == made.segments
    (calm,) = shared.transcribe([three_windows], replace(GERMAN, vad=False))
    assert calm.transcript is not None and calm.transcript.warnings == ()
    assert all(segment.doubt is None for segment in calm.transcript.segments)


def test_segments_last_from_their_first_to_their_last_word(shared, recordings) -> None:
    (plain,) = shared.transcribe([recordings[1]], GERMAN)
    (timed,) = shared.transcribe([recordings[1]], replace(GERMAN, words=True))
    assert plain.transcript is not None and timed.transcript is not None
    assert timed.transcript.text == plain.transcript.text
    end = 0
    for segment in timed.transcript.segments:
        assert segment.words
        assert segment.start_sample == segment.words[0].start_sample >= end
        assert segment.end_sample == max(word.end_sample for word in segment.words)
        end = segment.end_sample
    assert end <= timed.transcript.sample_count
    for render in (srt, vtt, tsv, txt):
        assert render(timed.transcript)


def test_a_transcript_explains_itself_in_json(shared, recordings, monkeypatch) -> None:
    whole(monkeypatch)
    (outcome,) = shared.transcribe(recordings[1:2], GERMAN)
    assert outcome.transcript is not None
    data = json.loads(json.dumps(outcome.transcript.to_dict()))
    settings, stats = data["settings"], data["stats"]
    assert (settings["model"], settings["draft"]) == ("target", "draft")
    assert (settings["gamma"], settings["batch_size"], settings["device"]) == (3, 4, "cpu")
    assert settings["versions"]["torch"] and settings["guards"] is None
    assert settings["vad"] is True and settings["windows"] is not None
    told = settings_of(shared.context, Options(vad=False, guards=Guards()))
    assert told["vad"] is False and told["windows"] is None
    assert told["guards"]["temperatures"][0] == 0.0
    assert stats["acceptance_rate"] == stats["accepted"] / stats["drafted"]
    assert stats["windows"] == 2 and outcome.wall_s > 0
