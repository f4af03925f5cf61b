"""Redaction: marks in place of personal data, which presidio's recognisers find in a text.

    redactor = Redactor(("PERSON", "PHONE_NUMBER"))
    redactor.places("I am Anna, 212-555-0187", "en")     # [PERSON], [PHONE_NUMBER]

Numbers and network addresses are found by patterns and check digits. Names and places need a spaCy model of
the language, which is a package of its own; without it nothing is written. Loading takes seconds, and nothing
is fetched. Import is light.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from ..errors import UsageError, how_to_install
from .replacements import Place

NAMED = ("PERSON", "LOCATION", "NRP", "ORGANIZATION", "DATE_TIME")
"""Kinds that a language model finds; NRP is presidio's for nationality, religion and politics."""

ALL = "all"
PERSONAL = (
    *NAMED[:3],
    *("PHONE_NUMBER", "EMAIL_ADDRESS", "URL", "IP_ADDRESS", "MAC_ADDRESS", "CREDIT_CARD"),
    *("IBAN_CODE", "CRYPTO", "US_SSN", "UK_NHS", "MEDICAL_LICENSE"),
)
"""What `all` stands for."""

LEAST = 0.3
"""Of presidio's scores: a number that may be a telephone's has 0.4, any nine digits 0.05."""

SIZES = ("sm", "md", "lg", "trf")
"""Of spaCy's models: the largest that is installed is taken."""

_KIND = re.compile(r"[A-Z][A-Z0-9_]{0,40}")


def kinds_of(names: Iterable[str]) -> tuple[str, ...]:
    """The kinds of personal data, as presidio calls them; `all` stands for `PERSONAL`. Raises UsageError."""
    kinds = list[str]()
    for name in names:
        kind = name.strip().upper()
        if kind != ALL.upper() and not _KIND.fullmatch(kind):
            raise UsageError(
                f"redact: {name!r} is no kind of data; give all, or {', '.join(PERSONAL)}"
            )
        kinds += PERSONAL if kind == ALL.upper() else [kind]
    return tuple(dict.fromkeys(kinds))


def installed_models() -> list[str]:
    """The names of the spaCy models that are installed."""
    return sorted(entry.name for entry in entry_points(group="spacy_models"))


class Redactor:
    """Finds `kinds` of personal data. Raises UsageError where presidio is missing."""

    def __init__(self, kinds: tuple[str, ...]) -> None:
        self.kinds = kinds_of(kinds)
        for package in ("presidio_analyzer", "spacy"):
            if find_spec(package) is None:
                raise UsageError(f"redact needs presidio: {how_to_install('redact')}")

    def check(self, language: str) -> None:
        """Raises UsageError where names are to be found, and no model of the language is installed."""
        self._model(language)

    def places(self, text: str, language: str) -> list[Place]:
        """Where personal data stands, in order, and its marks; what overlaps is one place. Raises
        UsageError."""
        analyzer = _analyzer(language, self._model(language))
        if unknown := set(self.kinds) - {*analyzer.get_supported_entities(language), *PERSONAL}:
            known = ", ".join(sorted(analyzer.get_supported_entities(language)))
            raise UsageError(
                f"redact: presidio finds no {', '.join(sorted(unknown))}; it finds {known}"
            )
        found = analyzer.analyze(
            text, language=language, entities=list(self.kinds), score_threshold=LEAST
        )
        places = list[Place]()
        for each in sorted(found, key=lambda each: (each.start, -each.end, -each.score)):
            if places and each.start < places[-1].end:
                before = places.pop()
                end = max(before.end, each.end)
                places.append(Place(before.start, end, before.written))
            else:
                places.append(Place(each.start, each.end, f"[{each.entity_type}]"))
        return places

    def _model(self, language: str) -> str | None:
        """The spaCy model that finds names; None where none are looked for."""
        if not set(self.kinds) & set(NAMED):
            return None
        models = [name for name in installed_models() if name.startswith(f"{language}_")]
        if not models:
            family = "core_web" if language in ("en", "zh") else "core_news"
            raise UsageError(
                f"redact: names are found by a spaCy model of the language, and none of {language!r} is "
                f"installed: run `python -m spacy download {language}_{family}_sm`, or name kinds without "
                f"{', '.join(NAMED)}"
            )
        sizes = {size: place for place, size in enumerate(SIZES)}
        return max(models, key=lambda name: sizes.get(name.rpartition("_")[2], -1))


@cache
def _analyzer(language: str, model: str | None) -> Any:
    """Presidio for a language. It fetches models and lists of domains that it lacks: it is given both."""
    import spacy
    import tldextract
    from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
    from presidio_analyzer.nlp_engine import SpacyNlpEngine

    tldextract.tldextract.TLD_EXTRACTOR = tldextract.TLDExtract(suffix_list_urls=())
    engine = SpacyNlpEngine([{"lang_code": language, "model_name": model or "blank"}])
    try:
        engine.nlp = {language: spacy.blank(language) if model is None else spacy.load(model)}
    except (ImportError, OSError, ValueError) as error:
        raise UsageError(f"redact: spaCy cannot load {model or language}: {error}") from error
    registry = RecognizerRegistry(supported_languages=[language])
    registry.load_predefined_recognizers(languages=[language], nlp_engine=engine)
    return AnalyzerEngine(
        registry=registry,
        nlp_engine=engine,
        supported_languages=[language],
        log_decision_process=False,
    )
