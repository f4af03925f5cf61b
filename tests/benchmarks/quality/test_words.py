"""The table of wrong words: how texts are compared and corrected, and what hard audio is."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.quality.hard_audio import HARD, hard
from benchmarks.quality.words import Score, Sense, places, spoken
from forescribe.asr.audio.reading import read_audio

SAMPLE = Path("samples/memo.flac")


@pytest.fixture
def sense(tmp_path: Path) -> Sense:
    file = tmp_path / "sense.tsv"
    file.write_text("one\tdonkey hote\tDon Quixote\n*\tevery one\teveryone\n")
    return Sense.read(file)


def test_a_correction_replaces_words_of_one_recording(sense: Sense) -> None:
    assert sense.corrected("one", "Of Donkey Hote.") == "of don quixote"
    assert sense.corrected("two", "Of Donkey Hote.") == "of donkey hote"


def test_two_spellings_of_the_same_words_count_as_equal(sense: Sense) -> None:
    assert sense.words("Every one knows Mr. Smith") == sense.words("everyone knows mister Smith")


def test_a_correction_of_words_that_are_not_there_is_refused(sense: Sense) -> None:
    with pytest.raises(ValueError, match="'donkey hote' is not in the text"):
        sense.corrected("one", "Of Don Quixote")


def test_words_count_by_kind_and_marks_by_recording() -> None:
    said = ["a b c d", "a b c d", "a b c d"]
    score = Score.of(said, ["a x c d", "a b c d", "a b c d e"], [True, True, False])
    assert (score.words, score.substituted, score.left_out, score.inserted) == (12, 1, 0, 1)
    assert (score.wrong, score.marked, score.marked_wrong) == (2, 2, 1)


def test_places_name_the_words_around() -> None:
    assert places("one", "so a b c d", "so a x c d") == ["one: so a [b / x] c d"]


def test_the_text_beside_a_recording_is_what_is_said(tmp_path: Path) -> None:
    with_text, without = tmp_path / "a.flac", tmp_path / "b.flac"
    (tmp_path / "a.txt").write_text("It's here.")
    said = spoken([with_text, without], {with_text: "heard", without: "Heard."}, Sense.read(None))
    assert said == {with_text: "it is here", without: "heard"}


@pytest.mark.parametrize("name", HARD)
def test_hard_audio_is_another_sound_of_the_same_speech(name: str) -> None:
    clean = read_audio(SAMPLE)[: 16_000 * 4].astype(np.float64)
    other = np.sin(np.arange(len(clean)) / 9)
    changed = hard(clean, name, 1, [other])
    assert np.array_equal(changed, hard(clean, name, 1, [other]))
    assert np.all(np.isfinite(changed)) and np.max(np.abs(changed)) <= 0.98
    lengths = {"pause": (1.7, 3.1), "tempo 1.5": (0.6, 0.7), "tempo 0.7": (1.4, 1.5)}
    least, most = lengths.get(name, (0.99, 1.01))
    assert least <= len(changed) / len(clean) <= most
    if least == 0.99:
        scaled = clean / np.max(np.abs(clean))
        assert np.sqrt(np.mean((changed[: len(clean)] - scaled[: len(changed)]) ** 2)) > 0.01
