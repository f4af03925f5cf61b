"""A draft's own encoder runs when its states are read: once, for the windows that are still in use."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.asr.model.states import DraftStates
from forescribe.asr.model.whisper import HEARD_BEHIND, POSITIONS_PER_S, LogMel, Whisper
from forescribe.speculative.device import choose
from forescribe.speculative.models.weights import encoder_of
from tests.asr.detectors import EnergyDetector
from tests.asr.model import folders


class Encoder:
    """Doubles features, and remembers how many windows it was given."""

    def __init__(self, fails: float | None = None) -> None:
        self.batches: list[int] = []
        self.fails = fails

    def __call__(self, features: Sequence[Tensor]) -> list[Tensor]:
        self.batches.append(len(features))
        if any(float(row[0, 0]) == self.fails for row in features):
            raise RuntimeError("the encoder")
        return [2 * row for row in features]


def features(count: int) -> Tensor:
    return torch.arange(1.0, count + 1)[:, None, None].expand(-1, 2, 3)


def test_one_pass_makes_the_states_of_all_windows_in_use() -> None:
    encoder = Encoder()
    states = DraftStates.of(encoder, features(4))
    assert encoder.batches == []
    del states[1]
    assert [float(each.read()[0, 0]) for each in states] == [2.0, 6.0, 8.0]
    assert encoder.batches == [3]


def test_a_window_that_cannot_be_encoded_fails_alone() -> None:
    states = DraftStates.of(Encoder(fails=2.0), features(3))
    assert float(states[0].read()[0, 0]) == 2.0
    with pytest.raises(RuntimeError, match="the encoder"):
        states[1].read()
    assert float(states[2].read()[0, 0]) == 6.0


def test_a_draft_reads_no_number_that_is_not_finite() -> None:
    (state,) = DraftStates.of(lambda given: [row * math.nan for row in given], features(1))
    assert state.read().eq(0).all()


@pytest.fixture(scope="module")
def whisper(tmp_path_factory) -> Whisper:
    root = tmp_path_factory.mktemp("pair")
    target = folders.write(root / "target")
    return load(Pair(target, folders.write(root / "draft", layers=1, seed=3)), choose("cpu"))


@pytest.mark.parametrize(("gamma", "windows"), [(0, 0), (2, 3)])
def test_plain_rounds_need_no_states_of_the_draft(whisper, monkeypatch, gamma, windows) -> None:
    assert not whisper.shared_encoder
    one = Transcriber(whisper, batch=2, gamma=None, detector=EnergyDetector())
    monkeypatch.setattr(one.engine.schedule, "choose", lambda: gamma)
    encoded = []

    def count(name, model):
        real, counted = getattr(Whisper, name), encoder_of(model)

        def counts(self, given, features):
            encoded.extend(counted for _ in features if encoder_of(given) is counted)
            return real(self, given, features)

        monkeypatch.setattr(Whisper, name, counts)

    count("_encoded", whisper.target)
    count("_heard", whisper.drafts[0].model)
    rng = np.random.default_rng(0)
    sources = [
        (0.1 * rng.standard_normal(16_000 * n).astype(np.float32), 16_000) for n in (2, 3, 4)
    ]
    outcomes = list(one.transcribe(sources, Options(language="de")))
    assert all(outcome.transcript is not None for outcome in outcomes)
    assert not any(outcome.transcript.warnings for outcome in outcomes)
    drafts = encoded.count(encoder_of(whisper.drafts[0].model))
    targets = encoded.count(encoder_of(whisper.target))
    assert targets >= 3 and drafts == (targets if windows else 0)


def sound(seconds: float) -> np.ndarray:
    return 0.1 * np.random.default_rng(1).standard_normal(round(16_000 * seconds)).astype(
        np.float32
    )


@pytest.mark.native
@torch.inference_mode()
def test_a_draft_hears_a_window_to_its_end_and_little_of_the_silence_behind(whisper) -> None:
    native = whisper.native_encoders[encoder_of(whisper.drafts[0].model)]
    short, whole = LogMel(whisper.extractors[0])([sound(5), sound(30)])
    of_short, of_whole = (each.draft for each in whisper.encode(torch.stack([short, whole])))
    heard = round(5 * POSITIONS_PER_S) + HEARD_BEHIND
    assert len(of_short) == len(of_whole) == native.positions
    assert (of_short[heard + 2 :] == of_short[-1]).all() and len(of_short.unique(dim=0)) > heard - 2
    assert torch.equal(of_whole, native.states(whole))
    assert whisper.hearing([short]) < 0.3 * whisper.hearing([whole])


@pytest.mark.native
def test_what_a_draft_will_cost_is_known_before_it_hears_anything(whisper) -> None:
    one = Transcriber(whisper, batch=2, gamma=None, detector=EnergyDetector())
    schedule, told = one.engine.schedule, []
    schedule.work.expect = lambda *numbers: told.append((numbers, schedule.acceptance.judged))
    (outcome,) = one.transcribe([(sound(20), 16_000)], Options(language="de"))
    assert outcome.transcript is not None
    (requests, reading_s, tokens, spent_s), judged = told[0]
    assert (
        requests == 1
        and 0 < reading_s < spent_s
        and tokens == pytest.approx(70, abs=3)
        and judged == 0
    )
    assert one.engine.schedule.decision.split(":")[0] in outcome.transcript.stats["drafting"]
