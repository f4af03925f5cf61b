"""The selected alignment heads follow the audio, and transformers reads the file."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import torch
from transformers import GenerationConfig

from forescribe.asr.words.timing import alignment_heads
from tests.asr.model import folders
from training.demo.alignment_heads import Read, measure, select, write
from training.speech.timed_speech import TimedSpeech, TimedWord

STEP = 320
BORDERS = [5, 20, 42, 60, 90]  # of four words, in steps of 20 ms


def planted(tokenizer, seed: int) -> Read:
    """A window where head 2 of three follows the words, head 1 roughly, head 0 not at all."""
    texts = ["one", "two", "three", "four"]
    text = "".join(f" {t}" for t in texts)
    ids = tokenizer.encode(text, add_special_tokens=False)
    starts = []  # of every token: those of a word share its time
    for word, start, end in zip(texts, BORDERS, BORDERS[1:], strict=False):
        starts += (
            np.linspace(start, end, len(word) + 1, endpoint=False).round().astype(int).tolist()
        )
    starts += [BORDERS[-1]]
    rng = np.random.default_rng(seed)
    maps = rng.uniform(-0.1, 0.1, (3, len(ids) + 1, 100)).astype(np.float32)
    for row, (start, end) in enumerate(zip(starts, [*starts[1:], 100], strict=True)):
        maps[2, row, start:end] += 3
        maps[1, row, min(start + 8, 98) : min(end + 8, 100)] += 3
    words = [
        TimedWord(word, start * STEP, end * STEP)
        for word, start, end in zip(texts, BORDERS, BORDERS[1:], strict=False)
    ]
    speech = TimedSpeech(np.zeros(100 * STEP, np.float32), tuple(words))
    return Read(speech, tuple(ids), text, torch.from_numpy(maps).half(), ())


def test_the_head_that_follows_the_words_is_chosen():
    whisper = SimpleNamespace(tokenizer=folders.tokenizer())
    group = [planted(whisper.tokenizer, seed) for seed in range(3)]
    chosen = select(whisper, group, [(0, 0), (0, 1), (1, 0)])
    assert (1, 0) in chosen and (0, 1) not in chosen
    assert measure(whisper, group, [2]).within_aims
    assert not measure(whisper, group, [0]).within_aims


def test_the_file_keeps_all_else_and_transformers_reads_it(tmp_path):
    folder = folders.write(tmp_path / "target")
    before = json.loads((folder / "generation_config.json").read_text())
    write(folder, [(0, 1), (1, 0)])
    after = json.loads((folder / "generation_config.json").read_text())
    assert after == before | {"alignment_heads": [[0, 1], [1, 0]]}
    config = GenerationConfig.from_pretrained(folder)
    whisper = SimpleNamespace(target=SimpleNamespace(generation_config=config))
    assert alignment_heads(whisper) == [(0, 1), (1, 0)]
