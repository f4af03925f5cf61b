"""What becomes of an answer: the window is asked for again, its text counts, or there is no speech in it.

    judge(whisper, bound, pending, answer_of(...), alone)       # Again | Ending
    rest_of(whisper, options, pending, ending, states, beside)  # Ending, Rest: what counts, what is left

Functions of a window and its answer, without state of their own; the thresholds are below, with what they
do, and those of a user are `Guards`. What they were measured with is in docs/methods/windows.md. Knows
timestamps and text; nothing of engines, recordings or of the words that are shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from forescribe.speculative.requests import Finish, Request, Result

from ..formats.transcript_parts import SAMPLE_RATE, State
from ..model.languages import SPACELESS
from ..model.speech_model import SpeechModel, SpeechTokens
from ..model.states import EncoderStates
from ..model.tokens import SAMPLES_PER_STEP
from ..model.whisper import attending
from ..segment.windows import Run, Window, Withheld, total, within
from ..words.assembly import CLOSING, MARKS, SENTENCE_END, split_words
from ..words.timing import Beside, Utterance, at_once, token_times
from .declared import AUTO
from .guards import Guards, Judgement
from .options import Options
from .requests import BoundOptions, retry_of
from .text import Stretch, compression_ratio, mean_logprob, text_of, written
from .window import Answer, PendingWindow

# -- the thresholds: samples, unless said otherwise -----------------------------------------------------

DOUBTFUL_LOGPROB = -0.3
"""Answers of a lower mean log-probability are asked for with beams, where these are for doubtful windows."""

LEAST = round(0.5 * SAMPLE_RATE)
"""Voice that is worth another pass of the encoder, and without words a warning: the edges of words reach
over timestamps by less."""

SLOW = (round(1.5 * SAMPLE_RATE), round(0.25 * SAMPLE_RATE))
"""Voice of a segment, once and for every token, from which on its timestamps are checked by the attention:
models close a segment behind words that they did not write."""

LONGEST = round(0.7 * SAMPLE_RATE)
"""The last token of an answer lasts no longer. The attention gives it what follows, where there is no end of
text."""

LONG, STRETCHED = round(1.0 * SAMPLE_RATE), round(1.8 * SAMPLE_RATE)
"""Voice that a token rarely lasts, and never: it was given speech beside it that was not written."""

GAIN = 1
"""Words that a part has more than what was cut off for it, at least: else nothing had been left out."""

MOST_PARTS = 8
"""Further parts of one window. Models need one, rarely two."""

AGAIN = 4
"""Words in a row, or twice as many characters where no spaces are written, that a part repeats of the text
before it: it is decoded once more without that text."""

TAIL, TAIL_LOGPROB = SAMPLE_RATE, -0.55
"""A part with less voice, behind a finished sentence, whose mean log-probability is lower, is the end of the
last word behind a timestamp that was rounded, or a breath. Behind an open sentence it is the rest of that,
and its sound says less without what it belongs to."""

OTHERS, OTHERS_NO_SPEECH, OTHERS_FIRST = 3 * SAMPLE_RATE, 0.5, 0.25
"""A part with less voice, behind a finished sentence, whose no-speech probability is higher and whose first
token has a lower probability holds no words: music, or people in the background."""

CLICK = round(0.2 * SAMPLE_RATE)
"""Shorter runs of voice hold no word."""

SHORT_ANSWER = 6
"""Tokens of an answer of two or three words, timestamps and the end included."""

FAINT_DB = 20.0
"""A doubtful window that is so far below the loud voices of its recording holds no words: what a model writes
of a room in which nobody speaks."""

IMPROBABLE = (0.5, 3, 0.18)
"""Probability, number, share: a window is doubtful with so many words of less probability, if they are that
share of its words."""

IMPROBABLE_SEGMENT = (0.4, 2, 0.2)
"""Likewise a segment of a window that is not."""


SURE_NO_SPEECH, SURE_LOGPROB, SURE_RATIO, SURE_TOKENS = 0.3, -1.55, 2.0, 5
"""When an answer counts for a window that is loud and in which no voice was detected: up to this no-speech
probability, from this mean log-probability on, up to this compression ratio, and from so many text tokens on.
It is not decoded again: a text that passes at last would be invented."""

# -- the reasons, beside those of `Guards` and `unsure` ---------------------------------------------------

NOT_FINITE = "the model's numbers are not finite"
REPEATED = "the model repeats the words before it"
LAST_WORD = "the end of the word before it"
NOTHING_MORE = "nothing more is spoken"
TAILS = (LAST_WORD, NOTHING_MORE)


# -- one answer -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Again:
    """The window is asked for once more; `best` is the best answer so far."""

    request: Request
    best: Answer | None


@dataclass(frozen=True)
class Ending:
    """How a window ends: the text of an answer counts, with a `reason` for doubt where no temperature gave a
    better one; or it does not, for this reason: nobody speaks, or it has failed. `restored`: its answer is
    what was cut off the one before it."""

    answer: Answer
    state: State = "decoded"
    reason: str | None = None
    restored: bool = False


@dataclass(frozen=True)
class Rest:
    """How far an answer counts: its tokens, and the sample where the window ends by it. `window` is what
    follows; without it `wordless` is the voice behind `reach` that is left without words."""

    end: int
    tokens: tuple[int, ...]
    window: Window | None = None
    wordless: tuple[Run, ...] = ()
    reach: int | None = None


def answer_of(
    whisper: SpeechModel, guards: Guards | None, result: Result, pending: PendingWindow
) -> Answer:
    """An answer with its judgement. Without guards only numbers that are not finite are rejected, and what
    `unsure` says."""
    if pending.window.unheard:
        return _unheard(whisper, result)
    mean = mean_logprob(result.logprobs)
    if guards is None:
        if math.isfinite(mean):
            return Answer(result, Judgement.KEEP, None, (True, mean))
        return Answer(result, Judgement.RETRY, NOT_FINITE, (False, mean))
    ratio = compression_ratio(text_of(whisper, result.tokens))
    judgement, reason = guards.judge(
        compression_ratio=ratio,
        mean_logprob=mean,
        no_speech_prob=result.probe[0],
        heard=pending.heard,
    )
    if (tail := _tail_of(whisper, pending.window, result, mean)) is not None:
        judgement, reason = Judgement.SILENCE, tail
    rank = guards.rank(compression_ratio=ratio, mean_logprob=mean)
    return Answer(result, judgement, reason, rank)


def _unheard(whisper: SpeechModel, result: Result) -> Answer:
    """The answer for a window in which no voice was heard: kept or silence."""
    text, mean = text_of(whisper, result.tokens), mean_logprob(result.logprobs)
    count = sum(map(whisper.tokens.is_text, result.tokens))
    ratio = math.inf if result.finish is Finish.LENGTH else compression_ratio(text)
    doubt = unsure(text, count, ratio=ratio, mean_logprob=mean, no_speech_prob=result.probe[0])
    judgement = Judgement.KEEP if doubt is None else Judgement.SILENCE
    return Answer(result, judgement, doubt, (doubt is None, mean))


def unsure(
    text: str, tokens: int, *, ratio: float, mean_logprob: float, no_speech_prob: float
) -> str | None:
    """Why an answer of so many text tokens does not count where no voice was heard; None where it does."""
    if not no_speech_prob <= SURE_NO_SPEECH:
        return f"no speech (probability {no_speech_prob:.2f})"
    if not mean_logprob >= SURE_LOGPROB:
        return f"improbable (mean log-probability {mean_logprob:.2f})"
    if ratio > SURE_RATIO:
        return f"repeats itself (compression ratio {ratio:.2f})"
    if tokens < SURE_TOKENS or not any(map(str.isalnum, text)):
        return "hardly a word"
    return None


def judge(
    whisper: SpeechModel,
    bound: BoundOptions,
    pending: PendingWindow,
    answer: Answer,
    alone: Callable[[], Request],
) -> Again | Ending:
    """What becomes of a window whose answers so far are `answer` and before it `pending.best`; `alone` makes
    the request that does not read the text before a part."""
    options, window, request = bound.options, pending.window, answer.result.request
    rejected, best = answer.judgement is Judgement.RETRY, pending.best
    if window.before and (again := alone()).prompt != request.prompt:  # it reads the text before it
        if _writes_again(whisper, pending, answer):
            return Again(again, best)
        # Behind text the no-speech probability says little.
        if answer.judgement is not Judgement.KEEP and answer.reason not in TAILS:
            finite = math.isfinite(mean_logprob(answer.result.logprobs))
            if finite and _spoken(window) < TAIL and not _is_finished(whisper, window):
                return Ending(answer, reason=answer.reason)
            # It may still be more probable than what its sound gives alone.
            return Again(again, answer if rejected else best)
    if best is None or answer.replaces(best):
        best = answer
    if pending.heard:
        if (search := _search_of(request, options, answer)) is not None:
            return Again(search, best)
        # Without a voice nothing is sampled: a text that passes at last would be invented.
        rejected &= best.judgement is Judgement.RETRY
        if rejected and not _is_short(whisper, options, window, answer):
            retry = retry_of(request, options.guards)
            if retry is not None:
                return Again(retry, best)
    if best.judgement is Judgement.KEEP:
        return Ending(best)
    if best.judgement is Judgement.SILENCE:
        return Ending(best, "silent", best.reason)
    if not math.isfinite(mean_logprob(best.result.logprobs)):
        return Ending(best, "failed", best.reason)
    if not pending.heard:
        return Ending(best, "silent", f"no voice; {best.reason}")
    return Ending(best, reason=best.reason)


def _tail_of(whisper: SpeechModel, window: Window, result: Result, mean: float) -> str | None:
    """Why a part holds nothing but what is left behind the last word before it, by the answer that reads its
    text: alone, the same sound is as likely as not a farewell of its own. None where it may hold words."""
    if not window.part or not window.voiced:
        return None
    if not (_is_finished(whisper, window) or _repeats(whisper, window.before, result.tokens)):
        return None
    spoken = _spoken(window)
    if mean < TAIL_LOGPROB and spoken < TAIL:
        return LAST_WORD
    chances = zip(result.tokens, result.logprobs, strict=False)
    first = next((p for token, p in chances if whisper.tokens.is_text(token)), -math.inf)
    unlikely = result.probe[0] > OTHERS_NO_SPEECH and math.exp(first) < OTHERS_FIRST
    return NOTHING_MORE if unlikely and spoken < OTHERS else None


def _is_finished(whisper: SpeechModel, window: Window) -> bool:
    """Whether the text before a part ends a sentence."""
    return text_of(whisper, window.before).rstrip(CLOSING)[-1:] in SENTENCE_END


def _spoken(window: Window) -> int:
    """Samples of voice, without runs that hold no word."""
    runs = window.voiced or ()
    return sum(end - start for start, end in runs if end - start >= CLICK)


def _writes_again(whisper: SpeechModel, pending: PendingWindow, answer: Answer) -> bool:
    """Whether an answer repeats `AGAIN` words of the text before it."""
    before, words = (
        _words(whisper, pending.language, some)
        for some in (pending.window.before, answer.result.tokens)
    )
    count = AGAIN * (2 if pending.language in SPACELESS else 1)
    runs = {tuple(before[i : i + count]) for i in range(len(before) - count + 1)}
    return any(tuple(words[i : i + count]) in runs for i in range(len(words) - count + 1))


def _is_short(whisper: SpeechModel, options: Options, window: Window, answer: Answer) -> bool:
    """Whether the most probable answer is a few tokens that end before much of the voice: their mean says
    little, and sampling would be of the whole window. What it leaves is decoded as a part of its own, if
    parts are.

    Where its words are probable and only its timestamp is not, it ends with them, wherever that is."""
    result, tokens, guards = answer.result, answer.result.tokens, options.guards
    if guards is None or result.request.temperature:
        return False
    voiced, special = window.voiced or (), whisper.tokens
    *_, last = (0, *(at for t in tokens if (at := special.stamp(t)) is not None))
    left = _voice(voiced, window.start + last, window.end)
    words = [p for t, p in zip(tokens, result.logprobs, strict=True) if special.is_text(t)]
    probable = mean_logprob(words) >= (-math.inf if guards.logprob is None else guards.logprob)
    if probable and options.task == "transcribe":  # `_reached` asks the attention then
        left = max(left, total(voiced) - SLOW[0] - SLOW[1] * len(tokens))
    return answer.rank[0] and len(tokens) <= SHORT_ANSWER and 0 < last and left >= TAIL


def _search_of(request: Request, options: Options, answer: Answer) -> Request | None:
    """The same window with beams, where they are for doubtful ones and its answer is one; else None."""
    if options.beam_size != AUTO or request.temperature or request.beams is not None:
        return None
    sure = mean_logprob(answer.result.logprobs) > DOUBTFUL_LOGPROB  # False with NaN
    if answer.judgement is Judgement.SILENCE or sure:
        return None
    return replace(request, guess=(), beams=options.beams)


def restored(whisper: SpeechModel, pending: PendingWindow, ending: Ending) -> Ending:
    """The ending of a part, with what was cut off the answer before it where its own has no more words: what
    seemed to be left out was no speech of this text, as in a room full of people."""
    withheld = pending.window.withheld
    if withheld is None:
        return ending
    own = ending.answer.result.tokens if ending.state == "decoded" else ()
    words, known = (len(_words(whisper, pending.language, t)) for t in (own, withheld.tokens))
    if words > known + GAIN:
        return ending
    result = replace(ending.answer.result, **withheld._asdict())
    answer = replace(ending.answer, result=result, judgement=Judgement.KEEP, reason=None)
    return Ending(answer, restored=True)


# -- how far it counts ----------------------------------------------------------------------------------


def rest_of(
    whisper: SpeechModel,
    options: Options,
    pending: PendingWindow,
    ending: Ending,
    states: EncoderStates,
    beside: Beside,
) -> tuple[Ending, Rest]:
    """An answer as far as it counts, and what it leaves of its window, as the next part of it.

    Whisper may close its answer before its window ends. With a pair of timestamps it says so: text continues
    there, and its long-form algorithm starts the next window at that place (Radford et al. 2022, section
    3.8). It also stops without saying so, or leaves out a sentence in the middle. So a window goes on behind
    the last word before the first voice without words. Runs the target once where the timestamps do not
    show that there is none.

    A part that repeats the words before it does not count if it is doubtful or hardly gets on: the next one
    would repeat them too. The voice of it, or behind the last part that is allowed, is told as failed. What
    was `restored` goes as far as its timestamps say: it has been cut once, in vain.
    """
    window, tokens = pending.window, ending.answer.result.tokens
    whole, doubtful = Rest(window.end, tokens), ending.reason is not None
    parts = written(whisper, tokens, window.length) if ending.state == "decoded" else []
    if window.tentative or not parts or not whisper.attends:  # nothing says how far it goes
        return ending, whole
    voiced, language = window.voiced or (), pending.language
    if ending.restored:
        end, counting = window.start + parts[-1].end, tokens
    else:
        end, counting = reached(whisper, options, window, language, tokens, parts, states, beside)
    if end <= window.start:  # the attention of a single word may be anywhere
        end = min(window.start + LONGEST, window.end)
    slow = end - window.start < SAMPLE_RATE
    if (slow or doubtful) and _repeats(whisper, window.before, counting):
        state: State = "failed" if total(voiced) > STRETCHED else "silent"
        return Ending(ending.answer, state, REPEATED), whole
    left = within(voiced, end, window.end)
    if total(left) < LEAST:
        return ending, whole
    if window.part >= MOST_PARTS:
        return ending, Rest(window.end, counting, None, left, end)
    withheld = _withheld(whisper.tokens, ending.answer.result, counting, end - window.start)
    rest = window.rest(end, language, counting, withheld, alone=doubtful)
    return ending, Rest(rest.start, counting, rest)


def _withheld(
    special: SpeechTokens, result: Result, counting: Sequence[int], by: int
) -> Withheld | None:
    """What was cut off an answer, its timestamps earlier `by` so many samples; None where it has no text."""
    own = slice(len(counting), len(result.tokens))
    if special.timestamp_begin is None or not any(map(special.is_text, result.tokens[own])):
        return None
    first, steps = special.timestamp_begin, by // SAMPLES_PER_STEP
    tokens = (max(first, t - steps) if t >= first else t for t in result.tokens[own])
    return Withheld(tuple(tokens), tuple(result.logprobs[own]), tuple(result.sources[own]))


def reached(
    whisper: SpeechModel,
    options: Options,
    window: Window,
    language: str,
    answer: tuple[int, ...],
    parts: Sequence[Stretch],
    states: EncoderStates,
    beside: Beside = at_once,
) -> tuple[int, tuple[int, ...]]:
    """The sample up to which an answer goes, whose text is in `parts`, and its tokens up to there: to its
    last timestamp or, where text follows that, to the end of its last word by the model's attention.

    Where the timestamps leave room for speech that was not written (`_leaves_room`), the attention is asked
    as well: an answer goes no further than to the word before the first one that lasts too long.
    """
    special, voiced = whisper.tokens, window.voiced or ()
    last = parts[-1]
    start, end = window.start + last.start, window.start + last.end
    closing = next(token for token in reversed(answer) if token != special.end)
    closed = special.stamp(closing) is not None and start < end
    if closed and not (options.task == "transcribe" and _leaves_room(parts, window.start, voiced)):
        return end, answer
    if options.task == "translate":  # the attention does not follow the order of translated words
        return window.end, answer
    tokens = tuple(token for part in parts for token in part.tokens)
    own = attending(whisper, "words")
    prompt = own.tokens.prompt(language, options.task, timestamps=False)
    (times,) = token_times(own, [Utterance(states, prompt, tokens, window.length)], beside)
    bounds = [window.start + boundary for boundary in times.boundaries]
    cut = _first_stretched(whisper, language, tokens, bounds, voiced)
    if cut is not None:
        until = min(bounds[cut], bounds[cut - 1] + LONGEST)
        return until, _first_tokens(parts, answer, cut, special)
    gap = _first_gap(parts, window.start, bounds, voiced)
    if gap is not None:
        cut = sum(len(part.tokens) for part in parts[:gap])
        until = window.start + parts[gap - 1].end
        return until, _first_tokens(parts, answer, cut, special)
    said = min(bounds[-1], bounds[-2] + LONGEST)
    return min(said, end) if closed else said, answer


def _first_stretched(
    whisper: SpeechModel,
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
    parts: Sequence[Stretch], start: int, bounds: Sequence[int], voiced: Sequence[Run]
) -> int | None:
    """The first segment of a window from `start` on before which there is more voice than the two words
    beside it may last, by its timestamps and by the attention, `bounds` of all tokens; None where there is
    none. What lies between two segments is shared by the attention among both, so that neither has to last
    too long."""
    first = 0
    for number, (part, following) in enumerate(pairwise(parts), 1):
        first += len(part.tokens)
        between = _voice(voiced, start + part.end, start + following.start)
        beside = _voice(voiced, bounds[first - 1], bounds[first + 1])
        if between > STRETCHED and beside > STRETCHED + LONG:
            return number
    return None


def _leaves_room(parts: Sequence[Stretch], start: int, voiced: Sequence[Run]) -> bool:
    """Whether a segment has few words for its voice, or much voice is between two segments."""
    before: int | None = None
    for part in parts:
        begin, end = start + part.start, start + part.end
        if before is not None and _voice(voiced, before, begin) > STRETCHED:
            return True
        if _voice(voiced, begin, end) > SLOW[0] + SLOW[1] * len(part.tokens):
            return True
        before = end
    return False


def _first_tokens(
    parts: Sequence[Stretch], tokens: Sequence[int], count: int, special: SpeechTokens
) -> tuple[int, ...]:
    """The tokens of an answer before the text token number `count` of its segments with text."""
    texts = [place for place, token in enumerate(tokens) if special.is_text(token)]
    counted = [texts[part.first + i] for part in parts for i in range(len(part.tokens))]
    return tuple(tokens[: counted[count]])


# -- what it leaves out ---------------------------------------------------------------------------------


def improbable_segments(
    whisper: SpeechModel,
    language: str,
    parts: Sequence[Stretch],
    tokens: Sequence[int],
    logprobs: Sequence[float],
) -> tuple[tuple[int, int, str], ...]:
    """Where, in samples of the window, and why the text of a segment is doubtful."""
    found = list[tuple[int, int, str]]()
    chances = [p for t, p in zip(tokens, logprobs, strict=False) if whisper.tokens.is_text(t)]
    for part in parts:
        own = chances[part.first : part.first + len(part.tokens)]
        doubt = improbable(whisper, language, part.tokens, own, IMPROBABLE_SEGMENT)
        if doubt is not None:
            found.append((part.start, part.end, doubt))
    return tuple(found)


def improbable(
    whisper: SpeechModel,
    language: str,
    tokens: Sequence[int],
    logprobs: Sequence[float],
    rule: tuple[float, int, float] = IMPROBABLE,
) -> str | None:
    """The doubt about a text, many of whose words are improbable; None about others. There may be more
    probabilities than tokens."""
    least, few, share = rule
    pairs = zip(tokens, logprobs, strict=False)
    own, chances = zip(*((t, p) for t, p in pairs if whisper.tokens.is_text(t)), strict=True)
    words = split_words(whisper.tokenizer, language, own)
    first = count = 0
    for word in words:
        spoken = chances[first + word.first : first + word.last]
        count += sum(map(math.exp, spoken)) < least * len(spoken)
        first += word.count
    if count < few or count < share * len(words):
        return None
    return f"{count} of {len(words)} words are improbable"


def wordless_of(
    start: int, end: int, voiced: Sequence[Run] | None, parts: Sequence[Stretch]
) -> tuple[tuple[Run, ...], int | None]:
    """The voice between two samples that `parts` leave without words, and the end of the last of these if
    there are `LEAST` samples of it behind that. Before the first and between two parts only more than
    `STRETCHED` samples count: a model may place its timestamps wrongly, and the words of a gap are those next
    to it then."""
    runs, place, voiced = list[Run](), start, voiced or ()
    for part in parts:
        gap = within(voiced, place, start + part.start)
        if total(gap) > STRETCHED:
            runs += gap
        place = start + part.end
    behind = within(voiced, place, end)
    if total(behind) < LEAST:
        return tuple(runs), None
    return (*runs, *behind), place


def _voice(voiced: Sequence[Run], start: int, end: int) -> int:
    return total(within(voiced, start, end))


def _repeats(whisper: SpeechModel, before: Sequence[int], tokens: Sequence[int]) -> bool:
    """Whether the words of `tokens` are the last ones `before`, whatever their case and punctuation."""
    earlier, words = (_words(whisper, None, some) for some in (before, tokens))
    return bool(words) and earlier[-len(words) :] == words


def _words(whisper: SpeechModel, language: str | None, tokens: Sequence[int]) -> list[str]:
    """Words without case and punctuation, characters where no spaces are written."""
    text = text_of(whisper, tokens).casefold()
    parts = text if language in SPACELESS else text.split()
    return [word for part in parts if (word := part.strip(MARKS))]
