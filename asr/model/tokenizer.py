"""Whisper's tokenizer from tokenizer.json, without transformers, whose import takes as long as torch's.

It has those members of a tokenizer of transformers that forescribe uses, with the same results.
Knows tokens and files; nothing of what tokens mean.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from filecmp import cmp
from functools import cached_property
from pathlib import Path
from typing import Any

TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"
END = "<|endoftext|>"

_BESIDE = (SETTINGS, "special_tokens_map.json", "added_tokens.json")
_STAMP = re.compile(r"<\|(\d+\.\d+)\|>")
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
_PLAIN = {  # what transformers makes of a vocabulary, whatever its file says
    "type": ("BPE",),
    "dropout": (None,),
    "continuing_subword_prefix": ("", None),
    "end_of_word_suffix": ("", None),
    "fuse_unk": (False,),
    "byte_fallback": (False,),
    "ignore_merges": (False,),
}


class WhisperTokens:
    """The tokenizer of a folder."""

    def __init__(self, backend: Any, end: int, unknown: int) -> None:
        self._backend = backend  # tokenizers.Tokenizer
        self.eos_token_id, self.unk_token_id = end, unknown

    @classmethod
    def read(cls, folder: Path) -> WhisperTokens | None:
        """None for a folder without tokenizer.json, and for one that transformers may read in another way:
        then it has to. Raises what damaged files raise."""
        if not (folder / TOKENIZER).is_file():
            return None
        from tokenizers import Tokenizer

        text = (folder / TOKENIZER).read_text(encoding="utf-8")
        stated, settings = json.loads(text), _object(folder / SETTINGS)
        added = {
            token["content"]: (token["id"], token["special"]) for token in stated["added_tokens"]
        }
        if not _plain(stated, settings) or not _known(folder, settings, added):
            return None
        special = {kind: _content(settings.get(kind, END)) for kind in ("eos_token", "unk_token")}
        if any(not added.get(token, (0, False))[1] for token in special.values()):
            return None
        backend = Tokenizer.from_str(text)
        backend.no_padding()
        backend.no_truncation()
        return cls(backend, *(added[special[kind]][0] for kind in ("eos_token", "unk_token")))

    def __len__(self) -> int:
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        found: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return found

    def get_vocab(self) -> dict[str, int]:
        return dict(self._vocabulary)

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        """The tokens beside the vocabulary by id, which have `content` and `special`."""
        found: dict[int, Any] = self._backend.get_added_tokens_decoder()
        return found

    def convert_tokens_to_ids(self, token: str) -> int:
        return self._vocabulary.get(token, self.unk_token_id)

    def convert_ids_to_tokens(self, token_id: int) -> str:
        token: str = self._backend.id_to_token(token_id)
        return token

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The tokens of a text. Raises ValueError for `add_special_tokens`: prompts are made of ids."""
        if add_special_tokens:
            raise ValueError("special tokens are added by SpecialTokens.prompt")
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def decode(
        self,
        tokens: Sequence[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> str:
        """The text of tokens, without what looks like a timestamp."""
        return _STAMP.sub("", self.text(tokens, skip_special_tokens))

    def text(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of tokens as it is."""
        found: str = self._backend.decode(list(tokens), skip_special_tokens=skip_special_tokens)
        return found


def same_tokenizer(folder: Path, other: Path) -> bool:
    """Whether two folders have the same tokenizer.json, and no other files that say something else."""
    files = [(folder / name, other / name) for name in (TOKENIZER, *_BESIDE)]
    present = [pair for pair in files if any(path.is_file() for path in pair)]
    return (folder / TOKENIZER).is_file() and all(
        a.is_file() and b.is_file() and cmp(a, b, shallow=False) for a, b in present
    )


def _plain(stated: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Whether these files describe GPT-2's way of cutting bytes into tokens, and nothing else."""
    model, before = stated["model"], stated["pre_tokenizer"] or {}
    return (
        all(model.get(key, values[0]) in values for key, values in _PLAIN.items())
        and stated["normalizer"] is None
        and before.get("type") == "ByteLevel"
        and before.get("use_regex", True)
        and not before.get("add_prefix_space", True)
        and not settings.get("add_prefix_space", False)
        and (stated["decoder"] or {}).get("type") == "ByteLevel"
        and settings.get("tokenizer_class") in ("WhisperTokenizer", "WhisperTokenizerFast")
    )


def _known(folder: Path, settings: dict[str, Any], added: dict[str, tuple[int, bool]]) -> bool:
    """Whether the other files of a folder name no token otherwise than tokenizer.json does."""
    listed = settings.get("added_tokens_decoder", {}).items()
    named = [_content(settings[kind]) for kind in _SPECIAL if settings.get(kind) is not None]
    more = settings.get("additional_special_tokens", settings.get("extra_special_tokens")) or []
    beside = _object(folder / _BESIDE[1])
    more = [*more, *(beside.pop("additional_special_tokens", None) or [])]
    named += [_content(token) for token in (*more, *beside.values())]
    return (
        all(added.get(t["content"]) == (int(i), bool(t.get("special"))) for i, t in listed)
        and all(added.get(token, (0, False))[1] for token in named)
        and all(
            added.get(token, (None,))[0] == token_id
            for token, token_id in _object(folder / _BESIDE[2]).items()
        )
    )


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
