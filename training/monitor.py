"""A small held-out measurement while training: CTC word error rate and token accuracy.

Held-out sentences of the training sources in held-out voices; the written evaluation set is not
touched before training has ended.
"""

from __future__ import annotations

import jiwer
import numpy as np
import torch

from training import fortunes, meeting, pieces
from training.features import log_mel
from training.model import Speech
from training.split import fold, held_out
from training.spoken import spoken
from training.voices import held_out_voices, speak
from training.windows import ALPHABET, Pool


def collapse(path: list[int]) -> str:
    """CTC's best path -> text: repeats merged, blanks dropped."""
    kept = [c for i, c in enumerate(path) if c and (i == 0 or c != path[i - 1])]
    return "".join(ALPHABET[c - 1] for c in kept)


class Monitor:
    """64 clips of 2 to 6 s, each alone in a 6.4 s window."""

    def __init__(self, pool: Pool) -> None:
        texts = [t for t in fortunes.sentences() if held_out(t) and 4 <= len(t.split()) <= 14][:60]
        texts += [t for t in meeting.sentences(3000, seed=9) if held_out(t)][:30]
        voices = held_out_voices()
        self.texts: list[str] = []
        sounds: list[np.ndarray] = []
        for number, text in enumerate(texts):
            audio = speak(spoken(text), voices[number % len(voices)]).astype(np.float32) / 32768
            if len(audio) < 6.2 * 16_000 and len(sounds) < 64:
                self.texts.append(text)
                sounds.append(np.pad(audio, (1600, 102_400 - 1600 - len(audio))))
        self.features = log_mel(torch.from_numpy(np.stack(sounds)))
        ids = pool.tokenizer([" " + t for t in self.texts], add_special_tokens=False)["input_ids"]
        forced = [pieces.SOT, pieces.EN, pieces.TRANSCRIBE, pieces.NO_TIMESTAMPS]
        longest = max(map(len, ids)) + 1
        rows = [[*forced, *row] + [pieces.EOT] * (longest - len(row)) for row in ids]
        self.tokens = torch.tensor(rows)
        self.lengths = torch.tensor([len(row) + 1 for row in ids])

    @torch.no_grad()
    def measure(self, model: Speech, decoding: bool) -> dict[str, float]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            states = model.encode(self.features, torch.zeros(len(self.texts), dtype=torch.long))
            paths = model.ctc(states).argmax(-1).tolist()
            written = [fold(collapse(path)) for path in paths]
            result = {"ctc_wer": round(float(jiwer.wer([fold(t) for t in self.texts], written)), 4)}
            if decoding:
                place = torch.arange(self.tokens.shape[1] - 1)
                known = (place >= 3) & (place < 3 + self.lengths[:, None])  # [B, L]
                logits, _ = model.decode(self.tokens[:, :-1], states, known)
                guess = logits.argmax(-1)  # [K]
                right = guess == self.tokens[:, 1:][known]
                result["token_accuracy"] = round(float(right.float().mean()), 4)
        return result
