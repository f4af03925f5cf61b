"""pyannote's community-1: the best open pipeline, for those who have it.

Its weights are behind a form on the hub (CC-BY-4.0), so they never travel with this package. They
are taken from a folder, from the hub's cache, or from the hub with a token; always as a folder, so
that there is one way of loading. Importing this is light: pyannote comes in when it loads.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from forescribe.asr.errors import ModelError

from ..diarizer import Engine, SimilarityThresholds

if TYPE_CHECKING:
    from .pyannote_pipeline import PyannoteDiarizer

NAME = "community-1"
REPOSITORY = "pyannote/speaker-diarization-community-1"
FOLDER_VARIABLE = "FORESCRIBE_COMMUNITY_1"
TRUST_VARIABLE = "FORESCRIBE_TRUST_CHECKPOINTS"

CONFIG = "config.yaml"
CHECKPOINTS = "*/pytorch_model.bin"
KLASS = "pyannote.audio.pipelines.SpeakerDiarization"

PLAIN = frozenset({"pipeline", "params", "dependencies", "version", "freeze"})
"""Of a configuration. `preprocessors` could name any class of any package."""

HARMLESS = frozenset(
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
"""What a pyannote checkpoint may name. Unpickling calls what it names, so anything else could be a
program."""

THRESHOLDS = SimilarityThresholds(same=0.75, possible=0.5)
"""Of WeSpeaker's vectors (reported by OpenTranscribe)."""

HOW = (
    f"accept its terms at https://hf.co/{REPOSITORY}, then set HF_TOKEN or run `hf auth login`; or "
    f"give a folder with its files (--diarizer FOLDER, or {FOLDER_VARIABLE}); or take "
    "--diarizer embedded, which needs no download"
)


def find() -> Path | None:
    """Where community-1 is on this machine: the folder that the environment names, or the hub's
    cache. Never touches the network. Raises ModelError if the environment names no such folder."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return checked(Path(named).expanduser())
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(REPOSITORY, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    return folder if is_pipeline(folder) else None


def locate(*, network: bool = True) -> Path:
    """The folder of community-1, downloaded if it must and may be. Raises ModelError that says how
    to get it."""
    found = find()
    if found is not None:
        return found
    if not network:
        raise ModelError(f"{NAME} is not on this machine, and downloads are switched off: {HOW}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        return checked(Path(snapshot_download(REPOSITORY, etag_timeout=5.0)))
    except (
        GatedRepoError,
        RepositoryNotFoundError,
    ) as error:  # without a token it "does not exist"
        raise ModelError(f"{NAME}: the hub does not let you have it: {HOW}") from error
    except ModelError:
        raise
    except Exception as error:  # a full disk, no network: each transport has its own kind
        raise ModelError(f"{NAME} cannot be downloaded ({error}): {HOW}") from error


def is_pipeline(folder: Path) -> bool:
    """Whether a folder holds a configuration and checkpoints."""
    return (folder / CONFIG).is_file() and any(folder.glob(CHECKPOINTS))


def checked(folder: Path) -> Path:
    """`folder`, if a pipeline is in it. Raises ModelError."""
    if not is_pipeline(folder):
        raise ModelError(
            f"{str(folder)!r} is no diarization pipeline: it needs {CONFIG}, segmentation/, "
            f"embedding/ and plda/, as in https://hf.co/{REPOSITORY}"
        )
    return folder


def load(folder: Path, *, device: str = "cpu", name: str = NAME) -> PyannoteDiarizer:
    """The pipeline in a folder, through pyannote's own loader.

    Raises ModelError for a folder that holds something else, and for checkpoints that would run
    more than pyannote's own classes when they are opened.
    """
    check_checkpoints(checked(folder))
    import torch

    from .pyannote_pipeline import PyannoteDiarizer
    from .shared_frames import SharedFrameDiarization
    from .upstream import Pipeline, SpeakerDiarization

    try:
        pipeline = Pipeline.from_pretrained(folder)
    except Exception as error:  # torch, yaml, pyannote and lightning each have their own kinds
        raise ModelError(f"the pipeline in {str(folder)!r} cannot be loaded: {error}") from error
    if type(pipeline) is not SpeakerDiarization:
        raise ModelError(f"{str(folder)!r} holds a {type(pipeline).__name__}, not {KLASS}")
    # The same object with one method of our own; the loader knows no way to say so.
    pipeline.__class__ = SharedFrameDiarization
    pipeline.to(torch.device(device))
    details = {"folder": str(folder), "device": device}
    details |= {package: version(package) for package in ("pyannote.audio", "torch")}
    return PyannoteDiarizer(pipeline, Engine(name, _encoder(folder), THRESHOLDS, details))


def check_checkpoints(folder: Path) -> None:
    """Raises ModelError if the configuration names another class than pyannote's pipeline, or a
    checkpoint anything that is not needed to describe one. The environment may overrule it."""
    if os.environ.get(TRUST_VARIABLE) == "1":
        return
    import yaml
    from torch.serialization import get_unsafe_globals_in_checkpoint

    config = str(folder / CONFIG)
    try:
        told = yaml.safe_load(Path(config).read_text(encoding="utf-8"))
        named, others = told["pipeline"]["name"], sorted(set(told) - PLAIN)
    except (yaml.YAMLError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ModelError(f"{config!r} describes no pipeline: {error!r}") from error
    if named != KLASS:
        raise ModelError(f"{config!r} names {named}, not {KLASS}")
    if others:
        raise ModelError(f"{config!r} has more than a pipeline: {', '.join(others)}")
    for path in sorted(folder.glob(CHECKPOINTS)):
        strangers = sorted(set(get_unsafe_globals_in_checkpoint(path)) - HARMLESS)
        if strangers:
            raise ModelError(
                f"{str(path)!r} is no plain checkpoint: opening it would call {', '.join(strangers)}; "
                f"if you trust its maker, set {TRUST_VARIABLE}=1"
            )


def _encoder(folder: Path) -> str:
    """By content: the same weights elsewhere make the same vectors."""
    from forescribe.asr.batch import fingerprint

    digest = fingerprint.content(str(folder / "embedding" / "pytorch_model.bin"))
    return f"pyannote-{(digest or 'unknown')[:12]}"
