"""Presets: which target with which drafts, by name and by language.

A draft only pays in the languages that it was trained for: an English draft on French audio changes no word
of the result, but almost none of its tokens are accepted. So a preset names its drafts with their
languages. Where the language is yet to be detected, two are loaded: the preset's first one, and one for all
other languages. Any Whisper can draft for any other: where their token ids differ, `id_map` translates.

Speculation is lossless with any of them; the choice affects speed only. Knows names, the languages that
published weights were made for, and folders; nothing is loaded here. Import is light: neither torch nor
transformers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from forescribe.speculative.models import hub
from forescribe.speculative.models.checkpoint import CONFIG, GENERATION, missing
from forescribe.speculative.models.hub import HubError, Role, find, folder_or_hub_id, local
from forescribe.speculative.requests import MOST_BEAMS

from ..errors import ModelError, UsageError
from .conversion import ctranslate2, openai_pt
from .conversion.converting import user_cache
from .languages import AUTO, LANGUAGES, read_languages

ENGLISH = frozenset({"en"})
FRENCH, JAPANESE = frozenset({"fr"}), frozenset({"ja"})

MADE_FOR: Mapping[str, frozenset[str]] = {
    "tiny.en": ENGLISH,  # bundled
    "openai/whisper-tiny.en": ENGLISH,
    "openai/whisper-base.en": ENGLISH,
    "openai/whisper-small.en": ENGLISH,
    "openai/whisper-medium.en": ENGLISH,
    "distil-whisper/distil-small.en": ENGLISH,
    "distil-whisper/distil-medium.en": ENGLISH,
    "distil-whisper/distil-large-v2": ENGLISH,
    "distil-whisper/distil-large-v3": ENGLISH,
    "distil-whisper/distil-large-v3.5": ENGLISH,
    "bofenghuang/whisper-large-v3-distil-fr-v0.2": FRENCH,
    "kotoba-tech/kotoba-whisper-v1.0": JAPANESE,
    "kotoba-tech/kotoba-whisper-v2.0": JAPANESE,
}
"""The languages (ISO 639-1) that published weights were made for; others were made for all of Whisper's."""

FILES = {".pt": "a .pt of openai-whisper"}
"""Single files that hold a Whisper model, by suffix."""

SPEECH_LLMS = ("qwen3_asr", "voxtral", "granite_speech", "glmasr")
"""What the config.json of a speech LLM says, see `families`."""


def model_type(folder: Path) -> str | None:
    """What the config.json of a folder says; None where it cannot be read."""
    stated = _stated(folder, CONFIG)
    return None if stated is None else str(stated.get("model_type"))


def _stated(folder: Path, name: str) -> dict[str, Any] | None:
    """The content of a JSON file; None where it cannot be read."""
    try:
        stated = json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stated if isinstance(stated, dict) else None


def lacks(folder: Path) -> str | None:
    """What a folder lacks of a Whisper model in Hugging Face's form or CTranslate2's; None where nothing."""
    found = missing(folder)
    return ctranslate2.lacks(folder) if found == "weights" else found


WHISPER = hub.Family(
    # Of the many copies that repositories hold (other precisions, Flax, TensorFlow), the one we load.
    patterns=(
        ("*.json", "*.txt", "*.jinja", "model.safetensors", "model-*-of-*.safetensors"),
        ("pytorch_model.bin", "pytorch_model-*-of-*.bin"),
        ("model.bin",),  # CTranslate2's, as faster-whisper's repositories hold them
    ),
    contents="a Whisper model has config.json, its weights and its tokenizer",
    missing=lacks,
    files=tuple(FILES),
    presets="`forescribe models` lists the presets",
    alternatives={
        "model": "or try `--model tiny.en` (bundled; English only)",
        "draft": "or decode without it: `--draft none`",
    },
)


def locate(name: str | Path, *, role: Role = "model", network: bool = True) -> Path:
    """The folder of a speech model, downloaded or converted if necessary; see `hub.locate` and
    `conversion`. Raises ModelError, and CapacityError where a conversion needs more memory than there is."""
    with as_model_error():
        found = hub.locate(name, WHISPER, role=role, network=network)
    if found.is_file():
        return openai_pt.converted(found, network=network)
    return ctranslate2.converted(found) if missing(found) else found


@contextmanager
def as_model_error() -> Iterator[None]:
    """Raises HubError as ModelError (`model_not_found`), with the same cause."""
    try:
        yield
    except HubError as error:
        raise ModelError(str(error)) from error.__cause__


DEFAULT = "large"

BEAMS = 5
"""Of a search: the default of faster-whisper, and of openai/whisper's command."""

SEARCHED_WIDTH = 768
"""The widest Whisper, small, that is searched with `BEAMS` by default. Drafts gain nothing on so small a
model, and beams write fewer wrong words: on larger ones drafts pay."""

BUNDLED, BUNDLED_DRAFT = "tiny.en", "tiny.en-draft"
TURBO = "openai/whisper-large-v3-turbo"
QWEN, SMALL_QWEN = "Qwen/Qwen3-ASR-1.7B-hf", "Qwen/Qwen3-ASR-0.6B-hf"
ALIASES = {"demo": BUNDLED}
"""Other names of presets."""

NO_DRAFT = "none"

BeamSize = int | Literal["auto"]
"""Beams of every window, 1 for the most probable tokens; "auto": `BEAMS` where these are doubtful."""

ALIGNER = "openai/whisper-tiny"
"""Times the words of models whose decoder does not attend to the audio; in English `BUNDLED` does."""


@dataclass(frozen=True)
class Draft:
    """A draft by hub id, or by the name of a bundled folder; `languages` (ISO 639-1) where it pays, None for
    all."""

    name: str
    languages: frozenset[str] | None = None


@dataclass(frozen=True)
class Preset:
    """A target with the drafts that fit it.

    `drafts` in order of preference: the first that covers the language is taken. `beams` search its windows
    unless a call says otherwise, and then nothing is drafted. `note` says in one line what to expect. Names
    without a slash are folders of this package, others hub ids.
    """

    name: str
    target: str
    drafts: tuple[Draft, ...] = ()
    note: str = ""
    beams: int = 1

    @property
    def licence(self) -> str:
        """What the publisher's card says."""
        mit = self.target.startswith("distil-whisper/") or self.target in (BUNDLED, TURBO)
        return "mit" if mit else "apache-2.0"

    def drafts_for(self, language: str | None) -> tuple[Draft, ...]:
        """The draft for a language, if there is one; for languages that are yet to be detected (None) the
        first draft, and the one for all languages if that is another."""
        if language is not None:
            fit = (d for d in self.drafts if d.languages is None or language in d.languages)
            return tuple(fit)[:1]
        first, others = self.drafts[:1], self.drafts[1:]
        if first and first[0].languages is None:
            return first
        return (*first, *[draft for draft in others if draft.languages is None][:1])


@dataclass(frozen=True)
class Pair:
    """What to load: hub ids (str) or folders (Path), for `locate`.

    `draft` is None for decoding without a draft model. `draft_languages` are those in which the
    draft pays, None for all: in the others `rest` drafts, and without one rows decode with gamma 0.
    """

    target: str | Path
    draft: str | Path | None = None
    draft_languages: frozenset[str] | None = None
    rest: str | Path | None = None

    @property
    def drafts(self) -> tuple[str | Path, ...]:
        """What to load as drafts."""
        return tuple(filter(None, (self.draft, self.rest)))

    def route(self, language: str) -> int | None:
        """Which of `drafts` drafts in this language; None: none."""
        if self.draft_languages is None or language in self.draft_languages:
            return 0
        return None if self.rest is None else 1


@dataclass(frozen=True)
class Cached:
    """Whether a preset's weights are on this machine; `draft`: all that are loaded if no language is named,
    None where it has none. `folders` are those that are here."""

    preset: Preset
    pair: Pair
    target: bool
    draft: bool | None
    folders: tuple[Path, ...]


_TINY = (Draft("openai/whisper-tiny"),)
_LARGE_V3_DRAFTS = (
    Draft("distil-whisper/distil-large-v3.5", ENGLISH),
    Draft("bofenghuang/whisper-large-v3-distil-fr-v0.2", FRENCH),
    Draft("kotoba-tech/kotoba-whisper-v2.0", JAPANESE),
    *_TINY,  # by a map of its token ids, with its own 80 mel bins
)
_TINY_EN = (Draft(BUNDLED, ENGLISH),)

PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            "large",
            "openai/whisper-large-v3",
            _LARGE_V3_DRAFTS,
            "the default: best words; drafts for all languages",
        ),
        Preset("large-v3", "openai/whisper-large-v3", _LARGE_V3_DRAFTS, "the same as large"),
        Preset(
            "large-v2",
            "openai/whisper-large-v2",
            # tiny has its own small encoder, and covers the languages that distil does not.
            (Draft("distil-whisper/distil-large-v2", ENGLISH), *_TINY),
            "drafts for all languages",
        ),
        Preset(
            "large-v1",
            "openai/whisper-large",
            # distil-large-v2 has the encoder of large-v2: with v1 it would need a second pass of
            # 32 layers, where tiny needs 4.
            _TINY,
            "the first large model",
        ),
        Preset("medium", "openai/whisper-medium", _TINY, "drafts for all languages"),
        Preset(
            "medium.en",
            "openai/whisper-medium.en",
            (Draft("distil-whisper/distil-medium.en", ENGLISH),),
            "English only",
        ),
        Preset("small", "openai/whisper-small", _TINY, "five beams", BEAMS),
        Preset("small.en", "openai/whisper-small.en", _TINY_EN, "five beams; English only", BEAMS),
        Preset("base", "openai/whisper-base", _TINY, "five beams", BEAMS),
        Preset("base.en", "openai/whisper-base.en", _TINY_EN, "five beams; English only", BEAMS),
        Preset("tiny", "openai/whisper-tiny", (), "five beams", BEAMS),
        Preset(
            BUNDLED,
            BUNDLED,
            (Draft(BUNDLED_DRAFT, ENGLISH),),
            "bundled, no download; five beams; English only, stored in 8 bits; also called demo",
            BEAMS,
        ),
        Preset(
            "turbo",
            TURBO,
            # 2 layers of its own width would cost more than half of its 4; tiny reads a sixth of the bytes.
            _TINY,
            "drafts for all languages; its 4 decoder layers leave little to save",
        ),
        *(
            Preset(name, f"distil-whisper/{name}", (), f"English only; itself a draft of {larger}")
            for name, larger in (
                ("distil-large-v3.5", "large, its own words"),
                ("distil-large-v3", "large, its own words"),
                ("distil-large-v2", "large-v2, its own words"),
                ("distil-medium.en", "medium.en, its own words"),
            )
        ),
        Preset(
            "distil-small.en",
            "distil-whisper/distil-small.en",
            (),
            "five beams; English only",
            BEAMS,
        ),
        *(
            Preset(
                name, target, drafts, f"a speech LLM{kind}; published weights were never run here"
            )
            for name, target, drafts, kind in (
                ("qwen3-asr", QWEN, (Draft(SMALL_QWEN),), ", 30 languages"),
                ("qwen3-asr-0.6b", SMALL_QWEN, (), ", 30 languages"),
                (
                    "voxtral-mini",
                    "mistralai/Voxtral-Mini-3B-2507",
                    (),
                    " (pip install mistral-common)",
                ),
                ("granite-speech", "ibm-granite/granite-4.0-1b-speech", (), ", 6 languages"),
            )
        ),
    )
}


def resolve(
    model: str | None,
    draft: str | None,
    language: str | None = None,
    beam_size: BeamSize | None = None,
) -> Pair:
    """The pair for a user's names.

    Args:
        model: preset, hub id, local folder, or a file of openai-whisper, by its path or by its name
            (`base.pt`) where that program keeps it; None for `large`.
        draft: likewise; None for the target's own, "none" for no draft model.
        language: ISO 639-1 code of the audio if it is known, for the choice among drafts.
        beam_size: of the calls; None: the target's own.

    A target without a preset has no default draft, nor has one whose windows are all searched with beams:
    name one, or it is decoded without drafts.

    Raises ModelError for a name that is neither preset, nor hub id, nor folder.
    """
    preset = _preset_of(model or DEFAULT)
    target = _folder_or_id(preset.target) if preset else _name(model or DEFAULT, "model")
    if draft == NO_DRAFT:
        return Pair(target)
    if draft is not None:
        return Pair(target, *_named_draft(draft))
    own = preset.drafts_for(language) if preset else ()
    if preset is None or not own or (beam_size or preset.beams) not in (1, AUTO):
        return Pair(target)
    first, *others = own
    rest = _folder_or_id(others[0].name) if others else None
    return Pair(target, _folder_or_id(first.name), first.languages, rest)


def beams_of(target: str | Path, folder: Path | None = None) -> int | None:
    """With how many beams a target's windows are searched unless a call says otherwise: what its preset says;
    without one what its `folder` says as `num_beams`, which transformers' `generate` reads too, or its width.
    None where the folder is unknown. It depends on the model alone, never on the machine."""
    preset = next((p for p in PRESETS.values() if _folder_or_id(p.target) == target), None)
    if preset is not None:
        return preset.beams
    if folder is None or (stated := _stated(folder, CONFIG)) is None:
        return None
    if stated.get("model_type") in SPEECH_LLMS:
        return 1
    own = (_stated(folder, GENERATION) or {}).get("num_beams")
    if type(own) is int and 0 < own <= MOST_BEAMS:
        return own
    if not isinstance(width := stated.get("d_model"), int):  # CTranslate2's, before it is converted
        return None
    return BEAMS if width <= SEARCHED_WIDTH else 1


def mismatch(draft: str | Path, target: str | Path, problem: str) -> ModelError:
    """The refusal of a draft that does not fit its target."""
    return ModelError(
        f"{draft} cannot draft for {target}: {problem}; --draft none", code="model_mismatch"
    )


def made_for(target: str | Path) -> frozenset[str] | None:
    """The languages (ISO 639-1) that a target was made for, where these are fewer than its tokens name; None
    for other models, which are known by their tokens alone."""
    if isinstance(target, Path) and target.parent == hub.FOLDER:
        return MADE_FOR.get(target.name)
    return MADE_FOR.get(target) if isinstance(target, str) else None


def only_answer(target: str | Path) -> str:
    """What to tell who asks a target of one language for another one, or for a translation."""
    presets = (p.name for p in PRESETS.values() if _folder_or_id(p.target) == target)
    name = next(presets, target.name if isinstance(target, Path) else target)
    (code,) = made_for(target) or ENGLISH
    plain = name.removeprefix("distil-").removesuffix(".en")
    instead = plain if plain != name and plain in PRESETS else DEFAULT
    return f"{name} knows {LANGUAGES[code].title()} only; use {instead}"


def check_request(target: str | Path, language: str | None, task: str) -> None:
    """Raises UsageError for a language or a task that a target was not made for, by what is known of it
    before it is loaded."""
    known = made_for(target)
    read_languages(language, known or LANGUAGES, only_answer(target))
    if known is not None and task == "translate":
        raise UsageError(f"--task translate: {only_answer(target)}")


def cached() -> list[Cached]:
    """All presets with what of them is on this machine; never touches the network."""
    made = []
    for preset in PRESETS.values():
        pair = resolve(preset.name, None)
        target, *drafts = map(find, (pair.target, *pair.drafts))
        folders = tuple(folder for folder in (target, *drafts) if folder is not None)
        drafted = None not in drafts if drafts else None
        made.append(Cached(preset, pair, target is not None, drafted, folders))
    return made


def _named_draft(name: str) -> tuple[str | Path, frozenset[str] | None]:
    """What `--draft NAME` means, and the languages in which it pays."""
    preset = _preset_of(name)
    if name == BUNDLED_DRAFT:
        return _folder_or_id(name), ENGLISH
    if preset is None:
        draft = _name(name, "draft")
        return draft, _languages(draft)
    return _folder_or_id(preset.target), _languages(preset.target)


def _preset_of(name: str) -> Preset | None:
    """The preset of this name, or the first with this target; a folder is never a preset.

    Other programs name targets by the part after `whisper-`, and people write names without their signs:
    `large-v3-turbo`, `whisper-small`, `largev3`, `Large_V3`.
    """
    name = ALIASES.get(name, name)
    if name in PRESETS:
        return PRESETS[name]
    if os.path.lexists(local(name)):
        return None
    targets = (name, f"openai/{name}", f"openai/whisper-{name}")
    exact = next((p for p in PRESETS.values() if p.target in targets), None)
    if exact is not None or "/" in name:
        return exact
    plain = _plain(name)
    written = (
        p for p in PRESETS.values() if plain in (_plain(p.name), _plain(Path(p.target).name))
    )
    return next(written, None)


def _plain(name: str) -> str:
    """A name without case, signs, and the word that all have."""
    return re.sub(r"[-_ ]", "", name.lower()).removeprefix("whisper")


def _folder_or_id(name: str) -> str | Path:
    return name if "/" in name else hub.FOLDER / name


def _name(name: str, role: Role) -> str | Path:
    if not os.path.exists(local(name)):
        kept = user_cache() / "whisper" / name  # where openai-whisper keeps its files
        if kept.suffix in FILES and kept.is_file():
            return kept
    with as_model_error():
        return folder_or_hub_id(name, role, PRESETS, FILES)


def _languages(name: str | Path) -> frozenset[str] | None:
    return MADE_FOR.get(name) if isinstance(name, str) else None
