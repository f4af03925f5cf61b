"""The whole way on a device, with published weights and recordings of people: files to transcripts with word
times and speakers, uploads, live streams.

`real` tells what the device writes beside a CPU in float32, and how fast. Uploads go to the service as
`benchmarks.replayed_service` runs it, live streams are those of `benchmarks.live`.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import soundfile
import torch

from benchmarks import live as live_program
from benchmarks import provenance
from benchmarks.gpu.sections import Bench, Record
from benchmarks.replayed_service import Clip, application, load
from forescribe.asr.audio.reading import read_audio
from forescribe.asr.decode.options import Guards, Options
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.formats.transcript import Transcript
from forescribe.diarize.engines.registry import load as load_diarizer
from forescribe.diarize.speaker_finder import SpeakerFinder

RATE = 16_000
DRAFT = "tiny.en"
"""Of all published models, with an encoder and token ids of its own where it is not the bundled one's."""
CALM = -60.0  # decibels of quiet recordings, whose windows are amplified
MOST_S, SMALL_S = 60.0, 5.0
"""Seconds of a recording that a CPU transcribes too; the second in a rehearsal."""
LENGTHS_S = (2.0, 4.0, 7.0, 12.0, 20.0, 29.0, 45.0, 60.0)
"""Of uploads, in turn. Most are one window long, some two or three."""

WAYS: dict[str, Options] = {
    "words": Options(words=True, guards=Guards()),
    "five beams": Options(beam_size=5),
    "beams where doubtful": Options(beam_size="auto"),
    "sampled": Options(guards=Guards(temperatures=(0.8,), compression_ratio=None, logprob=None)),
    "terms": Options(terms=("Gutenberg", "flour")),
    "quiet": Options(),
}
"""Parts of the way that code of devices takes part in. Recordings of the last one are quiet."""


def real(bench: Bench) -> Record:
    """Every model of `bench.real`: what the device writes beside a CPU, then how fast it is."""
    record = bench.record
    for model in bench.real:
        found = record[Path(model).name] = Record()
        with TemporaryDirectory() as name:
            paths = pieces(bench.voices, Path(name), SMALL_S if bench.small else MOST_S)
            expected = expectations(bench, model, paths)
            cuda = bench.device.kind == "cuda"
            for dtype in ("float32", "float16") if cuda else ("float32",):
                bench.figure(found, dtype, partial(beside, bench, model, dtype, paths, expected))
        bench.figure(found, "speed", partial(speed, bench, model))
    bench.figure(record, "speakers", partial(speakers, bench))
    return record


@dataclass(frozen=True)
class Heard:
    """What is compared of a transcript."""

    text: str
    starts_s: Sequence[float]  # of words, where they were timed


Texts = Mapping[str, Heard]
"""By the stem of a file."""


def expectations(bench: Bench, model: str, paths: Mapping[str, Sequence[Path]]) -> dict[str, Texts]:
    """What a CPU writes in float32, by way: from the file of an earlier run where it has that, as a machine
    with a card has better things to do; else it is computed, and written there."""
    known = json.loads(bench.expected.read_text()) if bench.expected.is_file() else {}
    key = Path(model).name
    if key not in known:
        cpu = Transcriber.load(
            model, device="cpu", dtype="float32", batch=8, network=False, beam_size=1
        )
        known[key] = {
            way: {stem: asdict(each) for stem, each in written(cpu, paths[way], options).items()}
            for way, options in WAYS.items()
        }
        bench.expected.write_text(json.dumps(known))
    return {
        way: {stem: Heard(**each) for stem, each in texts.items()}
        for way, texts in known[key].items()
    }


def draft_of(model: str) -> str | None:
    """None: the model's own."""
    return None if model == DRAFT else DRAFT


def pieces(sources: Sequence[Path], folder: Path, most_s: float) -> dict[str, list[Path]]:
    """Files with the beginnings of recordings by way, and of the way `quiet` with all of them quiet."""
    made: dict[str, list[Path]] = {way: [] for way in WAYS}
    for number, source in enumerate(sources):
        samples = read_audio(source)[: round(most_s * RATE)]
        for level in (0.0, CALM):
            path = folder / f"{number:02}{level:+.0f}.wav"
            soundfile.write(path, samples * 10 ** (level / 20), RATE, subtype="FLOAT")
            for way in made:
                made[way] += [path] if (way == "quiet") == (level == CALM) else []
    return made


def written(transcriber: Transcriber, paths: Sequence[Path], options: Options) -> dict[str, Heard]:
    """Texts and word times by the stem of a file. Raises what one failed with."""
    found = transcripts(transcriber, paths, options)
    return {
        name: Heard(each.text, [word.start for word in each.words]) for name, each in found.items()
    }


def transcripts(
    transcriber: Transcriber, paths: Sequence[Path], options: Options
) -> dict[str, Transcript]:
    found = {}
    for outcome in transcriber.transcribe(paths, options):
        if outcome.transcript is None:
            raise outcome.error or RuntimeError(f"{outcome.name} has no transcript")
        found[Path(outcome.name).stem] = outcome.transcript
    return found


def beside(
    bench: Bench,
    model: str,
    dtype: str,
    paths: Mapping[str, Sequence[Path]],
    expected: Mapping[str, Texts],
) -> Record:
    """The device beside the CPU, and drafts beside none. In float32 all texts must be equal; in half
    precision near-ties may flip, and words that differ are counted."""
    record: Record = {}
    loaded = Transcriber.load(
        model,
        draft_of(model),
        device=bench.device.name,
        dtype=dtype,
        batch=8,
        gamma=5,
        network=False,
        beam_size=1,
    )
    for way, options in WAYS.items():
        found = written(loaded, paths[way], options)
        record[way] = difference(expected[way], found)
        plain = written(loaded, paths[way], replace(options, gamma=0))
        record[f"{way}, without drafts"] = difference(plain, found)
        if dtype == "float32":
            name = f"{Path(model).name} in {dtype}, {way}"
            bench.unequal += [
                f"{name}: {record[each]['differ']} texts differ from {what}"
                for each, what in ((way, "a CPU's"), (f"{way}, without drafts", "plain decoding's"))
                if record[each]["differ"]
            ]
    record["faults"] = loaded.stats().faults
    return record


def difference(first: Texts, second: Texts) -> Record:
    """Texts and words that differ, and by how much equal words are apart."""
    differ = words = changed = 0
    apart = [0.0]
    for name, one in first.items():
        other = second[name]
        differ += one.text != other.text
        a, b = one.text.split(), other.text.split()
        blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
        words, changed = words + len(a), changed + max(len(a), len(b)) - sum(m.size for m in blocks)
        if one.text == other.text:
            apart += [abs(x - y) for x, y in zip(one.starts_s, other.starts_s, strict=True)]
    return {
        "texts": len(first),
        "differ": differ,
        "words": words,
        "words_differ": changed,
        "word_starts_apart_s": round(max(apart), 3),
    }


def speakers(bench: Bench) -> Record:
    """Turns on the device and on a CPU."""
    samples = read_audio(provenance.ROOT / "samples" / "conversation.flac")
    samples = samples[: (20 if bench.small else 120) * RATE]
    turns = [
        [
            (turn.speaker, turn.start_sample, turn.end_sample)
            for turn in load_diarizer("embedded", device=place).diarize(samples).regular
        ]
        for place in ("cpu", bench.device.name)
    ]
    same = [a[0] for a in turns[0]] == [b[0] for b in turns[1]]
    if not same:
        bench.unequal.append("speakers: other turns than a CPU's")
    apart = [max(abs(a[1] - b[1]), abs(a[2] - b[2])) / RATE for a, b in zip(*turns, strict=False)]
    return {"turns": len(turns[0]), "equal": same, "apart_s": max(apart, default=0.0)}


def speed(bench: Bench, model: str) -> Record:
    """One long recording and many short ones, times real time, from files to transcripts."""
    record: Record = {}
    minutes, count = (0.3, 4) if bench.small else (20.0, 256)
    with TemporaryDirectory() as name:
        whole = np.concatenate([read_audio(path) for path in bench.voices])
        long, short = Path(name, "long.wav"), []
        soundfile.write(long, np.resize(whole, round(60 * minutes * RATE)), RATE, subtype="PCM_16")
        for number in range(count):
            piece = np.roll(whole, -7 * RATE * number)[: (3 if bench.small else 15) * RATE]
            short.append(Path(name, f"{number:03}.wav"))
            soundfile.write(short[-1], piece, RATE, subtype="PCM_16")
        batch = max(bench.batches)
        loaded = Transcriber.load(
            model,
            draft_of(model),
            device=bench.device.name,
            batch=batch,
            network=False,
            beam_size=1,
        )
        finder = SpeakerFinder(load_diarizer("embedded", device=bench.device.name))
        for what, paths in (("one long", [long]), ("many short", short)):
            for how, transcriber, options in (
                ("text", loaded, Options()),
                ("words", loaded, Options(words=True, guards=Guards())),
                ("words and speakers", loaded.with_speakers(finder), Options(guards=Guards())),
            ):
                given = partial(timed, transcriber, paths, options)
                bench.figure(record, f"{what}, {how}", given)
    return record


def timed(transcriber: Transcriber, paths: Sequence[Path], options: Options) -> Record:
    """Seconds of a second pass, whole and by stage."""
    transcripts(transcriber, paths[:64], options)
    before, began = transcriber.stats(), time.perf_counter()
    found = transcripts(transcriber, paths, options)
    wall_s = time.perf_counter() - began
    stats = transcriber.stats() - before
    audio_s = sum(each.duration for each in found.values())
    return {
        "times_real_time": round(audio_s / wall_s, 1),
        "wall_s": round(wall_s, 2),
        "audio_s": round(audio_s, 1),
        "words": sum(len(each.text.split()) for each in found.values()),
        "tokens_per_row_round": round(stats.mean_acceptance_length, 2),
        "stages_s": {stage: round(s, 2) for stage, s in stats.seconds.items()},
    }


def service(bench: Bench) -> Record:
    """Uploads by 64 clients at a time, beside the same recordings in one call."""
    for model in bench.real:
        bench.figure(bench.record, Path(model).name, partial(uploads, bench, model))
    return bench.record


def uploads(bench: Bench, model: str) -> Record:
    clients, requests = (2, 4) if bench.small else (64, 256)
    whole = np.concatenate([read_audio(path) for path in bench.voices])
    clips = [clip(whole, n, 3.0 if bench.small else None) for n in range(requests)]
    loaded = Transcriber.load(
        model,
        draft_of(model),
        device=bench.device.name,
        batch=max(bench.batches),
        network=False,
        beam_size=1,
    )
    with TemporaryDirectory() as name:
        paths = [Path(name, f"{each.name}.flac") for each in clips]
        for path, each in zip(paths, clips, strict=True):
            path.write_bytes(each.data)
        alone = timed(loaded, paths, Options(language="en", guards=Guards()))
        found = transcripts(loaded, paths, Options(language="en", guards=Guards()))
    fields = {"model": "whisper-1", "language": "en"}
    with application(loaded, clients) as address:
        load(f"http://{address}", clips[:clients], clients, fields)  # what is loaded with the first
        wall_s, answers = load(f"http://{address}", clips, clients, fields)
    differ = sum(answer.text != found[answer.clip.name].text for answer in answers)
    if differ and bench.device.dtype == torch.float32:  # in half precision near-ties may flip
        bench.unequal.append(f"service, {Path(model).name}: {differ} texts differ from a call's")
    late = np.percentile([answer.latency_s for answer in answers], (50, 95))
    return {
        "clients": clients,
        "times_real_time": round(alone["audio_s"] / wall_s, 1),
        "share_of_a_call": round(alone["wall_s"] / wall_s, 3),
        "wall_s": round(wall_s, 2),
        "p50_s": round(float(late[0]), 3),
        "p95_s": round(float(late[1]), 3),
        "texts": len(answers),
        "differ": differ,
    }


def clip(whole: np.ndarray, number: int, length_s: float | None) -> Clip:
    """A piece of the recordings, as FLAC."""
    length_s = length_s or LENGTHS_S[number % len(LENGTHS_S)]
    part = np.take(whole, np.arange(round(length_s * RATE)) + 7 * RATE * number, mode="wrap")
    file = io.BytesIO()
    soundfile.write(file, part, RATE, format="FLAC", subtype="PCM_16")
    return Clip(f"{number:03}", file.getvalue(), length_s)


def live(bench: Bench) -> Record:
    """Live streams at the pace of the clock: the age of the newest sample when its words are known."""
    streams = "1,2" if bench.small else "32,128"
    with TemporaryDirectory() as name:
        for model in bench.real:
            arguments = [*map(str, bench.voices), "--model", model, "--streams", streams]
            arguments += ["--device", bench.device.name, "--ways", "guess + draft"]
            arguments += ["--seconds", "3" if bench.small else "10", "--json", f"{name}/live.json"]
            arguments += ["--dtype", str(bench.device.dtype).removeprefix("torch.")]
            measure = partial(streamed, Path(name, "live.json"), arguments)
            bench.figure(bench.record, Path(model).name, measure)
    return bench.record


def streamed(path: Path, arguments: list[str]) -> Record:
    """The rows of `benchmarks.live`, by number of streams."""
    live_program.main(arguments)
    return {
        f"{count} streams": dict(zip(("p50_s", "p95_s", "late_p95_s", "decodes"), row, strict=True))
        for _, count, *row in json.loads(path.read_text())["rows"]
    }
