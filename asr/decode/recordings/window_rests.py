"""Rests: what an answer leaves of its window, and the voice for which no words were written.

Whisper may close its answer before its window ends. With a pair of timestamps it says so: text continues
there, and its long-form algorithm starts the next window at that place (Radford et al. 2022, section 3.8).
It also stops without saying so. So a window that was cut in pauses goes on behind its last word as long as
a voice is heard there. Functions of records; knows nothing of engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...formats.transcript import SAMPLE_RATE, Segment
from ...model.loading import EncoderStates, Whisper
from ...segment.windows import Run, total, within, without
from ...words.timing import Utterance, token_times
from ..options import Options
from ..outcome import Decoded
from .window_results import texts_of

LEAST = round(0.5 * SAMPLE_RATE)
"""Samples of voice that are worth another pass of the encoder, and without words worth a warning: the edges
of words reach over timestamps by less."""

LONGEST = round(0.7 * SAMPLE_RATE)
"""Samples that the last token may last. The attention gives it what follows where there is no end of text:
2.1 s too much in whisper-base's first segment of a reader, 0.1 s at the ends of whole windows."""

MOST_PARTS = 8
"""Further parts of one window. Published models need one, rarely two (docs/development/log.md)."""


def reached(whisper: Whisper, options: Options, decoded: Decoded, states: EncoderStates) -> int:
    """The sample of the recording up to which an answer with text goes: its last timestamp or, where text
    follows that, the end of the last word by the model's attention."""
    parts = texts_of(whisper, decoded)
    special = whisper.tokens
    written = [token for token in decoded.tokens if token != special.end]
    closed = special.stamp(written[-1]) is not None and parts[-1][0].start < parts[-1][0].end
    if closed:
        return decoded.start + parts[-1][0].end
    if options.task == "translate":  # the attention does not follow the order of translated words
        return decoded.end
    tokens = tuple(token for part, _ in parts for token in part.tokens)
    prompt = special.prompt(decoded.language, options.task, timestamps=False)
    (times,) = token_times(whisper, [Utterance(states, prompt, tokens, decoded.length)])
    begin, end = times.boundaries[-2:]
    return decoded.start + min(end, begin + LONGEST)


def worth_decoding(voiced: Iterable[Run] | None, start: int) -> bool:
    """Whether enough of the voice in a window lies behind `start`."""
    return sum(max(0, b - max(a, start)) for a, b in voiced or ()) >= LEAST


def accounted(
    decoded: Decoded, voiced: Sequence[Run] | None, segments: Sequence[Segment]
) -> Decoded:
    """A window with the runs, `LEAST` samples or more each, in which a voice was heard and no segment lies;
    and with its reach, where such a run follows its last segment."""
    own = within(voiced or (), decoded.start, decoded.end)
    left = without(own, ((s.start_sample, s.end_sample) for s in segments))
    runs = tuple(run for run in left if total([run]) >= LEAST)
    last = max((s.end_sample for s in segments), default=decoded.start)
    open_end = decoded.state == "decoded" and bool(runs) and runs[-1][0] >= last
    return replace(decoded, wordless=runs, reach=last if open_end else None)
