"""Transcribers whose recordings are read ahead: when they are, and that the transcripts are the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import soundfile
from typer.testing import CliRunner

from forescribe.asr.audio import reader_pool
from forescribe.asr.audio.sandbox import Decoders
from forescribe.asr.errors import UsageError
from forescribe.cli.main import app
from forescribe.cli.transcribe import readers_for
from tests.asr.model.folders import write_pair
from tests.docs.pages import ROOT

SECONDS = 4
"""Of each sample: that the results are the same does not take minutes of speech."""


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The beginning of every sample."""
    folder = tmp_path_factory.mktemp("samples")
    for path in sorted((ROOT / "samples").glob("*.flac")):
        sound, rate = soundfile.read(path, stop=SECONDS * 16_000)
        soundfile.write(folder / path.name, sound, rate)
    return sorted(folder.iterdir())


def test_readers_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    assert readers_for(None, recordings=100, on_cpu=False) == 8
    assert readers_for(None, recordings=100, on_cpu=True) == 0
    assert readers_for(None, recordings=1, on_cpu=False) == 1
    assert readers_for(None, recordings=100, on_cpu=False, beside=4) < 8  # they share the cores
    assert readers_for(3, recordings=1, on_cpu=True) == 3
    assert readers_for(0, recordings=100, on_cpu=False) == 0
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert readers_for(None, recordings=100, on_cpu=False) == 1


def test_results_are_the_same_with_and_without_readers(
    samples: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, messages = Decoders._send, list[bytes]()

    def counted(self: Decoders, message: bytes, files: list[int]) -> None:
        messages.append(message)
        send(self, message, files)

    monkeypatch.setattr(Decoders, "_send", counted)
    monkeypatch.setattr(reader_pool, "LONG_S", 0.0)  # so few would be read here
    target, draft = map(str, write_pair(tmp_path))
    broken = tmp_path / "broken.flac"
    broken.write_bytes(b"fLaC is all that it has")
    for readers in ("0", "2"):
        models = ["--model", target, "--draft", draft, "--gamma", "5", "--no-guards"]
        arguments = [*models, "--readers", readers, "-f", "txt,srt"]
        paths = [str(path) for path in (*samples, broken)]
        result = CliRunner().invoke(
            app, ["transcribe", *paths, *arguments, "-o", str(tmp_path / readers)]
        )
        assert result.exit_code == 1  # the broken one
        # One child for each reader, and for the first that follow the broken one.
        assert (1 <= len(messages) <= 4) if readers == "2" else not messages
    files = sorted(path.name for path in (tmp_path / "0").glob("*.*t"))
    assert len(files) == 2 * len(samples)
    for name in files:
        assert (tmp_path / "0" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_split_channels_have_no_readers() -> None:
    result = CliRunner().invoke(
        app, ["transcribe", "a.wav", "--channels", "split", "--readers", "2"]
    )
    assert isinstance(result.exception, UsageError)
    assert "--readers" in str(result.exception)
