"""Names and terms: how many are written right with a list of them, and what a list costs.

    python -m benchmarks.quality.terms READERS/*.flac --model whisper-base --sense sense.tsv

`terms.tsv` has the terms that are spoken: recording, term and, where the text that is corrected by `--sense`
(see `benchmarks.quality.words`) has something else in its place, that and what is spoken there. A list of ten
holds those of a few recordings; one of a thousand those of all and names of languages. A term is false where
it is written and not spoken, unless it is written without a list too. Words are compared as by `words`. Needs
`scripts/setup bench`. Exit status: 0; 2 if nothing could be measured.
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
from benchmarks.comparison import layout, say
from benchmarks.quality.words import REFERENCE, Sense, Task, apart, parser, plain, spoken

TERMS = Path(__file__).with_name("terms.tsv")
SMALL, LARGE = 10, 1000
WAYS = ("forescribe", "faster-whisper, hotwords")
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
    made = parser("benchmarks.quality.terms", __doc__)
    add = made.add_argument
    add("--reference", type=Path, help="the model that wrote the texts which --sense corrects")
    add("--only", action="append", choices=WAYS, help="a way; may be given several times")
    add("--size", action="append", type=int, choices=(SMALL, LARGE), help="of the lists")
    return made.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    paths = {path.stem: str(path) for path in options.audio}

    def run(
        system: str, model: Path, names: Sequence[str], lists: Mapping[str, Sequence[str]]
    ) -> tuple[dict[str, str], float]:
        files, terms = [paths[name] for name in names], [lists.get(name, ()) for name in names]
        found = apart(
            Task(
                system,
                str(model),
                options.draft,
                options.threads,
                options.batch,
                "float32",
                files,
                terms if lists else (),
            )
        )
        what = f"{max(map(len, terms), default=0)} terms"
        say(f"{system}, {what}: {found.error or f'{found.wall_s:.1f} s'}")
        return dict(zip(names, found.texts, strict=False)), found.wall_s

    basis = dict.fromkeys(paths, "")
    if not all(path.with_suffix(".txt").is_file() for path in options.audio):
        basis, _ = run(REFERENCE, options.reference or options.model, list(paths), {})
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
    if not terms:
        say(f"none of the recordings is in {TERMS.name}")
        return 2
    ordered = sorted(texts, key=lambda name: (name not in terms, name))
    lines: list[Sequence[str]] = [HEAD]
    records = []
    for way in options.only or WAYS:
        unlisted: dict[str, str] = {}
        for size in (0, *(options.size or (SMALL, LARGE))):
            lists = lists_of(ordered, terms, size) if size else {}
            system = way if size else way.partition(", ")[0]
            written, wall_s = run(system, options.model, ordered, lists)
            if not written:
                break  # without what it writes unlisted, nothing is known of lists
            compared = {n: sense.words(t) for n, t in written.items()}
            unlisted = unlisted or compared
            result = score(texts, compared, terms, lists, unlisted)
            lines.append([way, str(size or "-"), *result.cells(), f"{wall_s:.1f}"])
            records.append({"way": way, "list": size, **asdict(result)})
    print(*layout(lines), sep="\n")
    if options.json:
        record = provenance.record("benchmarks.quality.terms") | {"rows": records}
        options.json.write_text(json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
