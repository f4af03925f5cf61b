"""What is kept of a live stream: items at their places, and every sample accounted for."""

from __future__ import annotations

import numpy as np
import soundfile

from forescribe.asr.audio.reading import read_audio
from forescribe.asr.errors import AudioError
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Coverage, Notice, Segment, Span, Word
from forescribe.asr.live.record import LiveRecord

RATE = 16_000


def item(text: str, seconds: float, language: str = "en", **more) -> Transcript:
    end = round(RATE * seconds)
    words = (Word(f" {text}", 0, end),)
    segment = Segment(0, 0, 0, 0, end, f" {text}", words=words)
    stats = {"windows": 1, "tokens": 4, "rounds": 2, "drafted": 4, "accepted": 2, "wall_s": 0.5}
    coverage = Coverage((Span(0, end, "decoded"),), 0)
    return Transcript((segment,), end, coverage, language, 0.9, stats=stats, **more)


def record_of(seconds: float, **items: Transcript) -> LiveRecord:
    record = LiveRecord(audio=False)
    record.feed(np.zeros(round(RATE * seconds), np.float32))
    for start, transcript in items.items():
        record.add(float(start[1:]), transcript)
    return record


def test_items_stand_at_their_places_in_any_order_of_completion() -> None:
    warned = item("two", 1, warnings=(Notice("doubtful_text", "doubtful", 2, (0.5,)),))
    whole = record_of(10, _5=warned, _1=item("one", 2)).transcript({"live": {"step_s": 1.0}})
    assert whole.text == "one two" and whole.duration == 10
    assert [(s.id, s.window, s.start, s.end) for s in whole.segments] == [
        (0, 0, 1.0, 3.0),
        (1, 1, 5.0, 6.0),
    ]
    assert [(word.start, word.end) for word in whole.words] == [(1.0, 3.0), (5.0, 6.0)]
    spans = [(s.start_sample / RATE, s.end_sample / RATE, s.state) for s in whole.coverage.spans]
    assert spans == [
        (0, 1, "silent"), (1, 3, "decoded"), (3, 5, "silent"), (5, 6, "decoded"), (6, 10, "silent")
    ]  # fmt: skip
    (notice,) = whole.warnings
    assert "turn at 5.0 s" in notice.message and notice.places == (5.5,)
    assert whole.stats["tokens"] == 8 and whole.stats["acceptance_rate"] == 0.5
    assert whole.settings["live"] == {"step_s": 1.0}
    assert Transcript.from_dict(whole.to_dict()).to_dict() == whole.to_dict()


def test_a_failed_item_is_in_the_coverage() -> None:
    record = record_of(4, _2=item("one", 1))
    record.fail(0.5, 1.5, AudioError("broken"))
    spans = [(span.start_sample / RATE, span.state) for span in record.transcript().coverage.spans]
    assert spans == [(0, "silent"), (0.5, "failed"), (1.5, "silent"), (2, "decoded"), (3, "silent")]


def test_samples_are_kept_outside_of_memory(tmp_path) -> None:
    samples = np.linspace(-0.9, 0.9, 70_000, dtype=np.float32)
    with LiveRecord(audio=True) as record:
        for at in range(0, len(samples), 999):
            record.feed(samples[at : at + 999])
        np.testing.assert_array_equal(read_audio(record.sound("session")), samples)
        record.save_audio(tmp_path / "session.flac")
    assert [path.name for path in tmp_path.iterdir()] == ["session.flac"]
    saved, rate = soundfile.read(tmp_path / "session.flac")
    assert rate == RATE
    np.testing.assert_allclose(saved, samples, atol=1e-4)
