"""Whisper's text tokens from what other programs keep of them, and the tokenizer that they make.

Byte-pair tokens are numbered in the order in which they were merged, so the tokens alone tell the merges:
whisper.cpp's files and openai-whisper's `.tiktoken` hold no others. Special tokens follow the text
tokens in one order in all of OpenAI's models, of which only the number of languages differs
(openai/whisper `whisper/tokenizer.py`). Import is light.
"""

from __future__ import annotations

import base64
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forescribe.speculative.models.hub import CONNECT_S

from ...errors import ModelError

SIZES = {True: 50256, False: 50257}
"""Text tokens by whether the model is for English alone."""

STEPS = 1501
"""Timestamps, from 0 to 30 s in steps of 20 ms."""

CONTROLS = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")
HELD_BACK = ("startoftranscript", *CONTROLS[:-1])
"""Special tokens that are never written."""

_SIZED = {
    True: ("tiny.en", "base.en", "small.en", "medium.en"),
    False: ("tiny", "base", "small", "medium"),
}
_LARGE = ("large-v2", "large-v3")
HOLDERS = {
    english: [
        f"{owner}{size}"
        for owner in ("openai/whisper-", "Systran/faster-whisper-")
        for size in (*sizes, *(() if english else _LARGE))
    ]
    for english, sizes in _SIZED.items()
}
"""Repositories with the text tokens; the first is downloaded where none of them is on the machine."""


@dataclass(frozen=True)
class Vocabulary:
    """Text tokens by name, in GPT-2's alphabet, and the merges that make them, in their order."""

    ids: Mapping[str, int]
    merges: Sequence[tuple[str, str]]

    def suppressed(self, tokens: Mapping[str, int]) -> list[int]:
        """Tokens that are never written: signs that are not speech, and special ones."""
        from transformers.models.whisper import configuration_whisper as lists

        known = {
            SIZES[True]: lists.NON_SPEECH_TOKENS,
            SIZES[False]: lists.NON_SPEECH_TOKENS_MULTI,
        }
        signs = [i for i in known.get(len(self.ids), ()) if i < len(self.ids)]
        return sorted({*signs, *(tokens[f"<|{name}|>"] for name in HELD_BACK)})

    def suppressed_at_begin(self, tokens: Mapping[str, int]) -> list[int]:
        """Tokens that begin no text: a space and the end."""
        return [self.ids["\u0120"], tokens["<|endoftext|>"]]


def from_ranks(tokens: Sequence[bytes]) -> Vocabulary:
    """The vocabulary of tokens in their order. Raises ValueError for a token that no merge of earlier ones
    makes."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = bytes_to_unicode()

    def name(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    ranks = {token: rank for rank, token in enumerate(tokens)}
    none = len(ranks)
    if len(ranks) != len(tokens):
        raise ValueError("a token is there twice")
    merges = []
    for rank, token in enumerate(tokens):
        if len(token) < 2:
            continue
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            pairs = [ranks.get(a + b, none) for a, b in zip(parts, parts[1:], strict=False)]
            first = min(pairs)
            if first >= rank:
                break
            at = pairs.index(first)
            parts[at : at + 2] = [tokens[first]]
        if len(parts) != 2 or any(ranks.get(part, none) >= rank for part in parts):
            raise ValueError(f"its token {rank} {token[:40]!r} is not made of earlier ones")
        merges.append((name(parts[0]), name(parts[1])))
    return Vocabulary({name(token): rank for token, rank in ranks.items()}, merges)


def base_vocabulary(weights: Path, *, english: bool, network: bool) -> Vocabulary:
    """The text tokens for weights that come without: of a tokenizer.json beside them, of an installed
    openai-whisper, of a Whisper in the Hugging Face cache, or downloaded.

    Raises ModelError where there are none.
    """
    for path in _places(weights, english=english, network=network):
        if path.suffix == ".tiktoken":
            lines = path.read_bytes().splitlines()
            return from_ranks([base64.b64decode(line.split()[0]) for line in lines if line])
        model = json.loads(path.read_text(encoding="utf-8"))["model"]
        ids = {name: i for name, i in model["vocab"].items() if name != "<|endoftext|>"}
        pairs = (m.split(" ") if isinstance(m, str) else m for m in model["merges"])
        return Vocabulary(ids, [(first, second) for first, second in pairs])
    holder = HOLDERS[english][0]
    raise ModelError(
        "it holds no vocabulary, and none of Whisper's is on this machine: run "
        f"`hf download {holder} tokenizer.json` with a network, or put that file beside it"
    )


def _places(weights: Path, *, english: bool, network: bool) -> Iterator[Path]:
    """Files that hold the text tokens, from the nearest on."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    beside = weights.with_name("tokenizer.json")
    if beside.is_file():
        yield beside
    package = importlib.util.find_spec("whisper")  # found, not imported
    for folder in (package and package.submodule_search_locations) or ():
        assets = Path(folder) / "assets" / f"{'gpt2' if english else 'multilingual'}.tiktoken"
        if assets.is_file():
            yield assets
    for name in HOLDERS[english]:
        found = try_to_load_from_cache(name, "tokenizer.json")
        if isinstance(found, str):
            yield Path(found)
    if network:
        try:
            name = HOLDERS[english][0]
            yield Path(hf_hub_download(name, "tokenizer.json", etag_timeout=CONNECT_S))
        except Exception:  # each transport has its own class; the caller says what to do
            return


def special_tokens(size: int, text_tokens: int) -> list[str]:
    """The special tokens of a vocabulary in their order. Raises ValueError for a size that Whisper's cannot
    have."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    languages = size - text_tokens - 2 - len(CONTROLS) - STEPS
    if not 0 < languages <= len(LANGUAGES):
        raise ValueError(
            f"it has {size} tokens, {text_tokens} of them of text: these are not Whisper's"
        )
    names = ("endoftext", "startoftranscript", *list(LANGUAGES)[:languages], *CONTROLS)
    return [f"<|{name}|>" for name in names]


def write_tokenizer(
    out: Path, vocabulary: Vocabulary, size: int, positions: int
) -> Mapping[str, int]:
    """Write the tokenizer of a model with `size` tokens; its special tokens with their ids."""
    from transformers import AddedToken, WhisperTokenizer

    names = special_tokens(size, len(vocabulary.ids))
    tokenizer = WhisperTokenizer(
        vocab=dict(vocabulary.ids), merges=list(vocabulary.merges), model_max_length=positions
    )
    specials = [AddedToken(name, normalized=False, special=True) for name in names]
    tokenizer.add_special_tokens({"extra_special_tokens": specials[1:]})
    stamps = [f"<|{step * 0.02:.2f}|>" for step in range(STEPS)]
    tokenizer.add_tokens([AddedToken(name, normalized=False, special=False) for name in stamps])
    known = tokenizer.get_vocab()
    ids = {name: known[name] for name in names}
    if list(ids.values()) != list(range(len(vocabulary.ids), len(vocabulary.ids) + len(names))):
        raise ValueError("its special tokens do not follow its text tokens")
    tokenizer.save_pretrained(out)
    return ids
