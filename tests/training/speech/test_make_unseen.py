"""The recording for benchmarks: sentences and voices that no training has used."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from training.sentences.held_out import held_out
from training.speech.make_unseen import recording, sentences
from training.speech.voices import RATE


def test_all_sentences_are_held_out_and_the_order_is_fixed() -> None:
    found = sentences()
    assert len(found) > 150 and len(set(found)) == len(found)
    assert all(map(held_out, found))
    assert sentences() == found


@pytest.mark.skipif(
    not (shutil.which("flite") and shutil.which("espeak-ng")),
    reason="needs flite and espeak-ng (Debian packages)",
)
def test_a_recording_is_as_long_as_it_has_to_be() -> None:
    audio, said = recording(0.2)
    assert len(audio) >= 12 * RATE and audio.dtype == np.float32
    assert float(np.abs(audio).max()) <= 1
    assert said == sentences()[: len(said)]
