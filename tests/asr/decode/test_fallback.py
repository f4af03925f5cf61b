"""Guards in the transcriber: only a failing window is decoded again, reproducibly, with a record."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from forescribe.asr.decode.guards import Guards, Judgement
from forescribe.asr.decode.text import mean_logprob
from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.decode.window import PendingWindow
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.speculative import choose
from tests.asr.decode.whole_windows import whole
from tests.asr.detectors import EnergyDetector
from tests.asr.model import folders

RATE = 16000


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    target = folders.write(root / "target", max_target_positions=40)
    draft = folders.write_distilled(root / "draft", target)
    return load(Pair(target, draft), choose("cpu"), network=False)


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """70 s of noise: three windows of 30, 30 and 10 s."""
    import soundfile

    path = tmp_path_factory.mktemp("audio") / "noise.wav"
    noise = np.random.default_rng(0).standard_normal(70 * RATE) * 0.1
    soundfile.write(path, noise.astype(np.float32), RATE, subtype="FLOAT")
    return str(path)


@pytest.fixture(scope="module", autouse=True)
def no_parts():
    """Random models close their answers anywhere; what they leave is decoded in `test_rests`."""
    with pytest.MonkeyPatch.context() as patch:
        whole(patch)
        yield


@pytest.fixture(scope="module")
def plain(whisper, recording):
    """Every window's first answer."""
    return decode(whisper, recording, None)


def options(guards: Guards | None, **more) -> Options:
    return Options(language="en", vad=False, keep_encoder_states=True, guards=guards, **more)


def decode(whisper, recording, guards, *, batch=2, gamma=3, judge=None, monkeypatch=None):
    if judge is not None:
        monkeypatch.setattr(Guards, "judge", judge)
    transcriber = Transcriber(whisper, detector=EnergyDetector(), batch=batch, gamma=gamma)
    (outcome,) = transcriber.transcribe([recording], options(guards))
    assert outcome.error is None
    return outcome


def failing(window: float, until: float):
    """A judge that fails one window, known by its no-speech probability, below a temperature."""

    def judge(self, *, compression_ratio, mean_logprob, no_speech_prob, heard):
        hit = math.isclose(no_speech_prob, window, rel_tol=1e-6)
        if hit and judge.temperature < until:
            judge.temperature = self.next_temperature(judge.temperature) or math.inf
            return Judgement.RETRY, "planted"
        return Judgement.KEEP, None

    judge.temperature = 0.0
    return judge


def without_numbers(whisper, monkeypatch, below: float = math.inf) -> Transcriber:
    """A transcriber whose answers of lower temperatures have NaN for probabilities."""
    made = Transcriber(whisper, detector=EnergyDetector(), batch=2, gamma=0)
    ended = made.context.ended

    def broken(results):
        return [
            replace(answer, logprobs=(math.nan,) * len(answer.logprobs))
            if answer.request.temperature < below
            else answer
            for answer in ended(results)
        ]

    monkeypatch.setattr(made.context, "ended", broken)
    return made


def test_a_window_without_a_voice_is_not_sampled(whisper, recording, plain, monkeypatch):
    """Some sampled text would pass at last, and nobody has said it."""
    monkeypatch.setattr(PendingWindow, "heard", property(lambda pending: False))
    victim = plain.decoded[1].result.probe[0]
    judge = failing(victim, 0.4)
    guarded = decode(whisper, recording, Guards(), judge=judge, monkeypatch=monkeypatch)
    assert [d.state for d in guarded.decoded] == ["decoded", "silent", "decoded"]
    assert [d.tried for d in guarded.decoded] == [0.0, 0.0, 0.0]
    assert guarded.decoded[1].reason == "no voice; planted"


def test_a_window_below_a_real_threshold_alone_is_decoded_again(whisper, recording, plain):
    """Nothing is planted here but the threshold: between the least probable window and the others."""
    means = [mean_logprob(d.result.logprobs) for d in plain.decoded]
    worst = means.index(min(means))
    threshold = (sorted(means)[0] + sorted(means)[1]) / 2
    guards = Guards(
        compression_ratio=None, no_speech=None, logprob=threshold, temperatures=(0.0, 0.5)
    )
    guarded = decode(whisper, recording, guards)
    assert [d.tried for d in guarded.decoded] == [0.5 if n == worst else 0.0 for n in range(3)]
    for before, after in zip(plain.decoded, guarded.decoded, strict=True):
        assert before.result.tokens == after.result.tokens or before.index == worst


def test_the_others_go_on_while_a_window_is_tried_again(whisper, recording, plain, monkeypatch):
    victim = plain.decoded[0].result.probe[0]
    monkeypatch.setattr(Guards, "judge", failing(victim, 1.0))
    transcriber = Transcriber(whisper, detector=EnergyDetector(), batch=2, gamma=3)
    tries: list[tuple[int, float]] = []
    submit = transcriber.engine.submit

    def recorded(request):
        tries.append((request.tag.window.index, request.temperature))
        submit(request)

    monkeypatch.setattr(transcriber.engine, "submit", recorded)
    ended: list[int] = []

    def hook(progress):
        ended.extend({segment.window for segment in progress.segments})

    (outcome,) = transcriber.transcribe([recording], options(Guards()), hook)
    assert ended == [1, 2, 0]  # the first to start is the last to end; the others did not wait
    assert [index for index, temperature in tries if temperature] == [0] * 5
    assert [temperature for index, temperature in tries if index] == [0.0, 0.0]
    assert [d.index for d in outcome.decoded] == [0, 1, 2]


def test_a_fallback_is_the_same_in_any_batch_and_with_any_drafts(whisper, recording, plain):
    victim = plain.decoded[1].result.probe[0]

    def again(size, gamma):
        judge = failing(victim, 0.6)
        with pytest.MonkeyPatch.context() as patch:
            outcome = decode(
                whisper,
                recording,
                Guards(),
                batch=size,
                gamma=gamma,
                judge=judge,
                monkeypatch=patch,
            )
        return [d.result.tokens for d in outcome.decoded]

    plainly = again(2, 0)
    assert plainly == again(1, 3) == again(3, 1)
    # By the clock too.
    assert plainly == again(1, None) == again(3, None)


@pytest.mark.parametrize("ratio", [2.4, 0.01, None])
def test_of_what_fails_to_the_end_the_most_probable_attempt_is_kept(
    whisper, recording, monkeypatch, ratio
):
    """Of those that do not repeat themselves, if there is one; every temperature is tried once."""
    tried: dict[float, list[tuple[float, float]]] = {}

    def attempts_of(probe: float) -> list[tuple[float, float]]:
        known = next((own for own in tried if math.isclose(own, probe, rel_tol=1e-6)), probe)
        return tried.setdefault(known, [])

    def never(self, *, compression_ratio, mean_logprob, no_speech_prob, heard):
        attempts_of(no_speech_prob).append((compression_ratio, mean_logprob))
        return Judgement.RETRY, f"planted {mean_logprob}"

    temperatures = (0.0, 0.5, 1.0)
    guards = Guards(temperatures=temperatures, compression_ratio=ratio)
    outcome = decode(whisper, recording, guards, judge=never, monkeypatch=monkeypatch)
    assert [len(attempts) for attempts in tried.values()] == [3, 3, 3]
    kept = set()
    for decoded in outcome.decoded:
        attempts = attempts_of(decoded.result.probe[0])
        calm = [mean for found, mean in attempts if ratio is None or found <= ratio]
        best = max(calm or [mean for _, mean in attempts])
        assert mean_logprob(decoded.result.logprobs) == best
        assert decoded.doubt == f"planted {best}"
        at = temperatures[[mean for _, mean in attempts].index(best)]
        assert decoded.result.request.temperature == at
        assert decoded.tried == 1.0
        kept.add(at)
    assert kept != {1.0}, "the last attempts are the best: nothing was shown"
    assert outcome.transcript.coverage.decoded_samples == 70 * RATE


def test_attempts_without_numbers_are_not_kept(whisper, recording, monkeypatch):
    """All but the last one: it is the best, whatever its probability."""
    transcriber = without_numbers(whisper, monkeypatch, below=1.0)
    guards = Guards(temperatures=(0.0, 0.5, 1.0), logprob=-1e-9)
    (outcome,) = transcriber.transcribe([recording], options(guards))
    assert [d.result.request.temperature for d in outcome.decoded] == [1.0] * 3
    assert outcome.transcript.coverage.decoded_samples == 70 * RATE


def test_silence_at_a_later_attempt_is_silence(whisper, recording, plain, monkeypatch):
    """An earlier attempt that was rejected, however probable, does not come back."""
    victim, seen = plain.decoded[1].result.probe[0], []

    def judge(self, *, compression_ratio, mean_logprob, no_speech_prob, heard):
        if not math.isclose(no_speech_prob, victim, rel_tol=1e-6):
            return Judgement.KEEP, None
        seen.append(mean_logprob)
        return (Judgement.RETRY, "planted") if len(seen) == 1 else (Judgement.SILENCE, "planted")

    outcome = decode(whisper, recording, Guards(), judge=judge, monkeypatch=monkeypatch)
    assert len(seen) == 2
    assert [d.state for d in outcome.decoded] == ["decoded", "silent", "decoded"]
