"""A transcriber that needs no model: it types what the bytes of a recording are. For tests of runs.

    python -m tests.asr.typists OUT DIE_AT FILE...     a whole run in a process that may be killed

It pulls ahead, as the engine does, so that a run always has several recordings in the air.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
import wave
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from forescribe.asr.batch.batch import Batch
from forescribe.asr.batch.inputs import discover
from forescribe.asr.batch.interrupts import INTERRUPTED, Stop
from forescribe.asr.batch.outputs import Outputs, RecordingResult
from forescribe.asr.errors import AudioError, ForescribeError
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Coverage, Segment, Span, Word

RATE = 16_000
SETTINGS = "5e77"


@dataclass(frozen=True)
class Outcome:
    """As `asr.decode.outcome.Outcome`, whose module loads torch."""

    source: str
    transcript: Transcript | None = None
    error: ForescribeError | None = None
    wall_s: float = 0.5
    content: str | None = None
    entry: None = None

    @property
    def name(self) -> str:
        return str(self.source)


def write_wav(path: Path, seconds: float = 0.1, value: int = 0) -> Path:
    """A recording; `value` makes its bytes its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(value.to_bytes(2, "little") * round(seconds * RATE))
    return path


def text_of(path: str | Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]


def transcript(text: str, seconds: float = 1.0) -> Transcript:
    count = round(seconds * RATE)
    word = Word(f" {text}", 0, count, 0.5)
    return Transcript(
        (Segment(0, 0, 0, 0, count, f" {text}", words=(word,)),),
        count,
        Coverage((Span(0, count, "decoded"),)),
        language="en",
        stats={"acceptance_rate": 0.5, "mean_acceptance_length": 1.5},
    )


@dataclass
class Typist:
    """`ahead` recordings are in the air; `trouble` may raise, or make an outcome, for a path. `sizes` are
    those of its batches so far."""

    sizes: list[int] = field(default_factory=lambda: [4])
    ahead: int = 3
    trouble: Callable[[str], None] = lambda path: None
    typed: list[str] = field(default_factory=list)
    closed: bool = False

    @property
    def batch(self) -> int:
        return self.sizes[-1]

    def set_batch(self, size: int) -> None:
        self.sizes.append(size)

    def transcribe(
        self, sources: Iterable[str], options: object = None, hook: object = None
    ) -> Iterator[Outcome]:
        try:
            air: deque[str] = deque()
            for source in sources:
                air.append(source)
                if len(air) == self.ahead:
                    yield self._typed(air.popleft())
            while air:
                yield self._typed(air.popleft())
        finally:
            self.closed = True

    def _typed(self, path: str) -> Outcome:
        self.trouble(str(path))
        self.typed.append(str(path))
        try:
            return Outcome(path, transcript(text_of(path)))
        except OSError as error:
            return Outcome(path, error=AudioError(f"{path}: {error}", code="missing_file"))


def batch(
    names: Iterable[str | Path], out: str | Path, formats: str = "txt,srt", **options
) -> Batch:
    sources = discover(map(str, names), recursive=True)
    return Batch(
        sources, Outputs.plan(sources, str(out), formats), **{"settings": SETTINGS, **options}
    )


def run(
    names: Iterable[str | Path], out: str | Path, typist: Typist | None = None, **options
) -> list[RecordingResult]:
    made = batch(names, out, **options)
    return list(made.run(typist or Typist()))


def _die(call: int, module: object, name: str) -> None:
    """Kills this process just before the `call`th call of a function."""
    real, calls = getattr(module, name), iter(range(call))

    def deadly(*arguments: object) -> object:
        if next(calls, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)

    setattr(module, name, deadly)


def main() -> None:
    out, die_at, *names = sys.argv[1:]
    moment, _, number = die_at.partition(":")
    pause = 0.0
    if moment == "replace":
        _die(int(number), os, "replace")
    elif moment == "append":
        from forescribe.asr.batch.destinations import Folder

        _die(int(number), Folder, "keep")
    elif moment == "pause":
        pause = float(number)
    with Stop() as stop:
        try:
            made = batch(names, out, stop=stop)
            typist = Typist(trouble=lambda path: time.sleep(pause))
            for ended in made.run(typist):
                sys.stdout.write(f"{ended.record.status} {ended.record.path}\n")
                sys.stdout.flush()
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
