"""A constructed pair on a device, engines over it, and requests whose texts are known.

Knows how the parts are put together; nothing of what is measured.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from benchmarks.gpu import construction
from benchmarks.gpu.dimensions import Dimensions
from benchmarks.gpu.text_path import TextPath
from forescribe.asr.model.rules import whisper_rules
from forescribe.speculative import Engine, Fixed, ModelDrafter, Request
from forescribe.speculative.device import Device
from forescribe.speculative.drafters.model_drafter import TreeDrafter
from forescribe.speculative.models.lean import LeanWhisperDecoder
from forescribe.speculative.models.modules import WhisperDecoder
from forescribe.speculative.models.plain import Encoder
from forescribe.speculative.native.adapters import NativeWhisperDecoder
from forescribe.speculative.protocols import BeamModel, Drafter, Schedule
from forescribe.speculative.requests import Mode

DECODERS: dict[str, Callable[..., BeamModel]] = {
    "lean": LeanWhisperDecoder,
    "modules": WhisperDecoder,
    "native": NativeWhisperDecoder,
}


@dataclass(eq=False)
class Pair:
    """A target and drafts by their agreement."""

    dimensions: Dimensions
    device: Device
    path: TextPath
    target: Any
    drafts: dict[float, Any]
    encoder: Encoder | None = None  # forescribe's, over the target's weights

    @classmethod
    def build(
        cls, d: Dimensions, device: Device, agreements: Iterable[float], *, encoder: bool = True
    ) -> Pair:
        """Builds the models on the device."""
        path, place, dtype = TextPath.of(d), device.torch, device.dtype
        drafts = {a: construction.draft(path, a, place, dtype) for a in agreements}
        target = construction.target(path, place, dtype, encoder)
        plain = encoder_of(target) if encoder else None
        return cls(d, device, path, target, drafts, plain)

    def engine(
        self,
        batch: int,
        *,
        gamma: int = 0,
        schedule: Schedule | None = None,
        agreement: float | None = None,
        drafter: Drafter | None = None,
        decoder: str = "lean",
        captured: bool = True,
        cut: bool = False,
        levels: int = 0,
        modes: Sequence[Mode] = (Mode(), Mode(sampling=True)),
    ) -> Engine:
        """An engine with Whisper's rules; without an agreement and a drafter there are no drafts. `cut` cuts
        the draft's head to the tokens that occur. Behind beams there are trees of so many `levels`."""
        kind, listed = DECODERS[decoder], sorted(self.path.tokens) if cut else None
        draft = None if agreement is None else self.drafts[agreement]
        if draft is not None:
            drafter = ModelDrafter(kind(draft, listed=listed))
        return Engine(
            kind(self.target),
            drafter,
            batch=batch,
            eos=(self.dimensions.eos,),
            schedule=Fixed(gamma) if schedule is None else schedule,
            processors=self.rules(),
            device=self.device,
            captured=captured,
            modes=modes,
            beam_target=lambda: kind(self.target),
            beam_drafter=None if draft is None else lambda: TreeDrafter(kind(draft, listed=listed)),
            beam_schedule=Fixed(levels),
        )

    def rules(self) -> tuple[Any, ...]:
        """Whisper's suppression of tokens; its timestamp rule would ask for other texts."""
        d = self.dimensions
        settings = GenerationConfig(eos_token_id=d.eos, suppress_tokens=list(d.prompt))
        return whisper_rules(settings, self.target.config, self.device.torch)

    def requests(self, kinds: Sequence[int], states: Sequence[Tensor], tokens: int) -> list[Known]:
        """Requests for audio of these classes, that start anywhere on the path and end by themselves or
        after a quarter to all of `tokens`."""
        draw, made = random.Random(17), []
        for n, (kind, each) in enumerate(zip(kinds, states, strict=True)):
            start = draw.randrange(self.dimensions.steps)
            limit = tokens if n % 4 == 0 else draw.randint(max(1, tokens // 4), tokens)
            prompt = self.path.prompt(start, kind)
            request = Request(prompt=prompt, encoder_states=each, max_new_tokens=limit, tag=n)
            made.append(Known(request, self.path.follow(start, prompt, kind, limit)))
        return made

    def states(self, kinds: Sequence[int]) -> list[Tensor]:
        """Encoder states without an encoder."""
        d = self.dimensions
        return list(construction.states(d, list(kinds), self.device.torch, self.device.dtype))


def encoder_of(target: Any) -> Encoder:
    """forescribe's own encoder, over the weights of a model of transformers."""
    with torch.device("meta"):
        made = Encoder(target.config)
    made.load_state_dict(target.model.encoder.state_dict(), assign=True)
    return made.requires_grad_(False).eval()


@dataclass(frozen=True, eq=False)
class Known:
    """A request and the text that it must get."""

    request: Request
    text: tuple[int, ...]


def decode(engine: Engine, work: Iterable[Known]) -> dict[int, tuple[int, ...]]:
    """The texts by tag; `work` is pulled as slots become free. Raises what a request or draft failed with."""
    found = {}
    for result in engine.run(known.request for known in work):
        if error := result.error or result.draft_error:
            raise error
        found[result.request.tag] = result.tokens
    return found


def differing(found: dict[int, tuple[int, ...]], work: Sequence[Known]) -> int:
    """How many texts are not those expected."""
    return sum(found.get(k.request.tag) != k.text for k in work)


def generate(pair: Pair, work: Sequence[Known]) -> dict[int, tuple[int, ...]]:
    """The texts of transformers' `generate`, all requests in one batch."""
    from transformers.generation.utils import GenerationMixin
    from transformers.modeling_outputs import BaseModelOutput

    states = torch.stack([k.request.encoder_states for k in work])
    prompts = torch.tensor([k.request.prompt for k in work], device=pair.device.torch)
    with torch.inference_mode():
        made = GenerationMixin.generate(
            pair.target,
            encoder_outputs=BaseModelOutput(states),
            decoder_input_ids=prompts,
            attention_mask=torch.ones(states.shape[:2], dtype=torch.int64, device=prompts.device),
            max_new_tokens=max(k.request.max_new_tokens or 0 for k in work),
            do_sample=False,
            num_beams=1,
        )
    texts = {}
    for known, row in zip(work, made[:, prompts.shape[1] :].tolist(), strict=True):
        text = row[: known.request.max_new_tokens]
        end = pair.dimensions.eos
        texts[known.request.tag] = tuple(text[: text.index(end) + 1] if end in text else text)
    return texts
