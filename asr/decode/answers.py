"""What the engine answers for a window.

An answer is judged (`attempt_of`) and becomes a `Decoded`. What it leaves of its window becomes the next part
of the window (`rest_of`), an answer of improbable words is doubtful (`doubted`), and voice for which no words
were written is counted (`accounted`). Knows guards, timestamps and text; nothing of engines or of the words
that are shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from forescribe.speculative.requests import Finish, Request, Result

from ..formats.transcript_parts import SAMPLE_RATE, Segment, State
from ..model.languages import SPACELESS
from ..model.speech_model import EncoderStates, SpeechModel, SpeechTokens
from ..model.whisper import attending
from ..segment.windows import Run, Window, total, within
from ..words.assembly import CLOSING, MARKS, SENTENCE_END, split_words
from ..words.timing import Beside, Utterance, at_once, token_times
from .options import Decoded, Guards, Judgement, Options
from .recording import (
    Attempt,
    PendingWindow,
    Stretch,
    compression_ratio,
    mean_logprob,
    reason_of,
    text_of,
    texts_of,
    unheard_attempt,
)

NOT_FINITE = "the model's numbers are not finite"

DOUBTFUL_LOGPROB = -0.3
"""Answers of a lower mean log-probability are searched with beams. Wrong words of whisper-base in 254 readers
(8,588 words) and 70 hard recordings (2,054), choosing between texts with and without beams, by a reference
with fewer corrections than that of docs/performance.md: none searched 110 and 480; all 93 and 436; those
below -0.25 94 and 436; below -0.3, 34 and 83 % of the recordings, 92 and 428; below -0.35, 20 and 71 %, 105
and 429. Since parts read the text before them, by that page's reference 93, 53 and, below -0.3, 71."""

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
"""Further parts of one window. Published models need one, rarely two."""

REPEATED = "the model repeats the words before it"

LAST_WORD = "the end of the word before it"

TAIL, TAIL_LOGPROB = SAMPLE_RATE, -0.55
"""A part with less voice, which goes on without a pause behind a finished sentence, and whose words are less
probable: the end of the last word behind a timestamp that was rounded. 251 human readers leave four with
whisper-base and four with tiny.en, 206 made hard to hear ten: from 0.5 to 0.8 s of voice, with mean log-
probabilities of -0.60 to -2.11, all invented or repeated ("Thank you.", " it.", " types."). Parts that hold
words have 2 s and more."""

AGAIN = 4
"""Words in a row, or twice as many characters where no spaces are written, that a part of a window repeats of
the text before it: it is decoded once more without that text. Five beams of whisper-base write 57 further
parts of 251 readers (8,232 words): 72 words are wrong where parts are decoded alone; 92 where they read the
text before them, 35 and 6 of these in two parts that write it again; 53 with this rule."""

SHORT_PAUSE = round(0.2 * SAMPLE_RATE)
"""Within a word, at most."""

SHORT_ANSWER = 6
"""Tokens, timestamps and the end included: two or three of text."""

IMPROBABLE, FEW, SHARE = 0.5, 3, 0.18
"""A window is doubtful with this many words of less probability, if they are this share of its words. Of 457
files of readers, 206 of them in noise, babble, rooms and on the telephone, 90 have 20 % or more of their
words wrong by whisper-base: 89 are marked, 82 % of them wrong, 81 % of the wrong ones. From 0.12 it is 69 %
and 88 %, from 0.25 85 % and 68 %. Of 251 clean ones 5 are marked. The probabilities are calibrated as they
are: of 473 words at 0.4 to 0.5 51 % are right, at 0.7 to 0.8 84 %, below 0.2 17 %."""


def attempt_of(
    whisper: SpeechModel, guards: Guards | None, result: Result, pending: PendingWindow
) -> Attempt:
    """An answer with its judgement. Without guards only numbers that are not finite are rejected, and what
    `Sure` rejects."""
    if pending.window.unheard:
        return unheard_attempt(whisper, result)
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
        heard=pending.heard,
    )
    if mean < TAIL_LOGPROB and _is_tail(whisper, pending.window, result.tokens):
        judgement, reason = Judgement.SILENCE, LAST_WORD
    rank = guards.rank(compression_ratio=ratio, mean_logprob=mean)
    return Attempt(result, judgement, reason, rank)


def _is_tail(whisper: SpeechModel, window: Window, tokens: Sequence[int]) -> bool:
    """Whether a part may hold nothing but the end of the last word of the part before it."""
    voiced = window.voiced or ()
    ends = (window.start, *(end for _, end in voiced))
    if any(start - end > SHORT_PAUSE for end, (start, _) in zip(ends, voiced, strict=False)):
        return False
    if not window.part or not 0 < total(voiced) < TAIL:
        return False
    finished = text_of(whisper, window.before).rstrip(CLOSING)[-1:] in SENTENCE_END
    return finished or _repeats(whisper, window.before, tokens)


def misled(whisper: SpeechModel, pending: PendingWindow, attempt: Attempt) -> bool:
    """Whether the answer of a part is to be asked for once more without the text before it: the guards reject
    it, or it repeats `AGAIN` words of that text. Behind text the no-speech probability says little: tiny.en's
    for the same sound rises from 0.01 and 0.23 to 0.87 and 0.93."""
    if attempt.judgement is not Judgement.KEEP and attempt.reason != LAST_WORD:
        return True
    before, words = (
        _words(whisper, pending.language, some)
        for some in (pending.window.before, attempt.result.tokens)
    )
    count = AGAIN * (2 if pending.language in SPACELESS else 1)
    runs = {tuple(before[i : i + count]) for i in range(len(before) - count + 1)}
    return any(tuple(words[i : i + count]) in runs for i in range(len(words) - count + 1))


def is_short(whisper: SpeechModel, options: Options, window: Window, attempt: Attempt) -> bool:
    """Whether the most probable answer is a few tokens that end before much of the voice: their mean says
    little, and sampling would be of the whole window ("21." at -1.00 became "Chapter XXI. A momens glance").
    What it leaves is decoded as a part of its own, if parts are. In noise its answer at the end of all
    temperatures was the same in three of three.

    Where its words are probable and only its timestamp is not, it ends with them, wherever that is:
    whisper-base closed "21." behind 14 s of other words."""
    result, tokens, guards = attempt.result, attempt.result.tokens, options.guards
    if guards is None or result.request.temperature:
        return False
    voiced, special = window.voiced or (), whisper.tokens
    *_, last = (0, *(at for t in tokens if (at := special.stamp(t)) is not None))
    left = _voice(voiced, window.start + last, window.end)
    words = [p for t, p in zip(tokens, result.logprobs, strict=True) if special.is_text(t)]
    probable = mean_logprob(words) >= (-math.inf if guards.logprob is None else guards.logprob)
    if probable and options.task == "transcribe":  # `reached` asks the attention then
        left = max(left, total(voiced) - SLOW[0] - SLOW[1] * len(tokens))
    return attempt.rank[0] and len(tokens) <= SHORT_ANSWER and 0 < last and left >= TAIL


def search_of(request: Request, options: Options, attempt: Attempt) -> Request | None:
    """The same window with beams, where they are for doubtful ones and its answer is one; else None."""
    if options.beam_size is not None or request.temperature or request.beams is not None:
        return None
    sure = mean_logprob(attempt.result.logprobs) > DOUBTFUL_LOGPROB  # False with NaN
    if attempt.judgement is Judgement.SILENCE or sure:
        return None
    return replace(request, guess=(), beams=options.beams)


def decoded_of(
    whisper: SpeechModel,
    pending: PendingWindow,
    attempt: Attempt,
    *,
    tried: float,
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
    return Decoded(
        index=window.index,
        start=window.start,
        end=window.end,
        language=pending.language,
        result=replace(
            result,
            request=replace(request, encoder_states=None, tag=None),
            probe=result.probe[:1],
        ),
        tokens=result.tokens,
        state=state,
        reason=None if doubt is not None else reason,
        doubt=doubt,
        tried=tried,
        encoder_states=request.encoder_states if keep_encoder_states else None,
        heard=_heard(whisper, result),
        level_db=window.level_db,
    )


def _heard(whisper: SpeechModel, result: Result) -> tuple[str, float] | None:
    """The most probable language by what `_probe` has asked for; None where it asked for none."""
    chances = result.probe[1:]
    if not (whole := math.fsum(chances)):
        return None
    best, code = max(zip(chances, whisper.tokens.languages, strict=True))
    return code, best / whole


def failed_window(whisper: SpeechModel, pending: PendingWindow, error: Exception) -> Decoded:
    """A window that an exception ended."""
    request, window = Request((whisper.tokens.end,)), pending.window
    return Decoded(
        index=window.index,
        start=window.start,
        end=window.end,
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
    whisper: SpeechModel,
    options: Options,
    decoded: Decoded,
    states: EncoderStates,
    voiced: Sequence[Run] = (),
    beside: Beside = at_once,
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
    own = attending(whisper, "words")
    prompt = own.tokens.prompt(decoded.language, options.task, timestamps=False)
    (times,) = token_times(own, [Utterance(states, prompt, tokens, decoded.length)], beside)
    bounds = [decoded.start + boundary for boundary in times.boundaries]
    cut = _first_stretched(whisper, decoded.language, tokens, bounds, voiced)
    if cut is not None:
        end = min(bounds[cut], bounds[cut - 1] + LONGEST)
        return Reach(end, _first_tokens(parts, decoded.tokens, cut, special))
    gap = _first_gap([part for part, _ in parts], decoded, bounds, voiced)
    if gap is not None:
        cut = sum(len(part.tokens) for part, _ in parts[:gap])
        end = decoded.start + parts[gap - 1][0].end
        return Reach(end, _first_tokens(parts, decoded.tokens, cut, special))
    said = min(bounds[-1], bounds[-2] + LONGEST)
    return Reach(min(said, end) if closed else said, decoded.tokens)


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
    parts: Sequence[tuple[Stretch, str]],
    tokens: Sequence[int],
    count: int,
    special: SpeechTokens,
) -> tuple[int, ...]:
    """The tokens of an answer before the text token number `count` of its segments with text."""
    texts = [place for place, token in enumerate(tokens) if special.is_text(token)]
    counted = [texts[part.first + i] for part, _ in parts for i in range(len(part.tokens))]
    return tuple(tokens[: counted[count]])


def rest_of(
    whisper: SpeechModel,
    options: Options,
    window: Window,
    decoded: Decoded,
    states: EncoderStates,
    beside: Beside,
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
    if window.tentative or not texts_of(whisper, decoded):
        return decoded, None
    if not whisper.attends:  # nothing says how far it goes
        return decoded, None
    voiced = window.voiced or ()
    reach = reached(whisper, options, decoded, states, voiced, beside)
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
    rest = window.rest(reach.end, decoded.language, reach.tokens, alone=decoded.doubt is not None)
    return replace(decoded, end=rest.start, tokens=reach.tokens, continued=True), rest


def _repeats(whisper: SpeechModel, before: Sequence[int], tokens: Sequence[int]) -> bool:
    """Whether the words of `tokens` are the last ones `before`, whatever their case and punctuation."""
    earlier, words = (_words(whisper, None, some) for some in (before, tokens))
    return bool(words) and earlier[-len(words) :] == words


def _words(whisper: SpeechModel, language: str | None, tokens: Sequence[int]) -> list[str]:
    """Words without case and punctuation, characters where no spaces are written."""
    text = text_of(whisper, tokens).casefold()
    parts = text if language in SPACELESS else text.split()
    return [word for part in parts if (word := part.strip(MARKS))]


def doubted(whisper: SpeechModel, decoded: Decoded) -> Decoded:
    """A window with a doubt where many of its words are improbable."""
    if decoded.doubt is not None or not texts_of(whisper, decoded):
        return decoded
    pairs = zip(decoded.tokens, decoded.result.logprobs, strict=False)
    tokens, logprobs = zip(*((t, p) for t, p in pairs if whisper.tokens.is_text(t)), strict=True)
    words = split_words(whisper.tokenizer, decoded.language, tokens)
    first = improbable = 0
    for word in words:
        spoken = logprobs[first + word.first : first + word.last]
        improbable += sum(map(math.exp, spoken)) < IMPROBABLE * len(spoken)
        first += word.count
    if improbable < FEW or improbable < SHARE * len(words):
        return decoded
    return replace(decoded, doubt=f"{improbable} of {len(words)} words are improbable")


def accounted(
    decoded: Decoded, voiced: Sequence[Run] | None, segments: Sequence[Segment]
) -> Decoded:
    """A window with the voice behind its last segment, if there are `LEAST` samples of it, and with its reach
    there. Before the first and between two segments only more than `STRETCHED` samples count: a model may
    place its timestamps wrongly, and the words of a gap are those next to it then."""
    if decoded.reach is not None or decoded.reason == LAST_WORD:
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
