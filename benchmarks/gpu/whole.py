"""The whole way on a device: files to transcripts with word times and speakers, the service, live streams.

`real` uses published weights and recordings of people: what the device writes beside a CPU in float32.
`whole` uses the constructed pair, whose texts are known at large-v3's dimensions. The service and live
streams are the programs `benchmarks.service` and `benchmarks.live`.
"""

from __future__ import annotations

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
from benchmarks import service as service_program
from benchmarks.gpu.folders import RATE, Folders, folders, kinds
from benchmarks.gpu.sections import Bench, Record
from forescribe.asr.audio.reading import read_audio
from forescribe.asr.decode.options import Guards, Options
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.formats.transcript import Transcript
from forescribe.diarize.engines.registry import load as load_diarizer
from forescribe.diarize.speaker_finder import SpeakerFinder

AGREEMENT = 0.8
DRAFT = "tiny.en"
"""Of all published models, with an encoder and token ids of its own where it is not the bundled one's."""
CALM = -60.0  # decibels of quiet recordings, whose windows are amplified
MOST_S, SMALL_S = 60.0, 5.0
"""Seconds of a recording that a CPU transcribes too; the second in a rehearsal."""

WAYS: dict[str, Options] = {
    "words": Options(words=True, guards=Guards()),
    "five beams": Options(beam_size=5),
    "beams where doubtful": Options(beam_size=None),
    "previous text": Options(initial_prompt="A talk.", vad=False, guards=Guards()),
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

    @classmethod
    def of(cls, transcript: Transcript) -> Heard:
        return cls(transcript.text, [word.start for word in transcript.words])


Texts = Mapping[str, Heard]
"""By the stem of a file."""


def expectations(bench: Bench, model: str, paths: Mapping[str, Sequence[Path]]) -> dict[str, Texts]:
    """What a CPU writes in float32, by way: from the file of an earlier run where it has that, as a machine
    with a card has better things to do; else it is computed, and written there."""
    known = json.loads(bench.expected.read_text()) if bench.expected.is_file() else {}
    key = Path(model).name
    if key not in known:
        cpu = Transcriber.load(model, device="cpu", dtype="float32", batch=8, network=False)
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
        with soundfile.SoundFile(source) as file:
            samples = file.read(round(most_s * file.samplerate), dtype="float32")
            rate = file.samplerate
        for level in (0.0, CALM):
            path = folder / f"{number:02}{level:+.0f}.wav"
            soundfile.write(path, samples * 10 ** (level / 20), rate, subtype="FLOAT")
            for way in made:
                made[way] += [path] if (way == "quiet") == (level == CALM) else []
    return made


def written(transcriber: Transcriber, paths: Sequence[Path], options: Options) -> dict[str, Heard]:
    """Transcripts by the stem of a file. Raises what one failed with."""
    return {name: Heard.of(each) for name, each in transcripts(transcriber, paths, options).items()}


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
        same = sum(
            m.size for m in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
        )
        words, changed = words + len(a), changed + max(len(a), len(b)) - same
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
    samples, rate = soundfile.read(
        provenance.ROOT / "samples" / "conversation.flac", dtype="float32"
    )
    samples = samples[: (20 if bench.small else 120) * rate]
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
        whole, rate = joined(bench.voices), RATE
        long, short = Path(name, "long.wav"), []
        soundfile.write(long, np.resize(whole, round(60 * minutes * rate)), rate, subtype="PCM_16")
        for number in range(count):
            piece = np.roll(whole, -7 * rate * number)[: (3 if bench.small else 15) * rate]
            short.append(Path(name, f"{number:03}.wav"))
            soundfile.write(short[-1], piece, rate, subtype="PCM_16")
        batch = max(bench.batches)
        loaded = Transcriber.load(
            model, draft_of(model), device=bench.device.name, batch=batch, network=False
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


def joined(paths: Sequence[Path]) -> np.ndarray:
    """Recordings one after the other, at 16 kHz."""
    return np.concatenate([read_audio(path) for path in paths])


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


def whole(bench: Bench) -> Record:
    """The constructed pair from folders: files to transcripts whose texts are known, by batch."""
    record = bench.record
    seconds, count = (60.0, 4) if bench.small else (1200.0, 256)
    with folders(bench.models, AGREEMENT) as made:
        place, known = made.model.parent, list(kinds(bench.dimensions))
        long = [made.write(place / f"long-{known[0]}.wav", known[0], seconds)]
        source = {kind: made.write(place / f"{kind}.wav", kind, 29.0) for kind in known}
        short = []
        for number in range(count):
            kind = known[number % len(known)]
            short.append(place / f"{number:03}-{kind}.wav")
            short[-1].symlink_to(source[kind])
        for batch in sorted({max(1, max(bench.batches) // 4), max(bench.batches)}, reverse=True):
            loaded = Transcriber.load(
                str(made.model),
                str(made.draft),
                device=bench.device.name,
                dtype=str(bench.device.dtype).removeprefix("torch."),
                batch=batch,
                network=False,
            )
            for what, paths in (("one long", long), ("many short", short)):
                for how in ("text", "words"):
                    name = f"{what}, {how}, batch {batch}"
                    given = partial(transcribed, bench, name, made, loaded, paths, how == "words")
                    bench.figure(record, name, given)
            del loaded
    return record


def transcribed(
    bench: Bench,
    name: str,
    made: Folders,
    loaded: Transcriber,
    paths: Sequence[Path],
    words: bool,
) -> Record:
    """As `timed`; and every window of a file has the text of its class."""
    options = Options(language="en", vad=False, words=words, guards=Guards())
    found = timed(loaded, paths, options)
    wrong = 0
    for stem, transcript in transcripts(loaded, paths[:64], options).items():
        text = made.text(int(stem.rpartition("-")[2]))
        wrong += transcript.text != " ".join([text] * len(transcript.segments))
    if wrong:
        bench.unequal.append(f"{name}: {wrong} transcripts differ")
    return {"texts": min(64, len(paths)), "differ": wrong} | found


def service(bench: Bench) -> Record:
    """64 uploads at a time: published weights with voices, then large-v3's dimensions."""
    record = bench.record
    with folders(bench.models, AGREEMENT) as made, TemporaryDirectory() as name:
        voices = Path(name, "voices.wav")
        soundfile.write(voices, joined(bench.voices), RATE, subtype="PCM_16")
        kind = kinds(bench.dimensions)[0]
        noise = made.write(made.model.parent / "noise.wav", kind, 60.0)
        given = ["--model", str(made.model), "--draft", str(made.draft), "--no-vad", str(noise)]
        shown = bench.dimensions.name
        bench.figure(record, shown, partial(uploads, bench, shown, Path(name), given))
        for model in bench.real:
            given = ["--model", model, str(voices)]
            shown = Path(model).name
            bench.figure(record, shown, partial(uploads, bench, shown, Path(name), given))
    return record


def uploads(bench: Bench, name: str, folder: Path, given: list[str]) -> Record:
    """The record of `benchmarks.service`."""
    clients, requests = (2, 4) if bench.small else (64, 256)
    lengths = ["3"] if bench.small else [str(n) for n in service_program.LENGTHS_S]
    arguments = ["--device", bench.device.name, "--batch", str(max(bench.batches))]
    arguments += ["--dtype", str(bench.device.dtype).removeprefix("torch.")]
    arguments += ["--clients", str(clients), "--requests", str(requests), "--repeats", "1"]
    arguments += ["--least", "0", "--json", str(folder / "service.json"), "--lengths", *lengths]
    if service_program.main([*arguments, *given]) == 2:
        raise RuntimeError("the service was not measured: see above")
    found = json.loads((folder / "service.json").read_text())
    (row,) = found["rows"]
    differ = row["of"] - row["equal"]
    if differ and bench.device.dtype == torch.float32:  # in half precision near-ties may flip
        bench.unequal.append(f"service, {name}: {differ} texts differ from the batch command's")
    return {
        "times_real_time": round(row["audio_s"] / row["wall_s"], 1),
        "share_of_batch": round(row["share"], 3),
        **{key: row[key] for key in ("clients", "wall_s", "p50_s", "p95_s", "equal", "of")},
        "memory_mb": found["memory_mb"],
    }


def live(bench: Bench) -> Record:
    """Live streams at the pace of the clock: the age of the newest sample when its words are known."""
    record = bench.record
    streams = "1,2" if bench.small else "32,128"
    with folders(bench.models, AGREEMENT) as made, TemporaryDirectory() as name:
        for shown, given in (
            (Path(bench.real[0]).name, ["--model", bench.real[0]]),
            (bench.dimensions.name, ["--model", str(made.model), "--draft", str(made.draft)]),
        ):
            arguments = [*map(str, bench.voices), *given, "--streams", streams]
            arguments += ["--device", bench.device.name, "--ways", "guess + draft"]
            arguments += ["--seconds", "3" if bench.small else "10", "--json", f"{name}/live.json"]
            arguments += ["--dtype", str(bench.device.dtype).removeprefix("torch.")]
            bench.figure(record, shown, partial(streamed, Path(name, "live.json"), arguments))
    return record


def streamed(path: Path, arguments: list[str]) -> Record:
    """The rows of `benchmarks.live`, by number of streams."""
    live_program.main(arguments)
    return {
        f"{count} streams": dict(zip(("p50_s", "p95_s", "late_p95_s", "decodes"), row, strict=True))
        for _, count, *row in json.loads(path.read_text())["rows"]
    }
