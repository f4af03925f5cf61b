"""Inserted words per hour in recordings without speech: silence, noise and music.

    python -m benchmarks.quality.silence --json silence.json

Each kind of sound at each level is a recording of `--minutes`, transcribed with default options and with
guards, both with and without voice activity detection. Exit status: 0; 1 if a word is written with voice
activity detection and guards; 2 if nothing could be measured.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import soundfile
import torch

from benchmarks import provenance
from benchmarks.quality import sounds
from benchmarks.rows import layout
from forescribe.asr.decode.options import Guards
from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.errors import ForescribeError

SETTINGS = {
    "default": Options(language="en"),
    "guards": Options(language="en", guards=Guards()),
    "no vad": Options(language="en", vad=False),
    "no vad, guards": Options(language="en", vad=False, guards=Guards()),
}
AIM = "guards"
"""The setting that must write nothing."""


@dataclass(frozen=True)
class Heard:
    """The words of one setting for one recording."""

    kind: str
    level_db: float
    way: str
    minutes: float
    decoded_s: float  # passed to the model
    words: int
    text: str


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality.silence", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("--model", default="tiny.en", help="preset, hub id in the cache, or folder")
    add("--minutes", type=float, default=10, help="of each kind and level")
    add("--kinds", nargs="+", choices=list(sounds.KINDS), default=list(sounds.KINDS))
    add("--ways", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    add("--batch", type=int, default=8)
    add("--threads", type=int, default=torch.get_num_threads())
    add("--json", type=Path, metavar="FILE", help="where the record goes")
    return parser.parse_args(arguments)


def listen(
    transcriber: Transcriber, kinds: Sequence[str], ways: Sequence[str], minutes: float
) -> Iterator[Heard]:
    """Transcribe all kinds at all levels with all settings. Raises the error of a recording."""
    for kind in kinds:
        for level in sounds.KINDS[kind][1]:
            source = recording(kind, level, minutes)
            for way in ways:
                (outcome,) = transcriber.transcribe([source], SETTINGS[way])
                if outcome.transcript is None:
                    raise outcome.error or AssertionError("neither transcript nor error")
                text = outcome.transcript.text
                heard_s = outcome.transcript.coverage.decoded_samples / sounds.RATE
                yield Heard(kind, level, way, minutes, heard_s, len(text.split()), text)


def recording(kind: str, level: float, minutes: float) -> bytes:
    """Write the sound to a file, with a seed from its name, so that partial runs are reproducible."""
    seed = zlib.crc32(f"{kind} {level}".encode())
    samples = sounds.make(kind, level, round(minutes * 60 * sounds.RATE), seed)
    file = io.BytesIO()
    soundfile.write(file, samples, sounds.RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()


def per_hour(rows: Sequence[Heard]) -> float:
    return 60 * sum(row.words for row in rows) / sum(row.minutes for row in rows)


def table(rows: Sequence[Heard], ways: Sequence[str]) -> str:
    """Words per hour: one line for each sound, the last for all."""
    names = list(dict.fromkeys((row.kind, row.level_db) for row in rows))
    lines: list[tuple[str, ...]] = [("sound", *ways)]
    for kind, level in names:
        mine = [row for row in rows if (row.kind, row.level_db) == (kind, level)]
        name = kind if kind == "silence" else f"{kind} {level:g} dB"
        lines.append(
            (name, *(f"{per_hour([r for r in mine if r.way == way]):.0f}" for way in ways))
        )
    total = (f"{per_hour([row for row in rows if row.way == way]):.1f}" for way in ways)
    return "\n".join(layout([*lines, ("all", *total)]))


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    rows = []
    try:
        transcriber = Transcriber.load(options.model, batch=options.batch, network=False)
        for row in listen(transcriber, options.kinds, options.ways, options.minutes):
            rows.append(row)
            if row.words:
                print(f"{row.kind} {row.level_db:g} dB, {row.way}: {row.text[:100]!r}", flush=True)
    except ForescribeError as error:
        print(f"benchmarks.quality.silence: {error}", file=sys.stderr)
        return 2
    print(f"{options.model}: inserted words per hour, {options.minutes:g} minutes of each sound\n")
    print(table(rows, options.ways))
    if options.json is not None:
        record = provenance.record("benchmarks.quality.silence") | {"benchmark": "silence"}
        record |= {"model": options.model, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(record) + "\n")
    return int(any(row.words for row in rows if row.way == AIM))


if __name__ == "__main__":
    sys.exit(main())
