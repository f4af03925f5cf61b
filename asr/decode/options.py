"""The records of one transcription call: what is asked, how far it has come, and what it gives.

`Options` are frozen and checked once. `Guards` say whether a window's answer is kept, decoded again at a
higher temperature, or silence: Whisper's own rules (Radford et al. 2022, section 4.5; openai/whisper
`transcribe.py`), applied to each window separately, so that they work for windows decoded in parallel: only a
window that fails is queued again. NaN counts as failure, because a comparison with NaN would silently disable
a guard.

While a call runs its hook is told `Progress` and `Partial`, a listener each `Part` of a recording, a tap its
samples; `PhaseTimes` are written. An `Outcome` is the result of a recording, with its windows as `Decoded`
for audits. Knows nothing of models, or of how the records are made. Import is light.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from forescribe.speculative.errors import RequestError
from forescribe.speculative.requests import Beams, Result, Stats

from ..audio.inputs import ARRAY, DecodedFile, Input, Sound
from ..errors import ForescribeError, UsageError
from ..formats.transcript import Transcript
from ..formats.transcript_parts import Segment, State
from ..model.tokens import TASKS, Task
from ..segment.windows import Samples, WindowOptions
from ..words.redaction import kinds_of
from ..words.replacements import Replacements
from ..words.terms import read_terms

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ..model.speech_model import EncoderStates
    from ..segment.windows import Run
    from ..storage.locations import Entry
    from ..words.edits import Change


DOUBTFUL_BEAMS = 5
"""Beams of a doubtful window: the default of faster-whisper, and of openai/whisper's command."""


@dataclass(frozen=True)
class Options:
    """The options of a call.

    `language` None or "auto" detects the language, "de,en" among these. `gamma` is the number of drafted
    tokens per round; None takes the transcriber's own, which is also the maximum. `initial_prompt` is text
    before every window: names and spellings to expect. `hint` is text that is probably spoken, such as a
    script or an earlier transcript of the whole recording: drafts are copied from it, and no word depends
    on it. `terms` are words and phrases to write where the model agrees that they were spoken, as lines of
    `asr.words.terms`; `replacements` are words to write otherwise, as lines of `asr.words.replacements`.
    `beam_size` is 1 for the most probable token, or the number of beams of every window; None searches with
    `DOUBTFUL_BEAMS` where a window is doubtful without. `patience` and `length_penalty` are of `Beams`.
    Raises UsageError for invalid values.
    """

    language: str | None = None
    task: Task = "transcribe"
    timestamps: bool = True
    initial_prompt: str | None = None
    hint: str | None = None
    terms: tuple[str, ...] = ()
    replacements: tuple[str, ...] = ()
    redact: tuple[str, ...] = ()  # kinds of personal data in place of which marks are written
    gamma: int | None = None
    vad: bool = True
    windows: WindowOptions = field(default_factory=WindowOptions)
    words: bool = False  # time every word
    guards: Guards | None = None  # decode doubtful windows again; None keeps every answer
    beam_size: int | None = 1
    patience: float = 1.0
    length_penalty: float | None = None
    # For audits: the outcome holds the windows with their encoder states.
    keep_encoder_states: bool = False

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise UsageError(f"unknown task {self.task!r}; known: {', '.join(TASKS)}")
        for name in ("language", "initial_prompt", "hint"):
            value = getattr(self, name)
            if value is not None:
                _check_text(name, value)
        whole = isinstance(self.gamma, int) and not isinstance(self.gamma, bool)
        if self.gamma is not None and (not whole or self.gamma < 0):
            raise UsageError(f"gamma is {self.gamma}; it must be 0 (plain decoding) or more")
        for name in ("terms", "replacements", "redact"):
            if not isinstance(value := getattr(self, name), tuple):
                raise UsageError(f"{name} is {value!r}; give a tuple of texts, one for each")
        if self.terms:
            read_terms(self.terms)
        if self.replacements:
            Replacements.of(self.replacements)
        kinds_of(self.redact)
        _ = self.beams
        if self.gamma and self.beam_size not in (1, None):
            raise UsageError(
                f"gamma {self.gamma} drafts the most probable tokens, and beams have no drafts; leave out "
                "one of them"
            )

    @property
    def beams(self) -> Beams | None:
        """Those of a window that is searched; None where no window is. Raises UsageError."""
        try:
            size = DOUBTFUL_BEAMS if self.beam_size is None else self.beam_size
            beams = Beams(size, self.patience, self.length_penalty)
        except RequestError as error:
            raise UsageError(str(error)) from None
        if size > 1:
            return beams
        if (self.patience, self.length_penalty) != (1.0, None):
            raise UsageError("patience and length_penalty are for beams: give beam_size 2 or more")
        return None


@dataclass(frozen=True)
class Guards:
    """Thresholds; None disables one. Raises UsageError for invalid values.

    An answer fails if its text compresses by more than `compression_ratio` (it repeats itself) or its
    mean log-probability is below `logprob`. It is silence if the no-speech probability exceeds
    `no_speech` while the answer is improbable. `temperatures` are tried in order.
    """

    compression_ratio: float | None = 2.4
    logprob: float | None = -1.0
    no_speech: float | None = 0.6
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)

    def __post_init__(self) -> None:
        if not self.temperatures or not all(0 <= t < math.inf for t in self.temperatures):
            raise UsageError(f"temperatures are {self.temperatures}; need one or more, from 0 up")
        if list(self.temperatures) != sorted(set(self.temperatures)):
            raise UsageError(f"temperatures are {self.temperatures}; they must rise")
        if self.no_speech is not None and not 0 <= self.no_speech <= 1:
            raise UsageError(f"no_speech is {self.no_speech}; it is a probability, 0 to 1")
        # Beyond these limits every answer would fail, and NaN would disable the guard.
        if self.compression_ratio is not None and not self.compression_ratio > 0:
            raise UsageError(
                f"compression_ratio is {self.compression_ratio}; it must be above 0, or None"
            )
        if self.logprob is not None and not self.logprob <= 0:
            raise UsageError(
                f"logprob is {self.logprob}; a mean log-probability is 0 or less, or None"
            )

    def judge(
        self,
        *,
        compression_ratio: float,
        mean_logprob: float,
        no_speech_prob: float,
        heard: bool = True,
    ) -> tuple[Judgement, str | None]:
        """Judge an answer; the reason is None where it is kept. `heard`: whether a detector heard a voice in
        its window. If none did, the no-speech probability decides alone."""
        if any(map(math.isnan, (compression_ratio, mean_logprob, no_speech_prob))):
            return Judgement.RETRY, "the model's numbers are not finite"
        improbable = self.logprob is not None and mean_logprob < self.logprob
        likely_silent = self.no_speech is not None and no_speech_prob > self.no_speech
        # openai/whisper: a window that is improbable and likely silent is skipped, even if it repeats.
        if likely_silent and (improbable or self.logprob is None or not heard):
            return Judgement.SILENCE, f"no speech (probability {no_speech_prob:.2f})"
        if self.compression_ratio is not None and compression_ratio > self.compression_ratio:
            return Judgement.RETRY, f"repeats itself (compression ratio {compression_ratio:.2f})"
        if improbable:
            return Judgement.RETRY, f"improbable (mean log-probability {mean_logprob:.2f})"
        return Judgement.KEEP, None

    def rank(self, *, compression_ratio: float, mean_logprob: float) -> tuple[bool, float]:
        """The rank of an answer among those of a window that were all rejected, the highest for the one to
        keep: those that do not repeat themselves first, then by mean log-probability (SYSTRAN/faster-whisper
        `generate_with_fallback`; openai/whisper keeps the last one)."""
        if math.isnan(mean_logprob):
            return False, -math.inf
        repeats = self.compression_ratio is not None and compression_ratio > self.compression_ratio
        return not repeats, mean_logprob

    def next_temperature(self, temperature: float) -> float | None:
        """The temperature to try after this one; None after the last."""
        return next((t for t in self.temperatures if t > temperature + 1e-9), None)


@dataclass(frozen=True)
class Sure:
    """When an answer counts for a window that is loud and in which no voice was detected. It is not decoded
    again: a text that passes at last would be invented.

    By whisper-base, in 28 minutes of clicks, tones, music, chirps, applause and noise in bursts: no word is
    invented with a mean log-probability from -1.5 or from -1.7 on, 5 from -2.3 on; 2 where fewer tokens count
    ("Thank you." at a no-speech probability of 0.02), and 16 where that may be 0.6. Of AMI's meetings and
    reverberant readers 45, 59 and 62 words are won from -1.0, -1.4 and -1.5 on.
    """

    no_speech: float = 0.3
    logprob: float = -1.55
    compression_ratio: float = 2.0
    least_tokens: int = 5
    tokens_per_s: float = 8.0  # the most: repetitions in music have no end

    def doubt(
        self, text: str, tokens: int, *, ratio: float, mean_logprob: float, no_speech_prob: float
    ) -> str | None:
        """Why an answer of so many text tokens does not count; None where it does."""
        if not no_speech_prob <= self.no_speech:
            return f"no speech (probability {no_speech_prob:.2f})"
        if not mean_logprob >= self.logprob:
            return f"improbable (mean log-probability {mean_logprob:.2f})"
        if ratio > self.compression_ratio:
            return f"repeats itself (compression ratio {ratio:.2f})"
        if tokens < self.least_tokens or not any(map(str.isalnum, text)):
            return "hardly a word"
        return None


SURE = Sure()


class Judgement(Enum):
    """What to do with an answer."""

    KEEP = "keep"
    RETRY = "retry"
    SILENCE = "silence"


@dataclass(frozen=True)
class Decoded:
    """A window, samples `start` to `end`, with the engine's answer for it.

    `encoder_states` are kept for audits only: those of an hour are gigabytes in a large model.
    """

    index: int
    start: int
    end: int
    language: str
    result: Result
    tokens: tuple[int, ...]  # the tokens of the result that count
    state: State = "decoded"
    reason: str | None = None  # why its text does not count
    encoder_states: EncoderStates | None = None
    doubt: str | None = None  # why the guards rejected its text, where it was kept anyway
    tried: float = 0.0  # the highest temperature that was tried; the answer may be of a lower one
    continued: bool = False  # the next part of its window follows
    wordless: tuple[Run, ...] = ()  # where a voice was heard and no word written
    reach: int | None = None  # the end of its last word, where a voice goes on behind it
    # The most probable language with its probability, where the call has named one.
    heard: tuple[str, float] | None = None
    level_db: float | None = None  # of a window without a voice that is loud, against full scale
    changes: tuple[Change, ...] = ()  # of its words, by terms and replacements
    skipped: tuple[str, ...] = ()  # replacements that took too long
    # Where words were replaced: the tokens that were heard, and where the text tokens that are written,
    # and their end, lie among the text of these.
    spoken: tuple[int, ...] | None = None
    origin: tuple[float, ...] = ()

    @property
    def length(self) -> int:
        """Samples."""
        return self.end - self.start


@dataclass(frozen=True)
class Outcome:
    """The outcome of a recording: a transcript, or an error."""

    source: Input
    transcript: Transcript | None = None
    error: ForescribeError | None = None
    wall_s: float = 0.0  # from its first block to its last word, other recordings included
    decoded: tuple[Decoded, ...] = ()  # with `Options.keep_encoder_states`
    # What another machine has read: the SHA-256 of the bytes, and what the store says about them.
    content: str | None = None
    entry: Entry | None = None

    @property
    def name(self) -> str:
        """The path as it was given; audio given as bytes or samples has none."""
        if isinstance(self.source, DecodedFile):
            return self.source.name
        if isinstance(self.source, bytes):
            return "<bytes>"
        in_memory = isinstance(self.source, Sound | tuple | list | Mapping)
        in_memory = in_memory or hasattr(self.source, "__array__")
        return ARRAY if in_memory else str(self.source)


@dataclass(frozen=True)
class Progress:
    """The progress of a call. `total_s` is None where the container declares no length."""

    source: Input
    done_s: float  # of this recording
    total_s: float | None
    segments: tuple[Segment, ...]  # of the window that has just ended
    stats: Stats  # of the call so far
    # New segments in order, from the start of the recording without gaps.
    spoken: tuple[Segment, ...] = ()
    draft_error: BaseException | None = None  # why the window had no drafts


@dataclass(frozen=True)
class Partial:
    """Text of the first window of a recording that is still being decoded. It may change."""

    source: Input
    text: str


Hook = Callable[[Progress], None]
"""Is told of each window that has ended."""


@runtime_checkable
class Follows(Protocol):
    """A hook that also shows text while it is being decoded. Reading that text waits for the device, so
    `wants` says when it is needed."""

    @property
    def wants(self) -> bool: ...

    def follow(self, partial: Partial) -> None: ...


@dataclass(frozen=True)
class Part:
    """The next windows of a recording that have ended, in order and without gaps. Never retracted."""

    segments: tuple[Segment, ...]  # `id` is 0 and words are missing: both come with the outcome
    tokens: tuple[Token, ...]
    done_s: float  # of the recording, silence included

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)


@dataclass(frozen=True)
class Token:
    """A token of the text. `data` are the bytes that it stands for, which may be part of a character."""

    text: str
    logprob: float
    data: bytes


class Listener(Protocol):
    """Receives the results of one recording, on the engine's thread: it must neither block nor raise."""

    def progressed(self, part: Part) -> None: ...

    def ended(self, outcome: Outcome | None) -> None:
        """Called once and last, when the source is no longer read. None where it was cancelled."""


Tap = Callable[[Samples], None]
"""Receives the samples of a recording as they are read."""


class SpeakerSearch(Protocol):
    """Finds the speakers of one recording while it is decoded, in a thread of its own."""

    def feed(self, samples: Samples) -> None:
        """The next samples, on the thread that reads them."""

    def finish(self, transcript: Transcript, source: str) -> Future[Transcript]:
        """The transcript of the recording `source` with speakers."""

    def cancel(self) -> None: ...


class FindsSpeakers(Protocol):
    """Finds the speakers of the recordings of a call, while they are decoded."""

    def begin(self) -> AbstractContextManager[Callable[[], SpeakerSearch]]:
        """For one call; what is returned begins with a recording."""


class PhaseTimes:
    """When the phases of one recording's decoding began and ended, for traces: `encode`, `rounds`, `words`.

        session.submit(source, options, listener, phases=(phases := PhaseTimes()))
        phases.spans["encode"]              # Unix nanoseconds

    Windows of several recordings are encoded and decoded together, so phases overlap, and the busy time of
    one includes that of others in the same batch. Written by the engine's thread.
    """

    def __init__(self) -> None:
        self.spans: dict[str, PhaseSpan] = {}

    def add(self, phase: str, began_ns: int, ended_ns: int) -> None:
        """A part of a phase is over."""
        known = self.spans.get(phase, PhaseSpan(began_ns, ended_ns))
        self.spans[phase] = PhaseSpan(
            min(known.began_ns, began_ns),
            max(known.ended_ns, ended_ns),
            known.busy_ns + ended_ns - began_ns,
        )


@dataclass(frozen=True)
class PhaseSpan:
    """A phase: its first beginning, its last end, and the sum of its parts, in nanoseconds."""

    began_ns: int
    ended_ns: int
    busy_ns: int = 0


def _check_text(name: str, value: object) -> None:
    """Raise UsageError for a value that is not a string, or not Unicode text: Python represents bytes of
    the command line that are not UTF-8 as lone surrogates."""
    if not isinstance(value, str):
        raise UsageError(f"{name} is {value!r}; it must be text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name} {value!r} is not Unicode text; give it in UTF-8") from None
