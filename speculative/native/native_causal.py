"""Llama-like decoders as one native call, under the core's `Model` protocol.

The same arguments and tokens as `models.lean.lean_causal_decoder.LeanCausalDecoder`, on CPUs. A row's logits
do not depend on the batch, the number of nodes or the number of threads, to the last bit. Slots that a query
may not read are never loaded, so nothing of an earlier sequence in a row can reach the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..drafts import Prefilled, Scores, Topology
from ..errors import LoadError
from ..models.cut_head import rows_of
from ..models.families.causal_config import SLIDING
from ..models.families.causal_model import CausalModel
from ..models.lean.coverage import causal_gap
from ..models.lean.weights import CausalWeights
from ..rounds.choice import Allowed, Choice
from .library import Library, load, missing
from .native_step import GreedyDraft, choose_natively, moved, step_of
from .packing.causal_packing import angle_tables, causal_layers, causal_record
from .packing.packer import Packer
from .packing.shared_weights import Packed, listed_key, packed_once
from .slot_caches import SelfCaches
from .structures import ACTIVATIONS, Causal, CausalLayer, Stored
from .workspace import Workspace

STORAGE = {torch.float32: Stored.FLOAT32, torch.bfloat16: Stored.BFLOAT16}
"""How weights and caches are stored, by the model's dtype."""

PROMPT = 128
"""Tokens of a prompt in one call: bounds the memory for intermediate results, and changes no bit."""


def native_causal_gap(model: Any) -> str | None:
    """Why a causal LM cannot run natively here; None where it can."""
    gap = causal_gap(model)
    if gap is not None:
        return gap
    config, weight = model.config, model.base_model.embed_tokens.weight
    size = model.base_model.layers[0].self_attn.head_dim
    if weight.device.type != "cpu":
        return f"native kernels are for CPUs, and the model is on {weight.device}"
    if weight.dtype not in STORAGE:
        return f"native kernels do not store {str(weight.dtype).removeprefix('torch.')}"
    if size % 8 or config.hidden_size % 2 or config.intermediate_size % 2:
        return f"heads of {size} columns are not a multiple of 8"
    if 2 * len(model.base_model.rotary_emb.inv_freq) != size:
        return "its rotary positions are of a part of each head"
    if config.hidden_act not in ACTIVATIONS:
        return f"native kernels do not have the activation {config.hidden_act}"
    return missing()


def _packed(
    library: Library, stored: Stored, weights: CausalWeights, columns: int
) -> Packed[Causal, CausalLayer]:
    packer = Packer(library, stored)
    return Packed(packer, causal_record(packer, weights, columns), causal_layers(packer, weights))


class NativeCausalDecoder(CausalModel):
    """A Llama-like causal LM on a CPU; arguments and errors as `CausalModel`. Weights and caches are stored
    in `stored`, None: in the model's dtype (arithmetic: `Stored`)."""

    engine = "native"
    invariant = True
    cache: SelfCaches | None = None

    def __init__(
        self,
        model: Any,
        positions: int | None = None,
        vocab: int | None = None,
        *,
        listed: Sequence[int] | None = None,
        stored: torch.dtype | None = None,
    ) -> None:
        self._asked = stored
        super().__init__(model, positions, vocab, listed=listed)

    def prepare(self) -> None:
        reason = native_causal_gap(self.model)
        if reason is not None:
            raise LoadError(f"{self.config.model_type} cannot run natively: {reason}")
        self.library: Library = load()
        weights = CausalWeights.of(self.model)
        self.weights = weights = replace(weights, head=rows_of(weights.head, self.listed))
        if self._asked is not None:
            self.rounded = self._asked
        self.stored = STORAGE[self.rounded]
        columns = self.vocab_size if self.listed is None else len(self.listed)
        self._packed = packed_once(
            self.model,
            (self.library.instruction_set, self.stored, columns, listed_key(self.listed)),
            self.model.parameters,
            lambda: _packed(self.library, self.stored, weights, columns),
        )
        self._record = self._packed.copy()
        self._layers = (CausalLayer * len(self._packed.layers))(*self._packed.layers)
        self._record.layer = addressof(self._layers)
        self._workspace = Workspace()
        self._angles: tuple[Tensor, Tensor] | None = None

    def _configure(self, widths: dict[str, int]) -> None:
        super()._configure(widths)
        for layer, weights in zip(self._layers, self.weights.layers, strict=True):
            if weights.window is not None:
                layer.window = widths[SLIDING]

    def allocate(self, batch: int, slots: int) -> None:
        record, layers = self._record, len(self._layers)
        self.cache = SelfCaches(layers, batch, record.key_heads, slots, record.head, self.stored)
        # A table as long as the cache: positions behind it do not occur.
        self._angles = angle_tables(self.weights, min(slots, self._positions))
        record.cosine, record.sine = (table.data_ptr() for table in self._angles)
        record.positions = len(self._angles[0])
        record.batch, record.slots = batch, slots
        for index, layer in enumerate(self._layers):
            layer.keys, layer.values = self.cache.addresses(index)

    def release(self) -> None:
        self.cache = self._angles = None
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
        """Skips the head where no `nodes` are asked for: returns logits `[K, 0, V]`."""
        self._allocated()
        if len(rows) != len(tokens):
            raise ValueError(f"{len(rows)} rows, {len(tokens)} prompts")
        count = 0 if nodes is None else nodes.shape[1]
        chosen = torch.empty((len(tokens), count, self.vocab_size))
        taps = []
        for first in range(0, tokens.shape[1], PROMPT):
            part = tokens[:, first : first + PROMPT]
            start = torch.full((len(tokens),), first, dtype=torch.int64)
            logits = None
            if nodes is not None:
                logits = torch.empty((*part.shape, self._record.columns))
            taps.append(self._forward(part, start, first + part.shape[1], logits, rows=rows))
            if nodes is not None and logits is not None:
                here = (nodes >= first) & (nodes < first + part.shape[1])  # [K, M]
                row = torch.arange(len(tokens))[:, None].expand_as(nodes)
                chosen[here] = self.whole(logits[row[here], nodes[here] - first])
        return Prefilled(
            chosen, torch.cat([t for t in taps if t is not None], 1) if self.taps else None
        )

    def score(
        self, tokens: Tensor, start: Tensor, *, reach: int, topology: Topology | None = None
    ) -> Scores:
        self._allocated()
        logits = torch.empty((*tokens.shape, self._record.columns))
        taps = self._forward(tokens, start, reach, logits, topology=topology)
        return Scores(self.whole(logits), taps)

    def score_at(self, tokens: Tensor, start: Tensor, node: Tensor, *, reach: int) -> Tensor:
        """See `NodeModel.score_at`."""
        self._allocated()
        logits = torch.empty((len(tokens), 1, self._record.columns))
        self._forward(tokens, start, reach, logits, node=node)
        return self.whole(logits)

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
        logits = torch.empty((len(tokens), 1, self._record.columns))
        draft = GreedyDraft(
            len(tokens), active, gamma, self._record.columns, confidence, self.listed
        )
        self._forward(tokens, start, reach, logits, node=node, draft=draft)
        return draft.tokens()

    def choose(self, logits: Tensor, allowed: Allowed | None = None) -> Choice:
        """See `GreedyModel.choose`."""
        return choose_natively(self.library, logits, allowed)

    def commit(self, start: Tensor, path: Tensor) -> None:
        self._allocated().move(*moved(start, path))

    def _forward(
        self,
        tokens: Tensor,
        start: Tensor,
        reach: int,
        logits: Tensor | None,
        *,
        rows: Tensor | None = None,
        topology: Topology | None = None,
        node: Tensor | None = None,
        draft: GreedyDraft | None = None,
    ) -> Tensor | None:
        """Returns the taps."""
        taps = None
        if self.taps and draft is None:
            taps = torch.empty((*tokens.shape, len(self.taps), self._record.width))
        tokens = self.known_tokens(tokens)
        threads = torch.get_num_threads()
        step = step_of(
            tokens,
            start,
            reach,
            width=self._record.width,
            columns=self._record.columns,
            workspace=self._workspace,
            size=self.library.causal_workspace(self._record, tokens.numel(), threads),
            logits=logits,
            rows=rows,
            node=node,
            tree=None if topology is None else self._tree(topology),
            tap_layers=None if taps is None else self._tap_layers,
            taps=taps,
        )
        if draft is None:
            self.library.causal_forward(self._record, step)
        else:
            self.library.causal_draft(self._record, step, draft.record)
        return taps
