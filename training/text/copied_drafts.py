"""Compare drafts that are copied, without a model: n-grams, earlier answers, token recycling, a token map.

    python -m training.text.copied_drafts MODEL              # a folder, such as SmolLM2-135M-Instruct

Greedy answers to the prompts of `kinds`, and counts by kind: tokens per round of a row, and the share of
drafted tokens that was kept. Every drafter's answers must be those of plain decoding. Token recycling and the
token map are here alone, as `suffix` is better (docs/methods/free-drafts.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from forescribe.speculative import Engine, Fixed, NgramDrafter, Request, Result
from forescribe.speculative.device import choose
from forescribe.speculative.drafters.suffix import SuffixDrafter
from forescribe.speculative.protocols import Drafter, Model, Needs
from forescribe.speculative.rows import Rows
from forescribe.speculative.types import Distribution, Draft, Scores, Verdict
from forescribe.text.language_model import LanguageModel, load
from training.text.kinds import KINDS, RECORDS

LONGEST = 160  # new tokens
POSITIONS = 512
ENTRIES = 1 << 20  # of a table of token pairs
MAP = "token map"


class Copier:
    """What both drafters here have in common: no model, one-hot drafts."""

    needs = Needs()

    def distribution(self, *, sampling: bool) -> Distribution:
        return Distribution.ONE_HOT

    def bind(self, target: Model) -> None: ...

    def allocate(self, batch: int, slots: int, device: torch.device) -> None: ...

    def forwards(self, gamma: int) -> int:
        return 0

    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None: ...

    def catch_up(self, rows: Rows, start: Tensor, count: int) -> None: ...

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None: ...


class Recycling(Copier):
    """Token recycling (Luo et al. 2024, arXiv 2408.08696) as a chain: what the target would have written
    behind a token, at any position that it has scored, is drafted behind it the next time.

    The paper's table has the k likeliest tokens, for a tree; a chain reads the first one alone. With `pairs`
    the table is asked for the last two tokens first. It is shared by all rows and kept between requests.
    """

    def __init__(self, *, pairs: bool = False) -> None:
        self.pairs = pairs
        self.single = self.double = self.keys = torch.empty(0)

    def bind(self, target: Model) -> None:
        self.single = torch.full((target.vocab_size,), -1)
        self.double, self.keys = torch.full((ENTRIES,), -1), torch.full((ENTRIES, 2), -1)

    def _learn(self, before: Tensor, token: Tensor, following: Tensor) -> None:
        self.single[token] = following
        at = _entry(before, token)
        self.double[at], self.keys[at] = following, torch.stack([before, token], -1)

    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        for request in requests:
            text = torch.tensor([-1, *request.prompt])
            self._learn(text[:-2], text[1:-1], text[2:])

    def propose(self, rows: Rows, gamma: int) -> Draft:
        before, token = _last_two(rows)
        tokens: list[Tensor] = []
        for _ in range(gamma):
            following = self.single[token]
            if self.pairs:
                at = _entry(before, token)
                known = (self.keys[at] == torch.stack([before, token], -1)).all(-1)
                following = torch.where(known, self.double[at], following)
            before, token = token, following.clamp_min(0)
            tokens.append(following)
        draft = torch.stack(tokens, 1)
        usable = (draft >= 0).long().cumprod(1).sum(1)
        return Draft(draft.clamp_min(0), torch.where(rows.active, usable, 0))

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        before, token = _last_two(rows)
        fed = torch.cat([before[:, None], token[:, None], draft.tokens], 1)[
            rows.active
        ]  # [A, N + 1]
        best = scores.logits[rows.active].argmax(-1)  # of rejected positions too
        self._learn(fed[:, :-1].flatten(), fed[:, 1:].flatten(), best.flatten())


class TokenMap(Copier):
    """Token Map Drafting (arXiv 2507.21522): a table of what follows the last three tokens,
    two or one in texts of the same domain."""

    def __init__(self, texts: Iterable[Sequence[int]], longest: int = 3) -> None:
        self.longest = longest
        self.table: dict[tuple[int, ...], int] = {}
        for text in texts:
            for end in range(1, len(text)):
                for n in range(1, min(longest, end) + 1):
                    self.table[tuple(text[end - n : end])] = text[end]

    def propose(self, rows: Rows, gamma: int) -> Draft:
        tokens = torch.zeros(rows.batch, gamma, dtype=torch.int64)
        valid = torch.zeros_like(rows.lengths)
        for row in rows.active.nonzero()[:, 0].tolist():
            text = rows.tokens[row, : rows.lengths[row]].tolist()[-self.longest :]
            while len(text) < gamma + self.longest and valid[row] < gamma:
                found = (self.table.get(tuple(text[-n:])) for n in range(self.longest, 0, -1))
                token = next((each for each in found if each is not None), None)
                if token is None:
                    break
                tokens[row, valid[row]] = token
                valid[row] += 1
                text = [*text, token][-self.longest :]
        return Draft(tokens, valid)


def _last_two(rows: Rows) -> tuple[Tensor, Tensor]:
    """The tokens before the pending ones, and these `[B]`."""
    at = (rows.lengths - 1)[:, None] - torch.arange(2)
    token, before = rows.tokens.gather(1, at.clamp_min(0)).where(at >= 0, -1).unbind(1)
    return before, token


def _entry(before: Tensor, token: Tensor) -> Tensor:
    return (before * 1_000_003 + token) % ENTRIES


@dataclass(frozen=True)
class Kind:
    """Counts of one kind of prompts."""

    tokens: int
    rounds: int
    drafted: int
    accepted: int

    @classmethod
    def of(cls, results: Sequence[Result]) -> Kind:
        return cls(
            sum(len(r.tokens) for r in results),
            sum(r.rounds for r in results),
            sum(r.drafted for r in results),
            sum(r.accepted for r in results),
        )

    def __str__(self) -> str:
        kept = self.accepted / self.drafted if self.drafted else 0.0
        return f"{self.tokens / self.rounds:.2f}, {kept:.2f} of {self.drafted / self.rounds:.1f}"


def answers(
    target: LanguageModel,
    drafter: Drafter | None,
    requests: Sequence[Request],
    gamma: int,
    batch: int,
) -> list[Result]:
    """The results of the requests, in their order."""
    engine = Engine(
        target.decoder(POSITIONS),
        drafter,
        batch=batch,
        eos=target.ends,
        schedule=Fixed(gamma if drafter is not None else 0),
    )
    found = {result.request.tag: result for result in engine.run(requests)}
    return [found[request.tag] for request in requests]


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "ngram": lambda: NgramDrafter(hint_slots=1),
    "suffix, own text alone": lambda: SuffixDrafter(answers=0),
    "suffix": SuffixDrafter,
    "token recycling": Recycling,
    "token recycling by pairs": lambda: Recycling(pairs=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of a text model with a chat template")
    parser.add_argument("--gamma", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--records", action="store_true", help="24 records of one form instead")
    parser.add_argument("--only", nargs="*", choices=[*DRAFTERS, MAP], help="these alone")
    options = parser.parse_args()
    target = load(Path(options.model), choose("cpu", "float32"), network=False)
    chosen = {"records": RECORDS} if options.records else KINDS
    prompts = [(kind, text) for kind, texts in chosen.items() for text in texts]
    requests = [
        Request(
            target.vocabulary.chat([{"role": "user", "content": text}]),
            max_new_tokens=LONGEST,
            tag=number,
        )
        for number, (_, text) in enumerate(prompts)
    ]

    def answered(some: Sequence[Request], drafter: Drafter | None) -> list[Result]:
        return answers(target, drafter, some, options.gamma, options.batch)

    plain = [result.tokens for result in answered(requests, None)]

    def show(name: str, results: Sequence[Result]) -> None:
        same = sum(r.tokens == plain[r.request.tag] for r in results)
        kinds = {k: Kind.of([r for r in results if prompts[r.request.tag][0] == k]) for k in chosen}
        cells = " | ".join(str(each) for each in kinds.values())
        print(f"| {name} | {cells} | {same} of {len(results)} |", flush=True)

    print(f"| drafts, gamma {options.gamma} | {' | '.join(chosen)} | equal to plain |")
    for name in options.only or [*DRAFTERS, MAP]:
        if name in DRAFTERS:
            show(name, answered(requests, DRAFTERS[name]()))
            continue
        found: list[Result] = []
        for half in (0, 1):  # the answers to every other pair of prompts are the texts for the rest
            texts = [text for i, text in enumerate(plain) if i // 2 % 2 != half]
            found += answered([r for r in requests if r.tag // 2 % 2 == half], TokenMap(texts))
        show(name, found)


if __name__ == "__main__":
    main()
