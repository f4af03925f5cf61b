"""The compiled kernels: found, checked and loaded, their records, and tensors as they read them.

The interface's version and the hash of the sources are checked, so that a library of other sources is never
used.

The records are those of `kernels/src/forescribe.h`, field by field in the same order. Pointers are plain
addresses: the tensors that they lead to are kept alive by whoever fills a record. A kernel checks the values
that it reads there, but cannot see of what type they are or how many there are, so `checked` asks this before
an address is taken. Knows layouts and the C interface; nothing of models.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import LoadError
from ..rounds.choice import Allowed, Choice
from . import library_file

ABI = 9

BUILD = "build them with: python -m forescribe.speculative.native.kernel_build"

ALIGNMENT = 128


class Stored(IntEnum):
    """How a tensor is stored. Arithmetic is float32, but for products with bfloat16 matrices where the
    processor multiplies bfloat16: there the other factors are rounded too, and sums are float32. Products
    with int8 matrices, which only decoders have, round the other factor to int8, row by row
    (`models.quantized`).

    Matrices of float32 whose numbers fit into fewer bytes are kept in an exact form, and results are those of
    float32, to the last bit: weights that were float16 or bfloat16, or that a folder holds in int8."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    EXACT_INT8 = 3
    EXACT_FLOAT16 = 4
    EXACT_BFLOAT16 = 5


STORED = {torch.float32: Stored.FLOAT32, torch.bfloat16: Stored.BFLOAT16}
"""How weights, keys and values are stored, by the dtype of a model's modules."""

ACTIVATIONS = {"gelu": 0, "relu": 1, "silu": 2, "swish": 2}
"""transformers' names of the activations that the kernels have."""

ERRORS = {
    1: "a shape that the kernels do not have",
    2: "a slot or row outside the cache",
    3: "a token outside the vocabulary",
    4: "a workspace that is too small",
    5: "an instruction set that this machine does not have",
}
INEXACT = 6


def load() -> Library:
    """The library of this version's sources. A process looks once. Raises LoadError, with the command that
    builds it, where there is none that can be used."""
    found = _found()
    if isinstance(found, LoadError):
        raise LoadError(str(found))
    return found


def missing() -> str | None:
    """Why the kernels cannot be used here; None where they can."""
    found = _found()
    return str(found) if isinstance(found, LoadError) else None


def advice(used: str, *, asked: str | None, device: str) -> str | None:
    """What to tell the user of a command that decodes with the engine `used`, where it is not the native one
    because this machine lacks the kernels; None where another engine was `asked` for, or the `device` is no
    CPU."""
    if used == "native" or asked not in (None, "auto") or device != "cpu":
        return None
    problem = missing()  # None: the model has no native form
    return problem and f"the native kernels, several times faster on CPUs, are not used: {problem}"


@lru_cache(maxsize=1)
def _found() -> Library | LoadError:
    path = library_file.library_path()
    if not path.exists():
        return LoadError(f"they are not compiled; {BUILD}")
    try:
        return Library(path)
    except LoadError as error:
        return error


class Library:
    """A loaded library. Raises LoadError where it cannot be loaded or is of other sources."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.openmp = library_file.share()
        try:
            self._functions = ctypes.CDLL(str(path))
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(self._functions, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise LoadError(f"{path} cannot be loaded ({error}); {BUILD} --force") from error
        found = (self._functions.fs_abi(), self._functions.fs_source_hash().decode())
        if found != (ABI, library_file.source_hash()):
            raise LoadError(f"{path} is of other sources; {BUILD} --force")
        self.choose(None)

    @property
    def threads(self) -> bool:
        """Whether the kernels use more than one thread."""
        return bool(self._functions.fs_openmp())

    @property
    def instruction_set(self) -> str:
        return str(self._functions.fs_isa().decode())

    def instruction_sets(self) -> list[str]:
        """Those that were compiled and that this machine has, best first."""
        names = self._functions.fs_isas().split()
        return [name.decode() for name in names if self._functions.fs_isa_usable(name)]

    def choose(self, instruction_set: str | None) -> None:
        """Chooses an instruction set by name, None the best. Raises ValueError for one that is not
        usable."""
        name = None if instruction_set is None else instruction_set.encode()
        if self._functions.fs_choose_isa(name):
            raise ValueError(f"{instruction_set} is not one of {self.instruction_sets()}")

    def describe(self) -> str:
        threads = "torch's threads" if self.threads else "one thread"
        return f"native kernels: {self.path} ({self.instruction_set}, {threads})"

    def packed_bytes(self, outputs: int, inputs: int, stored: Stored) -> int:
        return int(self._functions.fs_packed_bytes(outputs, inputs, stored))

    def pack(self, source: int, outputs: int, inputs: int, stored: Stored, packed: int) -> bool:
        """Packs a matrix at one address to another one; False where its numbers do not fit into an exact
        form."""
        threads = torch.get_num_threads()
        code = self._functions.fs_pack(source, outputs, inputs, stored, packed, threads)
        if code != INEXACT:
            self._check(code)
        return bool(code != INEXACT)

    def pack_int8(self, source: int, scales: int, outputs: int, inputs: int, packed: int) -> None:
        """As `pack`, of integers and the scale of each output."""
        self._check(self._functions.fs_pack_int8(source, scales, outputs, inputs, packed))

    def cross_bytes(self, sources: int, head: int, stored: Stored) -> int:
        """Bytes of one row's and head's cross-attention keys, or values where those are larger."""
        return int(self._functions.fs_cross_bytes(sources, head, stored))

    def workspace(self, model: Whisper | Causal, rows: int, threads: int) -> int:
        """Bytes that a forward over so many tokens takes for intermediate results."""
        ask = getattr(self._functions, f"fs_{model.family}_workspace")
        return int(ask(byref(model), rows, threads))

    def forward(self, model: Whisper | Causal, step: Step, draft: Draft | None = None) -> None:
        """A forward, and greedy drafts behind it where there is a `draft`."""
        if draft is None:
            run = getattr(self._functions, f"fs_{model.family}_forward")
            self._check(run(byref(model), byref(step)))
        else:
            run = getattr(self._functions, f"fs_{model.family}_draft")
            self._check(run(byref(model), byref(step), byref(draft)))

    def whisper_cross(
        self, model: Whisper, states: list[int], rows: int, workspace: int, size: int, threads: int
    ) -> None:
        """Keys and values of encoder states at these addresses, into the rows at `rows`."""
        pointers = (c_void_p * len(states))(*states)
        self._check(
            self._functions.fs_whisper_cross(
                byref(model), pointers, rows, len(states), workspace, size, threads
            )
        )

    def encode(
        self, model: Encoder, features: int, states: int, workspace: Workspace, threads: int
    ) -> None:
        """States of the window at `features`, to the address `states`."""
        size = int(self._functions.fs_encoder_workspace(byref(model), threads))
        block = workspace.at_least(size)
        self._check(self._functions.fs_encode(byref(model), features, states, block, size, threads))

    def choose_tokens(self, logits: Tensor, allowed: Allowed | None) -> Choice:
        """As `rounds.choice.choose`, as one call: no masked logits are made. Where `joint` decides between
        two sides that are equal to rounding, the sums' order may decide otherwise than torch's. Raises
        ValueError for a tensor of another dtype, device or shape."""
        rows, nodes, vocab = logits.shape
        logits = checked("logits", logits, torch.float32, rows, nodes, vocab)
        best = Choice(torch.empty((rows, nodes), dtype=torch.int64), torch.empty((rows, nodes)))
        record = ChoiceRecord(
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
        self._check(self._functions.fs_choose(byref(record)))
        return best

    def sharpen(self, weights: Tensor, first: int, count: int) -> Tensor:
        """Maps `[H, count, F]` of the rows from `first` on, from attention `[H, N, F]` after its softmax, F
        above 3: each frame normalised over all rows, medians of seven along a row. Raises ValueError."""
        heads, rows, frames = weights.shape
        weights = checked("weights", weights, torch.float32, heads, rows, frames)
        maps, workspace = torch.empty((heads, count, frames)), Workspace()
        size = int(self._functions.fs_alignment_workspace(0, frames))
        own, to, block = weights.data_ptr(), maps.data_ptr(), workspace.at_least(size)
        sharpen = self._functions.fs_sharpen
        self._check(sharpen(own, heads, rows, frames, first, count, to, block, size))
        return maps

    def path_starts(self, matrix: Tensor) -> list[int]:
        """The first frame of each row on the cheapest path through a map `[N, F]`. Raises ValueError."""
        rows, frames = matrix.shape
        matrix = checked("a map", matrix, torch.float32, rows, frames)
        starts, workspace = torch.empty(rows, dtype=torch.int64), Workspace()
        size = int(self._functions.fs_alignment_workspace(rows, frames))
        own, to, block = matrix.data_ptr(), starts.data_ptr(), workspace.at_least(size)
        self._check(self._functions.fs_path(own, rows, frames, to, block, size))
        found: list[int] = starts.tolist()
        return found

    @staticmethod
    def _check(code: int) -> None:
        if code:
            error = IndexError if code in (2, 3) else ValueError
            raise error(f"the kernels refuse {ERRORS.get(code, f'error {code}')}")


class Workspace:
    """One block of bytes, aligned to cache lines. Its content is undefined between calls."""

    _block: Tensor | None = None

    def at_least(self, size: int) -> int:
        """The address of `size` bytes, valid until the next call."""
        if self._block is None or len(self._block) < size + ALIGNMENT:
            self._block = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
        address = self._block.data_ptr()
        return address + -address % ALIGNMENT


def checked(name: str, tensor: Tensor, dtype: torch.dtype, *shape: int) -> Tensor:
    """The tensor, contiguous: itself, or a copy. Raises ValueError for another dtype, device or shape. Takes
    less than a microsecond, of the hundreds of a forward."""
    if tensor.dtype is not dtype or tensor.shape != shape or not tensor.is_cpu:
        raise ValueError(
            f"the kernels read {name} as {_named(dtype)} {list(shape)} on the CPU, not as "
            f"{_named(tensor.dtype)} {list(tensor.shape)} on {tensor.device}"
        )
    return tensor.contiguous()


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Linear(Structure):
    _fields_ = [("weight", c_void_p), ("bias", c_void_p), ("storage", c_int32)]


class Norm(Structure):
    _fields_ = [("scale", c_void_p), ("shift", c_void_p)]


def _of(kind: type[Any], names: str) -> list[tuple[str, type[Any]]]:
    """Fields of one type."""
    return [(name, kind) for name in names.split()]


class WhisperLayer(Structure):
    _fields_ = [
        ("self_norm", Norm),
        *_of(Linear, "qkv self_out"),
        ("cross_norm", Norm),
        *_of(Linear, "cross_query cross_out"),
        ("ffn_norm", Norm),
        *_of(Linear, "up down"),
        *_of(c_void_p, "cross_key cross_key_bias"),
        ("cross_value", Linear),
        *_of(c_void_p, "keys values cross_keys cross_values"),
    ]


class Whisper(Structure):
    family: ClassVar = "whisper"
    _fields_ = [
        *_of(c_int64, "width heads layers ffn vocab positions sources outputs batch slots"),
        *_of(c_int32, "weight_storage cache_storage cross_storage activation"),
        ("eps", c_float),
        ("embedding", Linear),
        ("position", c_void_p),
        ("norm", Norm),
        ("head", Linear),
        ("layer", c_void_p),
    ]


class CausalLayer(Structure):
    _fields_ = [
        ("input_norm", c_void_p),
        ("qkv", Linear),
        *_of(c_void_p, "query_norm key_norm"),
        ("out", Linear),
        ("post_norm", c_void_p),
        *_of(Linear, "gate_up down"),
        *_of(c_void_p, "keys values"),
        ("window", c_int64),
        ("rotary", c_int32),
    ]


class Causal(Structure):
    family: ClassVar = "causal"
    _fields_ = [
        *_of(c_int64, "width heads key_heads head layers ffn vocab outputs columns positions"),
        *_of(c_int64, "batch slots"),
        *_of(c_int32, "weight_storage cache_storage activation"),
        *_of(c_float, "eps scale embedding_scale residual_scale logits_scale"),
        ("embedding", Linear),
        *_of(c_void_p, "cosine sine norm"),
        ("projection", Linear),
        ("layer", c_void_p),
    ]


class EncoderLayer(Structure):
    _fields_ = [
        ("attention_norm", Norm),
        *_of(Linear, "query key value out"),
        ("ffn_norm", Norm),
        *_of(Linear, "up down"),
    ]


class Encoder(Structure):
    _fields_ = [
        *_of(c_int64, "width heads layers ffn mels sources"),
        *_of(c_int32, "weight_storage activation"),
        ("eps", c_float),
        *_of(Linear, "conv1 conv2"),
        ("position", c_void_p),
        ("norm", Norm),
        ("layer", c_void_p),
    ]


class Step(Structure):
    _fields_ = [
        *_of(c_int64, "batch nodes reach path_slots"),
        *_of(c_void_p, "tokens embedded start rows paths lengths node logits hidden tap_layers"),
        ("tap_count", c_int64),
        *_of(c_void_p, "taps queries workspace"),
        ("workspace_bytes", c_int64),
        ("threads", c_int32),
    ]


class Draft(Structure):
    _fields_ = [
        *_of(c_int64, "depths columns"),
        *_of(c_void_p, "active ids tokens start logprobs belief"),
        ("drafted", c_int64),
        ("confidence", c_float),
    ]


class ChoiceRecord(Structure):
    _fields_ = [
        *_of(c_int64, "count vocab split kinds"),
        *_of(c_void_p, "logits bias kind low high joint tokens logprobs"),
        ("threads", c_int32),
    ]


_SIGNATURES = {
    "fs_abi": (c_int32, []),
    "fs_source_hash": (c_char_p, []),
    "fs_isas": (c_char_p, []),
    "fs_isa": (c_char_p, []),
    "fs_isa_usable": (c_int32, [c_char_p]),
    "fs_choose_isa": (c_int32, [c_char_p]),
    "fs_openmp": (c_int32, []),
    "fs_packed_bytes": (c_int64, [c_int64, c_int64, c_int32]),
    "fs_pack": (c_int32, [c_void_p, c_int64, c_int64, c_int32, c_void_p, c_int32]),
    "fs_pack_int8": (c_int32, [c_void_p, c_void_p, c_int64, c_int64, c_void_p]),
    "fs_cross_bytes": (c_int64, [c_int64, c_int64, c_int32]),
    "fs_whisper_workspace": (c_int64, [POINTER(Whisper), c_int64, c_int32]),
    "fs_whisper_forward": (c_int32, [POINTER(Whisper), POINTER(Step)]),
    "fs_whisper_cross": (
        c_int32,
        [POINTER(Whisper), c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_int32],
    ),
    "fs_encoder_workspace": (c_int64, [POINTER(Encoder), c_int32]),
    "fs_encode": (c_int32, [POINTER(Encoder), c_void_p, c_void_p, c_void_p, c_int64, c_int32]),
    "fs_causal_workspace": (c_int64, [POINTER(Causal), c_int64, c_int32]),
    "fs_causal_forward": (c_int32, [POINTER(Causal), POINTER(Step)]),
    "fs_choose": (c_int32, [POINTER(ChoiceRecord)]),
    "fs_alignment_workspace": (c_int64, [c_int64, c_int64]),
    "fs_sharpen": (c_int32, [c_void_p, *[c_int64] * 5, c_void_p, c_void_p, c_int64]),
    "fs_path": (c_int32, [c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_int64]),
    "fs_whisper_draft": (c_int32, [POINTER(Whisper), POINTER(Step), POINTER(Draft)]),
    "fs_causal_draft": (c_int32, [POINTER(Causal), POINTER(Step), POINTER(Draft)]),
}
