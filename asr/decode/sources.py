"""Where the windows of a recording come from, and what is known of it before it is read.

Cut in its pauses while it is read; by a plan that was made earlier; or the windows of a live item. All are
plain iterators, on the thread that reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..audio.reading import Recording, Samples
from ..errors import AudioError
from ..formats.transcript_parts import Word
from ..segment.cut_plan import Plan, planned_windows
from ..segment.cutter import cut
from ..segment.windows import Window
from .context import DecodingContext
from .options import Options
from .results import Decoded


@dataclass(frozen=True)
class Kept:
    """Windows that were decoded earlier, in order, with the words of their segments (None where none were
    timed), and the language that the recording was found to be in; None while it is unknown."""

    decoded: tuple[Decoded, ...] = ()
    words: tuple[tuple[tuple[Word, ...], ...] | None, ...] = ()
    language: str | None = None
    language_probability: float | None = None

    def joined(self, later: Kept) -> Kept:
        """With windows that were decoded later."""
        return replace(
            later, decoded=(*self.decoded, *later.decoded), words=(*self.words, *later.words)
        )


@dataclass(frozen=True)
class WindowSource:
    """The windows of a recording: `kept` ones, and those that `read` yields in order.

    Of each of `groups`, windows by their index, the words are timed together, and its end is an event.
    `whole`: they are all of a recording, which gets a transcript when they have ended. `hypothesis` is what
    an earlier window has written of the next one.
    """

    read: Callable[[Recording, Iterator[Samples]], Iterator[Window]]
    kept: Kept = Kept()
    groups: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    whole: bool = True
    hypothesis: tuple[int, ...] = ()


def cut_source(context: DecodingContext, options: Options) -> WindowSource:
    """Windows that are cut in pauses; those that the recording was cut into before, where it says so."""

    def read(audio: Recording, blocks: Iterator[Samples]) -> Iterator[Window]:
        if audio.spans is not None:
            return planned_windows(blocks, audio.spans)
        detector = context.voice_detector()
        return cut(blocks, detector, options.windows, skip_silence=options.vad)

    return WindowSource(read)


def resumed_source(context: DecodingContext, options: Options, kept: Kept) -> WindowSource:
    """Windows that are cut, without those that are `kept`. Reading raises AudioError where these were cut
    elsewhere, as by another version."""
    ends = {decoded.index: decoded.end for decoded in kept.decoded}
    source = cut_source(context, options)

    def read(audio: Recording, blocks: Iterator[Samples]) -> Iterator[Window]:
        for window in source.read(audio, blocks):
            if window.index not in ends:
                yield window
            elif window.end != ends[window.index]:
                raise AudioError(f"{audio.name}: an earlier run has cut it elsewhere: --overwrite")

    return replace(source, read=read, kept=kept)


def plan_source(plan: Plan, kept: Sequence[Kept]) -> WindowSource:
    """The windows of a plan; those of its first groups are `kept`."""
    known = Kept()
    for group in kept:
        known = known.joined(group)
    skip = frozenset(decoded.index for decoded in known.decoded)
    groups = dict(enumerate(plan.groups[len(kept) :], len(kept)))
    return WindowSource(
        lambda audio, blocks: planned_windows(blocks, plan.spans, skip), known, groups
    )


def live_source(
    windows: Sequence[Window], kept: Kept, hypothesis: tuple[int, ...], *, whole: bool
) -> WindowSource:
    """The windows of a live item, which hold their samples. With the `whole` item those of earlier passes are
    kept."""

    def read(audio: Recording, blocks: Iterator[Samples]) -> Iterator[Window]:
        for _ in blocks:
            pass  # it warns of audio that is too short
        yield from windows

    known = kept if whole else replace(kept, decoded=(), words=())
    return WindowSource(read, known, whole=whole, hypothesis=hypothesis)
