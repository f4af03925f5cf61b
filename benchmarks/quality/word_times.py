"""Errors of word times, on synthetic speech with known word times.

    python -m benchmarks.quality.word_times --json words.json

Held-out sentences in held-out voices, one recording per voice, are transcribed as by the command, with
voice activity detection, windows and the model's text. Correct words are compared. Needs the libraries of
flite and espeak-ng (Debian: libflite1, libespeak-ng1). Exit status: 0; 1 if a target is missed; 2 if
nothing could be measured.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import soundfile
import torch

from benchmarks import provenance
from benchmarks.rows import layout
from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.errors import ForescribeError
from training.sentences import meeting
from training.sentences.held_out import held_out, read_lines
from training.speech.timed_speech import TimedSpeech, lay, speak_timed
from training.speech.voices import RATE, Voice, held_out_voices
from training.speech.word_errors import MEDIAN_S, P95_S, WordErrors, compare, quantile

SEED = 17
HEAD = ("voice", "words", "matched", "start median", "p95", "end median", "p95", "both", "p95")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality.word_times", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("--model", default="tiny.en", help="preset, hub id in the cache, or folder")
    add("--per-voice", type=int, default=34, help="sentences in each of the nine voices")
    add("--voices", type=int, help="only the first so many")
    add("--batch", type=int, default=8)
    add("--threads", type=int, default=torch.get_num_threads())
    add("--json", type=Path, metavar="FILE", help="where the record goes")
    return parser.parse_args(arguments)


def recording(texts: Sequence[str], voice: Voice, rng: np.random.Generator) -> TimedSpeech:
    """The sentences one after the other; those whose words cannot be told apart are left out."""
    parts = []
    for text in texts:
        try:
            parts.append(speak_timed(text, voice))
        except ValueError:
            continue
    return lay(parts, rng)


def material(per_voice: int, voices: Sequence[Voice]) -> dict[str, TimedSpeech]:
    """By voice; every sentence once, both sets in turn."""
    rng, texts = np.random.default_rng(SEED), mixed(sentence_sets())
    return {
        f"{voice.engine} {voice.name}": recording(
            [texts[(n * per_voice + i) % len(texts)] for i in range(per_voice)], voice, rng
        )
        for n, voice in enumerate(voices)
    }


def sentence_sets() -> dict[str, list[str]]:
    """`domain`, held-out sentences of the meeting grammar, and `open`, written ones."""
    domain = [t for t in meeting.sentences(12_000, seed=2024) if held_out(t)]
    return {"domain": domain[:200], "open": read_lines("open_eval.txt")}


def mixed(sets: dict[str, list[str]]) -> list[str]:
    """Domain, domain, open, domain, ...: in the proportion of the sets."""
    rows = [
        (place / len(texts), text) for texts in sets.values() for place, text in enumerate(texts)
    ]
    return [text for _, text in sorted(rows)]


def measure(transcriber: Transcriber, spoken: dict[str, TimedSpeech]) -> dict[str, WordErrors]:
    """All recordings together, so that their windows share the batch."""
    sources = {wav(speech): name for name, speech in spoken.items()}
    found = {}
    for outcome in transcriber.transcribe(list(sources), Options(language="en", words=True)):
        if outcome.error is not None:
            raise outcome.error
        assert isinstance(outcome.source, bytes) and outcome.transcript is not None
        written = [word for segment in outcome.transcript.segments for word in segment.words or ()]
        name = sources[outcome.source]
        found[name] = compare(spoken[name].words, written)
    return {name: found[name] for name in spoken}


def wav(speech: TimedSpeech) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.clip(speech.samples, -1, 1), RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()


def table(rows: dict[str, WordErrors]) -> str:
    def cells(name: str, errors: WordErrors) -> tuple[str, ...]:
        sides = (errors.starts, errors.ends, errors.both)
        figures = [quantile(side, share) for side in sides for share in (0.5, 0.95)]
        share = f"{errors.matched / max(1, errors.spoken):.1%}"
        return (name, str(errors.spoken), share, *(f"{1000 * each:.0f}" for each in figures))

    return "\n".join(layout([HEAD, *(cells(name, errors) for name, errors in rows.items())]))


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    voices = held_out_voices()[: options.voices]
    try:
        spoken = material(options.per_voice, voices)
        transcriber = Transcriber.load(options.model, batch=options.batch, network=False)
        rows = measure(transcriber, spoken)
    except (ForescribeError, OSError) as error:
        print(f"benchmarks.quality.word_times: {error}", file=sys.stderr)
        return 2
    total = sum(rows.values(), WordErrors())
    seconds = sum(len(speech.samples) for speech in spoken.values()) / RATE
    print(
        f"{options.model}: {options.per_voice * len(voices)} sentences, {seconds / 60:.1f} minutes; "
        "errors in ms"
    )
    print(table(rows | {"all": total}))
    bias = [1000 * float(np.median(side)) if side else 0.0 for side in (total.starts, total.ends)]
    print(f"median signed error: starts {bias[0]:+.0f} ms, ends {bias[1]:+.0f} ms")
    print(
        f"targets (median {MEDIAN_S} s, p95 {P95_S} s): {'met' if total.within_aims else 'missed'}"
    )
    if options.json is not None:
        record = provenance.record("benchmarks.quality.word_times") | {
            "benchmark": "words",
            "seed": SEED,
        }
        record |= {"model": options.model, "seconds": seconds}
        record |= {"rows": {name: asdict(errors) for name, errors in rows.items()}}
        options.json.write_text(json.dumps(record) + "\n")
    return 0 if total.within_aims else 1


if __name__ == "__main__":
    sys.exit(main())
