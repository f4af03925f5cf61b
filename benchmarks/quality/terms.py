"""Names and terms: how many are written right with a list of them, and what a list costs.

    python -m benchmarks.quality.terms READERS/*.flac --model whisper-base --sense sense.tsv

`terms.tsv` has the terms that are spoken: recording, term and, where the text that is corrected by `--sense`
(see `benchmarks.quality.words`) has something else in its place, that and what is spoken there. A list of ten
holds those of a few recordings; one of a thousand those of all and names of languages. A term is false where
it is written and not spoken, unless it is written without a list too. `--without` are recordings in which
none is spoken: other people's speech, noise. Words are compared as by `words`. Needs `scripts/setup bench`.
Exit status: 0; 2 if nothing could be measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from string import ascii_lowercase

import jiwer
import langcodes

from benchmarks import provenance
from benchmarks.options import say
from benchmarks.quality.word_systems import Task
from benchmarks.quality.words import REFERENCE, Sense, measured, plain, spoken
from benchmarks.rows import layout

TERMS = Path(__file__).with_name("terms.tsv")
SMALL, LARGE = 10, 1000
WAYS = ("forescribe", "faster-whisper, hotwords", "faster-whisper, initial_prompt")
HEAD = (
    "",
    "list",
    "terms",
    "right",
    "%",
    "false",
    "per 1,000 words",
    "other errors",
    "%",
    "s",
    "without",
)


@dataclass(frozen=True)
class Said:
    """A term in a recording; `there` is what stands in its place in the text that is corrected."""

    recording: str
    term: str
    there: str
    spoken: str

    @classmethod
    def read(cls, file: Path) -> list[Said]:
        rows = (line.split("\t") for line in file.read_text().splitlines())
        return [
            cls(name, term, plain(more[0] if more else term), plain(more[-1] if more[1:] else term))
            for name, term, *more in rows
        ]


@dataclass(frozen=True)
class Score:
    """What was written with lists: terms, and the words around them."""

    terms: int
    right: int
    false: int
    words: int
    others: int
    others_wrong: int

    def cells(self) -> list[str]:
        shares = (
            f"{100 * self.right / self.terms:.1f}",
            f"{1000 * self.false / self.words:.2f}",
            f"{100 * self.others_wrong / self.others:.2f}",
        )
        numbers = (self.terms, self.right, shares[0], self.false, shares[1])
        return [*map(str, numbers), str(self.others_wrong), shares[2]]


def places(words: Sequence[str], terms: Sequence[str]) -> set[int]:
    """Where words of terms stand."""
    found = set[int]()
    for term in (term.split() for term in terms):
        for at in range(len(words) - len(term) + 1):
            if words[at : at + len(term)] == term:
                found.update(range(at, at + len(term)))
    return found


def wrong_around(said: Sequence[str], written: Sequence[str], inside: set[int]) -> int:
    """Errors of the words of `said` that are not `inside` terms."""
    count = 0
    for part in jiwer.process_words(" ".join(said), " ".join(written)).alignments[0]:
        own = set(range(part.ref_start_idx, part.ref_end_idx))
        if part.type == "insert":
            if not inside & {part.ref_start_idx - 1, part.ref_start_idx}:
                count += part.hyp_end_idx - part.hyp_start_idx
        elif part.type != "equal":
            count += len(own - inside)
    return count


def score(
    said: Mapping[str, str],
    written: Mapping[str, str],
    terms: Mapping[str, Sequence[str]],
    lists: Mapping[str, Sequence[str]],
    unlisted: Mapping[str, str],
) -> Score:
    """By recording: what is said, and written, as it is compared, the terms that are said, the list, and what
    is written without one."""
    right = false = words = others = wrong = count = 0
    for name, text in said.items():
        own = [plain(term) for term in terms.get(name, ())]
        spoken_there, here = text.split(), f" {written[name]} "
        inside = places(spoken_there, own)
        count += len(own)
        right += sum(f" {term} " in here for term in own)
        listed = {plain(term) for term in lists.get(name, ())}
        there = f" {text} | {unlisted[name]} "
        false += sum(f" {t} " in here and f" {t} " not in there for t in listed)
        words += len(spoken_there)
        others += len(spoken_there) - len(inside)
        wrong += wrong_around(spoken_there, here.split(), inside)
    return Score(count, right, false, words, others, wrong)


def names() -> Iterator[str]:
    """Names of languages, rare ones too, in an order of their own."""
    codes = ("".join(letters) for n in (2, 3) for letters in product(ascii_lowercase, repeat=n))
    known = {langcodes.Language.get(code).language_name() for code in codes}
    plain_names = sorted(n for n in known if "(" not in n and "Unknown" not in n and len(n) > 3)
    yield from sorted(plain_names, key=lambda name: (hash_of(name), name))


def hash_of(name: str) -> int:
    """A number without an order, the same in every run."""
    return sum(ord(letter) * 31**place for place, letter in enumerate(name)) % 99991


def lists_of(
    recordings: Sequence[str], terms: Mapping[str, Sequence[str]], size: int
) -> dict[str, tuple[str, ...]]:
    """The list of each recording: that of a few recordings with ten terms, filled up to `size`."""
    groups: list[list[str]] = [[]]
    for name in recordings:
        if sum(len(terms.get(n, ())) for n in groups[-1]) >= SMALL:
            groups.append([])
        groups[-1].append(name)
    every = [term for name in recordings for term in terms.get(name, ())]
    more = [*every, *names()] if size > SMALL else []
    lists: dict[str, tuple[str, ...]] = {}
    for group in groups:
        own = [term for name in group for term in terms.get(name, ())]
        lists |= dict.fromkeys(group, tuple(dict.fromkeys([*own, *more]))[: max(size, len(own))])
    return lists


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality.terms", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("audio", nargs="+", type=Path, help="recordings of English")
    add("--model", required=True, type=Path, help="folder as CTranslate2 converts it")
    add("--reference", type=Path, help="the model that wrote the texts which --sense corrects")
    add("--draft", help="draft of forescribe")
    add("--sense", type=Path, metavar="FILE", help="corrections by hand")
    add("--without", nargs="*", type=Path, default=[], help="recordings without any of the terms")
    add("--only", action="append", choices=WAYS, help="a way; may be given several times")
    add("--size", action="append", type=int, choices=(SMALL, LARGE), help="of the lists")
    add("--batch", type=int, default=8)
    add("--threads", type=int, default=provenance.cores())
    add("--texts", type=Path, metavar="DIR", help="keep the texts there, and reuse them")
    add("--json", type=Path, metavar="FILE", help="where the record goes")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    files = [str(file) for file in options.audio]

    def run(
        system: str,
        some: Sequence[str],
        lists: Sequence[Sequence[str]] = (),
        label: str = "",
        model: Path = options.model,
    ) -> dict[str, str]:
        if not some:
            return {}
        task = Task(
            system,
            str(model),
            options.draft,
            options.threads,
            options.batch,
            "float32",
            some,
            lists,
        )
        folder = options.texts and options.texts / (label or "none")
        found = measured(task, folder)
        say(f"{system}, {label or 'no list'}: {found.error or f'{found.wall_s:.1f} s'}")
        seconds[system, label] = found.wall_s
        return {Path(file).stem: text for file, text in zip(some, found.texts, strict=False)}

    seconds: dict[tuple[str, str], float] = {}
    basis = run(REFERENCE, files, model=options.reference or options.model)
    if not basis:
        return 2
    sense = Sense.read(options.sense)
    said = spoken(options.audio, {path: basis[path.stem] for path in options.audio}, sense)
    texts = {path.stem: f" {text} " for path, text in said.items()}
    terms: dict[str, list[str]] = {}
    for each in Said.read(TERMS):
        if each.recording in texts:
            text = texts[each.recording]
            texts[each.recording] = text.replace(f" {each.there} ", f" {each.spoken} ")
            terms.setdefault(each.recording, []).append(each.term)
    ordered = sorted(texts, key=lambda name: (name not in terms, name))
    paths = {path.stem: str(path) for path in options.audio}
    lines: list[Sequence[str]] = [HEAD]
    records = []
    for way in options.only or WAYS:
        system = way.partition(", ")[0]
        unlisted: dict[str, str] = {}
        for size in (0, *(options.size or (SMALL, LARGE))):
            lists = lists_of(ordered, terms, size) if size else {}
            label = str(size or "")
            chosen = [lists[name] for name in ordered] if size else ()
            written = run(way if size else system, [paths[n] for n in ordered], chosen, label)
            if not written:
                break  # without what it writes unlisted, nothing is known of lists
            compared = {n: sense.words(t) for n, t in written.items()}
            if not size:
                unlisted = compared
            result = score(texts, compared, terms, lists, unlisted)
            others, longest = (
                [str(f) for f in options.without],
                max(lists.values(), default=(), key=len),
            )
            heard = run(
                way if size else system, others, [longest] * len(others), f"{label} without"
            )
            false = sum(
                f" {plain(term)} " in f" {plain(text)} "
                for term, text in product(longest, heard.values())
            )
            wall = f"{seconds[way if size else system, label]:.1f}"
            lines.append([way, label or "-", *result.cells(), wall, str(false)])
            records.append({"way": way, "list": size, **asdict(result), "without": false})
    print(*layout(lines), sep="\n")
    if options.json:
        record = provenance.record("benchmarks.quality.terms") | {"rows": records}
        options.json.write_text(json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
