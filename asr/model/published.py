"""Published Whisper weights: what is known of them, where they are, and whether a draft fits a target.

Knows the names and vocabularies of Whisper models; nothing of presets, devices or decoding. Import is
light: neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from forescribe.speculative.models import hub
from forescribe.speculative.models.hub import HubError, Role, find

from ..errors import ModelError

__all__ = [
    "DRAFTS",
    "ENGLISH",
    "KNOWN",
    "Known",
    "as_ids",
    "as_model_error",
    "check_pair",
    "find",
    "locate",
]

ENGLISH = frozenset({"en"})


@dataclass(frozen=True)
class Known:
    """What is known of published weights without opening them.

    `vocab_size` tokens, `mel_bins` frequency bins of the features; `languages` that it was made
    for (ISO 639-1), None for all of Whisper's.
    """

    vocab_size: int
    mel_bins: int = 80
    languages: frozenset[str] | None = None


# Vocabularies: `.en` models have GPT-2's text tokens, one fewer; large-v3 added Cantonese.
KNOWN: Mapping[str, Known] = {
    "openai/whisper-tiny": Known(51865),
    "openai/whisper-base": Known(51865),
    "openai/whisper-small": Known(51865),
    "openai/whisper-medium": Known(51865),
    "openai/whisper-large": Known(51865),
    "openai/whisper-large-v2": Known(51865),
    "openai/whisper-large-v3": Known(51866, mel_bins=128),
    "openai/whisper-large-v3-turbo": Known(51866, mel_bins=128),
    "openai/whisper-tiny.en": Known(51864, languages=ENGLISH),
    "openai/whisper-base.en": Known(51864, languages=ENGLISH),
    "openai/whisper-small.en": Known(51864, languages=ENGLISH),
    "openai/whisper-medium.en": Known(51864, languages=ENGLISH),
    "distil-whisper/distil-small.en": Known(51864, languages=ENGLISH),
    "distil-whisper/distil-medium.en": Known(51864, languages=ENGLISH),
    "distil-whisper/distil-large-v2": Known(51865, languages=ENGLISH),
    "distil-whisper/distil-large-v3": Known(51866, mel_bins=128, languages=ENGLISH),
    "distil-whisper/distil-large-v3.5": Known(51866, mel_bins=128, languages=ENGLISH),
}

# Usual as drafts, the one that gains most first.
DRAFTS = (
    "distil-whisper/distil-large-v3.5",
    "distil-whisper/distil-large-v3",
    "distil-whisper/distil-large-v2",
    "distil-whisper/distil-medium.en",
    "openai/whisper-tiny",
    "openai/whisper-tiny.en",
)

WHISPER = hub.Family(
    # Of the many copies that repositories hold (other precisions, Flax, TensorFlow), the one we load.
    patterns=(
        ("*.json", "*.txt", "model.safetensors", "model-*-of-*.safetensors"),
        ("pytorch_model.bin", "pytorch_model-*-of-*.bin"),
    ),
    contents="a Whisper model has config.json, its weights and its tokenizer",
    presets="`forescribe models` lists the presets",
    alternatives={
        "model": "or try `--model demo` (bundled; understands synthetic English only)",
        "draft": "or decode without it: `--draft none`",
    },
)


class Config(Protocol):
    """The part of a transformers Whisper configuration that a pair must agree on."""

    vocab_size: int
    num_mel_bins: int
    eos_token_id: int | Sequence[int] | None
    decoder_start_token_id: int
    max_target_positions: int


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that a pair must agree on."""

    def get_vocab(self) -> dict[str, int]: ...


def locate(name: str | Path, *, role: Role = "model", network: bool = True) -> Path:
    """The folder of a Whisper model, downloaded if necessary; see `hub.locate`. Raises ModelError."""
    with as_model_error():
        return hub.locate(name, WHISPER, role=role, network=network)


@contextmanager
def as_model_error() -> Iterator[None]:
    """Raises HubError as ModelError (`model_not_found`), with the same cause."""
    try:
        yield
    except HubError as error:
        raise ModelError(str(error)) from error.__cause__


def check_pair(
    target_config: Config,
    draft_config: Config,
    target_tokenizer: Tokenizer | None = None,
    draft_tokenizer: Tokenizer | None = None,
    *,
    target: str = "the target",
    draft: str = "the draft",
) -> None:
    """Raises ModelError (`model_mismatch`) for a draft that does not fit its target.

    Both must have the same tokens under the same ids, and the same vocabulary size. They must also use
    the same features: the engine computes them once per window, and no published pair with one
    vocabulary differs in its mel bins. (Whether the draft may use the target's encoder output is
    decided elsewhere, by comparing weights.)

    Args:
        target_tokenizer, draft_tokenizer: compared token by token where both are given.
        target, draft: how the user named them, for the message.

    The message says what differs and which drafts fit.
    """
    pairs = (
        ("tokens", target_config.vocab_size, draft_config.vocab_size),
        ("as end of text", _ends(target_config), _ends(draft_config)),
        (
            "as start of transcript",
            target_config.decoder_start_token_id,
            draft_config.decoder_start_token_id,
        ),
        ("mel bins", target_config.num_mel_bins, draft_config.num_mel_bins),
        ("positions", target_config.max_target_positions, draft_config.max_target_positions),
    )
    problem = next((f"{a} and {b} {what}" for what, a, b in pairs if a != b), None)
    if problem is None and target_tokenizer is not None and draft_tokenizer is not None:
        problem = _token_difference(
            target_tokenizer.get_vocab(), draft_tokenizer.get_vocab(), _ends(target_config)
        )
    if problem is None:
        return
    fitting = [
        name
        for name in DRAFTS
        if KNOWN[name].vocab_size == target_config.vocab_size
        and KNOWN[name].mel_bins == target_config.num_mel_bins
        and name != target
    ]
    advice = f"these fit: {', '.join(fitting)}; or " if fitting else ""
    raise ModelError(
        f"{draft} cannot draft for {target}: they have {problem}; {advice}--draft none",
        code="model_mismatch",
    )


def _ends(config: Config) -> int | tuple[int, ...] | None:
    """The end-of-text tokens, in the same form whether they are a number or a list of one."""
    found = tuple(sorted(as_ids(config.eos_token_id)))
    return found[0] if len(found) == 1 else found or None


def as_ids(value: int | Sequence[int] | None) -> tuple[int, ...]:
    """Token ids of a configuration, which may give one, several or none."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _token_difference(
    target: Mapping[str, int], draft: Mapping[str, int], ends: int | tuple[int, ...] | None
) -> str | None:
    """The first token that both do not have under one id.

    Text tokens (ids below the first of `ends`) must all agree. A special token may be missing on one
    side or have another name: id 50362 is <|nocaptions|> in some repositories and <|nospeech|> in others.
    """

    eos = min(as_ids(ends), default=max(target.values(), default=0) + 1)

    def differs(token: str) -> bool:
        a, b = target.get(token), draft.get(token)
        return a != b and (None not in (a, b) or min(i for i in (a, b) if i is not None) < eos)

    different = [token for token in target.keys() | draft.keys() if differs(token)]
    if not different:
        return None
    token = min(different, key=lambda t: (target.get(t, draft.get(t, 0)), t))
    return f"ids {target.get(token)} and {draft.get(token)} for the token {token!r}"
