"""Fingerprints: equal for what gives the same result, and for nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.asr.batch.ledger import SAMPLE, content_hash, settings_hash, weights_hash

values = st.dictionaries(
    st.text(max_size=5), st.none() | st.booleans() | st.integers() | st.text(max_size=5), max_size=4
)


@given(values, values)
def test_settings_are_equal_when_they_are(one, two) -> None:
    assert (settings_hash(one) == settings_hash(two)) == (
        repr(sorted(one.items())) == repr(sorted(two.items()))
    )
    assert settings_hash(dict(reversed(one.items()))) == settings_hash(one)


def test_folders_of_earlier_versions_resume() -> None:
    """Their manifests hold this; another value transcribes everything again, which a new `VERSION` is for."""
    assert settings_hash({"model": "tiny.en", "words": True}) == "81d14d25ca3f083e"


def test_content_counts_not_name_nor_date(tmp_path) -> None:
    (tmp_path / "a").write_bytes(b"sound")
    shutil.copy(tmp_path / "a", tmp_path / "b")
    os.utime(tmp_path / "b", (1, 1))
    assert content_hash(str(tmp_path / "a")) == content_hash(str(tmp_path / "b"))
    (tmp_path / "b").write_bytes(b"sounds")
    assert content_hash(str(tmp_path / "a")) != content_hash(str(tmp_path / "b"))


def test_what_cannot_be_read_twice_has_none(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    for path in ("-", tmp_path / "pipe", tmp_path, tmp_path / "missing", "zero\0byte"):
        assert content_hash(str(path)) is None


@pytest.fixture
def folder(tmp_path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text('{"d_model": 16}')
    (made / "model.safetensors").write_bytes(bytes(3 * SAMPLE))
    return made


def test_weights_elsewhere_are_the_same_weights(folder, tmp_path) -> None:
    before = weights_hash(folder)
    (folder / "README.md").write_text("how it was made")  # changes no word
    shutil.copytree(folder, tmp_path / "copy")
    assert weights_hash(folder) == weights_hash(tmp_path / "copy") == before


@pytest.mark.parametrize("place", [0, SAMPLE - 1, 2 * SAMPLE, 3 * SAMPLE - 1])
def test_other_weights_are_seen_at_both_ends(folder, place) -> None:
    before = weights_hash(folder)
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(place)
        file.write(b"\1")
    assert weights_hash(folder) != before


@pytest.mark.parametrize(
    "change",
    [
        lambda f: (f / "config.json").write_text('{"d_model": 32}'),
        lambda f: (f / "generation_config.json").write_text("{}"),
        lambda f: (f / "model.safetensors").write_bytes(bytes(3 * SAMPLE + 1)),
        lambda f: (f / "config.json").rename(f / "other.json"),
    ],
)
def test_every_small_file_counts_whole(folder, change) -> None:
    before = weights_hash(folder)
    change(folder)
    assert weights_hash(folder) != before
