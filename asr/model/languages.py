"""Languages as people name them, reduced to those that a model knows.

`read_languages` reads what is typed wherever a language is asked for: a model's own code (`de`), a tag or a
locale (`pt-BR`, `zh-Hant`, `en_US`), a code of three letters (`deu`), a name in English or another language
(`German`, `Allemand`), and several of them separated by commas. What they mean is langcodes' knowledge, with
its data; the import takes 0.1 s, so codes and English names do without. Knows nothing of tokens and models.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, NamedTuple

from ..errors import UsageError

if TYPE_CHECKING:
    from langcodes import Language

AUTO: Final = "auto"
"""In place of a language: detect it."""

_LISTED = """
en=english zh=chinese de=german es=spanish ru=russian ko=korean fr=french ja=japanese pt=portuguese
tr=turkish pl=polish ca=catalan nl=dutch ar=arabic sv=swedish it=italian id=indonesian hi=hindi fi=finnish
vi=vietnamese he=hebrew uk=ukrainian el=greek ms=malay cs=czech ro=romanian da=danish hu=hungarian ta=tamil
no=norwegian th=thai ur=urdu hr=croatian bg=bulgarian lt=lithuanian la=latin mi=maori ml=malayalam cy=welsh
sk=slovak te=telugu fa=persian lv=latvian bn=bengali sr=serbian az=azerbaijani sl=slovenian kn=kannada
et=estonian mk=macedonian br=breton eu=basque is=icelandic hy=armenian ne=nepali mn=mongolian bs=bosnian
kk=kazakh sq=albanian sw=swahili gl=galician mr=marathi pa=punjabi si=sinhala km=khmer sn=shona yo=yoruba
so=somali af=afrikaans oc=occitan ka=georgian be=belarusian tg=tajik sd=sindhi gu=gujarati am=amharic
yi=yiddish lo=lao uz=uzbek fo=faroese ht=haitian_creole ps=pashto tk=turkmen nn=nynorsk mt=maltese
sa=sanskrit lb=luxembourgish my=myanmar bo=tibetan tl=tagalog mg=malagasy as=assamese tt=tatar haw=hawaiian
ln=lingala ha=hausa ba=bashkir jw=javanese su=sundanese yue=cantonese
"""

LANGUAGES: Mapping[str, str] = {
    code: name.replace("_", " ")
    for code, _, name in (entry.partition("=") for entry in _LISTED.split())
}
"""English names in lower case by code, in the order of the tokens, as in openai's tokenizer: what models have
and what answers name, not all that is understood."""

_CODES: Mapping[str, str] = {name: code for code, name in LANGUAGES.items()}

ALIKE: Mapping[str, tuple[str, ...]] = {
    "yue": ("zh",),
    "nn": ("no",),
    "no": ("nn",),
    "nb": ("no", "nn"),
    "gsw": ("de",),
    "lb": ("de",),
}
"""Languages by which one can be read that a model or a draft lacks: they are written alike."""

SPACELESS = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages without spaces between words."""

FAR = 14
"""The distance, of those in Unicode's table, up to which one language stands for another: Moroccan Arabic and
Arabic have 14. From 20 on they are those that its speakers learn besides, such as English for Irish."""

_JOINED = re.compile(r"[/|;+&]|\s(and|or)\s", re.IGNORECASE)
"""Between several languages; langcodes would take the first and say nothing."""

SHOWN = 50
"""Characters of a name that a message repeats."""

ONLY = "this model knows English only; use a multilingual one"


class Spoken(NamedTuple):
    """Codes, none where the language is to be detected among all, and a line for each name of which something
    was left out."""

    codes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def one(self) -> str | None:
        """The code of a single language; None where it is to be detected."""
        return self.codes[0] if len(self.codes) == 1 else None

    @property
    def text(self) -> str | None:
        """The codes as they are typed; None: auto."""
        return ",".join(self.codes) or None


def read_languages(
    names: str | None, known: Collection[str] = LANGUAGES, only: str = ONLY
) -> Spoken:
    """The codes, of those that are `known`, of languages separated by commas, each once; none for None and
    `AUTO`. Of several, the language is detected among these.

    Raises UsageError for a name that is none, or a language that is not known: with the nearest name, or with
    `only` where one language alone is known. Also for commas alone, and for `AUTO` beside others.
    """
    named = list(filter(None, map(str.strip, (names or AUTO).split(","))))
    if [name.lower() for name in named] == [AUTO]:
        return Spoken()
    if not named or AUTO in map(str.lower, named) or len(named) > len(LANGUAGES):
        raise UsageError(f"languages {names!r}: give codes or names, or auto alone")
    for name in filter(_JOINED.search, named):
        raise UsageError(f"languages {name[:SHOWN]!r}: separate them by commas")
    found = [_reduced(name, known, only) for name in named]
    return Spoken(
        tuple(dict.fromkeys(code for code, _ in found)),
        tuple(dict.fromkeys(note for _, note in found if note)),
    )


def _reduced(name: str, known: Collection[str], only: str) -> tuple[str, str | None]:
    """The known code of one language, and what was left out of its name."""
    code = _CODES.get(name.lower(), name.lower())
    if code in known:
        return code, None
    language = _understood(name)
    taken, near = (None, 0) if language is None else _nearest(language, known)
    if language is None or taken is None:
        if len(known) == 1:
            raise UsageError(only)
        meant = _meant(name, known, spelt=language is None)
        if language is not None:
            what = f"this model does not know {language.language_name()} ({name[:SHOWN]!r})"
            raise UsageError(what + (meant or ""))
        advice = ": give a code such as de, or a name such as German"
        raise UsageError(f"unknown language {name[:SHOWN]!r}{meant or advice}")
    shown = f"language {name}: taken as {taken} ({LANGUAGES.get(taken, taken).title()})"
    if near > 1:
        return taken, f"{shown}, the nearest that this model knows"
    dropped = {
        "regions": language.territory,
        "scripts": language.script,
        "variants": language.variants or language.extensions or language.private,
    }
    left_out = [kind for kind, value in dropped.items() if value]
    return taken, f"{shown}; models know no {' and no '.join(left_out)}" if left_out else None


def _understood(name: str) -> Language | None:
    """What a name means, a tag before a name; None where it is neither. Of a locale (`de_DE.UTF-8`,
    `de_DE@euro`) the tag is read."""
    import langcodes

    try:
        tag = langcodes.get(re.split("[.@]", name)[0])
        if tag.is_valid() and tag.language is not None:
            return tag
    except ValueError:  # no tag
        pass
    try:
        return langcodes.find(name.replace("_", " "))
    except (LookupError, UnicodeError):  # no name, or bytes that are no text
        return None


def _nearest(language: Language, known: Collection[str]) -> tuple[str | None, int]:
    """The known code that stands for a language, and how far it is; None where none is near."""
    from langcodes import closest_match

    code = language.language or ""
    if code in known:
        return code, 0
    taken, near = closest_match(code, [*known], max_distance=FAR)
    if taken in known:
        return taken, near
    return next(filter(known.__contains__, ALIKE.get(code, ())), None), FAR


def _meant(name: str, known: Collection[str], spelt: bool) -> str | None:
    """The known language that is meant, as a question: of two letters that of the country, as many write `jp`
    for `ja`, else the one that is `spelt` nearly so."""
    import langcodes

    meant = None
    if len(name) == 2 and name.isascii() and name.isalpha():
        meant = langcodes.get(f"und-{name}").maximize().language
    if meant not in known:
        meant = None
    if meant is None and spelt:
        names = {name: code for code in known for name in (LANGUAGES.get(code, code), code)}
        close = get_close_matches(name[:SHOWN].lower(), names, n=1, cutoff=0.7)
        meant = names[close[0]] if close else None
    return meant and f": did you mean {meant} ({LANGUAGES.get(meant, meant).title()})?"
