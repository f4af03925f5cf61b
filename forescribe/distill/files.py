"""The files of a distillation: its work folder, and what lies beside the weights of a draft.

`OUTPUT/.distill` holds the settings, the labels, the prices and the checkpoint with which a repeated
command goes on. One process at a time works in it. Files appear whole or not at all. A draft has the
tokenizer's files of its target, so that both read the same tokens. Knows folders, bytes and the system's
errors; nothing of models but how they are saved.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import torch

from forescribe.asr.errors import OutputError, UsageError

PART = ".part"
"""What a file's name ends with while it is written."""

NAME = ".distill"

LABELS = ("labels", "lock", "label_settings.json")
"""What is kept when another run with the same labels begins."""

COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "normalizer.json",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "processor_config.json",
)


class WorkFolder:
    """The work folder of an output folder, which is created; a context manager that keeps others out.
    `labels` are those of the settings on which the labels depend: with `overwrite`, labels that were made by
    the same ones are used again.

    Raises UsageError for an output folder that holds something else, a work folder of other settings, or one
    in which another process is at work; OutputError where the disk refuses.
    """

    def __init__(
        self,
        output: Path,
        settings: Mapping[str, Any],
        *,
        labels: Mapping[str, Any],
        overwrite: bool,
    ) -> None:
        self.output, self.path = output, output / NAME
        self.settings, self.overwrite = dict(settings), overwrite
        self.label_settings = dict(labels)
        self._lock: IO[bytes] | None = None

    def check(self) -> bool:
        """Whether it was begun. Raises UsageError for what is in its place; changes nothing."""
        if self.output.exists() and not self.output.is_dir():
            raise UsageError(f"-o {self.output}: there is a file of that name")
        begun = (self.path / "settings.json").exists()
        if not self.overwrite and not begun and self._holds_something():
            raise UsageError(
                f"-o {self.output}: the folder is not empty; --overwrite replaces what is in it, or name "
                "another one"
            )
        return begun

    def __enter__(self) -> Self:
        begun = self.check()
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / "lock").open("wb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise UsageError(f"-o {self.output}: another process distils into it") from None
        try:
            self._begin(begun)
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            self._lock.close()

    @property
    def labels(self) -> Path:
        return self.path / "labels"

    @property
    def start(self) -> Path:
        return self.path / "start"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"

    def read(self, name: str) -> Any:
        """A JSON file of the folder; None where it is not there."""
        path = self.path / f"{name}.json"
        return json.loads(path.read_text("utf-8")) if path.exists() else None

    def keep(self, name: str, value: Any) -> None:
        """Write a JSON file. Raises OutputError."""
        put_bytes(self.path / f"{name}.json", (json.dumps(value, indent=1) + "\n").encode())

    def remove(self) -> None:
        """Delete the folder, as its output is complete."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _holds_something(self) -> bool:
        return self.output.exists() and any(e.name != NAME for e in self.output.iterdir())

    def _begin(self, begun: bool) -> None:
        if begun and self.overwrite:
            kept = LABELS if self.read("label_settings") == self.label_settings else ("lock",)
            for entry in self.path.iterdir():
                if entry.name in kept:
                    continue
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink()
            begun = False
        if begun:
            before = self.read("settings")
            different = [k for k in self.settings if before.get(k) != self.settings[k]]
            if different:
                raise UsageError(
                    f"-o {self.output}: a run with another {different[0]} was begun there: repeat its "
                    "command to go on, or give --overwrite to begin anew, with the labels that are there "
                    "if model, data and language are the same"
                )
            return
        self.keep("label_settings", self.label_settings)
        self.keep("settings", self.settings)


def put_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: whoever is killed meanwhile leaves the old one. Raises
    OutputError."""
    temporary = path.with_name(path.name + PART)
    with writing(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises OSError as OutputError that names the path and the remedy."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = "make room and run the same command again" if full else "name another folder: -o"
        raise OutputError(
            f"cannot write {str(path)!r}: {error.strerror or error}; {advice}",
            code="storage_full" if full else "unwritable_output",
        ) from error


def copy_companions(source: Path, folder: Path) -> None:
    """Copy the tokenizer's and the features' files, following links. Raises OSError."""
    for name in COMPANIONS:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def save_weights(draft: Any, folder: Path, *, tied: str | None) -> None:
    """Write config.json last, and the weights in float16: half the size, and a draft only guesses.
    `config.json` says float32, which a plain load computes in. `tied` is the name of the head's weight where
    it is the embedding. Raises OSError."""
    from safetensors.torch import save

    weights = {
        name: value.detach().half().contiguous().cpu()
        for name, value in draft.state_dict().items()
        if name != tied
    }
    (folder / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    draft.config.dtype = torch.float32
    draft.config.architectures = [type(draft).__name__]
    draft.config.save_pretrained(folder)
