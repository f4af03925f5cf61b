"""Short utterances with rare words from Debian's `wamerican-small`, for spelling coverage.

Every word occurs about once, in frames that do not predict it, so that it must be heard.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

PATH = Path("/usr/share/dict/american-english-small")
FRAMES = (
    "{A} and {b}.",
    "{A}, {b}, and {c}.",
    "{A} {b} {c}.",
    "The {a} was {b}.",
    "Her {a} and his {b}.",
    "They said {a}, not {b}.",
    "We talked about {a} and {b}.",
    "I wrote down {a}, then {b}, then {c}.",
    "Is it {a} or {b}?",
    "There is no {a} without {b}.",
    "From {a} to {b}.",
    "You can call it {a}.",
    "What does {a} mean?",
    "It was more {a} than {b}, but less {c}.",
    "He kept saying {a} while she was reading about {b}.",
    "Next on the list are {a}, {b}, {c}, and {d}.",
    "Please spell {a} for me.",
    "Some {a}, a few {b}, and several {c}.",
    "{A} is the opposite of {b}.",
    "After the {a}, we will look at the {b}.",
)


def vocabulary() -> list[str]:
    """Lower-case words of 3 to 14 letters, without possessives."""
    lines = PATH.read_text("utf-8").split()
    return [w for w in lines if re.fullmatch(r"[a-z]{3,14}", w)]


def utterances(seed: int) -> list[str]:
    """Utterances of two to four words each, every word once, in random order."""
    rng = random.Random(seed)
    pool = vocabulary()
    rng.shuffle(pool)
    result = []
    while len(pool) >= 4:
        frame = rng.choice(FRAMES)
        names = [n for n in "abcd" if "{" + n + "}" in frame or "{" + n.upper() + "}" in frame]
        values = {n: pool.pop() for n in names}
        result.append(
            frame.format(**values, **{n.upper(): w.capitalize() for n, w in values.items()})
        )
    return result
