"""Who wrote a token: from the engine's sources to words, figures and JSON, none lost on the way."""

from __future__ import annotations

from collections import Counter

import numpy as np
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import TOKEN_SOURCES
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.asr.words.assembly import assemble_words, split_words
from forescribe.asr.words.timing import TokenTimes
from forescribe.speculative.device import choose
from forescribe.speculative.requests import Source
from tests.asr.detectors import EnergyDetector
from tests.asr.model import folders

A, C, B, P = Source.ACCEPTED, Source.CORRECTION, Source.BONUS, Source.PLAIN


@given(st.text("ab ,.-", max_size=20).map(lambda text: f" a{text}"), st.data())
def test_the_words_sources_joined_are_those_of_the_tokens(text, data):
    tokenizer = folders.tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    count = len(ids)
    written = data.draw(st.lists(st.sampled_from(TOKEN_SOURCES), min_size=count, max_size=count))
    times = TokenTimes(tuple(range(0, 320 * (count + 1), 320)), (0.5,) * count)
    (found,) = assemble_words(tokenizer, "en", [(ids, text)], times, [], 0, written, length=480_000)
    assert [who for word in found for who in word.sources] == written
    assert [len(word.sources) for word in found] == [
        s.count for s in split_words(tokenizer, "en", ids)
    ]


def test_a_transcript_says_who_wrote_each_word(tmp_path):
    """With random weights, whose drafts are rarely right: what is said adds up, and JSON gives it back."""
    path = tmp_path / "speech.wav"
    soundfile.write(path, 0.3 * np.sin(np.arange(32_000) * 0.1), 16_000)
    whisper = load(Pair(folders.write(tmp_path / "target", max_target_positions=40)), choose("cpu"))
    transcriber = Transcriber(whisper, batch=2, gamma=2, detector=EnergyDetector())
    (outcome,) = transcriber.transcribe([path], Options(language="en", words=True))
    transcript = outcome.transcript
    whole = transcript.stats
    assert sum(whole["written"].values()) == whole["tokens"] > 0
    assert whole["written"]["accepted"] == sum(whole["accepted_at_depth"]) == whole["accepted"]
    spoken = Counter(w for s in transcript.segments for word in s.words for w in word.sources)
    tokens = sum(len(segment.tokens) for segment in transcript.segments)
    assert spoken.total() == tokens > 0
    assert all(spoken[name] <= whole["written"][name] for name in TOKEN_SOURCES)
    assert Transcript.from_dict(transcript.to_dict()).segments == transcript.segments
