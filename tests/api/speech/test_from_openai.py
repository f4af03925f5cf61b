"""docs/from-openai.md, run with OpenAI's own client against the running service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import soundfile

from tests.api.conftest import SAMPLE
from tests.api.speech import test_sdk
from tests.docs.pages import blocks

PAGE = "docs/from-openai.md"
address = test_sdk.address
pytestmark = pytest.mark.nightly  # as the other pages that are run; test_sdk.py calls what it shows


def test_the_page_runs_as_it_is_printed(
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    talk, rate = soundfile.read(SAMPLE.with_name("conversation.flac"), stop=16_000 * 14)
    soundfile.write(tmp_path / "meeting.mp3", talk, rate, format="WAV")
    soundfile.write(tmp_path / "laura.wav", talk[round(7.3 * rate) : round(10.3 * rate)], rate)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown = []
    found = [block for block in blocks("python") if block.page == PAGE]
    for block in found:
        text = block.text.replace("http://localhost:8000/v1", address)
        text = text.replace('api_key="none"', f"api_key={test_sdk.KEY!r}")
        exec(compile(text, block.name, "exec"), names)
        shown.append(capsys.readouterr().out)
    names["recording"].close()
    names["client"].close()
    _, text, subtitles, words, speakers, known, stream, logprobs = shown
    assert len(text.split()) > 3 and stream.split() == text.split()
    assert "-->" in subtitles and len(words.splitlines()) == 5
    assert speakers.startswith("A ") and "Laura" in known and "'A'" in known
    assert float(logprobs.split()[-1]) <= 0
