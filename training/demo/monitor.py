"""A small held-out evaluation during training: the output of CTC and of the decoder.

Uses held-out sentences of the training sources in held-out voices; the written evaluation set is not used
before training has ended. The decoder runs freely, as accuracy after the reference prefix overestimates a
model that predicts from text.
"""

from __future__ import annotations

import jiwer
import numpy as np
import torch
from torch import Tensor

from training.demo.features import log_mel
from training.demo.model import Speech
from training.demo.windows import ALPHABET
from training.sentences import fortunes, meeting, vocabulary
from training.sentences.held_out import fold, held_out
from training.sentences.read_aloud import spoken
from training.speech.voices import held_out_voices, speak

SECONDS = 6.4
LONGEST = 48  # tokens
KINDS = {"free": 40, "domain": 24}  # clips of each kind


def collapse(path: list[int]) -> str:
    """CTC's best path -> text: repeats merged, blanks dropped."""
    kept = [c for i, c in enumerate(path) if c and (i == 0 or c != path[i - 1])]
    return "".join(ALPHABET[c - 1] for c in kept)


class Monitor:
    """64 clips of 2 to 6 s, each in a window of 6.4 s."""

    def __init__(self) -> None:
        free = [t for t in fortunes.sentences() if held_out(t) and 4 <= len(t.split()) <= 14]
        domain = [t for t in meeting.sentences(3000, seed=9) if held_out(t)]
        voices = held_out_voices()
        self.tokenizer = vocabulary.load()
        self.texts: dict[str, list[str]] = {}
        sounds: list[np.ndarray] = []
        for (kind, count), texts in zip(KINDS.items(), (free, domain), strict=True):
            kept: list[str] = []
            for number, text in enumerate(texts):
                audio = speak(spoken(text), voices[number % len(voices)])
                if len(audio) < (SECONDS - 0.2) * 16_000 and len(kept) < count:
                    kept.append(text)
                    sound = np.zeros(round(SECONDS * 16_000), np.float32)
                    sound[1600 : 1600 + len(audio)] = audio.astype(np.float32) / 32768
                    sounds.append(sound)
            self.texts[kind] = kept
        self.features = log_mel(torch.from_numpy(np.stack(sounds)))

    @torch.no_grad()
    def measure(self, model: Speech) -> dict[str, float]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            states = model.encode(self.features)
            heard = [collapse(path) for path in model.ctc(states).argmax(-1).tolist()]
            rows = write(model, states)
        written = self.tokenizer.batch_decode(rows, skip_special_tokens=True)
        result, begin = {}, 0
        for kind, texts in self.texts.items():
            part = slice(begin, begin + len(texts))
            truth = [fold(t) for t in texts]
            result[f"ctc_wer_{kind}"] = _errors(truth, heard[part])
            result[f"wer_{kind}"] = _errors(truth, written[part])
            begin += len(texts)
        return result


def write(model: Speech, states: Tensor) -> list[list[int]]:
    """Decode greedily without timestamps from states [B, T, D], up to end-of-text."""
    rows = torch.tensor(
        [vocabulary.SOT, vocabulary.EN, vocabulary.TRANSCRIBE, vocabulary.NO_TIMESTAMPS]
    )
    rows = rows.expand(len(states), -1)
    decoder = model.whisper.model.decoder
    cache, step, ended = None, rows, torch.zeros(len(states), dtype=torch.bool)
    for _ in range(LONGEST):
        result = decoder(
            input_ids=step, encoder_hidden_states=states, past_key_values=cache, use_cache=True
        )
        cache = result.past_key_values
        logits = model.whisper.proj_out(result.last_hidden_state[:, -1])
        step = torch.where(ended, vocabulary.EOT, logits.argmax(-1))[:, None]
        rows = torch.cat([rows, step], 1)
        ended = ended | (step[:, 0] == vocabulary.EOT)
        if bool(ended.all()):
            break
    return [[t for t in row if t != vocabulary.EOT] for row in rows[:, 4:].tolist()]


def _errors(truth: list[str], written: list[str]) -> float:
    return round(float(jiwer.wer(truth, [fold(text) for text in written])), 4)
