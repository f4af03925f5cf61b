"""Token times: the frames that the target attends to while it generates each token.

One teacher-forced forward pass over the final tokens of several windows. The cross-attention of the
alignment heads is recomputed from captured projections, so the model keeps its fast attention kernel and
its configuration. Dynamic time warping then finds the monotone path (openai/whisper `timing.py`; the
heads of published models are in their generation config). Knows nothing of words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forescribe.speculative.engine.admission import padded_to_bucket
from forescribe.speculative.native import library

from ..model.states import EncoderStates
from ..model.tokens import SAMPLES_PER_STEP
from ..model.whisper import Whisper

MEDIAN = 7
"""Width of the median filter along time, in steps of 20 ms (openai/whisper)."""


@dataclass(frozen=True)
class Utterance:
    """The text of a window, to be timed. `prompt` ends with <|notimestamps|>; `length` is in samples."""

    encoder_states: EncoderStates
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]  # text only
    length: int


@dataclass(frozen=True)
class TokenTimes:
    """The times of n tokens: boundaries `[n + 1]` in samples from the window's start, non-decreasing, and
    probabilities `[n]`."""

    boundaries: tuple[int, ...]
    probabilities: tuple[float, ...]

    def shared(self, places: Sequence[float], end: float) -> TokenTimes:
        """The times of tokens that begin at `places` among these, in order, the last of which ends at `end`:
        tokens in place of others share their time, and have their mean probability."""
        borders, tokens = [*places, end], range(len(self.boundaries))
        times = np.interp(borders, tokens, self.boundaries)
        means = [
            float(np.mean(self.probabilities[int(a) : max(int(a) + 1, math.ceil(b))]))
            for a, b in pairwise(borders)
        ]
        return TokenTimes(tuple(map(round, times)), tuple(means))


def alignment_heads(whisper: Whisper) -> list[tuple[int, int]]:
    """The (layer, head) pairs that follow the audio, from the generation config; without such an entry, all
    heads of the upper half of the layers."""
    listed = getattr(whisper.target.generation_config, "alignment_heads", None)
    if listed:
        return [(int(layer), int(head)) for layer, head in listed]
    config = whisper.target.config
    layers = range(config.decoder_layers // 2, config.decoder_layers)
    return [(layer, head) for layer in layers for head in range(config.decoder_attention_heads)]


@dataclass(frozen=True, eq=False)
class Attention:
    """The attention of H heads for n tokens and the end after them, on the device: maps `[H, n + 1, F]` over
    F steps of 20 ms, larger where the token is spoken; probabilities `[n]` of the tokens."""

    maps: Tensor
    probabilities: Tensor


Beside: TypeAlias = Callable[[Callable[[], Any]], Any]
"""Runs what uses the device, one after another; the device may do other work meanwhile."""


def at_once(work: Callable[[], Any]) -> Any:
    return work()


def token_times(
    whisper: Whisper, utterances: Sequence[Utterance], beside: Beside = at_once
) -> list[TokenTimes]:
    """Times and probabilities of all tokens. `beside` runs what uses the device."""
    attentions = beside(lambda: attention(whisper, utterances, alignment_heads(whisper)))
    read = beside(lambda: [(a.maps.mean(0).cpu(), a.probabilities.tolist()) for a in attentions])
    return [
        TokenTimes(boundaries(matrix, len(u.tokens), u.length), tuple(probabilities))
        for u, (matrix, probabilities) in zip(utterances, read, strict=True)
    ]


@torch.inference_mode()
def attention(
    whisper: Whisper, utterances: Sequence[Utterance], heads: Sequence[tuple[int, int]]
) -> list[Attention]:
    """The attention of `heads`, as (layer, head), while the target reads the text."""
    end, positions = whisper.tokens.end, whisper.positions
    rows = [[*u.prompt, *u.tokens, end][:positions] for u in utterances]
    result = []
    for utterance, (scores, logprobs) in zip(
        utterances, _read(whisper, utterances, rows, heads), strict=True
    ):
        first, count = len(utterance.prompt), len(utterance.tokens)
        scores = scores[:, : first + count + 1, : _frames(utterance.length)]
        # The query at a position generates the next token; the last row generates the end, unless the
        # text fills all positions.
        maps = _sharpened(scores, range(first - 1, min(first + count, scores.shape[1])))
        result.append(Attention(maps, logprobs[first - 1 : first + count - 1].exp()))
    return result


def _read(
    whisper: Whisper,
    utterances: Sequence[Utterance],
    rows: Sequence[Sequence[int]],
    heads: Sequence[tuple[int, int]],
) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each row of N tokens the scores `[H, N or more, S]` of the heads, and the log-probabilities
    `[N - 1]` of its tokens but the first, or more. Native kernels read a row at a time, and so do modules on
    a CPU, where no row then depends on the others. Elsewhere all are read in one pass, with rows and lengths
    of few sizes where shapes are static."""
    with whisper.reading() as decoder:
        if decoder is not None:
            for utterance, row in zip(utterances, rows, strict=True):
                yield decoder.cross_attention(torch.tensor(row), utterance.encoder_states, heads)
            return
    place, states = whisper.device, [u.encoder_states.target for u in utterances]
    if len(rows) > 1 and not place.rows_together:
        for utterance, row in zip(utterances, rows, strict=True):
            yield from _read(whisper, [utterance], [row], heads)
        return
    static, given = place.static_shapes, list(rows)
    if static:
        padding = (1 << (len(rows) - 1).bit_length()) - len(rows)
        given, states = given + given[-1:] * padding, states + states[-1:] * padding
    padded = padded_to_bucket(given, place, whisper.positions)
    tokens = torch.tensor(padded, device=place.torch)
    with _captured(whisper, heads) as queries_and_keys:
        hidden = whisper.target.model.decoder(
            input_ids=tokens, encoder_hidden_states=torch.stack(states), use_cache=False
        ).last_hidden_state
    scores = torch.stack([q @ k.mT for q, k in queries_and_keys()], dim=1).float()  # [B, H, N, S]
    for index, row in enumerate(rows):
        # Row by row: the logits of all rows at once take gigabytes in a large model.
        end = tokens.shape[1] if static else len(row)
        logits = whisper.target.proj_out(hidden[index, : end - 1]).float()
        logprobs = logits.log_softmax(-1).gather(1, tokens[index, 1:end, None])[:, 0]
        if static and not place.captures_at_once:
            # The shapes of what follows depend on the text: the host computes it.
            yield scores[index].cpu(), logprobs.cpu()
        else:
            yield scores[index], logprobs


def boundaries(matrix: Tensor, count: int, length: int) -> tuple[int, ...]:
    """Where `count` tokens begin and the last one ends, from one map `[n + 1, F]` on the host: samples up to
    `length`."""
    frames, kernels = _frames(length), _kernels()
    starts = _path_starts(matrix.numpy()) if kernels is None else kernels.path_starts(matrix)
    starts += [frames] * (count + 1 - len(starts))
    return tuple(min(start * SAMPLES_PER_STEP, length) for start in starts)


def _frames(length: int) -> int:
    return max(1, -(-length // SAMPLES_PER_STEP))


@contextmanager
def _captured(whisper: Whisper, heads: Sequence[tuple[int, int]]) -> Iterator[Any]:
    """Capture the queries and keys of heads in the forward pass that runs inside.

    Yields a function that returns them as pairs ([B, N, d] scaled, [B, S, d]).
    """
    layers = whisper.target.model.decoder.layers
    outputs: dict[tuple[int, str], Tensor] = {}

    def keep(key: tuple[int, str], module: Any, inputs: Any, output: Tensor) -> None:
        outputs[key] = output

    handles = []
    for layer in {layer for layer, _ in heads}:
        attention = layers[layer].encoder_attn
        for name in ("q_proj", "k_proj"):
            hook = partial(keep, (layer, name))
            handles.append(getattr(attention, name).register_forward_hook(hook))

    def queries_and_keys() -> list[tuple[Tensor, Tensor]]:
        pairs = []
        for layer, head in heads:
            attention = layers[layer].encoder_attn
            size = attention.head_dim
            q, k = (outputs[layer, n][..., head * size :][..., :size] for n in ("q_proj", "k_proj"))
            pairs.append((q * attention.scaling, k))
        return pairs

    try:
        yield queries_and_keys
    finally:
        for handle in handles:
            handle.remove()


def _kernels() -> library.Library | None:
    """The native kernels: the same bits in a tenth of the time. None where there are none."""
    return library.load() if library.missing() is None else None


def _sharpened(scores: Tensor, rows: range) -> Tensor:
    """Maps `[H, n, F]` of n of the rows, from scores `[H, N, F]`: softmax over frames, each frame normalised
    over the tokens, median-filtered along time."""
    weights, kernels = scores.softmax(-1), _kernels()
    pad = min(MEDIAN // 2, weights.shape[-1] - 1)
    if weights.is_cpu and pad == MEDIAN // 2 and kernels is not None:
        return kernels.sharpen(weights, rows.start, len(rows))
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    weights = ((weights - mean) / deviation.clamp_min(1e-8))[:, rows.start : rows.stop]
    if not pad:
        return weights
    padded = torch.nn.functional.pad(weights, (pad, pad), mode="reflect")
    if pad < MEDIAN // 2:
        return padded.unfold(-1, 2 * pad + 1, 1).median(-1).values
    # Head by head on a CPU: one fits its caches.
    return torch.stack(list(map(medians, padded))) if padded.is_cpu else medians(padded)


def medians(values: Tensor) -> Tensor:
    """The median of each MEDIAN neighbours in the last dimension: `[..., F]` of `[..., F + 6]`.

    All triples are sorted once. Of two of them the third and the fourth number follow from pairs of ranks,
    and the median of seven is between these. 4 ms for 6 heads of 110 tokens and 28 s, `torch.median` 77.
    """
    first, second, third = values[..., :-2], values[..., 1:-1], values[..., 2:]
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    middle, high = torch.minimum(high, third), torch.maximum(high, third)
    low, middle = torch.minimum(low, middle), torch.maximum(low, middle)
    count = values.shape[-1] - MEDIAN + 1
    (a, b, c), (d, e, f) = (
        [ranked.narrow(-1, at, count) for ranked in (low, middle, high)] for at in (0, 4)
    )
    lower = torch.minimum(
        torch.minimum(c, f), torch.minimum(torch.maximum(a, e), torch.maximum(b, d))
    )
    upper = torch.minimum(
        torch.maximum(b, e), torch.minimum(torch.maximum(a, f), torch.maximum(c, d))
    )
    return torch.maximum(lower, torch.minimum(upper, values.narrow(-1, 3, count)))


def _path_starts(matrix: NDArray[np.float32]) -> list[int]:
    """The first frame of each row on the cheapest monotone path through `-matrix [n + 1, F]`, which steps to
    the next frame, the next row or both.

    Dynamic time warping, a row at a time: the cheapest way to a frame entered its row at one of the frames up
    to it and went on along the row, so that the minimum over all of these is a running one. librosa's `dtw`
    finds the same path, and its import takes 1 s and 100 MB.
    """
    costs = -matrix.astype(np.float64)
    rows, frames = costs.shape
    column, cheapest = np.arange(frames), costs[0].cumsum()
    entries, straight = np.zeros((2, rows, frames), dtype=np.int64)
    for row in range(1, rows):
        diagonal = np.concatenate([[np.inf], cheapest[:-1]])
        straight[row] = cheapest < diagonal
        along = costs[row].cumsum()
        entered = np.minimum(diagonal, cheapest) - (along - costs[row])
        lowest = np.minimum.accumulate(entered)
        entries[row] = np.maximum.accumulate(np.where(entered == lowest, column, 0))
        cheapest = along + lowest
    starts, frame = [0] * rows, frames - 1
    for row in range(rows - 1, 0, -1):
        starts[row] = int(entries[row, frame])
        frame = starts[row] - 1 + int(straight[row, starts[row]])
    return starts
