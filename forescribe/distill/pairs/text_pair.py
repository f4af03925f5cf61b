"""A causal language model with a draft: forward passes of training, and the engine as a generator builds it.

The embedding of tokens, which is the output head too in small models, is frozen unless the caller says
otherwise. Knows models; nothing of prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forescribe.asr.errors import UsageError
from forescribe.speculative.device import Device
from forescribe.speculative.drafters.draft_tokens import DraftTokens
from forescribe.speculative.drafters.model_drafter import ModelDrafter
from forescribe.speculative.engine.engine import Engine
from forescribe.speculative.models.checkpoint import loading
from forescribe.speculative.models.engines import causal_decoder
from forescribe.speculative.models.hub import locate
from forescribe.speculative.protocols import Schedule
from forescribe.speculative.requests import Request
from forescribe.speculative.rounds.accept import BlockVerification
from forescribe.text.language_model import LANGUAGE_MODEL, LanguageModel, read_weights

from ..labels.label_batches import LabelBatch
from ..labels.label_rows import LabelRow
from ..labels.sparse_distribution import CutHead
from ..pruning.pruned_models import pruned_causal
from .companion_files import copy_companions, save_weights
from .draft_pair import StepSize


@dataclass(frozen=True, eq=False)
class TextPair:
    """A loaded language model; see `DraftPair`. `embeddings` are trained too where it says so; answers have
    at most `longest` tokens."""

    model: LanguageModel
    place: Device
    embeddings: bool = False
    longest: int = 160

    @property
    def device(self) -> Device:
        return self.place

    @property
    def target(self) -> Any:
        return self.model.model

    @property
    def target_folder(self) -> Path:
        return locate(self.model.name, LANGUAGE_MODEL, network=False)

    @property
    def text_ids(self) -> int:
        return self.model.vocab_size

    @property
    def step_size(self) -> StepSize:
        return StepSize(tokens=1280, rows=32)

    def open(self, folder: Path) -> Any:
        draft = self._loaded(folder)
        if draft.config.vocab_size != self.model.vocab_size:
            raise UsageError(
                f"{folder} has {draft.config.vocab_size} tokens, its target {self.model.vocab_size}: only a "
                "draft with the target's tokens is distilled"
            )
        return self._frozen(draft)

    def pruned(self, layers: Sequence[int]) -> Any:
        return self._frozen(pruned_causal(self.target, layers))

    def logits(self, draft: Any, batch: LabelBatch, head: CutHead | None = None) -> Tensor:
        logits: Tensor = draft(input_ids=batch.tokens, use_cache=False).logits
        predicted = logits[batch.row, batch.place]
        return predicted if head is None else predicted[:, head.ids]

    @torch.no_grad()
    def target_logits(self, batch: LabelBatch, begins: Tensor) -> Tensor:
        logits: Tensor = self.target(input_ids=batch.tokens, use_cache=False).logits
        return logits[batch.row, batch.place].float()

    def request(self, row: LabelRow, tag: int) -> Request:
        return Request(
            prompt=row.tokens[: row.begin],
            max_new_tokens=row.answered,
            temperature=0.0 if row.greedy else 1.0,
            seed=tag,
            tag=tag,
        )

    def engine(
        self,
        draft: Path | None,
        schedule: Schedule,
        batch: int,
        listed: DraftTokens | None = None,
    ) -> Engine:
        drafter = None
        if draft is not None:
            model = self.place.placed(self._loaded(draft))
            listed = listed or DraftTokens.beside(draft, model.config.vocab_size)
            drafter = ModelDrafter(
                causal_decoder(
                    model,
                    None,
                    self.model.vocab_size,
                    stored=self.place.stored,
                    listed=None if listed is None else listed.ids,
                )
            )
        return Engine(
            causal_decoder(self.target, engine=self.model.engine, stored=self.place.stored),
            drafter,
            batch=batch,
            eos=self.model.ends,
            schedule=schedule,
            device=self.place,
            sampled=BlockVerification(),
            max_tokens=min(self.model.positions, 4096),
        )

    def save(self, draft: Any, folder: Path) -> None:
        copy_companions(self.target_folder, folder)
        self.target.generation_config.save_pretrained(folder)
        tied = bool(getattr(draft.config, "tie_word_embeddings", False))
        save_weights(draft, folder, tied="lm_head.weight" if tied else None)

    def layers(self, draft: Any) -> Any:
        return draft.model.layers

    @loading()
    def _loaded(self, folder: Path) -> Any:
        from transformers import AutoConfig

        return read_weights(folder, AutoConfig.from_pretrained(folder), torch.float32)

    def _frozen(self, draft: Any) -> Any:
        draft.requires_grad_(True)
        if not self.embeddings:
            draft.get_input_embeddings().requires_grad_(False)
            draft.get_output_embeddings().requires_grad_(False)
        return draft.eval()
