"""Planned submissions: a recording whose windows were cut earlier, decoded and reported in groups.

    plan = plan_of(recording, detector, options.windows)          # once; the rest may happen elsewhere
    session.enter(planned(context, audio, options, listener, plan=plan, kept=groups, grouped=keep))

For work that must survive its process: plans and groups are records that convert to JSON, and a
submission that receives its earlier groups produces the same result as without the interruption.
Knows nothing of where they are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ..audio.reading import Input
from ..decode.decoding_context import DecodingContext
from ..decode.options import Options
from ..decode.outcome import Decoded
from ..decode.recordings.recording_state import RecordingState
from ..decode.recordings.window_decoder import WindowDecoder
from ..decode.recordings.window_results import in_order, timed_segments
from ..segment.cut_plan import Plan, planned_windows
from ..segment.windows import Window
from .submission import Listener, Submission
from .window_groups import Group

OnGroup = Callable[[Group], None]


class PlannedWindows:
    """The `Windows` of a plan, without those of the groups in `kept`.

    `kept` are the first groups of the plan, in order. `grouped` is called with each further group as
    soon as its last window has ended, on the engine's thread, groups in any order. Words are timed by
    group, whatever ended first, so that a disturbed run has the same batches as an undisturbed one;
    this keeps the encoder states of all groups that are being decoded.
    """

    timing_batch: int | None = None

    def __init__(self, plan: Plan, kept: Sequence[Group], grouped: OnGroup) -> None:
        assert [group.k for group in kept] == list(range(len(kept)))
        self.plan, self.kept, self.grouped = plan, tuple(kept), grouped
        self._group_of = {i: k for k, group in enumerate(plan.groups) for i in group}
        self._missing = {
            k: set(group) for k, group in enumerate(plan.groups[len(kept) :], len(kept))
        }

    def restore(self, recording: RecordingState) -> Iterable[Decoded]:
        """Put the windows of the kept groups into a recording."""
        for group in self.kept:
            recording.language = group.language
            recording.language_probability = group.language_probability
            for decoded, words in zip(group.decoded, group.words, strict=True):
                recording.window_count += not decoded.continued
                recording.add(decoded)
                if words is not None:
                    recording.words[decoded.start] = list(words)
        return tuple(recording.decoded)

    def read(self, recording: RecordingState) -> Iterator[Window]:
        """The windows of the plan that have not been restored."""
        skip = frozenset(decoded.index for group in self.kept for decoded in group.decoded)
        return planned_windows(recording.audio.blocks(), self.plan, skip)

    def ended(self, decoder: WindowDecoder, recording: RecordingState, decoded: Decoded) -> None:
        """Report the group of a window if it was the last one missing."""
        if decoded.continued:
            return
        k = self._group_of[decoded.index]
        self._missing[k].discard(decoded.index)
        if not self._missing[k]:
            decoder.timer.run_for(self.plan.groups[k])
            self.grouped(self._group(decoder, recording, k))

    def _group(self, decoder: WindowDecoder, recording: RecordingState, k: int) -> Group:
        indices, whisper = set(self.plan.groups[k]), decoder.context.whisper
        decoded = in_order(d for d in recording.decoded if d.index in indices)
        words = [recording.words.get(d.start) for d in decoded]
        return Group(
            k,
            tuple(decoded),
            tuple(None if own is None else tuple(own) for own in words),
            recording.language,
            recording.language_probability,
            tuple(s for d in decoded for s in timed_segments(whisper, recording, d)),
        )


def planned(
    context: DecodingContext,
    source: Input,
    options: Options,
    listener: Listener,
    *,
    plan: Plan,
    grouped: OnGroup,
    kept: Sequence[Group] = (),
    arrived_s: float = 0.0,
    name: str | None = None,
) -> Submission:
    """A submission that follows a plan. Arguments as of `PlannedWindows` and `Submission`."""
    windows = PlannedWindows(plan, kept, grouped)
    # Restored groups take no time: the submission's place in the queue is that of its next window.
    restored_s = plan.until_s(len(kept) - 1) if kept else 0.0
    return Submission(
        context,
        source,
        options,
        listener,
        arrived_s=arrived_s - restored_s,
        name=name,
        windows=windows,
    )
