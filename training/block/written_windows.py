"""What the target writes in windows of speech, with the hidden states that a block head reads.

    python -m training.block.written_windows --labels training/made/draft/.distill/labels

Reads the encoder states that `forescribe distill --keep-labels` has stored, decodes them with the pair as
usual, and stores tokens, encoder states and tapped states as float16. The tapped states come from the rounds
themselves, so they cost nothing more than the decoding. A repeated command goes on behind the files that
exist.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from forescribe.asr.decode.rules import whisper_rules
from forescribe.asr.model.encoder_states import EncoderStates
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import resolve
from forescribe.asr.model.whisper import Whisper
from forescribe.distill.labels import LabelStore
from forescribe.speculative import Engine, Fixed
from forescribe.speculative.device import choose
from forescribe.speculative.drafters.model_drafter import ModelDrafter
from forescribe.speculative.protocols import Needs
from forescribe.speculative.requests import Request
from forescribe.speculative.rows import Rows
from forescribe.speculative.types import Draft, Scores, Verdict
from training.paths import MADE

BATCH, GAMMA, PER_FILE = 8, 4, 16
WORK = MADE / "block"


def taps_of(layers: int) -> tuple[int, ...]:
    """The target's states that a head reads: entering the first layer and two in the middle, and the last."""
    return (0, layers // 3, 2 * layers // 3, -1)


class NotingDrafter(ModelDrafter):
    """A draft model that keeps the target's tapped states of every request, by its tag."""

    def __init__(self, model: object, width: int, taps: tuple[int, ...]) -> None:
        super().__init__(model)  # type: ignore[arg-type]
        self.width, self.taps = width, taps
        self.found: dict[object, Tensor] = {}
        self._owners: dict[int, object] = {}

    @property
    def needs(self) -> Needs:
        return replace(super().needs, taps=self.taps, prompt=True, always=True)

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        super().allocate(batch, slots, device)
        self.kept = torch.zeros(batch, slots + GAMMA + 1, len(self.taps), self.width)

    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        super().admit(rows, tokens, requests, taps)
        assert taps is not None
        for row, request in zip(rows.tolist(), requests, strict=True):
            self._take(row)
            self._owners[row] = request.tag
        self.kept[rows, : tokens.shape[1]] = taps

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        assert scores.taps is not None
        slots = (rows.lengths - 1)[:, None] + torch.arange(scores.taps.shape[1])
        batch = torch.arange(rows.batch)[:, None]
        live = rows.active[:, None, None, None]  # a finished row keeps its states until it is taken
        self.kept[batch, slots] = torch.where(live, scores.taps, self.kept[batch, slots])

    def finish(self) -> dict[object, Tensor]:
        """The states `[T, H, D]` of all requests since the last call."""
        for row in list(self._owners):
            self._take(row)
        found, self.found = self.found, {}
        return found

    def _take(self, row: int) -> None:
        if row in self._owners:
            self.found[self._owners.pop(row)] = self.kept[row].clone()


@dataclass(frozen=True, eq=False)
class Writer:
    """The pair, decoding as `Transcriber` does."""

    whisper: Whisper
    drafter: NotingDrafter
    engine: Engine

    @classmethod
    def of(cls, name: str) -> Writer:
        device = choose("cpu")
        whisper = load(resolve(name, None, "en"), device, network=False)
        config = whisper.target.config
        draft = whisper.drafts[0].decoder(0)
        drafter = NotingDrafter(draft, config.d_model, taps_of(config.decoder_layers))
        engine = Engine(
            whisper.decoder(),
            drafter,
            batch=BATCH,
            eos=whisper.tokens.ends,
            schedule=Fixed(GAMMA),
            processors=whisper_rules(whisper.target.generation_config, config, device.torch),
            device=device,
        )
        return cls(whisper, drafter, engine)

    def write(self, states: Tensor) -> list[tuple[list[int], Tensor]]:
        """For every window of `states [W, S, D]` its prompt and tokens, n in all, and the tapped states
        `[n - 1, H, D]`: the last token is never read."""
        prompt = self.whisper.tokens.prompt("en", "transcribe", timestamps=True, previous=())
        requests = [
            Request(prompt, encoder_states=EncoderStates(s, (s,)), tag=number)
            for number, s in enumerate(states)
        ]
        tokens = {
            r.request.tag: [*prompt, *r.tokens] for r in self.engine.run(requests) if r.tokens
        }
        taps = self.drafter.finish()
        return [(t, taps[tag][: len(t) - 1]) for tag, t in sorted(tokens.items())]


def store(path: Path, states: Tensor, written: list[tuple[list[int], Tensor]]) -> None:
    partial = path.with_suffix(".tmp.npz")
    np.savez(
        partial,
        tokens=np.array([t for tokens, _ in written for t in tokens], np.int32),
        states=states.half().numpy(),
        lengths=np.array([len(tokens) for tokens, _ in written]),
        taps=torch.cat([taps for _, taps in written]).half().numpy(),
    )
    partial.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.block.written_windows")
    parser.add_argument("--model", default="tiny.en")
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=WORK)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    writer = Writer.of(options.model)
    rows = [row.states for row in LabelStore(options.labels).rows() if row.states is not None]
    for number, first in enumerate(range(0, len(rows), PER_FILE)):
        path = options.out / f"windows-{number:04}.npz"
        if path.exists():
            continue
        began = time.time()
        states = torch.stack([read()[0] for read in rows[first : first + PER_FILE]])
        written = writer.write(states)
        if len(written) < len(states):
            raise RuntimeError(f"{path}: a window has no tokens")
        store(path, states, written)
        mean = sum(len(t) for t, _ in written) / len(written)
        print(f"{path.name}: {mean:.0f} tokens a window, {time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
