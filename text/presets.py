"""Names of text models and their drafts.

A preset pairs a target with the draft that fits it. A draft must have its target's tokens; within a family
that is usually the smallest model.

Knows names and folders; nothing is loaded here. Import is light.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forescribe.speculative.models import hub
from forescribe.speculative.models.checkpoint import GGUF
from forescribe.speculative.models.hub import Role, folder_or_hub_id

DEFAULT = "demo-text"
"""The preset that is loaded without a name."""

NO_DRAFT = "none"
NGRAM = "ngram"
MTP = "mtp"
"""Drafts that are no model: none, copying what followed the last words when they occurred before, and the
layer inside the target's own checkpoint."""


@dataclass(frozen=True)
class Preset:
    """`target` and `draft` are hub ids, or of `bundled` ones folders of the package."""

    target: str
    draft: str
    note: str
    bundled: bool = False


PRESETS: Mapping[str, Preset] = {
    "demo-text": Preset("text", "text-draft", "bundled, small: for trying and testing", True),
    "qwen3-8b": Preset("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B", "conversations"),
    "qwen2.5-7b": Preset("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", "conversations"),
    "llama-3.1-8b": Preset(
        "meta-llama/Llama-3.1-8B-Instruct",
        "meta-llama/Llama-3.2-1B-Instruct",
        "conversations; its terms must be accepted on the hub",
    ),
    "gpt2-xl": Preset("openai-community/gpt2-xl", "openai-community/gpt2", "continues a text"),
}


@dataclass(frozen=True)
class Pair:
    """What to load, for `TextGenerator.load`. `draft` may also be "ngram" or "mtp"."""

    target: str | Path
    draft: str | Path | None


def resolve(model: str | None, draft: str | None) -> Pair:
    """The pair for a user's names: presets, hub ids or local folders. None is the bundled model, or the
    model's own draft; a model that no preset has drafts from its own text ("ngram"). Raises LoadError
    for a name that is neither preset, nor hub id, nor folder.
    """
    preset = PRESETS.get(model or DEFAULT)
    target = _place(preset, preset.target) if preset else _name(model or DEFAULT, "model")
    if draft == NO_DRAFT:
        return Pair(target, None)
    if draft in (MTP, NGRAM):
        return Pair(target, draft)
    if draft is not None:
        other = PRESETS.get(draft)
        return Pair(target, _place(other, other.draft) if other else _name(draft, "draft"))
    if preset is None:
        return Pair(target, NGRAM)
    return Pair(target, _place(preset, preset.draft))


def _place(preset: Preset, name: str) -> str | Path:
    return hub.FOLDER / name if preset.bundled else name


def _name(name: str, role: Role) -> str | Path:
    return folder_or_hub_id(name, role, PRESETS, GGUF)
