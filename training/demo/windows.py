"""Windows of speech and their token rows in Whisper's format.

Clips of one or two speakers are placed on a silent window with gaps; each clip is a sentence and becomes
one segment with its true times. Knows the ids of `vocabulary`, but not the model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from transformers import WhisperTokenizer

from training.sentences import vocabulary

RATE = 16_000
IGNORE = -100
GRID = 10  # per second: so small a model does not resolve less than 0.1 s
FIRST_TIME = 1.0  # Whisper's rules force the first timestamp to at most this many seconds
# The characters of the CTC head; index 0 is the blank.
ALPHABET = " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789'.,?!-:$%"
_CHARACTER = {c: i + 1 for i, c in enumerate(ALPHABET)}


@dataclass(frozen=True)
class Clip:
    """One spoken sentence; `start` and `length` are in samples of its shard."""

    text: str
    shard: int
    start: int
    length: int
    family: str


@dataclass
class Window:
    """Audio [N] float32, its token row, the labels of that row and the CTC characters."""

    audio: np.ndarray
    tokens: list[int]
    labels: list[int]
    characters: list[int]
    texts: list[str] = field(default_factory=list)


class Pool:
    """All synthesised clips, memory-mapped; `refresh` adds new shards."""

    def __init__(self, folder: Path, tokenizer: WhisperTokenizer) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self.names: list[str] = []
        self.shards: list[np.ndarray] = []
        self.clips: list[Clip] = []
        self.ids: list[list[int]] = []
        self.families: dict[str, list[int]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Add new shards in order of their names."""
        for path in sorted(self.folder.glob("*.npy")):
            if path.name in self.names or path.name.endswith(".tmp.npy"):
                continue
            self.names.append(path.name)
            self.shards.append(np.load(path, mmap_mode="r"))
            lines = [json.loads(s) for s in path.with_suffix(".jsonl").read_text().splitlines()]
            for line in lines:
                clip = Clip(shard=len(self.shards) - 1, **line)
                self.families.setdefault(clip.family, []).append(len(self.clips))
                self.clips.append(clip)
            texts = [" " + line["text"] for line in lines]
            self.ids += self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        self.lengths = np.array([clip.length for clip in self.clips])
        self.by_length = np.argsort(self.lengths, kind="stable")

    @property
    def hours(self) -> float:
        return float(self.lengths.sum()) / RATE / 3600

    def audio(self, index: int) -> np.ndarray:
        """Samples of one clip as float32."""
        clip = self.clips[index]
        raw = self.shards[clip.shard][clip.start : clip.start + clip.length]
        return raw.astype(np.float32) / 32768

    def neighbours(self, place: float, share: float) -> np.ndarray:
        """Clips [K] of nearly the same length: a `share` of all, `place` 0..1 from the shortest."""
        width = max(1, round(share * len(self.clips)))
        begin = round(place * (len(self.clips) - width))
        return self.by_length[begin : begin + width]

    def fitting(
        self, room: int, choices: list[int] | None, rng: np.random.Generator, tries: int = 12
    ) -> int | None:
        """A random clip of at most `room` samples: the longest of several draws, to fill windows."""
        best = None
        for _ in range(tries):
            index = int(rng.integers(len(self.clips)))
            if choices is not None:
                index = choices[int(rng.integers(len(choices)))]
            if self.lengths[index] <= room and (
                best is None or self.lengths[index] > self.lengths[best]
            ):
                best = index
        return best


def _gap(rng: np.random.Generator) -> float:
    """Seconds between two sentences: mostly short, sometimes a long pause."""
    return float(rng.uniform(0.06, 0.7) if rng.random() < 0.88 else rng.uniform(0.7, 4.0))


def compose(
    pool: Pool, seconds: float, rng: np.random.Generator, *, sparse: float = 0.05
) -> tuple[np.ndarray, list[tuple[int, float, float]]]:
    """Compose audio [N] and its sentences as (clip, start, end) in seconds.

    `sparse` is the share of mostly empty windows.
    """
    total = round(seconds * RATE)
    audio = np.zeros(total, np.float32)
    families: list[list[int]] | None = None
    if rng.random() < 0.75:
        first = pool.clips[int(rng.integers(len(pool.clips)))].family
        families = [pool.families[first]]
        if rng.random() < 0.5:
            second = pool.clips[int(rng.integers(len(pool.clips)))].family
            families.append(pool.families[second])
    placed: list[tuple[int, float, float]] = []
    lead = rng.uniform(0.0, 0.4) if rng.random() < 0.85 else rng.uniform(0, min(8, seconds / 2))
    position = int(lead * RATE)
    limit = 1 if rng.random() < sparse else 99
    while len(placed) < limit:
        room = total - position - int(0.05 * RATE)
        choices = families[int(rng.integers(len(families)))] if families else None
        index = pool.fitting(room, choices, rng, tries=4 if room > 8 * RATE else 14)
        if index is None:
            break
        clip = pool.audio(index) * 10 ** (rng.uniform(-6, 0) / 20)
        audio[position : position + len(clip)] += clip
        end = position + len(clip)
        placed.append((index, position / RATE, end / RATE))
        position = end + int(_gap(rng) * RATE)
    return audio, placed


def label(
    pool: Pool,
    placed: list[tuple[int, float, float]],
    rng: np.random.Generator,
    *,
    times: bool,
    prompted: bool,
) -> tuple[list[int], list[int], list[float]]:
    """Return the token row, its labels, and the approximate place of each label in seconds.

    A negative place is unknown.

    The label at <|startoftranscript|> is the language, or <|nospeech|> for an empty window; prompt
    and forced tokens carry no other label.
    """
    prefix: list[int] = []
    if prompted:
        previous = [pool.ids[int(rng.integers(len(pool.ids)))] for _ in range(rng.integers(1, 4))]
        prefix = [vocabulary.START_OF_PREV, *(token for ids in previous for token in ids)]
    forced = [vocabulary.SOT, vocabulary.EN, vocabulary.TRANSCRIBE]
    body: list[int] = []
    places: list[float] = []
    if times:
        for number, (index, start, end) in enumerate(placed):
            opening = min(start, FIRST_TIME) if number == 0 else start
            body += [moment(opening), *pool.ids[index], moment(end)]
            places += [start, *_spread(start, end, len(pool.ids[index])), end]
        body = body or [vocabulary.timestamp(0.0)]
    else:
        forced.append(vocabulary.NO_TIMESTAMPS)
        for index, start, end in placed:
            body += pool.ids[index]
            places += _spread(start, end, len(pool.ids[index]))
    tokens = prefix + forced + body
    labels = [IGNORE] * len(prefix) + [vocabulary.EN if placed else vocabulary.NO_SPEECH]
    labels += [IGNORE] * (len(forced) - 2) + body + [vocabulary.EOT]
    unknown = [-1.0] * (len(prefix) + len(forced) - 1)
    places = (unknown + places + [-1.0] * len(labels))[: len(labels)]
    return tokens, labels, places


def moment(seconds: float) -> int:
    """The timestamp token of a boundary, on a grid coarse enough for target and draft to agree."""
    return vocabulary.timestamp(round(seconds * GRID) / GRID)


def mislead(row: list[int], rng: np.random.Generator) -> list[int]:
    """Insert mistakes into the text so far; the labels stay correct.

    In training a model reads a correct prefix, in use its own. A timestamp that was seconds off made the
    demo pair loop: it continued at the timestamp, not after the last word. One text token in 25 is replaced
    by a random one, and one timestamp in 6 is moved by some seconds.
    """
    begin = row.index(vocabulary.SOT) + 3
    wrong = list(row)
    for slot in range(begin, len(row)):
        if row[slot] < vocabulary.PIECES and rng.random() < 0.04:
            wrong[slot] = int(rng.integers(vocabulary.PIECES))
        elif row[slot] >= vocabulary.timestamp(0.0) and rng.random() < 0.16:
            seconds = (row[slot] - vocabulary.timestamp(0.0)) / 50 + rng.normal(0, 3)
            wrong[slot] = moment(min(max(seconds, 0.0), 30.0))
    return wrong


def _spread(start: float, end: float, count: int) -> list[float]:
    """The middles of `count` equal parts of a sentence."""
    return [start + (end - start) * (k + 0.5) / count for k in range(count)]


def characters(texts: list[str]) -> list[int]:
    return [_CHARACTER[c] for c in " ".join(texts) if c in _CHARACTER]
