"""Decoded samples of jobs: one file per job, whoever decodes first, and none left open at the end."""

from __future__ import annotations

import tempfile
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, cast

import pytest

from forescribe.api.jobs.active import ActiveJobs
from forescribe.api.jobs.workflows import Stopping
from forescribe.asr.audio.inputs import DecodedFile


class Serving:
    """Decodes to empty files, all at once when `together` threads have asked for it."""

    state, open, session = "ready", True, object()

    def __init__(self, together: int = 1) -> None:
        self.admission = SimpleNamespace(requests=list)
        self.made: list[DecodedFile] = []
        self._together = threading.Barrier(together)

    async def decoded(self, file: BinaryIO) -> DecodedFile:
        self._together.wait(10)
        made = DecodedFile(file.name, cast(BinaryIO, tempfile.TemporaryFile()), 0)
        self.made.append(made)
        return made


def jobs_of(serving: Serving) -> ActiveJobs:
    store: Any = SimpleNamespace(crashes=None)
    return ActiveJobs(cast(Any, serving), store, "here")


@pytest.fixture
def audio(tmp_path: Path):
    (tmp_path / "audio").write_bytes(b"")
    return lambda job: nullcontext(tmp_path / "audio")


def open_files(serving: Serving) -> list[DecodedFile]:
    return [made for made in serving.made if not made.file.closed]


def test_two_steps_that_decode_at_a_time_share_one_file(audio) -> None:
    serving = Serving(together=2)
    active = jobs_of(serving)
    found: list[DecodedFile] = []
    threads = [
        threading.Thread(target=lambda: found.append(active.samples("a", audio))) for _ in "12"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(serving.made) == 2 and len(open_files(serving)) == 1
    assert found == open_files(serving) * 2
    assert active.samples("a", audio) is found[0]
    active.close()


def test_nothing_stays_open_at_the_end(audio) -> None:
    """A process that stops between two steps of a job releases no job by itself."""
    serving = Serving()
    active = jobs_of(serving)
    active.samples("a", audio)
    active.samples("b", audio)
    assert len(open_files(serving)) == 2
    active.close()
    assert open_files(serving) == []
    with pytest.raises(Stopping):
        active.samples("c", audio)
    assert open_files(serving) == []
