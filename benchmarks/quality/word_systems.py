"""Programs that transcribe recordings the whole way, from files to texts, each in a process of its own.

The defaults of each program count, its own windows, guards and retries too. Knows the libraries; nothing of
scores.
"""

from __future__ import annotations

import importlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.systems.jobs import LANGUAGE, use_threads

Transcribe = Callable[[Sequence[str]], list[tuple[str, bool]]]
"""The text of each recording, and whether the program itself marks it as doubtful."""


@dataclass(frozen=True)
class Task:
    """A program with its settings, and the recordings."""

    system: str
    model: str
    draft: str | None
    threads: int
    batch: int
    dtype: str
    files: Sequence[str]
    terms: Sequence[Sequence[str]] = ()  # a list for each file


@dataclass(frozen=True)
class Texts:
    """What a program wrote, and what it took, loading apart."""

    texts: list[str] = field(default_factory=list)
    marked: list[bool] = field(default_factory=list)
    wall_s: float = 0.0
    processor_s: float = 0.0
    error: str | None = None


def ours(task: Task, beams: int | None, quantize: str | None = None) -> Transcribe:
    from forescribe.asr.decode.options import Guards
    from forescribe.asr.decode.transcriber import Options, Transcriber

    use_threads(task.threads)
    transcriber = Transcriber.load(
        task.model,
        task.draft or "none",
        language=LANGUAGE,
        device="cpu",
        dtype=task.dtype,
        quantize=quantize,
        batch=task.batch,
        network=False,
    )
    options = Options(language=LANGUAGE, beam_size=beams, guards=Guards())
    lists = listed(task)

    def run(files: Sequence[str]) -> list[tuple[str, bool]]:
        found: dict[str, Any] = {}
        for terms, group in groupby(files, key=lambda file: lists.get(file, ())):
            asked = replace(options, terms=terms)
            found |= {o.name: o.transcript for o in transcriber.transcribe(list(group), asked)}
        done = [found[file] for file in files]
        return [("", False) if t is None else (t.text, bool(t.warnings)) for t in done]

    return run


def listed(task: Task) -> dict[str, tuple[str, ...]]:
    """The terms of each file that has a list."""
    return dict(zip(task.files, map(tuple, task.terms), strict=False))


def faster_whisper(
    task: Task, beams: int, batched: bool, terms_as: str | None = None
) -> Transcribe:
    """With `terms_as` the option that takes terms, joined by commas."""
    library: Any = importlib.import_module("faster_whisper")
    model = library.WhisperModel(
        task.model, device="cpu", compute_type=task.dtype, cpu_threads=task.threads
    )
    options: dict[str, Any] = {"language": LANGUAGE, "beam_size": beams}
    if batched:
        model = library.BatchedInferencePipeline(model)
        options["batch_size"] = task.batch

    lists = listed(task)

    def own(file: str) -> dict[str, str]:
        return {} if terms_as is None else {terms_as: ", ".join(lists[file])}

    def run(files: Sequence[str]) -> list[tuple[str, bool]]:
        written = (model.transcribe(file, **options, **own(file))[0] for file in files)
        return [("".join(segment.text for segment in segments), False) for segments in written]

    return run


def openai_whisper(task: Task) -> Transcribe:
    """With the defaults of its command; its own file reader needs ffmpeg, so samples are given."""
    from forescribe.asr.audio.reading import read_audio
    from forescribe.asr.decode.transcriber import Transcriber
    from forescribe.asr.model.conversion.openai_pt import NAMES

    library: Any = importlib.import_module("whisper")
    parts: Any = importlib.import_module("whisper.model")
    use_threads(task.threads)
    load = Transcriber.load
    source: Any = load(
        task.model, "none", device="cpu", dtype="float32", engine="modules", modules=True
    )
    weights = source.context.whisper.target
    config, state = weights.config, weights.state_dict()
    model = parts.Whisper(
        parts.ModelDimensions(
            n_mels=config.num_mel_bins,
            n_audio_ctx=config.max_source_positions,
            n_audio_state=config.d_model,
            n_audio_head=config.encoder_attention_heads,
            n_audio_layer=config.encoder_layers,
            n_vocab=config.vocab_size,
            n_text_ctx=config.max_target_positions,
            n_text_state=config.d_model,
            n_text_head=config.decoder_attention_heads,
            n_text_layer=config.decoder_layers,
        )
    )

    def named(name: str) -> str:
        for theirs, huggingface in NAMES.items():
            name = name.replace(theirs, huggingface)
        return f"model.{name}"

    model.load_state_dict({name: state[named(name)] for name in model.state_dict()})
    model.eval()
    temperature = tuple(n / 5 for n in range(6))

    def run(files: Sequence[str]) -> list[tuple[str, bool]]:
        options = {"language": LANGUAGE, "fp16": False, "beam_size": 5, "best_of": 5}
        return [
            (
                library.transcribe(model, read_audio(f), temperature=temperature, **options)[
                    "text"
                ],
                False,
            )
            for f in files
        ]

    return run


SYSTEMS: dict[str, Callable[[Task], Transcribe]] = {
    "forescribe": lambda task: ours(task, 1),
    "forescribe, int8": lambda task: ours(task, 1, "int8"),
    "forescribe, beams where doubtful": lambda task: ours(task, None),
    "forescribe, five beams": lambda task: ours(task, 5),
    "faster-whisper": lambda task: faster_whisper(task, 5, batched=False),
    "faster-whisper, greedy": lambda task: faster_whisper(task, 1, batched=False),
    "faster-whisper, batched": lambda task: faster_whisper(task, 5, batched=True),
    "faster-whisper, hotwords": lambda task: faster_whisper(task, 5, False, "hotwords"),
    "faster-whisper, initial_prompt": lambda task: faster_whisper(task, 5, False, "initial_prompt"),
    "openai-whisper": openai_whisper,
}


def perform(task: Task) -> Texts:
    """Load, transcribe the first recording as a warm-up, then all of them."""
    try:
        run = SYSTEMS[task.system](task)
        run(task.files[:1])
        wall, processor = time.perf_counter(), _processor_s()
        written = run(task.files)
        wall, processor = time.perf_counter() - wall, _processor_s() - processor
    except Exception as error:  # other libraries may raise anything
        return Texts(error=f"{type(error).__name__}: {error}")
    return Texts([text.strip() for text, _ in written], [m for _, m in written], wall, processor)


def _processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def apart(task: Task, scratch: Path) -> Texts:
    """`perform` in another process."""
    asked, answer = scratch / "task.json", scratch / "texts.json"
    asked.write_text(json.dumps(asdict(task)))
    answer.unlink(missing_ok=True)
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        "from benchmarks.quality.word_systems import main; main(*sys.argv[1:])"
    )
    command = [sys.executable, "-c", program, str(asked), str(answer)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if not answer.is_file():
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        return Texts(error=f"the process ended with status {ended.returncode}: {last}")
    return replace(Texts(), **json.loads(answer.read_text()))


def main(asked: str, answer: str) -> None:
    task = Task(**json.loads(Path(asked).read_text()))
    Path(answer).write_text(json.dumps(asdict(perform(task))))
