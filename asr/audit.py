"""Audit: the same windows decoded with and without speculation, with every difference reported.

There are three modes, with the same weights, windows and rules:

    speculative   gamma drafts per round
    plain         gamma = 0, one token per forward pass, as any decoder does it
    same shape    no drafts, but with the shapes of the speculative round: the control for low
                  precision, where a forward pass over six positions rounds differently from one
                  over a single position

In float32 all three agree, and so they do in a quantised target by integer products. A difference in lower
precision is a near-tie, and its margin says how near. A speech LLM, whose modules are transformers' own, is
compared with `generate` as well. A quantised target is another model than its float32 original: a `Float32`
counts the tokens at which the two differ.
Knows nothing of command lines.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from forescribe.speculative.types import Prefix

from .audio.inputs import Input
from .decode.transcriber import Decoded, Options, Outcome, Transcriber
from .errors import visible
from .formats.transcript_parts import seconds
from .model.speech_model import SpeechModel
from .model.states import EncoderStates


@dataclass(frozen=True)
class Difference:
    """The first token of a window at which two modes differ; after it they decode different text.

    `margin` is the difference between the processed logits of the plain token and the other one in a
    forward pass without cache or batch: about 0 for a near-tie, large for a fault; NaN where one of the
    texts has ended.
    """

    window: int
    start_s: float
    position: int
    plain: str
    other: str
    way: str  # "speculative", "same shape" or "transformers"
    margin: float


@dataclass(frozen=True)
class Float32:
    """A target of reduced precision beside the same target in float32, both by plain decoding. A window
    counts up to its first token that differs: after it the two write different texts."""

    tokens: int  # that float32 writes
    equal: int
    windows_equal: int


@dataclass(frozen=True)
class Report:
    source: str
    windows: int = 0
    tokens: int = 0
    acceptance_rate: float | None = None
    mean_acceptance_length: float | None = None
    differences: tuple[Difference, ...] = ()
    error: str | None = None
    float32: Float32 | None = None

    def to_json(self) -> str:
        record = asdict(self)
        for difference in record["differences"]:
            if not math.isfinite(difference["margin"]):
                difference["margin"] = None  # JSON has no NaN and no infinity
        return json.dumps(record | {"equal": not self.differences and not self.error})

    def to_text(self) -> str:
        if self.error is not None:
            return self.error
        rate = "" if self.acceptance_rate is None else f", {self.acceptance_rate:.1%} accepted"
        head = (
            f"{visible(self.source)}: {_count(self.windows, 'window')}, {self.tokens} tokens{rate}"
        )
        told = _count(len(self.differences), "difference")
        lines = [f"{head}: {told if self.differences else 'all equal to plain decoding'}"]
        for d in self.differences:
            lines.append(
                f"  window {d.window} at {d.start_s:.2f} s, token {d.position}: plain {d.plain!r}, "
                f"{d.way} {d.other!r}, margin {d.margin:.2e}"
            )
        if self.float32 is not None:
            exact = self.float32
            lines.append(
                f"  float32: {exact.tokens - exact.equal} of {exact.tokens} tokens differ, in "
                f"{_count(self.windows - exact.windows_equal, 'window')} of {self.windows}"
            )
        return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def audit(
    whisper: SpeechModel,
    sources: Iterable[Input],
    options: Options,
    *,
    gamma: int,
    batch: int,
    float32: SpeechModel | None = None,
) -> Iterator[Report]:
    """Yield a report for each recording; `float32` is the same target in float32, to count what differs.
    Raises UsageError for options that the model cannot serve."""
    drafting = Transcriber(whisper, batch=batch, gamma=gamma, beam_size=1)
    plain = Transcriber(whisper, batch=batch, gamma=0, beam_size=1)
    keep = replace(options, keep_encoder_states=True)
    modes = [(drafting, keep), (plain, keep), (drafting, replace(keep, gamma=0))]
    if float32 is not None:
        modes.append((Transcriber(float32, batch=batch, gamma=0, beam_size=1), keep))
    for source in sources:
        name = Outcome(source).name
        repeatable = _repeatable(source)
        outcomes = []
        for transcriber, mode_options in modes:
            (outcome,) = transcriber.transcribe([repeatable], mode_options)
            outcomes.append(outcome)
            if outcome.error is not None:
                break
        yield _report(whisper, name, *outcomes)


def _repeatable(source: Input) -> Input:
    """A source that can be read three times: stdin and pipes are read into memory."""
    if source == "-":
        return sys.stdin.buffer.read()
    if isinstance(source, str | os.PathLike) and Path(source).is_fifo():
        return Path(source).read_bytes()
    return source


def _report(whisper: SpeechModel, name: str, *outcomes: Outcome) -> Report:
    """The report on the outcomes of the three modes, or of fewer where the last one failed."""
    error = outcomes[-1].error
    if error is not None:
        return Report(name, error=str(error))
    first, plain, shape, *exact = outcomes
    assert first.transcript is not None
    differences = []
    for way, outcome in (("speculative", first), ("same shape", shape)):
        for a, b in _pairs(plain, outcome):
            if b is not None and a.result.tokens != b.result.tokens:
                differences.append(_difference(whisper, a, b.result.tokens, way))
    differences += _beside_transformers(whisper, plain)
    stats: Any = first.transcript.stats
    return Report(
        source=name,
        windows=len(plain.decoded),
        tokens=sum(len(d.result.tokens) for d in plain.decoded),
        acceptance_rate=stats["acceptance_rate"],
        mean_acceptance_length=stats["mean_acceptance_length"],
        differences=tuple(differences),
        float32=_float32(plain, exact[0]) if exact else None,
    )


def _beside_transformers(whisper: SpeechModel, plain: Outcome) -> Iterator[Difference]:
    """Where the answers of windows are not those of transformers' `generate`, if that can be run. A window
    that was decoded at a higher temperature is not compared."""
    for window in plain.decoded:
        states, result = window.encoder_states, window.result
        if states is None or result.request.temperature:
            continue
        theirs = whisper.generated(states, result.request.prompt, len(result.tokens))
        if theirs is not None and theirs != result.tokens:
            yield _difference(whisper, window, theirs, "transformers")


def _float32(plain: Outcome, exact: Outcome) -> Float32:
    pairs = [
        (() if b is None else b.result.tokens, a.result.tokens) for a, b in _pairs(exact, plain)
    ]
    return Float32(
        tokens=sum(len(theirs) for _, theirs in pairs),
        equal=sum(_common(ours, theirs) for ours, theirs in pairs),
        windows_equal=sum(ours == theirs for ours, theirs in pairs),
    )


def _pairs(first: Outcome, second: Outcome) -> list[tuple[Decoded, Decoded | None]]:
    """Every window of the first and that of the second which begins at the same sample; None where an answer
    that differs has moved the parts behind it."""
    known = {(d.index, d.start): d for d in second.decoded}
    return [(d, known.get((d.index, d.start))) for d in first.decoded]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of tokens before the first that differs."""
    same = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(same, min(len(a), len(b)))


def _difference(whisper: SpeechModel, plain: Decoded, b: tuple[int, ...], way: str) -> Difference:
    """Between a window and the tokens `b` of the other way."""
    a = plain.result.tokens
    common = _common(a, b)
    pair = [list(t[common : common + 1]) for t in (a, b)]
    margin = float("nan")
    if all(pair) and plain.encoder_states is not None:
        logits = _logits(whisper, plain.encoder_states, plain.result.request.prompt, a[:common])
        margin = float(logits[pair[0][0]] - logits[pair[1][0]])
    words = [whisper.tokenizer.decode(ids, skip_special_tokens=False) for ids in pair]
    return Difference(plain.index, seconds(plain.start), common, words[0], words[1], way, margin)


@torch.inference_mode()
def _logits(
    whisper: SpeechModel,
    encoder_states: EncoderStates,
    prompt: tuple[int, ...],
    tokens: tuple[int, ...],
) -> torch.Tensor:
    """Processed logits `[V]` after a prefix, from one forward pass without cache or batch."""
    device, decoder = whisper.device.torch, whisper.decoder()
    prefix = torch.tensor([[*prompt, *tokens]], device=device)
    last = torch.tensor([[prefix.shape[1] - 1]], device=device)
    decoder.allocate(1, prefix.shape[1])
    first = torch.zeros(1, dtype=torch.int64, device=device)
    logits = decoder.prefill(first, prefix, [encoder_states], last).logits
    decoder.release()
    view = Prefix(prefix, last, torch.tensor([len(prompt)], device=device))
    for rule in whisper.rules():
        logits = rule(logits, view)
    row: torch.Tensor = logits[0, 0]
    return row
