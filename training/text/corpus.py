"""The training documents of the text pair: questions with answers, and plain sentences.

Definitions and examples are from WordNet (Debian's `wordnet-base`), for words in an ordinary word list.
Minutes are generated. The plain sentences were written for this project. One document in forty is held
out by a hash of its question (`held_out`), so that held-out words are never defined in training.
"""

from __future__ import annotations

import functools
import random
import re
from dataclasses import dataclass
from pathlib import Path

from training.sentences.held_out import held_out, read_lines
from training.text.minutes import minutes, request

WORDNET = Path("/usr/share/wordnet")
WORDS = Path("/usr/share/dict/american-english-small")
ASK = 'Define "{}".', 'What does "{}" mean?'
KINDS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
LONGEST = 14  # words of a gloss or an example
ORDINARY = ("ordinary.txt", "ordinary_news.txt", "ordinary_talk.txt", "ordinary_wide.txt")
DEFINED = 6000  # most used words that are defined
GLOSSARY, PLAIN_GLOSS = 600, 8  # most used nouns with a gloss of few words
REPEATS = 16  # repetitions of the glossary per pass: memorising takes some hundred readings
MINUTES = 1500
SEED = 20


@dataclass(frozen=True)
class Document:
    """A question with its answer; plain text has no question."""

    kind: str
    answer: str
    question: str | None = None

    @property
    def held_out(self) -> bool:
        return held_out(self.topic)

    @property
    def topic(self) -> str:
        """The key of the held-out hash: definition and example of a word stay together."""
        if self.question is None:
            return self.answer
        quoted = re.search(r'"([a-z]+)"', self.question)
        return quoted[1] if quoted else self.question


@dataclass(frozen=True)
class Sense:
    """The most frequent sense of a word: gloss, example or None, and frequency."""

    word: str
    kind: str
    gloss: str
    example: str | None
    uses: int


@functools.cache
def senses() -> tuple[Sense, ...]:
    """The senses of every plain word in both WordNet and the word list, by frequency."""
    plain = set(WORDS.read_text("utf-8").split())
    found: dict[str, Sense] = {}
    for kind in KINDS:
        glosses = _glosses(kind)
        for line in _entries(WORDNET / f"index.{kind}"):
            fields = line.split()
            word, pointers = fields[0], int(fields[3])
            if word not in plain or not re.fullmatch(r"[a-z]{2,12}", word):
                continue
            uses = int(fields[5 + pointers])  # tagged senses
            gloss, example = _parts(glosses[fields[6 + pointers]], word)
            sense = Sense(word, kind, gloss, example, uses)
            if gloss and (word not in found or uses > found[word].uses):
                found[word] = sense
    return tuple(sorted(found.values(), key=lambda s: (-s.uses, s.word)))


def _entries(path: Path) -> list[str]:
    lines = path.read_text("utf-8", errors="replace").splitlines()
    return [line for line in lines if not line.startswith(" ")]


def _glosses(kind: str) -> dict[str, str]:
    """Glosses by the offset that index files use."""
    lines = _entries(WORDNET / f"data.{kind}")
    return {line[:8]: line.partition("| ")[2].strip() for line in lines}


def _parts(text: str, word: str) -> tuple[str, str | None]:
    """The first clause of a gloss as a sentence, or "", and an example with the word."""
    gloss = re.sub(r"\([^)]*\)", "", text.split('"')[0]).split(";")[0]
    gloss = re.sub(r"\s+", " ", gloss).strip(" ,:")
    if not re.fullmatch(r"[a-zA-Z ,'\-]+", gloss) or not 2 <= len(gloss.split()) <= LONGEST:
        return "", None
    for example in re.findall(r'"([^"]+)"', text):
        if 4 <= len(example.split()) <= LONGEST and word in example.split():
            if re.fullmatch(r"[a-zA-Z ,'\-]+", example):
                return _sentence(gloss), _sentence(example)
    return _sentence(gloss), None


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def glossary() -> list[Document]:
    """Definitions to memorise, with both forms of the question; none is held out."""
    short = [s for s in senses() if s.kind == "noun" and len(s.gloss.split()) <= PLAIN_GLOSS]
    return [
        document
        for sense in short[:GLOSSARY]
        for ask in ASK
        if not (document := Document("glossary", sense.gloss, ask.format(sense.word))).held_out
    ]


@functools.cache
def documents(seed: int = SEED) -> tuple[Document, ...]:
    """All documents, including held-out ones, in a fixed order."""
    rng = random.Random(seed)
    found = []
    for sense in senses()[:DEFINED]:
        ask = rng.choice(ASK)
        found.append(Document("definition", sense.gloss, ask.format(sense.word)))
        if sense.example:
            found.append(Document("example", sense.example, f'Use "{sense.word}" in a sentence.'))
    for _ in range(MINUTES):
        question, team, date = request(rng)
        found.append(Document("minutes", minutes(rng, team, date), question))
    found += glossary()
    for name in ORDINARY:
        found += [Document("plain", line) for line in read_lines(name)]
    return tuple(found)
