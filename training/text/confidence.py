"""Would a trained head end drafts better than the draft's own probabilities do?

    python -m training.text.confidence

A draft may end anywhere without changing a text, as long as that depends on the tokens before it only. The
engine ends it where the product of the draft's probabilities falls below a bound. PIPO's confidence head
(arXiv 2605.27255) is a linear layer on the draft's states with a sigmoid, trained to say whether a token is
kept; here it has the logarithm of the token's probability and the entropy beside the state, and its product
is compared in the same way. Both are given their best bound on one half of the texts and judged on the other:
the tokens per unit of cost, along the target's greedy answers. Knows the bundled text pair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from training.text.corpus import documents
from training.text.evaluate import Pair, run

LONGEST = 12
BOUNDS = [0.02, 0.05, *[n / 10 for n in range(1, 10)], 0.95]
PRICES = (0.1, 0.2, 0.3, 0.5)  # of a drafted token with its scoring, in plain rounds
COUNT, STEPS, RATE, DECAY = 400, 400, 0.01, 0.1


@dataclass(frozen=True, eq=False)
class Text:
    """Along one answer: is the draft's choice the target's, its probability, and what a head reads."""

    kept: Tensor  # [T] bool
    chance: Tensor  # [T]
    inputs: Tensor  # [T, D + 2]


def texts(pair: Pair) -> list[Text]:
    chosen = [d for d in documents() if d.held_out][:COUNT]
    made = []
    for result in run(pair, chosen, 0, 0.0).results:
        tokens = torch.tensor([*result.request.prompt, *result.tokens])
        begin = len(result.request.prompt)
        out = pair.draft(tokens[None], output_hidden_states=True)
        logs = out.logits[0, begin - 1 : -1].log_softmax(-1)
        best, choice = logs.max(-1)
        entropy = -(logs.exp() * logs).sum(-1)
        state = out.hidden_states[-1][0, begin - 1 : -1]
        inputs = torch.cat([state, best[:, None], entropy[:, None]], 1)
        made.append(Text(choice == tokens[begin:], best.exp(), inputs))
    return made


def head(learnt: Sequence[Text]) -> tuple[Tensor, Tensor, Tensor]:
    """Weights `[D + 2]` of the head, and mean and deviation of its inputs."""
    inputs = torch.cat([text.inputs for text in learnt])
    kept = torch.cat([text.kept for text in learnt]).float()
    mean, deviation = inputs.mean(0), inputs.std(0) + 1e-6
    weights = torch.zeros(inputs.shape[1] + 1, requires_grad=True)
    optimizer = torch.optim.AdamW([weights], lr=RATE, weight_decay=DECAY)
    normal = (inputs - mean) / deviation
    for _ in range(STEPS):
        with torch.enable_grad():
            loss = binary_cross_entropy_with_logits(normal @ weights[:-1] + weights[-1], kept)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return weights.detach(), mean, deviation


def judged(texts: Sequence[Text], chances: Sequence[Tensor], bound: float) -> tuple[int, int, int]:
    """Tokens, rounds and drafted tokens, where a draft ends behind the token with which the product of its
    chances falls below the bound."""
    tokens = rounds = drafted = 0
    for text, chance in zip(texts, chances, strict=True):
        kept, belief, place = text.kept.tolist(), chance.tolist(), 0
        while place < len(kept):
            most, product = 0, 1.0
            while most < LONGEST and place + most < len(kept) - 1 and product >= bound:
                product *= belief[place + most]
                most += 1
            right = 0
            while right < most and kept[place + right]:
                right += 1
            tokens, rounds, drafted = tokens + right + 1, rounds + 1, drafted + most
            place += right + 1
    return tokens, rounds, drafted


def rate(counts: tuple[int, int, int], price: float) -> float:
    tokens, rounds, drafted = counts
    return tokens / (rounds + price * drafted)


@torch.no_grad()
def main() -> None:
    found = texts(Pair.load())
    learnt, rest = found[::2], found[1::2]
    weights, mean, deviation = head(learnt)

    def believed(text: Text) -> Tensor:
        return torch.sigmoid((text.inputs - mean) / deviation @ weights[:-1] + weights[-1])

    ways: dict[str, Callable[[Text], Tensor]] = {
        "its own probabilities": (lambda text: text.chance),
        "a head": believed,
        "every length at its best": (lambda text: torch.where(text.kept, 1.0, 0.0)),
    }
    kept = torch.cat([text.kept for text in rest])
    print(f"{len(rest)} texts, {len(kept):,} tokens, kept {kept.float().mean():.3f}")
    for name, way in ways.items():
        loss = torch.nn.functional.binary_cross_entropy(
            torch.cat([way(t) for t in rest]).clamp(1e-4, 1 - 1e-4), kept.float()
        )
        cells = []
        for price in PRICES:
            scores = [judged(learnt, [way(t) for t in learnt], bound) for bound in BOUNDS]
            bound = BOUNDS[max(range(len(BOUNDS)), key=lambda i: rate(scores[i], price))]
            cells.append(
                f"{rate(judged(rest, [way(t) for t in rest], bound), price):.3f} at {bound}"
            )
        print(f"| {name} | {loss:.3f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
