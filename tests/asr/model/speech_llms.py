"""Folders of tiny random speech LLMs with their processors, written by transformers itself.

Tokens are the bytes, a few words, and the marks of the family; templates are as published models have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

POSITIONS = 440
"""A window of 30 s with its marks, and a few tokens."""

QWEN_TEMPLATE = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\n<|im_end|>\n"
    "{% endif %}<|im_start|>{{ m.role }}\n{% for part in m.content %}{% if part.type == 'audio' %}"
    "<|audio_start|><|audio_pad|><|audio_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endfor %}"
)
GLM_TEMPLATE = (
    "{% for m in messages %}<|user|>\n{% for part in m.content %}{% if part.type == 'audio' %}"
    "<|begin_of_audio|><|pad|><|end_of_audio|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
GRANITE_TEMPLATE = (
    "{% for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}<|end_of_text|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}"
)
MARKS = {
    "qwen3_asr": (
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|audio_start|>",
        "<|audio_end|>",
        "<|audio_pad|>",
        "<asr_text>",
    ),
    "glmasr": (
        "<|endoftext|>",
        "<|user|>",
        "<|assistant|>",
        "<|begin_of_audio|>",
        "<|end_of_audio|>",
        "<|pad|>",
    ),
    "granite_speech": ("<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>", "<|audio|>"),
    "voxtral": ("<s>", "</s>", "[INST]", "[/INST]", "[AUDIO]", "[BEGIN_AUDIO]", "[TRANSCRIBE]"),
}
"""Of each family; an answer of the first one ends with its third, of the last with its second, of the others
with their first."""

ENDS = {
    "qwen3_asr": "<|im_end|>",
    "glmasr": "<|endoftext|>",
    "granite_speech": "<|end_of_text|>",
    "voxtral": "</s>",
}
AUDIO = {
    "qwen3_asr": "<|audio_pad|>",
    "glmasr": "<|pad|>",
    "granite_speech": "<|audio|>",
    "voxtral": "[AUDIO]",
}
CLASSES = {
    "qwen3_asr": "Qwen3ASRForConditionalGeneration",
    "glmasr": "GlmAsrForConditionalGeneration",
    "granite_speech": "GraniteSpeechForConditionalGeneration",
    "voxtral": "VoxtralForConditionalGeneration",
}
TEXT = {
    "vocab_size": 0,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.3,
}


WHISPER = {
    "num_mel_bins": 16,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "d_model": 16,
    "initializer_range": 0.3,
}
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "initializer_range": 0.3,
}


def inner(marks: Sequence[str], *, first: bool = False) -> Tokenizer:
    """Byte-level BPE without merges; the marks `first`, or behind."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*marks, *letters] if first else letters
    made = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(marks))
    return made


def tokenizer(family: str) -> Any:
    marks, end = MARKS[family], ENDS[family]
    named: dict[str, Any] = {"extra_special_tokens": [m for m in marks if m != end]}
    if family == "qwen3_asr":
        named["extra_special_tokens"] = {
            "audio_token": "<|audio_pad|>",
            "audio_bos_token": "<|audio_start|>",
            "audio_eos_token": "<|audio_end|>",
        }
    template = {
        "qwen3_asr": QWEN_TEMPLATE,
        "glmasr": GLM_TEMPLATE,
        "granite_speech": GRANITE_TEMPLATE,
    }.get(family)
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner(marks, first=family == "voxtral"),
        eos_token=end,
        pad_token=end,
        **named,
    )
    made.chat_template = template
    return made


def processor(family: str, tokens: Any) -> Any:
    if family == "qwen3_asr":
        from transformers import Qwen3ASRFeatureExtractor, Qwen3ASRProcessor

        made = Qwen3ASRProcessor(Qwen3ASRFeatureExtractor(feature_size=16), tokens)
    elif family == "glmasr":
        made = transformers.GlmAsrProcessor(
            transformers.WhisperFeatureExtractor(feature_size=16), tokens, audio_token="<|pad|>"
        )
    elif family == "granite_speech":
        made = transformers.GraniteSpeechProcessor(
            transformers.GraniteSpeechFeatureExtractor(), tokens
        )
    else:
        made = transformers.VoxtralProcessor(
            transformers.WhisperFeatureExtractor(feature_size=16), tokens
        )
    if family != "voxtral":
        made.chat_template = tokens.chat_template
    return made


def config(family: str, tokens: Any, text: dict[str, Any]) -> Any:
    ends, audio = tokens.eos_token_id, tokens.convert_tokens_to_ids(AUDIO[family])
    if family == "qwen3_asr":
        return transformers.Qwen3ASRConfig(
            audio_config={
                **WHISPER,
                "output_dim": text["hidden_size"],
                "downsample_hidden_size": 8,
            },
            text_config={"model_type": "qwen3", **text, "tie_word_embeddings": True},
            audio_token_id=audio,
            eos_token_id=[tokens.convert_tokens_to_ids("<|endoftext|>"), ends],
            pad_token_id=ends,
        )
    if family == "voxtral":
        return transformers.VoxtralConfig(
            audio_config={**SMALL, "num_mel_bins": 16, "intermediate_size": 64},
            text_config={"model_type": "llama", **text, "eos_token_id": ends},
            audio_token_id=audio,
        )
    if family == "glmasr":
        return transformers.GlmAsrConfig(
            audio_config={**SMALL, "num_mel_bins": 16, "intermediate_size": 64},
            text_config={"model_type": "llama", **text, "eos_token_id": ends},
            audio_token_id=audio,
        )
    return transformers.GraniteSpeechConfig(
        encoder_config={
            "input_dim": 160,
            "num_layers": 2,
            "hidden_dim": 16,
            "num_heads": 2,
            "output_dim": 10,
            "context_size": 50,
        },
        projector_config={
            "model_type": "blip_2_qformer",
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 24,
            "encoder_hidden_size": 16,
        },
        text_config={
            "model_type": "granite",
            **{key: value for key, value in text.items() if key != "head_dim"},
            "eos_token_id": ends,
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.3,
        },
        audio_token_index=audio,
        has_lora_adapter=False,
    )


def write(
    folder: Path,
    family: str = "qwen3_asr",
    *,
    seed: int = 1,
    layers: int = 2,
    near: Path | None = None,
) -> Path:
    """A model of random weights with its processor. `near` is one of the same shape: the weights are its own
    with some noise, so that as a draft it is often right."""
    tokens, kind = tokenizer(family), getattr(transformers, CLASSES[family])
    text = {**TEXT, "vocab_size": len(tokens) + 3, "num_hidden_layers": layers}
    torch.manual_seed(seed)
    model = kind(config(family, tokens, text)).eval()
    model.generation_config.eos_token_id = model.config.get_text_config().eos_token_id
    if family == "qwen3_asr":
        model.generation_config.eos_token_id = model.config.eos_token_id
    if near is not None:
        source = kind.from_pretrained(near).state_dict()
        for weight in source.values():
            if weight.is_floating_point():
                weight += 0.001 * torch.randn_like(weight)
        model.load_state_dict(source)
    model.save_pretrained(folder)
    processor(family, tokens).save_pretrained(folder)
    return folder
