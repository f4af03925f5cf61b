"""A transcriber for calls with one speaker per channel.

It transcribes every channel by itself and merges the results. It has the `transcribe` method of
`Transcriber` and can replace one; the channels of all recordings share its batch.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from forescribe.asr.audio.inputs import Input
from forescribe.asr.decode.options import Hook, Options, Outcome, Progress
from forescribe.asr.errors import ForescribeError, UsageError
from forescribe.asr.formats.files import RECORDING

from .channels import merge_channels, split_channels
from .diarizing_transcriber import SupportsTranscribe


@dataclass(eq=False)
class _Call:
    """A recording whose channels are being transcribed."""

    source: Input
    channels: list[str]  # paths
    done: dict[str, Outcome] = field(default_factory=dict)


class ChannelTranscriber:
    """`names` are the speakers by channel. Further channels are called `CHANNEL_1`, `CHANNEL_2`, …"""

    def __init__(self, transcriber: SupportsTranscribe, names: Sequence[str] = ()) -> None:
        self.transcriber, self.names = transcriber, tuple(names)

    def transcribe(
        self, sources: Iterable[Input], options: Options | None = None, hook: Hook | None = None
    ) -> Iterator[Outcome]:
        """Yield outcomes as they are finished. A recording with one channel fails."""
        calls: dict[str, _Call] = {}
        failed: deque[Outcome] = deque()

        with tempfile.TemporaryDirectory(prefix="forescribe-") as folder:

            def channel_files() -> Iterator[str]:
                for number, source in enumerate(sources):
                    place = Path(folder) / str(number)
                    place.mkdir()
                    try:
                        call = _Call(
                            source, [str(path) for path in split_channels(_path(source), place)]
                        )
                    except ForescribeError as error:
                        failed.append(Outcome(source, error=error))
                        continue
                    calls.update(dict.fromkeys(call.channels, call))
                    yield from call.channels

            def report(progress: Progress) -> None:
                assert hook is not None
                hook(replace(progress, source=calls[str(progress.source)].source))

            report_hook = None if hook is None else report
            for outcome in self.transcriber.transcribe(channel_files(), options, report_hook):
                call = calls.pop(outcome.name)
                call.done[outcome.name] = outcome
                if len(call.done) == len(call.channels):
                    yield self._merge(call)
                while failed:
                    yield failed.popleft()
            yield from failed

    def _merge(self, call: _Call) -> Outcome:
        done = [call.done[channel] for channel in call.channels]
        wall = max(outcome.wall_s for outcome in done)
        error = next((outcome.error for outcome in done if outcome.error is not None), None)
        transcripts = [outcome.transcript for outcome in done if outcome.transcript is not None]
        if error is not None or len(transcripts) < len(done):
            return Outcome(call.source, error=error, wall_s=wall)
        names = [*self.names, *(f"CHANNEL_{n + 1}" for n in range(len(self.names), len(done)))]
        whole = merge_channels(transcripts, names[: len(done)])
        settings = {**whole.settings, RECORDING: Path(str(call.source)).stem}
        return Outcome(call.source, replace(whole, settings=settings), wall_s=wall)


def _path(source: Input) -> Path:
    """Raises UsageError for a stream, as splitting channels needs a file."""
    if isinstance(source, bytes) or not isinstance(source, str | Path) or str(source) == "-":
        raise UsageError("channels can be split in a file only, not in a stream")
    return Path(source)
