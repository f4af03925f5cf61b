"""Whisper with a draft: forward passes of training, the engine as a transcriber builds it, labels of
recordings.

A draft that shares its target's encoder is trained and stored without one (`WhisperForCausalLM`). The
encoder and the embedding of tokens, which is the output head too, are frozen. Labels are what the target
transcribes, with its distributions: recordings go through the transcriber as in `forescribe transcribe`,
with the same windows, token rules and batches, so the draft learns what it will be asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forescribe.asr.batch.interrupts import Stop
from forescribe.asr.decode.options import Decoded, Options, Outcome, Progress
from forescribe.asr.decode.rules import whisper_rules
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.errors import UsageError, visible
from forescribe.asr.model.checkpoint import read_weights
from forescribe.asr.model.encoder_states import EncoderStates
from forescribe.asr.model.presets import locate
from forescribe.asr.model.whisper import Whisper
from forescribe.speculative.device import Device
from forescribe.speculative.drafters.draft_tokens import DraftTokens
from forescribe.speculative.drafters.model_drafter import ModelDrafter
from forescribe.speculative.engine.engine import Engine
from forescribe.speculative.models.checkpoint import loading
from forescribe.speculative.models.engines import whisper_decoder
from forescribe.speculative.models.weights import decoder_only, encoder_of, same_encoder
from forescribe.speculative.protocols import Schedule
from forescribe.speculative.requests import Finish, Request
from forescribe.speculative.types import Prefix

from .files import copy_companions, save_weights
from .labels import OWN, CutHead, LabelBatch, LabelRow, LabelStore, SparseDistribution, collate
from .pair import Hook, StepSize
from .pruning import pruned_whisper

TOGETHER = 4
"""Windows whose distributions are computed at a time."""


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
            # The decoder alone, as it reads the target's encoder states.
            draft = pruned_whisper(draft, range(draft.config.decoder_layers))
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
            whisper.decoder(),
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


@dataclass(frozen=True)
class Skipped:
    """A recording or text that has no labels, and why."""

    name: str
    reason: str


def label_recordings(
    transcriber: Transcriber,
    store: LabelStore,
    recordings: Sequence[str],
    kind: str,
    options: Options,
    *,
    until: Callable[[], bool],
    stop: Stop,
    hook: Hook,
) -> list[Skipped]:
    """Label the recordings that are not yet labelled, one file for each, until the time is over or an end is
    requested. Returns those that cannot be read, or in which a window failed. Raises OutputError."""
    missing = [name for name in recordings if not store.has(store.key(kind, name))]
    done, skipped = len(recordings) - len(missing), list[Skipped]()
    pair = SpeechPair(transcriber.whisper)
    hook("labels", done, len(recordings), "")
    if not missing or until():
        return skipped
    kept = replace(options, keep_encoder_states=True)
    began = time.monotonic()

    def note(progress: Progress) -> None:
        hook(
            "labels",
            done,
            len(recordings),
            f"{progress.done_s:.0f} s of {visible(str(progress.source))}",
        )

    outcomes = transcriber.transcribe(missing, kept, note)
    for outcome in outcomes:
        if outcome.error is not None:
            skipped.append(Skipped(outcome.name, str(outcome.error)))
        else:
            rows = _rows(pair, outcome, kind)
            store.add(store.key(kind, outcome.name), rows)
        done += 1
        hook("labels", done, len(recordings), f"{time.monotonic() - began:.0f} s")
        if until() or stop.requested:
            break
    close = getattr(outcomes, "close", None)
    if close is not None:
        close()
    return skipped


def labelled_now(
    transcriber: Transcriber, recordings: Sequence[str], options: Options
) -> list[LabelRow]:
    """Rows of a few recordings, kept in memory. Raises AudioError for one that cannot be read."""
    found: list[LabelRow] = []
    kept = replace(options, keep_encoder_states=True)
    for outcome in transcriber.transcribe(recordings, kept):
        if outcome.error is not None:
            raise outcome.error
        found += _rows(SpeechPair(transcriber.whisper), outcome, OWN)
    return found


def with_wanted(rows: Sequence[LabelRow], wanted: SparseDistribution) -> list[LabelRow]:
    """The rows with their part of `wanted`, whose positions are those of the rows in order."""
    ids, logs = wanted.ids.cpu(), wanted.logs.cpu()
    found, start = [], 0
    for row in rows:
        stop = start + row.answered
        found.append(replace(row, wanted=SparseDistribution(ids[start:stop], logs[start:stop])))
        start = stop
    return found


def blank(count: int) -> SparseDistribution:
    """Distributions of `count` positions that are not computed yet."""
    return SparseDistribution(torch.zeros(count, 1, dtype=torch.int64), torch.zeros(count, 1))


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


def _frozen(draft: Any) -> Any:
    draft.requires_grad_(False)
    decoder = draft.model.decoder
    decoder.layers.requires_grad_(True)
    decoder.layer_norm.requires_grad_(True)
    return (
        draft.eval()
    )  # without dropout: a draft of few layers does not overfit its target's labels


def _rows(pair: SpeechPair, outcome: Outcome, kind: str) -> list[LabelRow]:
    decoded = [window for window in outcome.decoded if _counts(window)]
    found: list[LabelRow] = []
    for start in range(0, len(decoded), TOGETHER):
        found += _labelled(pair, decoded[start : start + TOGETHER], outcome.name, kind)
    return found


def _counts(window: Decoded) -> bool:
    return window.state == "decoded" and window.result.finish in (Finish.STOP, Finish.LENGTH)


def _labelled(pair: SpeechPair, windows: Sequence[Decoded], name: str, kind: str) -> list[LabelRow]:
    """The windows with the target's distributions, in one forward pass after their own text."""
    blank = [_row(window, name, kind) for window in windows]
    batch = collate(blank)
    states = torch.stack([_states(window)[0] for window in windows])
    batch = replace(batch, states=states).to(pair.device.torch)
    begins = torch.tensor([row.begin for row in blank], device=pair.device.torch)
    wanted = SparseDistribution.of(pair.target_logits(batch, begins))
    return with_wanted(blank, wanted)


def _row(window: Decoded, name: str, kind: str) -> LabelRow:
    prompt, answer = window.result.request.prompt, window.result.tokens
    states = _states(window)
    return LabelRow(
        name, kind, (*prompt, *answer), len(prompt), True, blank(len(answer)), lambda: states
    )


def _states(window: Decoded) -> tuple[torch.Tensor, torch.Tensor]:
    states = window.encoder_states
    assert states is not None
    return states.target, states.drafts[0] if states.drafts else states.target
