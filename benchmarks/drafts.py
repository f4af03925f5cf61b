"""Compares drafters on the same weights, in one run.

    result = measured(Options(audio=("samples/memo.flac",)), say=print)
    print(result.text())

Every drafter takes turns with plain decoding at each batch size. Knows the order of the measurements and
the result; nothing of commands.

Drafters of speech: jobs of `bench transcribe`, each turn in a process of its own.

Knows recordings, pairs and jobs; nothing of figures.

Drafters of text: this engine's systems of `bench text`, in turns in one process.

Knows prompts, models and heads; nothing of figures.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks import draft_rows, provenance
from benchmarks.draft_rows import PLAIN, DraftRow, DraftRun, Gamma, Material, Options, rows_of
from benchmarks.provenance import dtype_of, quantization_of
from benchmarks.rows import error_rate, normalise
from benchmarks.systems.jobs import LANGUAGE, OURS, Job, join, read_clips
from benchmarks.systems.jobs import Material as Audio
from benchmarks.systems.runs import Series, child, measure
from benchmarks.systems.text import System, ours, room
from benchmarks.text import check_room, encoded, read_prompts
from benchmarks.transcribe import check_words
from forescribe.asr.errors import ForescribeError
from forescribe.asr.model.presets import locate, resolve
from forescribe.speculative.device import Device, choose
from forescribe.speculative.models.engines import ModelEngine, draft_device
from forescribe.speculative.stats import Stats
from forescribe.text.drafts import HeadDraft, load_draft
from forescribe.text.language_model import LanguageModel, load
from forescribe.text.presets import NGRAM
from forescribe.text.presets import resolve as resolve_text


@dataclass(frozen=True)
class Result:
    """All rows, plain decoding of each batch size first, and what they were measured on."""

    options: Options
    material: Material
    rows: Sequence[DraftRow]

    @property
    def differing(self) -> list[DraftRow]:
        """Rows whose tokens are not all those of plain decoding."""
        return [row for row in self.rows if row.error is None and not row.exact]

    def text(self) -> str:
        """Return the tables."""
        kernels = provenance.instruction_set()
        head = [
            self.material.text,
            f"{provenance.device()['cpu']}, "
            + ("no native kernels" if kernels is None else f"native kernels for {kernels}"),
            "x plain: whole run over plain decoding at the same batch size; decoding x: rounds alone; price: "
            "of a proposal, in plain rounds\n",
        ]
        parts = [
            draft_rows.results(self.rows),
            draft_rows.depths(self.rows),
            draft_rows.fastest(self.rows),
        ]
        return "\n".join(head) + "\n" + "\n\n".join(part for part in parts if part)

    def record(self, program: str) -> dict[str, object]:
        """Return the full JSON record; `program` as in `provenance.record`."""
        return {
            "benchmark": "drafts",
            **provenance.record(program),
            "options": asdict(self.options),
            "native_kernels": provenance.instruction_set(),
            "material": self.material.record,
            "rows": [asdict(row) for row in self.rows],
        }


def measured(options: Options, say: Callable[[str], None]) -> Result:
    """Run all drafters; `say` gets a line per turn. Nothing is downloaded.

    Raises UsageError and the errors of loading; ForescribeError if plain decoding fails.
    """
    material, runs = (speech_runs if options.audio else text_runs)(options, say)
    check(runs)
    return Result(options, material, rows_of(runs))


def check(runs: Sequence[DraftRun]) -> None:
    """Raise ForescribeError where there is nothing to compare with."""
    if runs[0].error is not None:
        raise ForescribeError(f"plain decoding failed, so nothing can be compared: {runs[0].error}")


SPEECH_MODEL = "tiny.en"
LOOKUP = "lookup"
"""Drafts without a model, copied from the text so far."""


def speech_runs(options: Options, say: Callable[[str], None]) -> tuple[Material, list[DraftRun]]:
    """Plain decoding, lookup, and every draft with every way to draft."""
    ModelEngine.of(options.engine)
    name = options.model or SPEECH_MODEL
    target = locate(resolve(name, "none", LANGUAGE).target, role="model", network=False)
    clips = read_clips(options.audio, options.reference, required=False)
    if options.reference:
        check_words(clips)
    audio = join(clips, options.minutes)
    jobs = plan(options, target, drafts_of(options, name))
    with tempfile.TemporaryDirectory() as scratch:
        windows = Path(scratch) / "windows.npz"
        audio.save(windows)
        labels = {job: label for label, job in jobs}
        all_series = measure([job for _, job in jobs], child(windows), options.repeats, say)
    runs = [_speech_run(labels[series.job], series, audio) for series in all_series]
    text = f"{name}, {audio.length_s / 60:.1f} minutes in {len(audio.windows)} windows"
    record: dict[str, object] = {"seconds": audio.length_s, "windows": len(audio.windows)}
    return Material(text, record), runs


def drafts_of(options: Options, model: str) -> list[tuple[str, Path]]:
    """Draft models by label. Raises ModelError: nothing is downloaded."""
    pairs = [(each, resolve(model, each, LANGUAGE)) for each in options.draft]
    if not options.draft:
        own = resolve(model, None, LANGUAGE)
        pairs = [] if own.draft is None else [(str(own.draft), own)]
    return [
        (label, locate(pair.draft, role="draft", network=False))
        for label, pair in pairs
        if pair.draft is not None
    ]


def plan(
    options: Options, target: Path, drafts: Sequence[tuple[str, Path]]
) -> list[tuple[str, Job]]:
    """All jobs with their labels, plain decoding first."""

    def job(batch: int, gamma: int | None, draft: Path | None, drafter: str = "auto") -> Job:
        return Job(
            OURS,
            batch,
            "auto" if gamma is None else gamma,
            options.dtype,
            str(target),
            None if draft is None else str(draft),
            options.threads or _cores(),
            engine=options.engine,
            draft_dtype=None if draft is None else options.draft_dtype,
            drafter=drafter,
        )

    jobs = [(PLAIN, job(batch, 0, None)) for batch in options.batches]
    for batch in options.batches:
        for gamma in options.gamma:
            jobs.append((LOOKUP, job(batch, gamma, None)))
            for label, draft in drafts:
                for drafter in options.drafters or ("model",):
                    short = Path(label).name if len(drafts) > 1 else ""
                    jobs.append(
                        (
                            " ".join(filter(None, (drafter, short))),
                            job(batch, gamma, draft, drafter),
                        )
                    )
    return jobs


def _cores() -> int:
    from benchmarks.transcribe import Options as Measured

    return Measured(()).cores


def _speech_run(label: str, series: Series, audio: Audio) -> DraftRun:
    job = series.job
    gamma = None if job.gamma == "auto" else job.gamma
    if series.error is not None:
        return DraftRun(label, job.batch, gamma, error=series.error)
    written = series.median.written
    assert written is not None
    counts = written.drafting
    rate = None  # drafts change no word: their rows are compared by tokens
    if normalise(audio.reference):
        rate = error_rate(audio.reference, " ".join(written.texts))
    stats = Stats(
        rounds=written.rounds,
        row_rounds=written.row_rounds,
        emitted=written.emitted,
        drafted_at_depth=tuple(counts.drafted_at_depth) if counts else (),
        accepted_at_depth=tuple(counts.accepted_at_depth) if counts else (),
        seconds=written.stages,
    )
    return DraftRun(
        label,
        job.batch,
        gamma,
        walls_s=series.walls,
        tokens=written.tokens,
        stats=stats,
        steady=series.steady,
        word_error_rate=rate,
    )


TEXT_MODEL = "demo-text"

Draft = LanguageModel | HeadDraft | str


def text_runs(options: Options, say: Callable[[str], None]) -> tuple[Material, list[DraftRun]]:
    """Plain decoding, n-gram lookup and every draft."""
    lines = None if options.prompts is None else read_prompts(Path(options.prompts))
    pair, device = (
        resolve_text(options.model or TEXT_MODEL, None),
        choose("cpu", dtype_of(options.dtype), quantization_of(options.dtype)),
    )
    engine = ModelEngine.of(options.engine)
    if options.threads:
        torch.set_num_threads(options.threads)
    target = load(pair.target, device, network=False, engine=engine)
    names = options.draft or ((pair.draft,) if pair.draft not in (None, NGRAM) else ())
    drafts: dict[str, Draft] = {NGRAM: NGRAM}
    for name in names:
        if name is not None and name != NGRAM:
            drafts[Path(name).name] = _own(name, target, device, engine, options.draft_dtype)
    prompts = encoded(target, lines, None)
    check_room(
        prompts,
        options.max_tokens,
        min(room(target, each) for each in drafts.values()),
        target.name,
    )
    runs = _measured(options, target, drafts, device, prompts, say)
    text = f"{options.model or TEXT_MODEL}, {len(prompts)} prompts, up to {options.max_tokens} tokens each"
    return Material(text, {"prompts": len(prompts), "prompt_tokens": sum(map(len, prompts))}), runs


def _own(
    name: str | Path, target: LanguageModel, device: Device, engine: ModelEngine, dtype: str
) -> Draft:
    """A draft in its own number format; a head, which has no format of its own, in the target's."""
    found = load_draft(name, target, device, network=False, engine=engine)
    place = draft_device(device, dtype, engine)
    if isinstance(found, HeadDraft) or place == device:
        return found
    return load(name, place, role="draft", network=False, engine=engine)


def _measured(
    options: Options,
    target: LanguageModel,
    drafts: dict[str, Draft],
    device: Device,
    prompts: Sequence[tuple[int, ...]],
    say: Callable[[str], None],
) -> list[DraftRun]:
    chosen: list[tuple[str, Gamma, System]] = []
    for batch in options.batches:
        made = ours(
            target, None, device, batch=batch, gamma=0, most=options.max_tokens, dtype=options.dtype
        )
        chosen.append((PLAIN, 0, made))
    for batch in options.batches:
        for label, draft in drafts.items():
            for gamma in options.gamma:
                made = ours(
                    target,
                    draft,
                    device,
                    batch=batch,
                    gamma=gamma,
                    most=options.max_tokens,
                    dtype=options.dtype,
                )
                chosen.append((label, gamma, made))
    turns: list[list[tuple[float, list[tuple[int, ...]], Stats]]] = [[] for _ in chosen]
    for _, _, system in chosen:
        system.write(prompts[:1])
    for turn in range(1, options.repeats + 1):
        for (label, _, system), done in zip(chosen, turns, strict=True):
            assert system.stats is not None
            before, started = system.stats(), time.perf_counter()
            texts = system.write(prompts)
            done.append((time.perf_counter() - started, texts, system.stats() - before))
            say(f"{turn}/{options.repeats} {label} batch {system.batch}: {done[-1][0]:.2f} s")
    return [
        _text_run(label, gamma, system, done)
        for (label, gamma, system), done in zip(chosen, turns, strict=True)
    ]


def _text_run(
    label: str,
    gamma: Gamma,
    system: System,
    turns: Sequence[tuple[float, list[tuple[int, ...]], Stats]],
) -> DraftRun:
    ordered = sorted(turns, key=lambda turn: turn[0])
    _, texts, stats = ordered[(len(ordered) - 1) // 2]
    return DraftRun(
        label,
        system.batch,
        gamma,
        walls_s=[wall for wall, _, _ in turns],
        tokens=texts,
        stats=stats,
        steady=all(each == texts for _, each, _ in turns),
    )


if __name__ == "__main__":
    from benchmarks.draft_options import drafts
    from benchmarks.options import start

    start(drafts, "benchmarks.drafts")
