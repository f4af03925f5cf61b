"""Labels: rows on disk and in batches."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forescribe.asr.errors import OutputError, UsageError
from forescribe.distill.labels import BatchSource, LabelBatch, LabelRow, LabelStore, split
from tests.distill.made_rows import made_row

SHAPES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6)


def same(one: LabelRow, other: LabelRow) -> bool:
    states = zip(one.states(), other.states(), strict=True)
    return (
        (one.source, one.tokens, one.begin) == (other.source, other.tokens, other.begin)
        and one.wanted.ids.tolist() == other.wanted.ids.tolist()
        and torch.allclose(one.wanted.logs, other.wanted.logs, atol=0.02)
        and all(torch.allclose(a, b, atol=2e-3) for a, b in states)
    )


@given(shapes=SHAPES, own_encoder=st.booleans())
def test_rows_come_back_as_they_were_kept_with_the_states_of_both_models(
    shapes: list[tuple[int, int]], own_encoder: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = LabelStore(tmp_path_factory.mktemp("labels"))
    rows = []
    for number, (begin, answered) in enumerate(shapes):
        target = torch.randn(4, 6, generator=torch.Generator().manual_seed(number))
        draft = -target if own_encoder else None
        rows.append(made_row(number, begin=begin, answered=answered, target=target, draft=draft))
    assert not store.has("a.flac")
    store.add("a.flac", rows)
    assert store.has("a.flac")
    assert all(same(one, other) for one, other in zip(store.rows(), rows, strict=True))


def test_a_full_disk_is_named_and_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*paths: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match=r"No space left.*run the command again") as caught:
        LabelStore(tmp_path / "labels").add("k", [made_row(1)])
    assert caught.value.code == "storage_full"
    assert list((tmp_path / "labels").iterdir()) == []


@given(shapes=SHAPES)
def test_a_batch_predicts_every_token_of_the_answers_and_no_other(
    shapes: list[tuple[int, int]],
) -> None:
    rows = [made_row(n, begin=b, answered=a) for n, (b, a) in enumerate(shapes)]
    batch = LabelBatch.of(rows)
    predicted = batch.tokens[batch.row, batch.place + 1].tolist()
    assert predicted == [token for row in rows for token in row.tokens[row.begin :]]
    assert len(batch.wanted.ids) == len(predicted)


@given(seed=st.integers(0, 99), step=st.integers(0, 999))
def test_the_batch_of_a_step_is_a_function_of_seed_and_step(seed: int, step: int) -> None:
    rows = [made_row(n, answered=3 + n % 7) for n in range(40)]

    def source() -> BatchSource:
        return BatchSource(rows, seed=seed, budget=60, most=8, text_ids=20)

    one, other = source().draw(step), source().draw(step)
    assert one.tokens.tolist() == other.tokens.tolist()
    assert one.tokens.numel() <= 60 and len(one.tokens) <= 8


def test_only_text_tokens_of_answers_are_replaced_and_the_labels_stay() -> None:
    rows = [made_row(n, begin=4, answered=20) for n in range(60)]
    plain = BatchSource(rows, seed=1, budget=4000, most=60, text_ids=20, misled=0.0)
    wrong = BatchSource(rows, seed=1, budget=4000, most=60, text_ids=20, misled=0.5)
    changed = 0
    for step in range(20):
        before, after = plain.draw(step), wrong.draw(step)
        different = before.tokens != after.tokens
        changed += int(different.sum())
        assert not different[:, :4].any()  # prompts
        assert not different[before.tokens >= 20].any()  # special tokens
        assert int(after.tokens[different].max()) < 20
        assert before.wanted.ids.tolist() == after.wanted.ids.tolist()
    assert changed > 100


def test_whole_recordings_are_held_out_the_same_ones_each_time() -> None:
    rows = [made_row(10 * n, begin=2 + i, answered=30) for n in range(20) for i in range(3)]
    trained, held_out = split(rows)
    assert len(trained) + len(held_out) == len(rows)
    both = {row.source for row in trained} & {row.source for row in held_out}
    assert len(both) <= 1  # the last recording may be divided
    again = split(list(reversed(rows)))[1]
    assert {id(row) for row in again} == {id(row) for row in held_out}


def test_too_little_data_is_refused_with_what_is_needed() -> None:
    with pytest.raises(
        UsageError, match=r"2 answers of the target with 10 tokens, and at least 12"
    ):
        split([made_row(1), made_row(2)])
