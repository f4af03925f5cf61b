"""Whisper's tokens: its special ones by name, the prompts that they form, and its tokenizer.

`SpecialTokens` are built from a model's own generation config and tokenizer, so that every vocabulary of the
family works: English-only models have neither languages nor tasks, large-v3 has an additional language.
`WhisperTokens` reads tokenizer.json without transformers, whose import takes as long as torch's; it has those
members of a tokenizer of transformers that forescribe uses, with the same results. Knows token ids, text and
files; nothing of audio or models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from filecmp import cmp
from pathlib import Path
from typing import Any, Literal

from ..formats.transcript_parts import SAMPLE_RATE
from .languages import LANGUAGES, ONLY, Spoken, read_languages

Task = Literal["transcribe", "translate"]
TASKS: tuple[Task, ...] = ("transcribe", "translate")

SAMPLES_PER_STEP = SAMPLE_RATE // 50
"""A timestamp token counts steps of 20 ms."""


ENGLISH = ("en",)

ENGLISH_ONLY = 51864
"""Tokens of the models that were trained for English alone; those for all languages have more."""

TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"
END = "<|endoftext|>"

_BESIDE = (SETTINGS, "special_tokens_map.json", "added_tokens.json")
_STAMP = re.compile(r"<\|(\d+\.\d+)\|>")
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
_PLAIN = {  # what transformers makes of a vocabulary, whatever its file says
    "dropout": (None,),
    "continuing_subword_prefix": ("", None),
    "end_of_word_suffix": ("", None),
    "fuse_unk": (False,),
    "byte_fallback": (False,),
    "ignore_merges": (False,),
}


def as_ids(value: int | Sequence[int] | None) -> tuple[int, ...]:
    """Token ids of a configuration, which may give one, several or none."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def complete(generation_config: Any, tokenizer: Any, vocab_size: int) -> None:
    """Give a generation config what its vocabulary says, for a folder without the file.

    Older fine-tunes lack it: transformers takes ends and suppressed tokens from config.json, and has
    neither languages nor timestamps then. Their ids are those of the tokenizer's tokens.
    """
    known = tokenizer.get_vocab()
    found: dict[str, Any] = {"no_timestamps_token_id": known.get("<|notimestamps|>")}
    found["is_multilingual"] = vocab_size != ENGLISH_ONLY
    if found["is_multilingual"]:
        codes = [f"<|{code}|>" for code in LANGUAGES]
        found["lang_to_id"] = {code: known[code] for code in codes if code in known}
        found["task_to_id"] = {t: known[f"<|{t}|>"] for t in TASKS if f"<|{t}|>" in known}
    found["max_initial_timestamp_index"] = 50  # openai/whisper's and all published configs'
    for name, value in found.items():
        if getattr(generation_config, name, None) is None and value is not None:
            setattr(generation_config, name, value)


@dataclass(frozen=True)
class TokenSettings:
    """What a model's configurations say of its tokens, beside its tokenizer."""

    size: int
    timestamps: int
    ends: tuple[int, ...]
    no_timestamps: int | None
    languages: frozenset[str]
    english_only: bool

    @classmethod
    def of(cls, config: Any, generation: Any = None) -> TokenSettings:
        return cls(
            int(config.vocab_size),
            int(config.max_source_positions) + 1,
            as_ids(config.eos_token_id),
            getattr(generation, "no_timestamps_token_id", None),
            frozenset(getattr(generation, "lang_to_id", None) or ()),
            getattr(generation, "is_multilingual", None) is False,
        )


@dataclass(frozen=True)
class SpecialTokens:
    """Token ids. `languages` maps ISO 639-1 codes; empty, like `tasks`, in English-only models.

    `made_for` are the codes of those languages that the weights were trained for, None for all:
    distilled models keep the tokens of all, but write their own language after any of them.
    """

    start: int
    end: int
    no_timestamps: int
    no_speech: int
    languages: Mapping[str, int]
    tasks: Mapping[str, int]
    previous: int | None  # begins previous text; None where the tokenizer has no such token
    other_ends: tuple[int, ...] = ()  # further tokens that end a text
    made_for: frozenset[str] | None = None
    only: str = ONLY  # the answer to a request for another language where it knows one alone

    @classmethod
    def of(cls, generation_config: Any, tokenizer: Any) -> SpecialTokens:
        """Read the tokens from a Whisper folder's files; see `complete` where it has no generation config.
        Raises ValueError that says what is missing."""
        no_timestamps = getattr(generation_config, "no_timestamps_token_id", None)
        if no_timestamps is None:
            raise ValueError(
                "its generation_config.json has no no_timestamps_token_id: take the file from the "
                "model that it was trained from"
            )

        def id_of(token: str) -> int | None:
            token_id = tokenizer.convert_tokens_to_ids(token)
            return token_id if token_id not in (None, tokenizer.unk_token_id) else None

        start = getattr(generation_config, "decoder_start_token_id", None)
        if start is None:
            start = id_of("<|startoftranscript|>")
        if not isinstance(start, int):
            raise ValueError("its generation_config.json has no decoder_start_token_id")
        for name, stated in (("<|startoftranscript|>", start), ("<|notimestamps|>", no_timestamps)):
            if id_of(name) not in (None, stated):
                raise ValueError(
                    f"its generation_config.json says {stated} for {name}, its tokenizer {id_of(name)}"
                )
        ends = as_ids(getattr(generation_config, "eos_token_id", None))
        if not ends:
            ends = as_ids(getattr(tokenizer, "eos_token_id", None))
        if not ends:
            raise ValueError("its generation_config.json has no eos_token_id")
        languages = getattr(generation_config, "lang_to_id", None) or {}
        tasks = dict(getattr(generation_config, "task_to_id", None) or {})
        if getattr(generation_config, "is_multilingual", False) and not languages:
            raise ValueError("its generation_config.json has no lang_to_id")
        if languages and not tasks.keys() >= set(TASKS):
            raise ValueError("its generation_config.json has no task_to_id for both tasks")
        return cls(
            start=start,
            end=ends[0],
            no_timestamps=no_timestamps,
            no_speech=no_timestamps - 1,
            languages={token[2:-2]: int(i) for token, i in languages.items()},
            tasks=tasks,
            previous=id_of("<|startofprev|>"),
            other_ends=ends[1:],
        )

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end a text."""
        return (self.end, *self.other_ends)

    @property
    def special(self) -> tuple[int, ...]:
        """All that prompts and answers need."""
        named = (*self.languages.values(), *self.tasks.values())
        return (self.start, *self.ends, self.no_timestamps, *named)

    @property
    def timestamp_begin(self) -> int:
        """The id of <|0.00|>; higher ids are later timestamps."""
        return self.no_timestamps + 1

    @property
    def multilingual(self) -> bool:
        return bool(self.languages)

    @property
    def conditions(self) -> bool:
        """Whether a prompt may hold previous text."""
        return self.previous is not None

    def is_text(self, token: int) -> bool:
        """Whether a token is text."""
        return token < self.end

    @property
    def translates(self) -> bool:
        """Whether the model can translate into English."""
        return self.multilingual and self.made_for is None

    def spoken(self, names: str | None) -> Spoken:
        """The codes of languages as a user names them, see `read_languages`. Raises UsageError for one that
        the model does not know."""
        return read_languages(names, self.made_for or self.languages or ENGLISH, self.only)

    def prompt(
        self, language: str | None, task: Task, *, timestamps: bool, previous: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """The forced start of a window's answer, after the tokens of previous text, if any."""
        head = (self.previous, *previous) if previous and self.previous is not None else ()
        language_and_task: tuple[int, ...] = ()
        if self.multilingual:
            language_and_task = (self.languages[language or "en"], self.tasks[task])
        return (
            *head,
            self.start,
            *language_and_task,
            *(() if timestamps else (self.no_timestamps,)),
        )

    def stamp(self, token: int) -> int | None:
        """The position that a timestamp token stands for, in samples of the window; None for other tokens."""
        if token < self.timestamp_begin:
            return None
        return (token - self.timestamp_begin) * SAMPLES_PER_STEP


@dataclass(frozen=True, eq=False)
class WhisperTokens:
    """The tokenizer of a folder."""

    _backend: Any  # tokenizers.Tokenizer
    eos_token_id: int
    unk_token_id: int

    @classmethod
    def read(cls, folder: Path) -> WhisperTokens | None:
        """None for a folder without tokenizer.json, and for one that transformers may read in another way:
        then it has to. Raises what damaged files raise."""
        if not (folder / TOKENIZER).is_file():
            return None
        from tokenizers import Tokenizer

        backend = Tokenizer.from_str((folder / TOKENIZER).read_text(encoding="utf-8"))
        settings, added = _object(folder / SETTINGS), backend.get_added_tokens_decoder()
        ids = {token.content: token_id for token_id, token in added.items()}
        special = {token.content for token in added.values() if token.special}
        if not _plain(backend, settings) or not _known(folder, settings, ids, special):
            return None
        end = _content(settings.get("eos_token", END))
        unknown = _content(settings.get("unk_token", END))
        if not special >= {end, unknown}:
            return None
        backend.no_padding()
        backend.no_truncation()
        return cls(backend, ids[end], ids[unknown])

    def __len__(self) -> int:
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def get_vocab(self) -> dict[str, int]:
        found: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return found

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        """The tokens beside the vocabulary by id, which have `content` and `special`."""
        found: dict[int, Any] = self._backend.get_added_tokens_decoder()
        return found

    def convert_tokens_to_ids(self, token: str) -> int:
        found: int | None = self._backend.token_to_id(token)
        return self.unk_token_id if found is None else found

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
    for name in (TOKENIZER, *_BESIDE):
        here, there = folder / name, other / name
        if here.is_file() != there.is_file():
            return False
        if here.is_file() and not cmp(here, there, shallow=False):
            return False
    return (folder / TOKENIZER).is_file()


def _plain(backend: Any, settings: dict[str, Any]) -> bool:
    """Whether these files describe GPT-2's way of cutting bytes into tokens, and nothing else."""
    model, before = backend.model, backend.pre_tokenizer
    return (
        [type(part).__name__ for part in (model, before, backend.decoder)]
        == ["BPE", "ByteLevel", "ByteLevel"]
        and all(getattr(model, key) in values for key, values in _PLAIN.items())
        and backend.normalizer is None
        and before.use_regex
        and not before.add_prefix_space
        and not settings.get("add_prefix_space", False)
        and settings.get("tokenizer_class") in ("WhisperTokenizer", "WhisperTokenizerFast")
    )


def _known(folder: Path, settings: dict[str, Any], ids: dict[str, int], special: set[str]) -> bool:
    """Whether the other files of a folder name no token otherwise than tokenizer.json does."""
    beside = _object(folder / _BESIDE[1])
    named = [settings[kind] for kind in _SPECIAL if settings.get(kind) is not None]
    named += settings.get("additional_special_tokens", settings.get("extra_special_tokens")) or []
    named += [*(beside.pop("additional_special_tokens", None) or []), *beside.values()]
    for token_id, token in settings.get("added_tokens_decoder", {}).items():
        content = token["content"]
        if ids.get(content) != int(token_id) or bool(token.get("special")) != (content in special):
            return False
    added = _object(folder / _BESIDE[2]).items()
    return special.issuperset(map(_content, named)) and ids.items() >= added


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
