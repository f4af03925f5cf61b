"""Conversions go into a cache of the test's own; models of random numbers that they are made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from forescribe.asr.model.conversion import converting, openai_models
from tests.asr.model import folders

HEAD = 16
"""Width of an attention head in the models of these tests."""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FORESCRIBE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "converted"


@pytest.fixture(autouse=True)
def small_heads(request, monkeypatch) -> None:
    if request.node.get_closest_marker("weights") is None:
        monkeypatch.setattr(converting, "HEAD", HEAD)


@pytest.fixture(scope="session")
def original(tmp_path_factory) -> Path:
    """Wide enough for blocks of 32 numbers, its languages the first ones of Whisper's."""
    return make_original(tmp_path_factory, 32)


@pytest.fixture(scope="session")
def wide(tmp_path_factory) -> Path:
    """Wide enough for the blocks of 256 numbers that K-quants have."""
    return make_original(tmp_path_factory, 256)


def make_original(tmp_path_factory: pytest.TempPathFactory, width: int) -> Path:
    patch = pytest.MonkeyPatch()
    patch.setattr(folders, "CODES", ("en", "zh", "de"))
    patch.setattr(
        folders, "SPECIALS", tuple(openai_models.special_tokens(256 + 2 + 3 + 6 + 1501, 256))
    )
    sizes = {"d_model": width, "encoder_ffn_dim": 4 * width, "decoder_ffn_dim": 4 * width}
    heads = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), width // HEAD)
    made = folders.write(tmp_path_factory.mktemp("original") / "whisper", **sizes, **heads)
    patch.undo()
    return made
