"""A grammar of sentences from meetings: agendas, action items, numbers, dates, names, questions.

Templates have slots in braces; a slot is a word list or a rule that draws a number. Numbers are written
as by Whisper: digits from ten up, and for money, times, dates and percentages.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from training.sentences.lexicon import LISTS
from training.sentences.read_aloud import MONTHS

SMALL = "two three four five six seven eight nine".split()
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday".split()


def _grouped(n: int) -> str:
    return f"{n:,}" if n >= 10_000 else str(n) if n < 1000 or 1900 <= n < 2100 else f"{n:,}"


def _amount(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.3:
        return f"${rng.choice((5, 12, 15, 20, 25, 30, 40, 45, 50, 60, 75, 80, 90))}"
    if kind < 0.6:
        return f"${_grouped(rng.randint(2, 99) * 100)}"
    if kind < 0.8:
        return f"${_grouped(rng.randint(10, 950) * 1000)}"
    if kind < 0.9:
        return f"${rng.randint(1, 9)}.{rng.randint(1, 9)} million"
    return f"${rng.randint(2, 90)} million"


def _count(rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.35:
        return rng.choice(SMALL)
    if draw < 0.8:
        return str(rng.randint(10, 99))
    if draw < 0.93:
        return str(rng.randint(10, 99) * 10)
    return _grouped(rng.randint(11, 99) * 100)


def _percent(rng: random.Random) -> str:
    if rng.random() < 0.25:
        return f"{rng.randint(1, 19)}.{rng.randint(1, 9)}%"
    return f"{rng.randint(1, 99)}%"


def _clock(rng: random.Random) -> str:
    hour = rng.randint(1, 12)
    draw = rng.random()
    if draw < 0.35:
        return f"{hour} {rng.choice(('a.m.', 'p.m.'))}"
    minute = rng.choice((10, 15, 20, 30, 40, 45, 50, 55))
    return f"{hour}:{minute}" + ("" if draw < 0.8 else rng.choice((" a.m.", " p.m.")))


RULES: dict[str, Callable[[random.Random], str]] = {
    "amount": _amount,
    "n": _count,
    "percent": _percent,
    "time": _clock,
    "small": lambda rng: rng.choice(SMALL),
    "date": lambda rng: f"{rng.choice(MONTHS)} {rng.randint(1, 30)}",
    "month": lambda rng: rng.choice(MONTHS),
    "year": lambda rng: str(rng.randint(1995, 2035)),
    "day": lambda rng: rng.choice(WEEKDAYS),
    "nth": lambda rng: rng.choice("first second third fourth fifth last next".split()),
    "room": lambda rng: str(rng.randint(10, 499)),
    "version": lambda rng: f"{rng.randint(1, 9)}.{rng.randint(0, 9)}",
}


def sentence(rng: random.Random) -> str:
    """Generate a sentence, filling slots from left to right."""
    text = rng.choice(LISTS["template"])
    while "{" in text:
        text = re.sub(r"\{(\w+)\}", lambda m: _fill(m[1], rng), text)
    text = re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", text)
    if text.endswith("m.."):
        text = text[:-1]
    return text[0].upper() + text[1:]


def _fill(slot: str, rng: random.Random) -> str:
    return RULES[slot](rng) if slot in RULES else rng.choice(LISTS[slot])


def sentences(count: int, seed: int) -> list[str]:
    """Generate `count` different sentences."""
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found.setdefault(sentence(rng))
    return list(found)
