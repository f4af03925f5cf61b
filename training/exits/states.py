"""What a decoder's layers know of the next token: hidden states of all layers along the target's own texts.

Texts are greedy answers, so a draft that agrees with the target at a position is a draft that is kept there:
the tokens per round of a chain follow from the agreement alone. Knows transformers' models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from forescribe.asr.decode.options import Options as SpeechOptions
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.distill.speech import labelled_now
from forescribe.text import Options, TextGenerator

GAMMA = 4


@dataclass(frozen=True, eq=False)
class Text:
    """One text: `tokens [T]` with the prompt; those from `begin` on are the target's. `audio [S, D]` are the
    encoder's states."""

    tokens: Tensor
    begin: int
    audio: Tensor | None = None


class Layers:
    """The decoder of a text model or of a Whisper, layer by layer."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.body = model.model.decoder if hasattr(model.model, "decoder") else model.model
        self.all = self.body.layers
        self.norm = self.body.layer_norm if hasattr(self.body, "layer_norm") else self.body.norm
        self.head: Tensor = model.get_output_embeddings().weight

    @property
    def depth(self) -> int:
        return len(self.all)

    def states(self, text: Text, kept: Sequence[int] | None = None) -> Tensor:
        """The states behind the embeddings and every layer `[L + 1, T, D]`, before the final norm; with
        `kept` of these layers alone."""
        found: list[Tensor] = []
        used = [self.all[i] for i in (range(self.depth) if kept is None else kept)]
        hooks = [used[0].register_forward_pre_hook(lambda _, args: found.append(args[0]))]
        hooks += [
            layer.register_forward_hook(lambda *a: found.append(_first(a[2]))) for layer in used
        ]
        self.body.layers = torch.nn.ModuleList(used)
        try:
            options: dict[str, Any] = {"use_cache": False}
            if text.audio is not None:
                options["encoder_hidden_states"] = text.audio[None]
            self.body(input_ids=text.tokens[None], **options)
        finally:
            self.body.layers = self.all
            for hook in hooks:
                hook.remove()
        return torch.stack(found)[:, 0]

    def logits(self, states: Tensor, rows: Tensor | None = None) -> Tensor:
        """Logits of states before the final norm; of these tokens alone."""
        return linear(self.norm(states), self.head if rows is None else self.head[rows])


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def tokens_per_round(agreeing: Sequence[Sequence[bool]], gamma: int = GAMMA) -> float:
    """Of drafts that agree with the target at these positions of each text."""
    tokens = rounds = 0
    for text in agreeing:
        place = 0
        while place < len(text):
            kept = 0
            while kept < gamma and place + kept < len(text) - 1 and text[place + kept]:
                kept += 1
            place, rounds, tokens = place + kept + 1, rounds + 1, tokens + kept + 1
    return tokens / rounds


def answered(folder: Path, prompts: Sequence[str], longest: int = 160) -> list[Text]:
    """Greedy answers of a text model to questions."""
    generator = TextGenerator.load(folder, device="cpu", dtype="float32", context=512)
    ids = [generator.encode([{"role": "user", "content": prompt}]) for prompt in prompts]
    done = generator.generate(ids, Options(max_tokens=longest))
    return [
        Text(torch.tensor([*prompt, *each.ids]), len(prompt))
        for prompt, each in zip(ids, done, strict=True)
    ]


def transcribed(transcriber: Transcriber, recordings: Sequence[str]) -> list[Text]:
    """What a Whisper writes in the windows of recordings."""
    texts = []
    for row in labelled_now(transcriber, recordings, SpeechOptions()):
        assert row.states is not None
        audio = row.states()[0].float().clone()  # out of inference mode
        texts.append(Text(torch.tensor(row.tokens), row.begin, audio))
    return texts
