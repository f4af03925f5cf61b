"""Token times by another model: a small Whisper reads the text of a window, and its attention says when.

For speech models whose decoder does not attend to the audio (`SpeechModel.attends`). Both models write bytes
with tokens of their own: a token of the text begins where the Whisper's token with that byte does, in between
by its share of the bytes. Knows nothing of words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from ..errors import ModelError
from ..model.languages import ALIKE, LANGUAGES
from ..model.presets import ALIGNER
from ..model.speech_model import SpeechModel
from ..model.states import EncoderStates
from ..model.vocabulary import bytes_of
from ..model.whisper import Whisper
from ..segment.windows import Samples
from .assembly import Pause, pauses
from .timing import TokenTimes, Utterance, token_times


class Spoken(NamedTuple):
    """A window's samples, and the text that it was found to say."""

    samples: Samples
    language: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


def align(model: SpeechModel, spoken: Spoken) -> tuple[TokenTimes, tuple[Pause, ...]]:
    """The times of the tokens, with the probabilities that they were written with, and the pauses of the
    window. Raises ModelError where no aligner knows the language, or the text is too long for it."""
    aligner, named = model.aligner(spoken.language), LANGUAGES.get(spoken.language, "").title()
    if aligner is None:
        words = f"words in {named}" if named else "words whose language is not named"
        raise ModelError(
            f"times of {words} are found by {ALIGNER}, which is not on this machine: "
            f"`hf download {ALIGNER}`"
        )
    names = map(model.tokenizer.convert_ids_to_tokens, spoken.tokens)
    data = list(map(bytes_of, names))
    text = b"".join(data).decode(errors="replace")
    read = aligner.tokenizer.encode(" " + text.strip(), add_special_tokens=False)
    features = aligner.features([spoken.samples])
    (states,) = aligner.encode(*features)
    language = _read_as(aligner, spoken.language, states)
    prompt, states = aligner.prompt(states, language, "transcribe", timestamps=False)
    if len(prompt) + len(read) >= aligner.positions or not all(map(aligner.tokens.is_text, read)):
        raise ModelError(f"its {len(read)} tokens of text are more than {ALIGNER} reads at a time")
    length = len(spoken.samples)
    (times,) = token_times(aligner, [Utterance(states, prompt, tuple(read), length)])
    theirs = _offsets(aligner.tokenizer, read)
    lead = len(text) - len(text.lstrip()) - 1  # the space in front of the first word
    ours = [0, *(max(0, end - lead) for end in accumulate(map(len, data)))]
    found = np.interp(ours, theirs, times.boundaries).astype(int).tolist()
    heard = TokenTimes(tuple(found), tuple(map(math.exp, spoken.logprobs)))
    return heard, pauses(features[0][0], length)


def _read_as(aligner: Whisper, language: str, states: EncoderStates) -> str | None:
    """The language in which an aligner reads a text: one that is written alike where it lacks the text's own
    (the small models have no Cantonese), and what it hears where none is named. None: it knows one alone.
    Raises ModelError."""
    known = aligner.tokens.languages
    if not known:
        return None
    if not language:
        ((language, _),) = aligner.detect_language([states])
    near = (code for code in (language, *ALIKE.get(language, ())) if code in known)
    found = next(near, None)
    if found is None:
        raise ModelError(f"{ALIGNER} does not know {LANGUAGES[language].title()}")
    return found


def _offsets(tokenizer: Any, tokens: Sequence[int]) -> list[int]:
    """The bytes before each token, and all."""
    names = map(tokenizer.convert_ids_to_tokens, tokens)
    return list(accumulate((len(bytes_of(name)) for name in names), initial=0))
