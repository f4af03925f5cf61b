"""What people call a language, and what a model knows of it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from transformers.models.whisper.tokenization_whisper import LANGUAGES as THEIRS
from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

from forescribe.asr.errors import UsageError
from forescribe.asr.model.languages import LANGUAGES, ONLY, Spoken, read_languages

OLD = LANGUAGES.keys() - {"yue"}
"""What models before large-v3 know."""


def test_languages_are_those_of_transformers_in_the_same_order() -> None:
    assert list(LANGUAGES.items()) == list(THEIRS.items())


@pytest.mark.parametrize(("name", "code"), TO_LANGUAGE_CODE.items())
def test_every_name_that_openai_knows_is_known(name, code) -> None:
    for written in (name, name.title(), f" {name.upper()} "):
        assert read_languages(written).one == code


@pytest.mark.parametrize(
    ("names", "code", "left_out"),
    [
        *[(name, "en", "no regions") for name in ("en-US", "en_US", "EN-gb", "American English")],
        ("pt-BR", "pt", "no regions"),
        ("Portuguese (Brazil)", "pt", None),
        ("zh-Hant", "zh", "no scripts"),
        ("zh-Hant-TW", "zh", "no regions and no scripts"),
        ("de-CH-1996", "de", "no regions and no variants"),
        *[(name, "en", None) for name in ("eng", "Englisch", "anglais", "English")],
        *[(name, "fr", None) for name in ("Français", "fra", "fre", "FR", "французский")],
        *[(name, "de", None) for name in ("deu", "ger", "Deutsch", "German")],
        *[(name, "de", "region") for name in ("de_DE.UTF-8", "de_DE@euro")],
        *[(name, "no", None) for name in ("no", "nb", "nob", "Norsk", "Norwegian Bokmål")],
        *[(name, "nn", None) for name in ("nn", "nno", "Nynorsk")],
        *[(name, "jw", None) for name in ("jw", "jv", "jav", "Javanese")],
        *[(name, "tl", None) for name in ("tl", "fil", "tgl", "Filipino", "Tagalog")],
        *[(name, "he", None) for name in ("he", "iw", "heb", "עברית")],
        *[(name, "zh", None) for name in ("zh", "cmn", "zho", "Mandarin", "中文")],
        *[(name, "yue", None) for name in ("yue", "zh-yue", "Cantonese", "粵語")],
        ("in", "id", None),
        ("gsw", "de", "nearest"),
        ("arz", "ar", "nearest"),
    ],
)
def test_a_language_is_read_as_people_write_it(names, code, left_out) -> None:
    spoken = read_languages(names)
    assert spoken.codes == (code,)
    assert spoken.notes == () or (left_out is not None and left_out in spoken.notes[0])
    assert bool(spoken.notes) is (left_out is not None)


def test_a_language_that_a_model_lacks_is_taken_as_one_that_is_written_alike() -> None:
    spoken = read_languages("yue", OLD)
    assert spoken.one == "zh" and spoken.notes[0].endswith("the nearest that this model knows")
    assert read_languages("nb", {"nn", "en"}).one == "nn"


def test_several_are_read_one_by_one_and_told_once() -> None:
    spoken = read_languages(" de, en-US,Englisch , en-US,")
    assert spoken.codes == ("de", "en") and len(spoken.notes) == 1
    assert spoken.one is None and spoken.text == "de,en"
    for detected in (None, "", "auto", " AUTO "):
        assert read_languages(detected) == Spoken()
    for wrong in (",", "de,auto", ",".join(["de-DE"] * 101)):
        with pytest.raises(UsageError, match="give codes or names"):
            read_languages(wrong)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("germn", "unknown language 'germn': did you mean de (German)?"),
        ("frnch", "did you mean fr (French)?"),
        ("Portuges", "did you mean pt (Portuguese)?"),
        ("jp", "unknown language 'jp': did you mean ja (Japanese)?"),
        ("ua", "did you mean uk (Ukrainian)?"),
        ("jap", "did you mean ja (Japanese)?"),
        ("klingon", "this model does not know Klingon ('klingon')"),
        ("ga", "this model does not know Irish ('ga')"),
        ("xx", "unknown language 'xx'"),
        ("Bavarian", "this model does not know Bavarian ('Bavarian')"),
        ("German and English", "languages 'German and English': separate them by commas"),
        ("de;en", "separate them by commas"),
        ("\x00", "unknown language"),
        ("\udcff", "unknown language"),
        ("x" * 100_000, "give a code such as de, or a name such as German"),
    ],
)
def test_what_is_unknown_gets_the_nearest_name_and_no_list(name, told) -> None:
    with pytest.raises(UsageError) as refused:
        read_languages(name)
    assert len(refused.value.message) < 150
    assert told in refused.value.message and ", ".join(sorted(LANGUAGES)[:3]) not in str(refused)


@pytest.mark.parametrize("name", ["de", "Deutsch", "pt-BR", "nonsense"])
def test_a_model_of_one_language_says_so(name) -> None:
    with pytest.raises(UsageError) as refused:
        read_languages(name, ("en",))
    assert refused.value.message == ONLY
    assert read_languages("en-GB,Englisch", ("en",)).one == "en"


def test_codes_and_english_names_are_read_without_the_library() -> None:
    """Its import takes longer than all other work before a model is loaded."""
    code = (
        "import sys; from forescribe.asr.model.languages import read_languages as r;"
        "r('de,German,en,auto'.removesuffix(',auto')); assert 'langcodes' not in sys.modules;"
        "r('de-DE'); assert 'langcodes' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
