"""Whisper's token rules: which token may come next, as one logits processor.

It takes the logits of N scored positions with the prefix of each, and returns new logits with -inf where a
token is forbidden. All other values are unchanged, so the rules can be compared bit for bit with
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

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from forescribe.speculative.rounds.choice import Allowed, masked

if TYPE_CHECKING:
    from transformers import GenerationConfig, WhisperConfig

    from forescribe.speculative.protocols import Processor
    from forescribe.speculative.types import Chain, Prefix

FORBIDDEN = float("-inf")


def whisper_rules(
    generation_config: GenerationConfig, config: WhisperConfig, device: torch.device | str = "cpu"
) -> tuple[Processor, ...]:
    """All rules of a Whisper model as one processor.

    A setting that the generation config lacks has no rule. The timestamp rule exists for every model
    with timestamps: the prompt of each row determines whether it applies. Without any rule the tuple is
    empty. transformers omits `begin_suppress_tokens` in assisted generation, so its assisted output may begin
    with tokens that its plain output cannot begin with; here they are forbidden in every round.

    The ids that the rules need are single integers: see `loading.load`.
    """
    V = config.vocab_size
    always, first = generation_config.suppress_tokens, generation_config.begin_suppress_tokens
    never = torch.zeros(5, V, dtype=torch.bool)
    never[:, _inside(always, V)] = True
    never[1::2, _inside(first, V)] = True
    timestamps = None
    no_timestamps = getattr(generation_config, "no_timestamps_token_id", None)
    if no_timestamps is not None:
        timestamps = Timestamps(
            no_timestamps=no_timestamps,
            max_initial=getattr(generation_config, "max_initial_timestamp_index", None),
        )
        never[2:, timestamps.no_timestamps] = True
        never[3, : timestamps.begin] = True
        never[4, : generation_config.eos_token_id] = True
    elif always is None and first is None:
        return ()
    bias = torch.zeros(never.shape).masked_fill(never, FORBIDDEN)
    return (WhisperRules(bias.to(device), timestamps),)


@dataclass(frozen=True, eq=False)
class WhisperRules:
    """All rules of a model: tokens that are never generated (brackets, music symbols, speaker marks, special
    tokens), those that may not be the first one (a space, end-of-text), and the rule of timestamps.

    `bias [5, V]` is -inf where a token is forbidden, one row for each kind of position:

    | row | position                                                             |
    |-----|----------------------------------------------------------------------|
    | 0   | in a row without timestamps, or of a model without them              |
    | 1   | the same, at the beginning                                           |
    | 2   | in a row with timestamps: where text is allowed                      |
    | 3   | the same, at the beginning: no text                                  |
    | 4   | the same, after the end of a segment: text from end-of-text on       |
    """

    bias: Tensor
    timestamps: Timestamps | None

    def __call__(self, logits: Tensor, prefix: Prefix) -> Tensor:
        """Return logits [B, N, V] with -inf where a rule forbids a token."""
        allowed = self.allowed(prefix.chain())
        kept, split = masked(logits, allowed), allowed.split
        if self.timestamps is None:
            return kept
        # Both sides are normalised although the normaliser cancels out: transformers compares the rounded
        # values, and a near-tie has to be decided in the same way here.
        logprobs = kept.log_softmax(-1)
        wins = allowed.joint & (
            logprobs[..., split:].logsumexp(-1) > logprobs[..., :split].amax(-1)
        )
        is_text = torch.arange(kept.shape[-1], device=kept.device) < split
        return kept.masked_fill(wins[..., None] & is_text, FORBIDDEN)

    def allowed(self, chain: Chain) -> Allowed:
        """What the rules allow at the N positions of a chain."""
        if self.timestamps is not None:
            return self.timestamps.allowed(chain, self.bias)
        V = self.bias.shape[1]
        first = chain.last + 1 == chain.begin[:, None]
        end = torch.full_like(chain.last, V)
        return Allowed(V, self.bias, first.long(), end, end, torch.zeros_like(first))


@dataclass(frozen=True)
class Timestamps:
    """Timestamps come first, in pairs and in order, and are chosen by their joint probability.

    The vocabulary ends with them: text and special tokens are ids < `begin`. At each position two intervals
    of ids are allowed, one of text and one of timestamps:

    | the prefix                      | text                  | timestamps                       |
    |---------------------------------|-----------------------|----------------------------------|
    | nothing generated yet           | none                  | the first `max_initial` steps    |
    | ends with a closed pair         | all                   | none: words must follow          |
    | ends with the end of a segment  | end-of-text and above | from that timestamp on           |
    | anything else                   | all                   | after the latest timestamp       |

    Then, where the timestamps together are more probable than the most probable text token, text is
    forbidden. Rows whose prompt ends with `no_timestamps` are not changed.

    `no_timestamps`: the id of <|notimestamps|>, which <|0.00|> follows.
    `max_initial`: highest step of the first timestamp (a step is 20 ms), None for no limit.
    """

    no_timestamps: int
    max_initial: int | None

    @property
    def begin(self) -> int:
        """The id of <|0.00|>."""
        return self.no_timestamps + 1

    def allowed(self, chain: Chain, bias: Tensor) -> Allowed:
        """What is allowed at the N positions of a chain, with the `bias` of all rules."""
        V, text, fed, begin = bias.shape[1], chain.text, chain.fed, chain.begin[:, None]
        generated = chain.last + 1 - begin  # [B, N]
        first = generated == 0
        timed = text.gather(1, (begin - 1).clamp(min=0)) != self.no_timestamps  # [B, 1]
        timed = timed.expand_as(first)
        before = text.gather(1, (chain.last[:, :1] - 1).clamp(min=0))
        second = torch.cat([before, fed[:, :-1]], dim=1)
        is_stamp = (fed >= self.begin) & (generated >= 1)
        # A single first timestamp opens the first segment: it counts as the second half of a pair.
        paired = (generated < 2) | (second >= self.begin)
        segment_ended = is_stamp & ~paired

        # Constants are written by masked_fill: `where` with a number may copy it from the host.
        low = self._latest_stamp(chain, is_stamp) + (~segment_ended).to(fed.dtype)
        low = low.clamp(min=self.begin).masked_fill(is_stamp & paired, V)
        limit = V if self.max_initial is None else self.begin + self.max_initial + 1
        return Allowed(
            split=self.begin,
            bias=bias,
            kind=first + 2 * timed + 2 * (segment_ended & timed),
            low=low.masked_fill(~timed, self.begin),
            high=torch.full_like(fed, V).masked_fill(first & timed, limit),
            joint=timed,
        )

    def _latest_stamp(self, chain: Chain, is_stamp: Tensor) -> Tensor:
        """The latest timestamp generated before each prediction, [B, N]; -1 where there is none.

        `is_stamp [B, N]`: whether the last token before it is one. The text before the drafts is
        searched once per row, without a scan, which is slow on accelerators.
        """
        text, first = chain.text, chain.last[:, :1]
        slot = torch.arange(text.shape[1], device=text.device)  # [T]
        older = (text >= self.begin) & (slot >= chain.begin[:, None]) & (slot < first)
        at = slot.masked_fill(~older, -1).amax(1, keepdim=True)  # [B, 1]
        old = text.gather(1, at.clamp(min=0)).masked_fill(at < 0, -1)
        column = torch.arange(is_stamp.shape[1], device=text.device)
        latest = column.masked_fill(~is_stamp, -1).cummax(1).values  # [B, N]
        return torch.where(latest < 0, old, chain.fed.gather(1, latest.clamp(min=0)))


def _inside(ids: Iterable[int] | None, vocab_size: int) -> list[int]:
    """Ids of a setting that the vocabulary has: others have nothing to suppress."""
    return [token for token in ids or () if 0 <= token < vocab_size]
