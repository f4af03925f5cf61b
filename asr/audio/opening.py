"""Files of recordings: opening them, and what their headers state of their length.

A file that cannot be opened is an AudioError that says why. The functions of an opened file take a seekable
one and keep its position; they trust nothing in it, read a few kilobytes and raise nothing for damage: how
much of its sound a file holds, which bytes after the sound a reader leaves out, whether it lacks its index.

Knows nothing of decoders and samples. Import is light.
"""

from __future__ import annotations

import io
import os
import re
import stat
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..errors import AudioError, temporary_errors

COPIED_BYTES = 1 << 20
"""Of what cannot seek, at a time."""

MAX_BOXES = 1000
"""The most boxes, or chunks, to look at on the outermost level of a file; a valid one has a handful."""

UNREAD_BYTES = 4096
"""Fewer bytes after the sound are not worth a warning: a tag, or padding of a page."""

PIECE = 1 << 20
"""Bytes to read at a time where a file's end is searched for anything but zeros."""


WAVS = (b"RIFF", b"RF64", b"BW64")
"""The first bytes of wav files. After 12 bytes there are chunks: a name and a size of four bytes each, data,
and a byte that makes it an even number. Sources: Multimedia Programming Interface and Data Specifications 1.0
(IBM, Microsoft, 1991); EBU Tech 3306, RF64 (2018)."""

TAGS = (b"ID3", b"TAG", b"APETAGEX", b"LYRICSBEGIN")
"""The first bytes of tags that programs append to any file, without a chunk around them."""

NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_ ]{3}")
"""The name of a chunk. Four bytes of samples match once in 300 times, and then rarely with a fitting size."""


def open_path(path: Path, name: str) -> BinaryIO:
    """Open a file or a pipe; `name` is for messages. Raises AudioError: `missing_file`,
    `unreadable_file`."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise AudioError(f"{name}: a directory; name the files in it", code="unreadable_file")
        if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
            raise AudioError(f"{name}: neither a file nor a pipe", code="unreadable_file")
        return path.open("rb")
    except (FileNotFoundError, NotADirectoryError) as error:
        fetched = "`forescribe transcribe` and `diarize` fetch URLs; else download it first"
        hint = fetched if "://" in name else "check the path"
        raise AudioError(f"{name}: no such file; {hint}", code="missing_file") from error
    except (OSError, ValueError) as error:  # ValueError: the path contains a null byte
        raise unreadable(name, error) from error


def seekable_file(
    source: str | os.PathLike[str] | bytes | BinaryIO, name: str
) -> tuple[BinaryIO, bool]:
    """A seekable file of a recording, "-" for standard input, and whether to close it. What cannot seek is
    copied to disk first, because the index of an mp4 may be at its end."""
    if isinstance(source, bytes):
        return io.BytesIO(source), True
    if source == "-":
        return _copied_to_disk(sys.stdin.buffer), True
    if isinstance(source, str | os.PathLike):
        file = open_path(Path(source), name)
        if file.seekable():
            return file, True
        with file:
            return _copied_to_disk(file), True
    if source.seekable():
        source.seek(0)
        return source, False
    return _copied_to_disk(source), True


def _copied_to_disk(file: BinaryIO) -> BinaryIO:
    """Raises OutputError where it cannot be written."""
    with temporary_errors():
        copy = tempfile.TemporaryFile(buffering=0)  # closed with the recording
    try:
        while block := file.read(COPIED_BYTES):
            with temporary_errors():
                write_all(cast(BinaryIO, copy), block)
        copy.seek(0)
    except BaseException:
        copy.close()
        raise
    return io.BufferedRandom(copy)


def write_all(file: BinaryIO, data: Any) -> None:
    """Write bytes, or an array's, to a file without a buffer, where a full disk is told now and not when the
    rest of the buffer is written."""
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[file.write(rest) or 0 :]


def unreadable(name: str, error: OSError | ValueError) -> AudioError:
    """The error for a file that the system does not let us read."""
    reason = getattr(error, "strerror", None) or error
    return AudioError(f"{name}: cannot be read ({reason})", code="unreadable_file")


def empty(name: str) -> AudioError:
    """The error for an empty file."""
    return AudioError(f"{name}: the file is empty (0 bytes)", code="empty_file")


class CallbackFile:
    """A file for a library that reads it through callbacks of C, where an exception is printed and ignored.

    Positions outside of the file, to which damaged headers lead, are moved into it. An error in reading ends
    the file; `check` raises it.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._size = file, file.seek(0, os.SEEK_END)
        self._error: OSError | None = None
        file.seek(0)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_CUR: self._file.tell(), os.SEEK_END: self._size}.get(whence, 0)
        return self._file.seek(min(max(0, base + offset), self._size))

    def tell(self) -> int:
        return self._file.tell()

    def read(self, count: int = -1) -> bytes:
        try:
            return self._file.read(count)
        except OSError as error:
            self._error = error
            return b""

    def check(self) -> None:
        """Raises the error that ended the file, if there was one."""
        if self._error is not None:
            raise self._error


def size_of(file: BinaryIO) -> int:
    """The size of the file in bytes."""
    with _unmoved(file) as size:
        return size


def is_known(size: int) -> bool:
    """Whether a header's size of the samples, in bytes, means what it says. Programs that write to a pipe do
    not know it, and write 0, or a number around 2 or 4 GiB."""
    return 0 < size < 0xFFFF0000 and not 0x7FFF0000 <= size <= 0x80010000


def stated_bytes(file: BinaryIO) -> tuple[int, int]:
    """The bytes of sound by the header of a wav, and those of them in the file: fewer in one that was cut
    off."""
    with _unmoved(file) as whole:
        start, end = _stated(file, whole)
        return end - start, max(0, min(end, whole) - start)


def unread_bytes(file: BinaryIO) -> tuple[int, int]:
    """The number of bytes after the end of the samples by the header of a wav that may be more samples, and
    where they begin; 0 where there are none.

    Chunks and tags after the samples are no sound, and neither is a rest of zeros. A size that a writer to a
    pipe left unknown, or that is larger than the file, leaves nothing unread.
    """
    with _unmoved(file) as whole:
        _, end = _stated(file, whole)
        return _rest(file, _after_chunks(file, end, whole), whole)


def lacks_index(file: BinaryIO) -> bool:
    """Whether this is an mp4 without its `moov` box, as after an interrupted download or recording.

    Source: ISO/IEC 14496-12, section 4.2: boxes of 4 bytes of size and 4 of type, then 8 for a size of 1.
    """
    with _unmoved(file) as end:
        at, kinds = 0, list[bytes]()
        while at + 8 <= end and len(kinds) < MAX_BOXES:
            file.seek(at)
            head = file.read(16)
            size, kind = struct.unpack(">I", head[:4])[0], head[4:8]
            if size == 1 and len(head) == 16:
                size = struct.unpack(">Q", head[8:])[0]
            kinds.append(kind)
            if size < 8:  # 0: up to the end of the file
                break
            at += size
        return kinds[:1] == [b"ftyp"] and b"mdat" in kinds and b"moov" not in kinds


def has_xing(file: BinaryIO) -> bool:
    """Whether an mp3 states its length: a Xing, Info or VBRI header in its first frame, after any
    ID3v2 tag."""
    with _unmoved(file):
        file.seek(0)
        head = file.read(10)
        skip = 0
        if head[:3] == b"ID3" and len(head) == 10:
            skip = 10 + sum(
                (byte & 0x7F) << shift for byte, shift in zip(head[6:], (21, 14, 7, 0), strict=True)
            )
        file.seek(skip)
        start = file.read(2048)
        return any(tag in start for tag in (b"Xing", b"Info", b"VBRI"))


def clock_s(text: str) -> float | None:
    """The seconds in Matroska's format `00:01:02.500000000`."""
    try:
        hours, minutes, rest = text.split(":")
        return int(hours) * 3600 + int(minutes) * 60 + float(rest)
    except ValueError:
        return None


@contextmanager
def _unmoved(file: BinaryIO) -> Iterator[int]:
    """Keep the position; yields the size of the file."""
    here = file.tell()
    try:
        yield file.seek(0, 2)
    finally:
        file.seek(here)


def _stated(file: BinaryIO, whole: int) -> tuple[int, int]:
    """Where the samples begin and end by the header; at the end of the file where it does not say."""
    wide = 0
    for name, at, size in _chunks(file, whole):
        if name == b"ds64":  # of RF64: the size of the file, and of the samples
            file.seek(at + 8)
            wide = int.from_bytes(file.read(8), "little")
        if name == b"data":
            size = wide or size
            return at, at + size if wide or is_known(size) else whole
    return whole, whole


def _chunks(file: BinaryIO, whole: int) -> Iterator[tuple[bytes, int, int]]:
    """Name, place and size of the data of each chunk, as far as sizes lead."""
    file.seek(0)
    if file.read(12)[:4] not in WAVS:
        return
    at = 12
    for _ in range(MAX_BOXES):
        file.seek(min(at, whole))
        head = file.read(8)
        if len(head) < 8:
            return
        name, size = struct.unpack("<4sI", head)
        yield name, at + 8, size
        at += 8 + size + size % 2


def _after_chunks(file: BinaryIO, end: int, whole: int) -> int:
    """Where the chunks end that follow the samples, which end at `end`."""
    end += end % 2
    for _ in range(MAX_BOXES):
        file.seek(min(end, whole))
        name, size = file.read(4), int.from_bytes(file.read(4), "little")
        if not NAME.fullmatch(name) or name in (b"data", *WAVS) or size > whole - end - 8:
            break
        end += 8 + size + size % 2
    return min(end, whole)


def _rest(file: BinaryIO, start: int, whole: int) -> tuple[int, int]:
    """The bytes from here to the end of the file, unless they are a tag or zeros."""
    if whole - start < UNREAD_BYTES:
        return 0, whole
    file.seek(start)
    piece = file.read(PIECE)
    if piece.startswith(TAGS):
        return 0, whole
    while piece and not piece.strip(b"\0"):
        piece = file.read(PIECE)
    return (whole - start, start) if piece else (0, whole)
