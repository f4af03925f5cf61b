"""What counts as a right and as a false term."""

from __future__ import annotations

from benchmarks.quality.terms import lists_of, score


def test_false_terms_are_those_of_the_list_and_words_around_are_others() -> None:
    said = {"a": "miss lynde saw the month of may", "b": "she rang the bell"}
    unlisted = {"a": "miss lind saw a month of may", "b": "bella rang the bell"}
    written = {"a": "miss lynde saw a month of maay", "b": "bella rang the bell"}
    terms, listed = {"a": ["Lynde"]}, ("Lynde", "Maay", "Bella")
    lists = dict.fromkeys(said, listed)
    none = score(said, unlisted, terms, {}, unlisted)
    assert (none.terms, none.right, none.false, none.words) == (1, 0, 0, 11)
    assert (none.others, none.others_wrong) == (10, 2)
    found = score(said, written, terms, lists, unlisted)
    # "Bella" is written without the list too.
    assert (found.right, found.false, found.others_wrong) == (1, 1, 3)


def test_a_list_holds_the_terms_of_its_recordings_first_and_is_filled_up() -> None:
    terms = {f"r{n}": [f"term {n} {k}" for k in range(4)] for n in range(5)}
    ten = lists_of(list(terms), terms, 10)
    assert ten["r0"] == ten["r2"] == tuple(term for n in range(3) for term in terms[f"r{n}"])
    thousand = lists_of(list(terms), terms, 1000)
    assert len(thousand["r4"]) == len(set(thousand["r4"])) == 1000
    assert thousand["r4"][:8] == ten["r4"] and set(terms["r0"]) < set(thousand["r4"])
