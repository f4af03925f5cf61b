"""Word times: where in its window the target was listening while it wrote each token.

One teacher-forced forward over the final tokens of several windows; the cross-attention of the
alignment heads is recomputed from the projections that pass by, so the model keeps its fast
attention kernel and its configuration. Dynamic time warping then finds the monotone path (openai/whisper
`timing.py`; the heads of published models are in their generation config).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.loading import Memory, Whisper
from asr.tokens import SAMPLES_PER_STEP
from asr.transcript import SAMPLE_RATE, Word

MEDIAN = 7
"""Width of the median filter along time, in steps of 20 ms (openai/whisper)."""

LONGEST_S, TYPICAL = 0.7, 2.0
"""A word at the border of a sentence lasts at most twice the median word, and that at most 0.7 s: the
path has to put the pause somewhere, and puts it there."""

SENTENCE_END = ".。!！?？"


@dataclass(frozen=True)
class Utterance:
    """A window's text to be timed. `prompt` ends with <|notimestamps|>; `length` in samples."""

    memory: Memory
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]  # text only
    length: int


@dataclass(frozen=True)
class TokenTimes:
    """n tokens: boundaries `[n + 1]` in samples from the window's start, never falling, and
    probabilities `[n]`."""

    boundaries: tuple[int, ...]
    probabilities: tuple[float, ...]


def alignment_heads(whisper: Whisper) -> list[tuple[int, int]]:
    """(layer, head) of the heads that follow the audio; without a word on it, all of the upper half."""
    known = getattr(whisper.target.generation_config, "alignment_heads", None)
    if known:
        return [(int(layer), int(head)) for layer, head in known]
    config = whisper.target.config
    layers = range(config.decoder_layers // 2, config.decoder_layers)
    return [(layer, head) for layer in layers for head in range(config.decoder_attention_heads)]


@torch.inference_mode()
def token_times(whisper: Whisper, utterances: Sequence[Utterance]) -> list[TokenTimes]:
    """Times and probabilities of all tokens, in one forward over all utterances."""
    place, end = whisper.device.torch, whisper.tokens.end
    positions = whisper.target.config.max_target_positions
    rows = [[*u.prompt, *u.tokens, end][:positions] for u in utterances]
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [end] * (longest - len(row)) for row in rows], device=place)
    states = torch.stack([u.memory.target for u in utterances])
    with _listening(whisper) as heads:
        hidden = whisper.target.model.decoder(
            input_ids=tokens, encoder_hidden_states=states, use_cache=False
        ).last_hidden_state
        chances = whisper.target.proj_out(hidden).float().softmax(-1)
    weights = torch.stack([q @ k.mT for q, k in heads()], dim=1).float()  # [B, heads, N, S]
    times = []
    for row, utterance in enumerate(utterances):
        first, count = len(utterance.prompt), len(utterance.tokens)
        frames = max(1, -(-utterance.length // SAMPLES_PER_STEP))
        matrix = _sharpened(weights[row, :, : first + count + 1, :frames])
        # The query at the token before writes a token; the last row is the one that writes the end,
        # unless the text fills all positions.
        starts = _path_starts(matrix[first - 1 : first + count].cpu().numpy())
        starts += [frames] * (count + 1 - len(starts))
        boundaries = [min(int(s) * SAMPLES_PER_STEP, utterance.length) for s in starts]
        written = chances[row, first - 1 : first + count - 1]
        picked = written.gather(1, tokens[row, first : first + count, None])[:, 0]
        times.append(TokenTimes(tuple(boundaries), tuple(picked.tolist())))
    return times


@contextmanager
def _listening(whisper: Whisper) -> Iterator[Any]:
    """Catches the queries and keys of the alignment heads in the forward that runs inside.

    Yields a function that gives them as pairs ([B, N, d] scaled, [B, S, d]).
    """
    layers = whisper.target.model.decoder.layers
    wanted = alignment_heads(whisper)
    caught: dict[tuple[int, str], Tensor] = {}

    def keep(key: tuple[int, str], module: Any, inputs: Any, output: Tensor) -> None:
        caught[key] = output

    handles = []
    for layer in {layer for layer, _ in wanted}:
        attention = layers[layer].encoder_attn
        for name in ("q_proj", "k_proj"):
            hook = partial(keep, (layer, name))
            handles.append(getattr(attention, name).register_forward_hook(hook))

    def heads() -> list[tuple[Tensor, Tensor]]:
        pairs = []
        for layer, head in wanted:
            attention = layers[layer].encoder_attn
            size = attention.head_dim
            q, k = (caught[layer, n][..., head * size :][..., :size] for n in ("q_proj", "k_proj"))
            pairs.append((q * attention.scaling, k))
        return pairs

    try:
        yield heads
    finally:
        for handle in handles:
            handle.remove()


def _sharpened(weights: Tensor) -> Tensor:
    """Scores `[heads, N, F]` -> one matrix `[N, F]`: softmax over frames, each frame normalised over
    the tokens, median-filtered along time, mean over heads."""
    weights = weights.softmax(-1)
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    weights = (weights - mean) / deviation.clamp_min(1e-8)
    pad = min(MEDIAN // 2, weights.shape[-1] - 1)
    if pad:
        padded = torch.nn.functional.pad(weights, (pad, pad), mode="reflect")
        weights = padded.unfold(-1, 2 * pad + 1, 1).median(-1).values
    return weights.mean(0)


def _path_starts(matrix: NDArray[np.float32]) -> list[int]:
    """First frame of every row on the cheapest monotone path through `-matrix [n + 1, F]`."""
    from librosa.sequence import dtw

    _, path = dtw(C=-matrix.astype(np.float64), backtrack=True)
    starts = np.zeros(len(matrix), dtype=np.int64)
    starts[path[:, 0]] = path[:, 1]  # the path runs backwards, so the first frame is written last
    return [int(s) for s in starts]


def words(
    whisper: Whisper,
    language: str | None,
    segments: Sequence[tuple[Sequence[int], str]],
    times: TokenTimes,
    offset: int,
) -> list[tuple[Word, ...]]:
    """The words of a window's segments, in samples of the recording, which the window enters at
    `offset`.

    `segments` are tokens with their text, in order; all their tokens joined are the timed ones. Words
    joined are the segment's text, and each lies in its window.
    """
    at, found = 0, []
    for tokens, whole in segments:
        spans = _split(whisper, language, tokens)
        if "".join(text for text, _ in spans) != whole:
            spans = [(whole, len(tokens))]  # broken characters: no border between words is certain
        timed: list[tuple[str, int, int, float]] = []
        for text, count in spans:
            start, end = times.boundaries[at], times.boundaries[at + count]
            chance = float(np.mean(times.probabilities[at : at + count]))
            timed.append((text, start, max(start, end), chance))
            at += count
        found.append(timed)
    every = [word for timed in found for word in timed]
    longest = _longest(every)
    return [
        tuple(
            Word(text, offset + start, offset + end, chance)
            for text, start, end, chance in _shortened(timed, longest)
        )
        for timed in found
    ]


def _split(whisper: Whisper, language: str | None, tokens: Sequence[int]) -> list[tuple[str, int]]:
    """Words with their number of tokens: at spaces, or by character where a language has none;
    punctuation goes with its word."""
    from transformers.models.whisper.tokenization_whisper import (
        LANGUAGES,
        _combine_tokens_into_words,
    )

    name = LANGUAGES.get(language or "en", "english")
    texts, groups, _ = _combine_tokens_into_words(whisper.tokenizer, list(tokens), name)
    return [(text, len(group)) for text, group in zip(texts, groups, strict=True)]


def _longest(timed: Sequence[tuple[str, int, int, float]]) -> int:
    """Samples that a word beside a pause may last."""
    lengths = [end - start for _, start, end, _ in timed if end > start]
    median = float(np.median(lengths)) if lengths else 0.0
    return round(min(LONGEST_S * SAMPLE_RATE, median) * TYPICAL)


def _shortened(
    timed: Sequence[tuple[str, int, int, float]], longest: int
) -> Iterator[tuple[str, int, int, float]]:
    """Words at the borders of sentences without the pause that fell to them."""
    after_end = True
    for index, (text, start, end, chance) in enumerate(timed):
        ends = text.strip()[-1:] in SENTENCE_END or index == len(timed) - 1
        if longest and end - start > longest:
            if after_end:
                start = end - longest
            elif ends:
                end = start + longest
        yield text, start, end, chance
        after_end = bool(text.strip()) and text.strip()[-1] in SENTENCE_END
