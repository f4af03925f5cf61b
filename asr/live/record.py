"""LiveRecord: what is kept of a live stream for its files, the transcripts of its items and its samples.

Samples are in a file without a name, 64 kB per second, so that hours of them are not in memory; it is gone
with the process. Knows nothing of how items are decoded.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from ..audio.inputs import READ_SAMPLES, WIDTH, DecodedFile
from ..audio.opening import write_all
from ..errors import ForescribeError, output_errors, temporary_errors
from ..formats.files import TEMPORARY
from ..formats.transcript import Transcript
from ..formats.transcript_parts import (
    SAMPLE_RATE,
    Coverage,
    Json,
    Notice,
    Segment,
    Span,
    samples_at,
    seconds,
    shifted,
)
from ..segment.windows import Samples

NO_TURN = "nobody speaks"
"""The reason of what lies between two items."""

COUNTED = ("windows", "tokens", "rounds", "drafted", "accepted", "wall_s")
"""Statistics of a transcript that add up."""


class LiveRecord(AbstractContextManager["LiveRecord"]):
    """A context manager, which closes the file of samples. `sample_count` are those of the stream so far.
    Raises OutputError where samples are kept and the file cannot be written."""

    def __init__(self, *, audio: bool) -> None:
        self.sample_count = 0
        self._file: BinaryIO | None = None
        if audio:
            with temporary_errors():
                self._file = cast(BinaryIO, tempfile.TemporaryFile(buffering=0))
        self._items: list[tuple[int, Transcript]] = []
        self._lost: list[Span] = []

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def feed(self, samples: Samples) -> None:
        """Take the next samples [T] at 16 kHz. Raises OutputError where the disk is full."""
        self.sample_count += len(samples)
        if self._file is not None:
            with temporary_errors():
                write_all(self._file, np.ascontiguousarray(samples, np.float32))

    def add(self, start_s: float, transcript: Transcript) -> None:
        """An item that begins at `start_s` of the stream has been completed."""
        self._items.append((samples_at(start_s), transcript))

    @property
    def seconds(self) -> float:
        """Of the stream so far."""
        return seconds(self.sample_count)

    def fail(self, start_s: float, end_s: float, error: ForescribeError) -> None:
        """An item has failed."""
        if end_s > start_s:
            self._lost.append(Span(samples_at(start_s), samples_at(end_s), "failed", str(error)))

    def transcript(self, settings: Mapping[str, Json] | None = None) -> Transcript:
        """The transcript of the stream: its items at their places, with `settings` besides their own."""
        items = sorted(self._items, key=itemgetter(0))
        numbers, segments, windows = count(), list[Segment](), 0
        for start, item in items:
            segments += [_moved(s, start, windows, next(numbers)) for s in item.segments]
            windows += 1 + max((segment.window for segment in item.segments), default=-1)
        lengths = Counter[str]()
        for _, item in items:
            lengths[item.language or ""] += item.coverage.decoded_samples
        language = lengths.most_common(1)[0][0] if lengths else ""
        sure = [i.language_probability for _, i in items if i.language == language]
        probabilities = [p for p in sure if p is not None]
        return Transcript(
            segments=tuple(segments),
            sample_count=self.sample_count,
            coverage=self._coverage(items),
            language=language or None,
            language_probability=min(probabilities, default=None),
            diarized=any(item.diarized for _, item in items),
            turns=tuple(shifted(turn, start) for start, item in items for turn in item.turns),
            warnings=tuple(_placed(n, start) for start, item in items for n in item.warnings),
            settings={**(items[0][1].settings if items else {}), **(settings or {})},
            stats=_added([item.stats for _, item in items]),
        )

    def sound(self, name: str) -> DecodedFile:
        """The samples, as a recording with this name. They must have been kept."""
        assert self._file is not None
        return DecodedFile(name, self._file, self.sample_count)

    def save_audio(self, path: Path) -> None:
        """Write the samples as flac with 16 bits; the file appears whole. Raises OutputError."""
        import soundfile

        assert self._file is not None
        temporary = path.with_name(TEMPORARY.format(path.stem))
        with output_errors(f"{path.name!r} to {str(path.parent)!r}"):
            try:
                with soundfile.SoundFile(
                    temporary, "w", SAMPLE_RATE, 1, "PCM_16", format="FLAC"
                ) as file:
                    self._file.seek(0)
                    while data := self._file.read(READ_SAMPLES * WIDTH):
                        file.write(np.frombuffer(data, np.float32))
                temporary.replace(path)
            except soundfile.LibsndfileError as error:
                raise OSError(None, str(error)) from error
            finally:
                temporary.unlink(missing_ok=True)

    def _coverage(self, items: Iterable[tuple[int, Transcript]]) -> Coverage:
        """Every sample: those of items, and between them none that was spoken."""
        spans = [shifted(span, start) for start, item in items for span in item.coverage.spans]
        whole, position = list[Span](), 0
        for span in sorted([*spans, *self._lost], key=attrgetter("start_sample")):
            if span.start_sample > position:
                whole.append(Span(position, span.start_sample, "silent", NO_TURN))
            position = min(span.end_sample, self.sample_count)
            whole.append(replace(span, end_sample=position))
        if position < self.sample_count:
            whole.append(Span(position, self.sample_count, "silent", NO_TURN))
        wordless = [item.coverage.wordless_samples for _, item in items]
        return Coverage(tuple(whole), sum(n for n in wordless if n is not None))


def _moved(segment: Segment, start: int, windows: int, number: int) -> Segment:
    """The segment of an item that starts at this sample, behind that many windows."""
    return shifted(
        segment,
        start,
        id=number,
        window=segment.window + windows,
        window_sample=segment.window_sample + start,
        words=segment.words and tuple(shifted(word, start) for word in segment.words),
    )


def _placed(notice: Notice, start: int) -> Notice:
    """A warning of an item, whose times count from its start."""
    at_s = seconds(start)
    places = tuple(place + at_s for place in notice.places)
    return replace(notice, message=f"turn at {at_s:.1f} s: {notice.message}", places=places)


def _added(stats: Iterable[Mapping[str, Json]]) -> dict[str, Json]:
    sums = dict.fromkeys(COUNTED, 0.0)
    for each in stats:
        for name in COUNTED:
            value = each.get(name)
            sums[name] += value if isinstance(value, int | float) else 0
    whole: dict[str, Json] = {name: round(value) for name, value in sums.items()}
    drafted, rounds, accepted = sums["drafted"], sums["rounds"], sums["accepted"]
    whole["wall_s"] = sums["wall_s"]
    whole["acceptance_rate"] = accepted / drafted if drafted else None
    whole["mean_acceptance_length"] = 1 + accepted / rounds if rounds else None
    return whole
