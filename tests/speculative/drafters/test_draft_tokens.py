"""The list of tokens beside a draft: what is chosen, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.speculative.drafters.model_drafter import TOKENS_FILE, DraftTokens, bitmap
from forescribe.speculative.errors import LoadError

COUNTED = {7: 10, 3: 5, 9: 5, 4: 1}


def chosen(**how: Any) -> DraftTokens:
    return DraftTokens.most_frequent(COUNTED, [0, 11], 12, "a test", **how)


def test_all_tokens_that_occur_are_chosen_and_those_that_are_needed() -> None:
    found = chosen()
    assert found.ids == (0, 3, 4, 7, 9, 11)
    assert found.counts == (0, 5, 1, 10, 5, 0)
    assert found.coverage == 1 and found.occurrences == 21


def test_the_most_frequent_come_first_and_of_equals_the_lower_ids() -> None:
    assert chosen(coverage=10 / 21).ids == (0, 7, 11)
    assert chosen(coverage=10.5 / 21).ids == (0, 3, 7, 11)
    assert chosen(coverage=20 / 21).ids == (0, 3, 7, 9, 11)


@given(
    st.dictionaries(st.integers(0, 99), st.integers(1, 50), max_size=40),
    st.sets(st.integers(0, 99), min_size=1, max_size=9),
    st.floats(0, 1),
)
def test_a_list_is_read_as_it_was_written(
    counted: dict[int, int], always: set[int], coverage: float
) -> None:
    made = DraftTokens.most_frequent(counted, always, 100, "texts", coverage=coverage)
    assert DraftTokens.from_json(made.to_json()) == made
    assert always <= set(made.ids)
    assert made.coverage >= coverage or set(made.ids) == set(counted) | always


def test_a_folder_without_a_list_has_none(tmp_path: Path) -> None:
    assert DraftTokens.beside(tmp_path, 12) is None


GOOD = {"vocab_size": 12, "source": "s", "occurrences": 3, "ids": [1, 4], "counts": [2, 1]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": [4, 1]}, "ids ascend, and 1 follows 4"),
        ({"ids": [4, 4]}, "ids ascend, and 4 follows 4"),
        ({"ids": [4, 12]}, "token 12 is not in a vocabulary of 12"),
        ({"ids": [-1, 4]}, "integers from 0 on"),
        ({"ids": [1, 4.0]}, "integers from 0 on"),
        ({"ids": [True, 4]}, "integers from 0 on"),
        ({"ids": [], "counts": []}, "it lists no tokens"),
        ({"counts": [1]}, "2 ids and 1 counts"),
        ({"counts": [2, 2]}, "exceed the 3 tokens"),
        ({"ids": "14"}, "no list of tokens"),
        ({"ids": "!"}, "no list of tokens"),
        ({"ids": {}}, "no lists"),
        ({"source": None, "ids": None}, "no lists"),
        ({"vocab_size": 13}, "for a vocabulary of 13 tokens, and the draft has 12"),
    ],
)
def test_a_damaged_list_is_refused_with_its_path_and_a_remedy(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    (tmp_path / TOKENS_FILE).write_text(json.dumps(GOOD | changes))
    with pytest.raises(LoadError, match=message) as caught:
        DraftTokens.beside(tmp_path, 12)
    assert str(tmp_path / TOKENS_FILE) in str(caught.value) and "delete it" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", '{"ids": [1]}'])
def test_what_is_no_list_at_all_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / TOKENS_FILE).write_text(text)
    with pytest.raises(LoadError, match="is no list of tokens"):
        DraftTokens.beside(tmp_path, 12)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / TOKENS_FILE).write_bytes(b"\xff\xfe{}")
    with pytest.raises(LoadError, match="cannot be read"):
        DraftTokens.beside(tmp_path, 12)
    (tmp_path / TOKENS_FILE).unlink()
    (tmp_path / TOKENS_FILE).mkdir()
    with pytest.raises(LoadError, match="cannot be read"):
        DraftTokens.beside(tmp_path, 12)


@given(st.sets(st.integers(0, 300), min_size=1))
def test_ids_may_be_a_bitmap(ids: set[int]) -> None:
    stated = {"vocab_size": 301, "source": "s", "ids": bitmap(ids)}
    read = DraftTokens.from_json(json.dumps(stated))
    assert read.ids == tuple(sorted(ids)) and read.counts == (0,) * len(ids)
    assert DraftTokens.from_json(read.to_json()) == read
