"""faster-whisper on weights that CTranslate2 converted in this run: the same target, another engine.

Its own features, its own rules, greedy, one temperature, no thresholds, no previous text.

Windows are padded with silence to 30 s first, as every other system does inside. Left to itself
faster-whisper (1.2.1) pads the *features* with zeros, which is no silence on the log-mel scale
(silence is the floor, about -0.7 beside loud speech), and the tokens of short windows differ.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forescribe.asr.segment.windows import MAX_SAMPLES

from ..clips import Samples
from .job import BATCHED, LANGUAGE, TASK, Job, Written

_LIBRARY = "faster_whisper"
"""By name: it has no types, and the checks run where it is not installed."""

_NOT_ITS_OWN = ("torch", "transformers")
"""CTranslate2 imports both where they are installed, for its converters alone. An environment with
faster-whisper and nothing else has neither, and its peak of memory should not count them."""


class _Listening:
    """CTranslate2's model, with every answer kept.

    It calls a vocabulary of fewer than 51865 tokens English-only and would prompt without language
    and task; the model's own settings know better.
    """

    def __init__(self, inner: Any, multilingual: bool) -> None:
        self._inner = inner
        self.is_multilingual = multilingual
        self.heard: list[list[int]] = []

    def generate(self, *args: Any, **options: Any) -> Any:
        results = self._inner.generate(*args, **options)
        self.heard += [list(result.sequences_ids[0]) for result in results]
        return results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _library() -> Any:
    """faster-whisper without the weight of libraries that it does not need."""
    for name in _NOT_ITS_OWN:
        # None makes an import fail; what this process has loaded already cannot be unloaded.
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    return importlib.import_module(_LIBRARY)


def _read(folder: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(folder) / name).read_text(encoding="utf-8"))
    return found


class FasterWhisper:
    """Window by window, or as its batched pipeline with our windows for clips."""

    def __init__(self, job: Job) -> None:
        if job.converted is None:
            raise ValueError("there are no converted weights")
        library = _library()
        settings = _read(job.model, "generation_config.json")
        self.threads = job.threads
        self.model = library.WhisperModel(
            job.converted,
            device="cpu",
            compute_type=job.dtype,
            cpu_threads=job.threads,
            num_workers=1,
        )
        self.model.max_length = _read(job.model, "config.json")["max_target_positions"]
        multilingual = bool(settings.get("is_multilingual", True))
        overruled = multilingual != self.model.model.is_multilingual
        self.listening = self.model.model = _Listening(self.model.model, multilingual)
        self.suppressed: list[int] = list(settings.get("suppress_tokens") or [])
        self.pipeline = library.BatchedInferencePipeline(self.model)
        self.batched, self.batch = job.system == BATCHED, job.batch
        self.notes = ["told that the model is multilingual"] if overruled else []

    def run(self, windows: Sequence[Samples]) -> Written:
        self.listening.heard = []
        padded = [np.pad(window, (0, MAX_SAMPLES - len(window))) for window in windows]
        tokens, texts = self._batched(padded) if self.batched else self._sequential(padded)
        notes = list(self.notes)
        if len(self.listening.heard) != len(windows):
            notes.append(f"{len(self.listening.heard)} decodes for {len(windows)} windows")
        # CTranslate2 writes at most half of the positions, like openai/whisper; nobody else stops there.
        full = sum(len(ids) >= self.model.max_length // 2 for ids in tokens)
        if full:
            notes.append(f"{full} windows cut at {self.model.max_length // 2} tokens")
        return Written(tokens, texts, notes=notes)

    def _options(self) -> dict[str, Any]:
        return {
            "language": LANGUAGE,
            "task": TASK,
            "beam_size": 1,
            "temperature": 0.0,
            "without_timestamps": False,
            "vad_filter": False,
            "condition_on_previous_text": False,
            # Thresholds would drop windows, which no other system here does.
            "compression_ratio_threshold": None,
            "log_prob_threshold": None,
            "no_speech_threshold": None,
            # The model's own list. Left to itself faster-whisper makes one from its tokenizer, and a
            # small vocabulary's bare space would be on it. A fresh list, for it is written into.
            "suppress_tokens": list(self.suppressed),
        }

    def _sequential(self, windows: Sequence[Samples]) -> tuple[list[list[int]], list[str]]:
        tokens, texts = [], []
        for window in windows:
            before = len(self.listening.heard)
            segments, _ = self.model.transcribe(window, **self._options())
            texts.append("".join(segment.text for segment in segments))
            # Of an unfinished segment it decodes the rest again: the first answer is the window's.
            tokens.append((self.listening.heard[before:] or [[]])[0])
        return tokens, texts

    def _batched(self, windows: Sequence[Samples]) -> tuple[list[list[int]], list[str]]:
        clips = [{"start": 30 * i, "end": 30 * (i + 1)} for i in range(len(windows))]  # seconds
        segments, _ = self.pipeline.transcribe(
            np.concatenate(windows),
            clip_timestamps=clips,
            batch_size=self.batch,
            **self._options(),
        )
        texts = [segment.text for segment in segments]
        return list(self.listening.heard), texts
