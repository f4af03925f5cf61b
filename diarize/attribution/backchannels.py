"""Backchannels: short words of a listener within another speaker's sentence."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from types import MappingProxyType

BACKCHANNELS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        language: frozenset(text.split(", "))
        for language, text in {
            "en": "mm, mmm, mm hm, mhm, mm hmm, hm, hmm, uh huh, uhhuh, yeah, yep, yes, ok, okay, "
            "right, sure, oh, ah, aha, i see, really, wow, no, exactly, of course, true",
            "de": "mm, mhm, hm, ja, ja ja, jaja, genau, ok, okay, ach so, achso, aha, stimmt, klar, "
            "nein, nee, doch, gut, echt, oh, ah",
            "fr": "mm, hm, hum, oui, ouais, d'accord, ok, ah, ah bon, voilà, bien sûr, non, si, oh",
            "es": "mm, ajá, sí, claro, ya, vale, bueno, ok, ah, no, oh, de acuerdo",
            "it": "mm, sì, già, certo, ok, ah, eh, no, va bene, esatto, oh",
            "pt": "mm, sim, claro, pois, pois é, tá, ok, ah, não, certo, oh",
            "nl": "mm, ja, hm, oké, ok, precies, klopt, nee, oh, ah",
            "ja": "はい, うん, ええ, そう, そうですね, なるほど, へえ",
            "zh": "嗯, 对, 是, 好, 哦, 啊, 对对",
        }.items()
    }
)

_ALL = frozenset[str]().union(*BACKCHANNELS.values())


def is_backchannel(text: str, language: str | None) -> bool:
    """Whether `text` consists of backchannels; unknown languages use the words of all languages."""
    listed = BACKCHANNELS.get(language, _ALL) if language else _ALL
    return _made_of(_plain(text).split(), listed)


def _made_of(words: list[str], listed: frozenset[str]) -> bool:
    """Whether the words are a sequence of listed phrases."""
    starts = (n for n in range(1, len(words) + 1) if " ".join(words[:n]) in listed)
    return any(n == len(words) or _made_of(words[n:], listed) for n in starts)


def _plain(text: str) -> str:
    """Lower case with hyphens as spaces and without punctuation: "Mm-hm." becomes "mm hm"."""
    kept = [
        " " if unicodedata.category(sign) in ("Pd", "Zs") else sign
        for sign in unicodedata.normalize("NFC", text).casefold()
        if sign == "'" or unicodedata.category(sign)[0] in "LMZ" or sign == "-"
    ]
    return " ".join("".join(kept).split())
