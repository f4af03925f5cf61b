"""What a model tells of a recording besides its text: the language, and when the words of a given text are
spoken.

A text is timed by forced decoding (`asr.words.timing`), in windows of 30 s. Of a longer recording a
transcription says which words belong to which window; the times are those of the given words. Knows nothing
of batches or formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import groupby, pairwise
from typing import NamedTuple

from ..audio.inputs import Input
from ..audio.reading import Samples, open_audio
from ..errors import AudioError, UsageError
from ..formats.transcript import Transcript
from ..formats.transcript_parts import Word, seconds
from ..model.whisper import Whisper
from ..segment.windows import MAX_SAMPLES, Window, cut
from ..words.borders import assemble_words, pauses
from ..words.splitting import split_words
from ..words.timing import Utterance, token_times
from .answers import MARKS, text_of
from .context import DecodingContext, EncodedWindow, encode_windows
from .recording import DOUBTFUL, fault


class DetectedLanguage(NamedTuple):
    """The code of a spoken language, and its probability among all that the model knows."""

    language: str
    probability: float


def detect_language(context: DecodingContext, source: Input) -> DetectedLanguage:
    """The language of a recording's first window with speech in which it is not doubtful; else the most
    probable one of all. Raises UsageError for a model of one language, AudioError without speech."""
    if not context.whisper.tokens.multilingual:
        raise UsageError(
            "this model knows one language alone: detect languages with a multilingual one"
        )
    best: DetectedLanguage | None = None
    with open_audio(source) as audio:
        for window in cut(audio.blocks(), context.voice_detector()):
            if not window.speech:
                continue
            language = _encoded(context, window, detect=True, name=audio.name).language
            assert language is not None
            if best is None or language[1] > best.probability:
                best = DetectedLanguage(*language)
            if best.probability >= DOUBTFUL:
                break
        if best is None:
            raise AudioError(f"{audio.name}: no speech was found, so it has no language")
    return best


def align(
    context: DecodingContext,
    samples: Samples,
    text: str,
    language: str | None,
    transcribe: Callable[[], Transcript],
) -> tuple[Word, ...]:
    """The words of `text` with the times at which they are spoken in `samples` [T]; `transcribe` makes a
    transcript of them, where they are longer than a window."""
    if not text.strip():
        return ()
    if not len(samples):
        raise AudioError("a recording without samples has no place for a text", code="empty_file")
    if len(samples) <= MAX_SAMPLES:
        return _timed(context, samples, 0, text, language)
    heard = transcribe()
    if not heard.text:
        raise AudioError(
            "no speech was recognised in the recording, so the text has no place in it"
        )
    language = language or heard.language
    words: list[Word] = []
    starts = [*dict.fromkeys(s.window_sample for s in heard.segments), len(samples)]
    windows = dict(pairwise(starts))
    for start, part in _distributed(context.whisper, text, heard, language):
        window = samples[start : min(windows[start], start + MAX_SAMPLES)]
        words += _timed(context, window, start, part, language)
    return tuple(words)


def _timed(
    context: DecodingContext, samples: Samples, start: int, text: str, language: str | None
) -> tuple[Word, ...]:
    """The words of the text of a window, which begins at sample `start`."""
    whisper, length = context.whisper, len(samples)
    tokens = text_tokens(whisper, text)
    window = Window(0, 0, length, True, samples)
    encoded = _encoded(context, window, detect=language is None, name="the recording")
    language = language or (encoded.language[0] if encoded.language else None)
    prompt = whisper.tokens.prompt(language, "transcribe", timestamps=False)
    room = whisper.target.config.max_target_positions - len(prompt) - 1
    if len(tokens) > room:
        raise UsageError(
            f"{len(tokens)} tokens of text for {seconds(length):.1f} s of sound, and the model reads "
            f"{room} at a time: is it the text of this recording?"
        )
    (times,) = token_times(whisper, [Utterance(encoded.encoder_states, prompt, tokens, length)])
    (words,) = assemble_words(
        whisper.tokenizer,
        language,
        [(tokens, text_of(whisper, tokens))],
        times,
        pauses(encoded.features, length),
        start,
        length=length,
    )
    return words


def _distributed(
    whisper: Whisper, text: str, heard: Transcript, language: str | None
) -> Iterator[tuple[int, str]]:
    """The parts of a text with the first samples of the windows that they are spoken in, in order: each word
    goes where the recognised word that it stands for is."""

    def words_of(text: str) -> list[str]:
        return [
            w.text for w in split_words(whisper.tokenizer, language, text_tokens(whisper, text))
        ]

    given = words_of(text)
    places: list[int] = []  # of each recognised word, the start of its window
    recognised: list[str] = []
    for segment in heard.segments:
        found = words_of(segment.text)
        recognised += found
        places += [segment.window_sample] * len(found)
    matched = SequenceMatcher(None, _plain(recognised), _plain(given), autojunk=False)
    starts: list[int] = []
    for _, first, last, begin, end in matched.get_opcodes():
        for number in range(end - begin):
            # Words in place of others share their windows evenly; words of which nothing was recognised
            # go with the word before them.
            near = first + number * (last - first) // (end - begin) if last > first else first - 1
            starts.append(places[max(near, 0)])
    for start, part in groupby(zip(starts, given, strict=True), key=lambda pair: pair[0]):
        yield start, "".join(word for _, word in part)


def _plain(words: Sequence[str]) -> list[str]:
    """Words without what spellings differ in: case and punctuation."""
    return [word.strip().strip(MARKS).casefold() for word in words]


def text_tokens(whisper: Whisper, text: str) -> tuple[int, ...]:
    """The tokens of a text as a window begins with it. Raises UsageError for special tokens in it."""
    ids = whisper.tokenizer.encode(" " + " ".join(text.split()), add_special_tokens=False)
    if any(token >= whisper.tokens.end for token in ids):
        raise UsageError("the text holds a special token such as <|endoftext|>")
    return tuple(ids)


def _encoded(context: DecodingContext, window: Window, *, detect: bool, name: str) -> EncodedWindow:
    (encoded,) = encode_windows(context, [window], [detect])
    if isinstance(encoded, Exception):
        raise fault(name, encoded)
    return encoded
