"""Whisper with a draft: forward passes of training, and the engine as a transcriber builds it.

A draft that shares its target's encoder is trained and stored without one (`WhisperForCausalLM`). The
encoder and the embedding of tokens, which is the output head too, are frozen. Knows models; nothing of
recordings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forescribe.asr.decode.rules import whisper_rules
from forescribe.asr.errors import UsageError
from forescribe.asr.model.checkpoint import read_weights
from forescribe.asr.model.loading import EncoderStates, Whisper
from forescribe.asr.model.presets import locate
from forescribe.speculative.device import Device
from forescribe.speculative.drafters.draft_tokens import DraftTokens
from forescribe.speculative.drafters.model_drafter import ModelDrafter
from forescribe.speculative.engine.engine import Engine
from forescribe.speculative.models.checkpoint import loading
from forescribe.speculative.models.engines import whisper_decoder
from forescribe.speculative.models.modules import decoder_only, encoder_of, same_encoder
from forescribe.speculative.protocols import Schedule
from forescribe.speculative.requests import Request
from forescribe.speculative.types import Prefix

from ..labels.label_batches import LabelBatch
from ..labels.label_rows import LabelRow
from ..labels.sparse_distribution import CutHead
from ..pruning.pruned_models import pruned_whisper
from .companion_files import copy_companions, save_weights
from .draft_pair import StepSize


@dataclass(frozen=True, eq=False)
class SpeechPair:
    """A loaded Whisper; see `DraftPair`."""

    whisper: Whisper

    @property
    def device(self) -> Device:
        return self.whisper.device

    @property
    def target(self) -> Any:
        return self.whisper.target

    @property
    def target_folder(self) -> Path:
        return locate(self.whisper.pair.target, network=False)

    @property
    def text_ids(self) -> int:
        return self.whisper.tokens.end

    @property
    def step_size(self) -> StepSize:
        return StepSize(tokens=512, rows=4)

    def open(self, folder: Path) -> Any:
        draft = self._loaded(folder)
        if draft.config.vocab_size != self.target.config.vocab_size:
            raise UsageError(
                f"{folder} has {draft.config.vocab_size} tokens, its target "
                f"{self.target.config.vocab_size}: only a draft with the target's tokens is distilled"
            )
        if encoder_of(draft) is not None and same_encoder(self.target, draft):
            draft = _without_encoder(draft)
        return _frozen(draft)

    def pruned(self, layers: Sequence[int]) -> Any:
        return _frozen(pruned_whisper(self.target, layers))

    def logits(self, draft: Any, batch: LabelBatch, head: CutHead | None = None) -> Tensor:
        return _forward(draft, batch, head)

    @torch.no_grad()
    def target_logits(self, batch: LabelBatch, begins: Tensor) -> Tensor:
        logits = _forward(self.target, batch).float()
        settings, config = self.target.generation_config, self.target.config
        prefix = Prefix(batch.tokens[batch.row], batch.place[:, None], begins[batch.row])
        for rule in whisper_rules(settings, config, self.device.torch):
            logits = rule(logits[:, None], prefix)[:, 0]
        return logits

    def request(self, row: LabelRow, tag: int) -> Request:
        assert row.states is not None
        target, draft = (s.to(self.device.torch, self.device.dtype) for s in row.states())
        states = EncoderStates(target, (draft,))
        return Request(prompt=row.tokens[: row.begin], encoder_states=states, tag=tag)

    def engine(
        self,
        draft: Path | None,
        schedule: Schedule,
        batch: int,
        listed: DraftTokens | None = None,
    ) -> Engine:
        whisper, drafter = self.whisper, None
        if draft is not None:
            model = self.device.placed(self._loaded(draft))
            listed = listed or DraftTokens.beside(draft, model.config.vocab_size)
            drafter = ModelDrafter(
                whisper_decoder(
                    model,
                    lambda states: states.draft,
                    stored=self.device.stored,
                    listed=None if listed is None else listed.ids,
                )
            )
        return Engine(
            whisper_decoder(
                self.target,
                lambda states: states.target,
                engine=whisper.engine,
                stored=self.device.stored,
            ),
            drafter,
            batch=batch,
            eos=whisper.tokens.ends,
            schedule=schedule,
            processors=whisper_rules(
                self.target.generation_config, self.target.config, self.device.torch
            ),
            device=self.device,
        )

    def save(self, draft: Any, folder: Path) -> None:
        copy_companions(self.target_folder, folder)
        self.target.generation_config.save_pretrained(folder)
        save_weights(draft, folder, tied="proj_out.weight")

    def layers(self, draft: Any) -> Any:
        return draft.model.decoder.layers

    @loading()
    def _loaded(self, folder: Path) -> Any:
        from transformers import AutoConfig, WhisperForCausalLM, WhisperForConditionalGeneration

        config = AutoConfig.from_pretrained(folder)
        kind: Any = WhisperForCausalLM if decoder_only(config) else WhisperForConditionalGeneration
        return read_weights(kind, folder, config, torch.float32, self.target)


def _forward(model: Any, batch: LabelBatch, head: CutHead | None = None) -> Tensor:
    assert batch.states is not None
    dtype = model.proj_out.weight.dtype
    hidden = model.model.decoder(
        input_ids=batch.tokens,
        encoder_hidden_states=batch.states.to(dtype),
        use_cache=False,
    ).last_hidden_state
    predicted = hidden[batch.row, batch.place]
    if head is not None:  # the whole head is most of the work of a draft of few layers
        return torch.nn.functional.linear(predicted, model.proj_out.weight[head.ids])
    logits: Tensor = model.proj_out(predicted)
    return logits


def _without_encoder(draft: Any) -> Any:
    """The decoder alone, as it reads the target's encoder states."""
    return pruned_whisper(draft, range(draft.config.decoder_layers))


def _frozen(draft: Any) -> Any:
    draft.requires_grad_(False)
    decoder = draft.model.decoder
    decoder.layers.requires_grad_(True)
    decoder.layer_norm.requires_grad_(True)
    return (
        draft.eval()
    )  # without dropout: a draft of few layers does not overfit its target's labels
