"""The outcome of a recording whose windows have all ended: its transcript, with coverage, warnings, settings
and figures, or an error. Knows nothing of how windows are decoded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from operator import attrgetter

from forescribe.speculative.requests import Source

from ..formats.transcript import Transcript
from ..formats.transcript_parts import (
    PLACES,
    TOKEN_SOURCES,
    Coverage,
    Json,
    Notice,
    Segment,
    Span,
    State,
    TokenSource,
    seconds,
)
from ..model.languages import ALIKE, LANGUAGES
from ..model.speech_model import SpeechModel
from ..segment.windows import Window, total
from ..words.replacements import LIMIT_S
from .context import DecodingContext
from .judge import LAST_WORD
from .options import Options
from .recording import Submission, fault, reason_of
from .requests import CONFIDENT, DOUBTFUL
from .results import Decoded, Outcome
from .text import name_of, text_of

UNWRITTEN = "a voice, and the model wrote no words"

TEXTS = 10
"""The most texts that were left out and are quoted."""


def outcome_of(recording: Submission) -> Outcome:
    """The outcome of a complete recording: an error where no window could be decoded, or where an
    exception prevents the transcript; neither of a part of a live item. A listener gets the windows too."""
    recording.timer.run()  # also words of other recordings that share it
    outcome, wall = Outcome(recording.source), recording.wall_s
    if recording.whole:
        try:
            faults = [pending.fault for pending in recording.windows]
            if faults and (first := faults[0]) is not None and all(faults):
                raise first
            done = recording.decoded
            outcome = Outcome(
                recording.source,
                _transcript(recording, wall),
                wall_s=wall,
                windows=windows_by_state(done, len(recording.silent)),
                fallbacks=len({decoded.index for decoded in done if decoded.tried > 0}),
            )
        except Exception as error:
            outcome = replace(outcome, error=fault(recording.name, error), wall_s=wall)
    kept = recording.bound.options.keep_encoder_states and outcome.error is None
    if kept or recording.listener is not None:
        outcome = replace(outcome, decoded=recording.decoded)
    return outcome


def windows_by_state(done: Sequence[Decoded], silent: int) -> dict[State, int]:
    """How many windows ended how. One that was decoded in parts is one, decoded if any part of it is, and
    else failed if any is."""
    best: dict[int, State] = {}
    order: tuple[State, ...] = ("silent", "failed", "decoded")
    for decoded in done:
        states = (best.get(decoded.index, "silent"), decoded.state)
        best[decoded.index] = max(states, key=order.index)
    counts = Counter(best.values())
    counts["silent"] += silent
    return dict(counts)


def settings_of(context: DecodingContext, options: Options) -> dict[str, Json]:
    """Models, options and versions, for reproducing a transcript."""
    pair, device = context.whisper.pair, context.whisper.device
    gamma = context.gamma if options.gamma is None else options.gamma
    return {
        "model": str(getattr(pair.target, "name", pair.target)),
        "draft": None if pair.draft is None else str(getattr(pair.draft, "name", pair.draft)),
        "draft_for_other_languages": str(pair.rest) if pair.rest is not None else None,
        "shared_encoder": context.whisper.shared_encoder,
        "gamma": "auto" if gamma is None else gamma,
        "batch_size": context.engine.batch,
        "device": device.name,
        "dtype": str(device.stored).removeprefix("torch."),
        "quantize": "int8" if device.int8 else "none",
        "engine": context.forward,
        **options.told(),
        "versions": dict(_versions()),
    }


@cache  # 6 ms, on the engine's thread
def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("forescribe", "torch", "transformers")}


def _transcript(recording: Submission, wall: float) -> Transcript:
    context, bound, done = recording.context, recording.bound, recording.decoded
    assert recording.audio is not None
    segments = list[Segment]()
    for pending in recording.windows:
        for segment in recording.timed_segments(pending):
            segments.append(replace(segment, id=len(segments)))
    written = (d.language for d in done if d.state == "decoded")
    language = bound.language or recording.language or next(written, None) or None
    # A model that is told no language and names none has written in one that nobody knows.
    probability = None if language is None else recording.language_probability
    warnings = [*recording.audio.warnings, *_warnings(recording, done, language)]
    warnings += bound.notices
    warnings += (Notice("language", note) for note in bound.spoken.notes)
    detected = probability if bound.language is None else None
    if segments and detected is not None and detected < DOUBTFUL:
        text = (
            f"the language was detected as {language} with a probability of {detected:.2f}: if that "
            "is wrong, so is the text; name the language (--language)"
        )
        warnings.append(Notice("doubtful_language", text))
    return Transcript(
        segments=tuple(segments),
        sample_count=recording.done,
        coverage=coverage(done, recording.silent),
        language=language,
        language_probability=probability,
        warnings=tuple(warnings),
        settings=settings_of(context, bound.options),
        stats=stats(done, wall)
        | {
            "search": bound.options.search,
            "drafting": context.drafting(beams=not bound.options.drafted),
        },
    )


def coverage(done: Sequence[Decoded], silent: Iterable[Window]) -> Coverage:
    """What became of every sample; a window is decoded up to its last word, where a voice goes on behind
    that."""
    spans = list[Span]()
    for window in silent:
        why = "no voice activity" if window.level_db is None else "no voice activity, loud"
        spans.append(Span(window.start, window.end, "silent", why, window.level_db))
    wordless = 0
    for decoded in done:
        wordless += total(decoded.wordless)
        start, end, reach = decoded.start, decoded.end, decoded.reach
        if reach is None:
            reason, silent_db = decoded.reason or decoded.doubt, None
            if decoded.state == "silent" and decoded.level_db is not None:
                reason, silent_db = f"no voice activity, loud, and {reason}", decoded.level_db
            spans.append(Span(start, end, decoded.state, reason, silent_db))
            continue
        if start < reach:
            spans.append(Span(start, reach, "decoded", decoded.doubt))
        spans.append(Span(reach, end, "failed", UNWRITTEN))
    return Coverage(tuple(sorted(spans, key=attrgetter("start_sample"))), wordless)


def stats(done: Sequence[Decoded], wall: float) -> dict[str, Json]:
    """Statistics of a recording, counted by row, so that they do not depend on the rest of the batch."""
    results = [decoded.result for decoded in done]
    rounds, drafted, accepted = (
        sum(map(attrgetter(name), results)) for name in ("rounds", "drafted", "accepted")
    )
    return {
        "windows": len(results),
        "tokens": sum(len(result.tokens) for result in results),
        "rounds": rounds,
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_rate": accepted / drafted if drafted else None,
        "mean_acceptance_length": 1 + accepted / rounds if rounds else None,
        **source_stats(result.sources for result in results),
        "wall_s": wall,
    }


def source_stats(results: Iterable[Sequence[Source]]) -> dict[str, Json]:
    """Figures from the token sources of a recording's windows.

    A round yields a run of accepted tokens and one further token of the target: a correction means that the
    next draft was judged and rejected, a bonus that no draft was left, a plain token that there were no
    drafts. So the sources alone determine what became of every draft that was judged.

    `written` counts tokens by source, timestamps and end tokens included. Entry i of
    `judged_at_depth` counts the drafts at depth i + 1 that were judged, because all earlier drafts of
    their round were accepted; entry i of `accepted_at_depth` those that were accepted.
    """
    counts, judged, accepted = Counter[TokenSource](), Counter[int](), Counter[int]()
    for sources in results:
        counts.update(map(name_of, sources))
        depth = 0  # of the next draft of the round under way; a guess was not drafted
        for source in sources:
            if source is Source.ACCEPTED:
                judged[depth] += 1
                accepted[depth] += 1
                depth += 1
            elif source is not Source.GUESSED:
                if source is Source.CORRECTION:
                    judged[depth] += 1
                depth = 0
    depths = range(max(judged, default=-1) + 1)
    return {
        "written": {name: counts[name] for name in TOKEN_SOURCES},
        "judged_at_depth": [judged[depth] for depth in depths],
        "accepted_at_depth": [accepted[depth] for depth in depths],
    }


# -- warnings -----------------------------------------------------------------------------------------


def _warnings(
    recording: Submission, done: Sequence[Decoded], language: str | None
) -> Iterator[Notice]:
    """What a reader of the transcript should know of its windows."""
    whisper = recording.context.whisper
    if failed := [d for d in done if d.state == "failed"]:
        text = (
            f"no text for {_places(failed)}: decoding failed there; transcribe the recording again, or "
            "name the language"
        )
        yield _notice("failed_windows", text, failed)
    # Windows whose text does not count have warnings of their own.
    if runs := [run for d in done if d.state == "decoded" for run in d.wordless]:
        places = _listed([f"{seconds(a):.1f} to {seconds(b):.1f} s" for a, b in runs])
        text = (
            f"{seconds(total(runs)):.1f} s sound like a voice and have no words: {places}; listen to "
            "them, name the language, or use a larger model"
        )
        starts = tuple(seconds(start) for start, _ in runs[:PLACES]) if len(runs) > 1 else ()
        yield Notice("voice_without_words", text, len(runs), starts)
    # Text that was kept although the guards rejected it at every temperature.
    if doubted := [each for d in done for each in _doubted(d)]:
        text = (
            f"doubtful text at {_places(doubted)}; check it against the recording, name the language, or "
            "use a larger model"
        )
        yield _notice("doubtful_text", text, doubted)
    if slow := [d for d in done if d.skipped]:
        lines = ", ".join(dict.fromkeys(line for d in slow for line in d.skipped))
        text = f"these took more than {LIMIT_S} s and replaced nothing at {_places(slow)}: {lines}"
        yield _notice("slow_replacements", text, slow)
    counted = {
        d.language
        for d in done
        if d.state == "decoded" or (d.level_db is None and d.state != "failed")
    }
    if others := counted - {language or ""}:
        text = f"some windows are in another language: {', '.join(sorted(others))}"
        yield Notice("mixed_languages", text)
    spoken = [d for d in done if text_of(whisper, d.tokens).strip()]
    yield from _other_language(spoken, language)
    yield from _dropped(whisper, done)
    faults = [(p.ended, p.timing_fault) for p in recording.windows if p.timing_fault is not None]
    if faults:
        untimed, reason = [decoded for decoded, _ in faults], reason_of(faults[0][1])
        text = f"no word times at {_listed(map(_span, untimed))}: {reason}; the text is complete"
        yield _notice("words_untimed", text, untimed)
    # Drafting failed: the words are the same, and decoding takes longer.
    if plain := [d for d in done if d.result.draft_error is not None]:
        error, spans = plain[0].result.draft_error, _listed(map(_span, plain))
        text = f"decoded without drafts at {spans}: {error}; the text is complete"
        yield _notice("draft_failed", text, plain)


def _other_language(done: Sequence[Decoded], named: str | None) -> Iterator[Notice]:
    """A warning where another language is heard than the one that was named: the most frequent one."""
    other = dict[str, list[Decoded]]()
    for decoded in done:
        code, probability = decoded.heard or ("", 0.0)
        known = {code, *ALIKE.get(code, ())}
        if decoded.state == "decoded" and probability >= CONFIDENT and named not in known:
            other.setdefault(code, []).append(decoded)
    if not other:
        return
    code, heard = max(other.items(), key=lambda item: sum(d.length for d in item[1]))
    probability = max(d.heard[1] for d in heard if d.heard)
    names = [LANGUAGES.get(one, one).title() for one in (code, named or "")]
    text = (
        f"{_listed(map(_span, heard))}: this sounds like {names[0]} ({probability:.2f}) and was decoded "
        f"as {names[1]}; --language {'auto' if len(heard) < len(done) else code} decodes it as such"
    )
    yield _notice("other_language", text, heard)


def _dropped(whisper: SpeechModel, done: Iterable[Decoded]) -> Iterator[Notice]:
    """Warnings for text that was decoded but left out: one for each of the first windows, and one for the
    rest."""
    dropped = list[Decoded]()
    for decoded in done:
        told = decoded.reason == LAST_WORD or decoded.level_db is not None  # by the coverage
        if decoded.state == "decoded" or told:
            continue
        if text := text_of(whisper, decoded.result.tokens).strip():
            dropped.append(decoded)
            if len(dropped) <= TEXTS:
                message = f"{text!r} at {_span(decoded)} left out: {decoded.reason}"
                yield Notice("dropped_text", message)
    if rest := dropped[TEXTS:]:
        yield _notice("dropped_text", f"more text left out at {_listed(map(_span, rest))}", rest)


def _notice(code: str, message: str, windows: Sequence[Decoded]) -> Notice:
    """A warning that applies to these windows."""
    places = tuple(seconds(d.start) for d in windows[:PLACES]) if len(windows) > 1 else ()
    return Notice(code, message, len(windows), places)


def _doubted(decoded: Decoded) -> Iterator[Decoded]:
    """A window whose text is doubtful, or its segments that are, as windows of their own."""
    if decoded.doubt is not None:
        yield decoded
    for start, end, reason in decoded.doubts:
        begin = decoded.start
        yield replace(decoded, start=begin + start, end=begin + end, doubt=reason, doubts=())


def _places(windows: Sequence[Decoded]) -> str:
    """Times with reasons; of many windows the first ones, and the total."""
    places = _listed(
        f"{_span(d)} ({d.reason or d.doubt})" if d.reason or d.doubt else _span(d) for d in windows
    )
    if len(windows) == 1:
        return places
    length = seconds(sum(d.length for d in windows))
    return f"{len(windows)} places, {length:.1f} s in all: {places}"


def _listed(texts: Iterable[str]) -> str:
    texts = list(texts)
    more = len(texts) - PLACES
    return ", ".join(texts[:PLACES]) + (f" and {more} more" if more > 0 else "")


def _span(decoded: Decoded) -> str:
    return f"{seconds(decoded.start):.1f} to {seconds(decoded.end):.1f} s"
