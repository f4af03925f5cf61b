"""Drafts of a smaller model, one token at a time, and how a token is picked, of heads too.

A draft whose folder has `draft_tokens.json` gets an output head of these tokens alone (`DraftTokens`), which
makes each drafted token cheaper and changes no text: what the list lacks is decoded by the target.
`forescribe distill --cut-head` makes the file. Knows the draft model and rows; nothing of targets or
schedules.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ..device import Device
from ..errors import LoadError
from ..models.slot_model import score_at
from ..protocols import GreedyModel, Model, Needs, Processor
from ..requests import Request
from ..rounds.choice import argmax, choose
from ..rounds.sampling import penalise, perturbed
from ..rows import Rows
from ..types import Draft, Prefix, Scores, Verdict

CONFIDENCE = 0.2
"""A draft ends where its probability, by the draft model itself, falls below this. The bundled text pair
was fastest with it; the speech pair was equally fast from 0.2 to 0.5, within the noise of repeated runs. A
bound learnt from measured costs gained nothing (docs/performance.md)."""

TOKENS_FILE = "draft_tokens.json"
REMEDY = "make it again with `forescribe distill --cut-head`, or delete it"


def confidence_for(gamma: int | None, device: Device) -> float:
    """The confidence for drafts whose length the engine chooses (`gamma` None), on a device where reading a
    number costs nothing; 0 otherwise."""
    return CONFIDENCE if gamma is None and device.synchronous else 0.0


class ModelDrafter:
    """Drafts with any `Model` of the target's vocabulary.

    `processors` are applied to the draft's logits too. They cannot change the output, only the
    acceptance, and each runs once per drafted token. The drafts are the draft's argmax, in sampled rows
    with the noise of the target's own draws. A row's penalties shape them as they shape the target.

    With `confidence` above 0 a draft ends where the product of its tokens' probabilities is below
    that in every active row. (transformers' `assistant_confidence_threshold` compares each token alone.)
    The text cannot change: it does not depend on drafts. This reads the device after every drafted token,
    which costs nothing on a CPU but cannot be captured on a GPU: the engine refuses it where shapes are
    static. Raises `ValueError` for a confidence outside 0 to 1.
    """

    def __init__(
        self, model: Model, processors: Sequence[Processor] = (), *, confidence: float = 0.0
    ) -> None:
        if not 0 <= confidence <= 1:
            raise ValueError(f"confidence is {confidence}; it must be from 0 to 1")
        self.model = model
        self._greedy = cast(GreedyModel, model) if hasattr(model, "draft_greedy") else None
        self.processors = tuple(processors)
        self.confidence = confidence

    @property
    def needs(self) -> Needs:
        return Needs(vocab=self.model.vocab_size, ends_early=self.confidence > 0)

    def bind(self, target: Model) -> None:
        """Does nothing: the draft has a head of its own."""

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        self.model.allocate(batch, slots)

    def forwards(self, gamma: int) -> int:
        return gamma

    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        self.model.prefill(rows, tokens, [r.encoder_states for r in requests])

    def catch_up(self, rows: Rows, start: Tensor, count: int) -> None:
        slots = start[:, None] + torch.arange(count, device=start.device)
        last = torch.full_like(start, count - 1)  # its logits are not read
        score_at(self.model, rows.tokens.gather(1, slots), start, last, rows.reach)

    def propose(self, rows: Rows, gamma: int, *, unread: int = 0) -> Draft:
        """`unread` more tokens of each row are read first, in the same forward: those that other sources
        have drafted."""
        known, lengths = rows.tokens, rows.lengths
        # After a fully accepted round the last draft was committed but never fed, so one or two tokens
        # are new to the draft. Feeding two is right in both cases (the first is idempotent then) and
        # keeps one shape. In a row of one token it is the first of the two, and the second is undefined.
        start = (lengths - 2 - unread).clamp_min(0)
        last = start[:, None] + torch.arange(2 + unread, device=start.device)
        new, node = known.gather(1, last.clamp_max(rows.scratch)), lengths - 1 - start
        shaped = bool(self.processors) or rows.mode.penalised
        if self._greedy is not None and not (shaped or rows.mode.sampling):
            drafts = self._greedy.draft_greedy(
                new,
                start,
                node,
                rows.active,
                reach=rows.reach,
                gamma=gamma,
                confidence=self.confidence,
            )
            return Draft(drafts, torch.full_like(lengths, drafts.shape[1]))
        logits = score_at(self.model, new, start, node, rows.reach)
        picker = Picker(rows, self.confidence, self._process if self.processors else None)
        for depth in range(gamma):
            token = picker.pick(logits)
            if picker.ended or depth + 1 == gamma:
                break
            logits = self.model.score(token[:, None], lengths + depth, reach=rows.reach).logits
        return picker.draft(torch.full_like(lengths, gamma))

    def _process(self, logits: Tensor, prefix: Prefix) -> Tensor:
        plain = logits
        for processor in self.processors:
            logits = processor(logits, prefix)
        if getattr(self.model, "listed", None) is None:
            return logits
        # Where they forbid all tokens that the draft has, it drafts what they forbid: a guess that is
        # rejected, where a distribution over nothing would be no number.
        return torch.where(logits.isfinite().any(-1, keepdim=True), logits, plain)

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Does nothing: the next round overwrites rejected drafts."""


class Picker:
    """Picks the tokens of one draft, one position after another: the best ones, or those that the row's noise
    makes the best. `confidence` is as of `ModelDrafter`; `process` changes logits before penalties do."""

    def __init__(self, rows: Rows, confidence: float, process: Processor | None = None) -> None:
        self._rows, self._confidence, self._process = rows, confidence, process
        self._ends = bool(confidence)
        self._shaped = rows.mode.penalised or process is not None
        # [B] the chance, by the draft itself, that all drafts so far are kept; where drafts may end early.
        # In sampled rows too: of the logits with the noise, whose best token the target may miss.
        self._belief = torch.ones(rows.batch, device=rows.lengths.device)
        self._tokens: list[Tensor] = []
        # Both read the drafts, which are not committed: one copy for all of them.
        self._known = rows.tokens.clone() if self._shaped else rows.tokens

    @property
    def reads_all(self) -> bool:
        """Whether it needs the logits of all tokens, as some are not the draft's to choose from."""
        return self._shaped or self._rows.mode.sampling

    def pick(self, logits: Tensor, ids: Tensor | None = None) -> Tensor:
        """The next draft `[B]`, by logits `[B, 1, V]`, or `[B, 1, U]` of the tokens `ids [U]` alone."""
        rows, mode = self._rows, self._rows.mode
        slot = rows.lengths + len(self._tokens)  # of the token drafted now
        if self._shaped:
            prefix = Prefix(self._known, (slot - 1)[:, None], rows.begin)
            logits = logits if self._process is None else self._process(logits, prefix)
            logits = penalise(rows, logits, prefix) if mode.penalised else logits
        if mode.sampling:
            logits = perturbed(rows, logits, slot[:, None])
        if self._ends:
            best = choose(logits)
            token, self._belief = best.tokens[:, 0], self._belief * best.logprobs[:, 0].exp()
        else:
            token = argmax(logits)[:, 0]
        token = token if ids is None else ids[token]
        if self._shaped:
            self._known.scatter_(1, slot[:, None], token[:, None])
        self._tokens.append(token)
        return token

    @property
    def ended(self) -> bool:
        """Whether the draft ends here: it may, and no active row believes in it any more."""
        if not self._ends:
            return False
        return not bool((self._rows.active & (self._belief >= self._confidence)).any())

    def draft(self, most: Tensor) -> Draft:
        """The draft; of row b the first `most[b]` tokens count."""
        tokens = torch.stack(self._tokens, 1)
        return Draft(tokens, most.clamp_max(tokens.shape[1]))


@dataclass(frozen=True)
class DraftTokens:
    """Token ids in ascending order, how often each occurred (0 for one that is listed in any case), and of
    what.

    Raises ValueError for a list that is empty, not ascending, or has ids outside the vocabulary.
    """

    ids: tuple[int, ...]
    counts: tuple[int, ...]
    vocab_size: int
    occurrences: int  # of all tokens that were counted, listed or not
    source: str  # what was counted, for people

    def __post_init__(self) -> None:
        numbers = (*self.ids, *self.counts, self.vocab_size, self.occurrences)
        if {*map(type, numbers)} != {int} or min(numbers) < 0:
            raise ValueError("ids and counts are integers from 0 on")
        if not self.ids:
            raise ValueError("it lists no tokens")
        if len(self.ids) != len(self.counts):
            raise ValueError(f"it has {len(self.ids)} ids and {len(self.counts)} counts")
        for token, following in zip(self.ids, self.ids[1:], strict=False):
            if following <= token:
                raise ValueError(f"ids ascend, and {following} follows {token}")
        if self.ids[-1] >= self.vocab_size:
            raise ValueError(f"token {self.ids[-1]} is not in a vocabulary of {self.vocab_size}")
        if sum(self.counts) > self.occurrences:
            raise ValueError(f"its counts exceed the {self.occurrences} tokens that it counted")

    @property
    def coverage(self) -> float:
        """The share of the counted tokens that are listed."""
        return sum(self.counts) / self.occurrences if self.occurrences else 1.0

    @classmethod
    def most_frequent(
        cls,
        counted: Mapping[int, int],
        always: Collection[int],
        vocab_size: int,
        source: str,
        *,
        coverage: float = 1.0,
    ) -> DraftTokens:
        """The most frequent of the tokens that occurred, and those of `always`: as many as have this share
        of all occurrences. Of equally frequent tokens the lower ids come first."""
        ranked = sorted(counted, key=lambda token: (-counted[token], token))
        occurrences = sum(counted.values())
        chosen = set(always)
        covered = sum(counted.get(token, 0) for token in chosen)
        for token in ranked:
            if covered >= coverage * occurrences:
                break
            if token not in chosen:
                chosen.add(token)
                covered += counted[token]
        ids = tuple(sorted(chosen))
        return cls(ids, tuple(counted.get(i, 0) for i in ids), vocab_size, occurrences, source)

    @classmethod
    def beside(cls, folder: Path, vocab_size: int) -> DraftTokens | None:
        """The list in a draft's folder; None where there is none. Raises LoadError for one that is damaged or
        was made for another vocabulary."""
        path = folder / TOKENS_FILE
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise LoadError(f"{path} cannot be read ({error}): {REMEDY}") from error
        try:
            found = cls.from_json(text)
        except (ValueError, TypeError, KeyError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise LoadError(f"{path} is no list of tokens: {reason}; {REMEDY}") from error
        if found.vocab_size != vocab_size:
            raise LoadError(
                f"{path} is for a vocabulary of {found.vocab_size} tokens, and the draft has {vocab_size}: "
                f"{REMEDY}"
            )
        return found

    @classmethod
    def from_json(cls, text: str) -> DraftTokens:
        """What `to_json` writes; ids may be a `bitmap`, and what was counted may be left out. Raises
        ValueError, TypeError or KeyError for anything else."""
        data: Any = json.loads(text)
        if not isinstance(data, dict):
            raise TypeError("it is no JSON object")
        ids = data["ids"]
        ids = from_bitmap(ids) if isinstance(ids, str) else ids
        counted = "counts" in data or "occurrences" in data
        counts = data["counts"] if counted else [0] * len(ids)
        if not isinstance(ids, list) or not isinstance(counts, list):
            raise TypeError("its ids and counts are no lists")
        return cls(
            tuple(ids),
            tuple(counts),
            data["vocab_size"],
            data["occurrences"] if counted else 0,
            str(data["source"]),
        )

    def to_json(self) -> str:
        """One line per field."""
        fields = {
            "vocab_size": self.vocab_size,
            "source": self.source,
            "occurrences": self.occurrences,
            "coverage": round(self.coverage, 6),
            "ids": self.ids,
            "counts": self.counts,
        }
        lines = [
            f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
            for key, value in fields.items()
        ]
        return "{\n" + ",\n".join(lines) + "\n}\n"


def bitmap(ids: Collection[int]) -> str:
    """Ids as base64 of one bit for each token, the lowest first: a fifth of a list's room, for files that are
    distributed."""
    bits = sum(1 << token for token in set(ids))
    return base64.b64encode(bits.to_bytes(bits.bit_length() // 8 + 1, "little")).decode()


def from_bitmap(text: str) -> list[int]:
    """The ids of a `bitmap`, ascending. Raises ValueError for anything else."""
    digits = f"{int.from_bytes(base64.b64decode(text, validate=True), 'little'):b}"
    return [token for token, digit in enumerate(reversed(digits)) if digit == "1"]
