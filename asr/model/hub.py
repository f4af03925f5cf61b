"""Weights: where they lie, how to get them, and whether a draft's fit a target's.

A name is a local folder or a Hugging Face hub id. A folder is taken as it is; an id comes from the
hub's cache, and is downloaded only where it is not there. Without a network that fails within
seconds, with one line that says what to do: minutes of silent retries would help nobody.

Knows nothing of presets, devices or decoding. Import is light: the hub's client is loaded where it
is used, torch and transformers never.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from forescribe.speculative.models.checkpoint_files import missing

from ..errors import ModelError

Role = Literal["model", "draft"]

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

# Of the many copies that repositories hold (other precisions, Flax, TensorFlow), the one we load.
_FILES = ("*.json", "*.txt", "model.safetensors", "model-*-of-*.safetensors")
_OLD_FILES = ("pytorch_model.bin", "pytorch_model-*-of-*.bin")

_CONNECT_S = 5.0


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


def local(name: str | Path) -> Path:
    """As a path; `~` is the home folder. Never raises, whatever a user has typed."""
    return Path(os.path.expanduser(name))


def find(name: str | Path) -> Path | None:
    """The folder of `name` if it is on this machine with its configuration and weights.

    Never touches the network; a half-finished download does not count.
    """
    folder = local(name)
    if os.path.isdir(folder):
        return folder if _complete(folder) else None
    if isinstance(name, Path) or not _is_hub_id(name):
        return None
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        snapshot = Path(snapshot_download(name, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        return None
    return snapshot if _complete(snapshot) else None


def locate(name: str | Path, *, role: Role = "model", network: bool = True) -> Path:
    """The folder of `name`, downloaded if it must and may be.

    Args:
        name: local folder or hub id.
        role: the option that named it, for the message.
        network: whether a download is allowed; the hub's own HF_HUB_OFFLINE=1 forbids it too.

    Raises ModelError (`model_not_found`) that names the culprit and the ways out.
    """
    found = find(name)
    if found is not None:
        return found
    folder = local(name)
    if os.path.isdir(folder):
        raise ModelError(
            f"--{role} {folder}: the folder holds no {missing(folder)}; a Whisper model has "
            "config.json, its weights and its tokenizer"
        )
    if isinstance(name, Path) or not _is_hub_id(name):
        raise ModelError(
            f"--{role} {name} is neither a local folder, nor a preset, nor a hub id (owner/name); "
            "`forescribe models` lists the presets"
        )
    if not network:
        raise ModelError(_absent(name, role, "downloads are switched off"))
    return _download(name, role)


def check_pair(
    target_config: Config,
    draft_config: Config,
    target_tokenizer: Tokenizer | None = None,
    draft_tokenizer: Tokenizer | None = None,
    *,
    target: str = "the target",
    draft: str = "the draft",
) -> None:
    """Refuses a draft that does not speak its target's language.

    Both must have the same tokens under the same ids, and room for the same number of them. They
    must also hear the same features: the engine computes them once per window, and no published
    pair with one vocabulary differs in its mel bins. (Whether the draft may use the target's
    encoder output is another question, answered by comparing weights.)

    Args:
        target_tokenizer, draft_tokenizer: compared token by token where both are given.
        target, draft: how the user named them, for the message.

    Raises ModelError (`model_mismatch`) that says what differs and which drafts fit.
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
    """What ends a text, written alike whether it is a number or a list of one."""
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


def _is_hub_id(name: str) -> bool:
    """Whether `name` reads as owner/name; `./x/y`, `~/x` and `/x` are paths."""
    return name.count("/") == 1 and all(name.split("/")) and name[0] not in ".~"


def _complete(folder: Path) -> bool:
    """Whether a folder holds a configuration and all files of its weights."""
    return missing(folder) is None


def _download(name: str, role: Role) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        for patterns in (_FILES, _OLD_FILES):
            folder = Path(
                snapshot_download(name, allow_patterns=list(patterns), etag_timeout=_CONNECT_S)
            )
            if _complete(folder):
                return folder
    except GatedRepoError as error:
        raise ModelError(
            f"--{role} {name}: the hub asks you to accept its terms first; then set HF_TOKEN"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelError(
            f"--{role} {name}: no such model on the hub, or a private one (then set HF_TOKEN); "
            "`forescribe models` lists the presets"
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelError(_absent(name, role, "the hub cannot be reached")) from error
    except Exception as error:  # a full disk, a broken connection: each transport has its own kind
        raise ModelError(_absent(name, role, f"the download failed ({error})")) from error
    raise ModelError(f"--{role} {name}: the repository holds no weights that can be loaded")


def _absent(name: str, role: Role, why: str) -> str:
    instead = (
        "or try `--model demo` (bundled; understands synthetic English only)"
        if role == "model"
        else "or decode without it: `--draft none`"
    )
    return (
        f"{name} is not in the model cache and {why}: run `hf download {name}` with a network, "
        f"or give a local folder to --{role}, {instead}"
    )
