"""What is counted as wrong: words, terms, turns, speakers of words. Cases that can be counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("jiwer", reason="word error rates need jiwer (group bench)")
pytest.importorskip("pyannote.metrics")

from benchmarks.quality import diarization, word_times
from benchmarks.quality.diarization import turn_errors, wrong_words
from benchmarks.quality.words import Score, Sense, places, spoken
from forescribe.asr.formats.transcript_parts import Word
from forescribe.diarize.turns import Turns

RATE = 16_000


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


def turns(*given: tuple[float, float, str]) -> Turns:
    return Turns.of((round(a * RATE), round(b * RATE), who) for a, b, who in given)


def test_missed_false_and_confused_speech_are_counted_and_pooled() -> None:
    truth = turns((0, 10, "A"), (8, 12, "B"))  # 14 s of speech, 2 of them together
    exact = turn_errors(truth, truth.renamed({"A": "x", "B": "y"}), 20 * RATE)
    assert exact.der == exact.fair == exact.jer == 0 and exact.right == 1
    one = turn_errors(truth, turns((0, 12, "x")), 20 * RATE)
    assert one.missed_s == pytest.approx(2) and one.confused_s == pytest.approx(2)
    assert one.counted == [-1] and one.der == pytest.approx(4 / 14)
    loud = turn_errors(truth, turns((0, 10, "x"), (8, 12, "y"), (15, 16, "y")), 20 * RATE)
    assert loud.false_s == pytest.approx(1) and loud.right == 1
    both = one + loud
    assert both.der == pytest.approx(5 / 28) and both.right == 0.5 and both.off_by == 0.5


def test_the_fair_measure_forgives_borders_that_are_a_quarter_second_off() -> None:
    found = turn_errors(turns((1, 5, "A")), turns((1.2, 5.2, "x")), 10 * RATE)
    assert found.der == pytest.approx(0.1) and found.fair == 0


def words(*who: str | None) -> list[Word]:
    return [Word(f" w{n}", n * 100, n * 100 + 50, None, name) for n, name in enumerate(who)]


def test_names_are_mapped_and_a_word_without_a_speaker_is_wrong() -> None:
    truth = words("A", "A", "B", "B")
    assert wrong_words(truth, ["x", "x", "y", "y"]) == 0
    assert wrong_words(truth, ["x", "y", "y", "y"]) == 1
    assert wrong_words(truth, ["x", "x", "x", "x"]) == 2
    assert wrong_words(truth, [None, "x", "y", "y"]) == 1
    assert wrong_words(truth, [None] * 4) == 4


def test_word_times_of_the_bundled_recording_are_measured(tmp_path: Path) -> None:
    out = tmp_path / "words.json"
    assert word_times.main(["--json", str(out)]) in (0, 1)
    (found,) = json.loads(out.read_text())["rows"].values()
    assert 0.7 * found["spoken"] <= found["matched"] == len(found["starts"]) > 20


def test_a_folder_of_recordings_is_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in ("flac", "rttm", "json"):
        name = f"memo.{kind}"
        (tmp_path / name).symlink_to(Path("samples", name).resolve())
    assert diarization.main([str(tmp_path), "--diarizer", "embedded", "--device", "cpu"]) == 0
    cells = capsys.readouterr().out.splitlines()[2].split()
    _, recordings, der, _, _, confused, *_, words, _ = cells
    assert (recordings, confused, words) == ("1", "0.0", "0.00") and float(der) < 20
