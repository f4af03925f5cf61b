"""Generated minutes of meetings, with the word lists of the meeting grammar.

Choices follow Zipf's law over a list that is rotated by team or subject, so that words are predictable to a
degree, as in real text, and the minutes of teams differ.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Sequence

from training.sentences.lexicon import LISTS
from training.sentences.read_aloud import MONTHS

STEEPNESS = 1.6
"""The exponent of Zipf's law: the first word of a list is drawn in about four of nine cases."""

VERBS = tuple(v for v in LISTS["verb"] if v not in ("present", "explain", "check", "negotiate"))
SINGLE = tuple(t for t in LISTS["thing"] if not t.endswith("analysis"))


def pick(rng: random.Random, words: Sequence[str], turn: str, skip: int = 0) -> str:
    """Draw one of `words`; `turn` rotates the list, and `skip` moves the result further."""
    start = zlib.crc32(turn.encode()) + skip
    weights = [(rank + 1) ** -STEEPNESS for rank in range(len(words))]
    rank = rng.choices(range(len(words)), weights)[0]
    return words[(start + rank) % len(words)]


def request(rng: random.Random) -> tuple[str, str, str]:
    """The user's request, with team and date."""
    team = rng.choice(LISTS["team"])
    date = f"{rng.choice(MONTHS)} {rng.randint(1, 28)}"
    return f"Write the minutes of the {team} meeting on {date}.", team, date


def minutes(rng: random.Random, team: str, date: str) -> str:
    """Generate title, people, two to four subjects with decisions, actions, and the next meeting."""
    names = list(dict.fromkeys(pick(rng, LISTS["name"], team, 5 * n) for n in range(4)))
    lines = [f"Minutes of the {team} team, {date}", f"Present: {', '.join(names)}"]
    actions = []
    for number in range(rng.choice((2, 2, 3, 3, 3, 4))):
        thing = pick(rng, SINGLE, team, 7 * number)
        person = pick(rng, names, thing)
        verb = pick(rng, VERBS, thing)
        lines.append(f"{number + 1}. The {thing}")
        lines.append(_report(rng, thing, team, person))
        lines.append(_decision(rng, thing, verb))
        when = pick(rng, ("this week", "next week", "by Friday", "before lunch", "today"), verb)
        actions.append(f"- {person} will {verb} the {thing} {when}.")
    lines += ["Actions", *actions]
    place = pick(rng, LISTS["place"], team)
    lines.append(f"The next meeting is on {pick(rng, DAYS, team)} in the {place}.")
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", "\n".join(lines))


DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")


def _report(rng: random.Random, thing: str, team: str, person: str) -> str:
    problem = pick(rng, LISTS["problem"], thing)
    outsider = pick(rng, LISTS["person"], team)
    kinds = (
        f"{person} presented the {pick(rng, LISTS['adj'], thing)} {thing}.",
        f"{person} reported a {problem}.",
        f"The {outsider} asked for a {pick(rng, LISTS['adj'], thing)} {thing}.",
        f"The {thing} was {pick(rng, LISTS['past'], thing)} because of a {problem}.",
    )
    return pick(rng, kinds, "report of " + thing)


def _decision(rng: random.Random, thing: str, verb: str) -> str:
    reason = pick(rng, LISTS["reason"], thing)
    kinds = (
        f"The team agreed to {verb} the {thing}, because {reason}.",
        f"It was decided that the team should {verb} it.",
        f"The {thing} will be discussed again next time, because {reason}.",
    )
    return pick(rng, kinds, "decision on " + thing)
