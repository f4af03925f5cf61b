"""Loads of two threads: one after the other, whatever they load."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, WhisperForConditionalGeneration

from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.asr.segment import vad
from forescribe.diarize.engines import registry
from forescribe.speculative.device import Device, choose
from forescribe.speculative.models.checkpoint import loading
from tests.asr.model import folders

OVERLAP_S = 0.3
"""How long a load waits for the other one to come beside it."""

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return folders.write(tmp_path_factory.mktemp("weights") / "target")


@pytest.fixture
def restored() -> Iterator[None]:
    """A race would leave its mark on the tests that follow."""
    tie, dtype = PreTrainedModel.tie_weights, torch.get_default_dtype()
    yield
    PreTrainedModel.tie_weights = tie
    torch.set_default_dtype(dtype)


def test_two_loads_do_not_see_each_others_process_wide_state(folder, monkeypatch, restored) -> None:
    """Each load waits, in the middle of building its model, for the other to be there too; then the first
    to come ends first. Unless they take turns, that leaves `tie_weights` a no-op for ever."""
    both, first_left = threading.Barrier(2), threading.Event()
    build = WhisperForConditionalGeneration.__init__
    dtypes: list[torch.dtype] = []

    def building(self: Any, *args: Any, **named: Any) -> None:
        try:
            number = both.wait(OVERLAP_S)
        except threading.BrokenBarrierError:
            number = 0  # no other thread came: it waits for the lock
        if number == 1:
            first_left.wait(OVERLAP_S)
        dtypes.append(torch.get_default_dtype())
        build(self, *args, **named)

    monkeypatch.setattr(WhisperForConditionalGeneration, "__init__", building)

    def one(dtype: str) -> torch.dtype:
        try:
            device = Device("cpu", getattr(torch, dtype))
            return load(Pair(folder), device, modules=True).target.dtype
        finally:
            first_left.set()

    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(one, ("float32", "bfloat16"), timeout=PATIENCE_S))
    assert made == [torch.float32, torch.bfloat16]
    assert Counter(map(str, dtypes)) == {"torch.bfloat16": 1, "torch.float32": 1}
    monkeypatch.undo()
    after = load(Pair(folder), choose("cpu"), modules=True)
    assert after.target.dtype == torch.float32  # and so does the next


def _silero() -> object:
    return vad.SileroDetector()


def _embedded() -> object:
    return registry.load("embedded", device="cpu")


def _text() -> object:
    from forescribe.text.generator import TextGenerator

    return TextGenerator.load("./none", device="cpu")


def _speech() -> object:
    from forescribe.asr.decode.transcriber import Transcriber

    return Transcriber.load("./none", device="cpu")


@pytest.mark.parametrize("make", [_silero, _embedded, _text, _speech])
def test_every_load_waits_for_its_turn(make: Callable[[], object]) -> None:
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        try:
            make()
        except Exception:
            """That it was let in is all that counts."""
        ended.set()

    thread = threading.Thread(target=work)
    with loading():
        thread.start()
        begun.wait(PATIENCE_S)
        assert not ended.wait(OVERLAP_S / 3)
    assert ended.wait(PATIENCE_S)
    thread.join()
