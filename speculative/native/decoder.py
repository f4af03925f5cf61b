"""Whisper's decoder as one native call, under the core's `Model` protocol.

The same arguments and tokens as `models.lean.whisper_decoder.LeanWhisperDecoder`, on CPUs. A row's logits do
not depend on the batch, the number of nodes or the number of threads, to the last bit: a round with drafts
computes exactly what plain decoding computes. Slots that a query may not read are never loaded, so nothing
of an earlier sequence in a row can reach the next one.

The arguments of native forwards, choices and drafts, from tensors.

Checks what an address cannot say, once for a call. Knows addresses; nothing of models.

Llama-like decoders as one native call, under the core's `Model` protocol.

The same arguments and tokens as `models.lean.lean_causal_decoder.LeanCausalDecoder`, on CPUs. A row's logits
do not depend on the batch, the number of nodes or the number of threads, to the last bit. Slots that a query
may not read are never loaded, so nothing of an earlier sequence in a row can reach the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import addressof
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from ..errors import LoadError
from ..models.caches import SelfCaches, cross_caches
from ..models.causal import SLIDING, CausalModel
from ..models.coverage import causal_gap
from ..models.slot_model import SlotModel, path_slots
from ..models.weights import CausalWeights, WhisperWeights, linear_of, rows_of
from ..rounds.choice import Allowed, Choice
from ..types import Prefilled, Scores, Topology
from . import library as c
from .library import (
    ACTIVATIONS,
    Causal,
    CausalLayer,
    Library,
    Step,
    Stored,
    Whisper,
    WhisperLayer,
    Workspace,
    checked,
    load,
    missing,
)
from .packing import (
    Packed,
    Packer,
    angle_tables,
    causal_layers,
    causal_record,
    listed_key,
    packed_once,
    whisper_layers,
    whisper_record,
)


def step_of(
    tokens: Tensor,
    start: Tensor,
    reach: int,
    *,
    width: int,
    columns: int,
    workspace: Workspace,
    size: int,
    logits: Tensor | None = None,
    hidden: Tensor | None = None,
    rows: Tensor | None = None,
    node: Tensor | None = None,
    tree: tuple[Tensor, Tensor] | None = None,
    tap_layers: Tensor | None = None,
    taps: Tensor | None = None,
) -> Step:
    """The step over `tokens [B, N]` from slot `start [B]` on, with `size` bytes of the workspace and torch's
    number of threads, for a model of `width` with logits of `columns` tokens. `rows [B]` are those of the
    caches and `node [B]` the only nodes with logits. `tree` is depths, int64, and ancestry, bool;
    `taps [B, N, H, D]` receive the states that enter `tap_layers [H]`. Integers are int64, numbers float32.

    The record keeps the tensors that it leads to. Raises ValueError for a tensor of another dtype, device or
    shape."""
    batch, nodes = tokens.shape
    step = Step(
        batch=batch,
        nodes=nodes,
        reach=reach,
        workspace=workspace.at_least(size),
        workspace_bytes=size,
        threads=torch.get_num_threads(),
    )
    step.kept = kept = []

    def address(name: str, tensor: Tensor, dtype: torch.dtype, *shape: int) -> int:
        kept.append(checked(name, tensor, dtype, *shape))
        return kept[-1].data_ptr()

    step.tokens = address("tokens", tokens, torch.int64, batch, nodes)
    step.start = address("start", start, torch.int64, batch)
    if rows is not None:
        step.rows = address("rows", rows, torch.int64, batch)
    if node is not None:
        step.node = address("node", node, torch.int64, batch)
    if tree is not None:
        step.depths = address("depths", tree[0], torch.int64, nodes)
        step.ancestry = address("ancestry", tree[1], torch.bool, nodes, nodes)
    if logits is not None:
        read = nodes if node is None else 1
        step.logits = address("logits", logits, torch.float32, batch, read, columns)
    if hidden is not None:
        step.hidden = address("hidden", hidden, torch.float32, batch, nodes, width)
    if tap_layers is not None and taps is not None:
        step.tap_count = count = len(tap_layers)
        step.tap_layers = address("tap_layers", tap_layers, torch.int64, count)
        step.taps = address("taps", taps, torch.float32, batch, nodes, count, width)
    return step


class GreedyDraft:
    """Room for `gamma` drafts of each of the rows `active [B]`, and the record that a native call fills;
    `columns` are those of the logits, `listed [columns]` their tokens where the head is cut. Raises
    ValueError for a tensor of another dtype, device or shape."""

    def __init__(
        self,
        batch: int,
        active: Tensor,
        gamma: int,
        columns: int,
        confidence: float,
        listed: Tensor | None = None,
    ) -> None:
        self._active = checked("active", active, torch.bool, batch)
        self._listed = None if listed is None else checked("listed", listed, torch.int64, columns)
        self._tokens = torch.empty((gamma, batch), dtype=torch.int64)
        self._start = torch.empty(batch, dtype=torch.int64)
        self._numbers = torch.empty((2, batch))
        address = self._numbers.data_ptr()
        self.record = c.Draft(
            depths=gamma,
            columns=columns,
            active=self._active.data_ptr(),
            ids=None if self._listed is None else self._listed.data_ptr(),
            tokens=self._tokens.data_ptr(),
            start=self._start.data_ptr(),
            logprobs=address,
            belief=address + 4 * batch,
            confidence=confidence,
        )

    def tokens(self) -> Tensor:
        """The drafts `[B, W]`; W is below gamma where they have ended early."""
        return self._tokens[: self.record.drafted].t()


def choose_natively(library: Library, logits: Tensor, allowed: Allowed | None) -> Choice:
    """As `rounds.choice.choose`, as one call: no masked logits are made. Where `joint` decides between two
    sides that are equal to rounding, the sums' order may decide otherwise than torch's. Raises ValueError for
    a tensor of another dtype, device or shape."""
    rows, nodes, vocab = logits.shape
    logits = checked("logits", logits, torch.float32, rows, nodes, vocab)
    best = Choice(torch.empty((rows, nodes), dtype=torch.int64), torch.empty((rows, nodes)))
    record = c.Choice(
        count=rows * nodes,
        vocab=vocab,
        logits=logits.data_ptr(),
        tokens=best.tokens.data_ptr(),
        logprobs=best.logprobs.data_ptr(),
        threads=torch.get_num_threads(),
    )
    if allowed is not None:
        kinds = len(allowed.bias)
        given = {  # kept until the call ends
            "bias": checked("bias", allowed.bias, torch.float32, kinds, vocab),
            "kind": checked("kind", allowed.kind, torch.int64, rows, nodes),
            "low": checked("low", allowed.low, torch.int64, rows, nodes),
            "high": checked("high", allowed.high, torch.int64, rows, nodes),
            "joint": checked("joint", allowed.joint, torch.bool, rows, nodes),
        }
        for name, tensor in given.items():
            setattr(record, name, tensor.data_ptr())
        record.split, record.kinds = allowed.split, kinds
    library.choose_tokens(record)
    return best


def moved(start: Tensor, path: Tensor) -> tuple[Tensor, Tensor]:
    """As `models.slot_model.path_slots`, of `start [B]` and `path [B, N]`, int64 on the CPU. Raises
    ValueError for others."""
    batch, nodes = path.shape
    start = checked("start", start, torch.int64, batch)
    return path_slots(start, checked("path", path, torch.int64, batch, nodes))


WHISPER_STORAGE = {
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


def _packed_whisper(
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
        stored, own, cross = WHISPER_STORAGE[self.storage]
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
            lambda: _packed_whisper(self.library, stored, WhisperWeights.of(model), self.listed),
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


CAUSAL_STORAGE = {torch.float32: Stored.FLOAT32, torch.bfloat16: Stored.BFLOAT16}
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
    if weight.dtype not in CAUSAL_STORAGE:
        return f"native kernels do not store {str(weight.dtype).removeprefix('torch.')}"
    if size % 8 or config.hidden_size % 2 or config.intermediate_size % 2:
        return f"heads of {size} columns are not a multiple of 8"
    if 2 * len(model.base_model.rotary_emb.inv_freq) != size:
        return "its rotary positions are of a part of each head"
    if config.hidden_act not in ACTIVATIONS:
        return f"native kernels do not have the activation {config.hidden_act}"
    return missing()


def _packed_causal(
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
        self.stored = CAUSAL_STORAGE[self.rounded]
        columns = self.vocab_size if self.listed is None else len(self.listed)
        self._packed = packed_once(
            self.model,
            (self.library.instruction_set, self.stored, columns, listed_key(self.listed)),
            self.model.parameters,
            lambda: _packed_causal(self.library, self.stored, weights, columns),
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
