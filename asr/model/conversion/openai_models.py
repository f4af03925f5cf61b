"""OpenAI's models: what is published about their files, and the tokenizer of their text tokens.

Checksums and the heads that follow the audio: openai/whisper 20250625 `whisper/__init__.py` (SHA-256 in the
addresses of downloads, alignment heads), ggml-org/whisper.cpp `models/README.md` (SHA-1).

Byte-pair tokens are numbered in the order in which they were merged, so the tokens alone tell the merges:
whisper.cpp's files and openai-whisper's `.tiktoken` hold no others. Special tokens follow the text tokens in
one order in all of OpenAI's models, of which only the number of languages differs (openai/whisper
`whisper/tokenizer.py`). Import is light.
"""

from __future__ import annotations

import base64
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forescribe.speculative.errors import one_line
from forescribe.speculative.models.hub import CONNECT_S

from ...errors import ModelError
from ..languages import LANGUAGES
from .converting import ENGLISH_ONLY, check_text_tokens


@dataclass(frozen=True)
class Published:
    """A model of OpenAI's: `sha256` of its `.pt`, `ggml_sha1` of whisper.cpp's files by quantisation ("" for
    float16), and the alignment heads, as `layer.head`."""

    sha256: str
    ggml_sha1: Mapping[str, str]
    heads: str

    @property
    def alignment_heads(self) -> list[tuple[int, int]]:
        """The (layer, head) pairs whose cross-attention follows the audio."""
        pairs = (pair.split(".") for pair in self.heads.split())
        return [(int(layer), int(head)) for layer, head in pairs]


PUBLISHED: Mapping[str, Published] = {
    "tiny.en": Published(
        "d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03",
        {"": "c78c86eb1a8faa21b369bcd33207cc90d64ae9df"},
        "1.0 2.0 2.5 3.0 3.1 3.2 3.3 3.4",
    ),
    "tiny": Published(
        "65147644a518d12f04e32d6f3b26facc3f8dd46e5390956a9424a650c0ce22b9",
        {"": "bd577a113a864445d4c299885e0cb97d4ba92b5f"},
        "2.2 3.0 3.2 3.3 3.4 3.5",
    ),
    "base.en": Published(
        "25a8566e1d0c1e2231d1c762132cd20e0f96a85d16145c3a00adf5d1ac670ead",
        {"": "137c40403d78fd54d454da0f9bd998f78703390c"},
        "3.3 4.7 5.1 5.5 5.7",
    ),
    "base": Published(
        "ed3a0b6b1c0edf879ad9b11b1af5a0e6ab5db9205f891f668f8b0e6c6326e34e",
        {"": "465707469ff3a37a2b9b8d8f89f2f99de7299dac"},
        "3.1 4.2 4.3 4.7 5.1 5.2 5.4 5.6",
    ),
    "small.en": Published(
        "f953ad0fd29cacd07d5a9eda5624af0f6bcf2258be67c92b79389873d91e0872",
        {"": "db8a495a91d927739e50b3fc1cc4c6b8f6c2d022"},
        "6.6 7.0 7.3 7.8 8.2 8.5 8.7 9.0 9.4 9.8 9.10 10.0 10.1 10.2 10.3 10.6 10.11 11.2 11.4",
    ),
    "small": Published(
        "9ecf779972d90ba49c06d968637d720dd632c55bbf19d441fb42bf17a411e794",
        {"": "55356645c2b361a969dfd0ef2c5a50d530afd8d5"},
        "5.3 5.9 8.0 8.4 8.7 8.8 9.0 9.7 9.9 10.5",
    ),
    "medium.en": Published(
        "d7440d1dc186f76616474e0ff0b3b6b879abc9d1a4926b7adfa41db2d497ab4f",
        {"": "8c30f0e44ce9560643ebd10bbe50cd20eafd3723"},
        "11.4 14.1 14.12 14.14 15.4 16.0 16.4 16.9 17.12 17.14 18.7 18.10 18.15 20.0 20.3 "
        "20.9 20.14 21.12",
    ),
    "medium": Published(
        "345ae4da62f9b3d59415adc60127b97c714f32e89e936602e85993674d08dcb1",
        {"": "fd9727b6e1217c2f614f9b698455c4ffd82463b4"},
        "13.15 15.4 15.15 16.1 20.0 23.4",
    ),
    "large-v1": Published(
        "e4b87e7e0bf463eb8e6956e646f1e277e901512310def2c24bf0e11bd3c28e9a",
        {"": "b1caaf735c4cc1429223d5a74f0f4d0b9b59a299"},
        "9.19 11.2 11.4 11.17 22.7 22.11 22.17 23.2 23.15",
    ),
    "large-v2": Published(
        "81f7c96c852ee8fc832187b0132e569d6c3065a3252ed18e56effd0b6a73e524",
        {
            "": "0f4c8e34f21cf1a914c59d8b3ce882345ad349d6",
            "q5_0": "00e39f2196344e901b3a2bd5814807a769bd1630",
        },
        "10.12 13.17 16.11 16.12 16.13 17.15 17.16 18.4 18.11 18.19 19.11 21.2 21.3 22.3 "
        "22.9 22.12 23.5 23.7 23.13 25.5 26.1 26.12 27.15",
    ),
    "large-v3": Published(
        "e5b1a55b89c1367dacf97e3e19bfd829a01529dbfdeefa8caeb59b3f1b81dadb",
        {
            "": "ad82bf6a9043ceed055076d0fd39f5f186ff8062",
            "q5_0": "e6e2ed78495d403bef4b7cff42ef4aaadcfea8de",
        },
        "7.0 10.17 12.18 13.12 16.1 17.14 19.11 21.4 24.1 25.6",
    ),
    "large-v3-turbo": Published(
        "aff26ae408abcba5fbf8813c21e62b0941638c5f6eebfb145be0c9839262a19a",
        {
            "": "4af2b29d7ec73d781377bfd1758ca957a807e941",
            "q5_0": "e050f7970618a659205450ad97eb95a18d69c9ee",
        },
        "2.4 2.11 3.3 3.6 3.11 3.14",
    ),
}


SIZES = {True: 50256, False: 50257}
"""Text tokens by whether the model is for English alone."""

EMPTY = 50256
"""The only text token without bytes: the end of GPT-2's texts, of which the models for all languages have
kept the place."""

LONGEST, ALL = 1 << 10, 1 << 21
"""Bytes of the longest text token and of all: Whisper's are eight times smaller. The merges of longer ones
take too long to find."""

STEPS = 1501
"""Timestamps, from 0 to 30 s in steps of 20 ms."""

BESIDE = "tokenizer.json"
"""What is read beside weights that come without text tokens."""

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
    makes, that is empty, or far longer than Whisper's."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = bytes_to_unicode()

    def name(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    ranks = {token: rank for rank, token in enumerate(tokens)}
    none = len(ranks)
    if len(ranks) != len(tokens):
        raise ValueError("a token is there twice")
    if sum(map(len, tokens)) > ALL:
        raise ValueError(f"its tokens have more than {ALL} bytes")
    merges = []
    for rank, token in enumerate(tokens):
        if len(token) > LONGEST or not (token or rank == EMPTY):
            raise ValueError(f"its token {rank} has {len(token)} bytes")
        if len(token) < 2:
            continue
        parts = [token[i : i + 1] for i in range(len(token))]
        pairs = [ranks.get(a + b, none) for a, b in zip(parts, parts[1:], strict=False)]
        while len(parts) > 2:
            first = min(pairs)
            if first >= rank:
                break
            at = pairs.index(first)
            parts[at : at + 2] = [tokens[first]]
            del pairs[at]
            for i in range(max(0, at - 1), min(at + 1, len(pairs))):
                pairs[i] = ranks.get(parts[i] + parts[i + 1], none)
        if len(parts) != 2 or any(ranks.get(part, none) >= rank for part in parts):
            raise ValueError(f"its token {rank} {token[:40]!r} is not made of earlier ones")
        merges.append((name(parts[0]), name(parts[1])))
    return Vocabulary({name(token): rank for token, rank in ranks.items()}, merges)


def base_vocabulary(weights: Path, size: int, *, network: bool) -> tuple[Vocabulary, Path]:
    """The text tokens for weights that come without, and the file that they are from: a tokenizer.json beside
    them, of an installed openai-whisper, of a Whisper in the Hugging Face cache, or downloaded. `size` is the
    number of the model's tokens.

    Raises ModelError where there are none, or another model's.
    """
    english = size == ENGLISH_ONLY
    for path in _places(weights, english=english, network=network):
        try:
            found = _vocabulary_in(path)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ModelError(
                f"its tokens are read from {path}, which is damaged or no tokenizer of Whisper's "
                f"({type(error).__name__}: {one_line(error)})"
            ) from error
        check_text_tokens(size, len(found.ids), str(path))
        return found, path
    holder = HOLDERS[english][0]
    raise ModelError(
        "it holds no vocabulary, and none of Whisper's is on this machine: run "
        f"`hf download {holder} tokenizer.json` with a network, or put that file beside it"
    )


def _vocabulary_in(path: Path) -> Vocabulary:
    if path.suffix == ".tiktoken":
        lines = path.read_bytes().splitlines()
        return from_ranks([base64.b64decode(line.split()[0]) for line in lines if line])
    model = json.loads(path.read_text(encoding="utf-8"))["model"]
    ids = {name: i for name, i in model["vocab"].items() if name != "<|endoftext|>"}
    pairs = (m.split(" ") if isinstance(m, str) else m for m in model["merges"])
    return Vocabulary(ids, [(first, second) for first, second in pairs])


def _places(weights: Path, *, english: bool, network: bool) -> Iterator[Path]:
    """Files that hold the text tokens, from the nearest on."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    beside = weights.with_name(BESIDE)
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
    languages = size - text_tokens - 2 - len(CONTROLS) - STEPS
    if not 0 < languages <= len(LANGUAGES):
        raise ValueError(
            f"it has {size} tokens, {text_tokens} of them of text: these are not Whisper's"
        )
    names = ("endoftext", "startoftranscript", *list(LANGUAGES)[:languages], *CONTROLS)
    return [f"<|{name}|>" for name in names]


def tokenizer_of(
    vocabulary: Vocabulary, size: int, positions: int
) -> tuple[Any, Mapping[str, int]]:
    """The tokenizer of a model with `size` tokens, and the ids of its special tokens. Raises ValueError, and
    ModelError for another number of text tokens than such a model has."""
    from transformers import AddedToken, WhisperTokenizer

    check_text_tokens(size, len(vocabulary.ids), "it")
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
    return tokenizer, ids
