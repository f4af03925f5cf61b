"""Wrong words: forescribe's ways of decoding, faster-whisper and openai-whisper on the same recordings.

    python -m benchmarks.quality.words READERS/*.flac --model ./whisper-base --sense sense.tsv

The text of a recording is in the `.txt` file beside it. Where there is none, it is what faster-whisper
writes with five beams, corrected by hand (`--sense`): a line holds the name of the recording, words of that
text, and the words that are spoken, between tabs; under the name `*` are two spellings of the same words.
Words are compared as by transformers' EnglishTextNormalizer. Each program runs in a process of its own, the
whole way from files to texts, with its own defaults, windows, guards and retries. Needs
`scripts/setup bench`, for openai-whisper its package too. Exit status: 0; 2 if nothing could be measured.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jiwer
from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

from benchmarks import provenance
from benchmarks.comparison import layout, say
from benchmarks.systems.jobs import LANGUAGE, use_threads
from forescribe.asr.audio.reading import read_audio
from forescribe.asr.model.presets import BeamSize

REFERENCE = "faster-whisper"
HEAD = (
    "",
    "wrong",
    "%",
    "substituted",
    "left out",
    "inserted",
    "marked",
    "of them wrong",
    "s",
    "core s",
)
WRONG = 0.2
"""From this share of wrong words on, a recording should be marked."""

plain = EnglishTextNormalizer({})


@dataclass(frozen=True)
class Sense:
    """Corrections by hand."""

    meant: Mapping[str, Sequence[tuple[str, str]]]
    same: Sequence[tuple[str, str]]

    @classmethod
    def read(cls, file: Path | None) -> Sense:
        meant: dict[str, list[tuple[str, str]]] = {}
        for line in file.read_text().splitlines() if file else ():
            name, heard, right = line.split("\t")
            meant.setdefault(name, []).append((plain(heard), plain(right)))
        return cls(meant, meant.pop("*", []))

    def words(self, text: str) -> str:
        """A text as it is compared."""
        text = f" {plain(text)} "
        for one, other in self.same:
            text = text.replace(f" {one} ", f" {other} ")
        return " ".join(word for word in text.split() if any(map(str.isalnum, word)))

    def corrected(self, name: str, text: str) -> str:
        """What is spoken. Raises ValueError where a correction does not fit."""
        text = f" {plain(text)} "
        for heard, right in self.meant.get(name, ()):
            if f" {heard} " not in text:
                raise ValueError(f"{name}: '{heard}' is not in the text that is corrected:{text}")
            text = text.replace(f" {heard} ", f" {right} ", 1)
        return self.words(text)


@dataclass(frozen=True)
class Score:
    """The words of a set of recordings."""

    words: int
    substituted: int
    left_out: int
    inserted: int
    marked: int
    marked_wrong: int

    @property
    def wrong(self) -> int:
        return self.substituted + self.left_out + self.inserted

    def cells(self, system: str, seconds: tuple[float, float], *, marks: bool) -> list[str]:
        """The row of a table."""
        counts = (self.substituted, self.left_out, self.inserted)
        marked = (self.marked, self.marked_wrong) if marks else ("-", "-")
        share = f"{100 * self.wrong / self.words:.2f}"
        times = [f"{time_s:.1f}" for time_s in seconds]
        return [system, str(self.wrong), share, *map(str, (*counts, *marked)), *times]

    @classmethod
    def of(cls, spoken: Sequence[str], written: Sequence[str], marked: Iterable[bool]) -> Score:
        """`spoken` and `written` as they are compared."""
        each = [jiwer.process_words(a, b) for a, b in zip(spoken, written, strict=True)]
        bad = [found.wer >= WRONG for found in each]
        marks = [mark for mark in zip(marked, bad, strict=True) if mark[0]]
        return cls(
            sum(len(text.split()) for text in spoken),
            sum(found.substitutions for found in each),
            sum(found.deletions for found in each),
            sum(found.insertions for found in each),
            len(marks),
            sum(wrong for _, wrong in marks),
        )


# -- the programs ---------------------------------------------------------------------------------------

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


@dataclass(frozen=True)
class Texts:
    """What a program wrote, and what it took, loading apart."""

    texts: list[str] = field(default_factory=list)
    marked: list[bool] = field(default_factory=list)
    wall_s: float = 0.0
    processor_s: float = 0.0
    error: str | None = None


def ours(task: Task, beams: BeamSize | None) -> Transcribe:
    from forescribe.asr.decode.options import Guards
    from forescribe.asr.decode.transcriber import Options, Transcriber

    use_threads(task.threads)
    transcriber = Transcriber.load(
        task.model,
        task.draft or "none",
        language=LANGUAGE,
        device="cpu",
        dtype=task.dtype,
        batch=task.batch,
        network=False,
    )
    options = Options(language=LANGUAGE, beam_size=beams, guards=Guards())

    def run(files: Sequence[str]) -> list[tuple[str, bool]]:
        found = {o.name: o.transcript for o in transcriber.transcribe(list(files), options)}
        done = [found[file] for file in files]
        return [("", False) if t is None else (t.text, bool(t.warnings)) for t in done]

    return run


def faster_whisper(task: Task, beams: int, *, batched: bool) -> Transcribe:
    library: Any = importlib.import_module("faster_whisper")
    model = library.WhisperModel(
        task.model, device="cpu", compute_type=task.dtype, cpu_threads=task.threads
    )
    options: dict[str, Any] = {"language": LANGUAGE, "beam_size": beams}
    if batched:
        model = library.BatchedInferencePipeline(model)
        options["batch_size"] = task.batch

    def run(files: Sequence[str]) -> list[tuple[str, bool]]:
        written = (model.transcribe(file, **options)[0] for file in files)
        return [("".join(segment.text for segment in segments), False) for segments in written]

    return run


def openai_whisper(task: Task) -> Transcribe:
    """With the defaults of its command; its own file reader needs ffmpeg, so samples are given."""
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
    "forescribe": lambda task: ours(task, None),
    "forescribe, beams where doubtful": lambda task: ours(task, "auto"),
    "forescribe, one beam": lambda task: ours(task, 1),
    "faster-whisper": lambda task: faster_whisper(task, 5, batched=False),
    "faster-whisper, greedy": lambda task: faster_whisper(task, 1, batched=False),
    "faster-whisper, batched": lambda task: faster_whisper(task, 5, batched=True),
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


def apart(task: Task) -> Texts:
    """`perform` in another process."""
    with tempfile.TemporaryDirectory() as scratch:
        asked, answer = Path(scratch, "task.json"), Path(scratch, "texts.json")
        asked.write_text(json.dumps(asdict(task)))
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            "from benchmarks.quality.words import child; child(*sys.argv[1:])"
        )
        command = [sys.executable, "-c", program, str(asked), str(answer)]
        ended = subprocess.run(command, capture_output=True, text=True)
        if not answer.is_file():
            last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
            return Texts(error=f"the process ended with status {ended.returncode}: {last}")
        return Texts(**json.loads(answer.read_text()))


def child(asked: str, answer: str) -> None:
    task = Task(**json.loads(Path(asked).read_text()))
    Path(answer).write_text(json.dumps(asdict(perform(task))))


# -- the comparison -------------------------------------------------------------------------------------


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.quality.words", description=(__doc__ or "").splitlines()[0]
    )
    add = made.add_argument
    add("audio", nargs="+", type=Path, help="recordings of English")
    add("--model", required=True, type=Path, help="folder as CTranslate2 converts it")
    add("--draft", help="draft of forescribe")
    add("--sense", type=Path, metavar="FILE", help="corrections by hand")
    add("--batch", type=int, default=8)
    add("--threads", type=int, default=provenance.cores())
    add("--json", type=Path, metavar="FILE", help="where the record goes")
    add("--only", action="append", choices=SYSTEMS, help="a program; may be given several times")
    add("--dtype", default="float32")
    add("--places", action="store_true", help="print every place where programs differ")
    return made.parse_args(arguments)


def spoken(audio: Sequence[Path], reference: Mapping[Path, str], sense: Sense) -> dict[Path, str]:
    """What is said in clean recordings, as it is compared."""
    texts = {}
    for path in audio:
        beside = path.with_suffix(".txt")
        text = beside.read_text() if beside.is_file() else None
        texts[path] = sense.words(text) if text else sense.corrected(path.stem, reference[path])
    return texts


def places(name: str, spoken: str, written: str) -> list[str]:
    """Where a text differs from what is spoken, with the words around."""
    said, heard = spoken.split(), written.split()
    lines = []
    for part in jiwer.process_words(spoken, written).alignments[0]:
        if part.type != "equal":
            before = " ".join(said[max(0, part.ref_start_idx - 4) : part.ref_start_idx])
            after = " ".join(said[part.ref_end_idx : part.ref_end_idx + 3])
            right = " ".join(said[part.ref_start_idx : part.ref_end_idx])
            wrong = " ".join(heard[part.hyp_start_idx : part.hyp_end_idx])
            lines.append(f"{name}: {before} [{right} / {wrong}] {after}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    systems: list[str] = options.only or [name for name in SYSTEMS if "hotwords" not in name]
    files = list(options.audio)
    with_text = [file.with_suffix(".txt").is_file() for file in files]

    def run(system: str) -> Texts:
        texts = apart(
            Task(
                system,
                str(options.model),
                options.draft,
                options.threads,
                options.batch,
                options.dtype,
                [str(file) for file in files],
            )
        )
        say(f"{system}: {texts.error or f'{texts.wall_s:.1f} s'}")
        return texts

    asked = systems if all(with_text) else [REFERENCE, *systems]
    results = {system: run(system) for system in dict.fromkeys(asked)}
    basis = Texts([""] * len(files)) if all(with_text) else results[REFERENCE]
    if basis.error is not None:
        say(f"the reference texts are missing: {basis.error}")
        return 2
    sense = Sense.read(options.sense)
    clean = spoken(files, dict(zip(files, basis.texts, strict=True)), sense)
    said, records = [clean[file] for file in files], []
    lines: list[Sequence[str]] = [HEAD]
    for system in systems:
        result = results[system]
        if result.error is not None:
            continue
        written = [sense.words(text) for text in result.texts]
        score, seconds = Score.of(said, written, result.marked), (result.wall_s, result.processor_s)
        lines.append(score.cells(system, seconds, marks=system.startswith("forescribe")))
        records.append({"system": system, **asdict(score), "seconds": seconds})
        if options.places:
            for file, right, text in zip(files, said, written, strict=True):
                print(*places(f"{system} {file.stem}", right, text), sep="\n")
    if not records:
        return 2
    print(f"{len(files)} recordings, {sum(len(text.split()) for text in said)} words")
    print(*layout(lines), sep="\n")
    if options.json:
        record = provenance.record("benchmarks.quality.words") | {"rows": records}
        options.json.write_text(json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
