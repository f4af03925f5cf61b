"""A draft's own encoder runs when its states are read: once, for the windows that are still in use."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.asr.model.whisper import DraftStates, Whisper
from forescribe.asr.segment.vad import EnergyDetector
from forescribe.speculative.device import choose
from forescribe.speculative.models.weights import encoder_of
from tests.asr.model import folders


class Encoder:
    """Doubles features, and remembers how many windows it was given."""

    def __init__(self, fails: float | None = None) -> None:
        self.batches: list[int] = []
        self.fails = fails

    def __call__(self, features: Tensor) -> list[Tensor]:
        self.batches.append(len(features))
        if any(float(row[0, 0]) == self.fails for row in features):
            raise RuntimeError("the encoder")
        return list(2 * features)


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
    (state,) = DraftStates.of(lambda given: list(given * math.nan), features(1))
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
    monkeypatch.setattr(one.engine.schedule, "choose", lambda *, sampling: gamma)
    encoded, real = [], type(whisper)._encoded

    def counted(self, model, features):
        encoded.extend(encoder_of(model) for _ in features)
        return real(self, model, features)

    monkeypatch.setattr(type(whisper), "_encoded", counted)
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
