"""OpenVINO GenAI on weights that were converted beforehand.

    optimum-cli export openvino --model FOLDER --task automatic-speech-recognition-with-past \
        --weight-format fp32 CONVERTED

Conversion is optimum-intel's, in an environment of its own, as it needs another transformers. Greedy
decoding, one window at a time: the pipeline has no batches. Its answers have no tokens; they are rebuilt from
texts and timestamps. Knows the library; nothing of measuring.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.systems.jobs import LANGUAGE, TASK, Job, Samples, Written
from forescribe.asr.formats.transcript_parts import SAMPLE_RATE

_LIBRARY = "openvino_genai"
"""Imported by name, as it has no types and type checks run without it."""

KINDS = {"float32": "f32", "bfloat16": "bf16"}
"""The formats of products by number format; weights are those of the folder."""

STEP_S = 0.02


class OpenVino:
    """Decodes window by window."""

    def __init__(self, job: Job) -> None:
        if job.converted is None:
            raise ValueError("there are no converted weights")
        from tokenizers import Tokenizer

        folder, library = Path(job.converted), importlib.import_module(_LIBRARY)
        self.threads = job.threads
        self._pipeline = library.WhisperPipeline(
            str(folder),
            "CPU",
            INFERENCE_NUM_THREADS=job.threads,
            INFERENCE_PRECISION_HINT=KINDS[job.dtype],
        )
        self._options = self._pipeline.get_generation_config()
        self._options.return_timestamps = True
        if self._options.is_multilingual:
            self._options.language, self._options.task = f"<|{LANGUAGE}|>", TASK
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        settings = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
        self._zero = int(settings["no_timestamps_token_id"]) + 1
        self._version = importlib.import_module("openvino").get_version()

    def run(self, windows: Sequence[Samples]) -> Written:
        tokens, texts = [], []
        for window in windows:
            answer = self._pipeline.generate(window.tolist(), self._options)
            chunks = [(c.start_ts, c.end_ts, c.text) for c in answer.chunks or ()]
            texts.append("".join(text for _, _, text in chunks))
            tokens.append([t for chunk in chunks for t in self._tokens(*chunk, len(window))])
        return Written(
            tokens, texts, notes=[f"OpenVINO {self._version}; tokens rebuilt from its texts"]
        )

    def _tokens(self, start_s: float, end_s: float, text: str, samples: int) -> list[int]:
        """A segment's tokens. One whose end was not written ends with its window."""
        end = end_s if end_s >= 0 else samples / SAMPLE_RATE
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [self._zero + round(start_s / STEP_S), *ids, self._zero + round(end / STEP_S)]
