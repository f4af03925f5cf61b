"""Files of recordings: opening them, and what their headers state of their length.

A file that cannot be opened is an AudioError that says why. The functions of an opened file take a seekable
one and keep its position; they trust nothing in it, read a few kilobytes and raise nothing for damage: how
long a wav or mp3 says it is, which bytes after the sound a reader leaves out, whether an mp4 lacks its index.

Knows nothing of decoders and samples. Import is light.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import stat
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ..errors import AudioError

ADVICE = {
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.ELOOP: "its symbolic links lead in a circle",
}
"""What to do about a file that cannot be read, by the system's reason."""

UNKNOWN_SIZE = 0x7FFF0000
"""Bytes. Programs that write wav to a pipe do not know the size, and write one around 2 or 4 GiB."""

MAX_BOXES = 1000
"""The most boxes, or chunks, to look at on the outermost level of a file; a valid one has a handful."""

UNREAD_BYTES = 4096
"""Fewer bytes after the sound are not worth a warning: a tag, or padding of a page."""

PIECE = 1 << 20
"""Bytes to read at a time where a file's end is searched for anything but zeros."""


class _Layout(NamedTuple):
    """Where a format has its chunks: after `start` bytes, each with a name of four, a size, its data and,
    with `pad`, a byte where the size is odd. `data` is the name of the chunk with the samples."""

    start: int
    size: str
    data: bytes
    pad: bool = True


LAYOUTS = {
    b"RIFF": _Layout(12, "<I", b"data"),
    b"RIFX": _Layout(12, ">I", b"data"),
    b"FORM": _Layout(12, ">I", b"SSND"),
    b"caff": _Layout(8, ">q", b"data", pad=False),
}
"""By the first bytes. Sources: Multimedia Programming Interface and Data Specifications 1.0 (IBM,
Microsoft, 1991); Audio Interchange File Format 1.3 (Apple, 1989); Core Audio Format Specification (Apple)."""

FILES = (b"RIFF", b"RIFX", b"RF64", b"FORM", b"caff")
"""Names of chunks after the samples that are another recording, appended to this one."""

TAGS = (b"ID3", b"TAG", b"APETAGEX", b"LYRICSBEGIN")
"""The first bytes of tags that programs append to any file, without a chunk around them."""

NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_ ]{3}")
"""The name of a chunk. Four bytes of samples match once in 300 times, and then rarely with a fitting size."""

CUT = frozenset({b"LIST", b"id3 ", b"ID3 ", b"bext", b"iXML", b"axml", b"JUNK", b"junk", b"FLLR"})
"""Chunks that are recognized though they are longer than the rest of the file, which was cut off."""


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
    copy = tempfile.TemporaryFile()  # closed with the recording
    try:
        shutil.copyfileobj(file, copy)
        copy.seek(0)
    except BaseException:
        copy.close()
        raise
    return copy


def unreadable(name: str, error: OSError | ValueError) -> AudioError:
    """The error for a file that the system does not let us read, with advice for known reasons."""
    reason = getattr(error, "strerror", None) or error
    advice = ADVICE.get(getattr(error, "errno", None) or 0)
    text = f"{name}: cannot be read ({reason})" + (f"; {advice}" if advice else "")
    return AudioError(text, code="unreadable_file")


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


def wav_declared_s(file: BinaryIO) -> float | None:
    """The duration in seconds by a RIFF header; soundfile silently reduces it to what a truncated file
    holds."""
    with _unmoved(file):
        file.seek(0)
        if file.read(4) != b"RIFF":
            return None
        byte_rate = 0
        for name, at, size in _chunks(file, LAYOUTS[b"RIFF"]):
            if name == b"data":
                return size / byte_rate if byte_rate and 0 < size < UNKNOWN_SIZE else None
            if name == b"fmt ":
                file.seek(at)
                head = file.read(12)
                byte_rate = struct.unpack("<I", head[8:])[0] if len(head) == 12 else 0
        return None


def unread_bytes(file: BinaryIO) -> tuple[int, int]:
    """The number of bytes after the end of the samples by the header that may be more samples, and where they
    begin; 0 where there are none.

    Chunks and tags after the samples are no sound, and neither is a rest of zeros. A size that a writer to a
    pipe left unknown, or that is larger than the file, leaves nothing unread.
    """
    with _unmoved(file) as whole:
        file.seek(0)
        head = file.read(24)
        if head[:4] == b".snd" and len(head) == 24:  # Sun's: offset and size
            start, size = struct.unpack(">II", head[4:12])
            return _rest(file, start + size, whole) if size < UNKNOWN_SIZE else (0, whole)
        layout = LAYOUTS.get(head[:4])
        if layout is None:
            return 0, whole
        for name, at, size in _chunks(file, layout):
            if name == layout.data:
                unknown = not 0 < size < UNKNOWN_SIZE and layout.size != ">q"
                end = whole if unknown or size < 0 else at + size
                return _rest(file, _after_chunks(file, layout, end, whole), whole)
        return 0, whole


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


def _chunks(file: BinaryIO, layout: _Layout) -> Iterator[tuple[bytes, int, int]]:
    """Name, place and size of the data of each chunk, as far as sizes lead; -1 is an unknown size."""
    at, width, whole = layout.start, 4 + struct.calcsize(layout.size), file.seek(0, 2)
    for _ in range(MAX_BOXES):
        file.seek(min(at, whole))
        head = file.read(width)
        if len(head) < width:
            return
        size = struct.unpack(layout.size, head[4:])[0]
        yield head[:4], at + width, size
        if size < 0:
            return
        at += width + size + (size % 2 if layout.pad else 0)


def _after_chunks(file: BinaryIO, layout: _Layout, end: int, whole: int) -> int:
    """Where the chunks end that follow the samples, which end at `end`."""
    if layout.pad and end % 2 and not _is_chunk(file, layout, end, whole):
        end += 1  # some writers leave the padding out
    for _ in range(MAX_BOXES):
        size = _is_chunk(file, layout, end, whole)
        if not size:
            break
        end += size
    return min(end, whole)


def _is_chunk(file: BinaryIO, layout: _Layout, at: int, whole: int) -> int:
    """The bytes of the chunk that begins here, 0 if there is none that could be no sound."""
    width = 4 + struct.calcsize(layout.size)
    file.seek(at)
    head = file.read(width)
    if len(head) < width or not NAME.fullmatch(head[:4]) or head[:4] in (layout.data, *FILES):
        return 0
    size = int(struct.unpack(layout.size, head[4:])[0])
    if not 0 <= size <= whole - at - width:
        return whole - at if head[:4] in CUT else 0
    return width + size + (size % 2 if layout.pad else 0)


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
