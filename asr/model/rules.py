"""Whisper's token rules: which token may come next, as logits processors.

A rule takes the logits of N scored positions with the prefix of each, and returns new logits with -inf
where a token is forbidden. All other values are unchanged, so the rules can be compared bit for bit with
transformers' own processors, which see one position at a time. Drafted positions obey the rules for
*their own* drafted prefix.

Everything runs inside one captured round: fixed shapes, no sync with the host, no boolean indexing, no
change of an input, no copy from host to device (constants are on the device from the start). Knows token
ids; nothing of audio, models, caches or text.

Shapes: B rows, N scored positions, T slots, V vocabulary.

Sources: openai/whisper `decoding.py` (SuppressBlank, SuppressTokens, ApplyTimestampRules) and
transformers 5.23 `generation/logits_process.py`, whose order and arithmetic are followed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from forescribe.speculative.requests import Probe
from forescribe.speculative.rounds.choice import Allowed

if TYPE_CHECKING:
    from transformers import GenerationConfig, WhisperConfig

    from forescribe.speculative.protocols import Processor
    from forescribe.speculative.types import Chain, Prefix

FORBIDDEN = float("-inf")


def whisper_rules(
    generation_config: GenerationConfig,
    config: WhisperConfig,
    device: torch.device | str = "cpu",
) -> tuple[Processor, ...]:
    """All rules of a Whisper model as one processor, in the order in which transformers applies them.

    A setting that the generation config lacks has no rule. The timestamp rule exists for every model
    with timestamps: the prompt of each row determines whether it applies. Without any rule the tuple is
    empty.

    Raises ValueError where an id that the rules need is missing or not a single integer.
    """
    V = config.vocab_size
    rules: list[Processor] = []
    if generation_config.begin_suppress_tokens is not None:
        rules.append(SuppressAtBegin(_mask(generation_config.begin_suppress_tokens, V, device)))
    if generation_config.suppress_tokens is not None:
        rules.append(Suppress(_mask(generation_config.suppress_tokens, V, device)))
    if getattr(generation_config, "no_timestamps_token_id", None) is not None:
        no_timestamps = _id(generation_config, "no_timestamps_token_id")
        rules.append(
            Timestamps(
                timestamp_begin=no_timestamps + 1,
                eos=_id(generation_config, "eos_token_id"),
                no_timestamps=no_timestamps,
                max_initial=getattr(generation_config, "max_initial_timestamp_index", None),
                by_mass=getattr(generation_config, "_detect_timestamp_from_logprob", True),
            )
        )
    return (WhisperRules.of(rules, V, device),) if rules else ()


@dataclass(frozen=True, eq=False)
class WhisperRules:
    """All rules of a model in one processor, which greedy rounds can ask for what it allows.

    `rules` are applied one after the other, in this order. `bias [M, V]` says the same in one table, -inf
    where a token is forbidden, one row for each kind of position:

    | row | position                                                             |
    |-----|----------------------------------------------------------------------|
    | 0   | in a row without timestamps, or of a model without them              |
    | 1   | the same, at the beginning                                           |
    | 2   | in a row with timestamps: where text is allowed                      |
    | 3   | the same, at the beginning: no text                                  |
    | 4   | the same, after the end of a segment: text from end-of-text on       |
    """

    rules: tuple[Processor, ...]
    bias: Tensor
    timestamps: Timestamps | None  # the one of `rules`

    @classmethod
    def of(
        cls, rules: Iterable[Processor], vocab_size: int, device: torch.device | str = "cpu"
    ) -> WhisperRules:
        """One processor for `rules`, each of which is one of the three of this module."""
        rules = tuple(rules)
        timestamps = None
        never = torch.zeros(5, vocab_size, dtype=torch.bool, device=device)
        for rule in rules:
            if isinstance(rule, Suppress):
                never |= rule.mask
            elif isinstance(rule, SuppressAtBegin):
                never[1::2] |= rule.mask
            elif isinstance(rule, Timestamps):
                timestamps = rule
                never[2:, rule.no_timestamps] = True
                never[3, : rule.timestamp_begin] = True
                never[4, : rule.eos] = True
            else:
                raise TypeError(f"{type(rule).__name__} is none of Whisper's rules")
        bias = torch.zeros(never.shape, device=device).masked_fill(never, FORBIDDEN)
        return cls(rules, bias, timestamps)

    def __call__(self, logits: Tensor, prefix: Prefix) -> Tensor:
        """Return logits [B, N, V] with -inf where a rule forbids a token."""
        for rule in self.rules:
            logits = rule(logits, prefix)
        return logits

    def allowed(self, chain: Chain) -> Allowed:
        """What the rules allow at the N positions of a chain."""
        V = self.bias.shape[1]
        timestamps = self.timestamps
        if timestamps is None:
            first = chain.last + 1 == chain.begin[:, None]
            end = torch.full_like(chain.last, V)
            return Allowed(V, self.bias, first.long(), end, end, torch.zeros_like(first))
        bounds = timestamps.bounds(chain, V)
        kind = bounds.first + 2 * bounds.timed + 2 * (bounds.segment_ended & bounds.timed)
        joint = bounds.timed if timestamps.by_mass else torch.zeros_like(bounds.timed)
        return Allowed(
            split=timestamps.timestamp_begin,
            bias=self.bias,
            kind=kind,
            low=bounds.stamp_from,
            high=bounds.stamp_to,
            joint=joint,
        )


@dataclass(frozen=True)
class Timestamps:
    """Timestamps come first, in pairs and in order, and are chosen by their joint probability.

    The vocabulary ends with them: text and special tokens are ids < `timestamp_begin`. At each
    position two intervals of ids are allowed, one of text and one of timestamps:

    | the prefix                      | text              | timestamps                           |
    |---------------------------------|-------------------|--------------------------------------|
    | nothing generated yet           | none              | the first `max_initial` steps        |
    | ends with a closed pair         | all               | none: words must follow              |
    | ends with the end of a segment  | `eos` and above   | from that timestamp on               |
    | anything else                   | all               | after the latest timestamp           |

    Then, where the timestamps together are more probable than the most probable text token, text is
    forbidden. Rows whose prompt ends with `no_timestamps` are not changed.

    Token ids: `timestamp_begin` (<|0.00|>), `eos`, `no_timestamps` (<|notimestamps|>).
    `max_initial`: highest step of the first timestamp (a step is 20 ms), None for no limit.
    `by_mass`: whether the joint probability of the timestamps counts.
    """

    timestamp_begin: int
    eos: int
    no_timestamps: int
    max_initial: int | None = None
    by_mass: bool = True

    def __call__(self, logits: Tensor, prefix: Prefix) -> Tensor:
        """Return logits [B, N, V] with -inf where the prefix of a position forbids a token."""
        V = logits.shape[-1]
        bounds = self.bounds(prefix.chain(), V)
        v = torch.arange(V, device=logits.device)
        text_from = torch.zeros_like(prefix.last).masked_fill(bounds.first, self.timestamp_begin)
        text_from = text_from.masked_fill(bounds.segment_ended, self.eos)
        text = (v >= text_from[..., None]) & (v < self.timestamp_begin) & (v != self.no_timestamps)
        stamp = (v >= bounds.stamp_from[..., None]) & (v < bounds.stamp_to[..., None])
        timed = bounds.timed[..., None]
        scores = logits.masked_fill(~(text | stamp | ~timed), FORBIDDEN)
        if not self.by_mass:
            return scores
        is_text = v < self.timestamp_begin
        return scores.masked_fill(self._stamp_wins(scores)[..., None] & timed & is_text, FORBIDDEN)

    def bounds(self, chain: Chain, V: int) -> Bounds:
        """What the rule reads of the prefixes; the vocabulary has V tokens."""
        text, fed, begin = chain.text, chain.fed, chain.begin[:, None]
        generated = chain.last + 1 - begin  # [B, N]
        first = generated == 0
        timed = text.gather(1, (begin - 1).clamp(min=0)) != self.no_timestamps  # [B, 1]
        before = text.gather(1, (chain.last[:, :1] - 1).clamp(min=0))
        second = torch.cat([before, fed[:, :-1]], dim=1)
        is_stamp = (fed >= self.timestamp_begin) & (generated >= 1)
        # A single first timestamp opens the first segment: it counts as the second half of a pair.
        paired = (generated < 2) | (second >= self.timestamp_begin)
        segment_ended = is_stamp & ~paired

        # Constants are written by masked_fill: `where` with a number may copy it from the host.
        stamp_from = self._latest_stamp(chain, is_stamp) + (~segment_ended).to(fed.dtype)
        stamp_from = stamp_from.clamp(min=self.timestamp_begin)
        stamp_from = stamp_from.masked_fill(is_stamp & paired, V)
        limit = V if self.max_initial is None else self.timestamp_begin + self.max_initial + 1
        return Bounds(
            timed=timed.expand_as(first),
            first=first,
            segment_ended=segment_ended,
            stamp_from=stamp_from.masked_fill(~timed, self.timestamp_begin),
            stamp_to=torch.full_like(fed, V).masked_fill(first & timed, limit),
        )

    def _latest_stamp(self, chain: Chain, is_stamp: Tensor) -> Tensor:
        """The latest timestamp generated before each prediction, [B, N]; -1 where there is none.

        `is_stamp [B, N]`: whether the last token before it is one. The text before the drafts is
        searched once per row, without a scan, which is slow on accelerators.
        """
        text, first = chain.text, chain.last[:, :1]
        slot = torch.arange(text.shape[1], device=text.device)  # [T]
        older = (text >= self.timestamp_begin) & (slot >= chain.begin[:, None]) & (slot < first)
        at = slot.masked_fill(~older, -1).amax(1, keepdim=True)  # [B, 1]
        old = text.gather(1, at.clamp(min=0)).masked_fill(at < 0, -1)
        column = torch.arange(is_stamp.shape[1], device=text.device)
        latest = column.masked_fill(~is_stamp, -1).cummax(1).values  # [B, N]
        return torch.where(latest < 0, old, chain.fed.gather(1, latest.clamp(min=0)))

    def _stamp_wins(self, scores: Tensor) -> Tensor:
        """Whether timestamps together are more probable than the best text token, [B, N] bool.

        Both sides are normalised although the normaliser cancels out: transformers compares the rounded
        values, and a near-tie has to be decided in the same way here.
        """
        logprobs = torch.log_softmax(scores.float(), dim=-1)
        stamps = logprobs[..., self.timestamp_begin :].logsumexp(-1)
        return stamps > logprobs[..., : self.timestamp_begin].amax(-1)


@dataclass(frozen=True)
class Bounds:
    """What `Timestamps` reads of N prefixes: all [B, N]. Rows without timestamps allow all of them."""

    timed: Tensor  # whether the row's prompt asks for timestamps
    first: Tensor  # nothing is generated yet
    segment_ended: Tensor  # ends with the end of a segment
    stamp_from: Tensor  # the allowed timestamps: from this id
    stamp_to: Tensor  # to below this one


@dataclass(frozen=True, eq=False)
class Suppress:
    """Tokens that are never generated: brackets, music symbols, speaker marks, special tokens.

    `mask [V]` bool, true where suppressed, on the device of the logits.
    """

    mask: Tensor

    def __call__(self, logits: Tensor, prefix: Prefix) -> Tensor:
        """Return logits [B, N, V] with the suppressed tokens at -inf."""
        return logits.masked_fill(self.mask, FORBIDDEN)


@dataclass(frozen=True, eq=False)
class SuppressAtBegin:
    """Tokens that may not be the first generated one: the lone space and end-of-text.

    transformers omits this rule in assisted generation, so its assisted output may begin with tokens that
    its plain output cannot begin with. Here it applies in every round.

    `mask [V]` bool, true where suppressed, on the device of the logits.
    """

    mask: Tensor

    def __call__(self, logits: Tensor, prefix: Prefix) -> Tensor:
        """Return logits [B, N, V] with the tokens at -inf where the first token is predicted."""
        first = prefix.last + 1 == prefix.begin[:, None]  # [B, N]
        return logits.masked_fill(first[..., None] & self.mask, FORBIDDEN)


@dataclass(frozen=True)
class NoSpeech:
    """The target's probability that a window holds no speech, before any rule is applied.

    Token ids: `token` (<|nospeech|>), `start` (<|startoftranscript|>).
    """

    token: int
    start: int

    @classmethod
    def of(cls, generation_config: GenerationConfig) -> NoSpeech:
        """From a Whisper generation config; <|nospeech|> is the token before <|notimestamps|>."""
        return cls(
            token=_id(generation_config, "no_timestamps_token_id") - 1,
            start=_id(generation_config, "decoder_start_token_id"),
        )

    def probe(self, prompt: Sequence[int]) -> Probe:
        """The probe for a prompt: the token, at the slot of start-of-transcript.

        Previous text may precede that slot, so it is not always slot 0.

        Raises ValueError where the prompt has no start-of-transcript.
        """
        if self.start not in prompt:
            raise ValueError(f"the prompt has no start-of-transcript token {self.start}")
        last = len(prompt) - 1 - prompt[::-1].index(self.start)
        return Probe(slot=last, tokens=(self.token,))

    def __call__(self, logits: Tensor) -> Tensor:
        """Probability [B] of no speech from raw logits [B, V] at the start-of-transcript slot."""
        return logits.float().softmax(-1)[..., self.token]


def _mask(ids: Iterable[int], vocab_size: int, device: torch.device | str) -> Tensor:
    """A mask `[V]` bool, true at `ids`, created once on the device; ids outside the vocabulary have nothing
    to suppress."""
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    listed = [token for token in ids if 0 <= token < vocab_size]
    mask[torch.tensor(listed, dtype=torch.long)] = True
    return mask.to(device)


def _id(generation_config: GenerationConfig, name: str) -> int:
    value = getattr(generation_config, name, None)
    if not isinstance(value, int):
        raise ValueError(f"the generation config needs one integer as {name} (got {value!r})")
    return value
