"""What the engine is asked for a window.

`bind` checks the options of a recording against the model, once. `window_request` makes the request of a
window that was encoded, with prompt, language, seed and draft length; `retry_of` the one at the next
temperature. Knows nothing of engines or of what they answer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from forescribe.speculative.requests import Request

from ..errors import UsageError
from ..formats.transcript_parts import Notice, seconds
from ..model.languages import Spoken
from ..model.speech_model import SpeechModel, SpeechTokens
from ..model.states import EncoderStates
from ..model.whisper import attending
from ..segment.windows import Window
from ..words.redaction import Redactor
from ..words.replacements import Replacements
from ..words.terms import TermList
from .context import SCRIPT_SLOTS, DecodingContext, EncodedWindow
from .options import Guards, Options
from .window import PendingWindow, RecordingState

DOUBTFUL = 0.5
"""Below this probability a detected language is doubtful."""

CONFIDENT = 0.9
"""A window leaves its recording's language only at this probability of another one."""

PROMPT_CHARACTERS = 64
"""Characters of a prompt that are read, for each of the tokens that it may have."""


@dataclass(frozen=True)
class BoundOptions:
    """Options that were checked against a model.

    `spoken` are the languages, of several the one that is heard; `previous` holds the tokens of the initial
    prompt, and `hint` those of the text that drafts are copied from. `notices` say what of them is not read.
    """

    options: Options
    spoken: Spoken
    previous: tuple[int, ...]
    hint: tuple[int, ...] = ()
    terms: TermList | None = None
    replacements: Replacements | None = None
    redactor: Redactor | None = None
    notices: tuple[Notice, ...] = ()

    @property
    def language(self) -> str | None:
        """The code; None to detect it."""
        return self.spoken.one

    def searches(self, window: Window) -> bool:
        """Whether a window is decoded with beams at once. One in which no voice was detected is not: they
        find words in music ("Thank you very much." with five) that the most probable tokens are not."""
        return not (self.options.drafted or window.unheard)


def bind(options: Options, context: DecodingContext) -> BoundOptions:
    """Check options against a model. Raises UsageError for those that it cannot serve."""
    whisper, special = context.whisper, context.whisper.tokens
    options = options.settled(context.beam_size)
    spoken = special.spoken(options.language)
    previous, notices = prompt_tokens(whisper, options.initial_prompt)
    if options.task == "translate" and not special.translates:
        raise UsageError(f"translate: {special.only}")
    limit = context.engine.max_gamma
    if options.gamma is not None and options.gamma > limit:
        raise UsageError(
            f"gamma {options.gamma} is more than the {limit} that the transcriber was created with"
        )
    hint = hint_tokens(whisper, options.hint)
    terms = TermList.of(options.terms) if options.terms else None
    for term in terms.terms if terms is not None else ():
        if "<" in term.text:
            text_tokens(whisper, term.text, f"the term {term.text!r}")
    if options.beam_size != 1:
        attending(whisper, "beams")
    if terms is not None and not whisper.attends:
        if not special.conditions:
            attending(whisper, "terms")
        previous, terms = (*previous, *_term_tokens(whisper, previous, terms)), None
    replacements = Replacements.of(options.replacements) if options.replacements else None
    redactor = Redactor(options.redact) if options.redact else None
    if redactor is not None and spoken.one is not None:
        redactor.check(spoken.one)
    return BoundOptions(options, spoken, previous, hint, terms, replacements, redactor, notices)


def _term_tokens(whisper: SpeechModel, previous: Sequence[int], terms: TermList) -> tuple[int, ...]:
    """The terms as other text of the prompt. Raises UsageError where it has no room for all."""
    text = ", ".join(term.text for term in terms.terms)
    ids = whisper.tokenizer.encode(" " + text, add_special_tokens=False)
    if len(previous) + len(ids) > whisper.prompt_room:
        raise UsageError(
            f"{len(terms.terms)} terms are {len(ids)} tokens, and the prompt of this model has room for "
            f"{whisper.prompt_room - len(previous)}: give fewer"
        )
    return tuple(ids)


def window_request(
    context: DecodingContext,
    bound: BoundOptions,
    pending: PendingWindow,
    encoder_states: EncoderStates,
    hypothesis: tuple[int, ...] = (),
    *,
    alone: bool = False,
) -> Request:
    """The request for a window at the first temperature; `hypothesis` is what an earlier window has written
    of it. A further part of a window reads what was written before it,
    unless it is to be decoded `alone`."""
    options, route = bound.options, context.whisper.pair.route(pending.language)
    searched, special = bound.searches(pending.window), context.whisper.tokens
    previous = bound.previous
    if not (alone or pending.window.alone) and special.conditions:
        before = previous_text(pending.window.before, special)
        previous = (*previous, *before)[-context.whisper.prompt_room :]
    prompt, states = context.whisper.prompt(
        encoder_states,
        pending.language,
        options.task,
        timestamps=options.timestamps,
        previous=previous,
    )
    other_languages = bound.language is not None and special.multilingual
    request = Request(
        prompt=prompt,
        encoder_states=replace(states, chosen=route or 0),
        gamma=0 if route is None else options.gamma,
        beams=options.beams if searched else None,
        hint=hint_for(pending, bound.hint) if bound.hint else hypothesis,
        guess=pending.window.guess if context.engine.takes_guesses and not searched else (),
        probe=context.whisper.probe(prompt, languages=other_languages),
        max_new_tokens=pending.most_tokens,
        tag=pending,
    )
    first = options.guards.temperatures[0] if options.guards is not None else 0.0
    return at_temperature(request, first) if first else request


def retry_of(request: Request, guards: Guards | None) -> Request | None:
    """The same window at the next temperature, sampled once, where openai/whisper keeps the best of five
    (docs/methods/windows.md); None after the last one."""
    if guards is None:
        return None
    temperature = guards.next_temperature(request.temperature)
    return None if temperature is None else at_temperature(request, temperature)


def at_temperature(request: Request, temperature: float) -> Request:
    seed = seed_of(request.tag.window.start, temperature)
    return replace(request, temperature=temperature, seed=seed, guess=(), beams=None)


def seed_of(start: int, temperature: float) -> int:
    """The seed of the window at sample `start` for a temperature.

    It is the same on every machine, in any batch and under any name, and differs for all temperatures that
    the engine can distinguish: an attempt that reused the random numbers of a rejected attempt would not
    follow the model's distribution. Windows at one place of different recordings draw the same noise, as with
    a fixed seed anywhere: each text follows the distribution, though wrong words may be alike. A seed of the
    audio would part them, and change a text with the lowest bits of another decoder of mp3 or AAC.
    """
    (bits,) = struct.unpack("<I", struct.pack("<f", temperature))
    return int(bits) << 32 | start & 0xFFFFFFFF


def settled_language(recording: RecordingState) -> str | None:
    """The recording's language; None while it is unknown or doubtful."""
    probability = recording.language_probability
    return None if probability is None or probability < DOUBTFUL else recording.language


def language_in(recording: RecordingState, window: EncodedWindow, *, unheard: bool = False) -> str:
    """The language to decode a window in: the recording's, unless another one is very probable.

    The recording's language is that of its first window whose language is not doubtful, and until then the
    most probable so far. This function sets it, but not by a window in which no voice was heard.
    """
    assert window.language is not None
    language, probability = window.language
    if unheard:
        return settled_language(recording) or language
    before = recording.language_probability
    if settled_language(recording) is None and (before is None or probability > before):
        recording.language, recording.language_probability = language, probability
    assert recording.language is not None
    return recording.language if probability < CONFIDENT else language


def previous_text(tokens: Sequence[int], special: SpeechTokens) -> tuple[int, ...]:
    """The tokens of an answer, as previous text of the next window: without the end, and a closing pair of
    timestamps is written once."""
    written = tuple(token for token in tokens if token not in special.ends)
    stamps = [special.stamp(token) is not None for token in written[-2:]]
    return written[:-1] if len(written) > 2 and stamps == [True, True] else written


def prompt_tokens(
    whisper: SpeechModel, text: str | None
) -> tuple[tuple[int, ...], tuple[Notice, ...]]:
    """The last tokens of previous text that fit into a prompt, with a warning where that is not all of it.
    Raises UsageError."""
    if not text or not (text := text.strip()):
        return (), ()
    if not whisper.tokens.conditions:
        raise UsageError("this model has no place for other text, so it takes no prompt")
    room = whisper.prompt_room
    # Only the last tokens are used, so megabytes of text are not tokenised: few tokens are longer than this.
    end = text[-PROMPT_CHARACTERS * room :]
    ids = text_tokens(whisper, end, "the initial prompt")
    read = len(whisper.tokenizer.decode(ids[-room:]).strip())
    if (len(ids) <= room and end == text) or read >= len(text):
        return ids[-room:], ()
    message = (
        f"the prompt has {len(text):,} characters, and the model has read the last {read:,} alone: shorten "
        "it, or give names and terms as a list (terms)"
    )
    return ids[-room:], (Notice("cut_prompt", message),)


def text_tokens(whisper: SpeechModel, text: str, what: str) -> tuple[int, ...]:
    """The tokens of a text, of `what`. Raises UsageError for special tokens in it."""
    ids = whisper.tokenizer.encode(" " + text.strip(), add_special_tokens=False)
    if not all(map(whisper.tokens.is_text, ids)):
        raise UsageError(f"{what} holds a special token such as <|endoftext|>")
    return tuple(ids)


def hint_tokens(whisper: SpeechModel, text: str | None) -> tuple[int, ...]:
    """The text tokens of what is probably spoken; what looks like a special token in it is left out."""
    if not text or not text.strip():
        return ()
    ids = whisper.tokenizer.encode(" " + text.strip(), add_special_tokens=False)
    return tuple(filter(whisper.tokens.is_text, ids))


def hint_for(pending: PendingWindow, hint: tuple[int, ...]) -> tuple[int, ...]:
    """The part of a recording's text that a window is looked for in: all of it, unless it is longer than a
    drafter holds; then the part around the window's share of the recording."""
    audio = pending.recording.audio
    declared = None if audio is None or len(hint) <= SCRIPT_SLOTS else audio.declared_s
    if not declared:
        return hint[:SCRIPT_SLOTS]
    middle = round(len(hint) * min(1.0, seconds(pending.window.start) / declared))
    first = min(max(0, middle - SCRIPT_SLOTS // 2), len(hint) - SCRIPT_SLOTS)
    return hint[first : first + SCRIPT_SLOTS]
