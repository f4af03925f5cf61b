"""CTranslate2, which faster-whisper runs on, with the constructed weights in int8.

The weights go from memory into CTranslate2's format by its own converter for Whisper. Knows the library;
imported by name, as it has no types and is only in the group `bench`.
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu import construction
from benchmarks.gpu.dimensions import Dimensions
from benchmarks.gpu.pair import Known, Pair

NAMED = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")
"""What CTranslate2 finds by name, from end-of-text on: a prompt with the last one has no timestamp rules."""

SHORT = 8
"""Tokens of the text whose time, less its steps, is that of the prefill."""


@dataclass(frozen=True)
class PeerRow:
    """CTranslate2 with one batch size."""

    compute_type: str
    batch: int
    tokens: int
    encoder_s: float  # of a window
    prefill_s: float  # of a window: what a short text takes beyond its steps
    step_ms: float  # of the whole batch
    tokens_per_s: float  # without prefill
    equal: bool  # to the text that the weights encode


def vocabulary(d: Dimensions) -> list[str]:
    """Names of all tokens."""
    named = dict(enumerate(NAMED, start=d.eos))
    return [named.get(i, f"<{i}>") for i in range(d.vocab)]


def write(pair: Pair, folder: Path, quantization: str) -> None:
    """Writes the target in CTranslate2's format."""
    folder.mkdir()
    loaders = importlib.import_module("ctranslate2.converters.transformers")
    loader, settings = loaders.WhisperLoader(), pair.target.generation_config
    settings.lang_to_id, settings.alignment_heads = {}, [[0, 0]]
    settings.suppress_tokens = list(pair.dimensions.prompt)
    settings.begin_suppress_tokens = []
    with torch.no_grad():
        spec = loader.get_model_spec(pair.target)
        loader.set_config(spec.config, pair.target, None)
        loader.set_vocabulary(spec, vocabulary(pair.dimensions))
        spec.validate()
        spec.optimize(quantization=quantization)
        spec.save(str(folder))


def rows(
    pair: Pair, batches: Sequence[int], known: Sequence[Known], tokens: int, quantization: str
) -> Iterator[PeerRow]:
    """Writes the model to a temporary folder, and measures it with all threads."""
    library = importlib.import_module("ctranslate2")
    folder = Path(tempfile.mkdtemp(prefix="large-v3-"))
    try:
        write(pair, folder / "model", quantization)
        model = library.models.Whisper(
            str(folder / "model"),
            device="cpu",
            compute_type=quantization,
            intra_threads=torch.get_num_threads(),
        )
    finally:
        shutil.rmtree(folder)
    d = pair.dimensions
    for batch in batches:
        mel = construction.features(
            d, [n % d.classes for n in range(batch)], pair.device.torch, torch.float32
        )
        features = library.StorageView.from_array(np.ascontiguousarray(mel[:1].numpy()))
        encoder_s = _timed(lambda at=features: model.encode(at, to_cpu=True))[0]
        states = torch.stack([k.request.encoder_states.float() for k in known[:batch]])
        given = library.StorageView.from_array(np.ascontiguousarray(states.numpy()))
        prompts = [list(k.request.prompt) for k in known[:batch]]
        short_s, short = _timed(lambda at=given, p=prompts: _generate(model, at, p, SHORT))
        long_s, found = _timed(lambda at=given, p=prompts: _generate(model, at, p, tokens))
        steps = max(map(len, found)) - max(map(len, short))
        step_s = (long_s - short_s) / steps
        written = sum(map(len, found))
        wanted = [_text(k, d.eos) for k in known[:batch]]
        yield PeerRow(
            compute_type=quantization,
            batch=batch,
            tokens=written,
            encoder_s=encoder_s,
            prefill_s=(short_s - max(map(len, short)) * step_s) / batch,
            step_ms=1000 * step_s,
            tokens_per_s=written / (max(map(len, found)) * step_s),
            equal=found == wanted,
        )


def _text(known: Known, end: int) -> list[int]:
    """A text without its end, which CTranslate2 does not return."""
    return [token for token in known.text if token != end]


def _generate(model: Any, states: Any, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Up to `tokens` tokens. CTranslate2 returns the prompt's last token, which is behind the special ones,
    with the text, and writes half of `max_length`."""
    results = model.generate(
        states,
        prompts,
        beam_size=1,
        max_length=2 * (tokens + 1),
        suppress_blank=False,
        sampling_temperature=0,
    )
    return [list(result.sequences_ids[0])[1:] for result in results]


def _timed(run: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    found = run()
    return time.perf_counter() - began, found
