"""Encoder states of synthetic speech with its text in the target's word pieces, to train a CTC head.

    python -m training.ctc.label --hours 4

Composes windows of 30 s from the clips of `training.speech.synthesize`, encodes them with the bundled
target, and stores the states as float16 beside the text tokens of the clips; with `--transcribe`, beside
those that the target itself writes, which takes three times as long. A repeated command goes on behind the
files that exist.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from forescribe.asr.decode.encoding import EncodedWindow, encode_windows
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.speculative.requests import Request
from training.demo.windows import Pool, compose
from training.paths import MADE
from training.speech.augment import NoiseBank, damage

WINDOW_S = 30.0
PER_FILE = 16
DAMAGED = 0.4  # share of windows with noise or echo


def windows(pool: Pool, seed: int) -> tuple[list[np.ndarray], list[list[int]]]:
    """`PER_FILE` windows [N] float32, and the text tokens of their clips."""
    rng = np.random.default_rng(seed)
    bank = NoiseBank(rng)
    found, texts = [], []
    for _ in range(PER_FILE):
        sound, placed = compose(pool, WINDOW_S, rng)
        found.append(np.ascontiguousarray(damage(sound, bank, rng, DAMAGED), np.float32))
        texts.append([token for clip, _, _ in placed for token in pool.ids[clip]])
    return found, texts


def encode(transcriber: Transcriber, audio: list[np.ndarray]) -> list[EncodedWindow]:
    encoded = encode_windows(transcriber.context, audio, [False] * len(audio))
    good = [window for window in encoded if isinstance(window, EncodedWindow)]
    if len(good) < len(audio):
        raise RuntimeError("a window could not be encoded")
    return good


def transcribe(transcriber: Transcriber, encoded: list[EncodedWindow]) -> list[list[int]]:
    """The text tokens that the target writes for every window, in order."""
    tokens = transcriber.whisper.tokens
    prompt = tokens.prompt("en", "transcribe", timestamps=True, previous=())
    requests = [
        Request(prompt, encoder_states=window.encoder_states, tag=number)
        for number, window in enumerate(encoded)
    ]
    results = {r.request.tag: r.tokens for r in transcriber.engine.run(requests)}
    return [[t for t in results[n] if t < tokens.end] for n in range(len(encoded))]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.ctc.label")
    parser.add_argument("--hours", type=float, default=4.0)
    parser.add_argument("--clips", type=Path, default=MADE / "clips")
    parser.add_argument("--out", type=Path, default=MADE / "ctc")
    parser.add_argument("--transcribe", action="store_true", help="labels are the target's own")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    transcriber = Transcriber.load("demo", batch=8)
    pool = Pool(options.clips, transcriber.whisper.tokenizer)
    for number in range(round(options.hours * 3600 / WINDOW_S / PER_FILE)):
        path = options.out / f"{options.seed}-{number:04}.npz"
        if path.exists():
            continue
        pool.refresh()
        audio, texts = windows(pool, 1000 * options.seed + number)
        encoded = encode(transcriber, audio)
        if options.transcribe:
            texts = transcribe(transcriber, encoded)
        states = torch.stack([window.encoder_states.target for window in encoded]).half().numpy()
        flat = np.array([token for text in texts for token in text], np.int16)
        lengths = np.array([len(text) for text in texts])
        partial = path.with_suffix(".tmp.npz")
        np.savez(partial, states=states, tokens=flat, lengths=lengths)
        partial.rename(path)
        print(
            f"{path.name}: {pool.hours:.1f} h of clips, {lengths.mean():.0f} tokens a window",
            flush=True,
        )


if __name__ == "__main__":
    main()
