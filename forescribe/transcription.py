"""The functions of `forescribe`: what one does with a recording, or several, in one call.

    from forescribe import transcribe

    print(transcribe("meeting.mp3").text)

Each call loads its model. For several calls with one, or further options, use `Transcriber`. Knows how a
transcriber and a diarizer are combined.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from numbers import Number
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    NamedTuple,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from forescribe.asr.audio.inputs import Input, as_input
from forescribe.asr.audio.reading import open_audio
from forescribe.asr.decode.options import Guards, Options
from forescribe.asr.decode.results import Hook, Outcome
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.errors import ForescribeError, UsageError
from forescribe.asr.formats.transcript_parts import seconds
from forescribe.asr.model.presets import BeamSize
from forescribe.asr.model.tokens import Task

if TYPE_CHECKING:
    import os

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from forescribe.asr.decode.analysis import DetectedLanguage
    from forescribe.asr.formats.transcript import Transcript
    from forescribe.asr.formats.transcript_parts import Word
    from forescribe.diarize.diarizer import Diarization

    Samples = NDArray[np.floating[Any] | np.integer[Any]] | torch.Tensor
    Audio = (
        str
        | os.PathLike[str]
        | bytes
        | BinaryIO
        | Samples
        | tuple[Samples, int]
        | tuple[int, Samples]
        | Mapping[str, Any]
    )
    OneAudio = TypeVar("OneAudio", bound=Audio)

    class TranscribeOptions(TypedDict, total=False):
        """The options of `transcribe`, for its overloads."""

        sample_rate: int | None
        language: str | None
        task: Task
        initial_prompt: str | None
        terms: Sequence[str]
        replacements: Sequence[str]
        hint: str | None
        beam_size: BeamSize | None
        words: bool
        diarize: bool
        num_speakers: int | None
        device: str | None
        local_files_only: bool
        on_progress: Hook | None


class SpeechSegment(NamedTuple):
    """In seconds."""

    start: float
    end: float


class BatchError(ForescribeError):
    """Recordings of a list failed; raised when all have ended. `outcomes` are in the order of the list, each
    with a `transcript` or an `error`. The code is that of the first error."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = tuple(outcomes)
        errors = [outcome.error for outcome in outcomes if outcome.error is not None]
        failed = f"{len(errors)} of {len(outcomes)} recordings failed"
        told = "; ".join(error.message for error in errors)
        super().__init__(f"{failed}, the others are in `outcomes`: {told}", code=errors[0].code)


@overload
def transcribe(
    audio: Audio,
    model: str | None = ...,
    draft: str | None = ...,
    **options: Unpack[TranscribeOptions],
) -> Transcript: ...
@overload
def transcribe(
    audio: list[OneAudio],
    model: str | None = ...,
    draft: str | None = ...,
    **options: Unpack[TranscribeOptions],
) -> list[Transcript]: ...
def transcribe(
    audio: Audio | list[OneAudio],
    model: str | None = None,
    draft: str | None = None,
    *,
    sample_rate: int | None = None,
    language: str | None = None,
    task: Task = "transcribe",
    initial_prompt: str | None = None,
    terms: Sequence[str] = (),
    replacements: Sequence[str] = (),
    hint: str | None = None,
    beam_size: BeamSize | None = None,
    words: bool = False,
    diarize: bool = False,
    num_speakers: int | None = None,
    device: str | None = None,
    local_files_only: bool = False,
    on_progress: Hook | None = None,
) -> Transcript | list[Transcript]:
    """Transcribe a recording, or a list of recordings in one batch, with the defaults of
    `forescribe transcribe`.

    The model is loaded in each call. To keep it, make a `Transcriber`.

    Args:
        audio: a path, an address (http, https, s3, gs, az, hf), "-" for stdin, the bytes of a file, or a
            binary file object. Or samples: an array of numpy or a tensor of torch, [T], [T, C] or [C, T],
            floats from -1 to 1 or integers of 8, 16 or 32 bits; they need `sample_rate`, or come as
            `(samples, rate)` or as a dictionary of Hugging Face's datasets. A list of these is a batch.
        sample_rate: rate of samples, in Hz; files say their own.
        model: preset (`forescribe models` lists them), Hugging Face id or local folder; None is "large".
        draft: draft model, named likewise; None is the model's own, "none" drafts by lookup only.
        language: the spoken language, a code (`pt`, `pt-BR`) or a name; None detects it.
        task: "transcribe", or "translate" into English.
        initial_prompt: text with names and spellings to expect.
        terms: names and terms, written so where they are heard; each as a line of `--terms`.
        replacements: words to write otherwise; each as a line of `--replace`.
        hint: text that is probably spoken, such as a script: drafts are copied from it in place of a draft
            model, which saves time and changes no word. Of no use with beams.
        beam_size: beams of a search, 1 for the most probable words, with drafts, or "auto" for beams where
            these are doubtful; None is the model's own, five for models up to small.
        words: give every segment its words with their times.
        diarize: label segments and words with speakers; includes word times.
        num_speakers: exact number of speakers, if known; needs `diarize`.
        device: "cuda", "cuda:1", "hpu", "mps" or "cpu"; None chooses one.
        local_files_only: use downloaded weights only; never access the network.
        on_progress: called with a `Progress` after each window with speech, of at most 30 s; what it raises
            ends the call.

    Returns:
        The transcript; of a list all transcripts, in its order.

    Raises:
        AudioError: the recording cannot be read, or samples are empty or not finite.
        StorageError: an address cannot be fetched.
        ModelError: the weights are missing or cannot be loaded.
        UsageError: an option is impossible for this model, or contradicts another; samples without a
            rate, or of a shape or type that is none.
        BatchError: recordings of a list failed. The others have been transcribed and are attached to it.
        DeviceError: the device does not exist.

    All but DeviceError (a `forescribe.speculative.errors.SpeculativeError`) are `ForescribeError`.
    """
    if num_speakers is not None and not diarize:
        raise UsageError("num_speakers needs diarize=True")
    many = isinstance(audio, list) and not _is_samples(audio)
    sources: list[Any] = cast(list[Any], audio) if many else [as_input(audio, sample_rate)]
    if not sources:
        return []
    options = Options(
        language=language,
        task=task,
        initial_prompt=initial_prompt,
        terms=_listed(terms),
        replacements=_listed(replacements),
        hint=hint,
        beam_size=beam_size,
        words=words,
        guards=Guards(),
    )
    transcriber = Transcriber.load(
        model,
        draft if hint is None else draft or "none",  # the text takes the draft model's place
        language=language,
        device=device,
        network=not local_files_only,
        beam_size=beam_size,
    )
    if diarize:
        from forescribe.diarize.diarizer import Bounds
        from forescribe.diarize.engines.registry import load
        from forescribe.diarize.speaker_finder import SpeakerFinder

        diarizer = load(device=device or "auto", network=not local_files_only)
        transcriber = transcriber.with_speakers(SpeakerFinder(diarizer, Bounds(num_speakers)))
    outcomes = _outcomes(transcriber, sources, sample_rate, options, on_progress)
    made = [outcome.transcript for outcome in outcomes if outcome.transcript is not None]
    if many:
        if len(made) < len(outcomes):
            raise BatchError(outcomes)
        return made
    if outcomes[0].error is not None:
        raise outcomes[0].error
    return made[0]


def _listed(lines: Sequence[str]) -> Any:
    """As `Options` takes them, which refuse a single text."""
    return lines if isinstance(lines, str) else tuple(lines)


def detect_language(
    audio: Audio,
    model: str | None = None,
    *,
    sample_rate: int | None = None,
    device: str | None = None,
    local_files_only: bool = False,
) -> DetectedLanguage:
    """The spoken language, see `Transcriber.detect_language`. Other errors: those of `transcribe`."""
    source = as_input(audio, sample_rate)
    transcriber = Transcriber.load(model, device=device, network=not local_files_only, batch=1)
    with _local(source) as recording:
        return transcriber.detect_language(recording)


def align(
    audio: Audio,
    text: str,
    model: str | None = None,
    *,
    sample_rate: int | None = None,
    language: str | None = None,
    device: str | None = None,
    local_files_only: bool = False,
) -> tuple[Word, ...]:
    """The words of `text` with their times, see `Transcriber.align`. Other errors: those of `transcribe`."""
    source = as_input(audio, sample_rate)
    transcriber = Transcriber.load(model, device=device, network=not local_files_only, batch=1)
    with _local(source) as recording:
        return transcriber.align(recording, text, language)


def find_speakers(
    audio: Audio,
    diarizer: str = "auto",
    *,
    sample_rate: int | None = None,
    num_speakers: int | None = None,
    min_speakers: int | None = None,
    max_speakers: int | None = None,
    device: str | None = None,
    local_files_only: bool = False,
) -> Diarization:
    """Who speaks when, without words, in bounded memory: `regular` turns, which may overlap, and others.
    Not named `diarize`, as that is a package. Raises the errors of `transcribe`."""
    from forescribe.diarize.blocks import diarize_blocks, split_into_blocks
    from forescribe.diarize.diarizer import Bounds
    from forescribe.diarize.engines.registry import load

    source, bounds = as_input(audio, sample_rate), Bounds(num_speakers, min_speakers, max_speakers)
    engine = load(diarizer, device=device or "auto", network=not local_files_only)
    with _local(source) as here, open_audio(here) as recording:
        found = diarize_blocks(engine, split_into_blocks(recording.blocks()), bounds)
        return replace(found, warnings=(*recording.warnings, *found.warnings))


def speech_segments(
    audio: Audio,
    *,
    sample_rate: int | None = None,
    min_pause_s: float = 0.1,
    min_speech_s: float = 0.1,
) -> tuple[SpeechSegment, ...]:
    """Where somebody speaks, by silero-vad. Pauses below `min_pause_s` are part of a segment; then segments
    below `min_speech_s` are left out. Raises AudioError, StorageError, UsageError."""
    from forescribe.asr.segment.cutter import cut
    from forescribe.asr.segment.vad import SileroDetector

    with _local(as_input(audio, sample_rate)) as here, open_audio(here) as recording:
        windows = cut(recording.blocks(), SileroDetector(), skip_silence=False)
        runs = [run for window in windows for run in window.voiced or ()]
    found: list[SpeechSegment] = []
    for start, end in (map(seconds, run) for run in runs):
        # A window may end within a run.
        joined = found and (start == found[-1].end or start - found[-1].end < min_pause_s)
        found.append(SpeechSegment(found.pop().start if joined else start, end))
    return tuple(speech for speech in found if speech.end - speech.start >= min_speech_s)


def _is_samples(audio: list[Any]) -> bool:
    """Whether a list is one of numbers, or of such lists."""
    while isinstance(audio, list) and audio:
        audio = audio[0]
    return isinstance(audio, Number)


def _outcomes(
    transcriber: Transcriber,
    audio: Sequence[Any],
    sample_rate: int | None,
    options: Options,
    hook: Hook | None,
) -> list[Outcome]:
    """The outcomes of recordings, in their order; one that is named twice is transcribed once."""
    keys: list[Hashable] = [one if isinstance(one, str) else id(one) for one in audio]
    found: dict[Hashable, Outcome] = {}
    taken: dict[int, tuple[Hashable, Any, Input]] = {}  # with the source, whose id stays its own
    with ExitStack() as copies:

        def local() -> Iterator[Input]:
            for key, one in dict(zip(keys, audio, strict=True)).items():
                try:
                    source = copies.enter_context(_local(as_input(one, sample_rate)))
                except ForescribeError as error:
                    found[key] = Outcome(one, error=error)
                else:
                    taken[id(source)] = key, one, source
                    yield source

        for outcome in transcriber.transcribe(local(), options, hook):
            key, one, _ = taken[id(outcome.source)]
            found[key] = replace(outcome, source=one)
    return [found[key] for key in keys]


@contextmanager
def _local(source: Input) -> Iterator[Input]:
    """The recording on this machine: one at an address is fetched, as by the command, and its copy removed.
    Raises StorageError, AudioError."""
    from forescribe.asr.storage.locations import Location, is_url

    if not isinstance(source, str) or not is_url(source):
        yield source
        return
    from forescribe.asr.batch.spool import SpoolFolder
    from forescribe.asr.storage.locations import Source
    from forescribe.asr.storage.stores import Stores

    location = Location.parse(source)
    remote = Source(location.identity, location=location)
    folder = SpoolFolder()
    try:
        yield folder.copy(remote, Stores())
    finally:
        folder.close()
