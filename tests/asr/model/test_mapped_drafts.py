"""An older Whisper drafts for large-v3: other token ids, other mel bins, an encoder of its own.

With made-up text tokens, and with the published tokenizers where they are (marker `data`). Tokens are
compared with transformers' `generate` of the target, and with decoding without drafts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizer

from forescribe.asr.decode.options import Options
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.asr.model.rules import whisper_rules
from forescribe.asr.model.whisper import LogMel, Whisper
from forescribe.speculative import Engine, Fixed, ModelDrafter, Request
from forescribe.speculative.device import choose
from forescribe.speculative.model_engines import ModelEngine, whisper_decoder
from forescribe.speculative.models.vocabularies import MappedVocabulary
from tests.asr import recordings
from tests.asr.decode.test_equality import first_pass

from . import large_v3, mapped_pairs
from .mapped_pairs import OLDER, V3

TOKENS, WINDOWS = 12, 6
PREVIOUS = (64, 65, 66, 67, 68)
KINDS = ((True, ()), (False, ()), (True, PREVIOUS), (False, PREVIOUS))


@pytest.fixture(scope="module", autouse=True)
def heard_whole() -> Iterator[None]:
    """A draft that is its target is accepted throughout, if it hears the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("forescribe.asr.model.whisper.HEARD_BEHIND", 1500)
        yield


@pytest.fixture(
    scope="module",
    params=["made up", pytest.param("published", marks=[pytest.mark.data, pytest.mark.nightly])],
)
def pair(request, tmp_path_factory) -> Pair:
    root = tmp_path_factory.mktemp("pair")
    if request.param == "published":
        newer, older = map(mapped_pairs.published, (V3, OLDER))
    else:
        for name in ("newer", "older"):
            (root / name).mkdir()
        newer = mapped_pairs.newer_files(root / "newer")
        older = mapped_pairs.older_files(root / "older")
    target = mapped_pairs.write_target(root / "target", newer, positions=80)
    return Pair(target, mapped_pairs.write_draft(root / "draft", target, older))


@pytest.fixture(scope="module")
def whisper(pair) -> Whisper:
    return load(pair, choose("cpu"), modules=True)


@functools.cache
def windows() -> list[Any]:
    generator = torch.Generator().manual_seed(3)
    lengths = [16_000 * (5 + 4 * n) for n in range(WINDOWS)]
    return [(0.1 * torch.randn(length, generator=generator)).numpy() for length in lengths]


def test_the_draft_hears_80_bins_of_the_same_samples(whisper) -> None:
    (draft,) = whisper.drafts
    assert not whisper.shared_encoder and draft.features == 1 and draft.token_map is not None
    context = Transcriber(whisper, gamma=4).context
    assert [len(mel.filters) for mel in context.whisper.mels] == [128, 80]
    features = context.whisper.features(windows()[:2])
    assert [tuple(f.shape) for f in features] == [(2, 128, 3000), (2, 80, 3000)]
    for states in whisper.encode(*features):
        (heard,) = states.drafts
        difference = (heard - states.target).abs().mean() / states.target.std()
        assert heard.shape == states.target.shape and 0 < float(difference) < 0.1


def requests(whisper: Whisper, language: str, task: str) -> list[Request]:
    context = Transcriber(whisper, gamma=0).context
    encoded = whisper.encode(*context.whisper.features(windows()))
    return [
        Request(
            whisper.tokens.prompt(language, task, timestamps=times, previous=previous),
            encoder_states=encoded[i],
            max_new_tokens=TOKENS,
            tag=i,
        )
        for i in range(WINDOWS)
        for times, previous in [KINDS[i % len(KINDS)]]
    ]


@functools.cache
def generated(folder: Path, language: str, task: str) -> dict[int, list[int]]:
    """What transformers writes for each window."""
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    before = WhisperTokenizer.from_pretrained(folder).convert_tokens_to_ids("<|startofprev|>")
    mel = LogMel(WhisperFeatureExtractor.from_pretrained(folder))
    found = {}
    for i, samples in enumerate(windows()):
        times, previous = KINDS[i % len(KINDS)]
        head = (before, *previous) if previous else ()
        found[i] = first_pass(
            model,
            mel([samples]),
            len(head) + (3 if times else 4),
            return_timestamps=times,
            language=language,
            task=task,
            max_new_tokens=TOKENS,
            **({"prompt_ids": torch.tensor(head)} if head else {}),
        )
    return found


@pytest.mark.parametrize(
    ("language", "task", "engine"),
    [
        ("yue", "transcribe", ModelEngine.MODULES),
        ("yue", "transcribe", ModelEngine.LEAN),
        pytest.param("yue", "transcribe", ModelEngine.NATIVE, marks=pytest.mark.native),
        ("en", "transcribe", ModelEngine.LEAN),
        pytest.param("fr", "translate", ModelEngine.NATIVE, marks=pytest.mark.native),
    ],
)
def test_tokens_equal_generate_and_drafts_are_kept_as_those_of_the_target_itself(
    whisper, pair, engine, language, task
) -> None:
    """Over several rounds, three rows at a time, with timestamps and previous text in the same batch."""
    (draft,) = whisper.drafts
    rules = whisper_rules(whisper.target.generation_config, whisper.target.config)
    decoder = replace(draft, engine=engine).decoder()
    assert isinstance(decoder, MappedVocabulary)

    def target() -> Any:
        return whisper_decoder(whisper.target, lambda states: states.target, engine=engine)

    made, same = (
        Engine(
            target(),
            ModelDrafter(model),
            batch=3,
            eos=whisper.tokens.ends,
            schedule=Fixed(4),
            processors=rules,
        )
        for model in (decoder, target())
    )
    results = {r.request.tag: r for r in made.run(requests(whisper, language, task))}
    assert len(list(same.run(requests(whisper, language, task)))) == len(results)
    assert not made.faults and not same.faults
    expected = generated(Path(pair.target), language, task)
    assert {tag: list(r.tokens) for tag, r in results.items()} == expected
    assert all(r.rounds > 1 for r in results.values())
    assert made.stats.accepted >= 0.9 * same.stats.accepted > 0


@pytest.mark.parametrize("gamma", [5, None])
def test_transcripts_are_those_without_drafts(whisper, tmp_path, gamma) -> None:
    """With word times, of recordings in one batch."""
    files = recordings.write(tmp_path, (4, 9, 34), seed=1, noise=(0.01, 0.1))
    drafting, plain = (Transcriber(whisper, batch=3, gamma=g) for g in (gamma, 0))
    options = Options(language="yue", vad=False, words=True, guards=None)
    for _ in range(2):  # `auto` drafts after some rounds
        found = []
        for transcriber in (drafting, plain):
            outcomes = {o.name: o for o in transcriber.transcribe(files, options)}
            assert all(o.error is None for o in outcomes.values())
            found.append({name: o.transcript.segments for name, o in outcomes.items()})
        assert texts(found[0]) == texts(found[1]) and any(texts(found[1]).values())
    stats = drafting.engine.stats
    # The token rules are not applied to drafts here. `auto` need not try a draft of the target's size, which
    # has to hear every window first.
    assert gamma is None or stats.accepted > 0.5 * stats.drafted > 0


def texts(found: dict[str, Any]) -> dict[str, list[Any]]:
    return {
        name: [
            (s.tokens, s.start_sample, [(w.text, w.start_sample, w.end_sample) for w in s.words])
            for s in segments
        ]
        for name, segments in found.items()
    }


def test_without_a_network_a_missing_draft_for_other_languages_is_named_and_left_out(
    pair, monkeypatch, caplog
) -> None:
    monkeypatch.setattr("forescribe.asr.model.loading.find", lambda name: None)
    english = replace(pair, draft_languages=frozenset({"en"}), rest="openai/whisper-tiny")
    loaded = load(english, choose("cpu"), network=False)
    assert len(loaded.drafts) == 1 and loaded.pair.rest is None
    assert "other languages than en are decoded without drafts" in caplog.text
    assert "hf download openai/whisper-tiny" in caplog.text


@pytest.fixture(scope="module")
def routed(pair, tmp_path_factory) -> Whisper:
    """The older draft for English; for all other languages one with the target's encoder, ids and bins."""
    folder = tmp_path_factory.mktemp("rest") / "rest"
    near = large_v3.write_shared_encoder(folder, Path(pair.target), Path(pair.target))
    given = replace(pair, draft_languages=frozenset({"en"}), rest=near)
    return load(given, choose("cpu"))


def test_a_run_of_several_languages_writes_what_plain_decoding_writes(
    routed, tmp_path, monkeypatch
) -> None:
    """Languages are detected window by window; each has its own draft."""
    files = recordings.write(tmp_path, (4, 9, 34), seed=1, noise=(0.01, 0.1))
    heard = iter([("en", 0.99), ("yue", 0.99), ("en", 0.99), ("fr", 0.99)] * 2)
    monkeypatch.setattr(
        Whisper, "detect_language", lambda self, encoded, among=None: [next(heard) for _ in encoded]
    )
    found = []
    for gamma in (4, 0):
        transcriber = Transcriber(routed, batch=3, gamma=gamma)
        options = Options(vad=False, guards=None, keep_encoder_states=True)
        outcomes = list(transcriber.transcribe(files, options))
        windows = [(d.language, d.result) for o in outcomes for d in o.decoded]
        assert all(o.error is None for o in outcomes)
        found.append(sorted((language, result.tokens) for language, result in windows))
        if gamma:
            assert {language for language, _ in windows} == {"en", "fr", "yue"}
            assert all(result.drafted for _, result in windows)
    assert found[0] == found[1]
