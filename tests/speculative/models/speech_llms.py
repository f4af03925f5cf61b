"""Tiny random speech LLMs, unmodified transformers classes: audio takes the place of tokens in a prompt."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForMultimodalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from forescribe.speculative import Request
from forescribe.speculative.models.causal import text_tower
from forescribe.speculative.types import Embedded
from tests.speculative.models.causal_lms import EOS, GRANITE, SHARED, VOCAB

AUDIO, MELS, POSITIONS = VOCAB - 1, 8, 200
"""The placeholder of audio, mel bins, and positions of the text model."""

AUDIO_SHARED = {
    "num_mel_bins": MELS,
    **dict.fromkeys(("hidden_size", "d_model"), 16),
    **dict.fromkeys(("num_hidden_layers", "encoder_layers"), 1),
    **dict.fromkeys(("num_attention_heads", "encoder_attention_heads"), 2),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim"), 64),
}

FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_asr": {
        "text_config": {"model_type": "qwen3"},
        "audio_config": {
            **{k: v for k, v in AUDIO_SHARED.items() if not k.startswith(("num_h", "num_a"))},
            "model_type": "qwen3_asr_encoder",
            "downsample_hidden_size": 4,
            "output_dim": 16,
        },
    },
    "voxtral": {
        "text_config": {"model_type": "llama"},
        "audio_config": {
            **AUDIO_SHARED,
            "model_type": "voxtral_encoder",
            "max_source_positions": 12,
        },
    },
    "granite_speech": {
        "text_config": {"model_type": "granite", **GRANITE},
        "encoder_config": {
            "input_dim": MELS,
            "hidden_dim": 16,
            "num_layers": 2,
            "num_heads": 2,
            "output_dim": 6,
            "context_size": 8,
            "max_pos_emb": 16,
            "conv_kernel_size": 3,
        },
        "projector_config": {
            "model_type": "blip_2_qformer",
            "hidden_size": 16,
            "encoder_hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
        "has_lora_adapter": False,
        "window_size": 4,
        "downsample_rate": 2,
    },
    "glmasr": {
        "text_config": {"model_type": "llama"},
        "audio_config": {**AUDIO_SHARED, "model_type": "glmasr_encoder"},
    },
}


@functools.cache
@torch.inference_mode(False)  # whoever asks first
def speech_llm(family: str, *, layers: int = 3, seed: int = 0, width: int = 16) -> Any:
    """A model of the family; with other layers and another width a draft of the same vocabulary."""
    text = {**SHARED, "max_position_embeddings": POSITIONS, "num_hidden_layers": layers}
    values = dict(FAMILIES[family])
    values["text_config"] = {**text, "hidden_size": width, **values["text_config"]}
    if family == "qwen3_asr":
        values["audio_config"] = {**values["audio_config"], "output_dim": width}
    tied = {} if family == "voxtral" else {"tie_word_embeddings": True}
    config = CONFIG_MAPPING[family](
        **values, **tied, audio_token_id=AUDIO, eos_token_id=EOS, pad_token_id=0
    )
    torch.manual_seed(seed)
    model = AutoModelForMultimodalLM.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1 and weight.std() > 0:
                weight.mul_(0.4 / weight.std())  # otherwise neither audio nor attention would count
        model.get_output_embeddings().weight[AUDIO] = (
            0  # so that none writes it, which Granite reads as 0
        )
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = EOS, 0
    return model


def audio(family: str, length: int, seed: int = 0) -> dict[str, Tensor]:
    """Features of audio of this length, in windows, as arguments of `generate` beside the tokens."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return 2 * torch.randn(shape, generator=generator)

    if family == "granite_speech":
        return {"input_features": noise(1, 3 + 4 * length, MELS)}
    if family == "voxtral":  # windows of 24 frames, three embeddings each
        return {"input_features": noise(length, MELS, 24)}
    valid = 8 * length  # frames, an embedding each 8
    frames = -(-valid // 100) * 100 if family == "qwen3_asr" else valid
    mask = (torch.arange(frames) < valid).long()[None]
    return {"input_features": noise(1, MELS, frames), "input_features_mask": mask}


@torch.inference_mode()
def embeddings(model: Any, given: dict[str, Tensor]) -> Tensor:
    """The embeddings `[n, D]` of the audio."""
    found: Tensor = model.get_audio_features(**given, return_dict=True).pooler_output
    return found.reshape(-1, found.shape[-1])


@functools.cache
def text_model(family: str, **kind: int) -> Any:
    """The text model of `speech_llm`."""
    return text_tower(speech_llm(family, **kind))


@dataclass(frozen=True)
class Speech:
    """A prompt with audio between two texts; without audio one of text alone."""

    before: tuple[int, ...]
    length: int
    after: tuple[int, ...]

    def audio(self, family: str) -> dict[str, Tensor]:
        return audio(family, self.length, seed=sum(self.before)) if self.length else {}

    def run(self, family: str, **kind: int) -> Embedded | None:
        """The embeddings by a model of the family."""
        given = self.audio(family)
        found = embeddings(speech_llm(family, **kind), given) if given else None
        return None if found is None else Embedded(len(self.before), found)

    def prompt(self, family: str) -> tuple[int, ...]:
        run = self.run(family)
        return (*self.before, *[AUDIO] * (0 if run is None else len(run.states)), *self.after)

    def request(
        self, family: str, most: int, draft: Mapping[str, int] | None = None, **kind: int
    ) -> Request:
        """With the embeddings of a target, and with a `draft` a pair of them."""
        states: Any = self.run(family, **kind)
        if draft is not None:
            states = states, self.run(family, **draft)
        return Request(self.prompt(family), encoder_states=states, max_new_tokens=most, tag=self)


@functools.cache
@torch.inference_mode()
def generated(family: str, speech: Speech, most: int, **kind: int) -> tuple[int, ...]:
    """What the whole model writes, by transformers' `generate`, of this prompt alone."""
    tokens = speech.prompt(family)
    ids = torch.tensor([tokens])
    out = speech_llm(family, **kind).generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        **speech.audio(family),
        do_sample=False,
        max_new_tokens=most,
    )
    return tuple(out[0, len(tokens) :].tolist())
