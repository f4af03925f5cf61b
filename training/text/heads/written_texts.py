"""Texts that the bundled target writes, which heads have to predict: half greedy, half at temperature 1.

OMP_NUM_THREADS=1 python -m training.text.heads.written_texts --minutes 3
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import torch

from forescribe.speculative import Engine, Request
from forescribe.speculative.models.engines import causal_decoder
from training.paths import BUNDLED, MADE
from training.text.corpus import documents
from training.text.export import TARGET, opened
from training.text.tokenizer import load, prompt_of

WORK = MADE / "text" / "heads"
TEXTS = "written.json"
LONGEST = 160  # tokens of an answer
BATCH = 16
AT_ONCE = 256  # texts between two looks at the clock


def prompts() -> list[list[int]]:
    """Token ids of the prompts of all training documents, shuffled; minutes four times, as most of the
    tokens that a user reads are of long answers."""
    known = [d for d in documents() if not d.held_out]
    known += [d for d in known if d.kind == "minutes"] * 3
    random.Random(7).shuffle(known)
    texts = [prompt_of(d) for d in known]
    return list(load(BUNDLED / TARGET)(texts, add_special_tokens=False)["input_ids"])


def write(seconds: float) -> list[list[int]]:
    """Texts with their prompts, up to end-of-text, written for `seconds`."""
    target: Any = opened(BUNDLED / TARGET)
    engine = Engine(causal_decoder(target), batch=BATCH, eos=[target.config.eos_token_id])
    known, began, done = prompts(), time.time(), list[list[int]]()
    while time.time() - began < seconds:
        chosen = [known[(len(done) + i) % len(known)] for i in range(AT_ONCE)]
        requests = [
            Request(
                tuple(prompt),
                max_new_tokens=LONGEST,
                temperature=float(i % 2),
                seed=len(done) + i,
                tag=i,
            )
            for i, prompt in enumerate(chosen)
        ]
        for result in engine.run(requests):
            done.append([*result.request.prompt, *result.tokens])
    return done


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--out", type=Path, default=WORK / TEXTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    texts = write(60 * options.minutes)
    options.out.write_text(json.dumps(texts), "utf-8")
    print(f"{options.out}: {len(texts)} texts, {sum(map(len, texts))} tokens")


if __name__ == "__main__":
    main()
