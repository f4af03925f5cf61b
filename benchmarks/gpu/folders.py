"""A constructed pair as model folders, and recordings whose texts are known: for programs that take names.

The tokenizer is tiny.en's with large-v3's special tokens. A recording is noise in the bands of one class, so
a window of it has that class's text, whatever its length. Silero hears no voice in it: transcribe without
voice activity.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray
from safetensors.torch import save_file

from benchmarks.gpu.dimensions import Dimensions
from benchmarks.gpu.pair import Pair
from benchmarks.gpu.text_path import TOKENIZER
from forescribe.asr.model.languages import LANGUAGES
from forescribe.asr.model.tokens import WhisperTokens
from forescribe.asr.model.whisper import Extractor

RATE = 16_000
MEMORY = Path("/dev/shm")
"""Where files of gigabytes are written and read at the speed of memory."""


@dataclass(frozen=True)
class Folders:
    """Models, and what their texts are."""

    pair: Pair
    model: Path
    draft: Path

    def text(self, kind: int) -> str:
        """The text of a window of this class, with timestamps or without."""
        d = self.pair.dimensions
        prompt = (d.eos + 1, d.eos + 2, d.task, d.openers[1])
        tokens = self.pair.path.follow(0, prompt, kind, d.positions)
        found = WhisperTokens.read(self.model)
        assert found is not None and tokens[-1] == d.eos
        return found.decode(tokens, skip_special_tokens=True).strip()

    def write(self, path: Path, kind: int, seconds: float) -> Path:
        """A file with noise of a class."""
        soundfile.write(path, sound(self.pair.dimensions, kind, seconds), RATE, subtype="PCM_16")
        return path


def kinds(d: Dimensions) -> range:
    """Classes that recordings may have: the bands of the lowest are narrower than a line of the spectrum."""
    return range(d.classes // 4, d.classes)


def sound(d: Dimensions, kind: int, seconds: float) -> NDArray[np.float32]:
    """Noise of a class."""
    count, group = round(seconds * RATE), d.bands // d.classes
    filters = Extractor(feature_size=d.bands).mel_filters[:, kind * group : (kind + 1) * group]
    lines = np.linspace(0, len(filters) - 1, count // 2 + 1)
    loud = np.interp(lines, np.arange(len(filters)), filters.max(1))
    phases = np.random.default_rng(kind).uniform(0, 2 * np.pi, len(lines))
    made = np.fft.irfft(np.sqrt(loud) * np.exp(1j * phases), count)
    return (0.5 * made / np.abs(made).max()).astype(np.float32)


@contextmanager
def folders(pair: Pair, agreement: float) -> Iterator[Folders]:
    """Writes a pair into folders that are gone at the end."""
    place = MEMORY if MEMORY.is_dir() else None
    with TemporaryDirectory(dir=place, prefix="constructed-") as name:
        made = Folders(pair, Path(name, "model"), Path(name, "draft"))
        _write(made.model, pair.target, pair.dimensions)
        _write(made.draft, pair.drafts[agreement], pair.dimensions)
        yield made


def _write(folder: Path, model: Any, d: Dimensions) -> None:
    folder.mkdir()
    weights = {name: value.contiguous().cpu() for name, value in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokens = {content: number for number, content in _special(d).items()}
    files = {
        "config": model.config.to_dict() | {"architectures": [type(model).__name__]},
        "generation_config": {
            "eos_token_id": d.eos,
            "pad_token_id": d.eos,
            "decoder_start_token_id": d.eos + 1,
            "is_multilingual": True,
            "lang_to_id": {f"<|{code}|>": tokens[f"<|{code}|>"] for code in LANGUAGES},
            "task_to_id": {task: tokens[f"<|{task}|>"] for task in ("transcribe", "translate")},
            "no_timestamps_token_id": d.openers[0],
            "prev_sot_token_id": tokens["<|startofprev|>"],
            "max_initial_timestamp_index": 50,
            # As many as large-v3 lists: words are timed by them.
            "alignment_heads": [
                [layer, 0] for layer in range(d.decoder_layers // 2, d.decoder_layers)
            ][:10],
            "suppress_tokens": list(range(d.eos + 1, d.openers[0])),
        },
        "preprocessor_config": {
            "feature_size": d.bands,
            "sampling_rate": RATE,
            "hop_length": 160,
            "chunk_length": 30,
            "n_fft": 400,
        },
        "tokenizer": _tokenizer(d),
        "tokenizer_config": {
            "tokenizer_class": "WhisperTokenizer",
            "eos_token": "<|endoftext|>",
            "unk_token": "<|endoftext|>",
        },
    }
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


def _pair(merge: str | list[str]) -> list[str]:
    return merge.split() if isinstance(merge, str) else merge


def _special(d: Dimensions) -> dict[int, str]:
    """Large-v3's special tokens, by number."""
    names = ["endoftext", "startoftranscript", *LANGUAGES, "translate", "transcribe"]
    names += ["startoflm", "startofprev", "nospeech", "notimestamps"]
    names += [f"{n / 50:.2f}" for n in range(d.frames + 1)]
    found = {d.eos + n: f"<|{name}|>" for n, name in enumerate(names)}
    assert len(found) == d.vocab - d.eos and found[d.openers[1]] == "<|0.00|>"
    return found


def _tokenizer(d: Dimensions) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(TOKENIZER.read_text(encoding="utf-8"))
    vocab: dict[str, int] = made["model"]["vocab"]
    vocab = {word: n for word, n in vocab.items() if n < d.eos and word != "<|endoftext|>"}
    made["model"]["merges"] = [
        merge for merge in made["model"]["merges"] if "".join(_pair(merge)) in vocab
    ]
    made["model"]["vocab"] = vocab | {
        f"<unused{n}>": n for n in set(range(d.eos)) - set(vocab.values())
    }
    like = made["added_tokens"][0]
    made["added_tokens"] = [like | {"id": n, "content": c} for n, c in _special(d).items()]
    return made | {"post_processor": None}
