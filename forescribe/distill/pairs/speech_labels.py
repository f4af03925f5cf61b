"""Labels of recordings: what the target transcribes, with its distributions.

Recordings go through the transcriber as in `forescribe transcribe`: windows, voice activity, token rules,
timestamps and batches are the same, so the draft learns what it will be asked. Knows recordings and rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from forescribe.asr.batch.interrupts import Stop
from forescribe.asr.decode.options import Decoded, Options, Outcome, Progress
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.errors import visible
from forescribe.speculative.requests import Finish

from ..labels.label_batches import collate
from ..labels.label_rows import OWN, LabelRow
from ..labels.label_store import LabelStore
from ..labels.sparse_distribution import SparseDistribution
from .draft_pair import Hook
from .speech_pair import SpeechPair

TOGETHER = 4
"""Windows whose distributions are computed at a time."""


@dataclass(frozen=True)
class Skipped:
    """A recording or text that has no labels, and why."""

    name: str
    reason: str


def label_recordings(
    transcriber: Transcriber,
    store: LabelStore,
    recordings: Sequence[str],
    kind: str,
    options: Options,
    *,
    until: Callable[[], bool],
    stop: Stop,
    hook: Hook,
) -> list[Skipped]:
    """Label the recordings that are not yet labelled, one file for each, until the time is over or an end is
    requested. Returns those that cannot be read, or in which a window failed. Raises OutputError."""
    missing = [name for name in recordings if not store.has(store.key(kind, name))]
    done, skipped = len(recordings) - len(missing), list[Skipped]()
    pair = SpeechPair(transcriber.whisper)
    hook("labels", done, len(recordings), "")
    if not missing or until():
        return skipped
    kept = replace(options, keep_encoder_states=True)
    began = time.monotonic()

    def note(progress: Progress) -> None:
        hook(
            "labels",
            done,
            len(recordings),
            f"{progress.done_s:.0f} s of {visible(str(progress.source))}",
        )

    outcomes = transcriber.transcribe(missing, kept, note)
    for outcome in outcomes:
        if outcome.error is not None:
            skipped.append(Skipped(outcome.name, str(outcome.error)))
        else:
            rows = _rows(pair, outcome, kind)
            store.add(store.key(kind, outcome.name), rows)
        done += 1
        hook("labels", done, len(recordings), f"{time.monotonic() - began:.0f} s")
        if until() or stop.requested:
            break
    close = getattr(outcomes, "close", None)
    if close is not None:
        close()
    return skipped


def labelled_now(
    transcriber: Transcriber, recordings: Sequence[str], options: Options
) -> list[LabelRow]:
    """Rows of a few recordings, kept in memory. Raises AudioError for one that cannot be read."""
    found: list[LabelRow] = []
    kept = replace(options, keep_encoder_states=True)
    for outcome in transcriber.transcribe(recordings, kept):
        if outcome.error is not None:
            raise outcome.error
        found += _rows(SpeechPair(transcriber.whisper), outcome, OWN)
    return found


def _rows(pair: SpeechPair, outcome: Outcome, kind: str) -> list[LabelRow]:
    decoded = [window for window in outcome.decoded if _counts(window)]
    found: list[LabelRow] = []
    for start in range(0, len(decoded), TOGETHER):
        found += _labelled(pair, decoded[start : start + TOGETHER], outcome.name, kind)
    return found


def _counts(window: Decoded) -> bool:
    return window.state == "decoded" and window.result.finish in (Finish.STOP, Finish.LENGTH)


def _labelled(pair: SpeechPair, windows: Sequence[Decoded], name: str, kind: str) -> list[LabelRow]:
    """The windows with the target's distributions, in one forward pass after their own text."""
    blank = [_row(window, name, kind) for window in windows]
    batch = collate(blank)
    states = torch.stack([_states(window)[0] for window in windows])
    batch = replace(batch, states=states).to(pair.device.torch)
    begins = torch.tensor([row.begin for row in blank], device=pair.device.torch)
    wanted = SparseDistribution.of(pair.target_logits(batch, begins))
    return with_wanted(blank, wanted)


def with_wanted(rows: Sequence[LabelRow], wanted: SparseDistribution) -> list[LabelRow]:
    """The rows with their part of `wanted`, whose positions are those of the rows in order."""
    ids, logs = wanted.ids.cpu(), wanted.logs.cpu()
    found, start = [], 0
    for row in rows:
        stop = start + row.answered
        found.append(replace(row, wanted=SparseDistribution(ids[start:stop], logs[start:stop])))
        start = stop
    return found


def blank(count: int) -> SparseDistribution:
    """Distributions of `count` positions that are not computed yet."""
    return SparseDistribution(torch.zeros(count, 1, dtype=torch.int64), torch.zeros(count, 1))


def _row(window: Decoded, name: str, kind: str) -> LabelRow:
    prompt, answer = window.result.request.prompt, window.result.tokens
    states = _states(window)
    return LabelRow(
        name, kind, (*prompt, *answer), len(prompt), True, blank(len(answer)), lambda: states
    )


def _states(window: Decoded) -> tuple[torch.Tensor, torch.Tensor]:
    states = window.encoder_states
    assert states is not None
    return states.target, states.drafts[0] if states.drafts else states.target
