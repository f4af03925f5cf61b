"""The reference pages are what the code says now."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    path = ROOT / "scripts" / "write_reference.py"
    spec = importlib.util.spec_from_file_location("write_reference", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cli.md", "flags.md", "settings.md"])
def test_the_reference_is_what_the_code_says(writer: ModuleType, name: str) -> None:
    written = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert written == writer.PAGES[name](), "run scripts/reference and commit docs/reference/"


def test_every_setting_is_described(writer: ModuleType) -> None:
    from forescribe.api.settings import Settings

    page = writer.settings()
    assert [name for name in Settings.model_fields if f"- `{name}`" not in page] == []
    assert "- `max_audio_s` (`14400`, 4 h): " in page


def test_every_command_and_option_is_described(writer: ModuleType) -> None:
    page = writer.cli()
    for said in (
        "## forescribe transcribe",
        "## forescribe speakers add",
        "As for [forescribe transcribe](#forescribe-transcribe): `--model`, `--draft`, ",
        "- `--batch-size N` (default 8): Windows, or texts, decoded together.",
        "- `--model MODEL`, `--whisper-model`, `-m` (default large): ",
    ):
        assert said in page
