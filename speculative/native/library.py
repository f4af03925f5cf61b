"""The compiled kernels, found, checked and loaded.

Knows the C interface's functions; nothing of models. Before a file is executed, its content and its owner are
checked (`compiling.library_file`); afterwards the interface's version and the hash of the sources, so that a
library of other sources is never used.
"""

from __future__ import annotations

import ctypes
import logging
from ctypes import POINTER, byref, c_char_p, c_float, c_int32, c_int64, c_void_p
from functools import lru_cache
from pathlib import Path

from ..errors import LoadError
from . import kernel_files, openmp
from .compiling import library_file
from .structures import ABI, ERRORS, Causal, Choice, Draft, Encoder, Step, Stored, Whisper

log = logging.getLogger(__name__)

BUILD = "build them with: python -m forescribe.speculative.native.kernel_build"

_SIGNATURES = {
    "fs_abi": (c_int32, []),
    "fs_source_hash": (c_char_p, []),
    "fs_isas": (c_char_p, []),
    "fs_isa": (c_char_p, []),
    "fs_isa_usable": (c_int32, [c_char_p]),
    "fs_choose_isa": (c_int32, [c_char_p]),
    "fs_openmp": (c_int32, []),
    "fs_packed_bytes": (c_int64, [c_int64, c_int64, c_int32]),
    "fs_pack": (c_int32, [c_void_p, c_int64, c_int64, c_int32, c_void_p]),
    "fs_pack_int8": (c_int32, [c_void_p, c_void_p, c_int64, c_int64, c_void_p]),
    "fs_cross_bytes": (c_int64, [c_int64, c_int64, c_int32]),
    "fs_whisper_workspace": (c_int64, [POINTER(Whisper), c_int64, c_int32]),
    "fs_whisper_forward": (c_int32, [POINTER(Whisper), POINTER(Step)]),
    "fs_whisper_cross": (
        c_int32,
        [POINTER(Whisper), c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_int32],
    ),
    "fs_encoder_workspace": (c_int64, [POINTER(Encoder), c_int32]),
    "fs_encode": (
        c_int32,
        [POINTER(Encoder), c_void_p, c_void_p, c_void_p, c_int64, c_int32],
    ),
    "fs_causal_workspace": (c_int64, [POINTER(Causal), c_int64, c_int32]),
    "fs_causal_forward": (c_int32, [POINTER(Causal), POINTER(Step)]),
    "fs_choose": (c_int32, [POINTER(Choice)]),
    "fs_whisper_draft": (c_int32, [POINTER(Whisper), POINTER(Step), POINTER(Draft)]),
    "fs_causal_draft": (c_int32, [POINTER(Causal), POINTER(Step), POINTER(Draft)]),
}


class Library:
    """A loaded library. Raises LoadError, before the file is executed, where somebody else could have written
    it or it is not complete; and where it cannot be loaded or is of other sources."""

    def __init__(self, path: Path) -> None:
        self.path = path
        problem = library_file.untrusted(path, kernel_files.package_of(path))
        problem = problem or library_file.damaged(path)
        if problem is not None:
            raise LoadError(f"{path} is not loaded: {problem}; {BUILD} --force")
        self.openmp = openmp.share()
        try:
            self._functions = ctypes.CDLL(str(path))
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(self._functions, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise LoadError(f"{path} cannot be loaded ({error}); {BUILD} --force") from error
        found = (self._functions.fs_abi(), self._functions.fs_source_hash().decode())
        if found != (ABI, kernel_files.source_hash()):
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

    # -- calls --------------------------------------------------------------------------------------

    def packed_bytes(self, outputs: int, inputs: int, stored: Stored) -> int:
        return int(self._functions.fs_packed_bytes(outputs, inputs, stored))

    def pack(self, source: int, outputs: int, inputs: int, stored: Stored, packed: int) -> None:
        self._check(self._functions.fs_pack(source, outputs, inputs, stored, packed))

    def pack_int8(self, source: int, scales: int, outputs: int, inputs: int, packed: int) -> None:
        """As `pack`, of integers and the scale of each output."""
        self._check(self._functions.fs_pack_int8(source, scales, outputs, inputs, packed))

    def cross_bytes(self, sources: int, head: int, stored: Stored) -> int:
        """Bytes of one row's and head's cross-attention keys, or values where those are larger."""
        return int(self._functions.fs_cross_bytes(sources, head, stored))

    def whisper_workspace(self, model: Whisper, rows: int, threads: int) -> int:
        return int(self._functions.fs_whisper_workspace(byref(model), rows, threads))

    def whisper_forward(self, model: Whisper, step: Step) -> None:
        self._check(self._functions.fs_whisper_forward(byref(model), byref(step)))

    def whisper_cross(
        self, model: Whisper, states: list[int], rows: int, workspace: int, size: int, threads: int
    ) -> None:
        """Keys and values of encoder states at these addresses, into the rows at `rows`."""
        pointers = (POINTER(c_float) * len(states))(
            *(ctypes.cast(address, POINTER(c_float)) for address in states)
        )
        self._check(
            self._functions.fs_whisper_cross(
                byref(model), pointers, rows, len(states), workspace, size, threads
            )
        )

    def encoder_workspace(self, model: Encoder, threads: int) -> int:
        return int(self._functions.fs_encoder_workspace(byref(model), threads))

    def encode(
        self, model: Encoder, features: int, states: int, workspace: int, size: int, threads: int
    ) -> None:
        """States of the window at `features`, to the address `states`."""
        self._check(
            self._functions.fs_encode(byref(model), features, states, workspace, size, threads)
        )

    def causal_workspace(self, model: Causal, rows: int, threads: int) -> int:
        return int(self._functions.fs_causal_workspace(byref(model), rows, threads))

    def causal_forward(self, model: Causal, step: Step) -> None:
        self._check(self._functions.fs_causal_forward(byref(model), byref(step)))

    def choose_tokens(self, choice: Choice) -> None:
        self._check(self._functions.fs_choose(byref(choice)))

    def whisper_draft(self, model: Whisper, step: Step, draft: Draft) -> None:
        self._check(self._functions.fs_whisper_draft(byref(model), byref(step), byref(draft)))

    def causal_draft(self, model: Causal, step: Step, draft: Draft) -> None:
        self._check(self._functions.fs_causal_draft(byref(model), byref(step), byref(draft)))

    @staticmethod
    def _check(code: int) -> None:
        if code:
            error = IndexError if code in (2, 3) else ValueError
            raise error(f"the kernels refuse {ERRORS.get(code, f'error {code}')}")


def load() -> Library:
    """The library of this version's sources: the first of `kernel_files.candidates` that can be used, with a
    warning for each before it that cannot. A process asks once, so that one which compiles meanwhile changes
    nothing in it. Raises LoadError, with the command that builds it, where there is none."""
    found = _found()
    if isinstance(found, LoadError):
        raise LoadError(str(found))
    return found


def missing() -> str | None:
    """Why the kernels cannot be used here; None where they can."""
    found = _found()
    return str(found) if isinstance(found, LoadError) else None


@lru_cache(maxsize=1)
def _found() -> Library | LoadError:
    return find()


def find() -> Library | LoadError:
    """The first library that can be used now, or why there is none; see `load`."""
    problems = []
    for path in kernel_files.candidates():
        try:
            if path.exists():
                return Library(path)
        except (LoadError, OSError) as error:
            log.warning("native kernels: %s", error)
            problems.append(str(error))
    return LoadError("; ".join(problems) or f"the native kernels are not compiled; {BUILD}")
