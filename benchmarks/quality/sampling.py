"""Chi-square tests of sampled texts against the target's distribution.

    python -m benchmarks.quality.sampling --texts 30000 --json sampled.json

Decodes without drafts, and with those of a draft model, one with a cut head, one behind a map of token ids,
two in one batch, n-gram lookup and one that drafts through text, at several draft lengths. In each run rows
with six kinds of sampling share the batch. A text has four tokens of a tiny model, so it takes two to four
rounds. The expected distribution is computed without the engine: by the forward pass of the model on whole
prefixes with the logits processors of transformers. Every text is also compared with that of its seed without
drafts.
Exit status: 0; 1 if a distribution or a text differs; 2 if nothing could be measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.stats import chi2
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from benchmarks import provenance
from benchmarks.rows import check_drafts, layout
from forescribe.speculative import Engine, Fixed, ModelDrafter, NgramDrafter, Request
from forescribe.speculative.drafters.routing import RoutingDrafter
from forescribe.speculative.models.vocabularies import NONE, MappedVocabulary, TokenMap, mapped
from forescribe.speculative.protocols import Drafter
from forescribe.speculative.requests import Sampling
from forescribe.speculative.testing import TinyModel
from forescribe.text.universal import UniversalDrafter

Text = tuple[int, ...]
Distribution = dict[Text, float]

DRAFTERS = ("model", "cut head", "id map", "routed", "n-gram", "universal")
GAMMAS = (1, 2, 4)
SAMPLINGS = {
    "plain": Sampling(),
    "top-k": Sampling(top_k=3),
    "top-p": Sampling(top_p=0.8),
    "min-p": Sampling(min_p=0.15),
    "penalties": Sampling(repetition=1.3, presence=0.5, frequency=0.4),
    "all": Sampling(3, 0.95, 0.05, 1.2, 0.3, 0.2),
}
PROMPT = (1, 2, 3, 1, 2)  # with repetitions, so that the lookup drafts from the first round
HINT = (3, 1, 0, 2, 2, 3, 0, 1, 1)
VOCAB, LENGTH, TEMPERATURE = 4, 4, 1.6
NEVER = 99
RARE = 5.0  # cells with fewer expected texts are merged
FAILS_BELOW = 1e-5
"""p-value. A run has about a hundred, so one run in a thousand has a lower one by chance."""


class Letters:
    """A vocabulary of strings of letters with greedy longest-match tokenization."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = tokens

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.tokens[i] for i in ids)

    def bare(self, text: str) -> Text:
        ids = []
        while text:
            best = max((t for t in self.tokens if text.startswith(t)), key=len)
            ids.append(self.tokens.index(best))
            text = text[len(best) :]
        return tuple(ids)


def target() -> TinyModel:
    return TinyModel(vocab=VOCAB, width=8, positions=16)


def drafter(name: str) -> Drafter:
    """A drafter that is right about half the time."""
    if name == "model":
        return ModelDrafter(TinyModel(vocab=VOCAB, width=8, positions=16, blur=0.5))
    if name == "cut head":  # never proposes token 1
        return ModelDrafter(
            TinyModel(vocab=VOCAB, width=8, positions=16, blur=0.5, listed=(0, 2, 3))
        )
    if name == "id map":
        return ModelDrafter(renumbered(0.5))
    if name == "routed":
        both = [drafter("model"), ModelDrafter(renumbered(0.2, seed=1))]
        return RoutingDrafter(both, lambda request: request.seed % 2, skips=False)
    if name == "n-gram":
        return NgramDrafter(length=LENGTH)
    own: Any = Letters("d", "ab", "c", "b", "a", "cd")
    theirs: Any = Letters("a", "b", "c", "d")
    model = TinyModel(vocab=len(own.tokens), width=8, positions=32, seed=3)
    return UniversalDrafter(model, own, (NEVER,), theirs, None)


def renumbered(blur: float, seed: int = 0) -> MappedVocabulary:
    """A draft of five tokens, of which the third has no partner; it lacks token 1, and reads it as its own
    token for 3."""
    model = TinyModel(vocab=VOCAB, width=8, positions=16, blur=blur, seed=seed)
    ids = TokenMap(to_draft=(4, 1, 0, 1), to_target=(2, 3, NONE, NONE, 0))
    return mapped(lambda head: model.renumbered((2, 3, 1, 1, 0), head), ids)


def next_token(text: Text, sampling: Sampling) -> list[float]:
    """The target's distribution after prompt and text, with transformers' logits processors."""
    prefix = torch.tensor([*PROMPT, *text])
    scores = target().forward(prefix)[-1][None]
    scores = RepetitionPenaltyLogitsProcessor(sampling.repetition)(prefix[None], scores)
    times = prefix[len(PROMPT) :].bincount(minlength=VOCAB)
    scores = scores - sampling.presence * (times > 0) - sampling.frequency * times
    scores = scores / TEMPERATURE
    chain: list[Any] = [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
    chain += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    chain += [MinPLogitsWarper(sampling.min_p)] if sampling.min_p else []
    for processor in chain:
        scores = processor(prefix[None], scores)
    found: list[float] = scores.double().softmax(-1)[0].tolist()
    return found


def expected(sampling: Sampling, eos: int) -> Distribution:
    """The distribution of whole texts: `LENGTH` tokens, or fewer if end-of-text occurs."""
    found: Distribution = {}
    open_: Distribution = {(): 1.0}
    for _ in range(LENGTH):
        grown: Distribution = {}
        for text, weight in open_.items():
            for token, chance in enumerate(next_token(text, sampling)):
                ends = token == eos or len(text) + 1 == LENGTH
                (found if ends else grown)[(*text, token)] = weight * chance
        open_ = grown
    return found


def requests(names: Sequence[str], texts: int) -> Iterator[Request]:
    """Requests for `texts` texts of every kind, in turn, with consecutive seeds."""
    for seed, name in enumerate(itertools.islice(itertools.cycle(names), texts * len(names))):
        yield Request(
            PROMPT,
            temperature=TEMPERATURE,
            sampling=SAMPLINGS[name],
            seed=seed,
            hint=HINT,
            max_new_tokens=LENGTH,
            tag=name,
        )


@dataclass(frozen=True)
class Fit:
    """The fit of the texts of one kind to the expected distribution."""

    drafter: str
    gamma: int
    sampling: str
    texts: int
    chi_square: float
    degrees: int
    p_value: float
    total_variation: float

    @property
    def holds(self) -> bool:
        return self.p_value >= FAILS_BELOW


@dataclass(frozen=True)
class Outcome:
    """One run of the engine."""

    fits: tuple[Fit, ...]
    others: int  # texts that differ from those of their seeds without drafts
    acceptance_rate: float
    rounds_per_text: float

    @property
    def p_value(self) -> float:
        """The p-value over all kinds of sampling, which is more sensitive than each alone."""
        value, degrees = sum(f.chi_square for f in self.fits), sum(f.degrees for f in self.fits)
        return float(chi2.sf(value, degrees))

    @property
    def holds(self) -> bool:
        fits = self.p_value >= FAILS_BELOW and all(fit.holds for fit in self.fits)
        return fits and not self.others


def engine(drafter_name: str | None, gamma: int, *, batch: int, eos: int = NEVER) -> Engine:
    drafts = None if drafter_name is None else drafter(drafter_name)
    return Engine(target(), drafts, batch=batch, eos=(eos,), schedule=Fixed(gamma))


def measure(
    drafter_name: str,
    gamma: int,
    *,
    texts: int,
    names: Sequence[str] = tuple(SAMPLINGS),
    eos: int = NEVER,
    batch: int = 1024,
) -> Outcome:
    """Decode `texts` texts of every kind, compare them with the expected distribution, and each with the one
    that its seed gives without drafts."""
    made = engine(drafter_name, gamma, batch=batch, eos=eos)
    seen: dict[str, Counter[Text]] = {name: Counter() for name in names}
    found: dict[int, Text] = {}
    rounds = 0
    for result in made.run(requests(names, texts)):
        seen[result.request.tag][result.tokens] += 1
        found[result.request.seed] = result.tokens
        rounds += result.rounds
    stats = made.stats
    check_drafts(stats)
    plain = engine(None, 0, batch=batch, eos=eos).run(requests(names, texts))
    return Outcome(
        fits=tuple(
            Fit(drafter_name, gamma, name, texts, *_fit(seen[name], _expected(name, eos)))
            for name in names
        ),
        others=sum(result.tokens != found[result.request.seed] for result in plain),
        acceptance_rate=stats.accepted / max(1, stats.drafted),
        rounds_per_text=rounds / (texts * len(names)),
    )


_known: dict[tuple[str, int], Distribution] = {}


def _expected(name: str, eos: int) -> Distribution:
    if (name, eos) not in _known:
        _known[name, eos] = expected(SAMPLINGS[name], eos)
    return _known[name, eos]


def _fit(seen: Counter[Text], wanted: Distribution) -> tuple[float, int, float, float]:
    """Return chi-square, degrees of freedom, p-value and total variation distance."""
    count = seen.total()
    if any(wanted.get(text, 0.0) <= 0 for text in seen):
        return float("inf"), 1, 0.0, 1.0  # a text of probability 0 occurred
    cells = [(seen[text], count * chance) for text, chance in wanted.items()]
    often = [cell for cell in cells if cell[1] >= RARE]
    rare = [cell for cell in cells if cell[1] < RARE]
    pooled = (sum(a for a, _ in rare), sum(b for _, b in rare))
    often += [pooled] if pooled[1] >= RARE else []
    value = sum((a - b) ** 2 / b for a, b in often)
    degrees = len(often) - 1
    distance = sum(abs(a - b) for a, b in cells) / (2 * count)
    return value, degrees, float(chi2.sf(value, degrees)), distance


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """One line per run, with the worst fit of its kinds of sampling."""
    head = ("drafter", "gamma", "texts", "others", "kept", "rounds", *SAMPLINGS, "least p", "p")
    lines = [head]
    for outcome in outcomes:
        first = outcome.fits[0]
        by_name = {fit.sampling: f"{fit.chi_square:.0f}/{fit.degrees}" for fit in outcome.fits}
        lines.append(
            (
                first.drafter,
                str(first.gamma),
                str(first.texts * len(outcome.fits)),
                str(outcome.others),
                f"{outcome.acceptance_rate:.2f}",
                f"{outcome.rounds_per_text:.2f}",
                *(by_name.get(name, "") for name in SAMPLINGS),
                f"{min(fit.p_value for fit in outcome.fits):.4f}",
                f"{outcome.p_value:.4f}",
            )
        )
    return layout(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality.sampling")
    parser.add_argument("--texts", type=int, default=30_000, help="of each kind of sampling")
    parser.add_argument("--json", type=Path, help="where the figures go")
    asked = parser.parse_args(arguments)
    if asked.texts < 1000:
        print("sampled: fewer than 1,000 texts say nothing about 255 cells", file=sys.stderr)
        return 2
    outcomes = []
    for name, gamma in itertools.product(DRAFTERS, GAMMAS):
        outcomes.append(measure(name, gamma, texts=asked.texts))
        print(f"{name}, gamma {gamma}", file=sys.stderr)
    print("\n".join(table(outcomes)))
    fits = [fit for outcome in outcomes for fit in outcome.fits]
    if asked.json:
        record = {
            **provenance.record("benchmarks.quality.sampling"),
            "fits": [asdict(f) for f in fits],
        }
        asked.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(outcome.holds for outcome in outcomes) else 1


if __name__ == "__main__":
    raise SystemExit(main())
