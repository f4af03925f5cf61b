"""Recordings in a store in memory, and batches over them; typed by `tests.asr.typists`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forescribe.asr.batch.batch import Batch
from forescribe.asr.batch.inputs import discover
from forescribe.asr.batch.outputs import Outputs, RecordingResult
from forescribe.asr.batch.spool import Spool
from forescribe.asr.storage.locations import Location
from forescribe.asr.storage.stores import Stores
from tests.asr.typists import SETTINGS, Outcome, Typist, text_of, transcript, write_wav


class CopyTypist(Typist):
    """A typist who is given paths and local copies, and remembers both names."""

    def _typed(self, source: Any) -> Outcome:
        self.trouble(str(source))
        self.typed.append(str(source))
        return Outcome(source, transcript(text_of(source)))


def put_wav(where: Location, seconds: float = 0.1, value: int = 0) -> bytes:
    """A recording in a store; `value` makes its bytes its own."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        data = write_wav(Path(folder, "a.wav"), seconds, value).read_bytes()
    Stores().at(where.parent).put(where.name, data)
    return data


def put_calls(folder: Location, count: int) -> None:
    """Recordings, each longer than the one before."""
    for number in range(count):
        put_wav(folder / f"{number:02}.wav", 0.05 * (number + 1), number)


def batch(
    names: list[str],
    out: str,
    *,
    stores: Stores | None = None,
    formats: str = "txt,srt",
    settings: str = SETTINGS,
    overwrite: bool = False,
    recursive: bool = True,
    limit: int | None = 1 << 30,
    **options: Any,
) -> Batch:
    stores = stores or Stores()
    sources = discover(names, recursive=recursive, stores=stores)
    outputs = Outputs.plan(sources, out, formats, stores=stores)
    return Batch(
        sources,
        outputs,
        settings=settings,
        overwrite=overwrite,
        spool=Spool(stores, place="spool", limit=limit),
        **options,
    )


def run(
    names: list[str], out: str, typist: Typist | None = None, **options: Any
) -> list[RecordingResult]:
    return list(batch(names, out, **options).run(typist or CopyTypist()))


def files(out: str) -> dict[str, str]:
    """The results in an output, without records."""
    store = Stores().at(Location.parse(out))
    names = [e.key for e in store.list() if not e.key.startswith("_forescribe/")]
    found = {name: store.read(name) for name in names if name != "manifest.jsonl"}
    return {name: data.decode(errors="replace") for name, data in found.items()}


def merged(out: str) -> list[dict[str, Any]]:
    data = Stores().at(Location.parse(out)).read("manifest.jsonl").decode()
    return [json.loads(line) for line in data.splitlines()]
