"""How many threads tensor operators of the calling thread use.

`torch.set_num_threads` changes this for MKL in all threads, and for all threads that run their first
operator later. The functions here change the calling thread alone, in less than a microsecond: OpenMP
keeps the number for each thread, and MKL has one for each thread besides. Knows torch's libraries only.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import torch


@cache
def _library() -> ctypes.CDLL | None:
    """torch's library of CPU operators, through which the OpenMP runtime that it uses is found; None
    where it has no such functions."""
    name = {"nt": "torch_cpu.dll", "posix": "libtorch_cpu.so"}.get(os.name, "")
    folder = Path(torch.__file__).parent / "lib"
    for path in (folder / name, folder / "libtorch_cpu.dylib"):
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(str(path))
            library.omp_set_num_threads.argtypes = [ctypes.c_int]
            library.omp_set_num_threads.restype = None
            return library
    return None


@cache
def _mkl() -> ctypes._NamedFuncPointer | None:
    library = _library()
    return None if library is None else getattr(library, "MKL_Set_Num_Threads_Local", None)


def can_set() -> bool:
    """Whether the number can be set for one thread."""
    return _library() is not None


def set_thread_count(count: int) -> int:
    """Lets operators of the calling thread use `count` threads from here on; returns what its own MKL
    setting was, 0 where it had none."""
    library, mkl = _library(), _mkl()
    if library is None:
        raise RuntimeError("torch's OpenMP runtime has no number of threads for one thread")
    torch.get_num_threads()  # torch sets the number at the thread's first operator: before, not after
    library.omp_set_num_threads(count)
    return 0 if mkl is None else int(mkl(count))


@contextmanager
def at_most(count: int) -> Iterator[None]:
    """Lets operators of the calling thread use at most `count` threads in a block. Does nothing where
    they use fewer, or where the number cannot be set."""
    before = torch.get_num_threads()
    if before <= count or not can_set():
        yield
        return
    own = set_thread_count(count)
    try:
        yield
    finally:
        library, mkl = _library(), _mkl()
        assert library is not None  # see `can_set`
        library.omp_set_num_threads(before)
        if mkl is not None:
            mkl(own)
