"""A temporary file that cannot be written is an error that says where and what to do, at every place that
opens one. That the service answers 507: tests/api/uploads/test_uploads.py."""

from __future__ import annotations

import errno
import importlib
import io
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forescribe.asr.audio.fork_server import Bounds
from forescribe.asr.audio.opening import seekable_file
from forescribe.asr.audio.sandbox import Decoders
from forescribe.asr.batch.spool import SpoolFolder
from forescribe.asr.errors import OutputError, temporary_errors
from forescribe.asr.live.record import LiveRecord
from forescribe.diarize.channels import ChannelTranscriber, split_channels
from forescribe.diarize.diarizer import Diarizer
from forescribe.diarize.speaker_finder import SpeakerFinder
from forescribe.speculative.native import library_file
from tests import full_disk
from tests.diarize.transcripts.test_channels import stereo

ROOT = Path(__file__).parents[1]
SECOND = np.ones(16_000, np.float32)

OPENS = re.compile(r"tempfile\.(\w*Temporary\w+|mkd?s?temp)\(")

ELSEWHERE = {
    "asr/model/conversion/converting.py": "tests/asr/model/conversion/test_openai_pt.py",
    "api/routers/asr_webservice.py": "tests/api/uploads/test_uploads.py",
    "speculative/native/kernel_build.py": "its command prints the system's message with the path",
}


class Pipe(io.BytesIO):
    def seekable(self) -> bool:
        return False


def kept_live(_: Path) -> None:
    with LiveRecord(audio=True) as record:
        record.feed(SECOND)


def fed(_: Path) -> None:
    with SpeakerFinder(Diarizer.__new__(Diarizer)).begin() as start:
        start().feed(SECOND)


def split(_: Path) -> None:
    list(ChannelTranscriber(None).transcribe(["a.wav"]))  # type: ignore[arg-type]


def decoded(_: Path) -> None:
    decoders = Decoders()
    try:
        decoders.decode(b"RIFF" * 100, Bounds(max_s=1), name="upload")
    finally:
        decoders.close()


PLACES: dict[str, Callable[[Path], Any]] = {
    "asr/audio/opening.py": lambda _: seekable_file(Pipe(b"sound"), "-"),
    "asr/audio/sandbox.py": decoded,
    "asr/live/record.py": kept_live,
    "asr/batch/spool.py": lambda folder: SpoolFolder(str(folder)),
    "diarize/speaker_finder.py": fed,
    "diarize/channels.py": split,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_full_disk_is_told_with_its_folder_and_what_to_do(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(f"forescribe.{place.removesuffix('.py').replace('/', '.')}")
    monkeypatch.setattr(module, "tempfile", full_disk)
    with pytest.raises(OutputError, match=r"^cannot write [^\n]*'/.*No space left.*; ") as caught:
        PLACES[place](tmp_path)
    assert caught.value.code == "storage_full"
    assert re.search("TMPDIR|--spool", str(caught.value))


def test_every_place_that_opens_one_is_tested() -> None:
    product = ("asr", "api", "diarize", "text", "speculative", "forescribe")
    found = {
        str(path.relative_to(ROOT))
        for folder in product
        for path in (ROOT / folder).rglob("*.py")
        if OPENS.search(path.read_text(encoding="utf-8"))
    }
    tested = {*PLACES, *ELSEWHERE, "speculative/native/library_file.py"}
    assert found <= tested, "a place without a test above"


def test_channels_that_do_not_fit_are_their_recordings_error(tmp_path: Path) -> None:
    stereo(tmp_path / "call.wav")
    (tmp_path / "call.channel-1.wav").symlink_to("/dev/full")
    with pytest.raises(OutputError, match="No space left.*TMPDIR") as caught:
        split_channels(tmp_path / "call.wav", tmp_path)
    assert caught.value.code == "storage_full"


def test_kernels_are_not_compiled_without_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_file, "tempfile", full_disk)
    monkeypatch.setattr(library_file, "find_compiler", lambda: ["true"])
    with pytest.raises(library_file.CompilerError, match="No space left.*TMPDIR"):
        library_file.compile_library(tmp_path / "x.so", openmp=False)


def test_no_folder_at_all_is_told_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", "/nowhere")
    with pytest.raises(OutputError, match="to '/nowhere': .*; free some") as caught:
        with temporary_errors():
            raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")
    assert caught.value.code == "unwritable_output"
