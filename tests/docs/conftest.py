"""Samples of which the documentation's commands and Python need the first seconds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import soundfile

from tests.docs.pages import ROOT

SECONDS = 8


@pytest.fixture(scope="session")
def samples(tmp_path_factory) -> Path:
    """The samples, cut short: that a command works does not take a minute of speech."""
    folder = tmp_path_factory.mktemp("samples")
    for path in (ROOT / "samples").iterdir():
        if path.suffix != ".flac":
            shutil.copy(path, folder)
            continue
        sound, rate = soundfile.read(path, stop=SECONDS * 16_000)
        soundfile.write(folder / path.name, sound, rate)
    return folder
