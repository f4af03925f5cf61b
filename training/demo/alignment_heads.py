"""Select the target's alignment heads by measurement and write them to its generation_config.json.

    python -m training.demo.alignment_heads

Uses training sentences in training voices, with known word times. The target is given the correct text, so
that its word errors do not matter. Greedy forward selection adds the head that improves the word times
most, until none does. `benchmarks.quality.word_times` evaluates with other sentences and voices.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from forescribe.asr.audio.features import LogMel
from forescribe.asr.model.loading import Whisper, load
from forescribe.asr.model.presets import Pair
from forescribe.asr.segment.pauses import Pause, pauses
from forescribe.asr.words.assembly import assemble_words
from forescribe.asr.words.timing import (
    TokenTimes,
    Utterance,
    alignment_heads,
    attention,
    boundaries,
)
from forescribe.speculative.device import choose
from training.paths import BUNDLED
from training.sentences import meeting
from training.sentences.held_out import held_out, read_lines
from training.speech.timed_speech import TimedSpeech, speak_timed, windows
from training.speech.voices import training_voice
from training.speech.word_errors import MEDIAN_S, P95_S, WordErrors, compare, quantile

SEED = 31
MOST = 8
WORTH = 0.99  # minimum gain of another head
BATCH = 4

Head = tuple[int, int]  # layer, head


@dataclass(frozen=True, eq=False)
class Read:
    """The cross-attention of all heads to the tokens of one window."""

    speech: TimedSpeech
    tokens: tuple[int, ...]
    text: str
    maps: Tensor  # [H, n + 1, F] of all heads, in float16 to limit memory
    quiet: tuple[Pause, ...]


def speech(sentences: int) -> list[TimedSpeech]:
    """Windows of training sentences in training voices."""
    draw, rng = random.Random(SEED), np.random.default_rng(SEED)
    lists = [*meeting.sentences(sentences, seed=SEED), *read_lines("ordinary.txt")]
    texts = draw.sample(sorted({text for text in lists if not held_out(text)}), sentences)
    return list(windows(_spoken(texts, draw), rng))


def _spoken(texts: Sequence[str], draw: random.Random) -> list[TimedSpeech]:
    parts = []
    for text in texts:
        try:
            parts.append(speak_timed(text, training_voice(draw)))
        except ValueError:  # a number whose words cannot be separated
            continue
    return parts


def read(whisper: Whisper, mel: LogMel, speech: Sequence[TimedSpeech]) -> list[Read]:
    """Compute the cross-attention of all heads with the correct text."""
    prompt = whisper.tokens.prompt("en", "transcribe", timestamps=False)
    found = []
    for first in range(0, len(speech), BATCH):
        group = speech[first : first + BATCH]
        features = mel([each.samples for each in group])
        texts = ["".join(f" {word.text}" for word in each.words) for each in group]
        work = [
            Utterance(encoder_states, prompt, _tokens(whisper, text), len(each.samples))
            for each, text, encoder_states in zip(
                group, texts, whisper.encode(features), strict=True
            )
        ]
        heard = attention(whisper, work, all_heads(whisper))
        for row, (each, text) in enumerate(zip(group, texts, strict=True)):
            quiet = pauses(features[row], len(each.samples))
            found.append(Read(each, work[row].tokens, text, heard[row].maps.half(), quiet))
    return found


def _tokens(whisper: Whisper, text: str) -> tuple[int, ...]:
    return tuple(whisper.tokenizer.encode(text, add_special_tokens=False))


def all_heads(whisper: Whisper) -> list[Head]:
    config = whisper.target.config
    heads = range(config.decoder_attention_heads)
    return [(layer, head) for layer in range(config.decoder_layers) for head in heads]


def measure(whisper: Whisper, group: Sequence[Read], numbers: Sequence[int]) -> WordErrors:
    """Errors of the word times from the mean of these heads."""
    total = WordErrors()
    for each in group:
        count, length = len(each.tokens), len(each.speech.samples)
        borders = boundaries(each.maps[list(numbers)].float().mean(0), count, length)
        times = TokenTimes(borders, (1.0,) * count)
        parts = [(each.tokens, each.text)]
        (found,) = assemble_words(
            whisper.tokenizer, "en", parts, times, each.quiet, 0, length=length
        )
        total += compare(each.speech.words, found)
    return total


def cost(errors: WordErrors) -> float:
    """The cost of errors; 2 if both targets are just met."""
    return quantile(errors.both, 0.5) / MEDIAN_S + quantile(errors.both, 0.95) / P95_S


def select(whisper: Whisper, group: Sequence[Read], heads: Sequence[Head]) -> list[Head]:
    """Greedy forward selection."""
    chosen: list[int] = []
    best = float("inf")
    while len(chosen) < MOST:
        costs = {
            number: cost(measure(whisper, group, [*chosen, number]))
            for number in range(len(heads))
            if number not in chosen
        }
        number = min(costs, key=lambda n: (costs[n], n))
        if costs[number] >= best * WORTH:
            break
        chosen.append(number)
        best = costs[number]
        print(f"with layer {heads[number][0]} head {heads[number][1]}: cost {best:.3f}", flush=True)
    return sorted(heads[number] for number in chosen)


def report(name: str, errors: WordErrors) -> None:
    median, late = (1000 * quantile(errors.both, share) for share in (0.5, 0.95))
    words = f"{errors.matched} of {errors.spoken} words"
    print(f"{name}: median {median:.0f} ms, p95 {late:.0f} ms, {words}", flush=True)


def write(folder: Path, heads: Sequence[Head]) -> None:
    """Write the heads to generation_config.json in the format of transformers."""
    path = folder / "generation_config.json"
    settings = json.loads(path.read_text("utf-8")) | {"alignment_heads": [list(h) for h in heads]}
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=BUNDLED / "demo")
    parser.add_argument("--sentences", type=int, default=160)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    started = time.time()
    whisper = load(Pair(options.folder, None), choose("cpu"), network=False)
    group = read(whisper, LogMel(whisper.extractor), speech(options.sentences))
    heads = all_heads(whisper)
    old = [heads.index(head) for head in alignment_heads(whisper)]
    report(f"{len(old)} heads as they are, {len(group)} windows", measure(whisper, group, old))
    chosen = select(whisper, group, heads)
    numbers = [heads.index(head) for head in chosen]
    report(f"{len(chosen)} chosen: {chosen}", measure(whisper, group, numbers))
    write(options.folder, chosen)
    print(f"{time.time() - started:.0f} s")


if __name__ == "__main__":
    main()
