"""Lists of terms, and the words that may be one."""

from __future__ import annotations

import pytest

from forescribe.asr.errors import UsageError
from forescribe.asr.words.replacements import Replacements
from forescribe.asr.words.terms import MOST_TERMS, Term, TermList, lines_of, read_terms


def test_a_line_says_how_a_term_is_written_spoken_and_weighed() -> None:
    lines = (
        "# of the team",
        "",
        " Lynde ",
        "cube net ease => Kubernetes",
        "C# *2",
        "x => C++ *0.5",
    )
    assert read_terms(lines) == (
        Term("Lynde", "Lynde"),
        Term("Kubernetes", "cube net ease"),
        Term("C#", "C#", 2.0),
        Term("C++", "x", 0.5),
    )


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("Lynde", "give a list"),
        ([3], "line 1, 3: it must be text"),
        (["ok", "<>"], "line 2, '<>': no letter"),
        (["=> x"], "no letter"),
        (["a" * 101], "more than 100 characters"),
        (["a\x07b"], "controls a line"),
        (["\ud800x"], "not Unicode"),
        (["x *0"], "the weight is 0"),
        (["x *11"], "the weight is 11"),
        ([f"term {n}" for n in range(100_000)], "100,000 terms; at most 10,000"),
    ],
)
def test_what_is_no_list_is_refused_with_the_line(lines, told) -> None:
    with pytest.raises(UsageError, match=told):
        read_terms(lines)


def test_a_file_without_a_term_is_refused(tmp_path) -> None:
    file = tmp_path / "terms.txt"
    file.write_text("# nothing\n\n")
    with pytest.raises(UsageError, match="is empty"):
        lines_of("--terms", file, read_terms)
    file.write_bytes(b"Helen\nZo\xeb\n")
    with pytest.raises(UsageError, match=r"terms.txt cannot be read: line 2 is not UTF-8"):
        lines_of("--terms", file, read_terms)
    with pytest.raises(UsageError, match="cannot be read"):
        lines_of("--terms", tmp_path / "none.txt", read_terms)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_file_may_be_of_an_editor_of_windows(tmp_path, encoding) -> None:
    file = tmp_path / "terms.txt"
    file.write_bytes("Zoë Okonkwo\r\n夕ワー\r\n".encode(encoding))
    assert lines_of("--terms", file, read_terms) == ("Zoë Okonkwo", "夕ワー")


@pytest.mark.parametrize(
    ("check", "content", "told"),
    [
        (
            read_terms,
            "Zoë\n<>\n\nb *99",
            "line 2, '<>': no letter .*; line 4, 'b .99': the weight is 99",
        ),
        (
            Replacements.of,
            "a => b\nLynde\n/x\nA => c",
            "line 2, 'Lynde': write 'heard => meant'; line 3, '/x': write '/expression/ => meant'; line 4, ",
        ),
        (read_terms, "<>\n" * 100, "line 20, .* … .*line 100, '<>': no letter"),
    ],
)
def test_all_wrong_lines_of_a_file_are_told_at_once(tmp_path, check, content, told) -> None:
    file = tmp_path / "list.txt"
    file.write_text(content)
    with pytest.raises(UsageError, match=f"--terms {file}: .*{told}"):
        lines_of("--terms", file, check)


def places(terms: tuple[str, ...], text: str, **options) -> set[tuple[str, str, str]]:
    """What is written, the term, and the ending that stays."""
    words = [f" {word}" for word in text.split()] if options.get("spaces", True) else list(text)
    found = TermList.of(terms).candidates(words, **options)
    return {("".join(words[c.first : c.last]).strip(), c.term.text, c.ending) for c in found}


@pytest.mark.parametrize(
    ("term", "text", "place"),
    [
        ("Guinevere", "the queen Gweniverer called", ("Gweniverer", "Guinevere", "")),
        ("Basingstoke", "miles from Bayzing Stoke now", ("Bayzing Stoke", "Basingstoke", "")),
        ("D'Artagnan", "in fact, Dartanian, we say", ("Dartanian,", "D'Artagnan", "")),
        ("Lynde", "Mrs. Lind's house", ("Lind's", "Lynde", "'s")),
        ("goo net ease => Kubernetes", "on goonetease nodes", ("goonetease", "Kubernetes", "")),
        ("GitHub", "look at github today", ("github", "GitHub", "")),
        ("Ростов", "город Растов там", ("Растов", "Ростов", "")),
    ],
)
def test_what_is_written_or_sounds_like_a_term_is_a_candidate(term, text, place) -> None:
    assert place in places((term,), text)


def test_a_character_is_a_word_where_no_spaces_are_written() -> None:
    assert ("東京夕ワー", "東京タワー", "") in places(
        ("東京タワー",), "昨日東京夕ワーに行く", spaces=False
    )


def test_a_term_that_is_written_already_is_not_looked_for_around_it() -> None:
    assert places(("Attila", "the Huns"), "near Attila's palace the Huns sat") <= {
        ("Attila's", "Attila", "'s"),
        ("the Huns", "the Huns", ""),
    }


@pytest.mark.parametrize("term", ["Lloyd's", "Lloyd’s"])
def test_a_possessive_says_nothing_where_its_name_is_written_and_is_sought_without_it(term) -> None:
    assert places((term,), "my property on Lloyd, so that") <= {("Lloyd,", "Lloyd", "")}
    found = places((term,), "my property on Loyd, so that")
    assert {("Loyd,", term, ""), ("Loyd,", "Lloyd", "")} <= found
    assert ("Loyd's", term, "") in places((term,), "on Loyd's property")
    assert len(TermList.of((term,)).terms) == 1


def test_other_words_are_no_candidates_and_a_list_of_the_most_terms_is_searched() -> None:
    names = tuple(f"Zyx{number:05} Quark" for number in range(MOST_TERMS))
    assert places(names, "The press prints about four hundred brochures per hour.") == set()
