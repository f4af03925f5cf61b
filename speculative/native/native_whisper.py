"""Whisper's decoder as one native call, under the core's `Model` protocol.

The same arguments and tokens as `models.lean.whisper_decoder.LeanWhisperDecoder`, on CPUs. A row's logits do
not depend on the batch, the number of nodes or the number of threads, to the last bit: a round with drafts
computes exactly what plain decoding computes. Slots that a query may not read are never loaded, so nothing
of an earlier sequence in a row can reach the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import addressof
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from ..drafts import Prefilled, Scores, Topology
from ..errors import LoadError
from ..models.cut_head import rows_of
from ..models.lean.projections import linear_of
from ..models.lean.weights import WhisperWeights
from ..models.slot_model import SlotModel
from ..rounds.choice import Allowed, Choice
from .library import Library, load, missing
from .native_step import GreedyDraft, choose_natively, moved, step_of
from .packing.packer import Packer
from .packing.shared_weights import Packed, listed_key, packed_once
from .packing.whisper_packing import whisper_layers, whisper_record
from .slot_caches import SelfCaches, cross_caches
from .structures import ACTIVATIONS, Stored, Whisper, WhisperLayer
from .tensor_checks import checked
from .workspace import Workspace

STORAGE = {
    "float32": (Stored.FLOAT32, Stored.FLOAT32, Stored.FLOAT32),
    "bfloat16-cross": (Stored.FLOAT32, Stored.FLOAT32, Stored.BFLOAT16),
    "bfloat16": (Stored.BFLOAT16, Stored.BFLOAT16, Stored.BFLOAT16),
}
"""How weights, self-attention caches and cross-attention caches are stored."""


def unsupported(model: Any) -> str | None:
    """Why a Whisper model cannot run natively here; None where it can."""
    config = model.config
    heads = config.decoder_attention_heads
    device = model.model.decoder.embed_tokens.weight.device
    if device.type != "cpu":
        return f"native kernels are for CPUs, and the model is on {device}"
    if config.d_model % heads or config.d_model // heads % 8 or config.decoder_ffn_dim % 8:
        return f"heads of {config.d_model}/{heads} columns are not a multiple of 8"
    if config.activation_function not in ACTIVATIONS:
        return f"native kernels do not have the activation {config.activation_function}"
    return missing()


def _packed(
    library: Library, stored: Stored, weights: WhisperWeights, listed: Tensor | None
) -> Packed[Whisper, WhisperLayer]:
    if listed is not None:
        weights = replace(weights, head=rows_of(weights.head, listed))
    packer = Packer(library, stored)
    return Packed(packer, whisper_record(packer, weights), whisper_layers(packer, weights))


class NativeWhisperDecoder(SlotModel):
    """The decoder of a Whisper model. Arguments as `LeanWhisperDecoder`; `storage` is one of `STORAGE`, None
    takes bfloat16 for a model in bfloat16. Raises LoadError where `unsupported` has a reason."""

    engine = "native"
    invariant = True

    def __init__(
        self,
        model: Any,
        pick: Callable[[Any], Tensor] = lambda encoder_states: encoder_states,
        *,
        sources: int | None = None,
        storage: str | None = None,
        listed: Sequence[int] | None = None,
    ) -> None:
        reason = unsupported(model)
        if reason is not None:
            raise LoadError(reason)
        config, embedding = model.config, model.model.decoder.embed_tokens.weight
        self.storage = storage or ("bfloat16" if embedding.dtype == torch.bfloat16 else "float32")
        stored, own, cross = STORAGE[self.storage]
        self.pick = pick
        self.sources = config.max_source_positions if sources is None else sources
        super().__init__(
            device=embedding.device,
            dtype=embedding.dtype,
            vocab_size=config.vocab_size,
            positions=config.max_target_positions,
            layers=config.decoder_layers,
            listed=listed,
        )
        self._embedding = model.model.decoder.embed_tokens.weight.detach()
        self._head = rows_of(linear_of(model.proj_out), self.listed)
        self.library: Library = load()
        self._packed = packed_once(
            model,
            (self.library.instruction_set, stored, listed_key(self.listed)),
            lambda: (*model.model.decoder.parameters(), *model.proj_out.parameters()),
            lambda: _packed(self.library, stored, WhisperWeights.of(model), self.listed),
        )
        self._record = self._packed.copy()
        self._record.sources = self.sources
        self._record.cache_storage, self._record.cross_storage = own, cross
        self._layers = (WhisperLayer * len(self._packed.layers))(*self._packed.layers)
        self._record.layer = addressof(self._layers)
        self._own, self._cross = own, cross
        self._workspace = Workspace()
        self.cache: SelfCaches | None = None
        self._cross_cache: Tensor | None = None

    def embed(self, tokens: Tensor) -> Tensor:
        return embedding(tokens, self._embedding)

    def head(self, states: Tensor) -> Tensor:
        return self.whole(self._head(states).float())

    def allocate(self, batch: int, slots: int) -> None:
        record, layers = self._record, len(self._layers)
        head = record.width // record.heads
        self.cache = SelfCaches(layers, batch, record.heads, slots, head, self._own)
        size = self.library.cross_bytes(self.sources, head, self._cross)
        self._cross_cache = cross_caches(layers, batch * record.heads, size)
        record.batch, record.slots = batch, slots
        for index, layer in enumerate(self._layers):
            layer.keys, layer.values = self.cache.addresses(index)
            layer.cross_keys, layer.cross_values = (t.data_ptr() for t in self._cross_cache[index])

    def release(self) -> None:
        """Frees the caches."""
        self.cache = self._cross_cache = None
        self._workspace.release()
        self._record.batch = self._record.slots = 0

    def _allocated(self) -> SelfCaches:
        if self.cache is None:
            raise RuntimeError("allocate() comes before the first forward")
        return self.cache

    @torch.inference_mode()
    def prefill(
        self,
        rows: Tensor,
        tokens: Tensor,
        encoder_states: Sequence[Any],
        nodes: Tensor | None = None,
    ) -> Prefilled:
        self._allocated()
        threads = torch.get_num_threads()
        states = [self._states(self.pick(s)) for s in encoder_states]
        if len(rows) != len(tokens) or len(states) != len(rows):
            raise ValueError(f"{len(rows)} rows, {len(tokens)} prompts, {len(states)} states")
        rows = checked("rows", rows, torch.int64, len(tokens))
        size = self.library.whisper_workspace(self._record, 1, threads)
        self.library.whisper_cross(
            self._record,
            [state.data_ptr() for state in states],
            rows.data_ptr(),
            self._workspace.at_least(size),
            size,
            threads,
        )
        start = torch.zeros(len(tokens), dtype=torch.int64)
        scores = self._forward(tokens, start, tokens.shape[1], rows=rows)
        return Prefilled(self.chosen(scores.logits, nodes), scores.taps)

    def score(
        self, tokens: Tensor, start: Tensor, *, reach: int, topology: Topology | None = None
    ) -> Scores:
        self._allocated()
        return self._forward(tokens, start, reach, topology=topology)

    def score_at(self, tokens: Tensor, start: Tensor, node: Tensor, *, reach: int) -> Tensor:
        """Logits `[B, 1, V]` of node `node [B]` of each row alone."""
        self._allocated()
        return self._forward(tokens, start, reach, node=node).logits

    def draft_greedy(
        self,
        tokens: Tensor,
        start: Tensor,
        node: Tensor,
        active: Tensor,
        *,
        reach: int,
        gamma: int,
        confidence: float,
    ) -> Tensor:
        """See `GreedyModel.draft_greedy`."""
        self._allocated()
        draft = GreedyDraft(
            len(tokens), active, gamma, self._record.outputs, confidence, self.listed
        )
        self._forward(tokens, start, reach, node=node, draft=draft)
        return draft.tokens()

    def choose(self, logits: Tensor, allowed: Allowed | None = None) -> Choice:
        """See `GreedyModel.choose`."""
        return choose_natively(self.library, logits, allowed)

    def commit(self, start: Tensor, path: Tensor) -> None:
        self._allocated().move(*moved(start, path))

    def _states(self, states: Tensor) -> Tensor:
        states = states.to(self.device, torch.float32).contiguous()
        if states.shape != (self.sources, self._record.width):
            raise ValueError(f"encoder states of shape {tuple(states.shape)}")
        return states

    def _forward(
        self,
        tokens: Tensor,
        start: Tensor,
        reach: int,
        *,
        rows: Tensor | None = None,
        topology: Topology | None = None,
        node: Tensor | None = None,
        draft: GreedyDraft | None = None,
    ) -> Scores:
        batch, nodes = tokens.shape
        logits = torch.empty((batch, nodes if node is None else 1, self._record.outputs))
        hidden = torch.empty((batch, nodes, self._record.width))
        taps = None
        if self.taps and draft is None:
            taps = torch.empty((batch, nodes, len(self.taps), self._record.width))
        threads = torch.get_num_threads()
        step = step_of(
            tokens,
            start,
            reach,
            width=self._record.width,
            columns=self._record.outputs,
            workspace=self._workspace,
            size=self.library.whisper_workspace(self._record, batch * nodes, threads),
            logits=logits,
            hidden=hidden,
            rows=rows,
            node=node,
            tree=None if topology is None else self._tree(topology),
            tap_layers=None if taps is None else self._tap_layers,
            taps=taps,
        )
        if draft is None:
            self.library.whisper_forward(self._record, step)
            logits = self.whole(logits)
        else:
            self.library.whisper_draft(self._record, step, draft.record)
        return Scores(logits, taps)
