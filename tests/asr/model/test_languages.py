"""The table of languages against transformers', which has openai's."""

from __future__ import annotations

from transformers.models.whisper.tokenization_whisper import LANGUAGES as THEIRS
from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

from forescribe.asr.model.tokens import CODES, LANGUAGES


def test_languages_are_those_of_transformers_in_the_same_order() -> None:
    assert list(LANGUAGES.items()) == list(THEIRS.items())
    assert CODES == TO_LANGUAGE_CODE
