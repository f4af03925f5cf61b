"""Model names: a local folder, a Hugging Face hub id or a bundled model, to a folder on this machine.

A folder is taken as it is; an id comes from the hub's cache, and is downloaded only where it is not there.
Without a network that fails within seconds, with one line that says what to do. The bundled models are `demo`
and `text`, each with its `-draft`; `bundled/README.md` describes them.

Knows no family of models: a `Family` says which files to download and what a folder must contain. Import is
light: the hub's client is loaded where it is used, torch and transformers never.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

from ..errors import LoadError, one_line
from .checkpoint import missing

NO_FILES: Mapping[str, str] = {}

Role = Literal["model", "draft", "diarizer"]
"""The option that named a model, for messages."""

CONNECT_S = 5.0
"""Seconds to wait for the hub: without a network, its client would retry for minutes."""

LARGE = 20_000_000
"""Bytes from which on a file is continued. The hub's client writes 10 MiB at a time."""

FOLDER = Path(__file__).resolve().parents[2] / "bundled"
"""The bundled models: next to `speculative/`, both in a checkout and in a wheel."""


class HubError(LoadError):
    """A model that is not on this machine and cannot be downloaded, or a folder that is not complete."""


@dataclass(frozen=True)
class Family:
    """A family of models: the files of its repositories, and its part of the messages."""

    patterns: tuple[tuple[str, ...], ...]  # of the files to download, in order of preference
    contents: str  # "a Whisper model has config.json, ..."
    presets: str = ""  # where its presets are listed
    alternatives: Mapping[Role, str] = field(default_factory=dict)  # to a model that is not there
    missing: Callable[[Path], str | None] = missing  # what a folder lacks; None: nothing
    # suffixes of single files that hold a model, and are taken as they are
    files: tuple[str, ...] = ()


def locate(name: str | Path, family: Family, *, role: Role = "model", network: bool = True) -> Path:
    """The folder of `name`, downloaded if necessary, or its file where the family has models in single files.

    Args:
        name: local folder or hub id.
        role: the option that named it, for the message.
        network: whether a download is allowed; the hub's own HF_HUB_OFFLINE=1 forbids it too.

    Raises HubError with the name and what to do.
    """
    found = find(name, family.missing)
    if found is not None:
        return found
    folder = local(name)
    if os.path.isfile(folder) and folder.suffix in family.files:
        return folder
    if os.path.isdir(folder):
        raise HubError(
            f"--{role} {folder}: the folder holds no {family.missing(folder)}; {family.contents}"
        )
    if isinstance(name, Path) or not _is_hub_id(name):
        preset, hint = (", nor a preset,", f"; {family.presets}") if family.presets else ("", "")
        raise HubError(
            f"--{role} {name} is neither a local folder{preset} nor a hub id (owner/name){hint}"
        )
    if not network:
        raise HubError(_absent(name, family, role, "downloads are switched off"))
    return _download(name, family, role)


def find(name: str | Path, lacks: Callable[[Path], str | None] = missing) -> Path | None:
    """The folder of `name` if it is on this machine and `lacks` nothing.

    Never uses the network; a half-finished download does not count.
    """
    folder = local(name)
    if os.path.isdir(folder):
        return folder if lacks(folder) is None else None
    if isinstance(name, Path) or not _is_hub_id(name):
        return None
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        snapshot = Path(snapshot_download(name, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        return None
    return snapshot if lacks(snapshot) is None else None


def folder_or_hub_id(
    name: str, role: Role, presets: Iterable[str], files: Mapping[str, str] = NO_FILES
) -> str | Path:
    """A name that is none of the `presets`: a folder, or a file of one of the forms `files` (by suffix), as a
    Path, a hub id unchanged. Raises HubError, with the presets, where it can be none of them."""
    folder = local(name)
    if os.path.isdir(folder):
        return folder
    if os.path.exists(folder):  # before it is taken for a hub id
        if folder.suffix in files and os.path.isfile(folder):
            return folder
        forms = "".join(f", or {form}" for form in files.values())
        raise HubError(
            f"--{role} {name} is a file: give the folder with config.json and "
            f"model.safetensors that transformers saves{forms}"
        )
    if "/" not in name:
        known = list(presets)
        near = get_close_matches(name.lower(), known, n=1)
        told = f"; did you mean {near[0]}?" if near else f": {', '.join(known)}"
        raise HubError(
            f"--{role} {name} is neither a local folder, nor a hub id (owner/name), nor a preset{told}"
        )
    return name


def local(name: str | Path) -> Path:
    """As a path; `~` is the home folder. Never raises, whatever a user has typed."""
    return Path(os.path.expanduser(name))


def names() -> list[str]:
    """The bundled models, sorted."""
    return sorted(config.parent.name for config in FOLDER.glob("*/config.json"))


def path(name: str) -> Path:
    """The folder of a bundled model; an unknown name is refused with the known ones."""
    if name not in names():
        raise ValueError(f"no bundled model {name!r}; known: {', '.join(names())}")
    return FOLDER / name


def _is_hub_id(name: str) -> bool:
    """Whether `name` reads as owner/name; `./x/y`, `~/x` and `/x` are paths."""
    return name.count("/") == 1 and all(name.split("/")) and name[0] not in ".~"


def _download(name: str, family: Family, role: Role) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        for patterns in family.patterns:
            _continue(name, patterns)
            folder = Path(
                snapshot_download(name, allow_patterns=list(patterns), etag_timeout=CONNECT_S)
            )
            if family.missing(folder) is None:
                return folder
    except HubError:
        raise
    except GatedRepoError as error:
        raise HubError(
            f"--{role} {name}: the hub asks you to accept its terms first; then set HF_TOKEN"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        hint = f"; {family.presets}" if family.presets else ""
        raise HubError(
            f"--{role} {name}: no such model on the hub, or a private one (then set HF_TOKEN){hint}"
        ) from error
    except LocalEntryNotFoundError as error:
        raise HubError(_absent(name, family, role, "the hub cannot be reached")) from error
    except Exception as error:  # a full disk, a broken connection: each transport has its own class
        why = f"the download failed ({error})"
        raise HubError(_absent(name, family, role, why)) from error
    raise HubError(f"--{role} {name}: the repository holds no weights that can be loaded")


def _continue(name: str, patterns: Iterable[str]) -> None:
    """Bring the large files of a repository into the hub's cache, each from where an earlier run was broken
    off: huggingface_hub begins them anew (its issue 4196). What comes is checked by its SHA-256, which is the
    name of a large file in the cache. Raises HubError for a download that breaks off, RepositoryNotFoundError
    of the hub's client for a repository that is closed to this user."""
    from huggingface_hub import HfApi, constants, get_token, hf_hub_url
    from huggingface_hub.errors import RepositoryNotFoundError
    from huggingface_hub.file_download import http_get

    try:
        info = HfApi().model_info(name, files_metadata=True, timeout=CONNECT_S)
    except Exception:  # the download itself, which follows, tells the reason
        return
    files = {s.rfilename: (s.size, s.lfs.sha256) for s in info.siblings or () if s.lfs and s.size}
    blobs = Path(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}", "blobs")
    token = get_token()
    # As the hub's client reads patterns.
    for path in (each for each in files if any(fnmatch(each, own) for own in patterns)):
        size, sha256 = files[path]
        whole, part = blobs / sha256, blobs / f"{sha256}.part.incomplete"
        if not LARGE <= size <= constants.MAX_HTTP_DOWNLOAD_SIZE or whole.exists():
            continue
        blobs.mkdir(parents=True, exist_ok=True)
        with part.open("ab+") as kept:
            fcntl.flock(kept, fcntl.LOCK_EX)  # another process may be fetching it
            if whole.exists():
                continue
            if kept.seek(0, os.SEEK_END) > size:  # damaged: the hub would refuse each further range
                kept.truncate(0)
            try:
                http_get(
                    hf_hub_url(name, path, revision=info.sha),
                    kept,
                    resume_size=kept.seek(0, os.SEEK_END),
                    headers={"authorization": f"Bearer {token}"} if token else {},
                    expected_size=size,
                    displayed_filename=path,
                )
            except RepositoryNotFoundError:  # gated as well
                raise
            except Exception as error:  # each transport has its own class
                have = kept.seek(0, os.SEEK_END) / 1e6
                raise HubError(
                    f"{name}: the download failed ({one_line(error)}) with {have:.0f} of {size / 1e6:.0f} "
                    f"MB of {path}; the same command continues there"
                ) from error
            kept.seek(0)
            if hashlib.file_digest(kept, "sha256").hexdigest() != sha256:
                kept.truncate(0)  # not removed: another process may wait for its lock
                raise HubError(
                    f"{name}: {path} arrived damaged and was deleted; run the same command again"
                )
            part.replace(whole)


def _absent(name: str, family: Family, role: Role, why: str) -> str:
    advice = f", {family.alternatives[role]}" if role in family.alternatives else ""
    return (
        f"{name} is not in the model cache and {why}: run `hf download {name}` with a network, "
        f"or give a local folder to --{role}{advice}"
    )
