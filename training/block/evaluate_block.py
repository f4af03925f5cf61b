"""Compare a trained block head with the distilled draft: acceptance by depth, price, speed, equality.

    OMP_NUM_THREADS=1 python -m training.block.evaluate_block --head training/made/block/head

Windows are cut and encoded once; then the engine alone decodes them, system by system in turns, and the
fastest of `--repeats` counts. Seconds are of the process (`time.process_time`), so that other processes slow
them less, but not nothing. Prints one line of JSON for each system; `equal` compares every window's tokens
with plain decoding.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.model.encoder_states import EncoderStates
from forescribe.speculative.requests import Request
from forescribe.speculative.stats import Stats
from training.block.train_block import BLOCK, LENGTHS
from training.paths import SAMPLES

PLAIN, DISTILLED, HEAD = "none", "distilled", "block"


@dataclass
class System:
    """One way to draft, at one batch size."""

    name: str
    batch: int
    gamma: int
    transcriber: Transcriber
    stats: Stats = field(default_factory=Stats)
    seconds: list[float] = field(default_factory=list)
    tokens: dict[Any, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, batch: int, gamma: int, head: Path, dtype: str | None) -> System:
        draft = {PLAIN: "none", DISTILLED: None, HEAD: str(head)}[name]
        made = Transcriber.load(
            "tiny.en",
            draft,
            language="en",
            device="cpu",
            batch=batch,
            gamma=gamma,
            network=False,
            draft_dtype=dtype if name == HEAD else None,
        )
        return cls(name, batch, gamma, made)

    def run(self, requests: list[Request]) -> None:
        before, began = self.transcriber.engine.stats, time.process_time()
        results = list(self.transcriber.engine.run([replace(r) for r in requests]))
        self.seconds.append(time.process_time() - began)
        self.stats = self.transcriber.engine.stats - before
        for result in results:
            if result.error is not None or result.draft_error is not None:
                raise RuntimeError(f"a window failed: {result.error or result.draft_error}")
        self.tokens = {r.request.tag: r.tokens for r in results}

    def record(self, plain: System) -> dict[str, Any]:
        stats, alike = self.stats, [plain.tokens[t] == found for t, found in self.tokens.items()]
        draft_ms = 1000 * stats.seconds.get("draft", 0.0) / max(1, stats.rounds)
        return {
            "draft": self.name,
            "batch": self.batch,
            "gamma": self.gamma,
            "tokens": sum(map(len, self.tokens.values())),
            "tokens_per_round": round(stats.mean_acceptance_length, 3),
            "by_depth": [round(share, 3) for share in stats.acceptance_at_depth],
            "draft_wall_ms_per_round": round(draft_ms, 2),
            "cpu_s": round(min(self.seconds), 2),
            "speed_up": round(min(plain.seconds) / min(self.seconds), 2),
            "equal": f"{sum(alike)} of {len(plain.tokens)}",
        }


def requests_of(recordings: list[str]) -> list[Request]:
    """The windows of recordings, encoded, with the prompt that they are decoded with."""
    made = Transcriber.load("tiny.en", "none", device="cpu", batch=8, gamma=0, network=False)
    options = Options(language="en", guards=None, keep_encoder_states=True)
    found = []
    for outcome in made.transcribe(recordings, options):
        if outcome.error is not None:
            raise outcome.error
        for window in outcome.decoded:
            assert window.encoder_states is not None
            states = window.encoder_states.target
            both = EncoderStates(states, (states,))
            tag = f"{outcome.name} {window.index}"
            found.append(Request(window.result.request.prompt, encoder_states=both, tag=tag))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.block.evaluate_block")
    parser.add_argument("recordings", nargs="*", default=[])
    parser.add_argument("--head", type=Path, required=True)
    parser.add_argument("--gamma", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--draft-dtype", help="of the head")
    options = parser.parse_args()
    if max(options.gamma) > BLOCK:
        parser.error(f"a block has {BLOCK} drafts")
    torch.set_num_threads(1)
    samples = [str(SAMPLES / "memo.flac"), str(SAMPLES / "conversation.flac")]
    requests = requests_of(options.recordings or samples)
    for batch in options.batch:
        kinds = [(PLAIN, 0), *((n, g) for g in options.gamma for n in (DISTILLED, HEAD))]
        systems = [System.of(n, batch, g, options.head, options.draft_dtype) for n, g in kinds]
        for _ in range(options.repeats):
            for system in systems:
                system.run(requests)
        for system in systems:
            print(json.dumps(system.record(systems[0])), flush=True)


if __name__ == "__main__":
    main()
