"""faster-whisper on weights converted by CTranslate2 in this run: the same target, another engine.

It uses its own features and rules, greedy decoding, one temperature, no thresholds and no previous
text.

Windows are padded with silence to 30 s first, as all other systems do. faster-whisper 1.2.1 itself
pads the *features* with zeros, which is not silence on the log-mel scale (about -0.7 next to loud
speech), and the tokens of short windows differ. Knows the library; nothing of measuring.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.systems.jobs import BATCHED, LANGUAGE, TASK, Job, Samples, Written
from forescribe.asr.segment.windows import MAX_SAMPLES

_LIBRARY = "faster_whisper"
"""Imported by name, as it has no types and type checks run without it."""

_NOT_NEEDED = ("torch", "transformers")
"""CTranslate2 imports both if they are installed, but only for its converters. An environment with
faster-whisper alone has neither, so its peak memory must not include them."""


MORE_FILES = ("tokenizer.json", "preprocessor_config.json")
"""What faster-whisper reads besides the weights; else it downloads those of whisper-tiny."""


def convert(model: Path, into: Path, dtypes: Iterable[str]) -> tuple[dict[str, str], str | None]:
    """Return folders by dtype, and the reason if conversion failed.

    A missing library, or a model that it refuses, costs the rows of that system, not the run.
    """
    folders: dict[str, str] = {}
    try:
        importlib.import_module("transformers.utils.logging").disable_progress_bar()
        converters = importlib.import_module("ctranslate2.converters")
        files = [name for name in MORE_FILES if (model / name).is_file()]
        for dtype in dtypes:
            converter = converters.TransformersConverter(str(model), copy_files=files)
            folder = into / dtype
            converter.convert(str(folder), quantization=dtype)
            folders[dtype] = str(folder)
    except Exception as error:  # the library may raise anything
        return folders, f"{type(error).__name__}: {error}"
    return folders, None


class _Recorder:
    """CTranslate2's model, which also records every result.

    CTranslate2 takes a vocabulary of fewer than 51865 tokens for English-only and would prompt without
    language and task; the model's own settings are correct.
    """

    def __init__(self, inner: Any, multilingual: bool) -> None:
        self._inner = inner
        self.is_multilingual = multilingual
        self.recorded: list[list[int]] = []

    def generate(self, *args: Any, **options: Any) -> Any:
        results = self._inner.generate(*args, **options)
        self.recorded += [list(result.sequences_ids[0]) for result in results]
        return results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _library() -> Any:
    """Import faster-whisper without the libraries that it does not need."""
    for name in _NOT_NEEDED:
        # None makes an import fail; modules that are loaded already stay.
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    return importlib.import_module(_LIBRARY)


def _read(folder: str, name: str) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((Path(folder) / name).read_text(encoding="utf-8"))
    return settings


class FasterWhisper:
    """Decodes window by window, or with its batched pipeline on our windows."""

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
        self.recorder = self.model.model = _Recorder(self.model.model, multilingual)
        self.suppressed: list[int] = list(settings.get("suppress_tokens") or [])
        self.pipeline = library.BatchedInferencePipeline(self.model)
        self.batched, self.batch = job.system == BATCHED, job.batch
        self.notes = ["set to multilingual"] if overruled else []

    def run(self, windows: Sequence[Samples]) -> Written:
        self.recorder.recorded = []
        padded = [np.pad(window, (0, MAX_SAMPLES - len(window))) for window in windows]
        tokens, texts = self._batched(padded) if self.batched else self._sequential(padded)
        notes = list(self.notes)
        if len(self.recorder.recorded) != len(windows):
            notes.append(f"{len(self.recorder.recorded)} decodes for {len(windows)} windows")
        # CTranslate2 writes at most half of the positions, like openai/whisper; other systems do not.
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
            # Thresholds would drop windows, which the other systems do not.
            "compression_ratio_threshold": None,
            "log_prob_threshold": None,
            "no_speech_threshold": None,
            # The model's own list: faster-whisper makes one from its tokenizer, which for a small
            # vocabulary includes the space. A copy, as faster-whisper changes it.
            "suppress_tokens": list(self.suppressed),
        }

    def _sequential(self, windows: Sequence[Samples]) -> tuple[list[list[int]], list[str]]:
        tokens, texts = [], []
        for window in windows:
            before = len(self.recorder.recorded)
            segments, _ = self.model.transcribe(window, **self._options())
            texts.append("".join(segment.text for segment in segments))
            # It decodes the rest of an unfinished segment again: the first result is the window's.
            tokens.append((self.recorder.recorded[before:] or [[]])[0])
        return tokens, texts

    def _batched(self, windows: Sequence[Samples]) -> tuple[list[list[int]], list[str]]:
        clips = [{"start": 30 * i, "end": 30 * (i + 1)} for i in range(len(windows))]  # seconds
        segments, _ = self.pipeline.transcribe(
            np.concatenate(windows), clip_timestamps=clips, batch_size=self.batch, **self._options()
        )
        texts = [segment.text for segment in segments]
        return list(self.recorder.recorded), texts
