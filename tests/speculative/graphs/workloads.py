"""Ragged requests, and engines over tiny models, for tests of graphs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from forescribe.asr.model.rules import whisper_rules
from forescribe.speculative import Engine, ModelDrafter, NgramDrafter
from forescribe.speculative.device import Device
from forescribe.speculative.drafters.model_drafter import TreeDrafter
from forescribe.speculative.models.modules import WhisperDecoder
from forescribe.speculative.requests import Beams, Mode, Probe, Request, Sampling
from tests.speculative.models.whispers import EOS, SOT, decoder_only, encoder_states, whisper
from tests.speculative.tiny import TinyModel

BATCH = 5


@dataclass(frozen=True)
class Pretend(Device):
    """Another kind's behaviour on CPU tensors."""

    @property
    def torch(self) -> torch.device:
        return torch.device("cpu")

    def synchronize(self) -> None:
        """There is nothing to wait for."""


class Changing:
    """A schedule whose gamma changes with every poll."""

    def __init__(self, *buckets: int) -> None:
        self.buckets = buckets
        self._next, self.learnt = 0, 0

    def choose(self) -> int:
        self._next += 1
        return self.buckets[self._next % len(self.buckets)]

    def learn(self, poll: Any) -> None:
        assert poll.seconds > 0 and poll.accepted <= poll.judged
        self.learnt += 1


def tiny_engine(
    device: Device | None,
    *gammas: int,
    ngram: bool = False,
    modes: Sequence[Mode] = (Mode(), Mode(sampling=True)),
) -> Engine:
    drafter = NgramDrafter() if ngram else ModelDrafter(TinyModel(blur=0.3))
    return Engine(
        TinyModel(positions=150),
        drafter,
        batch=BATCH,
        eos=(99,),  # no such token: answers are as long as they may be
        schedule=Changing(*gammas),
        device=device,
        ranks=2,
        modes=modes,
    )


def tiny_requests(count: int, seed: int = 0, sampled: bool = False) -> list[Request]:
    """Prompts of 1 to 9 tokens, answers of 1 to 60."""
    draw = random.Random(seed)
    return [
        Request(
            prompt=tuple(draw.randrange(1, 11) for _ in range(draw.randint(1, 9))),
            encoder_states=n % 8,
            max_new_tokens=draw.choice([1, 2, 5, 9, 20, 40, 60]),
            temperature=0.8 if sampled and n % 2 else 0.0,
            seed=n,
            ranks=n % 3,
            probe=Probe(0, (1, 2)) if n % 2 else None,
            tag=n,
        )
        for n in range(count)
    ]


def mixed_requests(count: int, seed: int = 0) -> list[Request]:
    """Requests that each use one feature of a round or none, of 1 to 20 tokens."""
    draw = random.Random(seed)
    features: list[dict[str, Any]] = [
        {},
        {"temperature": 0.8},
        {"temperature": 0.8, "sampling": Sampling(top_k=3)},
        {"sampling": Sampling(presence=0.5)},
        {"ranks": 2},
    ]
    return [
        Request(
            prompt=tuple(draw.randrange(1, 11) for _ in range(draw.randint(1, 9))),
            max_new_tokens=draw.choice([1, 3, 9, 20]),
            seed=n,
            tag=n,
            **draw.choice(features),
        )
        for n in range(count)
    ]


def whisper_engine(
    device: Device | None, *gammas: int, decoder: Callable[[Any], Any] = WhisperDecoder
) -> Engine:
    target = whisper()
    return Engine(
        decoder(target),
        ModelDrafter(decoder(decoder_only())),
        batch=3,
        eos=(EOS,),
        schedule=Changing(*gammas),
        processors=whisper_rules(target.generation_config, target.config),
        device=device,
    )


def whisper_requests(count: int, seed: int = 0) -> list[Request]:
    draw = random.Random(seed)
    return [
        Request(
            prompt=(SOT, *(draw.randrange(8, 40) for _ in range(draw.randint(0, 6)))),
            encoder_states=encoder_states(n),
            max_new_tokens=draw.randint(1, 30),
            tag=n,
        )
        for n in range(count)
    ]


def beam_engine(device: Device | None, decoder: Callable[[Any], Any], *gammas: int) -> Engine:
    """Five rows of three beams, and with gammas five of drafted texts and trees of so many levels, with
    Whisper's rules."""
    target = whisper()
    return Engine(
        decoder(target),
        ModelDrafter(decoder(decoder_only())) if gammas else None,
        batch=BATCH,
        eos=(EOS,),
        schedule=Changing(*(gammas or (0,))),
        processors=whisper_rules(target.generation_config, target.config),
        device=device,
        beam_target=lambda: decoder(target),
        beam_drafter=(lambda: TreeDrafter(decoder(decoder_only()))) if gammas else None,
        beam_schedule=Changing(*gammas) if gammas else None,
    )


def beam_requests(count: int, *, every: int = 1) -> list[Request]:
    """Windows of different lengths, each of `every` so many with three beams."""
    return [
        replace(request, beams=None if n % every else Beams(3), max_new_tokens=4 + n % 17)
        for n, request in enumerate(whisper_requests(count))
    ]


def texts(engine: Engine, work: Sequence[Request]) -> dict[Any, tuple[int, ...]]:
    """The texts by tag. Raises what one fails with."""
    found = {}
    for result in engine.run(work):
        if result.error is not None:
            raise result.error
        found[result.request.tag] = result.tokens
    return found
