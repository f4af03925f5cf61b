"""The life of a window: its request, the engine's answer, retries and further parts; then the transcript.

`window_request` makes the request, with prompt, language, seed and draft length. `WindowDecoder` judges the
answers: a window is repeated at the next temperature where the guards reject its answer, and where an answer
ends before the voice in its window does, the rest becomes the next part of the window. A fault ends the
window that it happened in. When all windows of a recording have ended, `outcome_of` makes its transcript,
with coverage, warnings, settings and figures.

Knows nothing of where windows come from.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

from torch import Tensor

from forescribe.speculative.engine.context import release
from forescribe.speculative.requests import Request, Result

from ..errors import ForescribeError, UsageError, out_of_memory
from ..formats.transcript import Transcript
from ..formats.transcript_parts import Json, Notice, Segment, seconds
from ..model.encoder_states import EncoderStates
from ..model.special_tokens import CANNOT_TRANSLATE, language_codes
from ..model.whisper import Whisper
from ..segment.windows import Window
from ..words.borders import Pause, pauses
from .answers import (
    Attempt,
    Extent,
    accounted,
    attempt_of,
    decoded_of,
    failed_window,
    rest_of,
    segments_of,
    text_of,
    timed_segments,
    whole_window,
)
from .context import Among, DecodingContext, EncodedWindow, Ended, Fault
from .drafting import SCRIPT_SLOTS
from .options import Decoded, Guards, Judgement, Options, Outcome
from .recording import (
    DOUBTFUL,
    RecordingState,
    WindowTag,
    coverage,
    doubtful,
    dropped,
    failed,
    fault,
    in_order,
    mixed,
    stats,
    uncertain,
    undrafted,
    untimed,
    wordless,
)
from .word_timer import WordTimer

CONFIDENT = 0.9
"""A window leaves its recording's language only at this probability of another one."""

PROMPT_CHARACTERS = 64
"""Characters of a prompt that are read, for each of the tokens that it may have."""


@dataclass(frozen=True)
class BoundOptions:
    """Options that were checked against a model.

    `language` is a code, None to detect it, among the codes `among` if there are any; `previous` holds the
    tokens of the initial prompt, and `hint` those of the text that drafts are copied from.
    """

    options: Options
    language: str | None
    previous: tuple[int, ...]
    hint: tuple[int, ...] = ()
    among: tuple[str, ...] = ()


def bind(options: Options, context: DecodingContext) -> BoundOptions:
    """Check options against a model. Raises UsageError for those that it cannot serve."""
    special = context.whisper.tokens
    codes = tuple(special.language(code) for code in language_codes(options.language))
    language, among = (codes[0], ()) if len(codes) == 1 else (None, codes)
    previous = prompt_tokens(context.whisper, options.initial_prompt)
    if options.task == "translate" and not special.translates:
        raise UsageError(CANNOT_TRANSLATE)
    limit = context.engine.max_gamma
    if options.gamma is not None and options.gamma > limit:
        raise UsageError(
            f"gamma {options.gamma} is more than the {limit} that the transcriber was created with"
        )
    hint = hint_tokens(context.whisper, options.hint)
    return BoundOptions(options, language, previous, hint, among)


class WindowDecoder:
    """The windows of a recording that are in the engine.

    `in_engine` holds their tags, `rests` the parts of windows that are to be encoded next. `fatal` is
    set if the recording cannot be continued: running out of memory may not happen with a smaller batch,
    so it must not look like a transcript.
    """

    def __init__(
        self,
        context: DecodingContext,
        bound: BoundOptions,
        timer: WordTimer,
        extent: Extent = whole_window,
    ) -> None:
        self.context, self.bound, self.timer = context, bound, timer
        self._extent = extent
        self.fatal: ForescribeError | None = None
        self.in_engine: set[WindowTag] = set()
        # The best answer of a window that is repeated.
        self._rejected: dict[WindowTag, Attempt] = {}
        self.rests: list[Window] = []

    def detects_language(self, window: Window) -> Among:
        """Among which languages that of a window is to be detected when it is encoded."""
        known = self.bound.language is not None or window.language is not None
        return None if known else self.bound.among

    def request(
        self,
        tag: WindowTag,
        encoder_states: EncoderStates,
        previous: tuple[int, ...],
        hypothesis: tuple[int, ...] = (),
        guess: tuple[int, ...] = (),
    ) -> Request:
        """The request for a window, which the caller submits; `previous` are the tokens before it,
        `hypothesis` what an earlier window has written of it, `guess` how its answer probably begins."""
        request = window_request(
            self.context, self.bound, tag, encoder_states, previous, hypothesis, guess
        )
        self.in_engine.add(tag)
        return request

    def finish(self, ended: Ended) -> Decoded | None:
        """Record what the engine returned.

        None for a window that is decoded again, that was dropped, or whose recording was given up.
        """
        tag: WindowTag = ended.request.tag
        if tag not in self.in_engine:
            return None
        if isinstance(ended, Fault):
            return self.fail(tag, ended.error)
        try:
            decoded = self._accepted(tag, ended)
        except Exception as error:
            return self.fail(tag, error)
        if decoded is not None:
            self._keep(tag, decoded)
            if self.bound.options.words:
                self.timer.add(tag, decoded, ended.request.encoder_states)
        return decoded

    def fail(self, tag: WindowTag, error: Exception) -> Decoded | None:
        """Record that an exception ended a window; None where its recording is given up."""
        recording = tag.recording
        release(error)
        self.drop([tag])
        if out_of_memory(error):
            self.fatal = fault(recording.name, error)
            return None
        decoded = failed_window(self.context.whisper, tag, error, self._extent)
        decoded = accounted(decoded, tag.voiced, ())
        recording.faults[tag.start] = error
        recording.segments[tag.start] = ()
        self._keep(tag, decoded)
        return decoded

    def forget(self, recording: RecordingState) -> None:
        """Drop all windows, wherever they are."""
        self.drop(self.in_engine)
        self.rests.clear()
        self.timer.forget(recording)

    def drop(self, tags: Iterable[WindowTag]) -> None:
        """Remove windows from the engine; their rows are free at once."""
        for tag in list(tags):
            self.in_engine.discard(tag)
            self._rejected.pop(tag, None)
            self.context.slots.cancel(tag)

    def _accepted(self, tag: WindowTag, result: Result) -> Decoded | None:
        """The decoded window, with its segments; None where it is queued again."""
        options = self.bound.options
        attempt = attempt_of(self.context.whisper, options.guards, result, heard=tag.heard)
        best = self._rejected.pop(tag, attempt)
        if attempt.judgement is not Judgement.RETRY or attempt.rank > best.rank:
            best = attempt
        # Without a voice nothing is sampled: a text that passes at last would be invented.
        if attempt.judgement is Judgement.RETRY and tag.heard:
            retry = retry_of(result.request, options.guards)
            if retry is not None:
                self._rejected[tag] = best
                self.context.slots.submit(retry)  # behind the windows that wait
                return None
        decoded = decoded_of(
            self.context,
            tag,
            best,
            tried=result.request.temperature,
            extent=self._extent,
            keep_encoder_states=options.keep_encoder_states,
        )
        return self._followed(tag, decoded, result.request.encoder_states)

    def _followed(self, tag: WindowTag, decoded: Decoded, states: EncoderStates) -> Decoded:
        """The decoded window with its segments and the voice that they leave out; what the answer leaves
        of its window is queued as the next part."""
        whisper = self.context.whisper
        decoded, rest = rest_of(whisper, self.bound.options, tag, decoded, states)
        if rest is not None:
            self.rests.append(rest)
        segments = segments_of(whisper, decoded)
        tag.recording.segments[tag.start] = segments
        return accounted(decoded, tag.voiced, segments)

    def _keep(self, tag: WindowTag, decoded: Decoded) -> None:
        self.in_engine.discard(tag)
        tag.recording.add(decoded)


def outcome_of(context: DecodingContext, bound: BoundOptions, recording: RecordingState) -> Outcome:
    """The outcome of a complete recording: an error where no window could be decoded, or where an
    exception prevents the transcript."""
    wall = time.perf_counter() - recording.started
    done = in_order(recording.decoded)
    try:
        if done and len(recording.faults) == len(done):
            raise recording.faults[done[0].start]
        transcript = _transcript(context, bound, recording, done, wall)
    except Exception as error:
        return Outcome(recording.source, error=fault(recording.name, error), wall_s=wall)
    kept = tuple(done) if bound.options.keep_encoder_states else ()
    return Outcome(recording.source, transcript, wall_s=wall, decoded=kept)


def settings_of(context: DecodingContext, options: Options) -> dict[str, Json]:
    """Models, options and versions, for reproducing a transcript."""
    pair, device = context.whisper.pair, context.whisper.device
    gamma = context.gamma if options.gamma is None else options.gamma
    sequential = options.long_form == "sequential"
    vad = options.vad and not sequential
    return {
        "model": str(getattr(pair.target, "name", pair.target)),
        "draft": None if pair.draft is None else str(getattr(pair.draft, "name", pair.draft)),
        "draft_for_other_languages": str(pair.rest) if pair.rest is not None else None,
        "shared_encoder": context.whisper.shared_encoder,
        "gamma": "auto" if gamma is None else gamma,
        "batch_size": context.batch,
        "device": device.name,
        "dtype": str(device.stored).removeprefix("torch."),
        "quantize": "int8" if device.int8 else "none",
        "engine": context.forward,
        "task": options.task,
        "timestamps": options.timestamps,
        "initial_prompt": options.initial_prompt,
        "long_form": options.long_form,
        # Windows that are decoded in parallel have no text before them.
        "condition_on_previous_text": sequential and options.condition_on_previous_text,
        "vad": vad,
        "windows": asdict(options.windows) if vad else None,
        "guards": None if options.guards is None else _plain(asdict(options.guards)),
        "word_timestamps": options.words,
        "versions": {name: version(name) for name in ("forescribe", "torch", "transformers")},
    }


def window_request(
    context: DecodingContext,
    bound: BoundOptions,
    tag: WindowTag,
    encoder_states: EncoderStates,
    previous: tuple[int, ...],
    hypothesis: tuple[int, ...] = (),
    guess: tuple[int, ...] = (),
) -> Request:
    """The request for a window at the first temperature; `previous` are the tokens before it, `hypothesis`
    what an earlier window has written of it, `guess` how its answer probably begins."""
    options, route = bound.options, context.whisper.pair.route(tag.language)
    prompt = context.whisper.tokens.prompt(
        tag.language, options.task, timestamps=options.timestamps, previous=previous
    )
    request = Request(
        prompt=prompt,
        encoder_states=replace(encoder_states, chosen=route or 0),
        gamma=0 if route is None else options.gamma,
        hint=hint_for(tag, bound.hint) or hypothesis,
        guess=guess if context.engine.takes_guesses else (),
        probe=context.no_speech.probe(prompt),
        tag=tag,
    )
    first = options.guards.temperatures[0] if options.guards is not None else 0.0
    return at_temperature(request, first) if first else request


def retry_of(request: Request, guards: Guards | None) -> Request | None:
    """The same window at the next temperature; None after the last one."""
    if guards is None:
        return None
    temperature = guards.next_temperature(request.temperature)
    return None if temperature is None else at_temperature(request, temperature)


def at_temperature(request: Request, temperature: float) -> Request:
    seed = seed_of(request.tag.start, temperature)
    return replace(request, temperature=temperature, seed=seed, guess=())


def seed_of(start: int, temperature: float) -> int:
    """The seed of the window at sample `start` for a temperature.

    It is the same on every machine and in any batch, and differs for all temperatures that the engine
    can distinguish: an attempt that reused the random numbers of a rejected attempt would not follow
    the model's distribution.
    """
    (bits,) = struct.unpack("<I", struct.pack("<f", temperature))
    return int(bits) << 32 | start & 0xFFFFFFFF


def settled_language(recording: RecordingState) -> str | None:
    """The recording's language; None while it is unknown or doubtful."""
    probability = recording.language_probability
    return None if probability is None or probability < DOUBTFUL else recording.language


def language_in(recording: RecordingState, window: EncodedWindow) -> str:
    """The language to decode a window in: the recording's, unless another one is very probable.

    The recording's language is that of its first window whose language is not doubtful, and until then the
    most probable so far. This function sets it.
    """
    assert window.language is not None
    language, probability = window.language
    before = recording.language_probability
    if settled_language(recording) is None and (before is None or probability > before):
        recording.language, recording.language_probability = language, probability
    assert recording.language is not None
    return recording.language if probability < CONFIDENT else language


def pauses_for(options: Options, features: Tensor, length: int) -> tuple[Pause, ...]:
    """The pauses of a window of `length` samples, where its words are to be timed."""
    return pauses(features, length) if options.words else ()


def prompt_tokens(whisper: Whisper, text: str | None) -> tuple[int, ...]:
    """The last tokens of previous text that fit into a prompt. Raises UsageError."""
    if not text or not text.strip():
        return ()
    if whisper.tokens.previous is None:
        raise UsageError("this model has no token for previous text, so it takes no prompt")
    room = prompt_room(whisper)
    # Only the last tokens are used, so megabytes of text are not tokenised: few tokens are longer than this.
    text = text.strip()[-PROMPT_CHARACTERS * room :]
    ids = whisper.tokenizer.encode(" " + text.strip(), add_special_tokens=False)
    if any(token >= whisper.tokens.end for token in ids):
        raise UsageError("the initial prompt holds a special token such as <|endoftext|>")
    return tuple(ids[-room:])


def hint_tokens(whisper: Whisper, text: str | None) -> tuple[int, ...]:
    """The text tokens of what is probably spoken; what looks like a special token in it is left out."""
    if not text or not text.strip():
        return ()
    ids = whisper.tokenizer.encode(" " + text.strip(), add_special_tokens=False)
    return tuple(token for token in ids if token < whisper.tokens.end)


def hint_for(tag: WindowTag, hint: tuple[int, ...]) -> tuple[int, ...]:
    """The part of a recording's text that a window is looked for in: all of it, unless it is longer than a
    drafter holds; then the part around the window's share of the recording."""
    declared = tag.recording.audio.declared_s if len(hint) > SCRIPT_SLOTS else None
    if not declared:
        return hint[:SCRIPT_SLOTS]
    middle = round(len(hint) * min(1.0, seconds(tag.start) / declared))
    first = min(max(0, middle - SCRIPT_SLOTS // 2), len(hint) - SCRIPT_SLOTS)
    return hint[first : first + SCRIPT_SLOTS]


def prompt_room(whisper: Whisper) -> int:
    """Tokens of previous text that fit into a prompt: half the positions less one (openai/whisper)."""
    return int(whisper.target.config.max_target_positions) // 2 - 1


def _transcript(
    context: DecodingContext,
    bound: BoundOptions,
    recording: RecordingState,
    done: Sequence[Decoded],
    wall: float,
) -> Transcript:
    segments = [s for d in done for s in timed_segments(context.whisper, recording, d)]
    language = bound.language or recording.language
    return Transcript(
        segments=tuple(replace(s, id=i) for i, s in enumerate(segments)),
        sample_count=sum(w.length for w in recording.silent) + sum(d.length for d in done),
        coverage=coverage(done, recording.silent),
        language=language,
        language_probability=recording.language_probability,
        warnings=(
            *recording.audio.warnings,
            *_warnings(context, recording, done, language),
            *_doubts(bound, recording, segments),
        ),
        settings=settings_of(context, bound.options),
        stats=stats(done, wall),
    )


def _warnings(
    context: DecodingContext,
    recording: RecordingState,
    done: Sequence[Decoded],
    language: str | None,
) -> list[Notice]:
    return [
        *failed(done),
        *wordless(done),
        *doubtful(done),
        *mixed(done, language),
        *dropped(done, lambda d: text_of(context.whisper, d.result.tokens)),
        *untimed(done, recording.timing_faults),
        *undrafted(done),
    ]


def _doubts(
    bound: BoundOptions, recording: RecordingState, segments: Sequence[Segment]
) -> list[Notice]:
    language, probability = recording.language, recording.language_probability
    if bound.language is not None or language is None or probability is None:
        return []
    return uncertain(segments, language, probability)


def _plain(record: dict[str, Any]) -> dict[str, Json]:
    """A record for JSON, which has no tuples."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in record.items()}
