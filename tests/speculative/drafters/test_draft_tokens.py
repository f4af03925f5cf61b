"""The list of tokens beside a draft: what is chosen, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.speculative.drafters.model_drafter import TOKENS_FILE, DraftTokens
from forescribe.speculative.errors import LoadError

COUNTED = {7: 10, 3: 5, 9: 5, 4: 1}


@pytest.mark.parametrize(
    ("occurrences", "ids"),
    [(21, (0, 3, 4, 7, 9, 11)), (10, (0, 7, 11)), (10.5, (0, 3, 7, 11)), (20, (0, 3, 7, 9, 11))],
)
def test_the_most_frequent_come_first_and_of_equals_the_lower_ids(occurrences, ids) -> None:
    made = DraftTokens.most_frequent(COUNTED, [0, 11], 12, "a test", coverage=occurrences / 21)
    assert made.ids == ids


@given(st.sets(st.integers(0, 300), min_size=1))
def test_a_list_is_read_as_it_was_written(ids: set[int]) -> None:
    made = DraftTokens(tuple(sorted(ids)), 301, "texts")
    assert DraftTokens.from_json(made.to_json()) == made
    stated = {"vocab_size": 301, "source": "texts", "ids": sorted(ids), "counts": [1] * len(ids)}
    assert DraftTokens.from_json(json.dumps(stated)) == made  # as earlier versions wrote it


def test_a_folder_without_a_list_has_none(tmp_path: Path) -> None:
    assert DraftTokens.beside(tmp_path, 12) is None


GOOD = {"vocab_size": 12, "source": "s", "ids": [1, 4]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": [4, 1]}, "ids ascend"),
        ({"ids": [4, 4]}, "ids ascend"),
        ({"ids": [4, 12]}, "below 12"),
        ({"ids": [-1, 4]}, "from 0 on"),
        ({"ids": [1, 4.0]}, "ids are integers"),
        ({"ids": []}, "at least one"),
        ({"ids": "!"}, "no list of tokens"),
        ({"ids": None}, "no list of tokens"),
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


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"3", b'{"ids": [1]}', b"\xff\xfe{}"])
def test_what_is_no_list_at_all_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / TOKENS_FILE).write_bytes(text)
    with pytest.raises(LoadError, match="is no list of tokens"):
        DraftTokens.beside(tmp_path, 12)
