"""Wrong words: forescribe's ways of decoding, faster-whisper and openai-whisper on the same recordings.

    python -m benchmarks.quality.words READERS/*.flac --model whisper-base --hard 5 --sense sense.tsv

The text of a recording is in the `.txt` file beside it. Where there is none, it is what faster-whisper
writes with five beams, corrected by hand (`--sense`): a line holds the name of the recording, words of that
text, and the words that are spoken, between tabs; under the name `*` are two spellings of the same words.
Words are compared as by transformers' EnglishTextNormalizer. Needs `scripts/setup bench`, for openai-whisper
its package too. Exit status: 0; 2 if nothing could be measured.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import jiwer
import soundfile
from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

from benchmarks import provenance
from benchmarks.options import say
from benchmarks.quality.hard_audio import HARD, hard
from benchmarks.quality.word_systems import SYSTEMS, Task, Texts, apart
from benchmarks.rows import layout
from forescribe.asr.audio.reading import read_audio
from forescribe.asr.formats.transcript_parts import SAMPLE_RATE

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
        """The row of a table; the seconds are those of all sets together."""
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


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality.words", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("audio", nargs="+", type=Path, help="recordings of English")
    add("--model", required=True, type=Path, help="folder as CTranslate2 converts it")
    add("--draft", help="draft of forescribe")
    add("--sense", type=Path, metavar="FILE", help="corrections by hand")
    add("--hard", type=int, default=0, metavar="N", help="recordings made in each hard condition")
    add("--only", action="append", choices=SYSTEMS, help="a program; may be given several times")
    add("--batch", type=int, default=8)
    add("--dtype", default="float32")
    add("--threads", type=int, default=provenance.cores())
    add(
        "--texts",
        type=Path,
        metavar="DIR",
        help="keep the hard recordings and the texts there, and reuse them",
    )
    add("--places", action="store_true", help="print every place where programs differ")
    add("--json", type=Path, metavar="FILE", help="where the record goes")
    options = parser.parse_args(arguments)
    if options.hard and len(options.audio) < 2:
        parser.error("--hard needs two recordings or more: others speak behind each")
    return options


def make_hard(audio: Sequence[Path], count: int, folder: Path) -> dict[Path, Path]:
    """`count` recordings in each condition, with the clean recordings they are made of."""
    clean = [read_audio(path).astype("float64") for path in audio]
    made = {}
    for i, name in enumerate(HARD):
        for j in range(count):
            at = (7 * i + len(audio) * j // count + 3) % len(audio)
            others = clean[:at] + clean[at + 1 :]
            file = folder / f"{i:02}-{j:02}-{audio[at].stem}.flac"
            soundfile.write(file, hard(clean[at], name, 100 * i + j, others), SAMPLE_RATE)
            made[file] = audio[at]
    return made


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


def sets_of(files: Sequence[Path], made: Mapping[Path, Path]) -> dict[str, list[int]]:
    """The recordings of each table, by number; no empty table."""
    sets: dict[str, list[int]] = {"texts": [], "readers": [], "hard": []}
    for i, file in enumerate(files):
        with_text = file.with_suffix(".txt").is_file()
        sets["hard" if file in made else "texts" if with_text else "readers"].append(i)
    return {name: members for name, members in sets.items() if members}


def measured(task: Task, folder: Path | None) -> Texts:
    """What a program writes; read from `folder` where the same was measured before."""
    with tempfile.TemporaryDirectory() as scratch:
        if folder is None:
            return apart(task, Path(scratch))
        kept = folder / f"{task.system} {Path(task.model).name}.json".replace(" ", "-")
        if kept.is_file():
            record = json.loads(kept.read_text())
            if record["task"] == json.loads(json.dumps(asdict(task))):
                return Texts(**record["texts"])
        texts = apart(task, Path(scratch))
        if texts.error is None:
            folder.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps({"task": asdict(task), "texts": asdict(texts)}))
        return texts


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    systems: list[str] = options.only or list(SYSTEMS)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.texts or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        made = make_hard(options.audio, options.hard, folder) if options.hard else {}
        files = [*options.audio, *made]

        def run(system: str) -> Texts:
            task = Task(
                system,
                str(options.model),
                options.draft,
                options.threads,
                options.batch,
                options.dtype,
                [str(file) for file in files],
            )
            texts = measured(task, options.texts)
            say(f"{system}: {texts.error or f'{texts.wall_s:.1f} s'}")
            return texts

        results = {system: run(system) for system in dict.fromkeys([REFERENCE, *systems])}
    basis = results[REFERENCE]
    if basis.error is not None:
        say(f"the reference texts are missing: {basis.error}")
        return 2
    sense = Sense.read(options.sense)
    clean = spoken(options.audio, dict(zip(files, basis.texts, strict=True)), sense)
    said = [clean[made.get(file, file)] for file in files]
    records = []
    for name, members in sets_of(files, made).items():
        lines: list[Sequence[str]] = [HEAD]
        for system in systems:
            result = results[system]
            if result.error is not None:
                continue
            written = [sense.words(result.texts[i]) for i in members]
            score = Score.of(
                [said[i] for i in members], written, [result.marked[i] for i in members]
            )
            seconds = (result.wall_s, result.processor_s)
            lines.append(score.cells(system, seconds, marks=system.startswith("forescribe")))
            records.append({"set": name, "system": system, **asdict(score), "seconds": seconds})
            if options.places:
                for i, text in zip(members, written, strict=True):
                    print(*places(f"{system} {files[i].stem}", said[i], text), sep="\n")
        print(f"\n{name}: {len(members)} recordings, {score.words} words")
        print(*layout(lines), sep="\n")
    if options.json:
        record = provenance.record("benchmarks.quality.words") | {"rows": records}
        options.json.write_text(json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
