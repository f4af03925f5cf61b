"""Models whose forward is one native call, on CPUs: Whisper's and Llama-like decoders, under the core's
`Model` protocol, and Whisper's encoder.

The same arguments and tokens as the decoders of `models.lean`. A row's logits do not depend on the
batch, the number of nodes or the number of threads, to the last bit: a round with drafts computes exactly
what plain decoding computes. Slots that a query may not read are never loaded, so nothing of an earlier
sequence in a row can reach the next one. A call gets addresses: dtype, device and shape of every tensor are
checked before.

The encoder reads the weights of an unmodified transformers encoder, in float32 or bfloat16. A window's states
depend neither on the windows beside it nor on the number of threads, to the last bit, and NaN in one window
stays there.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from ctypes import Structure, addressof
from functools import partial
from math import prod
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from ..errors import LoadError
from ..models.causal import CausalModel
from ..models.plain import decoder_parameters
from ..models.slot_model import SelfCache, SlotModel, WhisperModel, zeros
from ..models.weights import (
    CausalWeights,
    EncoderWeights,
    WhisperWeights,
    causal_gap,
    head_of,
    version,
)
from ..rounds.choice import Allowed, Choice
from ..types import Paths, Prefilled, Scores, States
from .library import (
    ACTIVATIONS,
    STORED,
    Causal,
    Draft,
    Library,
    Step,
    Whisper,
    WhisperLayer,
    Workspace,
    checked,
    load,
    missing,
)
from .packing import PACKED, PANEL, Packed, Packer, causal_records, encoder_record, whisper_records

PART = 64
"""Tokens of a text in one call while it is aligned with the audio: bounds the memory for logits."""

PROMPT = 128
"""Tokens of a causal LM's prompt in one call: bounds the memory for intermediate results, changes no bit."""


class NativeDecoder(SlotModel, ABC):
    """What the decoders share: forwards, drafts and choices as one call, and self-attention's caches."""

    engine = "native"

    library: Library
    cache: SelfCache | None = None
    _record: Whisper | Causal
    _columns: int  # of the logits
    _heads: int  # of the caches, of `_size` numbers
    _size: int
    _beside: object = None  # what else the record leads to while there is a cache

    def _pack(
        self,
        model: Any,
        stored: torch.dtype,
        state: Callable[[], object],
        records: Callable[[Packer], tuple[Whisper | Causal, Sequence[Structure]]],
    ) -> None:
        """Takes the records of a model and its layers: those that `records` returned for an adapter of the
        same storage and head before, if it was the last one and the weights still have the same `state`, or
        none any more; else what it returns now. Raises LoadError where there is neither."""
        self.library, self.stored, self._workspace = load(), stored, Workspace()
        listed = None if self.listed is None else tuple(self.listed.tolist())
        form = (self.library.instruction_set, stored, self.vocab_size, listed)
        known, now = PACKED.get(model), state()
        if known is not None and known.form == form and now in (None, known.state):
            self._packed = known
        elif now is None:
            raise LoadError("its weights were let go, and packed in another form: load it again")
        else:
            # Before the new one is made: both at a time would be a third copy.
            PACKED.pop(model, None)
            packer = Packer(self.library, STORED[stored])
            record, packed_layers = records(packer)
            packer.close()
            self._packed = PACKED[model] = Packed(packer, record, packed_layers, form, state())
        record, layers = self._packed.record, self._packed.layers
        self._record = type(record).from_buffer_copy(record)
        self._layers = (type(layers[0]) * len(layers))(*layers)
        self._record.layer = addressof(self._layers)

    def allocate(self, batch: int, slots: int) -> None:
        layers = self._layers
        shape = len(layers), batch, self._heads, slots, self._size
        self.cache = SelfCache(shape, self.stored, self.device)
        self._record.batch, self._record.slots = batch, slots
        for layer, kv in zip(layers, self.cache.kv, strict=True):
            layer.keys, layer.values = kv[0].data_ptr(), kv[1].data_ptr()

    def release(self) -> None:
        """Frees the caches."""
        super().release()
        self._beside = None
        self._workspace = Workspace()
        self._record.batch = self._record.slots = 0

    def score(
        self, tokens: Tensor, start: Tensor, *, reach: int, rows: Tensor | None = None
    ) -> Scores:
        """See `Model.score`; `rows [B]` are those of the caches, by default the first ones."""
        logits = torch.empty((*tokens.shape, self._columns))
        taps = self._forward(tokens, start, reach, logits, rows=rows)
        return Scores(self.whole(logits), taps)

    def score_at(self, tokens: Tensor, start: Tensor, node: Tensor, *, reach: int) -> Tensor:
        logits = torch.empty((len(tokens), 1, self._columns))
        self._forward(tokens, start, reach, logits, node=node)
        return self.whole(logits)

    def score_paths(self, tokens: Tensor, paths: Paths, *, reach: int) -> Tensor:
        logits = torch.empty((*tokens.shape, self._columns))
        self._forward(tokens, None, reach, logits, paths=paths)
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
        batch, listed = len(tokens), self.listed
        active = checked("active", active, torch.bool, batch)
        if listed is not None:
            listed = checked("listed", listed, torch.int64, self._columns)
        drafts = torch.empty((gamma, batch), dtype=torch.int64)
        starts = torch.empty(batch, dtype=torch.int64)
        logprobs, belief = torch.empty(batch), torch.empty(batch)
        record = Draft(
            depths=gamma,
            columns=self._columns,
            active=active.data_ptr(),
            ids=None if listed is None else listed.data_ptr(),
            tokens=drafts.data_ptr(),
            start=starts.data_ptr(),
            logprobs=logprobs.data_ptr(),
            belief=belief.data_ptr(),
            confidence=confidence,
        )
        logits = torch.empty((batch, 1, self._columns))
        self._forward(tokens, start, reach, logits, node=node, draft=record)
        return drafts[: record.drafted].t()

    def choose(self, logits: Tensor, allowed: Allowed | None = None) -> Choice:
        return self.library.choose_tokens(logits, allowed)

    def _forward(
        self,
        tokens: Tensor,
        start: Tensor | None,
        reach: int,
        logits: Tensor | None,
        *,
        rows: Tensor | None = None,
        node: Tensor | None = None,
        draft: Draft | None = None,
        queries: Tensor | None = None,
        paths: Paths | None = None,
        embedded: Tensor | None = None,
    ) -> Tensor | None:
        """Runs `tokens [B, N]` from slot `start [B]` on, or at the ends of `paths`, with torch's number of
        threads, and the `draft` behind them; returns the taps. `rows [B]` are those of the caches, `node [B]`
        the only nodes with `logits`; `queries [L, B N, H, d]` get those of cross-attention. `embedded [B, N]`
        are addresses of embeddings in place of tokens, or 0. Raises ValueError for a tensor of another dtype,
        device or shape."""
        if self.cache is None:
            raise RuntimeError("allocate() comes before the first forward")
        (batch, nodes), record, threads = tokens.shape, self._record, torch.get_num_threads()
        size = self.library.workspace(record, batch * nodes, threads)
        step = Step(
            batch=batch,
            nodes=nodes,
            reach=reach,
            workspace=self._workspace.at_least(size),
            workspace_bytes=size,
            threads=threads,
        )
        read = nodes if node is None else 1
        given: dict[str, Tensor | None] = {  # kept until the call ends
            "tokens": checked("tokens", self.known_tokens(tokens), torch.int64, batch, nodes),
            "start": start if start is None else checked("start", start, torch.int64, batch),
            "rows": rows if rows is None else checked("rows", rows, torch.int64, batch),
            "node": node if node is None else checked("node", node, torch.int64, batch),
            "queries": queries,
            "embedded": embedded,
        }
        if paths is not None:
            step.path_slots = paths.slots.shape[2]
            shape = batch, nodes, step.path_slots
            given["paths"] = checked("paths", paths.slots, torch.int64, *shape)
            given["lengths"] = checked("lengths", paths.lengths, torch.int64, batch, nodes)
        if logits is not None:
            shape = batch, read, self._columns
            given["logits"] = checked("logits", logits, torch.float32, *shape)
        if isinstance(record, Whisper):  # these kernels keep the states after the last norm there
            given["hidden"] = torch.empty((batch, nodes, record.width))
        taps = None
        if self.taps and draft is None:
            step.tap_count = len(self.taps)
            taps = torch.empty((batch, nodes, len(self.taps), record.width))
            given["tap_layers"], given["taps"] = self._tap_layers, taps
        for name, tensor in given.items():
            if tensor is not None:
                setattr(step, name, tensor.data_ptr())
        self.library.forward(record, step, draft)
        return taps


class NativeWhisperDecoder(WhisperModel, NativeDecoder):
    """The decoder of a Whisper model on a CPU; arguments and errors as `WhisperModel`."""

    _record: Whisper

    def prepare(self, model: Any, stored: torch.dtype) -> None:
        reason = unsupported(model)
        if reason is not None:
            raise LoadError(reason)
        stored = stored if stored in STORED else torch.float32  # float16 is read as that

        def state() -> object:
            released = getattr(model.model.decoder, "released", False)
            return None if released else version(decoder_parameters(model))

        def records(packer: Packer) -> tuple[Whisper, list[WhisperLayer]]:
            return whisper_records(packer, WhisperWeights.of(model, self.listed))

        self._pack(model, stored, state, records)
        record = self._record
        self._columns, self._heads = record.outputs, record.heads
        self._size, record.sources = record.width // record.heads, self.sources
        record.cache_storage = record.cross_storage = STORED[stored]

    def head(self, states: Tensor) -> Tensor:
        output = head_of(self.model.proj_out, self.listed)
        return self.whole(output(states).float())

    def allocate(self, batch: int, slots: int) -> None:
        size = self.library.cross_bytes(self.sources, self._size, self._record.cross_storage)
        # Their pages take memory as rows are used: 35 MB for each of whisper-base's.
        shape = (len(self._layers), 2, batch * self._heads * size)
        cross = zeros(shape, torch.uint8, self.device)
        super().allocate(batch, slots)
        self._beside = cross
        for layer, kv in zip(self._layers, cross, strict=True):
            layer.cross_keys, layer.cross_values = kv[0].data_ptr(), kv[1].data_ptr()

    @torch.inference_mode()
    def prefill(
        self, rows: Tensor, tokens: Tensor, encoder_states: States, nodes: Tensor | None = None
    ) -> Prefilled:
        self._allocated()
        if len(rows) != len(tokens) or len(encoder_states) != len(rows):
            raise ValueError(
                f"{len(rows)} rows, {len(tokens)} prompts, {len(encoder_states)} states"
            )
        rows = checked("rows", rows, torch.int64, len(tokens))
        self._cross(rows, encoder_states)
        start = torch.zeros(len(tokens), dtype=torch.int64)
        logits = torch.empty((*tokens.shape, self._columns))
        taps = self._forward(tokens, start, tokens.shape[1], logits, rows=rows)
        return Prefilled(self.chosen(self.whole(logits), nodes), taps)

    @torch.inference_mode()
    def cross_attention(
        self, tokens: Tensor, encoder_states: Any, heads: Sequence[tuple[int, int]]
    ) -> tuple[Tensor, Tensor]:
        """Scores `[H, N, S]` of `heads`, given as (layer, head), for a text `tokens [N]`, before the softmax,
        and the log-probabilities `[N - 1]` of its tokens but the first. Overwrites row 0 of the caches."""
        row, length = torch.zeros(1, dtype=torch.int64), len(tokens)
        queries, logprobs = [], []
        self._cross(row, [encoder_states])
        for first in range(0, length, PART):
            part = tokens[None, first : first + PART]
            count = part.shape[1]
            logits = torch.empty((1, count, self._columns))
            queries.append(torch.empty((len(self._layers), count, self._heads, self._size)))
            at = torch.full((1,), first, dtype=torch.int64)
            self._forward(part, at, first + count, logits, queries=queries[-1])
            following = tokens[first + 1 : first + count + 1, None]
            logprobs.append(logits[0, : len(following)].log_softmax(-1).gather(1, following)[:, 0])
        layer, head = torch.tensor(heads).T
        asked = torch.cat(queries, 1)[layer, :, head]  # [H, N, d]
        return asked @ self._cross_keys(layer, head).mT, torch.cat(logprobs)

    def _cross_keys(self, layer: Tensor, head: Tensor) -> Tensor:
        """The keys `[H, S, d]` of row 0 in these layers `[H]` and heads `[H]`, from the panels that the
        kernels read (kernels/src/layout.h)."""
        assert isinstance(self._beside, Tensor)
        panels, pair = -(-self.sources // PANEL), 4 // self.stored.itemsize
        shape = (self._heads, panels, self._size // pair, PANEL, pair)  # `pair` columns in 32 bits
        keys: Tensor = self._beside[:, 0].view(self.stored)[:, : prod(shape)].unflatten(1, shape)
        rows: Tensor = keys[layer, head].transpose(2, 3).flatten(3).flatten(1, 2)
        return rows[:, : self.sources].float()

    def _cross(self, rows: Tensor, encoder_states: States) -> None:
        """Keys and values of these states into the rows `[K]` of the caches."""
        states, threads = [], torch.get_num_threads()
        for given in encoder_states:
            own = self.pick(given).to(self.device, torch.float32).contiguous()
            if own.shape != (self.sources, self._record.width):
                raise ValueError(f"encoder states of shape {tuple(own.shape)}")
            states.append(own)
        size = self.library.workspace(self._record, 1, threads)
        self.library.whisper_cross(
            self._record,
            list(map(Tensor.data_ptr, states)),
            rows.data_ptr(),
            self._workspace.at_least(size),
            size,
            threads,
        )


class NativeCausalDecoder(NativeDecoder, CausalModel):
    """A Llama-like causal LM on a CPU; arguments and errors as `CausalModel`."""

    _record: Causal

    def prepare(self, stored: torch.dtype) -> None:
        reason = native_causal_gap(self.model)
        if reason is not None:
            raise LoadError(f"{self.config.model_type} cannot run natively: {reason}")
        self.weights = weights = CausalWeights.of(self.model)
        records = partial(causal_records, weights=weights, vocab=self.vocab_size)
        self._pack(self.model, stored, lambda: version(self.model.parameters()), records)
        record = self._record
        self._columns = self.vocab_size
        self._heads, self._size = record.key_heads, record.head

    def allocate(self, batch: int, slots: int) -> None:
        # A table as long as the cache: positions behind it do not occur.
        tables = self.weights.angles(min(slots, self.max_positions))
        super().allocate(batch, slots)
        self._beside, record = tables, self._record
        record.cosine, record.sine = (table.data_ptr() for table in tables)
        record.positions = len(tables[0])

    @torch.inference_mode()
    def prefill(
        self, rows: Tensor, tokens: Tensor, encoder_states: States, nodes: Tensor | None = None
    ) -> Prefilled:
        """Skips the head where no `nodes` are asked for: returns logits `[K, 0, V]`."""
        self._allocated()
        if len(rows) != len(tokens):
            raise ValueError(f"{len(rows)} rows, {len(tokens)} prompts")
        count = 0 if nodes is None else nodes.shape[1]
        chosen = torch.empty((len(tokens), count, self.vocab_size))
        places, kept = self._addresses(tokens, encoder_states)
        taps = []
        for first in range(0, tokens.shape[1], PROMPT):
            part = tokens[:, first : first + PROMPT]
            start = torch.full((len(tokens),), first, dtype=torch.int64)
            logits = None
            if nodes is not None:
                logits = torch.empty((*part.shape, self._columns))
            embedded = places[:, first : first + PROMPT].contiguous() if kept else None
            end = first + part.shape[1]
            taps.append(self._forward(part, start, end, logits, rows=rows, embedded=embedded))
            if nodes is not None and logits is not None:
                here = (nodes >= first) & (nodes < first + part.shape[1])  # [K, M]
                row = torch.arange(len(tokens))[:, None].expand_as(nodes)
                chosen[here] = self.whole(logits[row[here], nodes[here] - first])
        read = torch.cat([t for t in taps if t is not None], 1) if self.taps else None
        return Prefilled(chosen, read)

    def _addresses(self, tokens: Tensor, encoder_states: States) -> tuple[Tensor, list[Tensor]]:
        """The addresses `[K, P]` of embeddings in place of tokens, 0 where there are none, and what they lead
        to."""
        addresses, kept = torch.zeros_like(tokens), list[Tensor]()
        for row, given in zip(addresses, encoder_states, strict=True):
            run = self.run_of(given, tokens.shape[1])
            if run is None:
                continue
            # Rounded as the modules round them, then as the kernels read them.
            states = run.states.to(self.device, self.dtype).float().contiguous()
            kept.append(states)
            offsets = states.stride(0) * states.itemsize * torch.arange(len(states))
            row[run.at : run.end] = states.data_ptr() + offsets
        return addresses, kept


class NativeEncoder:
    """The states of windows. Calls of several threads wait for each other: they share one workspace. Raises
    LoadError where `unsupported_encoder` has a reason."""

    def __init__(self, encoder: Any) -> None:
        reason = unsupported_encoder(encoder)
        if reason is not None:
            raise LoadError(reason)
        self.library: Library = load()
        self.dtype: torch.dtype = encoder.conv1.weight.dtype
        # Whole: a window's positions read every number dozens of times, and widening each would cost more
        # than the memory's time.
        self._packer = Packer(self.library, STORED[self.dtype], exact=())
        self._record, self._layers = encoder_record(self._packer, EncoderWeights.of(encoder))
        self._packer.close()
        self.positions = int(self._record.sources)
        self._workspace, self._lock = Workspace(), Lock()

    def __call__(self, features: Tensor) -> list[Tensor]:
        """States `[S, D]` of each window of `features [B, M, 2 S]`, in the modules' dtype."""
        return list(map(self.states, features))

    def states(self, features: Tensor) -> Tensor:
        """States `[S, D]` of one window `[M, 2 S]`, which may be shorter than the encoder's. Raises
        ValueError for features of another shape."""
        record, threads = self._record, torch.get_num_threads()
        mels, frames = features.shape
        if mels != record.mels or frames % 2 or not 0 < frames <= 2 * self.positions:
            raise ValueError(f"features of shape {tuple(features.shape)}")
        features = features.detach().to("cpu", torch.float32).contiguous()
        states = torch.empty((frames // 2, int(record.width)))
        with self._lock:
            record.sources = frames // 2
            self.library.encode(
                record, features.data_ptr(), states.data_ptr(), self._workspace, threads
            )
        return states.to(self.dtype)


def unsupported(model: Any) -> str | None:
    """Why a Whisper model cannot run natively here; None where it can."""
    config, device = model.config, model.model.decoder.embed_tokens.weight.device
    if device.type != "cpu":
        return f"native kernels are for CPUs, and the model is on {device}"
    size = config.d_model // config.decoder_attention_heads
    return _form_gap(size, config.decoder_ffn_dim, config.activation_function)


def native_causal_gap(model: Any) -> str | None:
    """Why a causal LM cannot run natively here; None where it can."""
    gap = causal_gap(model)
    if gap is not None:
        return gap
    config, weight = model.config, model.base_model.embed_tokens.weight
    size = model.base_model.layers[0].self_attn.head_dim
    if weight.device.type != "cpu":
        return f"native kernels are for CPUs, and the model is on {weight.device}"
    if weight.dtype not in STORED:
        return f"native kernels do not store {str(weight.dtype).removeprefix('torch.')}"
    if config.hidden_size % 2 or config.intermediate_size % 2:
        return "its sizes are not even"
    if 2 * len(model.base_model.rotary_emb.inv_freq) != size:
        return "its rotary positions are of a part of each head"
    return _form_gap(size, 0, config.hidden_act)


def unsupported_encoder(encoder: Any) -> str | None:
    """Why a `WhisperEncoder` cannot run natively here; None where it can."""
    config, weight = encoder.config, encoder.conv1.weight
    if weight.device.type != "cpu" or weight.dtype not in STORED:
        return (
            "the native encoder is for float32 and bfloat16 on CPUs, and this one is "
            f"{weight.dtype} on {weight.device}"
        )
    if config.num_mel_bins % 2:
        return f"{config.num_mel_bins} mel bins are not even"
    size = config.d_model // config.encoder_attention_heads
    return _form_gap(size, config.encoder_ffn_dim, config.activation_function)


def _form_gap(size: int, inner: int, activation: str) -> str | None:
    if size % 8 or inner % 8:
        return f"heads of {size} columns or layers of {inner} are not a multiple of 8"
    if activation not in ACTIVATIONS:
        return f"native kernels do not have the activation {activation}"
    return missing()
