"""The embedded engine with its networks on the bundled samples. For figures see benchmarks/."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.quality.diarization import Errors, cases, read_rttm, turn_errors, wrong_words
from forescribe.asr.audio.reading import read_audio
from forescribe.asr.errors import CapacityError
from forescribe.asr.formats.transcript_parts import Word
from forescribe.diarize.attribution import assign_speakers
from forescribe.diarize.diarizer import Bounds, Diarization
from forescribe.diarize.engines import embedded
from forescribe.diarize.engines.embedded import EmbeddedDiarizer
from forescribe.diarize.known_speakers import KnownSpeaker, name_known_speakers
from forescribe.speculative.device import SideStream
from tests.speculative.graphs.fake_cuda import CudaOnCpu, FakeCuda

RATE = 16_000
ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def diarizer() -> EmbeddedDiarizer:
    return embedded.EmbeddedDiarizer()


@pytest.fixture(scope="module")
def conversation() -> np.ndarray:
    return read_audio(ROOT / "samples" / "conversation.flac")


def speakers(found: Diarization) -> int:
    return len(found.speakers)


def valid(found: Diarization, length: int) -> bool:
    exclusive = list(found.exclusive)
    return found.sample_count == length and all(
        a.end_sample <= b.start_sample for a, b in zip(exclusive, exclusive[1:], strict=False)
    )


def test_the_bundled_samples_have_the_right_speakers_on_their_words(
    diarizer: EmbeddedDiarizer,
) -> None:
    errors, words, wrong = Errors(), 0, 0
    for case in cases(ROOT / "samples"):
        found = diarizer.diarize(case.samples)
        errors += turn_errors(case.turns, found.regular, len(case.samples))
        unnamed = [Word(w.text, w.start_sample, w.end_sample) for w in case.words]
        who = [a.speaker for a in assign_speakers(unnamed, found.exclusive, found.regular)]
        words, wrong = words + len(case.words), wrong + wrong_words(case.words, who)
    assert errors.right == 1.0, errors.counted
    assert wrong <= 0.03 * words


def spoken_by(name: str, speaker: str) -> np.ndarray:
    """What one speaker of a bundled sample says, one turn after the other."""
    path = ROOT / "samples" / f"{name}.flac"
    heard = read_audio(path)
    own = read_rttm(path.with_suffix(".rttm").read_text())[name]
    return np.concatenate(
        [heard[t.start_sample : t.end_sample] for t in own if t.speaker == speaker]
    )


@pytest.mark.parametrize("offset", [4, 8])
def test_speech_of_two_at_once_is_two_turns_that_overlap(
    diarizer: EmbeddedDiarizer, offset: int
) -> None:
    """A woman speaks for 20 s, a man falls in after 12 s, and she stops `offset` seconds later."""
    her, him = spoken_by("memo", "A"), spoken_by("conversation", "A")
    mixed_ = np.zeros((32 + offset) * RATE, np.float32)
    mixed_[: (12 + offset) * RATE] += her[: (12 + offset) * RATE]
    mixed_[12 * RATE :] += him[: (20 + offset) * RATE]
    found = diarizer.diarize(mixed_)
    assert valid(found, len(mixed_)) and speakers(found) == 2
    first, second = (
        {
            frame
            for turn in found.regular
            if turn.speaker == speaker
            for frame in range(turn.start_sample // 160, turn.end_sample // 160)
        }
        for speaker in found.speakers
    )
    both = range(1200, (12 + offset) * 100)
    assert len(first & second & set(both)) > 0.6 * len(both)
    assert len((first & second) - set(both)) < 50
    assert len(first - set(range(1200 + 100 * offset))) < 50 and len(second & set(range(1200))) < 50


@pytest.mark.parametrize(
    ("bounds", "least", "most"),
    [
        (Bounds(exactly=1), 1, 1),
        pytest.param(Bounds(exactly=2), 2, 2, marks=pytest.mark.nightly),
        (Bounds(exactly=3), 3, 3),
        (Bounds(at_least=4), 4, 100),
        (Bounds(at_most=1), 1, 1),
        pytest.param(Bounds(at_most=3), 2, 2, marks=pytest.mark.nightly),
        (Bounds(exactly=10), 2, 10),
    ],
)
def test_bounds_are_honoured_with_a_warning_where_the_voices_say_otherwise(
    diarizer: EmbeddedDiarizer, conversation: np.ndarray, bounds: Bounds, least: int, most: int
) -> None:
    part = conversation[: 40 * RATE]
    found = diarizer.diarize(part, bounds)
    assert valid(found, len(part)) and least <= speakers(found) <= most
    told = "speaker_count" in [warning.code for warning in found.warnings]
    assert told == (not bounds.least <= 2 <= bounds.most)


def test_the_same_recording_gives_the_same_answer_and_voices_are_its_speakers(
    diarizer: EmbeddedDiarizer, conversation: np.ndarray
) -> None:
    part = conversation[: 40 * RATE]
    one, two = diarizer.diarize(part), diarizer.diarize(part)
    assert one.regular == two.regular and one.exclusive == two.exclusive
    assert all(turn.confidence is not None and 0 < turn.confidence <= 1 for turn in one.regular)
    for a, b in zip(one.voices, two.voices, strict=True):
        assert a.vector is not None and b.vector is not None and np.array_equal(a.vector, b.vector)
        assert np.linalg.norm(a.vector) == pytest.approx(1, abs=1e-5)
        assert a.samples == one.exclusive.samples_of(a.speaker) > 5 * RATE
    assert [voice.speaker for voice in one.voices] == list(one.speakers)
    assert one.engine.to_dict()["encoder"] == diarizer.engine.encoder


def test_the_hook_sees_progress_and_cancels(
    diarizer: EmbeddedDiarizer, conversation: np.ndarray
) -> None:
    part = conversation[: 60 * RATE]
    seen: list[tuple[str, float]] = []
    diarizer.diarize(part, hook=lambda step, done: seen.append((step, done)))
    shares = [done for _, done in seen]
    assert shares == sorted(shares) and shares[0] > 0 and len(seen) > 3
    assert list(dict(seen)) == ["segmentation", "embeddings", "done"] and seen[-1] == ("done", 1.0)

    for last in ("segmentation", "embeddings", "done"):

        def stop(step: str, done: float, last: str = last) -> None:
            if step == last:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            diarizer.diarize(part, hook=stop)
    assert speakers(diarizer.diarize(part)) == 2  # it works on


def test_memory_that_runs_out_is_an_error_that_says_so(
    diarizer: EmbeddedDiarizer, conversation: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(diarizer.encoder, "vectors", full)
        with pytest.raises(CapacityError, match=r"out of memory while diarizing 10 s.*--device"):
            diarizer.diarize(conversation[: 10 * RATE])
    assert speakers(diarizer.diarize(conversation[: 20 * RATE])) == 2  # it works on


@pytest.fixture(scope="module")
def enrolled(diarizer: EmbeddedDiarizer, conversation: np.ndarray) -> list[KnownSpeaker]:
    """Both speakers of the first minute."""
    voices = diarizer.diarize(conversation[: 60 * RATE]).voices
    encoder = diarizer.engine.encoder or ""
    return [
        KnownSpeaker(f"Person {n}", encoder, voice.vector, voice.samples, 1, "")
        for n, voice in enumerate(voices)
        if voice.vector is not None
    ]


def test_speakers_are_recognised_in_another_part(
    diarizer: EmbeddedDiarizer, conversation: np.ndarray, enrolled: list[KnownSpeaker]
) -> None:
    found, told = name_known_speakers(diarizer.diarize(conversation[60 * RATE :]), enrolled)
    assert set(found.speakers) == {"Person 0", "Person 1"} and all(match.sure for match in told)


@pytest.mark.parametrize("sample", ["memo", "silence"])
def test_an_unknown_speaker_is_not_recognised(
    diarizer: EmbeddedDiarizer, enrolled: list[KnownSpeaker], sample: str
) -> None:
    """Person 0 is rms; the woman of the memo is slt and the man of `silence` awb."""
    path = ROOT / "samples" / f"{sample}.flac"
    found, told = name_known_speakers(diarizer.diarize(read_audio(path)), enrolled[:1])
    assert found.speakers == ("Speaker A",) and not any(match.sure for match in told)


def test_networks_on_a_card_run_on_a_stream_of_their_own(
    diarizer: EmbeddedDiarizer, conversation: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, streams = FakeCuda(monkeypatch), []
    for network in (diarizer.segmentation.network, diarizer.encoder):

        def watched(*given: Any, computed: Any = network.forward) -> Any:
            streams.append(cuda.current)
            return computed(*given)

        monkeypatch.setattr(network, "forward", watched)
    samples = conversation[: 12 * RATE]
    monkeypatch.setattr(diarizer, "_side", SideStream(CudaOnCpu("cuda", torch.float32)))
    found = diarizer.diarize(samples)
    assert len(set(streams)) == 1 and cuda.default not in streams and len(streams) > 1
    assert cuda.current is cuda.default
    monkeypatch.undo()
    plain = diarizer.diarize(samples)
    assert (found.regular, found.exclusive) == (plain.regular, plain.exclusive)


def test_voices_that_are_hard_to_tell_apart_have_a_warning(
    diarizer: EmbeddedDiarizer, conversation: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = conversation[: 20 * RATE]
    cluster = embedded.cluster

    def unsure(*given: Any) -> Any:
        found = cluster(*given)
        return replace(found, chances=np.full_like(found.chances, 0.5))

    assert diarizer.diarize(part).warnings == ()
    monkeypatch.setattr(embedded, "cluster", unsure)
    doubted = diarizer.diarize(part)
    assert [warning.code for warning in doubted.warnings] == ["doubtful_speakers"]
    assert {turn.confidence for turn in doubted.regular} == {0.5}
