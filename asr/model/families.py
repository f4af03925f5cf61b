"""The families of speech LLMs: how each hears a window, and what it is asked.

All are models of transformers that put audio embeddings into the prompt of a text model, in place of a
placeholder that is repeated. Features, embeddings and prompts are made by their own processors and modules;
what differs between families is written here once. Sources: their model cards, and transformers 5.23
`models/{qwen3_asr,voxtral,glmasr,granite_speech}`. Knows nothing of decoding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..formats.transcript_parts import SAMPLE_RATE
from .languages import LANGUAGES

Samples = NDArray[np.float32]
Inputs = Mapping[str, Tensor]
"""What an encoder reads of one window, by the names of its arguments."""

NO_AUDIO = np.zeros(SAMPLE_RATE, np.float32)
"""Stands for a recording in a prompt that is written without one."""


class Family(ABC):
    """What the pipeline has to know of a family."""

    model: ClassVar[str]
    """Its class in transformers."""

    detects = False
    """Whether it writes the language before a text whose language its prompt does not name."""

    conditions = False
    """Whether its prompt has a place for other text: names and spellings."""

    @property
    @abstractmethod
    def languages(self) -> Mapping[str, str]:
        """What its prompts call each language that it knows (ISO 639-1, or 639-3)."""

    def processor(self, folder: Path) -> Any:
        """What has its `tokenizer` and makes its features."""
        from transformers import AutoProcessor

        return AutoProcessor.from_pretrained(folder)

    @abstractmethod
    def inputs(self, processor: Any, samples: Samples) -> Inputs:
        """What its encoder reads of a window [N]."""

    def embeddings(self, model: Any, inputs: Inputs) -> Tensor:
        """The embeddings `[n, D]` of a window."""
        heard: Tensor = model.get_audio_features(**inputs, return_dict=True).pooler_output
        return heard

    @abstractmethod
    def prompt(self, processor: Any, language: str | None, context: str) -> list[int]:
        """The tokens of a prompt with one placeholder; `language` None is left to the model."""


class Qwen3ASR(Family):
    """Qwen3-ASR: an answer begins with `language English<asr_text>`, or with those words in its prompt.
    Other text is the system's turn."""

    model = "Qwen3ASRForConditionalGeneration"
    detects = conditions = True

    @property
    def languages(self) -> Mapping[str, str]:
        from transformers.models.qwen3_asr.processing_qwen3_asr import LANGUAGE_CODE_TO_NAME

        named = {**LANGUAGE_CODE_TO_NAME, "tl": LANGUAGE_CODE_TO_NAME["fil"]}  # as Whisper's code
        return {code: name for code, name in named.items() if code in LANGUAGES}

    def inputs(self, processor: Any, samples: Samples) -> Inputs:
        return _masked(processor, samples, padding=True)

    def prompt(self, processor: Any, language: str | None, context: str) -> list[int]:
        (text,) = processor.apply_transcription_request(
            [NO_AUDIO],
            language=None if language is None else self.languages[language],
            prompt=context or None,
            tokenize=False,
        )
        return _tokens(processor, text)


class GlmAsr(Family):
    """GLM-ASR: one instruction. It writes the language that it hears."""

    model = "GlmAsrForConditionalGeneration"
    languages: Mapping[str, str] = {"en": "", "zh": ""}

    def inputs(self, processor: Any, samples: Samples) -> Inputs:
        return _masked(processor, samples, return_tensors="pt")

    def prompt(self, processor: Any, language: str | None, context: str) -> list[int]:
        (text,) = processor.apply_transcription_request([NO_AUDIO], tokenize=False)
        return _tokens(processor, text)


class Voxtral(Family):
    """Voxtral: Whisper's encoder over 30 s, and marks in place of an instruction: the tokens of mistral-
    common's `encode_transcription`, which is needed to read its tekken.json."""

    model = "VoxtralForConditionalGeneration"
    languages: Mapping[str, str] = {code: code for code in LANGUAGES}

    def processor(self, folder: Path) -> Any:
        from transformers import AutoFeatureExtractor, AutoTokenizer

        return SimpleNamespace(
            feature_extractor=AutoFeatureExtractor.from_pretrained(folder),
            tokenizer=AutoTokenizer.from_pretrained(folder, mistral_format=False),
        )

    def inputs(self, processor: Any, samples: Samples) -> Inputs:
        made = processor.feature_extractor(
            samples,
            sampling_rate=SAMPLE_RATE,
            padding=True,
            truncation=False,
            pad_to_multiple_of=30 * SAMPLE_RATE,
            return_tensors="pt",
        )
        return {"input_features": made["input_features"]}

    def prompt(self, processor: Any, language: str | None, context: str) -> list[int]:
        tokenizer, text = processor.tokenizer, []
        if language is not None:
            text = tokenizer.encode(f"lang:{language}", add_special_tokens=False)
        begin, inst, audio, sound, over, write = tokenizer.convert_tokens_to_ids(
            ["<s>", "[INST]", "[BEGIN_AUDIO]", "[AUDIO]", "[/INST]", "[TRANSCRIBE]"]
        )
        return [begin, inst, audio, sound, over, *text, write]


class GraniteSpeech(Family):
    """Granite Speech: an instruction in the chat template of its text model. It writes the language that it
    hears."""

    model = "GraniteSpeechForConditionalGeneration"
    languages: Mapping[str, str] = dict.fromkeys(("en", "fr", "de", "es", "pt", "ja"), "")

    INSTRUCTION = "can you transcribe the speech into a written format?"

    def inputs(self, processor: Any, samples: Samples) -> Inputs:
        made = processor.audio_processor(samples)
        return {name: made[name] for name in ("input_features", "input_features_mask")}

    def embeddings(self, model: Any, inputs: Inputs) -> Tensor:
        features, mask = inputs["input_features"], inputs["input_features_mask"]
        heard: Tensor = model.get_audio_features(features, return_dict=True).pooler_output
        return heard[mask]

    def prompt(self, processor: Any, language: str | None, context: str) -> list[int]:
        asked = {"role": "user", "content": f"{processor.audio_token}{self.INSTRUCTION}"}
        text = processor.tokenizer.apply_chat_template(
            [asked], tokenize=False, add_generation_prompt=True
        )
        return _tokens(processor, text)


FAMILIES: Mapping[str, Family] = {
    "qwen3_asr": Qwen3ASR(),
    "voxtral": Voxtral(),
    "granite_speech": GraniteSpeech(),
    "glmasr": GlmAsr(),
}
"""By the model_type of a config.json: those of `presets.SPEECH_LLMS`."""


def _masked(processor: Any, samples: Samples, **options: Any) -> Inputs:
    """Features with a mask of those that hold sound."""
    made = processor.feature_extractor(
        samples, sampling_rate=SAMPLE_RATE, return_attention_mask=True, **options
    )
    return {"input_features": made["input_features"], "input_features_mask": made["attention_mask"]}


def _tokens(processor: Any, text: str) -> list[int]:
    """The tokens of a prompt that its template has written, as transformers' processors make them."""
    begin = processor.tokenizer.bos_token
    begun = begin is not None and text.startswith(begin)
    ids: list[int] = processor.tokenizer(text, add_special_tokens=not begun)["input_ids"]
    return ids
