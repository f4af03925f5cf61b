"""Engines by name: the embedded one, and pyannote pipelines in a folder.

pyannote's community-1 is the most accurate open pipeline. Its weights (CC-BY-4.0) require accepting terms on
the hub, so they are not part of this package. They are read from a folder, from the hub's cache, or
downloaded with a token, and always loaded from a folder.

This module is light; an engine imports torch.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from forescribe.asr.errors import ModelError, UsageError
from forescribe.speculative.errors import load_cause
from forescribe.speculative.models import hub
from forescribe.speculative.models.checkpoint import loading

from ..diarizer import Diarizer, Engine, SimilarityThresholds

if TYPE_CHECKING:
    from .embedded import EmbeddedDiarizer
    from .pyannote_pipeline import PyannoteDiarizer

AUTO = "auto"
COMMUNITY = "community-1"
EMBEDDED = "embedded"

REPOSITORY = "pyannote/speaker-diarization-community-1"
FOLDER_VARIABLE = "FORESCRIBE_COMMUNITY_1"
TRUST_VARIABLE = "FORESCRIBE_TRUST_CHECKPOINTS"

CONFIG = "config.yaml"
CHECKPOINTS = "*/pytorch_model.bin"
KLASS = "pyannote.audio.pipelines.SpeakerDiarization"

ALLOWED_KEYS = frozenset({"pipeline", "params", "dependencies", "version", "freeze"})
"""Keys that a configuration may have. `preprocessors`, for example, could name any class."""

ALLOWED_GLOBALS = frozenset(
    f"{module}.{name}"
    for module, names in {
        "pyannote.audio.core.task": "Specifications Problem Resolution Scope Subset",
        "pyannote.audio.core.model": "Introspection Output",
        "torch.torch_version": "TorchVersion",
        "omegaconf.dictconfig": "DictConfig",
        "omegaconf.listconfig": "ListConfig",
        "omegaconf.base": "ContainerMetadata Metadata",
        "omegaconf.nodes": "AnyNode",
        "typing": "Any",
        "builtins": "dict list int float str bool set",
        "__builtin__": "dict list int float str bool set",
        "collections": "defaultdict OrderedDict",
        "lightning.fabric.utilities.data": "AttributeDict",
        "lightning_fabric.utilities.data": "AttributeDict",
        "pytorch_lightning.utilities.parsing": "AttributeDict",
    }.items()
    for name in names.split()
)
"""The globals that a pyannote checkpoint may refer to. Unpickling calls them, so any other could run
arbitrary code."""

COMMUNITY_THRESHOLDS = SimilarityThresholds(same=0.75, possible=0.5)
"""For WeSpeaker's vectors, as reported by OpenTranscribe."""

HOW = (
    f"accept its terms at https://hf.co/{REPOSITORY}, then set HF_TOKEN or run `hf auth login`; or "
    f"give a folder with its files (--diarizer FOLDER, or {FOLDER_VARIABLE}); or use "
    "--diarizer embedded, which needs no download"
)


def resolve(name: str, *, network: bool = True) -> str | Path:
    """Resolve `name` to an engine's name or a folder, without loading it.

    `auto` is community-1 if it is on this machine, else the embedded engine; it never downloads.
    `community-1`, also by the name of its repository, is downloaded if necessary and `network` allows it.
    Raises UsageError for an unknown name and ModelError if it is not available.
    """
    if name == EMBEDDED:
        return EMBEDDED
    if name == AUTO:
        return _find_community() or EMBEDDED
    if name in (COMMUNITY, REPOSITORY):
        return _locate_community(network)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _checked(folder)
    known = f"{AUTO}, {COMMUNITY}, {EMBEDDED}"
    raise UsageError(f"--diarizer {name} is neither an engine nor a folder; known: {known}")


@loading()
def load(name: str = AUTO, *, device: str = "auto", network: bool = True) -> Diarizer:
    """Load the engine. Raises the errors of `resolve`, DeviceError, and ModelError for weights that
    cannot be loaded."""
    chosen = resolve(name, network=network)
    if isinstance(chosen, Path):
        title = COMMUNITY if name in (AUTO, COMMUNITY, REPOSITORY) else str(chosen)
        return load_pipeline(chosen, device=_device(device), name=title)
    return load_online(device=device)


def check_online() -> None:
    """Raises ModelError where the networks of live audio are missing; loads nothing."""
    folder = hub.FOLDER / "speakers"
    if not folder.is_dir():
        raise ModelError(
            f"speakers of live audio need the networks in {str(folder)!r}: install forescribe anew"
        )


@loading()
def load_online(loaded: Diarizer | None = None, *, device: str = "auto") -> EmbeddedDiarizer:
    """The engine of live audio, which is the embedded one; `loaded` if it is one. Raises DeviceError, and
    ModelError if its networks are missing."""
    from .embedded import EmbeddedDiarizer

    if isinstance(loaded, EmbeddedDiarizer):
        return loaded
    return EmbeddedDiarizer(device=_device(device))


def _device(name: str) -> str:
    """A device that pyannote supports: CUDA, else the CPU."""
    from forescribe.speculative.device import choose

    kind = choose(name).torch
    return str(kind) if kind.type in ("cuda", "cpu") else "cpu"


def _find_community() -> Path | None:
    """Find community-1 on this machine: in the folder of the environment variable, or in the hub's
    cache. Does not use the network. Raises ModelError if the named folder holds no pipeline."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return _checked(Path(named).expanduser())
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(REPOSITORY, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    return folder if _is_pipeline(folder) else None


def _locate_community(network: bool) -> Path:
    """Return the folder of community-1, downloading it if necessary and allowed. Raises ModelError
    with instructions otherwise."""
    found = _find_community()
    if found is not None:
        return found
    if not network:
        raise ModelError(
            f"{COMMUNITY} is not on this machine, and downloads are switched off: {HOW}"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        folder = Path(snapshot_download(REPOSITORY, etag_timeout=5.0))
    except (GatedRepoError, RepositoryNotFoundError) as error:  # the answer without a token
        raise ModelError(f"{COMMUNITY}: the hub denies access: {HOW}") from error
    except Exception as error:  # a full disk, no network: exceptions depend on the transport
        raise ModelError(f"{COMMUNITY} cannot be downloaded ({error}): {HOW}") from error
    return _checked(folder)


def _is_pipeline(folder: Path) -> bool:
    """Whether a folder holds a configuration and checkpoints."""
    return (folder / CONFIG).is_file() and any(folder.glob(CHECKPOINTS))


def _checked(folder: Path) -> Path:
    """Return `folder`. Raises ModelError if it holds no pipeline."""
    if not _is_pipeline(folder):
        raise ModelError(
            f"{str(folder)!r} is not a diarization pipeline: it needs {CONFIG}, segmentation/, "
            f"embedding/ and plda/, as in https://hf.co/{REPOSITORY}"
        )
    return folder


def load_pipeline(folder: Path, *, device: str = "cpu", name: str = COMMUNITY) -> PyannoteDiarizer:
    """Load the pipeline in a folder with pyannote's loader.

    Raises ModelError if the folder holds something else, or checkpoints that would run code other
    than pyannote's classes.
    """
    check_checkpoints(_checked(folder))
    import torch

    from forescribe.asr.batch.ledger import content_hash

    from .pyannote_pipeline import PyannoteDiarizer, SharedFrameDiarization
    from .upstream import Pipeline, SpeakerDiarization

    try:
        pipeline = Pipeline.from_pretrained(folder)
    except Exception as error:  # torch, yaml, pyannote and lightning raise different exceptions
        cause = load_cause(error)
        raise ModelError(f"the pipeline in {str(folder)!r} cannot be loaded: {cause}") from error
    if type(pipeline) is not SpeakerDiarization:
        raise ModelError(f"{str(folder)!r} holds a {type(pipeline).__name__}, not {KLASS}")
    # Adds one overridden method; the loader has no option for the class.
    pipeline.__class__ = SharedFrameDiarization
    pipeline.to(torch.device(device))
    details = {"folder": str(folder), "device": device}
    details |= {package: version(package) for package in ("pyannote.audio", "torch")}
    # Named by content, as equal weights compute equal vectors wherever they are.
    digest = content_hash(str(folder / "embedding" / "pytorch_model.bin"))
    encoder = f"pyannote-{(digest or 'unknown')[:12]}"
    return PyannoteDiarizer(pipeline, Engine(name, encoder, COMMUNITY_THRESHOLDS, details))


def check_checkpoints(folder: Path) -> None:
    """Raises ModelError if the configuration names another class than pyannote's pipeline, or if a
    checkpoint refers to unexpected globals. FORESCRIBE_TRUST_CHECKPOINTS=1 skips the check."""
    if os.environ.get(TRUST_VARIABLE) == "1":
        return
    import yaml
    from torch.serialization import get_unsafe_globals_in_checkpoint

    config = str(folder / CONFIG)
    try:
        data = yaml.safe_load(Path(config).read_text(encoding="utf-8"))
        named, others = data["pipeline"]["name"], sorted(set(data) - ALLOWED_KEYS)
    except (yaml.YAMLError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ModelError(f"{config!r} does not describe a pipeline: {error!r}") from error
    if named != KLASS:
        raise ModelError(f"{config!r} names {named}, not {KLASS}")
    if others:
        raise ModelError(f"{config!r} has unexpected keys: {', '.join(others)}")
    for path in sorted(folder.glob(CHECKPOINTS)):
        unexpected = sorted(set(get_unsafe_globals_in_checkpoint(path)) - ALLOWED_GLOBALS)
        if unexpected:
            raise ModelError(
                f"{str(path)!r} is not a plain checkpoint: opening it would call {', '.join(unexpected)}; "
                f"if you trust its author, set {TRUST_VARIABLE}=1"
            )
