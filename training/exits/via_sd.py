"""VIA-SD's three tiers (arXiv 2606.12243): a slim verifier settles easy drafts, the full target the rest.

    python -m training.exits.via_sd SMOLLM2

**lossy(VIA-SD).** With x a draft and q the slim model's distribution, u = q(x) / max q decides: x stands
from `stands` on, below `full` the target judges by the exact rule, and between them the token is drawn from
q. How far that is from the target is measured along what was written: the mean total variation of the
distribution that a token was drawn from, and how many tokens that others settled are not the target's
choice. Beside it the same drafts and the slim model's own, lossless. The slim model is the target without a
block of layers. Figures: docs/methods/self-speculation.md.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forescribe.speculative.models.engines import causal_decoder
from training.exits.states import answered
from training.text.kinds import KINDS

GAMMA = 4
NEVER = 2.0
"""A bound that no u reaches: every draft is judged by the target, so nothing is lost."""
Drafts = Callable[[list[int]], list[int]]


class Reader:
    """A model that reads on from what it has read; `calls` counts its forwards."""

    def __init__(self, model: Any, slots: int = 512) -> None:
        self.decoder, self.calls = causal_decoder(model), 0
        self.decoder.allocate(1, slots)
        self.seen = list[int]()

    def logits(self, tokens: Sequence[int], last: int) -> Tensor:
        """Logits behind the last tokens `[last, V]`; what was read of them before is not read again."""
        most = min(len(self.seen), len(tokens) - last)
        same = next((i for i in range(most) if self.seen[i] != tokens[i]), most)
        read = torch.tensor([tokens[same:]])
        self.calls, self.seen = self.calls + 1, list(tokens)
        scores = self.decoder.score(read, torch.tensor([same]), reach=len(tokens))
        return scores.logits[0, -last:].float().clone()


def slim(model: Any, left: Collection[int]) -> Any:
    """A model without some layers of another one, with its weights."""
    made = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    made.model.layers = nn.ModuleList(x for i, x in enumerate(made.model.layers) if i not in left)
    for place, layer in enumerate(made.model.layers):
        layer.self_attn.layer_idx = place
    made.config.num_hidden_layers = len(made.model.layers)
    return made


@dataclass(frozen=True)
class Tiers:
    stands: float = NEVER
    full: float = NEVER


@dataclass
class Written:
    """Texts with the number of forwards, and each token's distribution where it is not the target's: one-hot
    (a draft that stands) or the slim model's. `new` holds the places of the tokens."""

    tokens: list[int] = field(default_factory=list)
    begin: int = 0
    other: dict[int, Tensor] = field(default_factory=dict)


def distribution(logits: Tensor, temperature: float) -> Tensor:
    if temperature == 0:
        return nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).float()
    return (logits / temperature).softmax(-1)


def write(
    target: Reader,
    judge: Reader | None,
    drafts: Drafts,
    prompt: Sequence[int],
    tiers: Tiers,
    *,
    limit: int,
    eos: int,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
) -> Written:
    """Writes an answer by the three tiers; without a judge the target judges all drafts."""
    made = Written(list(prompt), len(prompt))
    text = made.tokens

    def draw(p: Tensor) -> int:
        return int(torch.multinomial(p, 1, generator=generator))

    while len(text) - made.begin < limit and text[-1] != eos:
        draft, p = drafts(text), None
        q = None if judge is None or not draft else judge.logits(text + draft[:-1], len(draft))
        for place, x in enumerate(draft):
            slim_q = None if q is None else q[place].softmax(-1)
            u = 0.0 if slim_q is None else float(slim_q[x] / slim_q.max())
            if p is None and (q is None or u < tiers.full):
                rest = draft[place:]  # they are the target's too, as its logits are there
                p = distribution(target.logits(text + rest, len(rest) + 1), temperature)
                p = torch.cat([p.new_zeros(place, p.shape[-1]), p])
            token = x
            if p is not None:
                exact = p[place].clone()
                if float(torch.rand((), generator=generator)) >= float(exact[x]):
                    exact[x] = 0
                    token = draw(exact)
            elif q is not None:
                settled = distribution(q[place], temperature)
                if u >= tiers.stands:
                    settled = nn.functional.one_hot(torch.tensor(x), len(settled)).float()
                made.other[len(text)] = settled
                token = draw(settled)
            text.append(token)
            if token != x or token == eos:
                break
        else:
            if p is None and draft:
                continue  # all of them stand, and the slim model invents nothing
            p = distribution(target.logits(text, 1), temperature) if p is None else p
            text.append(draw(p[-1]))
    return made


def lost(target: Reader, made: Written, temperature: float) -> tuple[list[float], list[bool]]:
    """Of each token: total variation of its distribution to the target's, and whether it is not the argmax
    of the target where it was the one of a slim model's or a draft."""
    logits = target.logits(made.tokens[:-1], len(made.tokens) - made.begin)
    variation, changed = [], []
    for place in range(made.begin, len(made.tokens)):
        other, mine = made.other.get(place), logits[place - made.begin]
        p = distribution(mine, temperature)
        variation.append(0.0 if other is None else 0.5 * float((p - other).abs().sum()))
        changed.append(other is not None and made.tokens[place] != int(mine.argmax()))
    return variation, changed


def copied(tokens: list[int], longest: int = 3) -> list[int]:
    """What followed the last occurrence of the end of the text, of two or three tokens."""
    for length in (longest, longest - 1):
        end = tokens[-length:]
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == end:
                return tokens[start + length : start + length + GAMMA]
    return []


def greedy(reader: Reader) -> Drafts:
    def drafts(tokens: list[int]) -> list[int]:
        made = list(tokens)
        for _ in range(GAMMA):
            made.append(int(reader.logits(made, 1).argmax()))
        return made[len(tokens) :]

    return drafts


SWEEP = Tiers(0.9, 0.9), Tiers(0.5, 0.5), Tiers(0.9, 0.1), Tiers(0.1, 0.1)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--every", type=int, default=3, metavar="N", help="every N-th prompt")
    parser.add_argument("--limit", type=int, default=80, help="tokens of an answer")
    parser.add_argument("--skip", type=int, nargs=2, default=(13, 19), metavar=("FROM", "TO"))
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    given = parser.parse_args()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32).eval()
    eos = int(AutoTokenizer.from_pretrained(given.model).eos_token_id)
    asked = [prompt for kind in KINDS.values() for prompt in kind[:: given.every]]
    prompts = [t.tokens[: t.begin].tolist() for t in answered(given.model, asked, longest=1)]
    torch.set_num_threads(1)
    target, judge = Reader(model), Reader(slim(model, range(*given.skip)))
    ways: list[tuple[str, Reader | None, Drafts, Tiers]] = [
        ("n-grams, lossless", None, copied, Tiers()),
        ("slim model's own, lossless", None, greedy(judge), Tiers()),
        *(("n-grams, lossy(VIA-SD)", judge, copied, tiers) for tiers in SWEEP),
    ]
    print("| drafts | T | stands, full | full calls | slim calls | variation | changed |")
    for temperature in given.temperatures:
        for name, by, drafts, tiers in ways:
            target.calls = judge.calls = count = 0
            variation, changed = 0.0, 0
            for number, prompt in enumerate(prompts):
                made = write(
                    target,
                    by,
                    drafts,
                    prompt,
                    tiers,
                    limit=given.limit,
                    eos=eos,
                    temperature=temperature,
                    generator=torch.Generator().manual_seed(number),
                )
                tv, other = lost(target, made, temperature)
                target.calls -= 1  # which measured
                count, variation, changed = (
                    count + len(tv),
                    variation + sum(tv),
                    changed + sum(other),
                )
            calls = f"{target.calls / count:.3f} | {judge.calls / count:.3f}"
            losses = f"{variation / count:.4f} | {changed / count:.4f}"
            bounds = f"{tiers.stands}, {tiers.full}"
            print(f"| {name} | {temperature} | {bounds} | {calls} | {losses} |", flush=True)


if __name__ == "__main__":
    main()
