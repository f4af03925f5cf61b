"""Speech LLMs through the whole pipeline: the tokens of transformers' `generate` of the unmodified model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from forescribe.asr.audit import audit
from forescribe.asr.decode.driver import Session
from forescribe.asr.decode.options import Guards, Options
from forescribe.asr.decode.results import Decoded
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.errors import ModelError, UsageError
from forescribe.asr.live.events import Completed, Event, LiveOptions
from forescribe.asr.live.stream import LiveStream
from forescribe.asr.model import loading
from forescribe.asr.model.speech_llm import SpeechLLM
from forescribe.asr.words.aligning import Spoken, align
from forescribe.asr.words.assembly import assemble_words
from tests.asr.model import folders as whispers
from tests.asr.model import speech_llms
from tests.asr.recordings import cut
from tests.speculative.drafters.heads import published

from .ways import SOON, Ear, running

FAMILIES = tuple(speech_llms.CLASSES)
MEMO = cut("memo.flac", (0, 51.6))
"""Two windows of 25 s."""
RATE = 16_000


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("speech-llms")
    made = {}
    for family in FAMILIES:
        # Another Granite writes its placeholder, which transformers then reads as token 0.
        seed = 6 if family == "granite_speech" else 1
        made[family] = speech_llms.write(root / family, family, seed=seed)
        made[f"{family}-draft"] = speech_llms.write(
            root / f"{family}-draft", family, seed=2, near=made[family]
        )
    return made


def loaded(folder: Path, **arguments: Any) -> Transcriber:
    return Transcriber.load(str(folder), device="cpu", **{"batch": 3, "gamma": 0, **arguments})


KEPT = Options(language="en", keep_encoder_states=True)


def windows_of(transcriber: Transcriber, options: Options = KEPT) -> Sequence[Decoded]:
    (outcome,) = transcriber.transcribe([MEMO], options)
    assert outcome.error is None
    return outcome.decoded


def asked(family: str, processor: Any, samples: np.ndarray, **request: Any) -> dict[str, Any]:
    """What transformers' own processor makes of a window."""
    if family == "granite_speech":
        text = processor.tokenizer.apply_chat_template(
            [
                {
                    "role": "user",
                    "content": "<|audio|>can you transcribe the speech into a written format?",
                }
            ],
            tokenize=False,
            add_generation_prompt=True,
        )
        return dict(processor(text=text, audio=samples, return_tensors="pt"))
    if family == "voxtral":  # its own needs mistral-common: docs/speech-llms.md
        tokens = processor.tokenizer
        marks = ["<s>", "[INST]", "[BEGIN_AUDIO]", *["[AUDIO]"] * 375, "[/INST]"]
        ids = tokens.convert_tokens_to_ids(marks)
        ids += tokens.encode(f"lang:{request['language']}", add_special_tokens=False)
        ids.append(tokens.convert_tokens_to_ids("[TRANSCRIBE]"))
        padded = np.pad(samples, (0, 480_000 - len(samples)))
        features = processor.feature_extractor(padded, sampling_rate=16_000, return_tensors="pt")
        return {"input_ids": torch.tensor([ids]), "input_features": features["input_features"]}
    if family == "glmasr":
        request = {}
    return dict(processor.apply_transcription_request([samples], **request))


def generated(folder: Path, family: str, windows: Sequence[Decoded]) -> list[tuple[int, ...]]:
    """The answers of transformers' `generate`, window by window."""
    model = getattr(transformers, speech_llms.CLASSES[family]).from_pretrained(folder).eval()
    processor, audio = transformers.AutoProcessor.from_pretrained(folder), MEMO[0]
    answers = []
    for window in windows:
        inputs = asked(family, processor, audio[window.start : window.end], language="en")
        prompt = inputs["input_ids"].shape[1]
        assert tuple(inputs["input_ids"][0].tolist()) == window.result.request.prompt
        written = len(window.result.tokens)
        answer = model.generate(**inputs, do_sample=False, max_new_tokens=written)
        answers.append(tuple(answer[0, prompt:].tolist()))
    return answers


GRID = [
    ("qwen3_asr", "modules"),
    ("qwen3_asr", "lean"),
    pytest.param("qwen3_asr", "native", marks=pytest.mark.native),
    *(pytest.param(family, "lean", marks=pytest.mark.nightly) for family in FAMILIES[1:]),
    *(pytest.param(family, "native", marks=pytest.mark.native) for family in FAMILIES[1:]),
]


@pytest.mark.parametrize(("family", "engine"), GRID)
def test_tokens_are_those_of_generate_whatever_drafts_and_batches(folders, family, engine) -> None:
    target, draft = folders[family], folders[f"{family}-draft"]
    plain = windows_of(loaded(target, batch=1, engine=engine))
    tokens = [window.result.tokens for window in plain]
    assert len(plain) == 2 and all(len(own) > 10 for own in tokens)
    assert tokens == generated(target, family, plain)
    for gamma, batch in ((0, 3), (3, 1), (3, 3), (None, 2)):
        named = "none" if gamma == 0 else str(draft)
        windows = windows_of(loaded(target, draft=named, gamma=gamma, batch=batch, engine=engine))
        assert [w.result.tokens for w in windows] == tokens
        assert all(w.result.draft_error is None for w in windows)
        assert not gamma or 0 < sum(w.result.accepted for w in windows)


def test_a_head_on_the_states_changes_nothing(folders, tmp_path) -> None:
    target = speech_llms.write(tmp_path / "target", layers=8)
    model = loaded(target).whisper
    torch.manual_seed(5)
    config, kept = model.tower.config, range(0, model.tower.config.vocab_size, 2)
    config.name_or_path = "target"
    head = published.save(tmp_path / "head", *published.eagle3(config, kept, inner=24))
    plain = windows_of(loaded(target, batch=1))
    drafting = windows_of(loaded(target, draft=str(head), gamma=3))
    assert [w.result.tokens for w in drafting] == [w.result.tokens for w in plain]
    assert all(w.result.draft_error is None and w.result.drafted for w in drafting)
    with pytest.raises(ModelError, match="head reads layer 2"):
        loaded(folders["qwen3_asr"], draft=str(head), gamma=3)


def test_drafts_are_copied_from_a_text(folders) -> None:
    plain = windows_of(loaded(folders["qwen3_asr"]))
    model = loaded(folders["qwen3_asr"], draft="none", gamma=4)
    text = model.whisper.tokenizer.text([t for w in plain for t in w.tokens])
    windows = windows_of(model, replace(KEPT, hint=text))
    assert [w.result.tokens for w in windows] == [w.result.tokens for w in plain]


def test_the_language_is_the_one_that_the_answer_would_name(folders) -> None:
    model = loaded(folders["qwen3_asr"]).whisper
    assert isinstance(model, SpeechLLM)
    audio = MEMO[0]
    windows = [audio[:160_000], audio[200_000:400_000]]
    encoded = model.encode(*model.features(windows))
    codes = ("de", "en", "fi", "fr")
    for states, (code, probability) in zip(
        encoded, model.detect_language(encoded, [codes] * 2), strict=True
    ):
        names = {c: f"language {model.family.languages[c]}<asr_text>" for c in codes}
        texts = {c: model.tokenizer.encode(n, add_special_tokens=False) for c, n in names.items()}
        prompt, own = model.prompt(states, None, "transcribe", timestamps=False)
        left, logprob = dict(texts), 0.0
        for place in range(max(map(len, texts.values()))):
            if len(left) == 1:
                break
            written = next(iter(left.values()))[:place]
            logits = model_logits(model, own, (*prompt, *written))
            best = max({t[place] for t in left.values()}, key=lambda token: float(logits[token]))
            logprob += float(logits.log_softmax(-1)[best])
            left = {c: t for c, t in left.items() if t[place] == best}
        assert [code] == list(left)
        assert probability == pytest.approx(np.exp(logprob), rel=1e-3)


def test_a_language_that_nobody_names_is_not_told(folders) -> None:
    transcriber = loaded(folders["voxtral"])
    (outcome,) = transcriber.transcribe([MEMO], Options())
    assert outcome.transcript.text and not outcome.transcript.warnings
    assert (outcome.transcript.language, outcome.transcript.language_probability) == (None, None)
    with pytest.raises(UsageError, match="names no language that it hears"):
        transcriber.detect_language(MEMO)


def model_logits(model: SpeechLLM, states: Any, tokens: tuple[int, ...]) -> torch.Tensor:
    """By the unmodified model, behind the last token."""
    embeds = model.target.get_input_embeddings()(torch.tensor([tokens])).detach().clone()
    embeds[0, states.at : states.at + len(states.target)] = states.target
    with torch.inference_mode():
        logits: torch.Tensor = model.target(inputs_embeds=embeds).logits[0, -1]
    return logits


def test_a_prompt_and_terms_are_the_context_of_the_processor(folders) -> None:
    transcriber = loaded(folders["qwen3_asr"])
    options = replace(KEPT, initial_prompt="Names: Zoë", terms=("Ferdinand", "Krasnodar"))
    processor = transformers.AutoProcessor.from_pretrained(folders["qwen3_asr"])
    audio = MEMO[0]
    for window in windows_of(transcriber, options):
        theirs = processor.apply_transcription_request(
            [audio[window.start : window.end]],
            language="en",
            prompt="Names: Zoë Ferdinand, Krasnodar",
        )
        assert window.result.request.prompt == tuple(theirs["input_ids"][0].tolist())


def test_words_are_timed_by_the_attention_of_a_whisper(folders) -> None:
    bundled = loaded(Path("tiny.en"), beam_size=1)
    (outcome,) = bundled.transcribe([MEMO], Options(words=True, keep_encoder_states=True))
    window, model = outcome.decoded[0], loaded(folders["qwen3_asr"]).whisper
    own = [s for s in outcome.transcript.segments if s.window == 0]
    text = "".join(segment.text for segment in own).strip()
    tokens = tuple(model.tokenizer.encode(text, add_special_tokens=False))
    samples = MEMO[0][window.start : window.end]
    times, pauses = align(model, Spoken(samples, "en", tokens, (0.0,) * len(tokens)))
    (words,) = assemble_words(
        model.tokenizer, "en", [(tokens, text)], times, pauses, 0, length=len(samples)
    )
    theirs = [word for segment in own for word in segment.words]
    assert len(words) == len(theirs) > 50
    late = [abs(a.start_sample - b.start_sample) for a, b in zip(words, theirs, strict=True)]
    assert max(late) <= 320  # a step of the alignment


def test_words_without_a_whisper_for_their_language_have_no_times(folders) -> None:
    options = Options(language="de", words=True)
    (outcome,) = loaded(folders["qwen3_asr"]).transcribe([MEMO], options)
    notices = {notice.code: notice.message for notice in outcome.transcript.warnings}
    assert "times of words in German are found by openai/whisper-tiny" in notices["words_untimed"]
    assert outcome.transcript.text and not any(s.words for s in outcome.transcript.segments)


def test_one_whisper_times_words_in_all_languages_that_it_can_read(
    folders, tmp_path, monkeypatch
) -> None:
    small = whispers.write(tmp_path / "whisper", max_target_positions=60)  # English, German, French
    monkeypatch.setattr(loading, "ALIGNER", small)
    model, samples = loaded(folders["voxtral"]).whisper, MEMO[0][: 5 * RATE]
    assert model.aligner("de") is model.aligner("fr") is model.aligner("")
    tokens = tuple(model.tokenizer.encode("Moien Lëtzebuerg", add_special_tokens=False))

    def times(language: str) -> Any:
        return align(model, Spoken(samples, language, tokens, (0.0,) * len(tokens)))[0]

    assert times("lb") == times("de")  # written alike
    whisper = model.aligner("de")
    ((heard, _),) = whisper.detect_language(whisper.encode(*whisper.features([samples])))
    assert times("") == times(heard)
    with pytest.raises(ModelError, match="does not know Korean"):
        times("ko")
    monkeypatch.setattr(loading, "ALIGNER", tmp_path / "nowhere")
    model = loaded(folders["voxtral"]).whisper
    with pytest.raises(ModelError, match="words whose language is not named are found by"):
        times("")


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        (
            "qwen3_asr",
            {"beam_size": 5},
            "^beams: a Whisper model does that, and qwen3_asr is none$",
        ),
        ("qwen3_asr", {"task": "translate"}, "translate"),
        ("qwen3_asr", {"language": "eu"}, "eu"),
        ("qwen3_asr", {"initial_prompt": "<|im_end|>"}, "special token"),
        ("qwen3_asr", {"terms": ("a<|audio_pad|>b",)}, "special token"),
        ("qwen3_asr", {"terms": tuple(f"word{n}" for n in range(400))}, "has room for"),
        ("voxtral", {"terms": ("Krasnodar",)}, "terms"),
        ("glmasr", {"initial_prompt": "Krasnodar"}, "no place for other text"),
        ("granite_speech", {"language": "zh"}, "zh"),
        ("voxtral", {"language": "de,en"}, "which it hears"),
    ],
)
def test_what_a_model_does_not_do_is_refused(folders, family, options, message) -> None:
    with pytest.raises(UsageError, match=message):
        loaded(folders[family]).transcribe([MEMO], Options(**{"language": "en", **options}))


@pytest.mark.parametrize("steps", [3, 15])  # the target's encoder has steps of 5
def test_a_draft_that_hears_in_other_steps_is_refused(folders, tmp_path, steps) -> None:
    target = folders["granite_speech"]
    draft = shutil.copytree(target, tmp_path / "draft")
    stated = json.loads((draft / "config.json").read_text())
    stated |= {"downsample_rate": steps, "window_size": 15}
    (draft / "config.json").write_text(json.dumps(stated))
    config = transformers.AutoConfig.from_pretrained(draft)
    transformers.GraniteSpeechForConditionalGeneration(config).save_pretrained(draft)
    with pytest.raises(ModelError, match="its encoder does not hear in the steps of its target's"):
        loaded(target, draft=str(draft), gamma=2)


def test_drafts_of_other_models_are_refused(folders, tmp_path) -> None:
    with pytest.raises(ModelError, match="it is a voxtral, and its target a qwen3_asr"):
        loaded(folders["qwen3_asr"], draft=str(folders["voxtral"]), gamma=2)
    with pytest.raises(ModelError, match="openai/whisper|tiny.en|whisper"):
        loaded(folders["qwen3_asr"], draft="tiny.en", gamma=2)
    other = shutil.copytree(folders["qwen3_asr-draft"], tmp_path / "other")
    tokens = json.loads((other / "tokenizer.json").read_text())
    tokens["model"]["vocab"] |= {"zz": len(tokens["model"]["vocab"])}
    (other / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(ModelError, match="they have other tokens"):
        loaded(folders["qwen3_asr"], draft=str(other), gamma=2)
    (other / "tokenizer.json").rename(other / "tekken.json")
    with pytest.raises(ModelError, match="they have other tokens"):
        loaded(folders["qwen3_asr"], draft=str(other), gamma=2)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("processor_config.json", None, "no usable processor"),
        ("tokenizer.json", "{", "no usable processor"),
        ("model.safetensors", "", "cannot be loaded as a speech model"),
        ("adapter_config.json", "{}", "LoRA"),
        ("chat_template.jinja", None, "no usable processor: Cannot use apply_chat_template"),
        (
            "chat_template.jinja",
            speech_llms.QWEN_TEMPLATE.replace("<|audio_pad|>", ""),
            "its prompt has no place for audio",
        ),
        ("config.json", {"thinker_config": {}}, "take the repository of the same name with -hf"),
        (
            "config.json",
            {"quantization_config": {"quant_method": "gptq"}},
            "take the plain weights",
        ),
    ],
)
def test_a_damaged_folder_is_named(folders, tmp_path, name, content, message) -> None:
    folder = shutil.copytree(folders["qwen3_asr"], tmp_path / "damaged")
    if isinstance(content, dict):
        content = json.dumps(json.loads((folder / name).read_text()) | content)
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(ModelError, match=message):
        loaded(folder)


def test_a_session_and_a_live_stream_write_the_same(folders) -> None:
    transcriber, audio = loaded(folders["qwen3_asr"]), MEMO[0][: 20 * RATE]
    # Random weights write what the thresholds would reject, and then nothing would be guessed.
    keep = Guards(compression_ratio=None, logprob=None, no_speech=None, temperatures=(0.0,))
    options, ear = Options(language="en", guards=keep), Ear()
    with running(Session(transcriber.context)) as session:
        session.submit((audio, RATE), options, ear)
        uploaded = ear.outcome().transcript
        completed = list[Completed]()

        def tell(event: Event) -> None:
            completed.extend([event] if isinstance(event, Completed) else [])

        stream = LiveStream(session, LiveOptions(options), tell)
        for at in range(0, len(audio), 4_001):
            stream.feed(audio[at : at + 4_001])
        stream.finish()
        assert stream.wait(SOON)
    (live,) = completed
    assert live.transcript.text == uploaded.text and uploaded.text


@pytest.mark.parametrize("family", FAMILIES)
def test_replacements_find_words_in_any_vocabulary(folders, family) -> None:
    transcriber = loaded(folders[family])
    plain = windows_of(transcriber)
    text = transcriber.whisper.tokenizer.text(plain[0].tokens[:-1])
    letter = next(c for c in text if c.isascii() and c.isalnum())
    options = replace(KEPT, replacements=(f"/{letter}/ => Krasnodar",))
    (outcome,) = transcriber.transcribe([MEMO], options)
    assert outcome.error is None and "Krasnodar" in outcome.transcript.text
    told = [c for segment in outcome.transcript.segments for c in segment.corrections]
    assert told and all("Krasnodar" in correction.written for correction in told)


def test_redaction_leaves_no_place_of_a_longer_prompt(folders) -> None:
    (outcome,) = loaded(folders["qwen3_asr"]).transcribe([MEMO], replace(KEPT, redact=("email",)))
    assert outcome.error is None and outcome.transcript.text


def test_an_audit_compares_with_generate(folders, monkeypatch) -> None:
    model = loaded(folders["qwen3_asr"]).whisper
    (report,) = audit(model, [MEMO], KEPT, gamma=2, batch=2)
    assert report.error is None and not report.differences and report.windows == 2
    monkeypatch.setattr(SpeechLLM, "generated", lambda self, states, prompt, count: (1, 2, 3))
    (report,) = audit(model, [MEMO], KEPT, gamma=2, batch=2)
    assert [d.way for d in report.differences] == ["transformers"] * 2
