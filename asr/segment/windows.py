"""Windows: parts of a recording, cut in its pauses, that fit into a model's input (30 s).

The windows **partition** the samples: every sample belongs to exactly one window, in order, by integer
offsets. Where one ends is a pure function of the next 33 s of speech probabilities. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..formats.transcript_parts import SAMPLE_RATE, seconds
from .vad import FRAME, Probabilities

if TYPE_CHECKING:
    from forescribe.speculative.requests import Source

Samples = NDArray[np.float32]

MAX_SAMPLES = 30 * SAMPLE_RATE
"""The length of Whisper's input."""

MAX_FRAMES = MAX_SAMPLES // FRAME

_BOUNDS = {
    "onset": (0, 1),
    "offset": (0, 1),
    "min_speech_s": (0, 5),  # a longer sound is not a click: leaving it out would lose speech
    "search_s": (1, 15),
}
"""Of options; of the others 0 to 15 s."""

VOICE = 0.5
"""From this probability on a frame is voice (silero-vad's own threshold): words are expected there.
Windows are cut by the lower thresholds of `WindowOptions`, which leave doubtful frames in."""


def _frames(time_s: float) -> int:
    return round(time_s * SAMPLE_RATE / FRAME)


HEADING = _frames(3.0)
"""Less voice than this before a pause, and at least as much behind it, is a heading: both share a window, as
Whisper hears a name better beside its text (measured: docs/methods/windows.md)."""

HEADING_PAUSE = _frames(6.0)
"""A longer pause parts a heading from its text."""


@dataclass(frozen=True)
class WindowOptions:
    """How to cut a recording.

    Speech begins at probability `onset` and lasts until the probability falls below `offset`; speech of
    less than `min_speech_s` is a click. A pause of `min_pause_s` is a place to cut; a pause of
    `max_silence_s` is not decoded, except for `pad_s` on both sides of the speech, and behind a
    `HEADING`. A full window is cut in the longest pause of its last `search_s`, otherwise in its last
    pause, or, in speech without pauses, where speech is least probable in the last `search_s`. Raises
    ValueError for values that contradict each other.
    """

    # Below silero-vad's own 0.5 and 0.35: a whisper in noise stays in, and noise stays out.
    onset: float = 0.4
    offset: float = 0.25
    min_speech_s: float = 0.1
    min_pause_s: float = 0.1
    max_silence_s: float = 2.0
    pad_s: float = 0.3
    search_s: float = 8.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least, most = _BOUNDS.get(name, (0, 15))
            if not least <= value <= most:
                raise ValueError(f"{name} is {value}; it must be {least} to {most}")
        if not 0 < self.offset <= self.onset:
            raise ValueError(f"offset {self.offset} must be above 0 and at most onset {self.onset}")
        if not 0 < self.min_pause_s <= self.max_silence_s:
            raise ValueError(
                f"min_pause_s {self.min_pause_s} must be above 0 and at most max_silence_s "
                f"{self.max_silence_s}"
            )
        # In frames, as silence is cut: pads that fit in seconds may not fit after rounding.
        if 2 * self.pad_frames >= self.max_silence_frames:
            raise ValueError(
                f"two pads of {self.pad_s} s do not fit in a silence of {self.max_silence_s} s "
                f"(both count in frames of {1000 * FRAME // SAMPLE_RATE} ms); take a smaller pad_s "
                "or a larger max_silence_s"
            )

    @property
    def pad_frames(self) -> int:
        return _frames(self.pad_s)

    @property
    def max_silence_frames(self) -> int:
        return _frames(self.max_silence_s)


Run = tuple[int, int]
"""Samples [start, end) of the recording."""


class WindowSpan(NamedTuple):
    """A window without its samples, as a record that outlives its process."""

    start: int
    end: int
    speech: bool
    voiced: tuple[Run, ...] | None = None
    level_db: float | None = None
    faint_db: float | None = None


class Withheld(NamedTuple):
    """What was cut off an answer: tokens, their log-probabilities and sources."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Window:
    """Samples `start` to `end` (exclusive) of the recording.

    With `speech`, `samples` [end - start] float32 are held, at most 30 s, until it has been decoded. Without,
    the window may have any length and holds no samples: ten silent minutes are one record. `voiced` are the
    runs of the window in which a detector heard a voice (`VOICE`), in order; None if nothing listened. What
    is loud though no voice was heard has a `level_db` against full scale; with speech it is `unheard`.
    `faint_db` is how far its voice is below the loud voices of the recording, up to where it was cut.

    `part` is above 0 for what is left of a cut window whose model closed its answer early: the number of
    answers before it. It keeps the index of the cut window; `language` is that of the answers before it,
    `before` are the tokens of the last one, which its model does not read if it is to be decoded `alone`, and
    `withheld` what was cut off it.
    `guess` is how its answer probably begins. A `tentative` window ends where the audio ends so far: what its
    answer leaves of it is not decoded. Raises ValueError for inconsistent values.
    """

    index: int
    start: int
    end: int
    speech: bool
    samples: Samples
    voiced: tuple[Run, ...] | None = None
    part: int = 0
    language: str | None = None
    before: tuple[int, ...] = ()
    withheld: Withheld | None = None
    alone: bool = False
    guess: tuple[int, ...] = ()
    tentative: bool = False
    level_db: float | None = None
    faint_db: float | None = None

    def __post_init__(self) -> None:
        if self.index < 0 or not 0 <= self.start < self.end:
            raise ValueError(f"window {self.index} runs from sample {self.start} to {self.end}")
        held = self.end - self.start if self.speech else 0
        if self.samples.shape not in ((held,), (0,)):
            raise ValueError(f"window {self.index} holds {self.samples.shape} samples, not {held}")
        if self.speech and held > MAX_SAMPLES:
            raise ValueError(f"window {self.index} of {seconds(held)} s is longer than 30 s")

    @property
    def length(self) -> int:
        """Samples."""
        return self.end - self.start

    @property
    def unheard(self) -> bool:
        """Whether it is decoded because it is loud, though no voice was heard."""
        return self.speech and self.level_db is not None

    @property
    def span(self) -> WindowSpan:
        """The window without its samples."""
        return WindowSpan(
            self.start, self.end, self.speech, self.voiced, self.level_db, self.faint_db
        )

    def rest(
        self,
        start: int,
        language: str,
        before: tuple[int, ...],
        withheld: Withheld | None = None,
        *,
        alone: bool = False,
    ) -> Window:
        """The window from sample `start` on, as the next part of this one, which has the answer `before`."""
        return replace(
            self,
            start=start,
            samples=self.samples[start - self.start :],
            voiced=within(self.voiced or (), start, self.end),
            part=self.part + 1,
            language=language,
            before=before,
            withheld=withheld,
            alone=alone,
            guess=(),
        )


def within(runs: Iterable[Run], start: int, end: int) -> tuple[Run, ...]:
    """The parts of runs between two samples."""
    return tuple((max(a, start), min(b, end)) for a, b in runs if max(a, start) < min(b, end))


def total(runs: Iterable[Run]) -> int:
    """Samples in runs."""
    return sum(end - start for start, end in runs)


@dataclass(frozen=True)
class Decision:
    """A decision about the next `frames` frames: they are speech, or silence."""

    frames: int
    speech: bool


def next_piece(
    probabilities: Probabilities,
    voiced: NDArray[np.bool_],
    options: WindowOptions,
    *,
    after_silence: bool,
    skip_silence: bool = True,
    fits: bool = False,
) -> Decision:
    """The piece that starts at the first of these frames. There must be `lookahead(options)` of them, or
    all that are left.

    `probabilities` and `voiced` are [F]. `after_silence`: the previous piece was silent, so its silence
    continues here. `fits`: what is left fits into a window, though its last frame may reach over that.
    """
    pad, max_silence = options.pad_frames, options.max_silence_frames
    total, shortest = len(voiced), _frames(options.min_speech_s)
    last = total < lookahead(options)
    fits = last and (fits or total <= MAX_FRAMES)
    # Without clicks; a run at either border may continue beyond it, so it counts.
    runs = [(a, b) for a, b in runs_of(voiced) if b - a >= shortest or a == 0 or b == total]
    if not skip_silence:
        if fits:
            return Decision(total, speech=True)
        ends = [0, *(end for _, end in runs)]
        starts = [*(start for start, _ in runs), total]
        pauses = [(a, b) for a, b in zip(ends, starts, strict=True) if a < b]
        return Decision(_cut_at(pauses, probabilities, options), speech=True)
    if not runs:
        return Decision(total if last else total - pad, speech=False)

    # `pad` frames of a long pause belong to the speech before it.
    lead = runs[0][0]
    if lead >= max_silence - pad or (after_silence and lead > pad):
        return Decision(lead - pad, speech=False)

    # The recording ends soon after the last speech, or beyond the lookahead.
    following = [start for start, _ in runs[1:]] + [total if last else total + max_silence]
    pauses = [(end, start) for (_, end), start in zip(runs, following, strict=True)]
    long = [
        at
        for at, (start, end) in enumerate(pauses)
        if start <= MAX_FRAMES and end - start >= max_silence
    ]
    if long and _is_heading(runs, pauses, long, fits=fits):
        del long[0]
    if long:
        return Decision(min(pauses[long[0]][0] + pad, MAX_FRAMES, total), speech=True)
    if fits:
        return Decision(total, speech=True)
    return Decision(_cut_at(pauses, probabilities, options), speech=True)


def _is_heading(runs: list[Run], pauses: list[Run], long: list[int], *, fits: bool) -> bool:
    """Whether the speech before the first of the `long` pauses is a heading of what follows it, up to the
    next of them or the end, and both fit into a window."""
    first, last = long[0], long[1] if len(long) > 1 else len(runs) - 1
    start, end = pauses[first]
    before, after = (
        sum(b - a for a, b in r) for r in (runs[: first + 1], runs[first + 1 : last + 1])
    )
    whole = fits or len(long) > 1
    return whole and end - start < HEADING_PAUSE and before < HEADING <= after


def lookahead(options: WindowOptions) -> int:
    """The number of frames that decide where a window ends: a full window, the longest pause at its end,
    and one more."""
    return MAX_FRAMES + options.max_silence_frames + 1


def _cut_at(
    pauses: list[tuple[int, int]], probabilities: Probabilities, options: WindowOptions
) -> int:
    """Where to end a full window, in frames from its start."""
    earliest = MAX_FRAMES - _frames(options.search_s)
    short = _frames(options.min_pause_s)
    places = [
        ((start + min(end, 2 * MAX_FRAMES - start)) // 2, end - start)  # the middle, or the limit
        for start, end in pauses
        if start <= MAX_FRAMES
    ]
    usable = [(middle, length) for middle, length in places if length >= short]
    late = [(length, middle) for middle, length in usable if middle >= earliest]
    if late:
        return max(late)[1]
    if usable:
        return usable[-1][0]
    sums = probabilities[earliest - 1 : MAX_FRAMES - 1] + probabilities[earliest:MAX_FRAMES]
    # Of equal minima the last one, for fuller windows.
    return earliest + len(sums) - 1 - int(np.argmin(sums[::-1]))


def runs_of(frames: NDArray[np.bool_], step: int = 1, first: int = 0) -> list[Run]:
    """The runs of frames that are set, by samples: frames of `step`, from sample `first` on."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], frames, [False]]).astype(np.int8)))
    bounds = (first + step * edges).tolist()
    return list(zip(bounds[::2], bounds[1::2], strict=True))
