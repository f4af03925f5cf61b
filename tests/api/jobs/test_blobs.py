"""Blobs: complete or absent, stored once, and deleted when nothing refers to them."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from forescribe.api.jobs.blobs import Blobs
from forescribe.api.jobs.store import Store
from forescribe.asr.errors import OutputError

ROOT = Path(__file__).parents[3]


def test_a_blob_is_named_by_what_it_holds_and_is_there_once(tmp_path) -> None:
    blobs = Blobs(tmp_path)
    name = blobs.put(b"sound")
    assert name == hashlib.sha256(b"sound").hexdigest() == blobs.put(b"sound")
    assert blobs.read(name) == b"sound" and list(blobs.names()) == [name]
    blobs.delete(name)
    blobs.delete(name)
    with pytest.raises(FileNotFoundError):
        blobs.read(name)


def test_a_copy_is_a_draft_until_it_is_committed(tmp_path) -> None:
    blobs, data = Blobs(tmp_path), os.urandom(3 << 20)
    draft = blobs.copy(io.BytesIO(data))
    assert draft.size == len(data) and not list(blobs.names())
    assert blobs.read(draft.commit()) == data
    draft.discard()  # does nothing any more
    assert list(blobs.names()) == [draft.name]
    lost = blobs.copy(io.BytesIO(b"x"))
    lost.discard()
    assert not list((tmp_path / "drafts").iterdir())


@pytest.mark.parametrize("name", ["../../etc/passwd", "A" * 64, "", "a" * 63])
def test_only_hashes_are_names(tmp_path, name) -> None:
    with pytest.raises(ValueError, match="not a blob's name"):
        Blobs(tmp_path).path(name)


def test_a_process_that_dies_in_mid_write_leaves_no_blob(tmp_path) -> None:
    code = (
        "import os, signal; from pathlib import Path; from forescribe.api.jobs.blobs import Blobs\n"
        f"draft = Blobs(Path({str(tmp_path)!r})).draft(); draft.write(b'half'); draft.flush()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT)
    assert run.returncode == -signal.SIGKILL
    blobs = Blobs(tmp_path)
    assert not list(blobs.names()) and blobs.sweep(older_s=3600) == 0
    assert blobs.sweep(older_s=-1) == 1
    assert not list((tmp_path / "drafts").iterdir())


def test_a_disk_that_refuses_is_named(tmp_path) -> None:
    blobs = Blobs(tmp_path)
    draft = blobs.draft()
    draft._file.close()
    draft._file = open("/dev/full", "wb", buffering=0)
    with pytest.raises(OutputError) as caught:
        draft.write(b"x")
    assert caught.value.code == "storage_full"
    draft.discard()


def test_nothing_is_dropped_between_a_blob_and_its_row(tmp_path) -> None:
    store = Store.open(tmp_path)
    swept = threading.Event()

    def sweep() -> None:
        store.references.sweep()
        swept.set()

    with store.blobs.shared_lock():
        name = store.blobs.put(b"audio")
        threading.Thread(target=sweep).start()
        assert not swept.wait(0.2)
        with store.transaction() as tx:
            store.references.put(tx, "job", "audio", name)
    assert swept.wait(5) and list(store.blobs.names()) == [name]
    store.references.drop("job", "audio")
    assert not list(store.blobs.names())
    store.close()
