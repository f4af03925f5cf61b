"""A transcriber for calls with a speaker on each channel: every side by itself, then one transcript.

Has the transcriber's `transcribe`, so that it takes its place; the sides of all recordings share its
batch.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from forescribe.asr.audio.reading import Input
from forescribe.asr.decode.options import Options
from forescribe.asr.decode.outcome import Hook, Outcome, Progress
from forescribe.asr.errors import ForescribeError, UsageError
from forescribe.asr.formats.rttm import RECORDING

from .channels import merged, split
from .with_speakers import Transcribes


@dataclass(eq=False)
class _Call:
    """A recording whose sides are on their way."""

    source: Input
    sides: list[str]
    done: dict[str, Outcome] = field(default_factory=dict)


class SplitChannels:
    """`names` are the speakers' by channel; without them, or beyond them, `CHANNEL_1`, …"""

    def __init__(self, transcriber: Transcribes, names: Sequence[str] = ()) -> None:
        self.transcriber, self.names = transcriber, tuple(names)

    def transcribe(
        self, sources: Iterable[Input], options: Options | None = None, hook: Hook | None = None
    ) -> Iterator[Outcome]:
        """Outcomes as they end; a recording without a second channel fails."""
        calls: dict[str, _Call] = {}
        failed: deque[Outcome] = deque()

        with tempfile.TemporaryDirectory(prefix="forescribe-") as folder:

            def sides() -> Iterator[str]:
                for number, source in enumerate(sources):
                    place = Path(folder) / str(number)
                    place.mkdir()
                    try:
                        call = _Call(source, [str(path) for path in split(_path(source), place)])
                    except ForescribeError as error:
                        failed.append(Outcome(source, error=error))
                        continue
                    calls.update(dict.fromkeys(call.sides, call))
                    yield from call.sides

            def report(progress: Progress) -> None:
                assert hook is not None
                hook(replace(progress, source=calls[str(progress.source)].source))

            told = None if hook is None else report
            for outcome in self.transcriber.transcribe(sides(), options, told):
                call = calls.pop(outcome.name)
                call.done[outcome.name] = outcome
                if len(call.done) == len(call.sides):
                    yield self._together(call)
                while failed:
                    yield failed.popleft()
            yield from failed

    def _together(self, call: _Call) -> Outcome:
        done = [call.done[side] for side in call.sides]
        wall = max(outcome.wall_s for outcome in done)
        error = next((outcome.error for outcome in done if outcome.error is not None), None)
        transcripts = [outcome.transcript for outcome in done if outcome.transcript is not None]
        if error is not None or len(transcripts) < len(done):
            return Outcome(call.source, error=error, wall_s=wall)
        names = [*self.names, *(f"CHANNEL_{n + 1}" for n in range(len(self.names), len(done)))]
        whole = merged(transcripts, names[: len(done)])
        settings = {**whole.settings, RECORDING: Path(str(call.source)).stem}
        return Outcome(call.source, replace(whole, settings=settings), wall_s=wall)


def _path(source: Input) -> Path:
    """Channels are read apart, so the recording must be a file. Raises UsageError."""
    if isinstance(source, bytes) or not isinstance(source, str | Path) or str(source) == "-":
        raise UsageError("channels can be split in a file only, not in a stream")
    return Path(source)
