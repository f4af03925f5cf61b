"""Train heads for the bundled text target, together, in one single-threaded process.

    OMP_NUM_THREADS=1 python -m training.text.heads.written_texts
    OMP_NUM_THREADS=1 python -m training.text.heads.train_heads --minutes 30

The target's forward is most of the cost of a step, so all heads learn from it. Each is saved in the format
that it is published in every two minutes, under `training/made/text/heads/NAME`; a repeated command goes on
from there, with new optimizers.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from forescribe.distill.training import Optimizers, rate
from forescribe.speculative.models.heads.formats import dflash_head, eagle3_head
from forescribe.speculative.models.heads.mtp import mtp_head
from forescribe.speculative.models.heads.records import BlockHead, Head, TargetShape
from forescribe.speculative.models.quantized import float_weights
from training.paths import BUNDLED
from training.text import packing
from training.text.export import TARGET, opened
from training.text.heads import published
from training.text.heads.losses import Lesson, block_loss, chain_loss
from training.text.heads.written_texts import TEXTS, WORK

ROWS = 4  # of packing.LENGTH tokens per step
PEAK = 3e-3
NOTE_EVERY, SAVE_EVERY = 20, 120.0  # steps, seconds
PROPOSED = 1024  # tokens of the EAGLE-3 heads
INNER = 512
ANCHORS, BLOCK, MASK_TOKEN = 24, 8, 2
HELD_OUT = 100  # texts
NAMES = ("eagle3-ttt1", "eagle3-ttt3", "eagle3-ttt5", "mtp", "dflash")

Build = Callable[[Mapping[str, Any], Mapping[str, Tensor], TargetShape, str], Head]


@dataclass
class Student:
    """A head in training: its published tensors, of which the floating ones are learnt."""

    name: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    build: Build
    depths: int

    def __post_init__(self) -> None:
        learnt = {n: nn.Parameter(t) for n, t in self.tensors.items() if t.is_floating_point()}
        self.tensors = {**self.tensors, **learnt}
        self.module = nn.ParameterDict({n.replace(".", "/"): p for n, p in learnt.items()})
        self.optimizers = Optimizers(self.module, peak=PEAK)

    def loss(
        self, lesson: Lesson, shape: TargetShape, generator: torch.Generator
    ) -> tuple[Tensor, list[float]]:
        head = self.build(self.config, self.tensors, shape, self.name)
        if isinstance(head, BlockHead):
            return block_loss(head, lesson, ANCHORS, generator)
        return chain_loss(head, lesson, self.depths)

    def save(self) -> None:
        """Writes the head's folder; of an MTP layer a copy of the target with it inside."""
        folder, temporary = WORK / self.name, WORK / f"{self.name}.new"
        shutil.rmtree(temporary, ignore_errors=True)
        config, tensors = self.config, self.tensors
        if self.name.startswith("mtp"):
            shutil.copytree(BUNDLED / TARGET, temporary)
            tensors = float_weights(BUNDLED / TARGET) | tensors
            config = {k: v for k, v in config.items() if k != "mtp"}
        published.save(temporary, config, tensors)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)


def students(target: LlamaForCausalLM, texts: list[list[int]], names: list[str]) -> list[Student]:
    """New heads, or those of an earlier run."""
    config, made = target.config, []
    counted = Counter(token for text in texts for token in text)
    ids = [token for token, _ in counted.most_common(PROPOSED)]
    rows = target.lm_head.weight.detach()
    for name in names:
        depths = 1
        build: Build = eagle3_head
        if name.startswith("eagle3"):
            depths = int(name.removeprefix("eagle3-ttt"))
            settings, tensors = published.eagle3(config, ids, inner=INNER, taps=[2, 8, 13])
            tensors["lm_head.weight"] = rows[sorted(ids)].clone()
        elif name == "mtp":
            build = mtp_head
            settings, tensors = published.mtp(config, inner=config.intermediate_size)
            settings = json.loads((BUNDLED / TARGET / "config.json").read_text()) | settings
        else:
            build = dflash_head
            settings, tensors = published.dflash(
                config, inner=INNER, layers=2, leaves=[1, 7, 12], mask_token=MASK_TOKEN, block=BLOCK
            )
        earlier = WORK / name / "model.safetensors"
        if earlier.exists():
            tensors = {n: t for n, t in load_file(earlier).items() if n in tensors}
        made.append(Student(name, settings, tensors, build, depths))
    return made


def train(seconds: float, names: list[str], texts: list[list[int]], log: Path) -> None:
    target = opened(BUNDLED / TARGET)
    target.requires_grad_(False)
    config = target.config
    shape = TargetShape(TARGET, config.hidden_size, config.num_hidden_layers, config.vocab_size)
    learning = students(target, texts[HELD_OUT:], names)
    generator = torch.Generator().manual_seed(8)
    source = packing.batches(texts[HELD_OUT:], ROWS, seed=int(time.time()))
    held_out = packing.pack(packing.rows(texts[:HELD_OUT])[: 2 * ROWS])
    began = saved = time.time()
    step = 0
    with log.open("a") as lines:

        def note(progress: float) -> None:
            with torch.no_grad():
                lesson = Lesson.of(target, held_out)
                for student in learning:
                    loss, equal = student.loss(lesson, shape, torch.Generator().manual_seed(9))
                    line: dict[str, Any] = {"head": student.name, "step": step}
                    line |= {"minutes": round((time.time() - began) / 60, 2)}
                    line |= {"held_out_loss": round(float(loss), 4)}
                    lines.write(json.dumps(line | {"equal": [round(e, 3) for e in equal]}) + "\n")
            lines.flush()
            for student in learning:
                student.save()

        while (progress := (time.time() - began) / seconds) < 1:
            lesson = Lesson.of(target, next(source))
            for student in learning:
                loss, _ = student.loss(lesson, shape, generator)
                loss.backward()
                nn.utils.clip_grad_norm_(student.module.parameters(), 1.0)
                student.optimizers.step(rate(progress, step, fall_from=0.3))
            step += 1
            if time.time() - saved > SAVE_EVERY:
                note(progress)
                saved = time.time()
        note(1.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--heads", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--texts", type=Path, default=WORK / TEXTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    texts = json.loads(options.texts.read_text("utf-8"))
    random.Random(1).shuffle(texts)
    train(60 * options.minutes, options.heads, texts, WORK / "log.jsonl")


if __name__ == "__main__":
    main()
