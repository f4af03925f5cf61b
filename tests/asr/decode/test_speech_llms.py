"""Speech LLMs through the whole pipeline: the tokens of transformers' `generate` of the unmodified model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from forescribe.asr.audio.reading import read_audio
from forescribe.asr.decode.options import Decoded, Options
from forescribe.asr.decode.transcriber import Transcriber
from tests.asr.model import speech_llms

FAMILIES = tuple(speech_llms.CLASSES)
MEMO = "samples/memo.flac"
ENGINES = ("modules", "lean", pytest.param("native", marks=pytest.mark.native))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("speech-llms")
    made = {}
    for family in FAMILIES:
        made[family] = speech_llms.write(root / family, family)
        made[f"{family}-draft"] = speech_llms.write(
            root / f"{family}-draft", family, seed=1, near=made[family]
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
        return {
            "input_ids": torch.tensor([ids]),
            "input_features": features["input_features"],
        }
    if family == "glmasr":
        request = {}
    return dict(processor.apply_transcription_request([samples], **request))


def generated(folder: Path, family: str, windows: Sequence[Decoded]) -> list[tuple[int, ...]]:
    """The answers of transformers' `generate`, window by window."""
    model = getattr(transformers, speech_llms.CLASSES[family]).from_pretrained(folder).eval()
    processor, audio = transformers.AutoProcessor.from_pretrained(folder), read_audio(MEMO)
    answers = []
    for window in windows:
        inputs = asked(family, processor, audio[window.start : window.end], language="en")
        prompt = inputs["input_ids"].shape[1]
        assert tuple(inputs["input_ids"][0].tolist()) == window.result.request.prompt
        written = len(window.result.tokens)
        answer = model.generate(**inputs, do_sample=False, max_new_tokens=written)
        answers.append(tuple(answer[0, prompt:].tolist()))
    return answers


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("engine", ENGINES)
def test_tokens_are_those_of_generate(folders, family, engine) -> None:
    plain = windows_of(loaded(folders[family], engine=engine))
    assert len(plain) == 3 and all(len(window.result.tokens) > 20 for window in plain)
    assert [w.result.tokens for w in plain] == generated(folders[family], family, plain)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("engine", ENGINES)
def test_drafts_and_batches_change_nothing(folders, family, engine) -> None:
    target, draft = folders[family], folders[f"{family}-draft"]
    plain = [w.result.tokens for w in windows_of(loaded(target, batch=1, engine=engine))]
    for gamma, batch in ((3, 1), (3, 3), (None, 2)):
        drafting = loaded(target, draft=str(draft), gamma=gamma, batch=batch, engine=engine)
        windows = windows_of(drafting)
        assert [w.result.tokens for w in windows] == plain
        if gamma:
            assert 0 < sum(w.result.accepted for w in windows)
            assert all(w.result.draft_error is None for w in windows)
