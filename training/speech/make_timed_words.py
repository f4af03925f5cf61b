"""Generate tests/asr/words/data/words.ogg and .json, speech with known word times for the tests.

    python -m training.speech.make_timed_words

Held-out sentences in three held-out voices of flite, one window.
"""

from __future__ import annotations

import json

import numpy as np
import soundfile

from training.paths import ROOT
from training.sentences.held_out import read_lines
from training.speech.timed_speech import lay, speak_timed
from training.speech.voices import RATE, held_out_voices

FOLDER = ROOT / "tests" / "asr" / "words" / "data"
VOICES = ("slt", "rms", "awb")
LINES = ("sample_memo.txt", "sample_conversation.txt")
SENTENCES = 7


def sentences() -> list[str]:
    """Sentences of the samples, which are held out."""
    lines = [line for name in LINES for line in read_lines(name)]
    spoken = [line.partition(": ")[2] for line in lines if not line.startswith("P:")]
    return spoken[:: len(spoken) // SENTENCES][:SENTENCES]


def main() -> None:
    voices = [voice for voice in held_out_voices() if voice.name in VOICES]
    parts = [speak_timed(text, voices[n % len(voices)]) for n, text in enumerate(sentences())]
    speech = lay(parts, np.random.default_rng(3))
    FOLDER.mkdir(exist_ok=True)
    samples = np.clip(speech.samples, -1, 1)
    soundfile.write(FOLDER / "words.ogg", samples, RATE, subtype="VORBIS", compression_level=0.9)
    rows = ",\n".join("  " + json.dumps(vars(word)) for word in speech.words)
    (FOLDER / "words.json").write_text(f"[\n{rows}\n]\n", "utf-8")
    print(f"{len(samples) / RATE:.1f} s, {len(speech.words)} words")


if __name__ == "__main__":
    main()
