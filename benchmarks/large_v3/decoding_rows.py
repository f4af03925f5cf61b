"""Windows of a constructed pair through the engine: seconds by stage, and equality.

Knows adapters and engines; nothing of other programs or of how a table looks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.gpu import construction
from benchmarks.gpu.dimensions import Dimensions
from benchmarks.gpu.pair import DECODERS, Known, Pair
from forescribe.speculative import Engine, Fixed, ModelDrafter, Request
from forescribe.speculative.models.coverage import encoder_gap
from forescribe.speculative.models.quantized import int8_encoder
from forescribe.speculative.models.whisper import encoder_difference
from forescribe.speculative.native.encoder import NativeEncoder, unsupported_encoder

HEADS = ("full", "frequent")
"""The draft's output head: all tokens, or those that the texts consist of."""


@dataclass(frozen=True)
class DecodingRow:
    """One engine with one setting. Times are those of the whole batch."""

    engine: str
    batch: int
    gamma: int
    head: str | None  # the draft's; None: plain decoding
    tokens: int
    prefill_s: float  # of a window: its cross-attention keys and values, and the prompt
    round_ms: float  # the target's part of a round: forward and choice
    drafted_ms: float | None  # one drafted token
    tokens_per_round: float
    acceptance: float | None  # of drafted tokens
    tokens_per_s: float  # without prefill
    equal: bool  # to plain decoding with this engine, and to the text that the weights encode


def work(pair: Pair, count: int, tokens: int) -> list[Known]:
    """Windows of different audio, with the longest texts of up to `tokens` tokens."""
    d = pair.dimensions

    def text(start: int, kind: int) -> tuple[int, ...]:
        return pair.path.follow(start, pair.path.prompt(start, kind), kind, tokens)

    starts = sorted(range(d.steps), key=lambda start: -len(text(start, 0)))[:count]
    kinds = [n % d.classes for n in range(count)]
    return [
        Known(
            Request(pair.path.prompt(start, kind), states, max_new_tokens=tokens, tag=n),
            text(start, kind),
        )
        for n, (start, kind, states) in enumerate(
            zip(starts, kinds, pair.states(kinds), strict=True)
        )
    ]


def measure(
    pair: Pair,
    engine: str,
    agreement: float,
    *,
    batches: Sequence[int],
    gamma: int,
    tokens: int,
    turns: int = 1,
) -> Iterator[DecodingRow]:
    """Rows of one engine: plain decoding, and drafts with either head, at every batch size."""
    kind = DECODERS[engine]
    target = kind(pair.target)
    listed = {"full": None, "frequent": sorted(pair.path.tokens)}
    drafts = {head: kind(pair.drafts[agreement], listed=listed[head]) for head in HEADS}
    for batch in batches:
        known = work(pair, batch, tokens)
        plain: dict[Any, tuple[int, ...]] = {}
        for head in (None, *HEADS):
            drafter = None if head is None else ModelDrafter(drafts[head])
            made = Engine(
                target,
                drafter,
                batch=batch,
                eos=(pair.dimensions.eos,),
                schedule=Fixed(gamma if drafter else 0),
                processors=pair.rules(),
                max_tokens=len(known[0].request.prompt) + tokens,
                device=pair.device,
            )
            yield _row(made, known, plain, engine, batch, gamma if drafter else 0, head, turns)
            for model in (target, *drafts.values()):
                model.release()  # type: ignore[attr-defined]  # all adapters have it


def _row(
    engine: Engine,
    known: Sequence[Known],
    plain: dict[Any, tuple[int, ...]],
    name: str,
    batch: int,
    gamma: int,
    head: str | None,
    turns: int,
) -> DecodingRow:
    expected = {k.request.tag: k.text for k in known}
    equal, seconds = True, []
    for _ in range(turns):
        before = dict(engine.stats.seconds)
        texts = {}
        for result in engine.run(k.request for k in known):
            if result.error is not None:
                raise result.error
            texts[result.request.tag] = result.tokens
        seconds.append({s: t - before.get(s, 0.0) for s, t in engine.stats.seconds.items()})
        if head is None:
            plain.update(texts)
        equal = equal and texts == plain == expected
    stats = engine.stats

    def median(*stages: str) -> float:
        return statistics.median(sum(run[stage] for stage in stages) for run in seconds)

    rounds, emitted = stats.rounds / turns, stats.emitted / turns
    return DecodingRow(
        engine=name,
        batch=batch,
        gamma=gamma,
        head=head,
        tokens=int(emitted),
        prefill_s=median("prefill") / batch,
        round_ms=1000 * median("score", "accept") / rounds,
        drafted_ms=None if head is None else 1000 * median("draft") / (rounds * gamma),
        tokens_per_round=emitted / rounds / batch,
        acceptance=None if head is None else stats.acceptance_rate,
        tokens_per_s=emitted / median("draft", "score", "accept"),
        equal=equal,
    )


@torch.inference_mode()
def encoders(pair: Pair) -> dict[str, Any]:
    """Seconds of the target's encoder for a window, the faster of two: with the modules, natively, and so in
    8-bit integers; and why its native states are not those of the modules, or cannot be computed."""
    d, encoder = pair.dimensions, pair.target.model.encoder
    mel = construction.features(d, [0], pair.device.torch, pair.device.dtype)
    found: dict[str, Any] = {
        "modules_s": min(_timed(lambda: encoder(mel)) for _ in range(2)),
        "native_s": None,
        "int8_s": None,
        "problem": encoder_gap(encoder) or unsupported_encoder(encoder),
    }
    if found["problem"] is None:
        for name, form in (("native_s", encoder), ("int8_s", int8_encoder(encoder))):
            native = NativeEncoder(form)
            found["problem"] = found["problem"] or encoder_difference(form, native)
            found[name] = min(_timed(partial(native, mel)) for _ in range(2))
    return found


def _timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def sizes(d: Dimensions) -> str:
    """The models in words."""
    return (
        f"{d.name}: width {d.width}, {d.encoder_layers} encoder and {d.decoder_layers} decoder layers, "
        f"draft of {d.draft_layers} decoder layers, {d.vocab:,} tokens"
    )
