"""openai-whisper's `.pt` files to Hugging Face folders.

    folder = converted(Path("~/.cache/whisper/base.pt"))   # in the user's cache, once

The numbers are copied as they are; pickles are read by torch's `weights_only`, and nothing of a file is
executed. A `.pt` has no text tokens: they are those of a Whisper with as many tokens.

Format: openai/whisper 20250625 `whisper/model.py`; alignment heads by name `whisper/__init__.py`. Import is
light.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from forescribe.speculative.models.hub import CONNECT_S

from ...errors import ModelError
from ..tokens import ENGLISH_ONLY
from . import converting
from .converting import TOKENIZER, Content, Settings, convert_once, token_ids

ALIGNMENT_HEADS: Mapping[str, str] = {
    "tiny.en": "1.0 2.0 2.5 3.0 3.1 3.2 3.3 3.4",
    "tiny": "2.2 3.0 3.2 3.3 3.4 3.5",
    "base.en": "3.3 4.7 5.1 5.5 5.7",
    "base": "3.1 4.2 4.3 4.7 5.1 5.2 5.4 5.6",
    "small.en": "6.6 7.0 7.3 7.8 8.2 8.5 8.7 9.0 9.4 9.8 9.10 10.0 10.1 10.2 10.3 10.6 10.11 11.2 11.4",
    "small": "5.3 5.9 8.0 8.4 8.7 8.8 9.0 9.7 9.9 10.5",
    "medium.en": "11.4 14.1 14.12 14.14 15.4 16.0 16.4 16.9 17.12 17.14 18.7 18.10 18.15 20.0 20.3 20.9 "
    "20.14 21.12",
    "medium": "13.15 15.4 15.15 16.1 20.0 23.4",
    "large-v1": "9.19 11.2 11.4 11.17 22.7 22.11 22.17 23.2 23.15",
    "large-v2": "10.12 13.17 16.11 16.12 16.13 17.15 17.16 18.4 18.11 18.19 19.11 21.2 21.3 22.3 22.9 22.12 "
    "23.5 23.7 23.13 25.5 26.1 26.12 27.15",
    "large-v3": "7.0 10.17 12.18 13.12 16.1 17.14 19.11 21.4 24.1 25.6",
    "large-v3-turbo": "2.4 2.11 3.3 3.6 3.11 3.14",
}
"""The heads whose cross-attention follows the audio, as `layer.head`, by the names of OpenAI's files."""

NAMES = {
    "encoder.ln_post": "encoder.layer_norm",
    "decoder.ln": "decoder.layer_norm",
    "positional_embedding": "embed_positions.weight",
    "token_embedding": "embed_tokens",
    ".blocks.": ".layers.",
    "cross_attn_ln": "encoder_attn_layer_norm",
    "attn_ln": "self_attn_layer_norm",
    "mlp_ln": "final_layer_norm",
    ".cross_attn.": ".encoder_attn.",
    ".attn.": ".self_attn.",
    ".query.": ".q_proj.",
    ".key.": ".k_proj.",
    ".value.": ".v_proj.",
    "attn.out.": "attn.out_proj.",
    "mlp.0.": "fc1.",
    "mlp.2.": "fc2.",
}
"""OpenAI's parts of names, and Hugging Face's: each is replaced in this order, once."""

UNUSED = ("decoder.mask", "alignment_heads", "proj_out.weight", "decoder.proj_out.weight")
"""Tensors that some files hold besides: tables, and a copy of the embedding."""

HELD_BACK = (
    "startoftranscript translate transcribe startoflm startofprev nospeech nocaptions".split()
)
"""Special tokens that are never written; the last is the name of the one before in older tokenizers."""


def converted(file: Path, *, network: bool = True) -> Path:
    """The conversion of a file, made once, again where it or the tokenizer.json beside it has changed.
    `network` allows the download of the text tokens.

    Raises ModelError for a file that is damaged, not complete, or of another program; for a cache that cannot
    be written, see `convert_once`.
    """
    beside = (file.with_name(TOKENIZER),)
    return convert_once(file, file.stem, beside, partial(_read, file, network=network))


def _read(path: Path, *, network: bool) -> Content:
    import torch

    archive = zipfile.is_zipfile(path)
    if archive:
        with zipfile.ZipFile(path) as opened:  # torch ignores checksums, and can leave them out
            checked = any(part.CRC for part in opened.infolist())
            if checked and (different := opened.testzip()) is not None:
                raise ValueError(f"the checksum of its part {different!r:.80} is wrong")
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=archive)
    if not isinstance(content, dict) or not {"dims", "model_state_dict"} <= content.keys():
        raise ModelError(
            "it is no file of openai-whisper, which holds `dims` and `model_state_dict`: weights of "
            "transformers need the folder that they are in"
        )
    state = {}
    for theirs, tensor in content["model_state_dict"].items():
        if theirs in UNUSED:
            continue
        if not tensor.is_floating_point():
            raise ModelError(f"{theirs} holds {tensor.dtype}, which is no floating-point format")
        state[_renamed(theirs)] = tensor.clone(memory_format=torch.contiguous_format)
    size, width = state["model.decoder.embed_tokens.weight"].shape
    dims = content["dims"]
    if {dims["n_audio_head"], dims["n_text_head"]} != {width // converting.HEAD}:
        raise ModelError(f"its attention heads are not Whisper's for states of {width} numbers")
    tokenizer = _tokenizer(path, size, network=network)
    heads = [tuple(map(int, h.split("."))) for h in ALIGNMENT_HEADS.get(path.stem, "").split()]
    inside = all(n < dims["n_text_layer"] and h < dims["n_text_head"] for n, h in heads)
    tokens = token_ids(tokenizer, size)
    settings = Settings(
        tokens,
        suppress=_suppressed(tokens),
        begin_suppress=[220, tokens["<|endoftext|>"]],  # a space, and the end
        alignment_heads=heads if heads and inside else None,
    )
    return Content(state, settings, {TOKENIZER: tokenizer.read_bytes()})


def _renamed(theirs: str) -> str:
    name = f"{theirs}."
    for old, new in NAMES.items():
        name = name.replace(old, new, 1)
    return f"model.{name.removesuffix('.')}"


def _suppressed(tokens: Mapping[str, int]) -> list[int]:
    """Tokens that are never written: signs that are not speech, and special ones."""
    from transformers.models.whisper import configuration_whisper as lists

    known = {50256: lists.NON_SPEECH_TOKENS, 50257: lists.NON_SPEECH_TOKENS_MULTI}
    end = tokens["<|endoftext|>"]
    signs = [i for i in known.get(end, ()) if i < end]
    return sorted({*signs, *(tokens[n] for name in HELD_BACK if (n := f"<|{name}|>") in tokens)})


def _tokenizer(weights: Path, size: int, *, network: bool) -> Path:
    """The tokenizer.json for a model with `size` tokens: beside its weights, of a Whisper in the hub's cache,
    or downloaded. Raises ModelError where there is none."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    beside = weights.with_name(TOKENIZER)
    if beside.is_file():
        return beside
    english = ".en" if size == ENGLISH_ONLY else ""
    large = size == ENGLISH_ONLY + 2
    sizes = ("large-v3", "large-v3-turbo") if large else ("tiny", "base", "small", "medium")
    owners = ("openai/whisper", "Systran/faster-whisper")
    holders = [f"{owner}-{each}{english}" for owner in owners for each in sizes]
    for name in holders:
        found = try_to_load_from_cache(name, TOKENIZER)
        if isinstance(found, str):
            return Path(found)
    try:
        if network:
            return Path(hf_hub_download(holders[0], TOKENIZER, etag_timeout=CONNECT_S))
    except Exception:  # each transport has its own class; below is what to do
        pass
    raise ModelError(
        "it holds no text tokens, and none of Whisper's are on this machine: run "
        f"`hf download {holders[0]} {TOKENIZER}` with a network, or put that file beside it"
    )
