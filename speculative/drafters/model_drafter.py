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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ..device import Device
from ..errors import LoadError
from ..models.slot_model import score_at
from ..protocols import BeamModel, Chooser, Drafter, GreedyModel, Model, Needs
from ..requests import Request
from ..rounds.beams import behind
from ..rounds.choice import argmax, choose
from ..rounds.sampling import penalise, perturbed
from ..rows import Rows
from ..types import Draft, Level, Paths, Prefix

CONFIDENCE = 0.2
"""A draft ends where its probability, by the draft model itself, falls below this. The bundled pairs are
fastest with it (docs/performance.md)."""

TOKENS_FILE = "draft_tokens.json"
REMEDY = "make it again with `forescribe distill --cut-head`, or delete it"


def confidence_for(gamma: int | None, device: Device) -> float:
    """The confidence for drafts whose length the engine chooses (`gamma` None), on a device where reading a
    number costs nothing; 0 otherwise."""
    return CONFIDENCE if gamma is None and device.synchronous else 0.0


class ModelDrafter(Drafter):
    """Drafts with any `Model` of the target's vocabulary.

    The drafts are the draft's argmax, in sampled rows with the noise of the target's own draws. A row's
    penalties shape them as they shape the target.

    With `confidence` above 0 a draft ends where the product of its tokens' probabilities is below
    that in every active row. (transformers' `assistant_confidence_threshold` compares each token alone.)
    The text cannot change: it does not depend on drafts. This reads the device after every drafted token,
    which costs nothing on a CPU but cannot be captured on a GPU: the engine refuses it where shapes are
    static.
    """

    def __init__(self, model: Model, *, confidence: float = 0.0) -> None:
        self.model, self.confidence = model, confidence
        self._greedy = cast(GreedyModel, model) if hasattr(model, "draft_greedy") else None

    @property
    def needs(self) -> Needs:
        return Needs(vocab=self.model.vocab_size, ends_early=self.confidence > 0)

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

    def propose(self, rows: Rows, gamma: int) -> Draft:
        lengths = rows.lengths
        # After a fully accepted round the last draft was committed but never fed, so one or two tokens
        # are new to the draft. Feeding two is right in both cases (the first is idempotent then) and
        # keeps one shape. In a row of one token it is the first of the two, and the second is undefined.
        start = (lengths - 2).clamp_min(0)
        last = start[:, None] + torch.arange(2, device=start.device)
        new, node = rows.tokens.gather(1, last), lengths - 1 - start
        if self._greedy is not None and not (rows.mode.penalised or rows.mode.sampling):
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
        picker = Picker(rows, self.confidence)
        for depth in range(gamma):
            token = picker.pick(logits)
            if picker.ended or depth + 1 == gamma:
                break
            logits = self.model.score(token[:, None], lengths + depth, reach=rows.reach).logits
        return picker.draft(torch.full_like(lengths, gamma))


class TreeDrafter(ModelDrafter):
    """The same behind beams, with a `BeamModel`: each level of its trees has the texts of the largest sums,
    the target's of their beam and its own behind it."""

    def catch_up(self, rows: Any, start: Tensor, count: int) -> None:
        """See `Drafter.catch_up`: `count` tokens of each beam."""
        beams, levels = rows.beams(), list[Level]()
        for place in range(count):
            length = (start + 1 + place)[:, None]
            written = length <= beams.lengths
            level = beams.until(torch.where(written, length, 1))
            # What would come after the end of a text is written where nobody reads it.
            paths = torch.where(written[..., None], level.paths, rows.scratch)
            levels.append(replace(level, paths=paths))
        self._score(Level.joined(levels), rows.scratch + 1)

    def grow(self, rows: Any, slots: Tensor, eos: Tensor, choose: Chooser) -> list[Level]:
        beams: Level = rows.beams()
        # The draft has not read the last one or two tokens; reading one again changes nothing.
        fed = Level.joined([beams.until((beams.lengths - 1).clamp_min(1)), beams])
        logits = self._score(fed, rows.reach)[:, beams.sums.shape[1] :]
        levels = [behind(beams, *choose(beams, logits), slots[:, 0], eos)]
        for depth in range(1, slots.shape[1]):
            best = choose(levels[-1], self._score(levels[-1], rows.reach))
            levels.append(behind(levels[-1], *best, slots[:, depth], eos))
        return levels

    def _score(self, level: Level, reach: int) -> Tensor:
        model, paths = cast(BeamModel, self.model), Paths(level.paths, level.lengths)
        return model.score_paths(level.last, paths, reach=reach)


class Picker:
    """Picks the tokens of one draft, one position after another: the best ones, or those that the row's noise
    makes the best. `confidence` is as of `ModelDrafter`."""

    def __init__(self, rows: Rows, confidence: float) -> None:
        self._rows, self._confidence = rows, confidence
        self._ends, self._penalised = bool(confidence), rows.mode.penalised
        # [B] the chance, by the draft itself, that all drafts so far are kept; where drafts may end early.
        # In sampled rows too: of the logits with the noise, whose best token the target may miss.
        self._belief = torch.ones(rows.batch, device=rows.lengths.device)
        self._tokens: list[Tensor] = []
        # Penalties count the drafts too, which are not committed.
        self._known = rows.tokens.clone() if self._penalised else rows.tokens

    @property
    def reads_all(self) -> bool:
        """Whether it needs the logits of all tokens, as some are not the draft's to choose from."""
        return self._penalised or self._rows.mode.sampling

    def pick(self, logits: Tensor, ids: Tensor | None = None) -> Tensor:
        """The next draft `[B]`, by logits `[B, 1, V]`, or `[B, 1, U]` of the tokens `ids [U]` alone."""
        rows = self._rows
        slot = rows.lengths + len(self._tokens)  # of the token drafted now
        if self._penalised:
            prefix = Prefix(self._known, (slot - 1)[:, None], rows.begin)
            logits = penalise(rows, logits, prefix)
        if rows.mode.sampling:
            logits = perturbed(rows, logits, slot[:, None])
        if self._ends:
            best = choose(logits)
            token, self._belief = best.tokens[:, 0], self._belief * best.logprobs[:, 0].exp()
        else:
            token = argmax(logits)[:, 0]
        token = token if ids is None else ids[token]
        if self._penalised:
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
    """Token ids in ascending order, of a vocabulary of so many. Raises ValueError for other lists."""

    ids: tuple[int, ...]
    vocab_size: int
    source: str  # where they occur, for people

    def __post_init__(self) -> None:
        ids = self.ids
        if not ids or {*map(type, (*ids, self.vocab_size))} != {int}:
            raise ValueError("ids are integers, and at least one")
        if ids != tuple(sorted({*ids})) or ids[0] < 0 or ids[-1] >= self.vocab_size:
            raise ValueError(f"ids ascend, from 0 on and below {self.vocab_size}")

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
        wanted = coverage * sum(counted.values())
        chosen = set(always)
        covered = sum(counted.get(token, 0) for token in chosen)
        for token in sorted(counted.keys() - chosen, key=lambda token: (-counted[token], token)):
            if covered >= wanted:
                break
            chosen.add(token)
            covered += counted[token]
        return cls(tuple(sorted(chosen)), vocab_size, source)

    @classmethod
    def beside(cls, folder: Path, vocab_size: int) -> DraftTokens | None:
        """The list in a draft's folder; None where there is none. Raises LoadError for one that is damaged or
        was made for another vocabulary."""
        path = folder / TOKENS_FILE
        try:
            found = cls.from_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            kind = type(error).__name__
            raise LoadError(f"{path} is no list of tokens ({kind}: {error}): {REMEDY}") from error
        if found.vocab_size != vocab_size:
            raise LoadError(
                f"{path} is for a vocabulary of {found.vocab_size} tokens, and the draft has {vocab_size}: "
                f"{REMEDY}"
            )
        return found

    @classmethod
    def from_json(cls, text: str) -> DraftTokens:
        """What `to_json` writes; ids may also be a list. Raises ValueError, TypeError or KeyError for
        anything else."""
        data: Any = json.loads(text)
        ids, size = data["ids"], data["vocab_size"]
        if isinstance(ids, str):
            bits = f"{int.from_bytes(base64.b64decode(ids, validate=True), 'little'):b}"
            ids = [token for token, bit in enumerate(reversed(bits)) if bit == "1"]
        return cls(tuple(ids), size, str(data["source"]))

    def to_json(self) -> str:
        """In one line, with the ids as base64 of one bit for each token, the lowest first."""
        bits = sum(1 << token for token in self.ids)
        packed = base64.b64encode(bits.to_bytes(bits.bit_length() // 8 + 1, "little")).decode()
        data = {"vocab_size": self.vocab_size, "source": self.source, "ids": packed}
        return json.dumps(data, separators=(",", ":")) + "\n"
