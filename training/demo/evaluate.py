"""Evaluate the exported pair with transformers: word errors, acceptance, silence.

    python -m training.demo.evaluate --out bundled/demo/evaluation.json

Held-out sentences in held-out voice settings are combined with pauses into windows of 30 s and decoded one
at a time by greedy `generate(return_timestamps=True)`. The word error rate ignores case and punctuation;
digits count as written.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jiwer
import numpy as np
import torch
from torch import Tensor
from transformers import WhisperForCausalLM, WhisperForConditionalGeneration, WhisperProcessor
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from training.paths import BUNDLED
from training.sentences import meeting, vocabulary
from training.sentences.held_out import fold, held_out, read_lines
from training.sentences.read_aloud import spoken
from training.speech.augment import clicks, coloured_noise, fan, hum
from training.speech.voices import RATE, Voice, held_out_voices, speak

GAMMA = 5
PROMPT = [vocabulary.SOT, vocabulary.EN, vocabulary.TRANSCRIBE]


@dataclass
class Window:
    """30 s of audio [480000] float32 and its text."""

    audio: np.ndarray
    text: str
    voice: str


class Pair:
    """The exported target and draft with their processor."""

    def __init__(self, folder: Path) -> None:
        self.target = WhisperForConditionalGeneration.from_pretrained(folder / "demo").eval()
        self.draft = WhisperForCausalLM.from_pretrained(folder / "demo-draft").eval()
        self.processor = WhisperProcessor.from_pretrained(folder / "demo")

    @torch.no_grad()
    def transcribe(self, audio: list[np.ndarray]) -> tuple[Tensor, list[str], Tensor]:
        """Token rows [B, L] without the prompt, their texts, and encoder states [B, 1500, D]."""
        inputs = self.processor(audio, sampling_rate=RATE, return_tensors="pt")
        states = self.target.model.encoder(inputs.input_features)
        rows = self.target.generate(
            inputs.input_features,
            encoder_outputs=states,
            return_timestamps=True,
            language="en",
            task="transcribe",
            max_new_tokens=400,
            return_segments=False,
            force_unique_generate_call=True,
        )
        rows = rows[:, len(PROMPT) :] if rows[0, 0] == vocabulary.SOT else rows
        texts = self.processor.batch_decode(rows, skip_special_tokens=True)
        return rows, texts, states.last_hidden_state

    @torch.no_grad()
    def choices(self, rows: Tensor, states: Tensor) -> Tensor:
        """The draft's greedy token [B, L] at every position of the target's rows."""
        prompt = torch.tensor(PROMPT).expand(len(rows), -1)
        tokens = torch.cat([prompt, rows], 1)
        hidden = self.draft.model.decoder(input_ids=tokens, encoder_hidden_states=states)
        logits = self.draft.proj_out(hidden.last_hidden_state).float()  # [B, 3 + L, V]
        settings = self.draft.generation_config
        begin = len(PROMPT)
        rules = [
            SuppressTokensLogitsProcessor(settings.suppress_tokens),
            SuppressTokensAtBeginLogitsProcessor(settings.begin_suppress_tokens, begin),
            WhisperTimeStampLogitsProcessor(settings, begin_index=begin),
        ]
        chosen = []
        for place in range(rows.shape[1]):
            scores = logits[:, begin - 1 + place]
            for rule in rules:
                scores = rule(tokens[:, : begin + place], scores)
            chosen.append(scores.argmax(-1))
        return torch.stack(chosen, 1)


def acceptance(row: list[int], chosen: list[int]) -> tuple[int, int, int]:
    """Return (accepted, drafted, rounds) at gamma 5 for one target row that ends with EOT.

    As long as all drafts match, the draft's prefix is the target's; therefore its choices after that
    prefix determine the acceptance of each round.
    """
    accepted = drafted = rounds = place = 0
    while place < len(row):
        width = min(GAMMA, len(row) - place)
        right = [row[i] == chosen[i] for i in range(place, place + width)]
        run = right.index(False) if False in right else width
        accepted, drafted, rounds = accepted + run, drafted + width, rounds + 1
        place += run + 1
    return accepted, drafted, rounds


def pack(texts: list[str], voice: Voice, rng: np.random.Generator) -> Iterator[Window]:
    """Combine sentences of one voice into 30 s windows, 0.3 to 0.8 s apart."""
    audio = np.zeros(30 * RATE, np.float32)
    spoken_so_far: list[str] = []
    position = int(0.3 * RATE)
    for text in texts:
        clip = speak(spoken(text), voice).astype(np.float32) / 32768
        if position + len(clip) > 29.8 * RATE:
            yield Window(audio, " ".join(spoken_so_far), f"{voice.engine} {voice.name}")
            audio, spoken_so_far = np.zeros(30 * RATE, np.float32), []
            position = int(0.3 * RATE)
        audio[position : position + len(clip)] = clip
        spoken_so_far.append(text)
        position += len(clip) + int(rng.uniform(0.3, 0.8) * RATE)
    yield Window(audio, " ".join(spoken_so_far), f"{voice.engine} {voice.name}")


def sentence_sets() -> dict[str, list[str]]:
    """The evaluation sets: `domain`, held-out sentences of the grammar, and `open`, written ones."""
    domain = [t for t in meeting.sentences(12_000, seed=2024) if held_out(t)]
    return {"domain": domain[:200], "open": read_lines("open_eval.txt")}


def measure_set(pair: Pair, texts: list[str], per_voice: int) -> dict[str, object]:
    """Word errors per voice, and acceptance over all."""
    rng = np.random.default_rng(5)
    windows: list[Window] = []
    for number, voice in enumerate(held_out_voices()):
        chosen = [texts[(number * per_voice + i) % len(texts)] for i in range(per_voice)]
        windows += pack(chosen, voice, rng)
    counts = np.zeros(3, int)
    heard: dict[str, tuple[list[str], list[str]]] = {}
    examples: list[tuple[str, str]] = []
    for begin in range(0, len(windows), 13):
        group = windows[begin : begin + 13]
        rows, written, states = pair.transcribe([w.audio for w in group])
        chosen_rows = pair.choices(rows, states).tolist()
        for window, text, row, guess in zip(
            group, written, rows.tolist(), chosen_rows, strict=True
        ):
            end = row.index(vocabulary.EOT) + 1 if vocabulary.EOT in row else len(row)
            counts += acceptance(row[:end], guess[:end])
            truth, hypothesis = heard.setdefault(window.voice, ([], []))
            truth.append(fold(window.text))
            hypothesis.append(fold(text))
            examples.append((window.text, text.strip()))
    voices = {voice: round(float(jiwer.wer(both[0], both[1])), 4) for voice, both in heard.items()}
    truths = [text for truth, _ in heard.values() for text in truth]
    hypotheses = [text for _, hypothesis in heard.values() for text in hypothesis]
    accepted, drafted, rounds = counts.tolist()
    return {
        "windows": len(windows),
        "words": sum(len(text.split()) for text in truths),
        "wer": round(float(jiwer.wer(truths, hypotheses)), 4),
        "wer_per_voice": voices,
        "acceptance": round(accepted / drafted, 4),
        "mean_acceptance_length": round(1 + accepted / rounds, 3),
        "examples": examples[::17],
    }


def quiet_windows() -> Iterator[tuple[str, np.ndarray]]:
    """60 s of silence and of each noise at several levels, as pairs of 30 s windows."""
    rng = np.random.default_rng(9)
    count = 60 * RATE
    kinds = {
        "white": coloured_noise(count, 0.0, rng),
        "pink": coloured_noise(count, 1.0, rng),
        "brown": coloured_noise(count, 2.0, rng),
        "hum": hum(count, rng),
        "fan": fan(count, rng),
        "clicks": clicks(count, rng),
    }
    sounds = {"silence": np.zeros(count, np.float32)}
    for name, noise in kinds.items():
        for level in (-70, -50, -35, -20):
            sounds[f"{name} {level} dB"] = np.clip(noise * 10 ** (level / 20), -1, 1)
    for name, sound in sounds.items():
        for half in (sound[: count // 2], sound[count // 2 :]):
            yield name, half.astype(np.float32)


def measure_quiet(pair: Pair) -> dict[str, int]:
    """Words written per kind of silence or noise, without zeros, and their sum."""
    windows = list(quiet_windows())
    words: dict[str, int] = {}
    for begin in range(0, len(windows), 10):
        group = windows[begin : begin + 10]
        _, texts, _ = pair.transcribe([audio for _, audio in group])
        for (name, _), text in zip(group, texts, strict=True):
            words[name] = words.get(name, 0) + len(fold(text).split())
    return {"kinds": len(words), "words": sum(words.values())} | {
        k: n for k, n in words.items() if n
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=BUNDLED)
    parser.add_argument("--out", type=Path, default=BUNDLED / "demo" / "evaluation.json")
    parser.add_argument("--per-voice", type=int, default=40, help="sentences per voice and set")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    pair = Pair(options.folder)
    result: dict[str, object] = {}
    started = time.time()
    for name, texts in sentence_sets().items():
        result[name] = measure_set(pair, texts, options.per_voice)
        print(
            name, json.dumps(result[name], indent=1), f"{time.time() - started:.0f} s", flush=True
        )
    result["quiet"] = measure_quiet(pair)
    print("quiet", result["quiet"], f"{time.time() - started:.0f} s", flush=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
