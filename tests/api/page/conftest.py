"""A browser, something to play, and what people do with the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from forescribe.asr.formats.transcript import Transcript
from tests import browser as browsing
from tests.api.page.fakejobs import conversation, transcript

browser = browsing.browser


@pytest.fixture(scope="module")
def tone(tmp_path_factory) -> Path:
    """Half a minute to play."""
    path = tmp_path_factory.mktemp("audio") / "tone.wav"
    soundfile.write(path, 0.1 * np.sin(np.arange(8000 * 30) * 0.2), 8000)
    return path


def walk(turns: int = 5) -> Transcript:
    return transcript(conversation(turns))


def send(page: Any, path: Path, name: str | None = None) -> None:
    file = {"name": name or path.name, "mimeType": "audio/wav", "buffer": path.read_bytes()}
    page.locator("#files").set_input_files([file])


def lines(page: Any) -> str:
    return re.sub(r"\s+", " ", page.locator(".transcript").inner_text())
