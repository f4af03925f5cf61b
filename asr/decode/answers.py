"""What the engine is asked for a window, and what it answers.

`bind` checks the options of a recording against the model, once. `window_request` makes the request of a
window that was encoded, with prompt, language, seed and draft length; `retry_of` the one at the next
temperature.

An answer is judged (`attempt_of`) and becomes a `Decoded`. What it leaves of its window becomes the next part
of the window (`rest_of`), and voice for which no words were written is counted (`accounted`). Knows guards,
timestamps and text; nothing of engines or of the words that are shown.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from forescribe.speculative.requests import Finish, Probe, Request, Result

from ..errors import UsageError
from ..formats.transcript_parts import SAMPLE_RATE, Segment, State, seconds
from ..model.languages import Spoken
from ..model.whisper import EncoderStates, Whisper
from ..segment.windows import Run, Window, total, within
from ..words.assembly import MARKS, split_words
from ..words.timing import Utterance, token_times
from .context import SCRIPT_SLOTS, DecodingContext, EncodedWindow
from .options import Decoded, Guards, Judgement, Options
from .recording import (
    DOUBTFUL,
    Attempt,
    PendingWindow,
    RecordingState,
    Stretch,
    compression_ratio,
    mean_logprob,
    reason_of,
    text_of,
    texts_of,
)

CONFIDENT = 0.9
"""A window leaves its recording's language only at this probability of another one."""

PROMPT_CHARACTERS = 64
"""Characters of a prompt that are read, for each of the tokens that it may have."""


NOT_FINITE = "the model's numbers are not finite"

LEAST = round(0.5 * SAMPLE_RATE)
"""Samples of voice that are worth another pass of the encoder, and without words worth a warning: the edges
of words reach over timestamps by less."""

LONGEST = round(0.7 * SAMPLE_RATE)
"""Samples that the last token may last. The attention gives it what follows where there is no end of text:
2.1 s too much in whisper-base's first segment of a reader, 0.1 s at the ends of whole windows."""

SLOW = (round(1.5 * SAMPLE_RATE), round(0.25 * SAMPLE_RATE))
"""Samples of voice that a segment may hold, once and for every token, before its timestamps are checked.
Published models close a segment behind words that they did not write: whisper-base gave 18 tokens 23.5 s and
left out 18 s of speech. In 55 minutes of human readers 19 of 176 windows are checked, for 5 % of the time."""

LONG, STRETCHED = round(1.0 * SAMPLE_RATE), round(1.8 * SAMPLE_RATE)
"""Samples of voice that few tokens last, and none: the attention gives a token the speech beside it that was
not written. Of 8,097 words of human readers by whisper-base 17 last longer than 1 s, and the longest, a year,
1.66 s."""

MOST_PARTS = 8
"""Further parts of one window. Published models need one, rarely two (docs/development/log.md)."""

REPEATED = "the model repeats the words before it"

Extent = Callable[[Window, tuple[int, ...], State], tuple[int, tuple[int, ...]]]
"""The sample where a window ends and the tokens of its answer that count, by the window, the tokens of its
answer and its state."""


# -- requests ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BoundOptions:
    """Options that were checked against a model.

    `spoken` are the languages, of several the one that is heard; `previous` holds the tokens of the initial
    prompt, and `hint` those of the text that drafts are copied from.
    """

    options: Options
    spoken: Spoken
    previous: tuple[int, ...]
    hint: tuple[int, ...] = ()

    @property
    def language(self) -> str | None:
        """The code; None to detect it."""
        return self.spoken.one


def bind(options: Options, context: DecodingContext) -> BoundOptions:
    """Check options against a model. Raises UsageError for those that it cannot serve."""
    special = context.whisper.tokens
    spoken = special.spoken(options.language)
    previous = prompt_tokens(context.whisper, options.initial_prompt)
    if options.task == "translate" and not special.translates:
        raise UsageError(f"translate: {special.only}")
    limit = context.engine.max_gamma
    if options.gamma is not None and options.gamma > limit:
        raise UsageError(
            f"gamma {options.gamma} is more than the {limit} that the transcriber was created with"
        )
    hint = hint_tokens(context.whisper, options.hint)
    return BoundOptions(options, spoken, previous, hint)


def window_request(
    context: DecodingContext,
    bound: BoundOptions,
    pending: PendingWindow,
    encoder_states: EncoderStates,
    previous: tuple[int, ...],
    hypothesis: tuple[int, ...] = (),
) -> Request:
    """The request for a window at the first temperature; `previous` are the tokens before it, `hypothesis`
    what an earlier window has written of it."""
    options, route = bound.options, context.whisper.pair.route(pending.language)
    prompt = context.whisper.tokens.prompt(
        pending.language, options.task, timestamps=options.timestamps, previous=previous
    )
    request = Request(
        prompt=prompt,
        encoder_states=replace(encoder_states, chosen=route or 0),
        gamma=0 if route is None else options.gamma,
        hint=hint_for(pending, bound.hint) if bound.hint else hypothesis,
        guess=pending.window.guess if context.engine.takes_guesses else (),
        probe=_probe(context, bound, prompt),
        tag=pending,
    )
    first = options.guards.temperatures[0] if options.guards is not None else 0.0
    return at_temperature(request, first) if first else request


def _probe(context: DecodingContext, bound: BoundOptions, prompt: tuple[int, ...]) -> Probe:
    """The no-speech token and, where one language is named, those of all languages: behind
    start-of-transcript, which is read anyway, so that listening for another one costs nothing. A step of the
    decoder for it alone takes a fifth of the encoder's time."""
    probe, special = context.no_speech.probe(prompt), context.whisper.tokens
    if bound.language is None or not special.multilingual:
        return probe
    return replace(probe, tokens=(*probe.tokens, *special.languages.values()))


def retry_of(request: Request, guards: Guards | None) -> Request | None:
    """The same window at the next temperature; None after the last one."""
    if guards is None:
        return None
    temperature = guards.next_temperature(request.temperature)
    return None if temperature is None else at_temperature(request, temperature)


def at_temperature(request: Request, temperature: float) -> Request:
    seed = seed_of(request.tag.window.start, temperature)
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


def hint_for(pending: PendingWindow, hint: tuple[int, ...]) -> tuple[int, ...]:
    """The part of a recording's text that a window is looked for in: all of it, unless it is longer than a
    drafter holds; then the part around the window's share of the recording."""
    declared = pending.recording.audio.declared_s if len(hint) > SCRIPT_SLOTS else None
    if not declared:
        return hint[:SCRIPT_SLOTS]
    middle = round(len(hint) * min(1.0, seconds(pending.window.start) / declared))
    first = min(max(0, middle - SCRIPT_SLOTS // 2), len(hint) - SCRIPT_SLOTS)
    return hint[first : first + SCRIPT_SLOTS]


def prompt_room(whisper: Whisper) -> int:
    """Tokens of previous text that fit into a prompt: half the positions less one (openai/whisper)."""
    return int(whisper.target.config.max_target_positions) // 2 - 1


# -- answers ----------------------------------------------------------------------------------------------


def attempt_of(whisper: Whisper, guards: Guards | None, result: Result, *, heard: bool) -> Attempt:
    """An answer with its judgement; `heard` as of `Guards.judge`. Without guards only numbers that are not
    finite are rejected."""
    mean = mean_logprob(result.logprobs)
    if guards is None:
        if math.isfinite(mean):
            return Attempt(result, Judgement.KEEP, None, (True, mean))
        return Attempt(result, Judgement.RETRY, NOT_FINITE, (False, mean))
    ratio = compression_ratio(text_of(whisper, result.tokens))
    judgement, reason = guards.judge(
        compression_ratio=ratio,
        mean_logprob=mean,
        no_speech_prob=result.probe[0],
        heard=heard,
    )
    rank = guards.rank(compression_ratio=ratio, mean_logprob=mean)
    return Attempt(result, judgement, reason, rank)


def decoded_of(
    whisper: Whisper,
    pending: PendingWindow,
    attempt: Attempt,
    *,
    tried: float,
    extent: Extent,
    keep_encoder_states: bool,
) -> Decoded:
    """The window of the answer that was chosen.

    An answer that the guards reject is kept with a doubt, as Whisper does, unless its probabilities are
    not finite or no voice was heard in its window. `tried` is the highest temperature at which the window
    was decoded.
    """
    result, reason = attempt.result, attempt.reason
    rejected = attempt.judgement is Judgement.RETRY
    broken = rejected and not math.isfinite(mean_logprob(result.logprobs))
    doubt = reason if rejected and not broken else None
    state: State = "decoded"
    if broken:
        state = "failed"
    elif rejected and not pending.heard:
        state, doubt, reason = "silent", None, f"no voice; {reason}"
    elif attempt.judgement is Judgement.SILENCE:
        state = "silent"
    window, request = pending.window, result.request
    end, tokens = extent(window, result.tokens, state)
    return Decoded(
        index=window.index,
        start=window.start,
        end=end,
        language=pending.language,
        result=replace(
            result,
            request=replace(request, encoder_states=None, tag=None),
            probe=result.probe[:1],
        ),
        tokens=tokens,
        state=state,
        reason=None if doubt is not None else reason,
        doubt=doubt,
        tried=tried,
        encoder_states=request.encoder_states if keep_encoder_states else None,
        heard=_heard(whisper, result),
    )


def _heard(whisper: Whisper, result: Result) -> tuple[str, float] | None:
    """The most probable language by what `_probe` has asked for; None where it asked for none."""
    chances = result.probe[1:]
    if not (whole := math.fsum(chances)):
        return None
    best, code = max(zip(chances, whisper.tokens.languages, strict=True))
    return code, best / whole


def failed_window(
    whisper: Whisper, pending: PendingWindow, error: Exception, extent: Extent
) -> Decoded:
    """A window that an exception ended."""
    request, window = Request((whisper.tokens.start,)), pending.window
    return Decoded(
        index=window.index,
        start=window.start,
        end=extent(window, (), "failed")[0],
        language=pending.language,
        result=Result(request, (), (), (), Finish.CANCELLED, 0, 0, 0),
        tokens=(),
        state="failed",
        reason=reason_of(error),
    )


@dataclass(frozen=True)
class Reach:
    """The sample up to which an answer goes, and its tokens that count."""

    end: int
    tokens: tuple[int, ...]


def reached(
    whisper: Whisper,
    options: Options,
    decoded: Decoded,
    states: EncoderStates,
    voiced: Sequence[Run] = (),
) -> Reach:
    """How far an answer with text goes: to its last timestamp or, where text follows that, to the end of its
    last word by the model's attention.

    Where the timestamps leave room for speech that was not written (`_leaves_room`), the attention is asked
    as well: an answer goes no further than to the word before the first one that lasts too long.
    """
    parts = texts_of(whisper, decoded)
    special = whisper.tokens
    written = [token for token in decoded.tokens if token != special.end]
    last = parts[-1][0]
    start, end = decoded.start + last.start, decoded.start + last.end
    closed = special.stamp(written[-1]) is not None and start < end
    if closed and not (
        options.task == "transcribe" and _leaves_room([part for part, _ in parts], decoded, voiced)
    ):
        return Reach(end, decoded.tokens)
    if options.task == "translate":  # the attention does not follow the order of translated words
        return Reach(decoded.end, decoded.tokens)
    tokens = tuple(token for part, _ in parts for token in part.tokens)
    prompt = special.prompt(decoded.language, options.task, timestamps=False)
    (times,) = token_times(whisper, [Utterance(states, prompt, tokens, decoded.length)])
    bounds = [decoded.start + boundary for boundary in times.boundaries]
    cut = _first_stretched(whisper, decoded.language, tokens, bounds, voiced)
    if cut is not None:
        end = min(bounds[cut], bounds[cut - 1] + LONGEST)
        return Reach(end, _first_tokens(parts, decoded.tokens, cut, special.end))
    gap = _first_gap([part for part, _ in parts], decoded, bounds, voiced)
    if gap is not None:
        cut = sum(len(part.tokens) for part, _ in parts[:gap])
        end = decoded.start + parts[gap - 1][0].end
        return Reach(end, _first_tokens(parts, decoded.tokens, cut, special.end))
    said = min(bounds[-1], bounds[-2] + LONGEST)
    return Reach(min(said, end) if closed else said, decoded.tokens)


def _first_stretched(
    whisper: Whisper,
    language: str,
    tokens: Sequence[int],
    bounds: Sequence[int],
    voiced: Sequence[Run],
) -> int | None:
    """The token before which an answer is cut: the first one of the first word that lasts too long, and of
    the words before it that last long for a word; of the second word if that would leave none. None where
    no word lasts too long. The last token may: `LONGEST` is for that."""
    lasting = [_voice(voiced, a, b) for a, b in pairwise(bounds)]
    words: list[tuple[int, int]] = []  # the first token, and how long the longest one lasts
    first = 0
    for word in split_words(whisper.tokenizer, language, tokens):
        inner = lasting[first : min(first + word.count, len(tokens) - 1)]
        words.append((first, max(inner, default=0)))
        first += word.count
    number = next((i for i, (_, longest) in enumerate(words) if longest > STRETCHED), None)
    if number is None or len(words) < 2:
        return None
    while number and words[number - 1][1] > LONG:
        number -= 1
    return words[max(number, 1)][0]


def _first_gap(
    parts: Sequence[Stretch], decoded: Decoded, bounds: Sequence[int], voiced: Sequence[Run]
) -> int | None:
    """The first segment before which there is more voice than the two words beside it may last, by its
    timestamps and by the attention, `bounds` of all tokens; None where there is none. What lies between two
    segments is shared by the attention among both, so that neither has to last too long."""
    first = 0
    for number, (part, following) in enumerate(pairwise(parts), 1):
        first += len(part.tokens)
        between = _voice(voiced, decoded.start + part.end, decoded.start + following.start)
        beside = _voice(voiced, bounds[first - 1], bounds[first + 1])
        if between > STRETCHED and beside > STRETCHED + LONG:
            return number
    return None


def _leaves_room(parts: Sequence[Stretch], decoded: Decoded, voiced: Sequence[Run]) -> bool:
    """Whether a segment has few words for its voice, or much voice is between two segments."""
    before: int | None = None
    for part in parts:
        start, end = decoded.start + part.start, decoded.start + part.end
        if before is not None and _voice(voiced, before, start) > STRETCHED:
            return True
        if _voice(voiced, start, end) > SLOW[0] + SLOW[1] * len(part.tokens):
            return True
        before = end
    return False


def _voice(voiced: Sequence[Run], start: int, end: int) -> int:
    return total(within(voiced, start, end))


def _first_tokens(
    parts: Sequence[tuple[Stretch, str]], tokens: Sequence[int], count: int, end: int
) -> tuple[int, ...]:
    """The tokens of an answer before the text token number `count` of its segments with text."""
    texts = [place for place, token in enumerate(tokens) if token < end]
    counted = [texts[part.first + i] for part, _ in parts for i in range(len(part.tokens))]
    return tuple(tokens[: counted[count]])


def rest_of(
    whisper: Whisper, options: Options, window: Window, decoded: Decoded, states: EncoderStates
) -> tuple[Decoded, Window | None]:
    """An answer as far as it counts, and what it leaves of its window, as the next part; None where no voice
    is left, or no part helps.

    Whisper may close its answer before its window ends. With a pair of timestamps it says so: text continues
    there, and its long-form algorithm starts the next window at that place (Radford et al. 2022, section
    3.8). It also stops without saying so, or leaves out a sentence in the middle. So a window goes on behind
    the last word before the first voice without words. Runs the target once where the timestamps do not
    show that there is none.

    A part that repeats the words before it does not count if it is doubtful or hardly gets on: the next one
    would repeat them too. The voice of it, or behind the last part that is allowed, is told as failed.
    """
    if window.tentative or window.features is not None or not texts_of(whisper, decoded):
        return decoded, None
    voiced = window.voiced or ()
    reach = reached(whisper, options, decoded, states, voiced)
    if reach.end <= window.start:  # the attention of a single word may be anywhere
        reach = replace(reach, end=min(window.start + LONGEST, window.end))
    slow = reach.end - window.start < SAMPLE_RATE
    if (slow or decoded.doubt is not None) and _repeats(whisper, window.before, reach.tokens):
        state: State = "failed" if total(voiced) > STRETCHED else "silent"
        return replace(decoded, state=state, doubt=None, reason=REPEATED), None
    left = within(voiced, reach.end, window.end)
    if total(left) < LEAST:
        return decoded, None
    if window.part >= MOST_PARTS:
        return replace(decoded, tokens=reach.tokens, wordless=left, reach=reach.end), None
    rest = window.rest(reach.end, decoded.language, reach.tokens)
    return replace(decoded, end=rest.start, tokens=reach.tokens, continued=True), rest


def _repeats(whisper: Whisper, before: Sequence[int], tokens: Sequence[int]) -> bool:
    """Whether the words of `tokens` are the last ones `before`, whatever their case and punctuation."""
    earlier, words = (
        [word for part in text_of(whisper, t).casefold().split() if (word := part.strip(MARKS))]
        for t in (before, tokens)
    )
    return bool(words) and earlier[-len(words) :] == words


def accounted(
    decoded: Decoded, voiced: Sequence[Run] | None, segments: Sequence[Segment]
) -> Decoded:
    """A window with the voice behind its last segment, if there are `LEAST` samples of it, and with its reach
    there. Before the first and between two segments only more than `STRETCHED` samples count: a model may
    place its timestamps wrongly, and the words of a gap are those next to it then."""
    if decoded.reach is not None:
        return decoded
    runs, end, voiced = list[Run](), decoded.start, voiced or ()
    for segment in segments:
        gap = within(voiced, end, segment.start_sample)
        if total(gap) > STRETCHED:
            runs += gap
        end = segment.end_sample
    behind = within(voiced, end, decoded.end)
    if total(behind) < LEAST:
        return replace(decoded, wordless=tuple(runs)) if runs else decoded
    reach = end if decoded.state == "decoded" else None
    return replace(decoded, wordless=(*runs, *behind), reach=reach)
