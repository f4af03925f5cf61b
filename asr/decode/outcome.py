"""The outcome of a recording whose windows have all ended: its transcript, with coverage, warnings, settings
and figures, or an error. Knows nothing of how windows are decoded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from typing import Any

from ..formats.transcript import Transcript
from ..formats.transcript_parts import PLACES, Coverage, Json, Notice, Segment, Span, seconds
from ..segment.windows import Window, total
from ..words import splitting
from .answers import text_of, timed_segments
from .context import DecodingContext
from .options import Decoded, Options, Outcome
from .recording import DOUBTFUL, RecordingState, fault, in_order, reason_of
from .window_requests import BoundOptions

UNWRITTEN = "a voice, and the model wrote no words"

TEXTS = 10
"""The most texts that were left out and are quoted."""


def outcome_of(context: DecodingContext, bound: BoundOptions, recording: RecordingState) -> Outcome:
    """The outcome of a complete recording: an error where no window could be decoded, or where an
    exception prevents the transcript."""
    wall = time.perf_counter() - recording.started
    done = in_order(recording.decoded)
    try:
        if done and len(recording.faults) == len(done):
            raise recording.faults[done[0].start]
        transcript = _transcript(context, bound, recording, done, wall)
    except Exception as error:
        return Outcome(recording.source, error=fault(recording.name, error), wall_s=wall)
    kept = tuple(done) if bound.options.keep_encoder_states else ()
    return Outcome(recording.source, transcript, wall_s=wall, decoded=kept)


def settings_of(context: DecodingContext, options: Options) -> dict[str, Json]:
    """Models, options and versions, for reproducing a transcript."""
    pair, device = context.whisper.pair, context.whisper.device
    gamma = context.gamma if options.gamma is None else options.gamma
    sequential = options.long_form == "sequential"
    vad = options.vad and not sequential
    return {
        "model": str(getattr(pair.target, "name", pair.target)),
        "draft": None if pair.draft is None else str(getattr(pair.draft, "name", pair.draft)),
        "draft_for_other_languages": str(pair.rest) if pair.rest is not None else None,
        "shared_encoder": context.whisper.shared_encoder,
        "gamma": "auto" if gamma is None else gamma,
        "batch_size": context.batch,
        "device": device.name,
        "dtype": str(device.stored).removeprefix("torch."),
        "quantize": "int8" if device.int8 else "none",
        "engine": context.forward,
        "task": options.task,
        "timestamps": options.timestamps,
        "initial_prompt": options.initial_prompt,
        "long_form": options.long_form,
        # Windows that are decoded in parallel have no text before them.
        "condition_on_previous_text": sequential and options.condition_on_previous_text,
        "vad": vad,
        "windows": asdict(options.windows) if vad else None,
        "guards": None if options.guards is None else _plain(asdict(options.guards)),
        "word_timestamps": options.words,
        "versions": {name: version(name) for name in ("forescribe", "torch", "transformers")},
    }


def _transcript(
    context: DecodingContext,
    bound: BoundOptions,
    recording: RecordingState,
    done: Sequence[Decoded],
    wall: float,
) -> Transcript:
    segments = [s for d in done for s in timed_segments(context.whisper, recording, d)]
    language = bound.language or recording.language
    return Transcript(
        segments=tuple(replace(s, id=i) for i, s in enumerate(segments)),
        sample_count=sum(w.length for w in recording.silent) + sum(d.length for d in done),
        coverage=coverage(done, recording.silent),
        language=language,
        language_probability=recording.language_probability,
        warnings=(
            *recording.audio.warnings,
            *_warnings(context, recording, done, language),
            *_doubts(bound, recording, segments),
        ),
        settings=settings_of(context, bound.options),
        stats=stats(done, wall),
    )


def _warnings(
    context: DecodingContext,
    recording: RecordingState,
    done: Sequence[Decoded],
    language: str | None,
) -> list[Notice]:
    return [
        *failed(done),
        *wordless(done),
        *doubtful(done),
        *mixed(done, language),
        *dropped(done, lambda d: text_of(context.whisper, d.result.tokens)),
        *untimed(done, recording.timing_faults),
        *undrafted(done),
    ]


def _doubts(
    bound: BoundOptions, recording: RecordingState, segments: Sequence[Segment]
) -> list[Notice]:
    language, probability = recording.language, recording.language_probability
    if bound.language is not None or language is None or probability is None:
        return []
    return uncertain(segments, language, probability)


def _plain(record: dict[str, Any]) -> dict[str, Json]:
    """A record for JSON, which has no tuples."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in record.items()}


def coverage(done: Sequence[Decoded], silent: Iterable[Window]) -> Coverage:
    spans = [span for d in done for span in _spans(d)]
    spans += [Span(w.start, w.end, "silent", "no voice activity") for w in silent]
    wordless = sum(total(d.wordless) for d in done)
    return Coverage(tuple(sorted(spans, key=lambda span: span.start_sample)), wordless)


def _spans(decoded: Decoded) -> list[Span]:
    """A window in the coverage: decoded up to its last word, where a voice goes on behind that."""
    start, end, reach = decoded.start, decoded.end, decoded.reach
    if reach is None:
        return [Span(start, end, decoded.state, decoded.reason or decoded.doubt)]
    lost = Span(reach, end, "failed", UNWRITTEN)
    return [Span(start, reach, "decoded", decoded.doubt), lost] if start < reach else [lost]


def stats(done: Sequence[Decoded], wall: float) -> dict[str, Json]:
    """Statistics of a recording, counted by row, so that they do not depend on the rest of the batch."""
    results = [d.result for d in done]
    rounds, drafted, accepted = (
        sum(getattr(r, name) for r in results) for name in ("rounds", "drafted", "accepted")
    )
    guarantees: list[Any] = sorted({r.guarantee.value for r in results})
    return {
        "windows": len(results),
        "tokens": sum(len(r.tokens) for r in results),
        "rounds": rounds,
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_rate": accepted / drafted if drafted else None,
        "mean_acceptance_length": 1 + accepted / rounds if rounds else None,
        **splitting.stats([r.sources for r in results]),
        "guarantees": guarantees,
        "wall_s": wall,
    }


# -- warnings -----------------------------------------------------------------------------------------


def mixed(done: Iterable[Decoded], language: str | None) -> list[Notice]:
    """A warning for windows in a language other than the recording's."""
    languages = {d.language for d in done if d.state != "failed"} - {language}
    if not languages:
        return []
    text = f"some windows are in another language: {', '.join(sorted(languages))}"
    return [Notice("mixed_languages", text)]


def uncertain(segments: Sequence[Segment], language: str, probability: float) -> list[Notice]:
    """A warning for text in a detected language that is hardly more probable than the others."""
    if not segments or probability >= DOUBTFUL:
        return []
    text = (
        f"the language was detected as {language} with a probability of {probability:.2f}: if that is "
        "wrong, so is the text; name the language (--language)"
    )
    return [Notice("doubtful_language", text)]


def dropped(done: Iterable[Decoded], text_of: Callable[[Decoded], str]) -> list[Notice]:
    """Warnings for text that was decoded but left out: one for each of the first windows, and one for the
    rest."""
    texts = [(d, text) for d in done if d.state != "decoded" and (text := text_of(d).strip())]
    notices = [
        Notice("dropped_text", f"{text!r} at {_span(d)} left out: {d.reason}")
        for d, text in texts[:TEXTS]
    ]
    if rest := [d for d, _ in texts[TEXTS:]]:
        message = f"more text left out at {_listed([_span(d) for d in rest])}"
        notices.append(_notice("dropped_text", message, rest))
    return notices


def failed(done: Sequence[Decoded]) -> list[Notice]:
    """A warning for windows whose decoding failed."""
    lost = [d for d in done if d.state == "failed"]
    if not lost:
        return []
    text = (
        f"no text for {_places(lost)}: decoding failed there; transcribe the recording again, or name the "
        "language"
    )
    return [_notice("failed_windows", text, lost)]


def wordless(done: Iterable[Decoded]) -> list[Notice]:
    """A warning for voice without words in windows whose text counts; the others have warnings of their
    own."""
    runs = [run for d in done if d.state == "decoded" for run in d.wordless]
    if not runs:
        return []
    places = _listed([f"{seconds(a):.1f} to {seconds(b):.1f} s" for a, b in runs])
    text = (
        f"{seconds(total(runs)):.1f} s sound like a voice and have no words: {places}; listen to them, name "
        "the language, or use a larger model"
    )
    starts = tuple(seconds(start) for start, _ in runs[:PLACES]) if len(runs) > 1 else ()
    return [Notice("voice_without_words", text, len(runs), starts)]


def untimed(done: Iterable[Decoded], faults: Mapping[int, BaseException]) -> list[Notice]:
    """A warning for windows whose words could not be timed."""
    without = [d for d in done if d.start in faults]
    if not without:
        return []
    first = reason_of(faults[without[0].start])
    spans = _listed([_span(d) for d in without])
    text = f"no word times at {spans}: {first}; the text is complete"
    return [_notice("words_untimed", text, without)]


def undrafted(done: Iterable[Decoded]) -> list[Notice]:
    """A warning for windows that were decoded without drafts because drafting failed. The words are the
    same; decoding takes longer."""
    without = [d for d in done if d.result.draft_error is not None]
    if not without:
        return []
    spans = _listed([_span(d) for d in without])
    text = (
        f"decoded without drafts at {spans}: {without[0].result.draft_error}; the text is complete"
    )
    return [_notice("draft_failed", text, without)]


def doubtful(done: Iterable[Decoded]) -> list[Notice]:
    """A warning for windows whose text was kept although the guards rejected it at every temperature."""
    doubted = [d for d in done if d.doubt is not None]
    if not doubted:
        return []
    text = (
        f"doubtful text at {_places(doubted)}; check it against the recording, name the language, or use "
        "a larger model"
    )
    return [_notice("doubtful_text", text, doubted)]


def _notice(code: str, message: str, windows: Sequence[Decoded]) -> Notice:
    """A warning that applies to these windows."""
    places = tuple(seconds(d.start) for d in windows[:PLACES]) if len(windows) > 1 else ()
    return Notice(code, message, len(windows), places)


def _places(windows: Sequence[Decoded]) -> str:
    """Times with reasons; of many windows the first ones, and the total."""
    places = _listed([f"{_span(d)} ({d.reason or d.doubt})" for d in windows])
    if len(windows) == 1:
        return places
    length = seconds(sum(d.length for d in windows))
    return f"{len(windows)} windows, {length:.1f} s in all: {places}"


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - PLACES
    return ", ".join(texts[:PLACES]) + (f" and {more} more" if more > 0 else "")


def _span(decoded: Decoded) -> str:
    return f"{seconds(decoded.start):.1f} to {seconds(decoded.end):.1f} s"
