"""Lists of tokens for a draft's output head, from transcripts and texts of one's own.

Recordings of one language and one field use a part of a model's vocabulary. This counts that part with the
draft's own tokenizer. Knows files and tokenizers; the list and its file are in
`speculative.drafters.draft_tokens`.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forescribe.asr.errors import ModelError, UsageError
from forescribe.speculative.drafters.draft_tokens import DraftTokens, is_list
from forescribe.speculative.errors import one_line
from forescribe.speculative.models.checkpoint import damaged

STDIN = "-"
SUFFIXES = (".json", ".srt", ".tsv", ".txt", ".vtt")
"""Files that are taken from a folder; a file that is named may have any."""

_CUE = re.compile(r"^\d+$|-->|^WEBVTT")


@dataclass(frozen=True)
class Piece:
    """A text, and its tokens where a transcript has them."""

    text: str
    tokens: tuple[int, ...] = ()


def files_of(names: Iterable[str]) -> list[str]:
    """The files that arguments name: folders are searched. Raises UsageError for one that is not there, and
    for a folder without transcripts."""
    found = []
    for name in names:
        path = Path(name).expanduser()
        if name == STDIN or path.is_file():
            found.append(name if name == STDIN else str(path))
            continue
        if not path.is_dir():
            raise UsageError(f"{name}: there is no such file or folder")
        inside = [
            str(file)
            for file in sorted(path.rglob("*"))
            if file.suffix.lower() in SUFFIXES
            and not is_list(file.name)
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
            and file.is_file()
            and (file.suffix.lower() != ".json" or _is_transcript(file))
        ]
        if not inside:
            raise UsageError(f"{name}: the folder holds no {', '.join(SUFFIXES)}")
        found += inside
    return found


def _is_transcript(file: Path) -> bool:
    """Whether a JSON file of a folder is one: others lie there too."""
    try:
        read(str(file))
    except UsageError:
        return False
    return True


def read(name: str, language: str | None = None) -> list[Piece]:
    """The pieces of a transcript or a text; none of a transcript that says that it is in another language
    than `language`. Raises UsageError for a file that is none."""
    try:
        data = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} cannot be read as text: {error}") from error
    suffix = Path(name).suffix.lower()
    if suffix == ".json":
        return _of_json(name, text, language)
    if suffix in (".srt", ".vtt"):
        return [Piece(line) for line in text.splitlines() if line and not _CUE.search(line)]
    if suffix == ".tsv":
        rows = [line.split("\t", 2) for line in text.splitlines()[1:]]
        return [Piece(row[2]) for row in rows if len(row) == 3]
    return [Piece(text)]


def _of_json(name: str, text: str, language: str | None) -> list[Piece]:
    try:
        data: Any = json.loads(text)
        if language is not None and data.get("language") not in (None, language):
            return []
        segments = data.get("segments")
        if segments is None:
            return [Piece(str(data["text"]))]
        return [Piece(str(s["text"]), tuple(s.get("tokens") or ())) for s in segments]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(
            f"{name} is no transcript: it has neither segments with a text, nor a text"
        ) from error


class DraftVocabulary:
    """The tokens of a draft, from its folder. Raises ModelError for one that is not there or has no usable
    tokenizer."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoConfig, AutoTokenizer, WhisperTokenizer

        try:
            config = AutoConfig.from_pretrained(folder)
            self.speech = config.model_type == "whisper"
            kind: Any = WhisperTokenizer if self.speech else AutoTokenizer
            self.tokenizer: Any = kind.from_pretrained(folder)
            self.size = int(config.get_text_config().vocab_size)
            self.always = frozenset(i for i in self._always(config) if 0 <= i < self.size)
            if not self.tokenizer("a", add_special_tokens=False)["input_ids"]:
                raise ValueError("it lacks tokenizer.json, or vocab.json with merges.txt")
        except Exception as error:  # a damaged tokenizer.json raises a bare Exception
            line = damaged(folder) or one_line(error)
            raise ModelError(
                f"{folder} has no usable configuration and tokenizer: {line}"
            ) from error

    def _always(self, config: Any) -> set[int]:
        """Special tokens; of Whisper everything from end-of-text on: languages, tasks and timestamps."""
        ends = config.eos_token_id
        ends = [ends] if isinstance(ends, int) else list(ends or ())
        found = {*self.tokenizer.all_special_ids, *self.tokenizer.added_tokens_decoder, *ends}
        return found | set(range(min(ends), self.size)) if self.speech and ends else found

    def count(self, pieces: Sequence[Piece]) -> Counter[int]:
        """How often each token occurs."""
        counted: Counter[int] = Counter()
        texts: list[str] = []
        for piece in pieces:
            if piece.tokens and self._wrote(piece):
                counted.update(piece.tokens)
            else:
                texts += self._as_written(piece.text)
        if texts:
            found = self.tokenizer(texts, add_special_tokens=False, verbose=False)
            for ids in found["input_ids"]:
                counted.update(ids)
        return Counter({token: n for token, n in counted.items() if 0 <= token < self.size})

    def _wrote(self, piece: Piece) -> bool:
        """Whether a piece's tokens are of this vocabulary: they give its text."""
        try:
            text = self.tokenizer.decode(list(piece.tokens), skip_special_tokens=True)
        except (TypeError, ValueError, OverflowError, IndexError):
            return False
        return bool(str(text).strip() == piece.text.strip())

    def _as_written(self, text: str) -> Iterator[str]:
        """The texts as a model writes them: Whisper's segments begin with a space."""
        if not self.speech:
            yield text
            return
        for line in text.splitlines():
            if line.strip():
                yield f" {line.strip()}"


def list_of(
    vocabulary: DraftVocabulary,
    names: Sequence[str],
    *,
    keep: int | None = None,
    coverage: float = 1.0,
    language: str | None = None,
) -> DraftTokens:
    """The tokens that files use, see `DraftTokens.most_frequent`, and all special ones; without transcripts
    that say that they are in another language than `language`. Raises UsageError for files that cannot be
    read, or that have no text."""
    counted: Counter[int] = Counter()
    for name in names:
        counted += vocabulary.count(read(name, language))
    if not counted:
        which = "" if language is None else f" in {language!r}"
        raise UsageError(
            f"there is no text{which} in these files: give transcripts or texts of your own"
        )
    shown = ", ".join("stdin" if name == STDIN else Path(name).name for name in names[:3])
    more = f" and {len(names) - 3} more files" if len(names) > 3 else ""
    source = shown + more if language is None else f"{language}: {shown}{more}"
    return DraftTokens.most_frequent(
        counted, vocabulary.always, vocabulary.size, source, keep=keep, coverage=coverage
    )
