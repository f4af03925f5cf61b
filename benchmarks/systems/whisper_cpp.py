"""whisper.cpp on weights that are written in its format in this run, by the binding pywhispercpp.

Greedy decoding at one temperature, without thresholds and previous text, one window at a time: the program
has no batches. The package of PyPI is compiled for AVX2; `pip install --no-binary pywhispercpp pywhispercpp`
compiles it for this machine. Knows the library; nothing of measuring.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.systems.jobs import LANGUAGE, Job, Samples, Written
from forescribe.asr.segment.windows import MAX_SAMPLES

_LIBRARY = "_pywhispercpp"
"""The functions of the C interface: the package's own class hides tokens. Imported by name, as it has no
types and type checks run without it."""

KINDS = {"float16": "f16", "int8": "Q8_0"}
"""The formats of weights by number format. Keys and values are float16 in both. Version 1.8.5 reads files in
float32, and ends the process at the first convolution."""


def convert(model: Path, into: Path) -> tuple[dict[str, str], str | None]:
    """Return files by number format, and the reason if there are none."""
    files: dict[str, str] = {}
    try:
        importlib.import_module(_LIBRARY)
        write = importlib.import_module("benchmarks.systems.ggml").write_ggml
        for dtype, kind in KINDS.items():
            files[dtype] = str(write(model, into / f"ggml-{kind}.bin", kind))
    except Exception as error:  # a missing library, or weights that it does not know
        return files, f"{type(error).__name__}: {error}"
    return files, None


class WhisperCpp:
    """Decodes window by window, with or without flash attention."""

    def __init__(self, job: Job, *, flash: bool) -> None:
        if job.converted is None:
            raise ValueError("there are no converted weights")
        self.threads, self._library = job.threads, importlib.import_module(_LIBRARY)
        settings = self._library.whisper_context_default_params()
        settings.flash_attn, settings.use_gpu = flash, False
        self._context = self._library.whisper_init_from_file_with_params(job.converted, settings)
        self._end = self._library.whisper_token_eot(self._context)
        self._passes = 0

    def run(self, windows: Sequence[Samples]) -> Written:
        tokens, texts, self._passes = [], [], 0
        for window in windows:
            written = self._decoded(np.pad(window, (0, MAX_SAMPLES - len(window))))
            tokens.append(written)
            raw = b"".join(self._bytes(token) for token in written if token < self._end)
            texts.append(raw.decode(errors="replace"))
        notes = [self._library.whisper_print_system_info().strip()]
        if self._passes != len(windows):
            notes.append(f"{self._passes} decodes for {len(windows)} windows")
        return Written(tokens, texts, notes=notes)

    def _decoded(self, samples: Samples) -> list[int]:
        """The tokens of a window. What follows the last timestamp of a pass is dropped, and decoded again in
        another one: without that its words would be missing."""
        library, context = self._library, self._context
        library.whisper_full(context, self._settings(), samples, len(samples))
        return [
            library.whisper_full_get_token_id(context, segment, index)
            for segment in range(library.whisper_full_n_segments(context))
            for index in range(library.whisper_full_n_tokens(context, segment))
        ]

    def _settings(self) -> Any:
        library = self._library
        settings = library.whisper_full_default_params(
            library.whisper_sampling_strategy.WHISPER_SAMPLING_GREEDY
        )
        for name, value in _OPTIONS.items():
            setattr(settings, name, value)
        settings.n_threads = self.threads
        settings.set_encoder_begin_callback(self._pass_begins)
        return settings

    def _pass_begins(self, *_: Any) -> bool:
        self._passes += 1
        return True

    def _bytes(self, token: int) -> bytes:
        found: bytes = self._library.whisper_token_to_bytes(self._context, token)
        return found


_OPTIONS = {
    "language": LANGUAGE,
    "translate": False,
    "no_context": True,
    "no_timestamps": False,
    "single_segment": False,
    "print_progress": False,
    "print_realtime": False,
    "print_timestamps": False,
    "print_special": False,
    "temperature": 0.0,
    "temperature_inc": 0.0,
    "entropy_thold": 0.0,
    "logprob_thold": -1e9,
    "no_speech_thold": 1.0,
}
