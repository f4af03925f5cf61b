"""The errors of the package, as one tree, and untrusted text in a form that a terminal or a log may show.

    ForescribeError
        AudioError      the recording: missing, empty, not audio, without sound
        ModelError      the weights: not found, not cached, an incompatible pair
        UsageError      the request: an unknown format, an impossible option
        OutputError     the result: a folder that cannot be written, a full disk
        StorageError    object storage: no access, no such object, no answer
        CapacityError   the machine: out of memory

Every error has a `code` for programs and a message of one line that says what is wrong and what to do.
The command's records and the service's responses use the same codes.

Messages quote names of files, which may hold line breaks and codes that move the cursor, change colours or
reverse the writing direction; printed unchanged, one could forge or hide a line. Such characters are escaped
as in Python (`visible`); all others, in any script, are unchanged.

Knows nothing of how errors are reported. Import is light.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Literal

ROOT = Path(__file__).resolve().parents[1]
"""The folder of a checkout; in a wheel that of the package."""

MESSAGE_LENGTH = 4000
"""The most characters of a message: libraries quote what they were given."""

_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, line and paragraph separators, direction marks, and lone surrogates, which stand for
the bytes of a name that are not UTF-8."""

_OUT_OF_MEMORY = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "allocation failed for",
)
"""Messages of torch on mps and cpu and of Gaudi's bridge, which have no exception class for it."""

Code = Literal[
    # the recording
    "missing_file",
    "unreadable_file",  # a directory, a device, no permission
    "empty_file",
    "invalid_audio",
    "no_audio_stream",
    "unsupported_media_type",
    "file_too_large",
    "audio_too_long",
    # the weights
    "model_not_found",
    "model_mismatch",
    # the request
    "invalid_value",
    # the result
    "unwritable_output",
    "storage_full",
    # object storage
    "storage_denied",  # no, expired or insufficient credentials
    "storage_unavailable",  # no answer after several attempts
    # the machine
    "overloaded",
    "crashed_workers",  # every process that tried this recording died
    # a fault of this package
    "internal_error",
]


class ForescribeError(Exception):
    """The base class of all errors that the package raises on purpose.

    Args:
        message: one line. Further lines are joined and control characters escaped, so that a log record
            stays one line, whatever the name of a file is; at most `MESSAGE_LENGTH` characters.
        code: one of `Code`; by default that of the class.
    """

    default_code: ClassVar[Code] = "internal_error"

    def __init__(self, message: str, *, code: Code | None = None) -> None:
        super().__init__(clipped(one_line(message), MESSAGE_LENGTH))
        self.code: Code = code or self.default_code

    @property
    def message(self) -> str:
        return str(self.args[0])


class AudioError(ForescribeError):
    """The recording cannot be used."""

    default_code = "invalid_audio"


class ModelError(ForescribeError):
    """The weights cannot be used."""

    default_code = "model_not_found"


class UsageError(ForescribeError, ValueError):
    """The request is invalid; also a ValueError, for callers of the library."""

    default_code = "invalid_value"


class OutputError(ForescribeError, OSError):
    """The result cannot be written; also an OSError, for callers of the library."""

    default_code = "unwritable_output"


class StorageError(ForescribeError, OSError):
    """Object storage refuses a request or does not answer; also an OSError, for callers of the library."""

    default_code: ClassVar[Code] = "storage_unavailable"


class CapacityError(ForescribeError):
    """The machine is overloaded; a smaller request, or the same one later, may succeed."""

    default_code = "overloaded"


@contextmanager
def output_errors(what: str, advice: str = "name another folder with -o") -> Iterator[None]:
    """Raise OSError as OutputError "cannot write <what>: <reason>; <advice>", with code `storage_full` or
    `unwritable_output`."""
    try:
        yield
    except ForescribeError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise OutputError(
            f"cannot write {what}: {error.strerror or error}; {advice}",
            code="storage_full" if full else "unwritable_output",
        ) from error


@contextmanager
def temporary_errors(folder: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """`output_errors` of temporary files, in this folder or that of the system. Every place that opens or
    writes one does it in here."""
    import tempfile

    # Not gettempdir, which raises where there is no folder that can be written.
    place = os.fspath(folder or tempfile.tempdir or os.environ.get("TMPDIR", "/tmp"))
    advice = "free some space there, or name another folder with TMPDIR"
    with output_errors(f"temporary files to {place!r}", advice):
        yield


def out_of_memory(error: BaseException) -> bool:
    """Whether a device or the machine ran out of memory; by name, because torch is not imported here."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {"OutOfMemoryError", "MemoryError"}:
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(phrase in text for phrase in _OUT_OF_MEMORY)


def visible(text: str) -> str:
    """Escape the characters of a text that could affect its display."""
    return _HIDDEN.sub(lambda match: _escaped(match[0]), text)


def one_line(text: str) -> str:
    """Join the lines of a text with spaces and escape it, for messages of libraries."""
    return visible(" ".join(filter(None, map(str.strip, text.splitlines()))))


def clipped(text: str, length: int) -> str:
    """A text of at most `length` characters; of a longer one the middle is left out, as messages name the
    culprit first and the advice last."""
    if len(text) <= length:
        return text
    tail = length // 4
    return f"{text[: length - tail - 3]} … {text[len(text) - tail :]}"


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"  # a byte
    return character.encode("unicode_escape").decode("ascii")


def how_to_install(*extras: str, root: Path = ROOT) -> str:
    """The command that installs extras of `pyproject.toml`, as a clause: in a checkout `scripts/setup`,
    which knows the pinned versions, else pip."""
    if (root / "scripts" / "setup").is_file():
        # The speakers' packages are among what it installs without arguments.
        groups = [extra for extra in extras if extra != "diarize"]
        return f"run `{' '.join(['scripts/setup', *groups])}` in forescribe's folder"
    return f"run `pip install 'forescribe[{','.join(extras)}]'`"
