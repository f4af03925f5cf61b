"""Transcripts: a recording whose windows have all ended becomes an outcome.

Functions of records. Knows coverage, warnings, settings and figures; nothing of engines or requests.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from typing import Any

from ...formats.transcript import Json, Notice, Segment, Transcript
from .. import accounting
from ..decoding_context import DecodingContext
from ..options import Options
from ..outcome import Decoded, Outcome
from .recording_state import RecordingState
from .window_requests import BoundOptions
from .window_results import in_order, text_of, timed_segments


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
        fault = accounting.fault(recording.name, error)
        return Outcome(recording.source, error=fault, wall_s=wall)
    kept = tuple(done) if bound.options.keep_encoder_states else ()
    return Outcome(recording.source, transcript, wall_s=wall, decoded=kept)


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
        coverage=accounting.coverage(done, recording.silent),
        language=language,
        language_probability=recording.language_probability,
        warnings=(
            *recording.audio.warnings,
            *_warnings(context, recording, done, language),
            *_doubts(bound, recording, segments),
        ),
        settings=settings_of(context, bound.options),
        stats=accounting.stats(done, wall),
    )


def _warnings(
    context: DecodingContext,
    recording: RecordingState,
    done: Sequence[Decoded],
    language: str | None,
) -> list[Notice]:
    return [
        *accounting.failed(done),
        *accounting.wordless(done),
        *accounting.doubtful(done),
        *accounting.mixed(done, language),
        *accounting.dropped(done, lambda d: text_of(context.whisper, d.result.tokens)),
        *accounting.untimed(done, recording.timing_faults),
        *accounting.undrafted(done),
    ]


def _doubts(
    bound: BoundOptions, recording: RecordingState, segments: Sequence[Segment]
) -> list[Notice]:
    language, probability = recording.language, recording.language_probability
    if bound.language is not None or language is None or probability is None:
        return []
    return accounting.uncertain(segments, language, probability)


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


def _plain(record: dict[str, Any]) -> dict[str, Json]:
    """A record for JSON, which has no tuples."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in record.items()}
