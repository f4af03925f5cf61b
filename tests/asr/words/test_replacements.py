"""Replacements of words: what they say, and where they are made."""

from __future__ import annotations

import pytest

from forescribe.asr.errors import UsageError
from forescribe.asr.words.replacements import LIMIT_S, Replacements


def written(lines: tuple[str, ...], text: str, **options) -> str:
    """The text with all replacements."""
    made = Replacements.of(lines)
    for number in (None, *range(len(made.expressions))):
        if number is None:
            places = made.places(text, **options)
        else:
            places = made.places_by_expression(number, text)
        for place in reversed(places):
            text = text[: place.start] + place.written + text[place.end :]
    return text


@pytest.mark.parametrize(
    ("line", "text", "right"),
    [
        ("koo bernetes => Kubernetes", "On Koo  Bernetes nodes", "On Kubernetes nodes"),
        ("colour => color", "Colour, COLOUR, colours", "Color, COLOR, colours"),
        ("um =>", "So um I", "So  I"),
        (r"/(\d+) percent/ => \1 %", "about 12 percent faster", "about 12 % faster"),
        ("/(?i)mc ?donald/ => McDonald", "old mc donald", "old McDonald"),
        ("can => may", "I can't, I can", "I can't, I may"),
        ("um =>", "Well-um, um.", "Well-um, ."),
        ("300 => three hundred", "1,300 or 300, 3.300", "1,300 or three hundred, 3.300"),
        ("porter => Portier", "Porter's Porter.", "Portier's Portier."),
        ("Straße => Str.", "Die Straße, STRASSE", "Die Str., Str."),
        ("cafe\u0301 => Kaffee", "Café", "Kaffee"),
        ("istanbul => x", "\u0130stanbul", "\u0130stanbul"),
        ("x => 10\u00a0%", "x", "10\u00a0%"),
        ("/^We/ => They", " We arrived. We", " They arrived. We"),
        (r"/ dock/ => \n\x07!", "the dock", "the  !"),
    ],
)
def test_whole_words_are_replaced_with_their_capitals(line, text, right) -> None:
    assert written((line,), text) == right


def test_no_replacement_is_replaced_again_and_the_longest_comes_first() -> None:
    lines = ("a => b", "b => a", "a b => c")
    assert written(lines, "a x b x a b") == "b x a x c"


def test_words_need_not_be_whole_where_no_spaces_are_written() -> None:
    assert written(("夕ワー => タワー",), "東京夕ワーに", spaces=False) == "東京タワーに"
    assert written(("AI => 知能",), "AIとMAIL", spaces=False) == "知能とMAIL"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["Lynde"], "write 'heard => meant'"),
        (["... => x"], "give words to replace"),
        (["a => b", "", "A => c"], "line 3, 'A => c': another line writes 'b'"),
        (["/(/ => x"], r"line 1, '/\(/ => x': missing \)"),
        ([r"/a/ => \1"], "no such group"),
        (["a => b\x07"], "write 'heard => meant'"),
        ([f"w{n} => x" for n in range(100_000)], "100,000 replacements"),
        (["/a/ => b"] * 101, "101 expressions"),
        ([None], "must be text"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_line(lines, told) -> None:
    with pytest.raises(UsageError, match=told):
        Replacements(lines)


def test_an_expression_ends_after_its_time() -> None:
    slow = Replacements((r"/(a|aa)+$/ => x",))
    with pytest.raises(TimeoutError):
        slow.places_by_expression(0, "a" * 60 + "b")
    assert LIMIT_S <= 1
