"""EAGLE-3 heads (arXiv 2503.01840) and an MTP layer for the bundled text target, trained together.

    OMP_NUM_THREADS=1 python -m training.methods.heads --minutes 30
    python -m benchmarks.drafts --model demo-text --draft training/made/text/heads/eagle3-ttt3

The target first writes texts, half of them at temperature 1; its forward is most of the cost of a step, so
all heads learn from it. Training-time test: step d of a draft reads the true next token, but the head's own
state of the step before. Heads are saved in the format in which they are published, every two minutes; a
repeated command goes on from there, with new optimizers. Figures: docs/methods/heads.md.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding, kl_div, linear
from transformers import LlamaForCausalLM

from forescribe.distill.training import Optimizers, rate
from forescribe.speculative import Engine, Request
from forescribe.speculative.model_engines import causal_decoder
from forescribe.speculative.models.heads.formats import eagle3_head, mtp_head
from forescribe.speculative.models.heads.records import Head, Output, Run, TargetShape
from forescribe.speculative.models.quantized import float_weights
from training.paths import BUNDLED, MADE
from training.text import packing
from training.text.corpus import documents
from training.text.export import TARGET, opened
from training.text.heads import published
from training.text.tokenizer import load, prompt_of

WORK = MADE / "text" / "heads"
TEXTS = WORK / "written.json"
LONGEST, BATCH, AT_ONCE = (
    160,
    16,
    256,
)  # tokens of an answer; rows; texts between looks at the clock
NAMES = {"eagle3-ttt1": 1, "eagle3-ttt3": 3, "eagle3-ttt5": 5, "mtp": 1}  # with their depths
ROWS, PEAK, SAVE_EVERY_S, HELD_OUT = 4, 3e-3, 120.0, 100
PROPOSED, INNER = 1024, 512  # of the EAGLE-3 heads
DECAY, HARD = 0.8, 0.5  # weights of a depth relative to the one before, of the target's choice


def written(seconds: float) -> list[list[int]]:
    """Texts of the target with their prompts, up to end-of-text; those of an earlier run where there are.
    Minutes are asked for four times, as most of the tokens that a user reads are of long answers."""
    if TEXTS.exists():
        return list(json.loads(TEXTS.read_text("utf-8")))
    asked = [d for d in documents() if not d.held_out]
    asked += [d for d in asked if d.kind == "minutes"] * 3
    random.Random(7).shuffle(asked)
    tokenizer = load(BUNDLED / TARGET)
    known = tokenizer([prompt_of(d) for d in asked], add_special_tokens=False)["input_ids"]
    target: Any = opened(BUNDLED / TARGET)
    engine = Engine(causal_decoder(target), batch=BATCH, eos=[target.config.eos_token_id])
    began, done = time.time(), list[list[int]]()
    while time.time() - began < seconds:
        chosen = [known[(len(done) + i) % len(known)] for i in range(AT_ONCE)]
        requests = [
            Request(tuple(p), max_new_tokens=LONGEST, temperature=float(i % 2), seed=len(done) + i)
            for i, p in enumerate(chosen)
        ]
        done += [[*r.request.prompt, *r.tokens] for r in engine.run(requests)]
    TEXTS.parent.mkdir(parents=True, exist_ok=True)
    TEXTS.write_text(json.dumps(done), "utf-8")
    return done


@dataclass(frozen=True)
class Lesson:
    """A batch with what the target computes of it. `states [R, T, L + 1, D]` are HF's hidden states."""

    pack: packing.Pack
    states: Tensor
    logits: Tensor  # [R, T, V]
    table: Tensor  # [V, D] embeddings, which are the output layer too

    @staticmethod
    @torch.no_grad()
    def of(target: LlamaForCausalLM, pack: packing.Pack) -> Lesson:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = target.model(
                input_ids=pack.tokens,
                position_ids=pack.positions,
                attention_mask=pack.mask,
                use_cache=False,
                output_hidden_states=True,
            )
            logits = target.lm_head(found.last_hidden_state).float()
        states = torch.stack([*found.hidden_states], 2).float()
        return Lesson(pack, states, logits, target.model.embed_tokens.weight.detach())


class Growing:
    """A cache that appends: keys and values `[R, heads, T, d]` of every step of a draft."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, keys: Tensor, values: Tensor, index: int) -> tuple[Tensor, Tensor]:
        if index in self.kept:
            before = self.kept[index]
            keys, values = torch.cat([before[0], keys], 2), torch.cat([before[1], values], 2)
        self.kept[index] = keys, values
        return keys, values


def chain_states(
    head: Head, lesson: Lesson, depths: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Of each step, which positions have a next token `[R, T]`, the head's states `[R, T, D]` there and the
    target's logits `[R, T, V]` of the token that is drafted; position t is where a draft begins."""
    pack, cache = lesson.pack, Growing()
    own = torch.eye(pack.tokens.shape[1], dtype=torch.bool).expand_as(pack.mask)
    feature = head.taps.feature(lesson.states[:, :, list(head.taps.layers)])
    known, reads = pack.known, pack.mask
    for depth in range(depths):
        shift = 1 + depth
        embedded = embedding(pack.tokens.roll(-shift, 1), lesson.table)
        mask = torch.where(reads, 0.0, torch.finfo(torch.float32).min)
        states = head.step(embedded, feature, Run(pack.positions + depth, mask, cache))
        yield known, states, lesson.logits.roll(-shift, 1)
        feature = head.next_feature(states)
        known = known & pack.known.roll(-shift, 1)
        reads = torch.cat([reads, own], -1)


def chain_loss(head: Head, lesson: Lesson, depths: int) -> tuple[Tensor, list[float]]:
    """The loss of `depths` steps, and the share of equal choices at each."""
    total, equal = torch.zeros(()), []
    for depth, (known, states, wanted) in enumerate(chain_states(head, lesson, depths)):
        loss, same = _loss(head.output, states[known], wanted[known], lesson.table)
        total = total + DECAY**depth * loss.mean()
        equal.append(float(same.float().mean()))
    return total, equal


def _loss(output: Output, states: Tensor, wanted: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each position `[K]`, and whether the choice is the target's."""
    normed = output.normed(states)
    choice = wanted.argmax(-1)
    if output.head is None or output.ids is None:
        guess = linear(normed, table)
        hard, same = cross_entropy(guess, choice, reduction="none"), guess.argmax(-1) == choice
    else:
        guess = linear(normed, output.head.weight, output.head.bias)
        wanted = wanted[:, output.ids]
        same = output.ids[guess.argmax(-1)] == choice
        inside = output.ids[wanted.argmax(-1)] == choice  # where the target's choice is proposed
        hard = cross_entropy(guess, wanted.argmax(-1), reduction="none") * inside
    log_q, log_p = guess.log_softmax(-1), wanted.log_softmax(-1)
    return kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1) + HARD * hard, same


@dataclass
class Student:
    """A head in training: its published tensors, of which the floating ones are learnt."""

    name: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    build: Callable[[Mapping[str, Any], Mapping[str, Tensor], TargetShape, str], Any]

    def __post_init__(self) -> None:
        learnt = {n: nn.Parameter(t) for n, t in self.tensors.items() if t.is_floating_point()}
        self.tensors = {**self.tensors, **learnt}
        self.module = nn.ParameterDict({n.replace(".", "/"): p for n, p in learnt.items()})
        self.optimizers = Optimizers(self.module, peak=PEAK)

    @classmethod
    def of(cls, name: str, target: LlamaForCausalLM, ids: list[int]) -> Student:
        """A new head, or that of an earlier run."""
        if name == "mtp":
            build = mtp_head
            settings, tensors = published.mtp(target.config, inner=target.config.intermediate_size)
            settings = json.loads((BUNDLED / TARGET / "config.json").read_text()) | settings
        else:
            build = eagle3_head
            settings, tensors = published.eagle3(target.config, ids, inner=INNER, taps=[2, 8, 13])
            tensors["lm_head.weight"] = target.lm_head.weight.detach()[sorted(ids)].clone()
        earlier = WORK / name / "model.safetensors"
        if earlier.exists():
            tensors = {n: t for n, t in load_file(earlier).items() if n in tensors}
        return cls(name, settings, tensors, build)

    def loss(self, lesson: Lesson, shape: TargetShape) -> tuple[Tensor, list[float]]:
        head = self.build(self.config, self.tensors, shape, self.name)
        return chain_loss(head, lesson, NAMES[self.name])

    def save(self) -> None:
        """Writes the head's folder; of an MTP layer a copy of the target with it inside."""
        folder, temporary = WORK / self.name, WORK / f"{self.name}.new"
        shutil.rmtree(temporary, ignore_errors=True)
        tensors = self.tensors
        if self.name == "mtp":
            shutil.copytree(BUNDLED / TARGET, temporary)
            tensors = float_weights(BUNDLED / TARGET) | tensors
        published.save(temporary, self.config, tensors)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)


def train(seconds: float, names: list[str], texts: list[list[int]]) -> list[Student]:
    target = opened(BUNDLED / TARGET)
    target.requires_grad_(False)
    config = target.config
    shape = TargetShape(TARGET, config.hidden_size, config.num_hidden_layers, config.vocab_size)
    counted = Counter(token for text in texts[HELD_OUT:] for token in text)
    ids = [token for token, _ in counted.most_common(PROPOSED)]
    learning = [Student.of(name, target, ids) for name in names]
    source = packing.batches(texts[HELD_OUT:], ROWS, seed=int(time.time()))
    held_out = packing.pack(packing.rows(texts[:HELD_OUT])[: 2 * ROWS])
    began = saved = time.time()
    step = 0
    while True:
        progress = (time.time() - began) / seconds
        if progress >= 1 or time.time() - saved > SAVE_EVERY_S:
            saved = time.time()
            with torch.no_grad():
                lesson = Lesson.of(target, held_out)
                for student in learning:
                    loss, equal = student.loss(lesson, shape)
                    shares = ", ".join(f"{e:.3f}" for e in equal)
                    print(
                        f"{step} {student.name}: held out {float(loss):.3f}, {shares}", flush=True
                    )
                    student.save()
        if progress >= 1:
            return learning
        lesson = Lesson.of(target, next(source))
        for student in learning:
            student.loss(lesson, shape)[0].backward()
            nn.utils.clip_grad_norm_(student.module.parameters(), 1.0)
            student.optimizers.step(rate(progress, step, fall_from=0.3))
        step += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument(
        "--written", type=float, default=3, help="minutes in which the target writes"
    )
    parser.add_argument("--heads", nargs="+", choices=NAMES, default=list(NAMES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    texts = written(60 * options.written)
    random.Random(1).shuffle(texts)
    train(60 * options.minutes, options.heads, texts)


if __name__ == "__main__":
    main()
