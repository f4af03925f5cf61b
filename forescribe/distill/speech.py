"""Whisper with a draft in distillation: forward passes, the engine as a transcriber builds it, labels of
recordings.

A draft that shares its target's encoder is trained and stored without one (`WhisperForCausalLM`). The
encoder and the embedding of tokens, which is the output head too, are frozen. Labels are what the target
transcribes, with its distributions: recordings go through the transcriber as in `forescribe transcribe`,
with the same windows, token rules and batches, so the draft learns what it will be asked.

A draft of the target's own layers has those that lie evenly from the first to the last, as Distil-Whisper's
(Gandhi et al. 2023, arXiv 2311.00430).
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forescribe.asr.batch.interrupts import Stop
from forescribe.asr.decode.options import Options
from forescribe.asr.decode.results import Decoded, Outcome, Progress
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.errors import UsageError, visible
from forescribe.asr.model.presets import locate
from forescribe.asr.model.rules import whisper_rules
from forescribe.asr.model.speech_model import SpeechModel
from forescribe.asr.model.states import EncoderStates
from forescribe.asr.model.whisper import Whisper, attending
from forescribe.speculative.device import Device
from forescribe.speculative.drafters.model_drafter import DraftTokens, ModelDrafter
from forescribe.speculative.engine.engine import Engine
from forescribe.speculative.model_engines import whisper_decoder
from forescribe.speculative.models.checkpoint import loading
from forescribe.speculative.models.quantized import BORROWED, float_model
from forescribe.speculative.models.weights import decoder_only, encoder_of, same_encoder
from forescribe.speculative.protocols import Schedule
from forescribe.speculative.requests import Finish, Request
from forescribe.speculative.types import Prefix

from .labels import LabelBatch, LabelRow, LabelStore, SparseDistribution

TOGETHER = 4
"""Windows whose distributions are computed at a time."""

COMPANIONS = (
    "tokenizer.json tokenizer_config.json vocab.json merges.txt normalizer.json added_tokens.json "
    "special_tokens_map.json preprocessor_config.json processor_config.json"
).split()
"""Files of the target that a draft has too, so that both read the same tokens."""

Hook = Callable[[str, float, float | None, str], None]
"""Called with the stage, what is done, the whole (None: unknown) and a note."""


@dataclass(frozen=True, eq=False)
class Pair:
    """A loaded Whisper, as the frozen target of drafts that are given to each method."""

    whisper: Whisper

    @classmethod
    def of(cls, model: SpeechModel) -> Pair:
        """Raises UsageError for a model that is no Whisper."""
        return cls(attending(model, "distill"))

    @property
    def device(self) -> Device:
        return self.whisper.device

    @property
    def target(self) -> Any:
        return self.whisper.target

    def open(self, folder: Path) -> Any:
        """A draft to train, in float32. Raises UsageError, ModelError or LoadError."""
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

    def pruned(self, layers: int) -> tuple[Any, list[int]]:
        """A draft to train that has this many of the target's layers, and which."""
        kept = kept_layers(self.target.config.decoder_layers, layers)
        return _frozen(pruned_whisper(self.target, kept)), kept

    def logits(self, draft: Any, batch: LabelBatch) -> Tensor:
        """The draft's logits [N, V] at the predicted positions of a batch, with gradients."""
        hidden = draft.model.decoder(
            input_ids=batch.tokens,
            encoder_hidden_states=batch.states.to(draft.proj_out.weight.dtype),
            use_cache=False,
        ).last_hidden_state
        logits: Tensor = draft.proj_out(hidden[batch.row, batch.place])
        return logits

    @torch.no_grad()
    def target_logits(self, batch: LabelBatch, begins: Tensor) -> Tensor:
        """The target's logits [N, V] there, processed as it is served; answers begin at `begins [B]`."""
        logits = self.logits(self.target, batch).float()
        prefix = Prefix(batch.tokens[batch.row], batch.place[:, None], begins[batch.row])
        for rule in self._rules():
            logits = rule(logits[:, None], prefix)[:, 0]
        return logits

    def request(self, row: LabelRow, tag: int) -> Request:
        """What the engine is asked, to write the row's answer again."""
        target, draft = (s.to(self.device.torch, self.device.dtype) for s in row.states())
        states = EncoderStates(target, (draft,))
        return Request(prompt=row.tokens[: row.begin], encoder_states=states, tag=tag)

    def engine(
        self, draft: Path | None, schedule: Schedule, batch: int, listed: DraftTokens | None = None
    ) -> Engine:
        """An engine as it is served, with the draft of a folder; its head cut to `listed`, by default to the
        folder's own list, where it has one."""
        drafter = None
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
            self.whisper.decoder(),
            drafter,
            batch=batch,
            eos=self.whisper.tokens.ends,
            schedule=schedule,
            processors=self._rules(),
            device=self.device,
        )

    def save(self, draft: Any, folder: Path) -> None:
        """Write a draft's tokenizer, weights in float16 (half the size, and a draft only guesses) and, last,
        its configuration, which says float32: a plain load computes in that. Raises OSError."""
        from safetensors.torch import save

        source = locate(self.whisper.pair.target, network=False)
        for name in COMPANIONS:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
        self.target.generation_config.save_pretrained(folder)
        weights = {
            name: value.detach().half().contiguous().cpu()
            for name, value in draft.state_dict().items()
            if name != "proj_out.weight"  # the embedding
        }
        (folder / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
        draft.config.dtype = torch.float32
        draft.config.architectures = [type(draft).__name__]
        draft.config.save_pretrained(folder)

    def _rules(self) -> Any:
        return whisper_rules(self.target.generation_config, self.target.config, self.device.torch)

    @loading()
    def _loaded(self, folder: Path) -> Any:
        from transformers import AutoConfig, WhisperForCausalLM, WhisperForConditionalGeneration

        config = AutoConfig.from_pretrained(folder)
        kind: Any = WhisperForCausalLM if decoder_only(config) else WhisperForConditionalGeneration
        lent = {name: self.target.get_parameter(name).detach() for name in BORROWED}
        return float_model(kind, folder, config, torch.float32, lent)


def kept_layers(depth: int, count: int) -> list[int]:
    """The layers of a draft: `count` of `depth`, evenly from the first to the last."""
    return [round(n * (depth - 1) / max(1, count - 1)) for n in range(count)]


@loading()
def pruned_whisper(model: Any, layers: Iterable[int]) -> Any:
    """A `WhisperForCausalLM` with these decoder layers of a Whisper, in float32, everything else copied."""
    from transformers import WhisperForCausalLM

    decoder = model.model.decoder
    kept = nn.ModuleList([decoder.layers[number] for number in layers])
    config = copy.deepcopy(model.config)
    config.decoder_layers = len(kept)
    made = WhisperForCausalLM(config).float()
    rest = {name: v for name, v in decoder.state_dict().items() if not name.startswith("layers.")}
    made.model.decoder.load_state_dict(rest, strict=False)
    made.model.decoder.layers.load_state_dict(kept.state_dict())
    made.tie_weights()
    return made


def _frozen(draft: Any) -> Any:
    """All but its layers, without dropout: a draft of few layers does not overfit its target's labels."""
    draft.requires_grad_(False)
    draft.model.decoder.layers.requires_grad_(True)
    draft.model.decoder.layer_norm.requires_grad_(True)
    return draft.eval()


@dataclass(frozen=True)
class Skipped:
    """A recording that has no labels, and why."""

    name: str
    reason: str


def label_recordings(
    transcriber: Transcriber,
    store: LabelStore,
    recordings: Sequence[str],
    options: Options,
    *,
    until: Callable[[], bool],
    stop: Stop,
    hook: Hook,
) -> list[Skipped]:
    """Label the recordings that are not yet labelled, one file for each, until the time is over or an end is
    requested. Returns those that cannot be read, or in which a window failed. Raises OutputError."""
    missing = [name for name in recordings if not store.has(name)]
    whole = len(recordings)
    done, skipped = whole - len(missing), list[Skipped]()
    hook("labels", done, whole, "")
    if not missing or until():
        return skipped

    def note(progress: Progress) -> None:
        text = f"{progress.done_s:.0f} s of {visible(str(progress.source))}"
        hook("labels", done, whole, text)

    kept = replace(options, keep_encoder_states=True)
    outcomes = transcriber.transcribe(missing, kept, note)
    for outcome in outcomes:
        if outcome.error is not None:
            skipped.append(Skipped(outcome.name, str(outcome.error)))
        else:
            store.add(outcome.name, labelled(Pair.of(transcriber.whisper), outcome))
        done += 1
        hook("labels", done, whole, "")
        if until() or stop.requested:
            break
    close = getattr(outcomes, "close", None)
    if close is not None:
        close()
    return skipped


def labelled(pair: Pair, outcome: Outcome) -> list[LabelRow]:
    """The windows of a recording that was decoded with `keep_encoder_states`, with the target's
    distributions after its own text."""
    decoded = [
        window
        for window in outcome.decoded
        if window.state == "decoded" and window.result.finish in (Finish.STOP, Finish.LENGTH)
    ]
    found: list[LabelRow] = []
    for start in range(0, len(decoded), TOGETHER):
        rows = [_row(window, outcome.name) for window in decoded[start : start + TOGETHER]]
        batch = replace(LabelBatch.of(rows), states=torch.stack([row.states()[0] for row in rows]))
        begins = torch.tensor([row.begin for row in rows], device=pair.device.torch)
        wanted = SparseDistribution.of(pair.target_logits(batch.to(pair.device.torch), begins))
        parts = wanted.to(torch.device("cpu")).split([row.answered for row in rows])
        found += [replace(row, wanted=part) for row, part in zip(rows, parts, strict=True)]
    return found


def _row(window: Decoded, name: str) -> LabelRow:
    """A row whose distributions are not computed yet."""
    prompt, answer = window.result.request.prompt, window.result.tokens
    states = window.encoder_states
    assert states is not None
    both = (states.target, states.drafts[0] if states.drafts else states.target)
    blank = torch.zeros(len(answer), 1, dtype=torch.int64)
    wanted = SparseDistribution(blank, blank.float())
    return LabelRow(name, (*prompt, *answer), len(prompt), wanted, lambda: both)
