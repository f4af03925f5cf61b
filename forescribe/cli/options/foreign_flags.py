"""Flags that people know from other programs: openai/whisper, whisperX, faster-whisper, whisper.cpp.

A command line with such flags is translated before it is parsed: both spellings (`--output_dir`,
`--output-dir`), switches bare or with True and False, other names for the same thing. A flag
without a meaning here is refused with the reason and the nearest alternative; no flag is accepted
and then ignored. Values that ask for what is done anyway (`--beam_size 1`) are accepted. Knows how
flags are written; their meanings are in `foreign_flag_table`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from forescribe.asr.errors import UsageError
from forescribe.asr.records.sources import NAMES

from .foreign_flag_table import FALSE, FOREIGN, FORMATS, SHORT, TRUE


@dataclass(frozen=True)
class KnownOptions:
    """The options of a command: names that take a value, and switches with the name that turns them off
    (None without one)."""

    valued: frozenset[str]
    switches: Mapping[str, str | None]

    def has(self, arguments: tuple[str, ...]) -> bool:
        """Whether the option at the front of these arguments, if any, is one of the command's."""
        return not arguments or arguments[0] in self.valued or arguments[0] in self.switches


def translate(typed: list[str], known: KnownOptions) -> list[str]:
    """Return the same request in our own options. Raises UsageError for flags without a meaning
    here."""
    return list(_Translation(typed, known).arguments())


class _Translation:
    """The arguments that are left, in reverse order, so that a flag can take its value from the end."""

    def __init__(self, typed: list[str], known: KnownOptions) -> None:
        self.left, self.known = typed[::-1], known

    def arguments(self) -> Iterator[str]:
        while self.left:
            token = self.left.pop()
            if token == "--":
                yield from [token, *self.left[::-1]]
                return
            if token.startswith("--"):
                yield from self._long(token)
            else:
                yield from self._short(token)

    def _short(self, token: str) -> Iterator[str]:
        """An option with one dash, or a recording."""
        if token in SHORT:
            raise UsageError(
                f"{token} is not supported: options of one dash are one letter here; {SHORT[token]}"
            )
        yield token
        if token in self.known.valued and self.left:  # the next argument is its value in any case
            yield _checked(token, self.left.pop())

    def _long(self, token: str) -> Iterator[str]:
        flag, equals, text = token.partition("=")
        name, value = flag.replace("_", "-"), text if equals else None
        if name in self.known.switches:
            yield _switched(flag, name, self._truth(value), self.known)
        elif name in self.known.valued:
            if value is not None:
                _checked(flag, value)
            yield token
            if value is None and self.left:
                yield _checked(flag, self.left.pop())
        elif name in FOREIGN:
            foreign = FOREIGN[name]
            given = self._truth(value) if foreign.switch else self._value(flag, value)
            ours = foreign.arguments(flag, given)
            # The parser refuses an option that this command does not have, under the name as typed.
            yield from ours if self.known.has(ours) else (flag,)
        else:
            yield token  # the parser refuses it and names similar options

    def _value(self, flag: str, value: str | None) -> str:
        if value is not None:
            return value
        if not self.left:
            raise UsageError(f"{flag} needs a value")
        return self.left.pop()

    def _truth(self, value: str | None) -> str:
        """`--x`, `--x True` or `--x=True`; a following word that is neither True nor False is a
        recording."""
        if value is None and self.left and self.left[-1].lower() in (TRUE, FALSE):
            value = self.left.pop()
        return TRUE if value is None else value.lower()


def _checked(flag: str, value: str) -> str:
    """The value, unless it names a recording, as that of whisper.cpp's `-f` does."""
    if flag.replace("_", "-") in FORMATS and os.path.splitext(value)[1][1:].lower() in NAMES:
        raise UsageError(
            f"{flag} {value}: {flag} names formats of results here (txt, srt, json, ...); a "
            f"recording needs no flag, as in `forescribe {shlex.quote(value)} {flag} srt`"
        )
    return value


def _switched(flag: str, name: str, truth: str, known: KnownOptions) -> str:
    if truth == TRUE:
        return name
    off = known.switches[name]
    if truth != FALSE or off is None:
        raise UsageError(f"{flag} is {'True or False' if off else 'a flag'}, not {truth!r}")
    return off


__all__ = ["KnownOptions", "translate"]
