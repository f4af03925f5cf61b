"""What a model tells of a recording besides its text: its language, and the times of a text that is given.

That is by forced decoding, in windows of 30 s; of a longer recording a transcript says which words belong to
which window. Knows nothing of batches or formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import groupby, pairwise
from typing import NamedTuple

import torch

from ..audio.inputs import Input
from ..audio.reading import Samples, open_audio
from ..errors import AudioError, UsageError
from ..formats.transcript import Transcript
from ..formats.transcript_parts import Word, seconds
from ..model.speech_model import SpeechModel
from ..model.whisper import attending
from ..segment.cutter import cut
from ..segment.windows import MAX_SAMPLES, Window
from ..words.assembly import MARKS, assemble_words, pauses, split_words
from ..words.timing import Utterance, token_times
from .context import DecodingContext, EncodedWindow, encode_windows
from .recording import fault
from .requests import DOUBTFUL, text_tokens
from .text import text_of


class DetectedLanguage(NamedTuple):
    """A code, and its probability among the languages that the model knows."""

    language: str
    probability: float


def detect_language(context: DecodingContext, source: Input) -> DetectedLanguage:
    """See `Transcriber.detect_language`."""
    if not context.whisper.tokens.multilingual:
        raise UsageError("this model names no language that it hears: take a multilingual Whisper")
    best: DetectedLanguage | None = None
    with open_audio(source) as audio:
        for window in cut(audio.blocks(), context.voice_detector()):
            if not window.speech or window.unheard:
                continue
            language = _encoded(context, window, detect=True).language
            assert language is not None
            if best is None or language[1] > best.probability:
                best = DetectedLanguage(*language)
            if best.probability >= DOUBTFUL:
                break
        if best is None:
            raise AudioError(f"{audio.name}: no speech was found")
    return best


def align(
    context: DecodingContext, samples: Samples, text: str, heard: Transcript, language: str | None
) -> Iterator[Word]:
    """The words of `text` with the times at which they are spoken in `samples` [T], whose transcript is
    `heard`. Raises AudioError where that has no words."""
    if not heard.text:
        raise AudioError("no speech was recognised in the recording")
    language = language or heard.language
    starts = [*dict.fromkeys(s.window_sample for s in heard.segments), len(samples)]
    ends = dict(pairwise(starts))
    for start, part in _distributed(context.whisper, text, heard, language):
        window = samples[start : min(ends[start], start + MAX_SAMPLES)]
        yield from align_window(context, window, start, part, language)


def align_window(
    context: DecodingContext, samples: Samples, start: int, text: str, language: str | None
) -> tuple[Word, ...]:
    """The words of the text of a window [T], which begins at sample `start`."""
    whisper, length = attending(context.whisper, "align"), len(samples)
    tokens = _tokens(whisper, text)
    window = Window(0, 0, length, True, samples)
    encoded = _encoded(context, window, detect=language is None)
    language = language or (encoded.language[0] if encoded.language else None)
    prompt, states = whisper.prompt(
        encoded.encoder_states, language, "transcribe", timestamps=False
    )
    room = whisper.positions - len(prompt) - 1
    if len(tokens) > room:
        raise UsageError(
            f"{len(tokens)} tokens of text for {seconds(length):.1f} s, and the model reads {room} at a "
            "time: is it the text of this recording?"
        )
    (times,) = token_times(whisper, [Utterance(states, prompt, tokens, length)])
    (words,) = assemble_words(
        whisper.tokenizer,
        language,
        [(tokens, text_of(whisper, tokens))],
        times,
        pauses(torch.as_tensor(encoded.features), length),
        start,
        length=length,
    )
    return words


def _distributed(
    whisper: SpeechModel, text: str, heard: Transcript, language: str | None
) -> Iterator[tuple[int, str]]:
    """The parts of a text, each with the first sample of its window: a word is where the recognised word that
    it stands for is."""

    def words_of(text: str) -> list[str]:
        tokens = _tokens(whisper, text)
        return [word.text for word in split_words(whisper.tokenizer, language, tokens)]

    given, starts = words_of(text), list[int]()
    places, recognised = zip(
        *((s.window_sample, word) for s in heard.segments for word in words_of(s.text)), strict=True
    )
    plain, own = (
        [w.strip().strip(MARKS).casefold() for w in words] for words in (recognised, given)
    )
    matched = SequenceMatcher(None, plain, own, autojunk=False)
    for _, first, last, begin, end in matched.get_opcodes():
        for number in range(end - begin):
            # Words in place of others share their windows evenly; others go with the word before them.
            near = first + number * (last - first) // (end - begin) if last > first else first - 1
            starts.append(places[max(near, 0)])
    for start, part in groupby(zip(starts, given, strict=True), key=lambda pair: pair[0]):
        yield start, "".join(word for _, word in part)


def _tokens(whisper: SpeechModel, text: str) -> tuple[int, ...]:
    return text_tokens(whisper, " ".join(text.split()), "the text")


def _encoded(context: DecodingContext, window: Window, *, detect: bool) -> EncodedWindow:
    (encoded,) = encode_windows(context, [window], [() if detect else None], [False])
    if isinstance(encoded, Exception):
        raise fault("the recording", encoded)
    return encoded
